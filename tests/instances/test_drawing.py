import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from instances.drawing import Draw

INTEGERS = [363691692, 604470432, 693892634]
UNIFORM = [0.9386388101417267, 0.16452918829039165]
PERMUTATION = [3, 6, 1, 7, 4, 5, 2, 0]


def test_a_stream_is_the_same_with_every_numpy_and_machine() -> None:
    draw = Draw("setcover", "tiny", "test", 0, 1)
    assert draw.integers(0, 10**9, 3).tolist() == INTEGERS
    assert draw.uniform(2).tolist() == UNIFORM
    assert draw.permutation(8).tolist() == PERMUTATION


def test_streams_of_other_names_differ() -> None:
    names = [("a", 1), ("a", 2), ("a", "1"), ("b", 1), ("a1",), ("a", 1, 0)]
    assert len({float(Draw(*name).unit()) for name in names}) == len(names)


@given(st.integers(1, 60), st.data())
def test_distinct_draws_repeat_nothing_within_a_group_and_keep_the_start(n: int, data) -> None:
    counts = np.array(data.draw(st.lists(st.integers(0, n), min_size=1, max_size=8)))
    start = Draw("start").permutation(n)[: counts.sum()]
    values = Draw("test", n).distinct(n, counts, start=start)
    assert values[: len(start)].tolist() == start.tolist()
    for group in np.split(values, np.cumsum(counts)[:-1]):
        assert len(set(group.tolist())) == len(group)
        assert ((group >= 0) & (group < n)).all()


def test_distinct_draws_are_uniform() -> None:
    values = Draw("uniform").distinct(10, np.full(20_000, 3))
    expected = len(values) / 10
    chi_square = float(((np.bincount(values) - expected) ** 2 / expected).sum())
    assert chi_square < 27.9  # the 0.1 % point of 9 degrees of freedom


def test_integers_reach_both_ends() -> None:
    assert set(Draw("ends").integers(3, 5, 200).tolist()) == {3, 4, 5}
