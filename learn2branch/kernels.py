"""The compiled kernels, or None where no compiler was present at installation.

Everything works without them, with the same results; they only make it faster. Set
`LEARN2BRANCH_KERNELS=0` to do without.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from importlib import import_module
from typing import Any

import torch
from torch import Tensor


def compiled(name: str) -> Any:
    """Return a compiled module, or None where it is absent or not wanted."""
    if os.environ.get("LEARN2BRANCH_KERNELS") != "0":
        with suppress(ImportError):
            return import_module(name)
    return None


KERNELS: Any = compiled("learn2branch._kernels")


def address(tensor: Tensor) -> int:
    """Return where a tensor's numbers begin, for a kernel; it must be contiguous and on the CPU."""
    assert tensor.is_contiguous() and tensor.device.type == "cpu"
    return tensor.data_ptr()


def usable(width: int, *tensors: Tensor) -> bool:
    """Tell whether the compiled kernels can take these tensors with rows of this width."""
    dtype = tensors[0].dtype
    return (
        KERNELS is not None
        and width % 8 == 0
        and dtype in (torch.float32, torch.float64)
        and all(tensor.device.type == "cpu" and tensor.dtype == dtype for tensor in tensors)
    )


def keep_memory() -> None:
    """Let the C library keep freed memory: a training step allocates the same blocks every time.

    Without this each large tensor is mapped, cleared page by page and unmapped again, a tenth of a
    step. It lasts for the process and does nothing where the library is not glibc.
    """
    with suppress(AttributeError, OSError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-4, 0)  # M_MMAP_MAX: take no block from the system by itself
        mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD: give none back
