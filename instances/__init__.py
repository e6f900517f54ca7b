"""Problem families: one module a family, parameters and a generator each."""

from instances import cauctions, facilities, indset, mknapsack, placement, setcover, workload
from instances.family import Family
from instances.milp import Milp, ParameterError

FAMILIES: dict[str, Family] = {
    module.FAMILY.name: module.FAMILY
    for module in (setcover, cauctions, facilities, indset, mknapsack, placement, workload)
}

__all__ = ["FAMILIES", "Family", "Milp", "ParameterError"]
