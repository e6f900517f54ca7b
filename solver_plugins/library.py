"""SCIP's C functions, found at run time in the library that pyscipopt itself has loaded.

Its wheels ship no headers, so callers declare what they use; the declarations are those of the SCIP
versions listed here.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import pyscipopt.scip

CHECKED_MAJOR_VERSIONS = (10,)


def pointer_to(model: pyscipopt.Model) -> int:
    """Return the address of the SCIP behind a model, which stays the model's own."""
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    address: int = get_pointer(model.to_ptr(False), b"scip")
    return address


def declare(signatures: Mapping[str, tuple[Any, Sequence[Any]]]) -> ctypes.CDLL | None:
    """Return a library with these functions (result, arguments), or None where one is missing.

    None also for a version of SCIP whose declarations were not checked.
    """
    try:
        library = ctypes.CDLL(pyscipopt.scip.__file__)
        for name, (result, arguments) in signatures.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, list(arguments)
        version = library.SCIPmajorVersion()
    except (OSError, AttributeError):
        return None
    return library if version in CHECKED_MAJOR_VERSIONS else None
