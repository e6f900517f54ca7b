"""Policies on the compiled kernels; dual attention does the whole network in one call.

They run the folded weights of a scripted module, and must agree with it. The sorted non-zeros of
the last graph are kept: while a solver hands over the identical edge tensors, as it does from node
to node while the LP's matrix stays, they are not sorted again.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from learn2branch.backbones.bgnn import edge_sums
from learn2branch.backbones.registry import BACKBONES
from learn2branch.errors import InputError
from learn2branch.kernels import KERNELS, address
from learn2branch.models import check_sizes
from learn2branch.nonzeros import NonZeros

PANEL = 16  # columns of a packed matrix that stand together
SIDE = (
    *("self_key", "self_query", "self_output", "self_gain", "self_shift"),
    *("cross_query", "cross_output", "cross_gain", "cross_shift"),
    *("fusion", "fusion_bias", "fusion_gain", "fusion_shift", "inner", "outer", "gain", "shift"),
)
KINDS = ("variable", "constraint")
EMBEDDING = ("first", "first_bias", "second", "second_bias")


def native(module: torch.jit.ScriptModule, config: dict[str, Any]) -> Native | None:
    """Return the module on the kernels, or None where they do not know its architecture.

    A configuration that is not the module's is refused with InputError.
    """
    if KERNELS is None or config["backbone"] not in BACKBONES:
        return None
    check_sizes(config)
    if config["backbone"] == "bgnn" and config["width"] % 8 == 0:
        return NativeBipartiteGNN(module, config)
    known = (
        config["backbone"] == "dualattn"
        and config.get("edge_encoding", "linear") == "linear"
        and config["width"] % PANEL == 0
        and config["inner"] % PANEL == 0
    )
    return NativeDualAttention(module, config) if known else None


class Native:
    """Called like the scripted module that it is made of."""

    def __init__(self, module: torch.jit.ScriptModule, config: dict[str, Any]) -> None:
        _check_shapes(module, config)
        self._scale = dict(module.named_buffers())["edge_scale"]
        self._edges: tuple[Any, ...] = ()  # the edges that are sorted at present
        self._nonzeros: NonZeros
        self._lock = threading.Lock()  # one call at a time: all of this belongs to the last one

    def __call__(
        self,
        constraint_features: Tensor,
        edge_index: Tensor,
        edge_values: Tensor,
        variable_features: Tensor,
        candidates: Tensor | None = None,
    ) -> Tensor:
        m, n = constraint_features.shape[0], variable_features.shape[0]
        with self._lock:
            self._sort(edge_index, edge_values, m, n)
            return self._score(constraint_features, variable_features, candidates)

    def _sort(self, edge_index: Tensor, edge_values: Tensor, m: int, n: int) -> None:
        """Sort the edges, unless they are those of the last call."""
        key = (_version(edge_index), _version(edge_values), m, n)
        known = self._edges
        if not (known and known[0] is edge_index and known[1] is edge_values and known[2] == key):
            self._edges = ()
            values = edge_values.float() * self._scale
            self._nonzeros = NonZeros.from_edges(edge_index, values, m, n)
            self._use_edges()
            self._edges = (edge_index, edge_values, key)

    def _use_edges(self) -> None:
        """Prepare what depends on the edges alone."""

    def _score(
        self, constraint_features: Tensor, variable_features: Tensor, candidates: Tensor | None
    ) -> Tensor:
        raise AssertionError("each architecture scores in its own way")


class NativeBipartiteGNN(Native):
    """Dense products by torch, sums along the edges by a kernel."""

    def __init__(self, module: torch.jit.ScriptModule, config: dict[str, Any]) -> None:
        super().__init__(module, config)
        self._module: Any = module
        parts = dict(module.named_modules())
        self._steps: list[tuple[Any, bool]] = [
            (parts[f"{side}.{t}"], side == "constraints")
            for t in range(config["layers"])
            for side in ("constraints", "variables")
        ]

    def _use_edges(self) -> None:
        both = (self._nonzeros.rows, self._nonzeros.columns)
        self._degrees = [rows.pointers.diff().float().unsqueeze(1) for rows in both]

    def _score(
        self, constraint_features: Tensor, variable_features: Tensor, candidates: Tensor | None
    ) -> Tensor:
        V = self._module.variable_embedding(variable_features)
        C = self._module.constraint_embedding(constraint_features)
        for step, to_constraints in self._steps:
            x, other = (C, V) if to_constraints else (V, C)
            entries = self._nonzeros if to_constraints else self._nonzeros.transpose
            target, source = x @ step.target + step.target_bias, other @ step.source
            sums = edge_sums(target, source, step.edge, entries)
            x = step.update(x, sums, self._degrees[0 if to_constraints else 1])
            V, C = (V, x) if to_constraints else (x, C)
        return self._module.head(V if candidates is None else V[candidates], C)


class NativeDualAttention(Native):
    """The whole network in one call of a kernel."""

    def __init__(self, module: torch.jit.ScriptModule, config: dict[str, Any]) -> None:
        super().__init__(module, config)
        weights = dict(module.named_buffers())
        self._kept: list[Tensor] = []  # what the struct points to
        self._pools = config["task"] == "instance"
        flags = (config.get("self_attention", True), config.get("cross_attention", True))
        heads, width = config["heads"], config["width"]
        # The fields of `struct network` in _kernels.c, in order.
        fields = [config["layers"], heads, width, config["inner"]]
        fields += [int(bool(flag)) for flag in (*flags, self._pools)]
        starts = {}
        for side in KINDS:
            starts[side] = len(fields)
            self_columns = weights[f"{side}_embedding.first"].shape[0]
            fields += [0, self_columns, 0, 0, 0, 0]
            fields += [self._keep(weights[f"{side}_embedding.{name}"]) for name in EMBEDDING]
        self._variables, self._constraints = starts["variable"], starts["constraint"]
        self._candidates = len(fields)
        fields += [-1, 0, 0]
        fields += [self._keep(weights[f"head.{name}"]) for name in ("hidden", "hidden_bias", "out")]
        for t in range(config["layers"]):
            for side in ("variables", "constraints"):
                for name in SIDE:
                    tensor = weights[f"{side}.{t}.{name}"]
                    if name == "self_output" and tensor.numel() > 0:
                        # Each head's matrix is a factor of its own.
                        tensor = torch.stack([_packed(part) for part in tensor.split(width)])
                        fields.append(self._keep(tensor.flatten()))
                    else:
                        fields.append(self._keep(tensor))
        self._fields = array("q", fields)
        self._address = self._fields.buffer_info()[0]

    def _keep(self, tensor: Tensor) -> int:
        tensor = (_packed(tensor) if tensor.dim() == 2 else tensor).float().contiguous().clone()
        self._kept.append(tensor)
        return address(tensor)

    def _use_edges(self) -> None:
        for start, rows in (
            (self._variables, self._nonzeros.columns),
            (self._constraints, self._nonzeros.rows),
        ):
            for k, tensor in enumerate((rows.pointers, rows.columns, rows.values)):
                self._fields[start + 3 + k] = address(tensor)

    def _score(
        self, constraint_features: Tensor, variable_features: Tensor, candidates: Tensor | None
    ) -> Tensor:
        fields = self._fields
        # By name: the copy of a tensor that is not contiguous must live until the kernel is done.
        variables, constraints = variable_features.contiguous(), constraint_features.contiguous()
        for start, features in ((self._variables, variables), (self._constraints, constraints)):
            if features.dtype != torch.float32 or features.shape[1] != fields[start + 1]:
                raise ValueError(
                    f"expected float32 features with {fields[start + 1]} columns, "
                    f"not {features.dtype} with {features.shape[1]}"
                )
            fields[start] = features.shape[0]
            fields[start + 2] = features.data_ptr()
        n = variable_features.shape[0]
        count = 1 if self._pools else n
        if candidates is None or self._pools:
            fields[self._candidates] = -1
        else:
            candidates = candidates.to(torch.int64).contiguous()
            count = candidates.shape[0]
            if count and (int(candidates.min()) < 0 or int(candidates.max()) >= n):
                raise IndexError("a candidate is not a variable of the graph")
            fields[self._candidates] = count
            fields[self._candidates + 1] = candidates.data_ptr()
        scores = torch.empty(count)
        fields[self._candidates + 2] = scores.data_ptr()
        KERNELS.score(self._address)
        return scores


def _check_shapes(module: torch.jit.ScriptModule, config: dict[str, Any]) -> None:
    """Refuse weights of other shapes than configured: a kernel would read past their ends."""
    found = {name: tuple(b.shape) for name, b in module.named_buffers() if b.numel() > 0}
    columns = {kind: found.get(f"{kind}_embedding.first", (0,))[0] for kind in KINDS}
    for name, shape in _shapes(config, columns):
        if found.pop(name, None) != shape:
            raise InputError(f"its metadata describe another network, with {name} of shape {shape}")
    if found:
        raise InputError(f"its metadata describe another network, without {next(iter(found))}")


def _shapes(
    config: dict[str, Any], columns: dict[str, int]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield name and shape of all weights in the script of a model (learn2branch/scripted.py)."""
    d = config["width"]
    yield from (("edge_scale", (1,)), ("head.hidden_bias", (d,)), ("head.out", (d,)))
    yield "head.hidden", (2 * d if config["task"] == "instance" else d, d)
    for kind in KINDS:
        for name, shape in zip(EMBEDDING, ((columns[kind], d), (d,), (d, d), (d,)), strict=True):
            yield f"{kind}_embedding.{name}", shape
    side = _convolution_shapes(d) if config["backbone"] == "bgnn" else _side_shapes(config)
    for t in range(config["layers"]):
        for kind in KINDS:
            for name, shape in side.items():
                yield f"{kind}s.{t}.{name}", shape


