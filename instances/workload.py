"""Workload appointment: the fewest workers that carry all tasks, even if any one of them fails.

The formulation is the paper's, the sizes are those of the ML4CO competition, whose instances are
not public any more; the distributions are our choice (docs/instances.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from instances.drawing import Draw
from instances.family import Family, sizes
from instances.milp import Floats, Ints, Milp, ParameterError


@dataclass(frozen=True)
class Workload:
    """Parameters of a workload appointment."""

    tasks: int = 60
    workers: int = 1000
    able: int = 55  # workers that can do a task
    min_capacity: int = 50  # of a worker, a uniform integer
    max_capacity: int = 150
    use: float = 0.88  # total load, as a share of the total capacity

    def __post_init__(self) -> None:
        if not 2 <= self.able <= self.workers <= self.tasks * self.able:
            raise ParameterError(
                f"tasks {self.tasks}, workers {self.workers}, able {self.able}: expected "
                "2 <= able <= workers <= tasks * able, so that each worker has a task"
            )
        if not (1 <= self.min_capacity <= self.max_capacity and 0 < self.use < 1):
            raise ParameterError(
                f"min_capacity {self.min_capacity}, max_capacity {self.max_capacity}, use "
                f"{self.use}: expected 1 <= min_capacity <= max_capacity and 0 < use < 1"
            )


def generate(p: Workload, draw: Draw) -> Milp:
    """Make one workload appointment."""
    capacity = draw.integers(p.min_capacity, p.max_capacity, p.workers).astype(np.float64)
    # Walking the tasks, the first ones share out all workers, so that each has a task.
    able = draw.distinct(
        p.workers, np.full(p.tasks, p.able), start=draw.permutation(p.workers)
    ).reshape(p.tasks, p.able)
    able.sort(axis=1)
    load = _loads(p, able, capacity, draw)
    return _program(p, able, capacity, load)


def _loads(p: Workload, able: Ints, capacity: Floats, draw: Draw) -> Floats:
    """Return loads that can be carried: each task gets a random part of its workers' capacity."""
    # A worker's capacity is divided over its tasks in random proportions; used up to `use`, less
    # what the worker with the largest part would leave behind by failing.
    weight = 0.5 + draw.uniform(able.shape)
    total = np.bincount(able.ravel(), weight.ravel(), minlength=p.workers)
    part = p.use * capacity[able] * weight / total[able]
    return np.floor(part.sum(axis=1) - part.max(axis=1))


def _program(p: Workload, able: Ints, capacity: Floats, load: Floats) -> Milp:
    # Columns: y_j, then x_i_j for all pairs, as in ML4CO, though only able workers ever matter.
    tasks, workers, k = p.tasks, p.workers, p.able
    pairs = tasks * workers
    x = workers + np.arange(pairs).reshape(tasks, workers)
    link_x = (np.arange(pairs), x.ravel(), np.ones(pairs))
    link_y = (np.arange(pairs), np.tile(np.arange(workers), tasks), -load.repeat(workers))
    x_able = np.take_along_axis(x, able, axis=1)
    carry = (pairs + able.ravel(), x_able.ravel(), np.ones(able.size))
    # For each task and each of its workers, the others carry the task.
    failing, other = np.nonzero(~np.eye(k, dtype=bool))
    first_row = pairs + workers + np.arange(tasks)[:, None] * k
    failure = ((first_row + failing).ravel(), x_able[:, other].ravel(), np.ones(tasks * len(other)))
    blocks = (link_x, link_y, carry, failure)
    rows, columns, values = (np.concatenate(parts) for parts in zip(*blocks, strict=True))
    shape = (pairs + workers + able.size, workers + pairs)
    return Milp(
        name=f"WorkloadAppointment-{tasks}-{workers}",
        maximise=False,
        objective=np.repeat([1.0, 0.0], [workers, pairs]),
        lower=np.zeros(shape[1]),
        upper=np.concatenate([np.ones(workers), np.tile(capacity, tasks)]),
        binary=np.arange(shape[1]) < workers,
        matrix=csr_array((values, (rows, columns)), shape=shape),
        left=np.concatenate([np.full(pairs + workers, -np.inf), load.repeat(k)]),
        right=np.concatenate([np.zeros(pairs), capacity, np.full(able.size, np.inf)]),
        variable_names=[f"y_{j}" for j in range(workers)]
        + [f"x_{i}_{j}" for i in range(tasks) for j in range(workers)],
        row_names=[f"link_{i}_{j}" for i in range(tasks) for j in range(workers)]
        + [f"carry_{j}" for j in range(workers)]
        + [f"fail_{i}_{j}" for i in range(tasks) for j in able[i]],
    )


FAMILY = Family(
    name="workload",
    title="workload appointment",
    parameters=Workload,
    generate=generate,
    presets={
        "tiny": sizes(Workload(5, 20, 6)),
        "small": sizes(Workload(10, 60, 12)),
        "paper": sizes(Workload(60, 1000, 55)),
    },
    counts={"paper": {"train": 400, "valid": 100, "test": 100}},
)
