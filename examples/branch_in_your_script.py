"""Put a learned policy into a SCIP script of your own.

    python examples/branch_in_your_script.py mine.mps runs/mine/policy.pt

The policy is a file that `l2b train` wrote, or the name of a shipped one (`l2b models`).
"""

import sys

from pyscipopt import Model

from solver_plugins import include_branchrule


def main(instance: str, policy: str) -> None:
    """Solve the instance, branching as the policy says."""
    model = Model()
    model.hideOutput()
    model.readProblem(instance)
    model.setParam("limits/time", 600)

    # One line. Whatever the policy cannot decide is left to SCIP, so the answer is always SCIP's.
    rule = include_branchrule(model, policy)

    model.optimize()
    objective = f"{model.getObjVal():g}" if model.getNSols() > 0 else "none"
    print(f"{model.getStatus()}: objective {objective}, {model.getNNodes()} nodes")
    print(rule.statistics)


if __name__ == "__main__":
    main(*sys.argv[1:])
