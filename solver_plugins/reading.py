"""Reading an instance file with SCIP, and saying in one sentence what is wrong with it.

SCIP reads an empty, a binary or a cut-off .lp file without complaint; this does not.
"""

from __future__ import annotations

import gzip
import os
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyscipopt import Model

from learn2branch.errors import InputError

_STDERR = threading.Lock()
_TAIL = 64 * 1024  # characters in which an .lp file must say `End`, comments after it included


def read_model(path: str | Path) -> Model:
    """Read a file (.lp, .mps, .cip, each also .gz) into a silent model."""
    path = Path(path)
    suffixes = [suffix.lower() for suffix in path.suffixes[-2:]]
    if suffixes[-1:] == [".gz"] and path.suffix != ".gz":
        raise InputError(f"{path} cannot be read by SCIP: rename it to end in .gz")
    try:
        tail = _last_characters(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: expected an instance file") from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder: expected an instance file") from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise InputError(f"{path} is not a whole gzip file: copy or pack it again") from None
    if not tail.strip():
        raise InputError(f"{path} is empty: expected an instance")
    if b"\0" in tail:
        raise InputError(f"{path} is a binary file: expected an instance as text")
    if ".lp" in suffixes and not _says_end(tail):
        raise InputError(f"{path} does not close with a line `End`: it is no .lp file, or cut off")
    model = Model()
    model.hideOutput()
    try:
        with silent_stderr():
            model.readProblem(str(path))
    except Exception as error:  # OSError, or a bare one where SCIP has no reader for the name
        reason = str(error).removeprefix("SCIP: ").rstrip("!")
        message = f"{path} cannot be read by SCIP ({reason}): expected what its name says"
        raise InputError(message) from None
    if model.getNVars(transformed=False) == 0:
        raise InputError(f"{path} has no variables: expected an instance")
    return model


def _last_characters(path: Path) -> bytes:
    if path.suffix == ".gz":
        tail = b""
        with gzip.open(path) as file:
            while block := file.read(1 << 20):
                tail = (tail + block)[-_TAIL:]
        return tail
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - _TAIL))
        return file.read()


def _says_end(tail: bytes) -> bool:
    lines = (line.split(b"\\")[0].strip().lower() for line in reversed(tail.splitlines()))
    return next((line for line in lines if line), b"") == b"end"


@contextmanager
def silent_stderr() -> Iterator[None]:
    """Keep what SCIP says about an error from the user, who gets one sentence."""
    # SCIP's readers write to the process's stderr, past every handler of messages. There is one for
    # all threads: what two of them put back in the wrong order would be lost.
    with _STDERR:
        try:
            kept = os.dup(2)
        except OSError:  # closed: it is silent
            yield
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, 2)
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            os.close(nowhere)
