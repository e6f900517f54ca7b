"""Work in processes: whatever a task does to its process, the others come to their end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from pipelines import parallel


def square(number: int) -> int:
    return number * number


def behave(what: tuple[str, str]) -> str:
    kind, marker = what
    if kind == "raise":
        raise ValueError("it is raining")
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "crash once" and not Path(marker).exists():
        Path(marker).touch()
        os._exit(3)
    if kind == "hang":
        time.sleep(600)
    if kind == "kill the worker" and not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(30)
    if kind == "print":
        os.write(1, b"a solver that prints to stdout\n")
    return f"{kind} in {os.getpid()}"


def outcomes(tasks: list[Any], **options: Any) -> dict[int, parallel.Outcome[str]]:
    found = {outcome.index: outcome for outcome in parallel.run(behave, tasks, **options)}
    assert sorted(found) == list(range(len(tasks)))
    return found


def test_every_task_has_its_outcome_in_one_process_and_in_two() -> None:
    for jobs in (1, 2):
        found = list(parallel.run(square, range(20), jobs=jobs))
        assert sorted((o.index, o.value) for o in found) == [(i, i * i) for i in range(20)]


def test_a_task_that_raises_crashes_or_hangs_costs_only_itself(tmp_path: Path) -> None:
    kinds = ["raise", "crash", "crash once", "hang", "print", "ok", "ok", "ok"]
    tasks = [(kind, str(tmp_path / "once")) for kind in kinds]
    found = outcomes(tasks, jobs=2, timeout=3, retries=1)
    assert found[0].error == "ValueError: it is raining"
    assert found[1].error == "its process ended with signal 11"
    assert found[3].error == "took longer than 3 s and was ended"
    for index in (2, 4, 5, 6, 7):
        assert found[index].error is None and found[index].value, kinds[index]


def test_a_killed_worker_is_replaced_and_its_task_done_again(tmp_path: Path) -> None:
    tasks = [("ok", "")] * 3 + [("kill the worker", str(tmp_path / "once"))] + [("ok", "")] * 3
    assert all(outcome.error is None for outcome in outcomes(tasks, jobs=2).values())


def test_children_are_recycled() -> None:
    tasks = [("ok", "")] * (2 * parallel._TASKS_A_CHILD + 10)
    children = {str(outcome.value) for outcome in outcomes(tasks, jobs=1, timeout=60).values()}
    assert len(children) == 3


def test_outcomes_may_be_left_unread() -> None:
    unread = parallel.run(square, range(100), jobs=2)
    next(unread)
    unread.close()  # type: ignore[attr-defined]
    assert len(list(parallel.run(square, range(4), jobs=2))) == 4


def test_nothing_goes_on_after_the_command_was_killed(tmp_path: Path) -> None:
    (tmp_path / "endless.py").write_text(
        textwrap.dedent("""
            import sys, time
            from pipelines import parallel

            def write_on(path):
                while True:
                    open(path, "a").write("x")
                    time.sleep(0.05)
        """)
    )
    start = "import endless; list(endless.parallel.run(endless.write_on, ['a', 'b'], jobs=2))"
    command = subprocess.Popen([sys.executable, "-c", start], cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (tmp_path / "a").exists() or not (tmp_path / "b").exists():
        assert time.monotonic() < deadline and command.poll() is None
        time.sleep(0.1)
    command.kill()
    command.wait()
    time.sleep(3)
    sizes = [(tmp_path / name).stat().st_size for name in "ab"]
    time.sleep(1)
    assert [(tmp_path / name).stat().st_size for name in "ab"] == sizes


def test_work_of_one_job_outlives_the_shell_that_began_it(tmp_path: Path) -> None:
    """With one job the caller is its own worker, and once ended with its parent."""
    (tmp_path / "patient.py").write_text(
        textwrap.dedent("""
            import time
            from pipelines import parallel

            def write_at_last(path):
                open(path, "w").close()
                time.sleep(3)

            def work():
                for outcome in parallel.run(write_at_last, ["begun", "done"], jobs=1, timeout=60):
                    assert outcome.error is None
        """)
    )
    work = [sys.executable, "-c", "import patient; patient.work()"]
    shell = f"import subprocess, time; subprocess.Popen({work!r}, start_new_session=True)"
    wait = "\nwhile not __import__('os').path.exists('begun'): time.sleep(0.1)"
    subprocess.run([sys.executable, "-c", shell + wait], cwd=tmp_path, check=True, timeout=60)
    deadline = time.monotonic() + 60
    while not (tmp_path / "done").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_cluster_must_be_named_and_reachable() -> None:
    from learn2branch.errors import InputError

    with pytest.raises(InputError, match="one of loky, dask, ray"):
        list(parallel.run(square, [1, 2], jobs=2, backend="threads"))
    with pytest.raises(InputError, match="needs --cluster"):
        list(parallel.run(square, [1, 2], jobs=2, backend="dask"))


def slowly(path: str) -> int:
    time.sleep(0.2)
    with open(path, "a") as file:
        file.write(f"{os.getppid()}\n")  # the dask worker
    return os.getppid()


def test_a_real_dask_cluster_survives_the_death_of_a_worker(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed")
    log = tmp_path / "log"
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        killed, workers = None, set()
        address = cluster.scheduler_address
        tasks = [str(log)] * 30
        for outcome in parallel.run(slowly, tasks, jobs=2, backend="dask", cluster=address):
            assert outcome.error is None
            workers.add(outcome.value)
            if killed is None and len(workers) == 2:
                killed = outcome.value
                assert isinstance(killed, int)
                os.kill(killed, signal.SIGKILL)
    assert killed is not None and len(workers) >= 2
    after = log.read_text().split()
    assert len(after) >= 30 and after[-1] != str(killed)


def test_ray_too_survives_crashes_and_the_death_of_a_worker(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    kinds = ["raise", "crash", "kill the worker", "hang", "print", "ok", "ok", "ok"]
    tasks = [(kind, str(tmp_path / "once")) for kind in kinds]
    found = outcomes(tasks, jobs=2, backend="ray", timeout=3)
    assert found[0].error == "ValueError: it is raining"
    assert found[1].error == "its process ended with signal 11"
    assert found[3].error == "took longer than 3 s and was ended"
    assert all(found[index].error is None for index in (2, 4, 5, 6, 7))
    assert len(list(parallel.run(square, iter(range(20)), jobs=2, backend="ray"))) == 20


def test_a_ray_cluster_that_is_not_there_is_named_at_once() -> None:
    from learn2branch.errors import InputError

    pytest.importorskip("ray")
    with pytest.raises(InputError, match=r"cannot join ray at 127\.0\.0\.1:1: .*refused"):
        list(parallel.run(square, [1, 2], backend="ray", cluster="127.0.0.1:1"))


def test_workers_are_reused_but_work_where_the_command_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A reused worker kept the folder of the command that had started it, and missed its files.
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        monkeypatch.chdir(folder)
        outcomes = parallel.run(os.path.abspath, ["."] * 4, jobs=2)
        assert {(outcome.value, outcome.error) for outcome in outcomes} == {(str(folder), None)}
