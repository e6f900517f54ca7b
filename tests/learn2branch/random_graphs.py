"""Random graphs with every degenerate case, and the definitions that models are held against."""

import torch
from hypothesis import strategies as st
from straightforward import StraightforwardDualAttention, StraightforwardGNN

from learn2branch import BipartiteGraph
from learn2branch.features import SCHEMAS
from learn2branch.models import GraphModel


def random_graph(
    constraints: int, variables: int, edges: int, schema: str = "state", seed: int = 0
) -> BipartiteGraph:
    """Return a graph with unsorted edges, none of them twice."""
    generator = torch.Generator().manual_seed(seed)
    columns = SCHEMAS[schema]
    place = torch.randperm(constraints * variables, generator=generator)[:edges]
    return BipartiteGraph(
        torch.randn(constraints, len(columns.constraint), generator=generator),
        torch.stack([place // variables, place % variables]),
        torch.randn(place.shape[0], generator=generator),
        torch.randn(variables, len(columns.variable), generator=generator),
    )


@st.composite
def graphs(draw: st.DrawFn, schema: str = "state") -> BipartiteGraph:
    """Draw graphs with empty rows, isolated variables, one constraint, one edge, or no edge."""
    m, n = draw(st.integers(1, 9)), draw(st.integers(1, 12))
    edges = draw(st.integers(0, m * n))
    return random_graph(m, n, edges, schema, draw(st.integers(0, 10**6)))


def straightforward(model: GraphModel) -> torch.nn.Module:
    """Return the same network, with the same weights, written the usual way."""
    if model.config["backbone"] == "bgnn":
        return StraightforwardGNN(model)
    return StraightforwardDualAttention(model)
