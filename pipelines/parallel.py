"""The one place that knows how work is spread over processes and machines: joblib, dask, ray.

Every worker of a backend runs its tasks in a child process of its own, so that a task which
crashes, hangs or eats memory takes down that child and nothing else.
"""

from __future__ import annotations

import itertools
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import joblib

Task = TypeVar("Task")
Result = TypeVar("Result")

BACKENDS = ("loky", "dask", "ray")
_TASKS_A_CHILD = 50  # then a fresh one: solvers and their wrappers leak a little in every solve
_LOST_WORKERS = 10  # in a row without a finished task, before we give up


@dataclass(frozen=True)
class Outcome(Generic[Result]):
    """What became of one task: its value, or one sentence on why there is none."""

    index: int  # position in the list of tasks
    value: Result | None = None
    error: str | None = None


def run(
    function: Callable[[Task], Result],
    tasks: Iterable[Task],
    *,
    jobs: int = 1,
    timeout: float | None = None,
    retries: int = 0,
    backend: str = "loky",
    cluster: str | None = None,
) -> Iterator[Outcome[Result]]:
    """Apply a function to every task, in processes, and yield outcomes as they come, in any order.

    A task that raises, crashes its process, or takes longer than `timeout` seconds costs only
    itself: it is tried `retries` times more, then its outcome carries the error. Tasks are begun
    in their order, and taken from the iterable as needed. The function must be a module's own, so
    that other processes can import it. With one job and no timeout on this machine everything runs
    in this process.

    `backend` is `loky` (this machine), `dask` (the cluster at the address `cluster`) or `ray` (the
    cluster there, or one that is started on this machine).
    """
    if backend not in BACKENDS:
        raise _input_error(f"{backend} is not a backend: expected one of {', '.join(BACKENDS)}")
    alone = jobs == 1 or (isinstance(tasks, Sized) and len(tasks) <= 1)
    if backend == "loky" and timeout is None and alone:
        yield from (_attempt(function, index, task) for index, task in enumerate(tasks))
        return
    # Pickled once, and unpickled only in the children: the workers stay small.
    pickled, folder = pickle.dumps(function), os.getcwd()
    begun: dict[int, bytes] = {}  # and not finished
    to_begin = ((index, pickle.dumps(task)) for index, task in enumerate(tasks))

    def calls(again: dict[int, bytes]) -> Iterator[tuple[Any, ...]]:
        for index, task in itertools.chain(again.items(), to_begin):
            begun[index] = task
            yield os.getpid(), pickled, folder, index, task, timeout, retries

    if backend == "ray":
        for index, reply in _on_ray(calls({}), jobs, cluster):
            yield Outcome(index, *pickle.loads(reply))
        return
    lost = 0
    with _dask(cluster) if backend == "dask" else nullcontext():
        while True:
            pool = joblib.Parallel(
                n_jobs=jobs if backend == "loky" else -1,
                backend="loky" if backend == "loky" else None,
                return_as="generator_unordered",
                batch_size=1,
                pre_dispatch="1.5 * n_jobs",
            )
            again = calls(dict(sorted(begun.items())))
            outcomes = pool(joblib.delayed(_in_child)(*call) for call in again)
            try:
                for index, reply in outcomes:
                    del begun[index]
                    lost = 0
                    yield Outcome(index, *pickle.loads(reply))
                return
            except Exception as problem:
                # A killed worker breaks the whole pool: what was not finished is begun again.
                lost += 1
                if not _is_lost_worker(problem) or lost > _LOST_WORKERS:
                    raise
            finally:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # joblib tells of the results nobody wants
                    outcomes.close()


def _attempt(function: Callable[[Task], Result], index: int, task: Task) -> Outcome[Result]:
    try:
        return Outcome(index, value=function(task))
    except Exception as error:
        return Outcome(index, error=_sentence(error))


def _input_error(sentence: str) -> Exception:
    from learn2branch.errors import InputError

    return InputError(sentence)


def _sentence(error: BaseException) -> str:
    # Errors that were written for the user speak for themselves. They are known by name, as
    # importing them would bring torch into every worker.
    if type(error).__name__ in ("InputError", "WorkError", "ShardError", "ParameterError"):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _is_lost_worker(problem: BaseException) -> bool:
    names = {kind.__name__ for kind in type(problem).__mro__}
    return bool(names & {"TerminatedWorkerError", "BrokenProcessPool", "ShutdownExecutorError"})


def _dask(address: str | None) -> AbstractContextManager[Any]:
    try:
        from distributed import Client
    except ImportError as error:
        raise _input_error(
            "--parallel dask needs dask.distributed: pip install learn2branch[dask]"
        ) from error
    if address is None:
        raise _input_error("--parallel dask needs --cluster with the scheduler, tcp://host:8786")
    try:
        client = Client(address, timeout="20s", set_as_default=False)
    except (OSError, ValueError) as error:
        raise _input_error(f"there is no dask scheduler at {address}: {error}") from error
    if not client.scheduler_info()["workers"]:
        raise _input_error(f"the dask cluster at {address} has no workers yet: start some")
    return joblib.parallel_config(backend="dask", client=client)


