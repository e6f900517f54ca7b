import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from learn2branch import metrics
from learn2branch.metrics import Confusion

scores = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=6
)  # (predicted, expert) per candidate: few values, so ties are common


def accuracy_by_enumeration(k: int, predicted: list[float], expert: list[float]) -> float:
    """Every order in which ties could be broken, each as likely as the others."""
    rankings = [
        order
        for order in itertools.permutations(range(len(predicted)))
        if all(predicted[a] >= predicted[b] for a, b in itertools.pairwise(order))
    ]
    hits = [max(expert[i] for i in order[:k]) == max(expert) for order in rankings]
    return sum(hits) / len(hits)


@settings(max_examples=60, deadline=None)
@given(st.lists(scores, min_size=1, max_size=4), st.integers(1, 7))
def test_accuracy_is_the_chance_of_a_hit_over_all_ways_to_break_ties(
    states: list[list[tuple[int, int]]], k: int
) -> None:
    flat = torch.tensor([pair for state in states for pair in state], dtype=torch.float32)
    ptr = torch.tensor([0, *np.cumsum([len(state) for state in states])])
    got = metrics.accuracy_at(k, flat[:, 0], flat[:, 1], ptr)
    for state, value in zip(states, got.tolist(), strict=True):
        predicted, expert = [list(map(float, column)) for column in zip(*state, strict=True)]
        assert value == pytest.approx(accuracy_by_enumeration(k, predicted, expert), abs=1e-9)


def test_any_of_the_experts_tied_best_candidates_counts_as_right() -> None:
    expert = torch.tensor([1.0, 7.0, 7.0])
    ptr = torch.tensor([0, 3])
    for predicted in ([0.0, 1.0, 0.0], [0.0, 0.0, 1.0]):
        assert metrics.accuracy_at(1, torch.tensor(predicted), expert, ptr).item() == 1.0
    assert metrics.accuracy_at(1, torch.tensor([1.0, 0.0, 0.0]), expert, ptr).item() == 0.0


def test_nan_scores_never_make_a_hit() -> None:
    ptr = torch.tensor([0, 2])
    expert = torch.tensor([math.nan, 1.0])
    assert metrics.accuracy_at(1, torch.tensor([2.0, 1.0]), expert, ptr).item() == 0.0
    assert metrics.accuracy_at(1, torch.tensor([math.nan, 1.0]), expert, ptr).item() == 1.0
    assert metrics.accuracy_at(1, torch.ones(2), torch.full((2,), math.nan), ptr).item() == 0.0


def test_a_state_without_candidates_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one candidate"):
        metrics.accuracy_at(1, torch.ones(1), torch.ones(1), torch.tensor([0, 0, 1]))


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=30))
def test_mcc_is_the_correlation_of_prediction_and_truth(pairs: list[tuple[bool, bool]]) -> None:
    predicted, actual = np.array(pairs, dtype=float).T
    confusion = Confusion.of(predicted, actual)
    if predicted.std() and actual.std():
        assert confusion.mcc == pytest.approx(np.corrcoef(predicted, actual)[0, 1])
    else:
        assert confusion.mcc == 0.0
    assert confusion.error_rate == pytest.approx(np.mean(predicted != actual))
    assert confusion.total == len(pairs)


def test_macro_f1_weighs_both_classes_alike() -> None:
    confusion = Confusion.of([1, 1, 1, 0, 0], [1, 1, 0, 0, 1])
    f1_ones = 2 * (2 / 3) * (2 / 3) / (2 / 3 + 2 / 3)
    f1_zeros = 2 * (1 / 2) * (1 / 2) / (1 / 2 + 1 / 2)
    assert confusion.macro_f1 == pytest.approx((f1_ones + f1_zeros) / 2)
    assert Confusion.of([1, 1], [1, 1]).macro_f1 == 0.5  # a class never met counts as 0


def test_counts_add_up_over_batches() -> None:
    whole = Confusion.of([1, 0, 1, 0], [1, 1, 0, 0])
    assert Confusion.of([1, 0], [1, 1]) + Confusion.of([1, 0], [0, 0]) == whole
    with pytest.raises(ValueError, match="shapes"):
        Confusion.of([1], [1, 0])


@pytest.mark.parametrize(
    ("objective", "best", "gap"),
    [(0, 0, 0), (-1, 2, 1), (0, 5, 1), (90, 100, 0.1), (110, 100, 10 / 110), (-90, -100, 0.1),
     (None, 3, 1), (math.inf, 3, 1)],
)  # fmt: skip
def test_primal_gap_follows_the_papers_cases(objective: float, best: float, gap: float) -> None:
    assert metrics.primal_gap(objective, best) == pytest.approx(gap)


