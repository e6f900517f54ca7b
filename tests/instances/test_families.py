"""What every family promises, and what each of them is."""

import hashlib

import numpy as np
import pytest

from instances import FAMILIES, Milp, ParameterError
from instances.drawing import Draw
from instances.indset import barabasi_albert, erdos_renyi, greedy_cliques
from instances.writing import scip_model

SPLITS = ("train", "valid", "test", "transfer")
# (rows, columns) at the paper's sizes, None where it depends on the draw.
PAPER = {
    "setcover": {"test": (400, 750), "transfer": (500, 1000)},
    "cauctions": {"test": (None, 500), "transfer": (None, 1000)},
    "facilities": {"test": (1296, 1260), "transfer": (2196, 2135)},
    "indset": {"test": (None, 500), "transfer": (None, 1000)},
    "mknapsack": {"test": (106, 600), "transfer": (112, 1200)},
    "placement": {"test": (195, 1083)},
    "workload": {"test": (64_300, 61_000)},
}

# Of the arrays of instance 1 of tiny/test with seed 0; to change them is to change the data.
FINGERPRINTS = {
    "setcover": "1917bad7ac73c1d9",
    "cauctions": "b9f816aaee53f5ae",
    "facilities": "c508a29d0a998c9e",
    "indset": "02c0d461cade7661",
    "mknapsack": "2a8a0db8deb07f26",
    "placement": "716c970eb786091e",
    "workload": "6583bd7b4ceb817d",
}


def fingerprint(milp: Milp) -> str:
    arrays = (milp.objective, milp.lower, milp.upper, milp.left, milp.right, milp.matrix.data)
    whole = (milp.binary, milp.matrix.indices, milp.matrix.indptr)
    parts = [np.asarray(a, dtype="<f8") for a in arrays] + [np.asarray(a, "<i8") for a in whole]
    return hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16]


def solved(milp: Milp) -> np.ndarray:
    """Return an optimal solution by SCIP, checked against the arrays."""
    model = scip_model(milp)
    model.hideOutput()
    model.setParam("limits/time", 120)
    model.optimize()
    assert model.getStatus() == "optimal"
    x = np.array([model.getVal(variable) for variable in model.getVars()])
    activity = milp.matrix @ x
    assert (activity >= milp.left - 1e-5).all() and (activity <= milp.right + 1e-5).all()
    assert (x >= milp.lower - 1e-6).all() and (x <= milp.upper + 1e-6).all()
    assert np.abs(x - np.round(x))[milp.binary].max() < 1e-6
    assert np.isclose(milp.objective @ x, model.getObjVal())
    return x


@pytest.mark.parametrize("name", FAMILIES)
def test_the_papers_sizes(name: str) -> None:
    family = FAMILIES[name]
    assert set(family.presets) >= {"tiny", "small", "paper"}
    assert set(PAPER[name]) == set(family.splits("paper")) - {"train", "valid"}
    for split, (rows, columns) in PAPER[name].items():
        milp = family.instance("paper", split, 0, 1)
        assert milp.matrix.shape[1] == columns == len(milp.variable_names)
        assert rows in (None, milp.matrix.shape[0])
        assert len(milp.row_names) == milp.matrix.shape[0]
        assert len(set(milp.row_names)) == len(milp.row_names)
        assert len(set(milp.variable_names)) == columns
    for split in ("train", "valid"):
        assert family.parameters_of("paper", split) == family.parameters_of("paper", "test")


@pytest.mark.parametrize("name", FAMILIES)
def test_an_instance_is_the_same_whatever_was_made_before(name: str) -> None:
    family = FAMILIES[name]
    first = family.instance("tiny", "test", 0, 3)
    family.instance("tiny", "test", 0, 1)
    assert fingerprint(family.instance("tiny", "test", 0, 3)) == fingerprint(first)


@pytest.mark.parametrize("name", FAMILIES)
def test_an_instance_is_the_same_on_every_machine(name: str) -> None:
    assert fingerprint(FAMILIES[name].instance("tiny", "test", 0, 1)) == FINGERPRINTS[name]


@pytest.mark.parametrize("name", FAMILIES)
def test_splits_presets_and_seeds_share_no_instance(name: str) -> None:
    family = FAMILIES[name]
    changes = {}  # the same sizes everywhere, so that only the stream can make the difference
    for field, value in vars(family.parameters_of("tiny", "test")).items():
        changes[field] = value
    prints = [
        fingerprint(family.instance(preset, split, seed, k, changes))
        for preset in family.presets
        for split in family.splits(preset)
        for seed in (0, 1)
        for k in (1, 2)
    ]
    assert len(set(prints)) == len(prints)