def _on_ray(
    calls: Iterator[tuple[Any, ...]], jobs: int, address: str | None
) -> Iterator[tuple[int, bytes]]:
    """Yield the replies to calls of `_in_child` as they come.

    Not through joblib, which can have results of ray only all at once.
    """
    try:
        import ray
    except ImportError as error:
        raise _input_error("--parallel ray needs ray: pip install learn2branch[ray]") from error
    mine = not ray.is_initialized()
    if mine:
        _join_ray(address, jobs)
    begin = ray.remote(num_cpus=1, max_retries=_LOST_WORKERS)(_in_child)
    at_once = 1.5 * ray.cluster_resources().get("CPU", 1)
    waiting: list[Any] = []
    try:
        for call in calls:
            waiting.append(begin.remote(*call))
            if len(waiting) >= at_once:
                (done,), waiting = ray.wait(waiting)
                yield ray.get(done)
        while waiting:
            (done,), waiting = ray.wait(waiting)
            yield ray.get(done)
    finally:
        for call in waiting:
            ray.cancel(call)
        if mine:
            ray.shutdown()


def _join_ray(address: str | None, jobs: int) -> None:
    import ray

    # Named always: left to itself, ray asks for minutes after a cluster that ended by a signal.
    address = address or os.environ.get("RAY_ADDRESS", "local")
    host, _, port = address.rpartition(":")
    try:
        if host and port.isdecimal() and "//" not in host:
            socket.create_connection((host, int(port)), timeout=20).close()
        processors = {"num_cpus": jobs} if address == "local" else {}
        ray.init(address=address, logging_level="warning", log_to_driver=False, **processors)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error)
        if "AuthenticationError" in str(error.__cause__):
            reason = "it asks for a token, set RAY_AUTH_MODE=token"
        raise _input_error(f"cannot join ray at {address}: {reason}") from error


# --- in a worker: the child that does the work ------------------------------------------------


class _Child:
    """A process that runs one task after the other, in order, until it is ended."""

    def __init__(self, function: bytes, folder: str) -> None:
        self.function, self.folder, self.tasks_done = function, folder, 0
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from pipelines.parallel import _serve; _serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Where the command runs: a worker that an earlier command started may be elsewhere.
            cwd=folder if os.path.isdir(folder) else None,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)},
            start_new_session=True,  # Ctrl-C is for the command, which ends its children itself
        )
        self._send((os.getpid(), function))
        self.is_ready = False

    def _send(self, message: Any) -> None:
        assert self.process.stdin is not None
        pickle.dump(message, self.process.stdin)
        self.process.stdin.flush()

    def reply(self, task: bytes, timeout: float | None) -> bytes | str:
        """Return what the task replied, or one sentence on why it did not."""
        assert self.process.stdout is not None
        try:
            if not self.is_ready:  # the imports do not count as the task's time
                self.is_ready = pickle.load(self.process.stdout)
            self._send(task)
            ready, _, _ = select.select([self.process.stdout], [], [], timeout)
            if not ready:
                self.end()
                return f"took longer than {timeout:g} s and was ended"
            self.tasks_done += 1
            answer: bytes = pickle.load(self.process.stdout)
            return answer
        except (EOFError, pickle.UnpicklingError, BrokenPipeError):
            return f"its process ended with {_exit_words(self.process.wait())}"
        except BaseException:  # ray interrupts what is no longer wanted; the reply is not the next
            self.end()
            raise

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()


_children = threading.local()  # one a worker thread: dask may run several in a process


def _in_child(
    caller: int,
    function: bytes,
    folder: str,
    index: int,
    task: bytes,
    timeout: float | None,
    retries: int,
) -> tuple[int, bytes]:
    """Run a task in this worker's child, again if it fails; return its pickled (value, error)."""
    if os.getpid() != caller:  # with one job the caller works itself, and may outlive its shell
        _end_with_parent(os.getppid())
    value_and_error = b""
    for _ in range(retries + 1):
        child: _Child | None = getattr(_children, "child", None)
        if child and (
            (child.function, child.folder) != (function, folder)
            or child.tasks_done >= _TASKS_A_CHILD
            or child.process.poll() is not None
        ):
            child.end()
            child = None
        if child is None:
            child = _children.child = _Child(function, folder)
        reply = child.reply(task, timeout)
        if isinstance(reply, str):
            child.end()
            value_and_error = pickle.dumps((None, reply))
        else:
            value_and_error = reply
            if pickle.loads(reply)[1] is None:
                break
    return index, value_and_error


def _exit_words(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"code {code}"


_watched: set[int] = set()


def _end_with_parent(parent: int) -> None:
    """Watch the parent from a thread and end this process when it is gone."""
    if parent in _watched or parent <= 1:
        return
    _watched.add(parent)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _serve() -> None:
    """Be a child: read tasks from stdin and write replies to what was stdout."""
    tasks = os.fdopen(os.dup(0), "rb")
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a solver prints must not get between the replies
    parent, pickled = pickle.load(tasks)
    _end_with_parent(parent)
    function = error = None
    try:
        function = pickle.loads(pickled)
    except Exception as problem:
        error = f"cannot be run in another process: {_sentence(problem)}"
    with suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        pickle.dump(True, replies)
        replies.flush()
        while True:
            task = pickle.load(tasks)
            value: Any = None
            if function is not None:
                outcome = _attempt(lambda data: function(pickle.loads(data)), 0, task)
                value, error = outcome.value, outcome.error
            try:
                reply = pickle.dumps((value, error))
            except Exception as problem:
                reply = pickle.dumps((None, f"its result cannot be sent: {_sentence(problem)}"))
            pickle.dump(reply, replies)
            replies.flush()
