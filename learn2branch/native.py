"""A dual-attention policy on the compiled kernels: the whole network in one call.

It runs the folded weights of a scripted module, and must agree with it. The sorted non-zeros of the
last graph are kept: while a solver hands over the identical edge tensors, as it does from node to
node while the LP's matrix stays, they are not sorted again.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor

from learn2branch.kernels import KERNELS, address
from learn2branch.nonzeros import NonZeros

PANEL = 16  # columns of a packed matrix that stand together
SIDE = (
    *("self_key", "self_query", "self_output", "self_gain", "self_shift"),
    *("cross_query", "cross_output", "cross_gain", "cross_shift"),
    *("fusion", "fusion_bias", "fusion_gain", "fusion_shift", "inner", "outer", "gain", "shift"),
)
EMBEDDING = ("first", "first_bias", "second", "second_bias")


def can_run(config: dict[str, Any]) -> bool:
    """Tell whether the kernels are there and know this architecture."""
    return (
        KERNELS is not None
        and config["backbone"] == "dualattn"
        and config.get("edge_encoding", "linear") == "linear"
        and config["width"] % PANEL == 0
        and config["inner"] % PANEL == 0
    )


class NativeDualAttention:
    """Called like the scripted module that it is made of."""

    def __init__(self, module: torch.jit.ScriptModule, config: dict[str, Any]) -> None:
        weights = dict(module.named_buffers())
        self._kept: list[Tensor] = []  # what the struct points to
        self._scale = weights["edge_scale"]
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
        self._edges: tuple[Any, ...] = ()  # the edges that are sorted at present
        self._nonzeros: NonZeros | None = None

    def _keep(self, tensor: Tensor) -> int:
        tensor = (_packed(tensor) if tensor.dim() == 2 else tensor).float().contiguous().clone()
        self._kept.append(tensor)
        return address(tensor)

    def __call__(
        self,
        constraint_features: Tensor,
        edge_index: Tensor,
        edge_values: Tensor,
        variable_features: Tensor,
        candidates: Tensor | None = None,
    ) -> Tensor:
        n, m = variable_features.shape[0], constraint_features.shape[0]
        self._sort(edge_index, edge_values, m, n)
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

    def _sort(self, edge_index: Tensor, edge_values: Tensor, m: int, n: int) -> None:
        known = self._edges
        if (
            known
            and known[0] is edge_index
            and known[1] is edge_values
            and known[2:] == (_version(edge_index), _version(edge_values), m, n)
        ):
            return
        self._edges = ()
        values = edge_values.float() * self._scale
        self._nonzeros = NonZeros.from_edges(edge_index, values, m, n)
        for start, rows in (
            (self._variables, self._nonzeros.columns),
            (self._constraints, self._nonzeros.rows),
        ):
            for k, tensor in enumerate((rows.pointers, rows.columns, rows.values)):
                self._fields[start + 3 + k] = address(tensor)
        versions = (_version(edge_index), _version(edge_values))
        self._edges = (edge_index, edge_values, *versions, m, n)


def _version(tensor: Tensor) -> int:
    """Count the in-place changes of a tensor; those made in inference mode are not counted."""
    return -1 if tensor.is_inference() else tensor._version


def _packed(matrix: Tensor) -> Tensor:
    """Reorder (k, columns) so that 16 columns at a time stand together."""
    depth, columns = matrix.shape
    return matrix.reshape(depth, columns // PANEL, PANEL).transpose(0, 1).contiguous().flatten()
