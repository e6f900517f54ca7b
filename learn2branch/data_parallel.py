"""Training in several processes: who am I, sum this over all of us, and how to start them.

Each process holds the whole model and takes its share of every batch; gradients are summed. So the
result is that of one process with the same batch, up to the order of floating-point sums.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import socket
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from learn2branch.errors import InputError, WorkError


def rank() -> int:
    """Return the number of this process; 0 writes the files."""
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def world_size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sum_over_processes(tensors: list[Tensor]) -> None:
    """Replace the tensors by their sums over all processes, in one exchange."""
    if world_size() == 1 or not tensors:
        return
    flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
    dist.all_reduce(flat)
    for tensor, total in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(total.view_as(tensor))


def gather(value: Any) -> list[Any]:
    """Return every process's value, in the order of the processes."""
    if world_size() == 1:
        return [value]
    values: list[Any] = [None] * world_size()
    dist.all_gather_object(values, value)
    return values


def share(length: int) -> slice:
    """Return which part of a batch of this length belongs to this process."""
    return slice(length * rank() // world_size(), length * (rank() + 1) // world_size())


@contextmanager
def process_group(device: str) -> Iterator[None]:
    """Join the processes that `torchrun` started; does nothing in a process started alone."""
    started = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if started:
        if device.startswith("cuda"):
            torch.cuda.set_device(device)  # where nccl also puts what `gather` exchanges
        dist.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield
    finally:
        if started:
            dist.destroy_process_group()


def launch(function: Callable[..., Any], arguments: tuple[Any, ...], workers: int) -> Any:
    """Call `function(*arguments)` in `workers` new processes that form a group; return 0's result.

    What one of them raises is raised here, and the others are ended. SIGTERM is passed on to them
    and raises KeyboardInterrupt here; should this process be killed, they end as if by SIGTERM.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    started: dict[Connection, BaseProcess] = {}

    def stop(number: int, frame: Any) -> None:
        for worker in started.values():
            worker.terminate()
        raise KeyboardInterrupt

    with _on_sigterm(stop):
        try:
            for number in range(workers):
                receiver, sender = context.Pipe(duplex=False)
                worker: BaseProcess = context.Process(
                    target=_worker,
                    args=(sender, number, function, arguments, workers, port),
                    daemon=True,
                )
                worker.start()
                started[receiver] = worker
                sender.close()
            return _result(started)
        except KeyboardInterrupt:
            for worker in started.values():  # the signal reached them too: let them checkpoint
                worker.join(timeout=60)
            raise
        finally:
            for worker in started.values():
                worker.terminate()
                worker.join()


@contextmanager
def _on_sigterm(handler: Callable[[int, Any], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may have handlers
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _result(workers: dict[Connection, BaseProcess]) -> Any:
    result, waiting = None, dict(workers)
    while waiting:
        # Not when it has ended: a worker whose message is larger than the pipe waits for us.
        ready = wait(list(waiting))
        for receiver in [receiver for receiver in waiting if receiver in ready]:
            worker = waiting.pop(receiver)
            try:
                number, value, error = pickle.loads(receiver.recv_bytes())
            except (EOFError, OSError):
                worker.join()
                raise WorkError(
                    f"a training process ended with code {worker.exitcode}: "
                    "the same command goes on from the last checkpoint"
                ) from None
            if error is not None:
                raise error
            if number == 0:
                result = value
    for worker in workers.values():
        worker.join()
    return result


def _worker(
    sender: Connection,
    number: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
    workers: int,
    port: int,
) -> None:
    os.environ.update(
        RANK=str(number),
        LOCAL_RANK=str(number),
        WORLD_SIZE=str(workers),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )
    torch.set_num_threads(1)
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    try:
        message: tuple[int, Any, BaseException | None] = (number, function(*arguments), None)
    except (InputError, WorkError, KeyboardInterrupt) as error:
        message = (number, None, error)
    except Exception as error:
        traceback.print_exc()
        message = (number, None, RuntimeError(f"{type(error).__name__}: {error}"))
    # By value: a tensor sent the usual way would live in this process, which is about to end.
    with suppress(BrokenPipeError):  # the parent is gone
        sender.send_bytes(pickle.dumps(message))


def _stop_with_parent() -> None:
    """Wait for the end of the process that started this one, then ask this one to stop."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
