"""The three heads: from embeddings to a number per instance, per variable or per candidate."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class VariableHead(nn.Module):
    """An MLP on each variable: its logit (element task) or its score (state task).

    The state task's softmax over the candidates belongs to its loss.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, width)
        self.out = nn.Linear(width, 1, bias=False)

    def forward(self, variables: Tensor) -> Tensor:
        return self.out(self.hidden(variables).relu()).squeeze(-1)


class InstanceHead(nn.Module):
    """The mean of the variables and the mean of the constraints of each graph, then an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, 1, bias=False)

    def forward(
        self,
        variables: Tensor,
        constraints: Tensor,
        variable_ptr: Tensor,
        constraint_ptr: Tensor,
    ) -> Tensor:
        pooled = [graph_means(variables, variable_ptr), graph_means(constraints, constraint_ptr)]
        return self.out(self.hidden(torch.cat(pooled, dim=1)).relu()).squeeze(-1)


def graph_means(x: Tensor, pointers: Tensor) -> Tensor:
    """Average the nodes of each graph, (nodes, d) -> (graphs, d); zero for a graph without any."""
    sizes = pointers.diff()
    graph = torch.arange(sizes.shape[0], device=x.device).repeat_interleave(sizes)
    sums = x.new_zeros(sizes.shape[0], x.shape[1]).index_add(0, graph, x)
    return sums / sizes.clamp(min=1).unsqueeze(1)
