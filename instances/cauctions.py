"""Combinatorial auctions after Leyton-Brown et al., with arbitrary relationships between items.

Bidders want bundles of items that go well together, and offer substitutes for them; the auctioneer
accepts the bids that bring most, no item sold twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csc_array, csr_array

from instances.drawing import Draw
from instances.family import Family, sizes
from instances.milp import Floats, Milp, ParameterError, binary_program, stable_decimals

Bundle = tuple[int, ...]  # items in increasing order


@dataclass(frozen=True)
class Auction:
    """Parameters of an auction; Ecole's default differs in `add_item_probability` (0.65)."""

    items: int = 100
    bids: int = 500
    min_value: float = 1.0
    max_value: float = 100.0
    value_deviation: float = 0.5  # how far a bidder's values stray, as a share of max_value
    add_item_probability: float = 0.7
    max_substitutes: int = 5  # bids of a bidder beyond the first
    additivity: float = 0.2  # a bundle of s items is worth s^(1 + additivity) more
    budget_factor: float = 1.5  # a substitute may cost this times the first bundle
    resale_factor: float = 0.5  # and is worth at least this share of its public value

    def __post_init__(self) -> None:
        if self.items < 2 or self.bids < 1:
            raise ParameterError(f"items {self.items}, bids {self.bids}: expected at least 2 and 1")
        if not 0 <= self.add_item_probability < 1:
            raise ParameterError(
                f"add_item_probability {self.add_item_probability}: expected 0 to below 1"
            )
        if not 0 <= self.min_value <= self.max_value:
            raise ParameterError(
                f"min_value {self.min_value}, max_value {self.max_value}: "
                "expected 0 <= min_value <= max_value"
            )


@dataclass(frozen=True)
class _Bidder:
    interests: Floats  # (items,)
    values: Floats  # (items,), private
    compatibilities: NDArray[np.float32]  # (items, items), row i: how well the others go with i
    additivity: float

    def choose(self, weights: Floats, draw: Draw) -> int:
        cumulative = np.cumsum(weights)
        u = draw.unit() * cumulative[-1]
        return min(int(np.searchsorted(cumulative, u, side="right")), len(weights) - 1)

    def grow(self, first: int, draw: Draw, size: int = 0, probability: float = 0.0) -> Bundle:
        """Add items to a first one, up to a size, or as long as luck lasts."""
        bundle = [first]
        affinity = self.interests * self.compatibilities[first]
        affinity[first] = 0.0
        while len(bundle) < (size or len(affinity)):
            if not size and draw.unit() >= probability:
                break
            item = self.choose(affinity, draw)
            bundle.append(item)
            affinity += self.interests * self.compatibilities[item]
            affinity[bundle] = 0.0
        return tuple(sorted(bundle))

    def price(self, bundle: Bundle) -> float:
        return float(self.values[list(bundle)].sum()) + len(bundle) ** (1.0 + self.additivity)


def generate(p: Auction, draw: Draw) -> Milp:
    """Make one auction."""
    values = p.min_value + (p.max_value - p.min_value) * draw.uniform(p.items)
    compatibilities = _compatibilities(p.items, draw)
    bundles: list[list[int]] = []
    prices: list[float] = []
    dummies = 0
    while len(bundles) < p.bids:
        interests = draw.uniform(p.items)
        private = values + p.max_value * p.value_deviation * (2 * interests - 1)
        bidder = _Bidder(interests, private, compatibilities, p.additivity)
        first = bidder.grow(bidder.choose(interests, draw), draw, 0, p.add_item_probability)
        if bidder.price(first) < 0:
            continue
        offers = _offers(p, bidder, first, values, p.bids - len(bundles), draw)
        # Who offers several substitutes wants one of them only: a dummy item says so.
        dummy = [p.items + dummies] if len(offers) > 2 else []
        dummies += len(dummy)
        for bundle, price in sorted(offers.items()):
            bundles.append([*bundle, *dummy])
            prices.append(price)
    matrix = _item_rows(bundles, p.items + dummies)
    wanted = np.flatnonzero(np.diff(matrix.indptr))
    return binary_program(
        f"CombinatorialAuction-{p.items}-{p.bids}",
        maximise=True,
        objective=stable_decimals(np.array(prices)),
        matrix=matrix[wanted],
        left=-np.inf,
        right=1.0,
        variable_names=[f"x_{j}" for j in range(p.bids)],
        row_names=[f"item_{i}" for i in wanted],
    )


def _compatibilities(items: int, draw: Draw) -> NDArray[np.float32]:
    # Row i, as row i is what a bundle with i reads; symmetric, divided by row i's sum. Filled row
    # by row and in single precision: with 8,000 items it takes 256 MB.
    c = np.zeros((items, items), dtype=np.float32)
    for i in range(items - 1):
        c[i, i + 1 :] = c[i + 1 :, i] = draw.uniform(items - 1 - i)
    c /= c.sum(axis=1, keepdims=True)
    return c


def _offers(
    p: Auction, bidder: _Bidder, first: Bundle, values: Floats, room: int, draw: Draw
) -> dict[Bundle, float]:
    """Return a bidder's bids: the first bundle, and the dearest acceptable substitutes."""
    price = bidder.price(first)
    resale = p.resale_factor * float(values[list(first)].sum())
    substitutes = [bidder.grow(item, draw, size=len(first)) for item in first]
    offers = {first: price}
    for bundle in sorted(substitutes, key=bidder.price, reverse=True):
        if len(offers) > p.max_substitutes or len(offers) >= room:
            break
        affordable = 0 <= bidder.price(bundle) <= p.budget_factor * price
        if affordable and bundle not in offers and float(values[list(bundle)].sum()) >= resale:
            offers[bundle] = bidder.price(bundle)
    return offers


def _item_rows(bundles: list[list[int]], items: int) -> csr_array:
    starts = np.concatenate([[0], np.cumsum([len(bundle) for bundle in bundles])])
    flat = np.concatenate(bundles)
    shape = (items, len(bundles))
    matrix = csc_array((np.ones(len(flat)), flat, starts), shape=shape).tocsr()
    matrix.sort_indices()
    return matrix


FAMILY = Family(
    name="cauctions",
    title="combinatorial auction (Leyton-Brown, arbitrary relationships)",
    parameters=Auction,
    generate=generate,
    presets={
        "tiny": sizes(Auction(40, 150), transfer=Auction(50, 200)),
        "small": sizes(Auction(60, 250), transfer=Auction(80, 350)),
        "paper": sizes(Auction(100, 500), transfer=Auction(200, 1000)),
        "element": sizes(Auction(8000, 3000, add_item_probability=0.65)),
    },
)
