"""Maximum independent set after Bergman et al.: the most nodes of a graph, no two of them linked.

A greedy partition into cliques gives one row a clique; edges between cliques have their own rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from instances.drawing import Draw
from instances.family import Family, sizes
from instances.milp import Milp, ParameterError, binary_program

Graph = list[set[int]]  # node -> its neighbours


@dataclass(frozen=True)
class IndependentSet:
    """Parameters of an independent set; Ecole writes rows for cliques of one too."""

    nodes: int = 500
    graph: str = "barabasi_albert"  # or erdos_renyi
    affinity: int = 4  # Barabasi-Albert: links of a new node
    edge_probability: float = 0.1  # Erdos-Renyi
    singleton_rows: bool = False  # whether a clique of one node has a row

    def __post_init__(self) -> None:
        if self.graph not in ("barabasi_albert", "erdos_renyi"):
            raise ParameterError(f"graph {self.graph}: expected barabasi_albert or erdos_renyi")
        if not 1 <= self.affinity < self.nodes:
            raise ParameterError(f"affinity {self.affinity}: expected 1 to {self.nodes - 1}")
        if not 0 <= self.edge_probability <= 1:
            raise ParameterError(f"edge_probability {self.edge_probability}: expected 0 to 1")


def generate(p: IndependentSet, draw: Draw) -> Milp:
    """Make one independent set."""
    graph = _graph(p, draw)
    cliques = greedy_cliques(graph)
    clique_of = {node: c for c, clique in enumerate(cliques) for node in clique}
    # A node without any edge has a row in any case: each variable should be seen by a constraint.
    rows = [q for q in cliques if len(q) > 1 or p.singleton_rows or not graph[q[0]]]
    rows += [
        [u, v]
        for u, neighbours in enumerate(graph)
        for v in sorted(neighbours)
        if u < v and clique_of[u] != clique_of[v]
    ]
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    nodes = np.concatenate(rows)
    matrix = csr_array((np.ones(len(nodes)), nodes, starts), shape=(len(rows), p.nodes))
    return binary_program(
        f"IndependentSet-{p.nodes}",
        maximise=True,
        objective=np.ones(p.nodes),
        matrix=matrix,
        left=-np.inf,
        right=1.0,
        variable_names=[f"n_{v}" for v in range(p.nodes)],
        row_names=[f"c_{i}" for i in range(len(rows))],
    )


def _graph(p: IndependentSet, draw: Draw) -> Graph:
    if p.graph == "erdos_renyi":
        return erdos_renyi(p.nodes, p.edge_probability, draw)
    return barabasi_albert(p.nodes, p.affinity, draw)


def barabasi_albert(nodes: int, affinity: int, draw: Draw) -> Graph:
    """Grow a graph: each new node is linked to `affinity` earlier ones, by their degree."""
    graph: Graph = [set() for _ in range(nodes)]
    ends: list[int] = []  # both ends of every edge: a random one is a node drawn by its degree
    links = set(range(1, affinity + 1))
    for new in [0, *range(affinity + 1, nodes)]:
        while len(links) < affinity:
            links.add(ends[int(draw.unit() * len(ends))])
        for old in links:
            graph[new].add(old)
            graph[old].add(new)
            ends += (new, old)
        links = set()
    return graph


def erdos_renyi(nodes: int, probability: float, draw: Draw) -> Graph:
    """Link each pair of nodes with the same probability."""
    graph: Graph = [set() for _ in range(nodes)]
    for u in range(nodes - 1):
        for v in u + 1 + np.flatnonzero(draw.uniform(nodes - 1 - u) < probability):
            graph[u].add(int(v))
            graph[int(v)].add(u)
    return graph


def greedy_cliques(graph: Graph) -> list[list[int]]:
    """Partition the nodes into cliques: from the highest degrees, with what fits of the rest."""
    by_degree = sorted(range(len(graph)), key=lambda v: -len(graph[v]))
    rank = {node: position for position, node in enumerate(by_degree)}
    free = [True] * len(graph)
    cliques = []
    for centre in by_degree:
        if not free[centre]:
            continue
        clique = [centre]
        free[centre] = False
        common = {v for v in graph[centre] if free[v]}
        while common:  # adjacent to the whole clique: the first in rank fits, the next may not
            node = min(common, key=rank.__getitem__)
            clique.append(node)
            free[node] = False
            common &= graph[node]
        cliques.append(sorted(clique))
    return cliques


FAMILY = Family(
    name="indset",
    title="maximum independent set (Bergman)",
    parameters=IndependentSet,
    generate=generate,
    presets={
        "tiny": sizes(IndependentSet(80, affinity=8), transfer=IndependentSet(100, affinity=8)),
        "small": sizes(IndependentSet(200, affinity=5), transfer=IndependentSet(250, affinity=5)),
        "paper": sizes(IndependentSet(500), transfer=IndependentSet(1000)),
        "element": sizes(IndependentSet(3000, singleton_rows=True)),
    },
)
