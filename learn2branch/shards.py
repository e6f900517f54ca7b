"""A shard: the file that keeps the samples of one episode, in a few arrays (see docs/samples.md).

Nothing is lost: every float32 of a state comes back bit for bit. It is small because rows of the
matrix are stored once, 0/1 columns share a byte, and other columns are bytes into a palette of
their repeated values; only values that occur once are stored in full. The order of the non-zeros
is the one thing that is made canonical: by constraint, then by variable.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from learn2branch.errors import InputError
from learn2branch.features import STATE
from learn2branch.graph import BipartiteGraph
from learn2branch.runs import replace_file
from learn2branch.samples import Sample

VERSION = 1  # of the file format; raised by every change that an older reader would misread
_ONCE = 255  # the code of a value that is stored in full

_FLAGS = [
    STATE.variable.index(name)
    for name in (
        "is_binary", "is_integer", "is_implicit_integer", "is_continuous",
        "has_lower_bound", "has_upper_bound", "at_lower_bound", "at_upper_bound",
        "basis_lower", "basis_basic", "basis_upper", "basis_zero",
    )
]  # fmt: skip
_NUMBERS = [i for i in range(len(STATE.variable)) if i not in _FLAGS]
_LP_VALUE, _FRACTIONALITY = STATE.variable.index("lp_value"), STATE.variable.index("fractionality")
_CONTINUOUS = STATE.variable.index("is_continuous")
_ROW_COLUMNS = [STATE.constraint.index(name) for name in ("bias", "objective_cosine")]
_ROW_NUMBERS = [i for i in range(len(STATE.constraint)) if i not in _ROW_COLUMNS]

Array = NDArray[Any]


class ShardError(InputError):
    """A file that is not a whole, unaltered shard of this version: the message names it."""


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
    arrays, layout = _encode(shard.samples)
    members = {
        name: np.frombuffer(b"".join(array.tobytes() for array in group.values()), np.uint8)
        for name, group in arrays.items()
    }
    header = {
        "format": "learn2branch samples",
        "version": VERSION,
        "schema": STATE.hash,
        "samples": len(shard.samples),
        **layout,
        "arrays": {
            member: {name: [array.dtype.str, *array.shape] for name, array in group.items()}
            for member, group in arrays.items()
        },
        "checksums": {name: zlib.crc32(data.data) for name, data in members.items()},
        "provenance": shard.provenance,
    }
    header["checksum"] = _checksum(header)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
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
        arrays: dict[str, Array] = {}
        for name, data in members.items():
            _split(data, header["arrays"][name], arrays)
        samples = _decode(arrays, header)
    except (KeyError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise ShardError(f"{path} is inconsistent ({error}): delete it, collect again") from error
    return Shard(samples, header["provenance"], path)


def _read(path: Path, only_header: bool = False) -> tuple[dict[str, Any], dict[str, Array]]:
    try:
        with zipfile.ZipFile(path) as archive:  # which checks that the content fits its CRC
            header = json.loads(_member(archive, "header").tobytes())
            version, schema = header["version"], header["schema"]
            intact = header["checksum"] == _checksum(header)
            members = {}
            if not only_header and intact and version == VERSION:
                members = {name: _member(archive, name) for name in header["arrays"]}
    except FileNotFoundError:
        raise
    except Exception as error:  # zip, zlib and JSON each have their own
        raise ShardError(
            f"{path} is truncated or not a shard ({type(error).__name__}): delete it, collect again"
        ) from error
    if version != VERSION:
        raise ShardError(
            f"{path} has format version {version}, this learn2branch reads {VERSION}: collect "
            "again, or use the learn2branch that wrote it"
        )
    if schema != STATE.hash:
        raise ShardError(
            f"{path} holds states of another feature schema ({schema}, not {STATE.hash}): "
            "collect again, or use the learn2branch that wrote it"
        )
    if not intact or any(
        zlib.crc32(data.data) != header["checksums"][name] for name, data in members.items()
    ):
        raise ShardError(f"{path} was altered, its checksum does not fit: delete it, collect again")
    return header, members


def _member(archive: zipfile.ZipFile, name: str) -> Array:
    """Return an array of bytes; as `np.load`, which would spend most of the time on checks."""
    content = archive.read(f"{name}.npy")
    return np.frombuffer(content, np.uint8, offset=10 + int.from_bytes(content[8:10], "little"))


def _checksum(header: dict[str, Any]) -> int:
    told = {name: value for name, value in header.items() if name != "checksum"}
    return zlib.crc32(json.dumps(told, sort_keys=True).encode())


def _split(data: Array, layout: dict[str, list[Any]], arrays: dict[str, Array]) -> None:
    """Add the named arrays that lie in the data one after the other."""
    start = 0
    for name, (kind, *shape) in layout.items():
        dtype = np.dtype(kind)
        end = start + math.prod(shape) * dtype.itemsize
        array = data[start:end]
        if dtype.itemsize > 1:  # a copy, as the start need not be aligned for the type
            array = array.copy().view(dtype)
        arrays[name] = array.reshape(shape)
        start = end
    if start != len(data):
        raise ValueError("the arrays do not fill the data")


# --- writing -------------------------------------------------------------------------------------


def _encode(samples: Sequence[Sample]) -> tuple[dict[str, dict[str, Array]], dict[str, Any]]:
    """Return the arrays of each member of the file, and what is needed to read them.

    What does not compress is in a member of its own and stored as it is, which reads faster.
    """
    states = [[tensor.numpy() for tensor in sample.state.tensors()] for sample in samples]
    for constraints, edges, values, columns in states:
        if constraints.shape[1:] != (5,) or columns.shape[1:] != (19,):
            raise ValueError(f"not a state: {constraints.shape} and {columns.shape}")
        if values.shape != edges.shape[1:]:
            raise ValueError(f"{edges.shape[1]} non-zeros but {len(values)} values")
    has_pseudocosts = bool(samples) and all(s.pseudocosts is not None for s in samples)
    arrays = _encode_rows(states)
    variables: list[Array] = [state[3] for state in states]
    layout: dict[str, Any] = {"pseudocosts": has_pseudocosts, "fractionality": "stored"}
    stored = list(_NUMBERS)
    if all(_same(v[:, _FRACTIONALITY], _fractionality(v)) for v in variables):
        layout["fractionality"] = "of the LP value"
        stored.remove(_FRACTIONALITY)
    fixed = [i for i in stored if all(_same(v[:, i], variables[0][:, i]) for v in variables)]
    layout["fixed"] = fixed
    moving = [i for i in stored if i not in fixed]
    _put_numbers(arrays, "fixed", [v[:, fixed] for v in variables[:1]], len(fixed))
    _put_numbers(arrays, "variable", [v[:, moving] for v in variables], len(moving))
    _put_numbers(arrays, "constraint", [s[0][:, _ROW_NUMBERS] for s in states], len(_ROW_NUMBERS))
    arrays["variable_sizes"] = _small([len(v) for v in variables])
    flags = _join([v[:, _FLAGS] for v in variables], np.float32, len(_FLAGS))
    masks = (flags != 0).astype(np.int64) @ (1 << np.arange(len(_FLAGS)))
    if not _same(flags, (masks[:, None] >> np.arange(len(_FLAGS)) & 1).astype(np.float32)):
        raise ValueError("a 0/1 feature of a state has another value")
    patterns, codes = np.unique(masks, return_inverse=True)
    arrays["flag_patterns"], arrays["flags"] = patterns.astype(np.uint16), _small(codes)
    arrays["candidate_sizes"] = _small([len(sample.candidates) for sample in samples])
    arrays["candidates"] = _small(_join([s.candidates.numpy() for s in samples], np.int64))
    arrays["scores"] = _join([s.scores.numpy() for s in samples], np.float64)
    arrays["choices"] = _small([sample.choice for sample in samples])
    if has_pseudocosts:
        arrays["pseudocosts"] = _join(
            [s.pseudocosts.numpy() for s in samples if s.pseudocosts is not None], np.float64
        )
    names = ("scores", "pseudocosts", *(name for name in arrays if name.endswith("_low")))
    stored_arrays = {name: arrays.pop(name) for name in names if name in arrays}
    return {"compressed": arrays, "stored": stored_arrays}, layout


def _encode_rows(states: Sequence[Sequence[Array]]) -> dict[str, Array]:
    """Store each different row once, and for each matrix which rows it has.

    A row is its columns, values, bias and objective cosine. Cuts come and go between nodes; the
    rows that stay are recognised.
    """
    known: dict[bytes, int] = {}
    pieces: list[tuple[Array, Array, Array]] = []  # columns, values, features of each new row
    matrices: list[Array] = []
    matrix_of: list[int] = []
    last: Sequence[Array] | None = None
    for state in states:
        constraints, edges, values, _ = state
        features = constraints[:, _ROW_COLUMNS]
        if last is not None and (
            (edges is last[1] or np.array_equal(edges, last[1]))
            and (values is last[2] or _same(values, last[2]))
            and _same(features, last[0][:, _ROW_COLUMNS])
        ):
            matrix_of.append(matrix_of[-1])
            continue
        last = state
        order = np.lexsort((edges[1], edges[0]))
        rows, columns, values = edges[0][order], edges[1][order], values[order]
        ends = np.searchsorted(rows, np.arange(len(constraints) + 1))
        numbers = np.empty(len(constraints), np.int64)
        for r in range(len(constraints)):
            piece = (columns[ends[r] : ends[r + 1]], values[ends[r] : ends[r + 1]], features[r])
            key = b"|".join(part.tobytes() for part in piece)
            if key not in known:
                known[key] = len(pieces)
                pieces.append(piece)
            numbers[r] = known[key]
        matrix_of.append(len(matrices))
        matrices.append(numbers)
    columns = _join([piece[0] for piece in pieces], np.int64)
    sizes = np.array([len(piece[0]) for piece in pieces], np.int64)
    gaps = np.diff(columns, prepend=0)
    starts = (np.cumsum(sizes) - sizes)[sizes > 0]
    gaps[starts] = columns[starts]
    arrays = {
        "row_sizes": _small(sizes),
        "row_gaps": _small(gaps),
        "matrix_sizes": _small([len(matrix) for matrix in matrices]),
        # Steps, less the usual one: a matrix that has all rows in their order is all zeros.
        "matrix_steps": _small(
            _join([np.diff(matrix, prepend=-1) - 1 for matrix in matrices], np.int64)
        ),
        "matrix_of": _small(matrix_of),
    }
    _put_numbers(arrays, "value", [piece[1][:, None] for piece in pieces], 1)
    row_features = np.array([piece[2] for piece in pieces], np.float32)
    _put_numbers(arrays, "row", [row_features.reshape(-1, len(_ROW_COLUMNS))], len(_ROW_COLUMNS))
    return arrays


def _put_numbers(arrays: dict[str, Array], name: str, blocks: Sequence[Array], width: int) -> None:
    """Store float32 columns, block by block: bytes into palettes, and what occurs once in full.

    The palette of a block's column holds the values that repeat in it, at most 255.
    """
    codes = np.full((width, sum(len(block) for block in blocks)), _ONCE, np.uint8)
    palettes: list[Array] = []
    once: list[list[Array]] = [[] for _ in range(width)]
    start = 0
    for block in blocks:
        end = start + len(block)
        for column in range(width):
            bits = np.ascontiguousarray(block[:, column]).view(np.uint32)
            values, inverse, counts = np.unique(bits, return_inverse=True, return_counts=True)
            repeated = np.flatnonzero(counts > 1)
            if len(repeated) > _ONCE:
                repeated = np.sort(repeated[np.argsort(-counts[repeated], kind="stable")[:_ONCE]])
            code = np.full(len(values), _ONCE, np.uint8)
            code[repeated] = np.arange(len(repeated))
            codes[column, start:end] = code[inverse]
            palettes.append(values[repeated])
            once[column].append(bits[codes[column, start:end] == _ONCE])
        start = end
    arrays[f"{name}_codes"] = codes
    arrays[f"{name}_palette_sizes"] = np.array([len(p) for p in palettes], np.uint8)
    arrays[f"{name}_palettes"] = _join(palettes, np.uint32)
    full = _join([part for column in once for part in column], np.uint32)
    # The bytes with sign and exponent compress, the others do not.
    parts = full.astype("<u4").view(np.uint8).reshape(-1, 4)
    arrays[f"{name}_high"], arrays[f"{name}_low"] = parts[:, 3].copy(), parts[:, :3].copy()


def _small(values: Any) -> Array:
    """Return whole numbers in the smallest type that holds them."""
    array = np.asarray(values, np.int64)
    ends = (int(array.min()), int(array.max())) if array.size else (0, 0)
    return array.astype(np.result_type(*(np.min_scalar_type(end) for end in ends)))


def _join(parts: Sequence[Array], dtype: Any, width: int | None = None) -> Array:
    empty = np.empty(0 if width is None else (0, width), dtype)
    return np.concatenate([empty, *parts]).astype(dtype, copy=False)


def _same(a: Array, b: Array) -> bool:
    """Tell whether floats are the same bit for bit (0 and -0 are not, NaN and NaN are)."""
    return a.shape == b.shape and a.astype(np.float32).tobytes() == b.astype(np.float32).tobytes()


def _fractionality(variables: Array) -> Array:
    """Return SCIP's fractionality as the LP value gives it, where float32 can tell."""
    value = variables[:, _LP_VALUE]
    fraction = value - np.floor(value + np.float32(1e-6))
    return np.where(variables[:, _CONTINUOUS] != 0, np.float32(0), fraction)


