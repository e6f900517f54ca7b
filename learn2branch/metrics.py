"""What predictions and solves are judged by; everything a table or a training log calls a number.

Functions take plain arrays or tensors and know nothing of files, solvers or policies. Aggregates
over runs (means, wins, intervals, tests) are NumPy; accuracies, needed in training, are torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

Floats = NDArray[np.float64]


# --- imitation -----------------------------------------------------------------------------------


def accuracy_at(k: int, predicted: Tensor, expert: Tensor, ptr: Tensor) -> Tensor:
    """Return acc@k of each state: the chance that the k best-ranked candidates hold a best one.

    A candidate is a best one if the expert gives no other a higher score, so that ties of the
    expert all count as right. Ties of the prediction are broken at random, and what is returned
    is the probability of a hit: a constant prediction scores as the random policy does, whatever
    the order of the candidates. NaN is the worst score in either argument.

    predicted, expert: (c,), the candidates of all states in a row; ptr: (states + 1,), where each
    state's candidates begin, so that state s has the candidates ptr[s]:ptr[s + 1]; at least one
    each. Returns (states,) in float64, on the device of the scores.
    """
    ptr = ptr.to(predicted.device)
    sizes = ptr[1:] - ptr[:-1]
    if bool((sizes < 1).any()):
        raise ValueError("every state needs at least one candidate")
    states = len(sizes)
    state = torch.repeat_interleave(torch.arange(states, device=predicted.device), sizes)
    predicted = predicted.double().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)
    expert = expert.double().nan_to_num(nan=-math.inf, posinf=math.inf, neginf=-math.inf)

    best = torch.full((states,), -math.inf, dtype=torch.float64, device=expert.device)
    best = best.scatter_reduce(0, state, expert, "amax")
    is_best = (expert == best[state]) & (best[state] > -math.inf)

    # The k-th score of each state: everything above it is in, and what equals it shares the rest.
    order = torch.argsort(predicted, descending=True, stable=True)
    order = order[torch.argsort(state[order], stable=True)]
    kth = predicted[order[ptr[:-1] + sizes.clamp(max=k) - 1]][state]

    def count(mask: Tensor) -> Tensor:
        zeros = torch.zeros(states, dtype=torch.float64, device=mask.device)
        return zeros.index_add(0, state, mask.double())

    above, tied = predicted > kth, predicted == kth
    places = sizes.clamp(max=k) - count(above)
    n, misses = count(tied), count(tied & ~is_best)
    # P(no best one among `places` draws of `n` without replacement) = C(misses, p) / C(n, p).
    log_none = (
        torch.lgamma(misses + 1)
        - torch.lgamma((misses - places).clamp(min=0) + 1)
        - torch.lgamma(n + 1)
        + torch.lgamma(n - places + 1)
    )
    none = torch.where(places <= misses, log_none.exp(), 0.0)
    hit = 1 - none.clamp(0, 1)
    return torch.where(count(above & is_best) > 0, torch.ones_like(hit), hit)


# --- binary predictions --------------------------------------------------------------------------


@dataclass(frozen=True)
class Confusion:
    """Counts of a binary prediction against the truth; add them up over batches and instances."""

    true_positive: int = 0
    false_positive: int = 0
    false_negative: int = 0
    true_negative: int = 0

    @staticmethod
    def of(predicted: Tensor | ArrayLike, actual: Tensor | ArrayLike) -> Confusion:
        """Count two boolean (or 0/1) arrays of the same shape."""
        p = torch.as_tensor(predicted).bool()
        a = torch.as_tensor(actual).bool()
        if p.shape != a.shape:
            raise ValueError(f"shapes differ: {tuple(p.shape)} and {tuple(a.shape)}")
        return Confusion(
            int((p & a).sum()), int((p & ~a).sum()), int((~p & a).sum()), int((~p & ~a).sum())
        )

    def __add__(self, other: Confusion) -> Confusion:
        return Confusion(
            self.true_positive + other.true_positive,
            self.false_positive + other.false_positive,
            self.false_negative + other.false_negative,
            self.true_negative + other.true_negative,
        )

    @property
    def total(self) -> int:
        """How many predictions were counted."""
        return self.true_positive + self.false_positive + self.false_negative + self.true_negative

    @property
    def error_rate(self) -> float:
        """The share of wrong predictions (the paper's E-Rate, as a fraction)."""
        return _ratio(self.false_positive + self.false_negative, self.total)

    @property
    def mcc(self) -> float:
        """Matthews correlation coefficient; 0 where a class is never predicted or never occurs."""
        tp, fp, fn, tn = map(
            float,
            (self.true_positive, self.false_positive, self.false_negative, self.true_negative),
        )
        norm = math.sqrt((tp + fp) * (tp + fn)) * math.sqrt((tn + fp) * (tn + fn))
        return (tp * tn - fp * fn) / norm if norm else 0.0

    @property
    def macro_f1(self) -> float:
        """The mean of the F1 of the ones and the F1 of the zeros; 0 for a class never met."""
        wrong = self.false_positive + self.false_negative
        ones = _ratio(2 * self.true_positive, 2 * self.true_positive + wrong)
        zeros = _ratio(2 * self.true_negative, 2 * self.true_negative + wrong)
        return (ones + zeros) / 2


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0


# --- primal side ---------------------------------------------------------------------------------


def primal_gap(objective: float | None, best_known: float) -> float:
    """Return PG of the paper (Berthold 2013): 0 at the best known value, at most 1.

    None or a non-finite objective stands for "no solution", whose gap is 1.
    """
    if objective is None or not math.isfinite(objective):
        return 1.0
    if objective == best_known:
        return 0.0
    if objective * best_known < 0:
        return 1.0
    return abs(best_known - objective) / max(abs(best_known), abs(objective))


def primal_integral(
    times: Sequence[float], objectives: Sequence[float], best_known: float, horizon: float
) -> float:
    """Return PI of the paper: the area under the primal gap from 0 to `horizon`, in seconds.

    times: when each incumbent was found, not falling; objectives: their values. Before the first
    the gap is 1, and incumbents found after the horizon do not count.
    """
    if len(times) != len(objectives):
        raise ValueError(f"{len(times)} times but {len(objectives)} objectives")
    area, since, gap = 0.0, 0.0, 1.0
    for found, objective in zip(times, objectives, strict=True):
        if found > horizon:
            break
        if found < since:
            raise ValueError(f"incumbent times must not fall: {found} after {since}")
        area += gap * (found - since)
        since, gap = found, primal_gap(objective, best_known)
    return area + gap * (horizon - since)


# --- aggregates over runs ------------------------------------------------------------------------


def shifted_geometric_mean(values: ArrayLike, shift: float = 1.0) -> float:
    """Return exp(mean(log(v + shift))) - shift; shift 0 is the geometric mean. NaN if empty."""
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        return math.nan
    if array.min() + shift <= 0:
        raise ValueError(f"values must be above {-shift}, one is {array.min()}")
    return float(np.exp(np.mean(np.log(array + shift))) - shift)


def mean_deviation_percent(groups: Sequence[ArrayLike]) -> float:
    """Return the mean over instances of (sample standard deviation over seeds) / mean, in percent.

    groups: per instance the values of its seeds. Instances with one value say nothing about
    deviation and are left out; NaN if none is left.
    """
    deviations = []
    for group in groups:
        values = np.asarray(group, dtype=np.float64)
        if values.size > 1:
            mean = values.mean()
            deviations.append(float(values.std(ddof=1) / mean) if mean else 0.0)
    return 100 * float(np.mean(deviations)) if deviations else math.nan


def wins(costs: ArrayLike) -> NDArray[np.int64]:
    """Return how often each policy is the best, ties counting for each of the tied.

    costs: (runs, policies), lower is better; infinity or NaN where a policy did not finish, which
    never wins.
    """
    array = np.asarray(costs, dtype=np.float64)
    array = np.where(np.isnan(array), np.inf, array)
    if array.size == 0:
        return np.zeros(array.shape[1] if array.ndim == 2 else 0, dtype=np.int64)
    best = array.min(axis=1, keepdims=True)
    return np.asarray(((array == best) & np.isfinite(array)).sum(axis=0), dtype=np.int64)


def performance_profile(costs: ArrayLike) -> tuple[Floats, Floats]:
    """Return (factors, shares): the share of runs each policy finishes within a factor of the best.

    costs: (runs, policies), positive; infinity where a policy did not finish. factors: (f,), rising
    from 1; shares: (f, policies). Runs nobody finished count in the denominator (Dolan and Moré).
    """
    array = np.asarray(costs, dtype=np.float64)
    best = array.min(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        ratios = np.where(np.isfinite(array), array / best, np.inf)
    factors = np.unique(np.concatenate([[1.0], ratios[np.isfinite(ratios)]]))
    shares = (ratios[None, :, :] <= factors[:, None, None]).mean(axis=1)
    return factors, shares


# --- differences ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """A policy against a baseline on the same instances, as a ratio: below 1 is less than it."""

    ratio: float  # quotient of the shifted geometric means, instances alike
    low: float  # 95 % interval of the ratio, bootstrap over instances
    high: float
    p_value: float  # paired Wilcoxon signed-rank test over instances, two-sided
    instances: int


def compare(groups: Sequence[tuple[ArrayLike, ArrayLike]], shift: float = 1.0) -> Difference:
    """Compare a policy with a baseline on paired runs, an instance being the unit of chance.

    groups: per instance the values of the policy and of the baseline, seed by seed. Seeds of an
    instance are not independent, so they are averaged (in the log) before anything is tested.
    """
    logs = []
    for pair in groups:
        policy, baseline = (np.asarray(values, dtype=np.float64) + shift for values in pair)
        if policy.shape != baseline.shape or policy.size == 0:
            raise ValueError(f"runs are not paired: {policy.shape} against {baseline.shape}")
        logs.append([np.log(policy).mean(), np.log(baseline).mean()])
    if not logs:
        return Difference(math.nan, math.nan, math.nan, math.nan, 0)
    table = np.array(logs)  # (instances, 2)

    def ratio(mean_logs: Floats) -> Floats:
        means = np.exp(mean_logs) - shift
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(means[..., 0] / means[..., 1])

    low, high = bootstrap_interval(table, ratio)
    # Rounded: equal ratios of other numbers differ in their last digits, and yet they are ties.
    p_value = wilcoxon((table[:, 0] - table[:, 1]).round(12))
    return Difference(float(ratio(table.mean(axis=0))), low, high, p_value, len(table))


def bootstrap_interval(
    values: ArrayLike,
    of_means: Callable[[Floats], Floats] = lambda means: means,
    level: float = 0.95,
    resamples: int = 10_000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile bootstrap interval of a mean, or of what `of_means` makes of means.

    values: (n,) or (n, k), n draws; a function of the means gets them as (resamples, k). The same
    seed gives the same interval.
    """
    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return math.nan, math.nan
    rng = np.random.default_rng(seed)
    means = array[rng.integers(0, len(array), (resamples, len(array)))].mean(axis=1)
    low, high = np.quantile(of_means(means), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def wilcoxon(differences: ArrayLike) -> float:
    """Return the two-sided p-value of the signed-rank test that differences centre on 0.

    Exact also with ties (which share the mean of their ranks); zeros are left out. SciPy's exact
    test takes seconds where there are ties, and its approximation is poor for few instances.
    """
    array = np.asarray(differences, dtype=np.float64)
    array = array[array != 0]
    if array.size == 0:
        return 1.0
    _, group, counts = np.unique(np.abs(array), return_inverse=True, return_counts=True)
    # Twice the mean rank of a group of ties is a whole number, so sums of ranks can be counted.
    ranks = (2 * np.cumsum(counts) - counts + 1)[group]
    chances = np.ones(1)  # of each sum of positive ranks, all signs being equally likely
    for rank in ranks:
        longer = np.zeros(len(chances) + rank)
        longer[: len(chances)] += chances / 2
        longer[rank:] += chances / 2
        chances = longer
    observed = int(ranks[array > 0].sum())
    tail = min(chances[: observed + 1].sum(), chances[observed:].sum())
    return float(min(1.0, 2 * tail))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979); NaN stays NaN and is not counted."""
    ranked = sorted((p, i) for i, p in enumerate(p_values) if not math.isnan(p))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, (p, i) in enumerate(ranked):
        largest = max(largest, min(1.0, p * (len(ranked) - rank)))
        adjusted[i] = largest
    return adjusted
