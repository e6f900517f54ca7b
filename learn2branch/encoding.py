"""Samples as a few small arrays, and back: what a shard keeps (see docs/samples.md).

Nothing is lost: every float32 of a state comes back bit for bit. It is small because rows of the
matrix are stored once, 0/1 columns share a byte, and other columns are bytes into a palette of
their repeated values; only values that occur once are stored in full. The order of the non-zeros
is the one thing that is made canonical: by constraint, then by variable.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from learn2branch.features import STATE
from learn2branch.graph import BipartiteGraph
from learn2branch.kernels import compiled
from learn2branch.samples import Sample

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

_DECODING = compiled("learn2branch._decoding")  # the numbers in one call, or None

Array = NDArray[Any]


# --- writing -------------------------------------------------------------------------------------


def encode(samples: Sequence[Sample]) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the bytes of each member of a shard, and what is needed to read them.

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
    members = {}
    layout["arrays"] = {}
    for member, group in {"compressed": arrays, "stored": stored_arrays}.items():
        # Sorted, as the header is: its order is that of the arrays in the file.
        group = dict(sorted(group.items()))
        members[member] = np.frombuffer(b"".join(a.tobytes() for a in group.values()), np.uint8)
        layout["arrays"][member] = {name: [a.dtype.str, *a.shape] for name, a in group.items()}
    return members, layout


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
    value = np.ascontiguousarray(variables[:, _LP_VALUE])
    fraction = value - np.floor(value + np.float32(1e-6))
    fraction[variables[:, _CONTINUOUS] != 0] = 0
    return fraction


# --- reading -------------------------------------------------------------------------------------


class Parts(NamedTuple):
    """The numbers of an episode's samples, one sample after the other; buffers are flat."""

    constraints: Any  # float32, constraint features
    variables: Any  # float32, variable features
    edges: Any  # int64, of each matrix its edge index
    values: Any  # float32, of each matrix its edge values
    candidates: Any  # int64
    scores: Any  # float64
    pseudocosts: Any  # float64, or None
    heights: list[int]  # constraints of each sample
    sizes: list[int]  # variables of each sample
    edge_counts: list[int]  # non-zeros of each matrix
    matrix_of: list[int]  # the matrix of each sample
    candidate_sizes: list[int]  # candidates of each sample
    choices: list[int]  # of each sample


def decode(members: dict[str, Array], header: dict[str, Any]) -> list[Sample]:
    """Return the samples that `encode` made members and a header of."""
    fixed = header["fixed"]
    moving = [i for i in _NUMBERS if i not in fixed]
    fractionality = []
    if header["fractionality"] != "stored":
        moving.remove(_FRACTIONALITY)
        fractionality = [_FRACTIONALITY, _LP_VALUE, _CONTINUOUS]
    layouts = header["arrays"]
    if _DECODING is not None:
        parts = Parts._make(
            _DECODING.decode(
                layouts["compressed"], members["compressed"],
                layouts["stored"], members["stored"],
                len(STATE.variable), moving, fixed, _FLAGS, fractionality,
                len(STATE.constraint), _ROW_NUMBERS, _ROW_COLUMNS,
            )
        )  # fmt: skip
    else:
        arrays: dict[str, Array] = {}
        for name, data in members.items():
            _split(data, layouts[name], arrays)
        parts = _plain_parts(arrays, moving, fixed, bool(fractionality))
    return _samples(parts)


def _samples(parts: Parts) -> list[Sample]:
    """Return samples that are views of the numbers; those with the same matrix share it."""

    def tensor(part: Any, kind: str) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(part, kind))

    # `split_with_sizes` is what `split` calls, after looking at its arguments in Python.
    edges = tensor(parts.edges, "i8").split_with_sizes([2 * count for count in parts.edge_counts])
    values = tensor(parts.values, "f4").split_with_sizes(parts.edge_counts)
    index = [both.view(2, n) for both, n in zip(edges, parts.edge_counts, strict=True)]
    candidate_sizes = parts.candidate_sizes
    pseudocosts: Sequence[torch.Tensor | None] = [None] * len(parts.choices)
    if parts.pseudocosts is not None:
        pseudocosts = tensor(parts.pseudocosts, "f8").split_with_sizes(candidate_sizes)
    pointers = {
        size: torch.from_numpy(np.array([0, size], np.int64))
        for size in {*parts.heights, *parts.sizes}
    }
    states = [
        BipartiteGraph(rows, index[k], values[k], columns, pointers[height], pointers[size])
        for rows, columns, k, height, size in zip(
            tensor(parts.constraints, "f4")
            .view(-1, len(STATE.constraint))
            .split_with_sizes(parts.heights),
            tensor(parts.variables, "f4")
            .view(-1, len(STATE.variable))
            .split_with_sizes(parts.sizes),
            parts.matrix_of,
            parts.heights,
            parts.sizes,
            strict=True,
        )
    ]
    return [
        Sample(*sample)
        for sample in zip(
            states,
            tensor(parts.candidates, "i8").split_with_sizes(candidate_sizes),
            tensor(parts.scores, "f8").split_with_sizes(candidate_sizes),
            parts.choices,
            pseudocosts,
            strict=True,
        )
    ]


def _split(data: Array, layout: dict[str, list[Any]], arrays: dict[str, Array]) -> None:
    """Add the named arrays that lie in the data one after the other."""
    start = 0
    for name, (kind, *shape) in layout.items():
        arrays[name] = np.ndarray(shape, kind, data.data, start)
        start += arrays[name].nbytes
    if start != len(data):
        raise ValueError("the arrays do not fill the data")