# --- reading -------------------------------------------------------------------------------------


def _decode(arrays: dict[str, Array], header: dict[str, Any]) -> list[Sample]:
    matrices = _decode_matrices(arrays)
    sizes = arrays["variable_sizes"].astype(np.int64)
    fixed = header["fixed"]
    moving = [i for i in _NUMBERS if i not in fixed]
    if header["fractionality"] != "stored":
        moving.remove(_FRACTIONALITY)
    # Whole rows come from a table of the flag patterns; the other columns are put over them.
    table = np.zeros((len(arrays["flag_patterns"]), len(STATE.variable)), np.float32)
    table[:, _FLAGS] = arrays["flag_patterns"][:, None] >> np.arange(len(_FLAGS)) & 1
    variables = table.take(arrays["flags"], axis=0)
    for i, column in zip(moving, _get_numbers(arrays, "variable", sizes), strict=True):
        variables[:, i] = column
    if fixed and len(sizes):  # then all states have the same size
        each = variables.reshape(len(sizes), -1, len(STATE.variable))
        for i, column in zip(fixed, _get_numbers(arrays, "fixed", sizes[:1]), strict=True):
            each[:, :, i] = column
    if header["fractionality"] != "stored":
        variables[:, _FRACTIONALITY] = _fractionality(variables)
    heights = arrays["matrix_sizes"].astype(np.int64)[arrays["matrix_of"]]
    constraints = np.empty((int(heights.sum()), len(STATE.constraint)), np.float32)
    for i, column in zip(_ROW_NUMBERS, _get_numbers(arrays, "constraint", heights), strict=True):
        constraints[:, i] = column
    all_constraints, all_variables = torch.from_numpy(constraints), torch.from_numpy(variables)
    choices = arrays["choices"].tolist()
    candidates = torch.from_numpy(arrays["candidates"].astype(np.int64))
    scores = torch.from_numpy(arrays["scores"])
    pseudocosts = torch.from_numpy(arrays["pseudocosts"]) if header["pseudocosts"] else None
    pointers: dict[int, torch.Tensor] = {}
    samples = []
    bottom = first = start = 0
    for s, matrix in enumerate(arrays["matrix_of"].tolist()):
        edges, values, row_features = matrices[matrix]
        top, last = bottom + len(row_features), first + int(sizes[s])
        end = start + int(arrays["candidate_sizes"][s])
        constraints[bottom:top, _ROW_COLUMNS] = row_features
        for size in (top - bottom, last - first):
            if size not in pointers:
                pointers[size] = torch.tensor([0, size])
        graph = BipartiteGraph(
            all_constraints[bottom:top],
            edges,
            values,
            all_variables[first:last],
            pointers[top - bottom],
            pointers[last - first],
        )
        sample_pseudocosts = None if pseudocosts is None else pseudocosts[start:end]
        samples.append(
            Sample(graph, candidates[start:end], scores[start:end], choices[s], sample_pseudocosts)
        )
        bottom, first, start = top, last, end
    return samples


