"""Policies on the compiled kernels; dual attention does the whole network in one call.

They run the folded weights of a scripted module, and must agree with it. The sorted non-zeros of
the last graph are kept: while a solver hands over the identical edge tensors, as it does from node
to node while the LP's matrix stays, they are not sorted again.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from learn2branch.backbones.bgnn import edge_sums
from learn2branch.kernels import KERNELS, address
from learn2branch.nonzeros import NonZeros

PANEL = 16  # columns of a packed matrix that stand together
SIDE = (
    *("self_key", "self_query", "self_output", "self_gain", "self_shift"),
    *("cross_query", "cross_output", "cross_gain", "cross_shift"),
    *("fusion", "fusion_bias", "fusion_gain", "fusion_shift", "inner", "outer", "gain", "shift"),
)
EMBEDDING = ("first", "first_bias", "second", "second_bias")


def native(module: torch.jit.ScriptModule, config: dict[str, Any]) -> Native | None:
    """Return the module on the kernels, or None where they do not know its architecture."""
    if KERNELS is None:
        return None
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

    def __init__(self, module: torch.jit.ScriptModule) -> None:
        self._scale = dict(module.named_buffers())["edge_scale"]
        self._edges: tuple[Any, ...] = ()  # the edges that are sorted at present
        self._nonzeros: NonZeros

    def __call__(
        self,
        constraint_features: Tensor,
        edge_index: Tensor,
        edge_values: Tensor,
        variable_features: Tensor,
        candidates: Tensor | None = None,
    ) -> Tensor:
        m, n = constraint_features.shape[0], variable_features.shape[0]
        key = (_version(edge_index), _version(edge_values), m, n)
        known = self._edges
        if not (known and known[0] is edge_index and known[1] is edge_values and known[2] == key):
            self._edges = ()
            values = edge_values.float() * self._scale
            self._nonzeros = NonZeros.from_edges(edge_index, values, m, n)
            self._use_edges()
            self._edges = (edge_index, edge_values, key)
        return self._score(constraint_features, variable_features, candidates)

    def _use_edges(self) -> None:
        """Prepare what depends on the edges alone."""

    def _score(
        self, constraint_features: Tensor, variable_features: Tensor, candidates: Tensor | None
    ) -> Tensor:
        raise AssertionError("each architecture scores in its own way")


class NativeBipartiteGNN(Native):
    """Dense products by torch, sums along the edges by a kernel."""

    def __init__(self, module: torch.jit.ScriptModule, config: dict[str, Any]) -> None:
        super().__init__(module)
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
        super().__init__(module)
        weights = dict(module.named_buffers())
        self._kept: list[Tensor] = []  # what the struct points to
        self._pools = config["task"] == "instance"
        flags = (config.get("self_attention", True), config.get("cross_attention", True))
        heads, width = config["heads"], config["width"]
        # The fields of `struct network` in _kernels.c, in order.
        fields = [config["layers"], heads, width, config["inner"], *map(int, flags)]
        fields.append(int(self._pools))
        starts = {}
        for side in ("variable", "constraint"):
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
        for start, features in (
            (self._variables, variable_features.contiguous()),
            (self._constraints, constraint_features.contiguous()),
        ):
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


def _version(tensor: Tensor) -> int:
    """Count the in-place changes of a tensor; those made in inference mode are not counted."""
    return -1 if tensor.is_inference() else tensor._version


def _packed(matrix: Tensor) -> Tensor:
    """Reorder (k, columns) so that 16 columns at a time stand together."""
    depth, columns = matrix.shape
    return matrix.reshape(depth, columns // PANEL, PANEL).transpose(0, 1).contiguous().flatten()
