"""The machine and the software a result was made with: what a reader needs to judge its times."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

_SECONDS_TO_LOOK = 0.5


def cores() -> int:
    """Return how many cores this process may use; two threads of one core count once."""
    cpus = _cpus()
    siblings = set()
    for cpu in cpus:
        try:
            topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
            siblings.add(topology.read_text())
        except OSError:
            siblings.add(str(cpu))
    return max(1, min(len(siblings), _quota()))


def free_cores() -> int:
    """Return how many of the cores nobody else is using right now, by looking for half a second."""
    before = _idle_and_total()
    if before is None:  # no /proc: the load of the last minute is the best there is
        return max(0, round(cores() - os.getloadavg()[0]))
    time.sleep(_SECONDS_TO_LOOK)
    after = _idle_and_total()
    assert after is not None
    total = after[1] - before[1]
    return round(cores() * (after[0] - before[0]) / total) if total else cores()


def describe() -> str:
    """Return the processor, its cores, the memory and the operating system in one line."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{_processor()}, {cores()} core{'s' if cores() > 1 else ''}, {memory:.0f} GiB, "
        f"{platform.system()} {platform.release()}"
    )


def versions() -> str:
    """Return the versions that decide a solve, in one line."""
    from learn2branch.kernels import KERNELS
    from solver_plugins.episode import scip_version
    from solver_plugins.observation import has_fast_path
    from solver_plugins.solve import new_model

    packages = ("learn2branch", "pyscipopt", "torch")
    parts = [f"{name} {version(name)}" for name in packages]
    parts += [f"SCIP {scip_version(new_model())}", f"Python {platform.python_version()}"]
    if KERNELS is None or not has_fast_path():
        parts.append("not compiled")  # times are then others
    return ", ".join(parts)


def _cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _quota() -> int:
    """Return the whole cores that a container's limit allows, or very many without one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, int(quota) // int(period))
    except (OSError, ValueError):
        return 1 << 30


def _idle_and_total() -> tuple[int, int] | None:
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return None
    wanted = {f"cpu{cpu}" for cpu in _cpus()}
    ticks = [list(map(int, line.split()[1:])) for line in lines if line.split()[0] in wanted]
    # idle and waiting for a disk are the fourth and fifth; the guests' are in the first already
    return sum(t[3] + t[4] for t in ticks), sum(sum(t[:8]) for t in ticks)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(
            line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")
        )
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