def _convolution_shapes(d: int) -> dict[str, tuple[int, ...]]:
    vectors = ("target_bias", "edge", "degree", "hidden_bias", "out_bias")
    matrices = ("target", "source", "sums", "own", "out")
    return {**dict.fromkeys(vectors, (d,)), **dict.fromkeys(matrices, (d, d))}


def _side_shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    d, inner, all_heads = config["width"], config["inner"], config["heads"] * config["width"]
    attentions = [kind for kind in ("self", "cross") if config.get(f"{kind}_attention", True)]
    vectors = ["fusion_bias", "fusion_gain", "fusion_shift", "gain", "shift"]
    shapes = {"fusion": (len(attentions) * d, d), "inner": (d, inner), "outer": (inner, d)}
    for kind in attentions:
        vectors += [f"{kind}_gain", f"{kind}_shift"]
        shapes |= {f"{kind}_query": (d, all_heads), f"{kind}_output": (all_heads, d)}
    if "self" in attentions:
        shapes["self_key"] = (d, all_heads)
    return {**dict.fromkeys(vectors, (d,)), **shapes}


def _version(tensor: Tensor) -> int:
    """Count the in-place changes of a tensor; those made in inference mode are not counted."""
    return -1 if tensor.is_inference() else tensor._version


def _packed(matrix: Tensor) -> Tensor:
    """Reorder (k, columns) so that 16 columns at a time stand together."""
    depth, columns = matrix.shape
    return matrix.reshape(depth, columns // PANEL, PANEL).transpose(0, 1).contiguous().flatten()