@pytest.mark.parametrize("name", FAMILIES)
def test_scip_solves_tiny_instances_to_optimality(name: str) -> None:
    solved(FAMILIES[name].instance("tiny", "test", 0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("k", range(2, 12))
def test_scip_solves_many_tiny_instances_to_optimality(name: str, k: int) -> None:
    solved(FAMILIES[name].instance("tiny", "train", 0, k))


def test_solutions_of_setcover_cover_every_row() -> None:
    milp = FAMILIES["setcover"].instance("tiny", "valid", 0, 1)
    chosen = np.flatnonzero(np.round(solved(milp)))
    covered = milp.matrix.tocsc()[:, chosen].sum(axis=1)
    assert (covered >= 1).all()
    assert set(milp.objective) <= set(range(1, 101))


def test_setcover_has_the_promised_nonzeros() -> None:
    milp = FAMILIES["setcover"].instance("paper", "test", 0, 1)
    assert milp.matrix.nnz == 15_000 and (milp.matrix.data == 1).all()
    assert np.bincount(milp.matrix.indices).min() >= 2
    assert np.diff(milp.matrix.indptr).min() >= 1
    assert milp.matrix.has_canonical_format


@pytest.mark.parametrize("graph", ["barabasi_albert", "erdos_renyi"])
def test_solutions_of_indset_are_independent_sets(graph: str) -> None:
    changes = {"graph": graph}
    family = FAMILIES["indset"]
    milp = family.instance("tiny", "valid", 0, 1, changes)
    # The graph, drawn again from the same stream.
    p = family.parameters_of("tiny", "valid", changes)
    draw = Draw("indset", "tiny", "valid", 0, 1)
    neighbours = (
        erdos_renyi(p.nodes, p.edge_probability, draw)
        if graph == "erdos_renyi"
        else barabasi_albert(p.nodes, p.affinity, draw)
    )
    chosen = set(np.flatnonzero(np.round(solved(milp))).tolist())
    assert chosen
    assert all(not neighbours[node] & chosen for node in chosen)
    # And maximal: the rows forbid nothing that the graph allows.
    assert all(neighbours[node] & chosen for node in set(range(p.nodes)) - chosen)


def test_greedy_cliques_partition_the_graph_into_cliques() -> None:
    graph = erdos_renyi(60, 0.4, Draw("cliques"))
    cliques = greedy_cliques(graph)
    assert sorted(node for clique in cliques for node in clique) == list(range(60))
    assert max(len(clique) for clique in cliques) > 2
    for clique in cliques:
        assert all(v in graph[u] for u in clique for v in clique if u != v)


def test_barabasi_albert_links_each_new_node_to_four_earlier_ones() -> None:
    graph = barabasi_albert(200, 4, Draw("growing"))
    assert all(len({v for v in graph[u] if v < u}) == 4 for u in range(5, 200))
    assert sum(len(neighbours) for neighbours in graph) == 2 * (4 + 4 * 195)


def test_auctions_sell_no_item_twice_and_dummies_bind_substitutes() -> None:
    milp = FAMILIES["cauctions"].instance("paper", "test", 0, 1)
    items = [int(name.removeprefix("item_")) for name in milp.row_names]
    dummies = [row for row, item in enumerate(items) if item >= 100]
    sizes = np.diff(milp.matrix.indptr)
    assert dummies and sizes[dummies].min() >= 3 and sizes[dummies].max() <= 6
    assert (milp.objective > 0).all() and milp.maximise


def test_knapsacks_hold_half_of_the_weight() -> None:
    milp = FAMILIES["mknapsack"].instance("paper", "test", 0, 1)
    weights = milp.matrix[0].toarray().ravel()[:100]
    capacities = milp.right[:6]
    assert capacities.sum() == weights.sum() // 2
    assert set(weights) <= set(range(10, 20))
    profits = milp.objective[:100]
    assert (profits >= np.maximum(weights - 10, 1)).all() and (profits <= weights + 9).all()


def test_one_in_ten_binaries_of_a_placement_is_one() -> None:
    milp = FAMILIES["placement"].instance("paper", "test", 0, 1)
    assert milp.binary.sum() == 1050
    places = milp.matrix[:105]
    assert (milp.left[:105] == 1).all() and (milp.right[:105] == 1).all()
    assert (np.diff(places.indptr) == 10).all()


def test_four_in_five_workers_are_needed() -> None:
    milp = FAMILIES["workload"].instance("small", "test", 0, 1)
    assert 0.7 <= solved(milp)[milp.binary].mean() <= 0.9


def test_every_worker_has_a_task() -> None:
    milp = FAMILIES["workload"].instance("paper", "test", 0, 1)
    carry = milp.matrix[60_000:61_000]
    assert np.diff(carry.indptr).min() >= 1
    assert (~milp.binary).sum() == 60_000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["indset", "cauctions"])
def test_the_sizes_of_the_element_task(name: str) -> None:
    milp = FAMILIES[name].instance("element", "test", 0, 1)
    assert milp.matrix.shape[1] == 3000
    assert name == "indset" or milp.matrix.shape[0] > 3000


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("setcover", {"density": 0.001}, "density"),
        ("setcover", {"rows": "many"}, "rows"),
        ("setcover", {"colour": 3}, "colour"),
        ("cauctions", {"add_item_probability": 1.0}, "add_item_probability"),
        ("facilities", {"continuous": "perhaps"}, "continuous"),
        ("facilities", {"ratio": 0.5}, "ratio"),
        ("indset", {"graph": "star"}, "graph"),
        ("indset", {"affinity": 0}, "affinity"),
        ("mknapsack", {"scheme": "none"}, "scheme"),
        ("placement", {"slack": 0.9}, "slack"),
        ("workload", {"able": 1}, "able"),
    ],
)
def test_impossible_parameters_are_named(name: str, changes: dict, word: str) -> None:
    with pytest.raises(ParameterError, match=word):
        FAMILIES[name].parameters_of("tiny", "test", changes)


def test_unknown_presets_and_splits_are_named() -> None:
    with pytest.raises(ParameterError, match="setcover has no preset element"):
        FAMILIES["setcover"].splits("element")
    with pytest.raises(ParameterError, match="no transfer split"):
        FAMILIES["workload"].instance("paper", "transfer", 0, 1)


def test_every_preset_says_how_many_instances_a_split_holds() -> None:
    for family in FAMILIES.values():
        for preset in family.presets:
            assert all(family.count(preset, split) > 0 for split in family.splits(preset))
