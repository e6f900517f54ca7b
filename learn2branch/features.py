"""The feature schemas: which column of a `BipartiteGraph` means what, for each of the three tasks.

Every producer fills its arrays in this order and every consumer checks the schema's hash, so a
policy can never be fed columns that it was not trained on.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class FeatureSchema:
    """Named columns, in order."""

    name: str
    variable: tuple[str, ...]
    constraint: tuple[str, ...]

    @cached_property  # every shard that is read is compared with it
    def hash(self) -> str:
        """Identify the columns and their order: equal for equal schemas only."""
        columns = json.dumps([self.name, self.variable, self.constraint])
        return hashlib.sha256(columns.encode()).hexdigest()[:16]


# The LP state of a branch-and-bound node, column for column Ecole's NodeBipartite. Where Ecole has
# NaN because there is no incumbent yet (the last but five and four), ours has 0.
STATE = FeatureSchema(
    "state",
    variable=(
        "objective",
        "is_binary",
        "is_integer",
        "is_implicit_integer",
        "is_continuous",
        "has_lower_bound",
        "has_upper_bound",
        "reduced_cost",
        "lp_value",
        "fractionality",
        "at_lower_bound",
        "at_upper_bound",
        "age",
        "incumbent_value",
        "average_incumbent_value",
        "basis_lower",
        "basis_basic",
        "basis_upper",
        "basis_zero",
    ),
    constraint=("bias", "objective_cosine", "is_tight", "dual_value", "age"),
)

# An instance as Chen et al. (2023) describe it.
INSTANCE = FeatureSchema(
    "instance",
    variable=("objective", "is_integer", "lower_bound", "upper_bound"),
    constraint=("right_hand_side", "sense"),
)

# The same with one random number a node, which separates instances that colour refinement cannot.
INSTANCE_RANDOM = FeatureSchema(
    "instance-random",
    variable=(*INSTANCE.variable, "random"),
    constraint=(*INSTANCE.constraint, "random"),
)

# An instance as Predict-and-Search (Han et al. 2023) describes it; the position columns are zero
# except for placement.
ELEMENT = FeatureSchema(
    "element",
    variable=(
        "objective",
        "mean_coefficient",
        "degree",
        "max_coefficient",
        "min_coefficient",
        "is_binary",
        *(f"position_{bit}" for bit in range(12)),
    ),
    constraint=("mean_coefficient", "degree", "right_hand_side", "sense"),
)

SCHEMAS = {schema.name: schema for schema in (STATE, INSTANCE, INSTANCE_RANDOM, ELEMENT)}
