"""A shard: the file that keeps the samples of one episode, in a few arrays (see docs/samples.md).

It is a NumPy archive. Under its name there is a whole file or none, and a file that was truncated
or altered afterwards is named and refused.
"""

from __future__ import annotations

import io
import json
import os
import struct
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from learn2branch.encoding import Array, decode, encode
from learn2branch.errors import InputError
from learn2branch.features import STATE
from learn2branch.runs import replace_file
from learn2branch.samples import Sample

VERSION = 1  # of the file format; raised by every change that an older reader would misread

# What a ZIP archive has before each member, and at its end.
_MEMBER = struct.Struct("<4s4xH8xIIHH")
_END = struct.Struct("<4s8xII2x")

# A header's JSON. As `json.loads` and `json.dumps`, which make these anew each time.
_parse = json.JSONDecoder().decode
_write = json.JSONEncoder(sort_keys=True).encode


class ShardError(InputError):
    """A file that is not a whole, unaltered shard of this version: the message names it."""


class ForeignShardError(ShardError):
    """A shard of another version or schema, as the rest of its store will be."""


@dataclass
class Shard:
    """The samples of one episode and where they come from."""

    samples: list[Sample]
    provenance: dict[str, Any] = field(default_factory=dict)  # instance, seeds, SCIP version, …
    path: Path | None = None


def write_shard(path: Path, shard: Shard) -> None:
    """Write a shard; under its name there is a whole file or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, encode_shard(shard))


def encode_shard(shard: Shard) -> bytes:
    """Return the bytes of a shard's file; they depend on its content alone."""
    members, layout = encode(shard.samples)
    header = {
        "format": "learn2branch samples",
        "version": VERSION,
        "schema": STATE.hash,
        "samples": len(shard.samples),
        **layout,
        "checksums": {name: zlib.crc32(data.data) for name, data in members.items()},
        "provenance": shard.provenance,
    }
    header["checksum"] = zlib.crc32(_text(header))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        text = np.frombuffer(_text(header), np.uint8)
        for name, data in {"header": text, **members}.items():
            # A fixed date: the same samples make the same file.
            member = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            member.compress_type = zipfile.ZIP_STORED if name == "stored" else zipfile.ZIP_DEFLATED
            content = io.BytesIO()
            np.lib.format.write_array(content, data, version=(1, 0), allow_pickle=False)
            archive.writestr(member, content.getvalue(), compresslevel=6)
    return buffer.getvalue()


def read_header(path: Path) -> dict[str, Any]:
    """Return what a shard says about itself, without reading its samples."""
    return _read(path, only_header=True)[0]


def read_shard(path: Path) -> Shard:
    """Read and check a shard; ShardError names a file that cannot be trusted."""
    header, members = _read(path)
    try:
        samples = decode(members, header)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ShardError(f"{path} is inconsistent ({error}): delete it, collect again") from error
    return Shard(samples, header["provenance"], path)


def _read(path: Path, only_header: bool = False) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        # Unbuffered: of a shard all is read at once, of a header only what is asked for.
        with open(path, "rb", buffering=0) as opened:
            file = opened if only_header else io.BytesIO(opened.readall())
            _check_end(file)
            text = _member(file)[1].tobytes()
            header = _parse(text.decode())
            version, schema = header["version"], header["schema"]
            intact = _is_intact(text, header)
            members = {}
            if not only_header and intact and version == VERSION:
                members = dict(_member(file) for _ in header["arrays"])
    except FileNotFoundError:
        raise
    except Exception as error:  # zip, zlib and JSON each have their own
        raise ShardError(
            f"{path} is truncated or not a shard ({type(error).__name__}): delete it, collect again"
        ) from error
    if version != VERSION:
        raise ForeignShardError(
            f"{path} has format version {version}, this learn2branch reads {VERSION}: collect "
            "again, or use the learn2branch that wrote it"
        )
    if schema != STATE.hash:
        raise ForeignShardError(
            f"{path} holds states of another feature schema ({schema}, not {STATE.hash}): "
            "collect again, or use the learn2branch that wrote it"
        )
    if not intact or any(
        zlib.crc32(data.data) != header["checksums"].get(name) for name, data in members.items()
    ):
        raise ShardError(f"{path} was altered, its checksum does not fit: delete it, collect again")
    return header, members


def _check_end(file: BinaryIO) -> None:
    """Raise unless the archive ends where it should."""
    size = file.seek(0, os.SEEK_END)
    file.seek(size - _END.size)
    mark, directory_size, directory_start = _END.unpack(file.read(_END.size))
    if mark != b"PK\5\6" or directory_start + directory_size + _END.size != size:
        raise ValueError("no end")
    file.seek(0)


def _member(file: BinaryIO) -> tuple[str, Array]:
    """Return the next member's name and its array of bytes.

    As `np.load` with its `zipfile` would, which spend more time than inflating and decoding take.
    """
    mark, method, size, full_size, name, extra = _MEMBER.unpack(file.read(_MEMBER.size))
    if mark != b"PK\3\4":
        raise ValueError("no member")
    title = file.read(name + extra)[:name].decode().removesuffix(".npy")
    content = file.read(size)
    if method == zipfile.ZIP_DEFLATED:
        content = zlib.decompress(content, -zlib.MAX_WBITS, full_size)
    start = 10 + int.from_bytes(content[8:10], "little")
    return title, np.frombuffer(content, np.uint8, offset=start)


def _text(header: dict[str, Any]) -> bytes:
    return _write(header).encode()


def _is_intact(text: bytes, header: dict[str, Any]) -> bool:
    """Tell whether the header's checksum fits, which is that of its text without the checksum."""
    checksum = header.pop("checksum")
    rest = text.replace(b'"checksum": %d, ' % checksum, b"", 1)
    # The second, slower way is for a text whose keys are in another order.
    return zlib.crc32(rest) == checksum or zlib.crc32(_text(header)) == checksum
