"""The same episode on Ecole: its translation here, the real thing where Ecole is installed."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from pyscipopt import SCIP_PARAMSETTING, Model

from instances import FAMILIES
from learn2branch import BipartiteGraph, InputError
from learn2branch.features import STATE
from learn2branch.shards import read_shard
from pipelines.branching.collect import collect
from pipelines.cli import l2b
from solver_plugins import Observer, strong_branching_scores
from solver_plugins import run_episode as on_scip
from solver_plugins.ecole import graph_of, run_episode

has_ecole = importlib.util.find_spec("ecole") is not None
needs_ecole = pytest.mark.skipif(not has_ecole, reason="Ecole is not installed")


def ecole_observation() -> SimpleNamespace:
    """Return what Ecole gives, as plain arrays: doubles, unsigned indices, NaN for no incumbent."""
    rng = np.random.default_rng(0)
    variables = rng.normal(size=(4, len(STATE.variable)))
    variables[:, STATE.variable.index("incumbent_value")] = np.nan
    variables[:, STATE.variable.index("average_incumbent_value")] = np.nan
    edges = SimpleNamespace(
        indices=np.array([[0, 0, 1], [3, 1, 2]], dtype=np.uint64), values=np.array([0.6, 0.8, -1.0])
    )
    return SimpleNamespace(
        variable_features=variables,
        row_features=rng.normal(size=(2, len(STATE.constraint))),
        edge_features=edges,
    )


def test_an_observation_of_ecole_becomes_a_state() -> None:
    observation = ecole_observation()
    state, edges = graph_of(observation)
    assert all(tensor.dtype in (torch.float32, torch.int64) for tensor in state.tensors())
    assert state.edge_index.tolist() == [[0, 0, 1], [3, 1, 2]]
    columns = [STATE.variable.index(n) for n in ("incumbent_value", "average_incumbent_value")]
    assert not state.variable_features[:, columns].any()
    others = [i for i in range(len(STATE.variable)) if i not in columns]
    np.testing.assert_allclose(
        state.variable_features[:, others], observation.variable_features[:, others], rtol=1e-6
    )
    again, _ = graph_of(ecole_observation(), known_edges=edges)
    assert again.edge_index is state.edge_index and again.edge_values is state.edge_values
    changed = ecole_observation()
    changed.edge_features.values[0] = 0.5
    other, _ = graph_of(changed, known_edges=edges)
    assert other.edge_values is not state.edge_values


@pytest.mark.skipif(has_ecole, reason="Ecole is installed")
def test_without_ecole_the_remedy_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"learn2branch\[ecole\]"):
        run_episode("any.lp")
    with pytest.raises(InputError, match=r"learn2branch\[ecole\]"):
        collect("setcover", preset="tiny", backend="ecole", out=tmp_path / "samples")
    assert not list(tmp_path.iterdir())


@needs_ecole
def test_an_episode_on_ecole_gives_samples_in_our_format(make: Callable, tmp_path: Path) -> None:
    path = tmp_path / "instance.lp"
    make("cauctions", 1).writeProblem(str(path), verbose=False)
    episodes = [
        run_episode(path, seed=3, expert_probability=0.5, max_samples=4, time_limit=60)
        for _ in range(2)
    ]
    for episode in episodes:
        assert episode.num_samples == len(episode.samples) == 4
        assert episode.status == "userinterrupt" and episode.scip_version.startswith("8.")
        for sample in episode.samples:
            assert sample.state.variable_features.shape[1] == len(STATE.variable)
            assert sample.state.constraint_features.shape[1] == len(STATE.constraint)
            assert torch.isfinite(sample.state.variable_features).all()
            values = sample.state.variable_features[:, STATE.variable.index("fractionality")]
            assert sample.candidates.tolist() == torch.where(values.abs() > 1e-6)[0].tolist()
            assert sample.scores[sample.choice] == sample.scores.max()
            assert len(sample.candidates) == len(sample.scores) == len(sample.pseudocosts)
        edges = {id(sample.state.edge_index) for sample in episode.samples[1:]}
        assert len(edges) == 1  # kept from node to node
    first, second = (episode.samples[-1] for episode in episodes)
    assert torch.equal(first.scores, second.scores)
    assert torch.equal(first.state.variable_features, second.state.variable_features)


@needs_ecole
def test_both_backends_end_alike(make: Callable, tmp_path: Path) -> None:
    path, infeasible = tmp_path / "instance.lp", tmp_path / "infeasible.lp"
    make("placement", 1).writeProblem(str(path), verbose=False)
    infeasible.write_text(
        "Minimize\n x\nSubject To\n c: x + y >= 3\nBounds\n x <= 1\n y <= 1\nGeneral\n x y\nEnd\n"
    )
    for instance, options, status in (
        (path, {}, "optimal"),
        (path, {"node_limit": 5}, "totalnodelimit"),
        (path, {"time_limit": 0.01}, "timelimit"),
        (path, {"max_samples": 1, "expert_probability": 1.0}, "userinterrupt"),
        (infeasible, {}, "infeasible"),
    ):
        ours, theirs = (run(instance, seed=1, **options) for run in (on_scip, run_episode))
        assert ours.status == theirs.status == status
        if status in ("optimal", "infeasible"):
            assert theirs.objective == pytest.approx(ours.objective)
            assert theirs.dual_bound == pytest.approx(ours.dual_bound)
    with pytest.raises(InputError, match="does not exist"):
        run_episode(tmp_path / "missing.lp")


@needs_ecole
def test_a_behaviour_decides_where_the_expert_is_only_recorded(
    make: Callable, tmp_path: Path
) -> None:
    path = tmp_path / "instance.lp"
    make("cauctions", 1).writeProblem(str(path), verbose=False)
    seen = []

    def behaviour(state: BipartiteGraph, candidates: torch.Tensor) -> torch.Tensor:
        seen.append(candidates)
        return -candidates

    episode = run_episode(
        path, expert_probability=0.5, follow_expert=False, behaviour=behaviour, max_samples=3
    )
    assert episode.decisions == len(seen) > 0 and episode.num_samples == 3


@needs_ecole
def test_collecting_on_ecole_fills_a_store(tmp_path: Path) -> None:
    command = ["collect", "--problem", "cauctions", "--preset", "tiny", "--samples", "5"]
    folders = ["--out", str(tmp_path / "samples"), "--data", str(tmp_path / "data")]
    result = CliRunner().invoke(l2b, [*command, *folders, "--backend", "ecole"])
    assert result.exit_code == 0, result.output
    shards = [read_shard(path) for path in sorted((tmp_path / "samples").rglob("episode-*.npz"))]
    assert sum(len(shard.samples) for shard in shards) == 5 + 1 + 1
    for shard in shards:
        assert shard.provenance["backend"] == "ecole" and shard.provenance["scip"].startswith("8.")


class Search:
    """A search on Ecole's SCIP without presolving, cuts, heuristics, propagation and permutation.

    Its LPs are then those of the same search on our SCIP, although two major versions lie between.
    """

    PLAIN: ClassVar[dict[str, int | bool]] = {
        "presolving/maxrounds": 0,
        "presolving/maxrestarts": 0,
        "separating/maxrounds": 0,
        "separating/maxroundsroot": 0,
        "propagating/maxrounds": 0,
        "propagating/maxroundsroot": 0,
        "conflict/enable": False,
        "nodeselection/dfs/stdpriority": 1_000_000,
    }

    def __init__(self, path: Path) -> None:
        import ecole

        self.model = ecole.scip.Model.from_file(str(path))
        frequencies = [n for n in self.model.get_params() if re.match("heuristics/.*/freq$", n)]
        self.model.set_params(dict.fromkeys(frequencies, -1) | self.PLAIN)
        self.dynamics = ecole.dynamics.BranchingDynamics()
        self.functions = ecole.observation
        self.done, self.candidates = self.dynamics.reset_dynamics(self.model)

    def state(self) -> BipartiteGraph:
        return graph_of(self.functions.NodeBipartite().extract(self.model, False))[0]

    def scores(self) -> torch.Tensor:
        function = self.functions.StrongBranchingScores()
        return torch.from_numpy(np.array(function.extract(self.model, False)))

    def branch(self, variable: int) -> None:
        self.done, self.candidates = self.dynamics.step_dynamics(self.model, variable)

    @classmethod
    def ours(cls, path: Path) -> Model:
        model = Model()
        model.hideOutput()
        model.readProblem(str(path))
        model.setHeuristics(SCIP_PARAMSETTING.OFF)
        model.setParams(cls.PLAIN)
        return model


@needs_ecole
@pytest.mark.parametrize("maximise", [True, False])
def test_our_states_are_those_of_ecole_all_along_a_search(
    maximise: bool, mixed: Callable, visit_nodes: Callable, tmp_path: Path
) -> None:
    path = tmp_path / "mixed.mps"
    mixed(maximise=maximise).writeProblem(str(path), verbose=False)
    theirs, observer, incumbents = Search(path), Observer(), set()

    def visit(model: Model) -> None:
        candidates = observer.candidates(model)
        assert candidates.tolist() == theirs.candidates.tolist()
        assert_equal_states(observer.observe(model), theirs.state())
        incumbents.add(model.getNSols() > 0)
        theirs.branch(int(candidates[0]))  # as the visitor does

    assert visit_nodes(Search.ours(path), visit).nodes > 30
    assert theirs.done and incumbents == {False, True}


@needs_ecole
@pytest.mark.parametrize("family", FAMILIES)
def test_our_states_and_scores_are_those_of_ecole_at_the_root_of_every_family(
    family: str, make: Callable, visit_nodes: Callable, tmp_path: Path
) -> None:
    path = tmp_path / "instance.lp"
    make(family, 1).writeProblem(str(path), verbose=False)
    theirs = Search(path)

    def visit(model: Model) -> None:
        assert_equal_states(Observer().observe(model), theirs.state())
        candidates = Observer().candidates(model)
        ours, others = strong_branching_scores(model), theirs.scores()
        torch.testing.assert_close(ours, others[candidates], rtol=1e-8, atol=1e-9)
        others[candidates] = torch.nan
        assert others.isnan().all()  # the candidates are the same

    assert visit_nodes(Search.ours(path), visit, limit=1).nodes == 1


def assert_equal_states(ours: BipartiteGraph, theirs: BipartiteGraph) -> None:
    for mine, other in zip(ours.tensors(), theirs.tensors(), strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-6)
