"""Collect and train on instances of your own, from Python.

    python examples/learn_on_your_instances.py 'mine/*.mps' --samples 2000 --epochs 50

Leaves the samples in `samples/mine`, the run with its `policy.pt` in `runs/mine-bgnn-small`.
"""

import argparse

from learn2branch.training import TrainingConfig
from pipelines.branching.collect import collect
from pipelines.branching.train import train


def main() -> None:
    """Solve the instances asking the expert now and then, then learn what it said."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("instances", nargs="+", help="files, folders or globs")
    parser.add_argument("--samples", type=int, default=2000)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--model", default="bgnn", choices=("dualattn", "bgnn"))
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()

    store, splits = collect(
        instances=options.instances,
        name="mine",
        samples=options.samples,
        expert_probability=0.3,  # ask often: few instances must teach much
        jobs=options.jobs,
    )
    for split, summary in splits.items():
        print(f"{split}: {summary.samples} samples of {summary.episodes} episodes")

    trained = train(
        samples=store,
        model=options.model,
        size="small",
        training=TrainingConfig(epochs=options.epochs, batch_size=32),
    )
    print(f"accuracy on unseen instances: {trained.test['policy']['acc@1']:.3f}")
    print(f"the policy is {trained.policy}")


if __name__ == "__main__":
    main()
