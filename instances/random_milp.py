"""Random MILPs after Chen et al. (2023): the "unfoldable" set, feasible or not by chance.

With probability one no two variables look alike, so colour refinement tells all instances apart.
Where the paper writes N(0, 10) and N(0, 0.01), the second number is the standard deviation, as in
the published generator.
"""

from __future__ import annotations

import numpy as np

from instances import ParameterError
from instances.stack import EQUAL, GREATER, LESS, Milps, in_row_order, stack


def random_milps(
    indices: range, *, seed: int, variables: int = 20, constraints: int = 6, nonzeros: int = 60
) -> Milps:
    """Make the instances with these numbers; each depends on its number and the seed alone."""
    check_sizes(variables, constraints, nonzeros)
    return stack([_one(seed, index, variables, constraints, nonzeros) for index in indices])


def check_sizes(variables: int, constraints: int, nonzeros: int) -> None:
    """Refuse sizes that no matrix can have."""
    for name, size in (
        ("variables", variables), ("constraints", constraints), ("non-zeros", nonzeros)
    ):  # fmt: skip
        if size < 1:
            raise ParameterError(f"an instance needs at least one of its {name}, not {size}")
    if nonzeros > variables * constraints:
        raise ParameterError(
            f"{nonzeros} non-zeros do not fit into a matrix of {constraints} x {variables}: "
            f"at most {constraints * variables}"
        )


def _one(seed: int, index: int, n: int, m: int, e: int) -> Milps:
    rng = np.random.default_rng([seed, index])
    ends = rng.normal(0, 10, (2, 1, n))
    position = rng.choice(m * n, e, replace=False)[None]
    return Milps(
        rng.normal(0, 0.01, (1, n)),
        rng.random((1, n)) < 0.5,
        ends.min(axis=0),
        ends.max(axis=0),
        rng.normal(0, 1, (1, m)),
        rng.choice([LESS, EQUAL, GREATER], (1, m)).astype(np.int8),
        *in_row_order(position // n, position % n, rng.normal(0, 1, (1, e)), n),
    )
