"""Write a policy of your own: any callable that scores variables.

    python examples/your_own_policy.py mine.mps

It gets the state as tensors and returns a score per variable; the candidate with the highest score
is branched on. This one takes the fractional variable with the most non-zeros and the largest cost.
"""

import sys

import torch
from pyscipopt import Model
from torch import Tensor

from learn2branch.features import STATE
from solver_plugins import include_branchrule

OBJECTIVE = STATE.variable.index("objective")
FRACTIONALITY = STATE.variable.index("fractionality")


def busiest(
    constraint_features: Tensor, edge_index: Tensor, edge_values: Tensor, variable_features: Tensor
) -> Tensor:
    """Score a variable by its distance from integrality, its cost and its number of rows."""
    rows = torch.bincount(edge_index[1], minlength=len(variable_features))
    fraction = variable_features[:, FRACTIONALITY]
    distance = torch.minimum(fraction, 1 - fraction)
    return distance * (1 + variable_features[:, OBJECTIVE].abs()) * (1 + rows)


def main(instance: str) -> None:
    """Solve the instance with the policy above."""
    model = Model()
    model.hideOutput()
    model.readProblem(instance)
    # With strict an error in the policy ends the solve; without, SCIP decides in its place.
    rule = include_branchrule(model, busiest, strict=True)
    model.optimize()
    objective = f"{model.getObjVal():g}" if model.getNSols() > 0 else "none"
    print(f"{model.getStatus()}: objective {objective}, {model.getNNodes()} nodes")
    print(rule.statistics)


if __name__ == "__main__":
    main(*sys.argv[1:])