def _decode_matrices(arrays: dict[str, Array]) -> list[tuple[torch.Tensor, torch.Tensor, Array]]:
    """Return (edge_index, edge_values, row features) of each matrix; samples share them."""
    row_sizes = arrays["row_sizes"].astype(np.int64)
    row_starts = np.cumsum(row_sizes) - row_sizes
    # Gaps to columns: one running sum over all rows, less what it was before each row.
    running = np.cumsum(arrays["row_gaps"].astype(np.int64))
    before = np.concatenate([[0], running])[row_starts]
    columns = running - np.repeat(before, row_sizes)
    values = _get_numbers(arrays, "value", row_sizes)[0]
    features = _get_numbers(arrays, "row", np.array([len(row_sizes)])).T
    matrices = []
    ends = np.cumsum(arrays["matrix_sizes"].astype(np.int64))[:-1]
    for steps in np.split(arrays["matrix_steps"].astype(np.int64), ends):
        rows = np.cumsum(steps + 1) - 1
        if np.array_equal(rows, np.arange(len(row_sizes))):
            lengths, where = row_sizes, slice(None)
        else:
            lengths = row_sizes[rows]
            offsets = np.cumsum(lengths) - lengths
            where = np.arange(lengths.sum()) + np.repeat(row_starts[rows] - offsets, lengths)
        edges = np.empty((2, int(lengths.sum())), np.int64)
        edges[0], edges[1] = np.repeat(np.arange(len(rows)), lengths), columns[where]
        matrices.append((torch.from_numpy(edges), torch.from_numpy(values[where]), features[rows]))
    return matrices


def _get_numbers(arrays: dict[str, Array], name: str, sizes: Array) -> Array:
    """Return the float32 columns that `_put_numbers` stored, one a row, for blocks of sizes."""
    codes = arrays[f"{name}_codes"]
    palette_sizes = arrays[f"{name}_palette_sizes"].astype(np.int64)
    palettes = np.concatenate([arrays[f"{name}_palettes"], np.zeros(_ONCE + 1, np.uint32)])
    # Palettes lie block by block, column by column within; codes column by column.
    starts = (np.cumsum(palette_sizes) - palette_sizes).reshape(len(sizes), len(codes)).T
    if len(sizes) and (sizes == sizes[0]).all():
        where = codes.reshape(*starts.shape, sizes[0]) + starts[:, :, None]
        bits = palettes[where].reshape(codes.shape)
    else:
        bits = palettes[np.repeat(starts, sizes, axis=1) + codes]
    if len(arrays[f"{name}_high"]):
        full = np.empty((len(arrays[f"{name}_high"]), 4), np.uint8)
        full[:, 3], full[:, :3] = arrays[f"{name}_high"], arrays[f"{name}_low"]
        bits[codes == _ONCE] = full.view("<u4")[:, 0]
    return bits.view(np.float32)