def test_primal_integral_is_the_area_under_the_gap() -> None:
    # gap 1 until t=2, 0.5 until t=5, 0 from then on
    assert metrics.primal_integral([2, 5], [20, 10], 10, horizon=10) == pytest.approx(2 + 1.5)
    assert metrics.primal_integral([2, 5], [20, 10], 10, horizon=4) == pytest.approx(2 + 1)
    assert metrics.primal_integral([], [], 10, horizon=7) == pytest.approx(7)
    with pytest.raises(ValueError, match="must not fall"):
        metrics.primal_integral([3, 2], [2, 1], 1, horizon=7)


def test_shifted_geometric_mean_damps_small_values() -> None:
    assert metrics.shifted_geometric_mean([1, 100], shift=0) == pytest.approx(10)
    assert metrics.shifted_geometric_mean([0, 8]) == pytest.approx(2)
    assert math.isnan(metrics.shifted_geometric_mean([]))
    with pytest.raises(ValueError, match="above"):
        metrics.shifted_geometric_mean([0, 8], shift=0)


def test_deviation_is_within_instances_not_between_them() -> None:
    assert metrics.mean_deviation_percent([[5, 5], [1000, 1000]]) == 0
    assert metrics.mean_deviation_percent([[9, 11], [50, 50]]) == pytest.approx(
        100 * (math.sqrt(2) / 10) / 2
    )
    assert math.isnan(metrics.mean_deviation_percent([[3], [4]]))


def test_who_does_not_finish_never_wins() -> None:
    costs = [[1, 2, math.inf], [3, 3, 9], [math.inf, math.nan, math.inf]]
    assert metrics.wins(costs).tolist() == [2, 1, 0]


def test_the_profile_starts_at_the_wins_and_ends_at_the_solved() -> None:
    costs = [[1, 2], [8, 2], [5, math.inf], [math.inf, math.inf]]
    factors, shares = metrics.performance_profile(costs)
    assert factors.tolist() == [1, 2, 4]
    assert shares.tolist() == [[0.5, 0.25], [0.5, 0.5], [0.75, 0.5]]


def test_a_constant_factor_is_found_and_significant() -> None:
    rng = np.random.default_rng(0)
    groups = []
    for _ in range(30):
        baseline = rng.uniform(10, 1000, 5)
        groups.append((baseline * 0.8 * rng.uniform(0.95, 1.05, 5), baseline))
    difference = metrics.compare(groups, shift=0)
    assert difference.ratio == pytest.approx(0.8, rel=0.02)
    assert difference.low < difference.ratio < difference.high < 1
    assert difference.p_value < 1e-6 and difference.instances == 30


def test_a_ratio_is_the_quotient_of_the_means_that_a_table_shows() -> None:
    policy, baseline = [[0.5, 2.0], [7.0, 30.0]], [[1.0, 3.0], [9.0, 20.0]]
    means = [metrics.shifted_geometric_mean(values) for values in (policy, baseline)]
    difference = metrics.compare(list(zip(policy, baseline, strict=True)))
    assert difference.ratio == pytest.approx(means[0] / means[1])


def test_intervals_cover_and_tests_keep_their_level_when_nothing_differs() -> None:
    rng = np.random.default_rng(1)
    covered = rejected = 0
    for _ in range(200):
        pairs = rng.lognormal(3, 1, (40, 2, 1)) * rng.lognormal(0, 0.3, (40, 2, 3))
        difference = metrics.compare([(a, b) for a, b in pairs])
        covered += difference.low <= 1 <= difference.high
        rejected += difference.p_value < 0.05
    assert covered >= 180 and rejected <= 20


def test_identical_runs_do_not_differ() -> None:
    runs = [([1.0, 2.0], [1.0, 2.0])] * 8
    difference = metrics.compare(runs)
    assert (difference.ratio, difference.p_value) == (1.0, 1.0)
    assert metrics.compare([]).instances == 0
    with pytest.raises(ValueError, match="paired"):
        metrics.compare([([1.0, 2.0], [1.0])])


@settings(deadline=None)
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=9))
def test_the_signed_rank_test_counts_all_signs(differences: list[int]) -> None:
    from scipy.stats import rankdata

    values = np.array([d for d in differences if d], dtype=float)
    if len(values) == 0:
        assert metrics.wilcoxon(differences) == 1.0
        return
    ranks = rankdata(np.abs(values))
    sums = np.array([ranks @ signs for signs in itertools.product((0, 1), repeat=len(values))])
    observed = ranks @ (values > 0)
    tail = min(np.mean(sums <= observed), np.mean(sums >= observed))
    assert metrics.wilcoxon(differences) == pytest.approx(min(1.0, 2 * tail))


def test_the_signed_rank_test_agrees_with_scipy_without_ties() -> None:
    from scipy.stats import wilcoxon

    values = np.random.default_rng(3).normal(0.3, 1, 40)
    assert metrics.wilcoxon(values) == pytest.approx(wilcoxon(values, method="exact").pvalue)


def test_holm_multiplies_the_smallest_by_their_number() -> None:
    assert metrics.holm([0.01, 0.04, math.nan, 0.03])[0] == pytest.approx(0.03)
    assert metrics.holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