def _plain_parts(
    arrays: dict[str, Array], moving: list[int], fixed: list[int], derived: bool
) -> Parts:
    """Return the numbers: the definition of what the compiled decoding gives."""
    edges, values, row_features = _decode_matrices(arrays)
    matrix_of = arrays["matrix_of"].tolist()
    heights = [len(row_features[matrix]) for matrix in matrix_of]
    constraints = np.empty((sum(heights), len(STATE.constraint)), np.float32)
    _get_numbers(arrays, "constraint", np.array(heights, np.int64), constraints, _ROW_NUMBERS)
    constraints[:, _ROW_COLUMNS] = _join(
        [row_features[matrix] for matrix in matrix_of], np.float32, len(_ROW_COLUMNS)
    )
    sizes = arrays["variable_sizes"].astype(np.int64)
    return Parts(
        constraints,
        _decode_variables(arrays, sizes, moving, fixed, derived),
        _join([edge.ravel() for edge in edges], np.int64),
        _join(values, np.float32),
        arrays["candidates"].astype(np.int64),
        arrays["scores"].copy(),
        arrays["pseudocosts"].copy() if "pseudocosts" in arrays else None,
        heights,
        sizes.tolist(),
        [len(value) for value in values],
        matrix_of,
        arrays["candidate_sizes"].tolist(),
        arrays["choices"].tolist(),
    )


def _decode_variables(
    arrays: dict[str, Array], sizes: Array, moving: list[int], fixed: list[int], derived: bool
) -> Array:
    """Return the variable features of all states, one below the other."""
    # Whole rows come from a table of the flag patterns; the other columns are put over them.
    table = np.zeros((len(arrays["flag_patterns"]), len(STATE.variable)), np.float32)
    table[:, _FLAGS] = arrays["flag_patterns"][:, None] >> np.arange(len(_FLAGS)) & 1
    variables = table.take(arrays["flags"], axis=0)
    _get_numbers(arrays, "variable", sizes, variables, moving)
    if fixed and len(sizes):  # then all states have the same size
        each = variables.reshape(len(sizes), -1, len(STATE.variable))
        _get_numbers(arrays, "fixed", sizes[:1], each[0], fixed)
        for i in fixed:
            each[1:, :, i] = each[0, :, i]
    if derived:
        variables[:, _FRACTIONALITY] = _fractionality(variables)
    return variables


def _decode_matrices(arrays: dict[str, Array]) -> tuple[list[Array], list[Array], list[Array]]:
    """Return the edge indices, edge values and row features of the matrices."""
    row_sizes = arrays["row_sizes"].astype(np.int64)
    starts = np.zeros(len(row_sizes) + 1, np.int64)
    np.cumsum(row_sizes, out=starts[1:])
    gaps = arrays["row_gaps"].astype(np.int64)
    if starts[-1] != len(gaps) or arrays["matrix_sizes"].sum() != len(arrays["matrix_steps"]):
        raise ValueError("the rows or matrices have other lengths than they should")
    values = np.empty((len(gaps), 1), np.float32)
    _get_numbers(arrays, "value", row_sizes, values, [0])
    features = np.empty((len(row_sizes), len(_ROW_COLUMNS)), np.float32)
    _get_numbers(arrays, "row", np.array([len(row_sizes)]), features, range(len(_ROW_COLUMNS)))
    # Gaps to columns: one running sum over all rows, less what it was before each row.
    running = np.concatenate([[0], np.cumsum(gaps)])
    columns = running[1:] - running[starts[:-1]].repeat(row_sizes)
    every_edges, every_values, every_features = [], [], []
    first = 0
    for height in arrays["matrix_sizes"].tolist():
        rows = np.cumsum(arrays["matrix_steps"][first : first + height].astype(np.int64) + 1) - 1
        first += height
        lengths = row_sizes[rows]
        # Positions of the non-zeros: steps of one, from the start of each row.
        where = np.arange(lengths.sum())
        where += (starts[rows] - np.cumsum(lengths) + lengths).repeat(lengths)
        every_edges.append(np.stack([np.arange(height).repeat(lengths), columns[where]]))
        every_values.append(values[where, 0])
        every_features.append(features[rows])
    return every_edges, every_values, every_features


def _get_numbers(
    arrays: dict[str, Array], name: str, sizes: Array, out: Array, places: Sequence[int]
) -> None:
    """Put the columns that `_put_numbers` stored, for blocks of sizes, into places of a matrix."""
    codes, palette_sizes, palettes, high, low = (
        arrays[f"{name}_{part}"] for part in ("codes", "palette_sizes", "palettes", "high", "low")
    )
    if len(codes) != len(places) or codes.shape[1] != len(out):
        raise ValueError(f"{name} has other columns or lengths than it should")
    # Palettes lie block by block, column by column within; codes column by column.
    ends = np.cumsum(palette_sizes, dtype=np.int64)
    starts = (ends - palette_sizes).reshape(len(sizes), len(codes)).T
    known = codes != _ONCE
    bits = np.empty(codes.shape, np.uint32)
    bits[known] = palettes[(starts.repeat(sizes, axis=1) + codes)[known]]
    full = np.empty((len(high), 4), np.uint8)
    full[:, 3], full[:, :3] = high, low
    bits[~known] = full.view("<u4")[:, 0]
    out[:, places] = bits.view(np.float32).T
