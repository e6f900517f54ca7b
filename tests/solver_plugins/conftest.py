"""Real solves for the tests of this folder: small instances, and a way to stand at their nodes."""

from collections.abc import Callable

import pytest
from pyscipopt import SCIP_PARAMSETTING, SCIP_RESULT, Branchrule, Model

from instances import FAMILIES
from instances.writing import scip_model


class Visitor(Branchrule):
    """Calls a function at every node with a fractional LP, then branches on the first candidate."""

    def __init__(self, visit: Callable[[Model], object], limit: int | None) -> None:
        self.visit, self.limit = visit, limit
        self.nodes = 0
        self.branched_on: list[str] = []
        self.error: BaseException | None = None

    def branchexeclp(self, allowaddcons: bool) -> dict[str, object]:
        try:
            self.visit(self.model)
        except BaseException as error:
            self.error = error
            self.model.interruptSolve()
            return {"result": SCIP_RESULT.DIDNOTRUN}
        self.nodes += 1
        if self.nodes == self.limit:
            self.model.interruptSolve()
        variable = self.model.getLPBranchCands()[0][0]
        self.branched_on.append(variable.name)
        self.model.branchVar(variable)
        return {"result": SCIP_RESULT.BRANCHED}

    def branchexecps(self, allowaddcons: bool) -> dict[str, object]:
        return {"result": SCIP_RESULT.DIDNOTRUN}


def visit(
    model: Model,
    function: Callable[[Model], object],
    limit: int | None = None,
    priority: int = 536_870_911,
) -> Visitor:
    visitor = Visitor(function, limit)
    model.includeBranchrule(visitor, "visitor", "calls a test", priority, -1, 1.0)
    model.optimize()
    if visitor.error is not None:
        raise visitor.error
    return visitor


@pytest.fixture(scope="session")
def visit_nodes() -> Callable[..., Visitor]:
    """Return the function that solves a model and calls back at its nodes, `limit` at most."""
    return visit


@pytest.fixture(scope="session")
def make() -> Callable[..., Model]:
    """Return the function that makes a fresh, silent model of a family's tiny instance k."""

    def make(family: str, k: int = 1, *, helped: bool = False) -> Model:
        model = scip_model(FAMILIES[family].instance("tiny", "train", 0, k))
        model.hideOutput()
        if not helped:  # else most tiny instances are solved at the root
            model.setHeuristics(SCIP_PARAMSETTING.OFF)
            model.setSeparating(SCIP_PARAMSETTING.OFF)
            model.setPresolve(SCIP_PARAMSETTING.OFF)
        return model

    return make


@pytest.fixture(scope="session")
def mixed() -> Callable[..., Model]:
    """Return the function that makes a model with every kind of row, variable and bound."""

    def mixed(*, maximise: bool = True) -> Model:
        model = Model()
        model.hideOutput()
        sign = -1.0 if maximise else 1.0
        kinds = ["B"] * 6 + ["I"] * 6 + ["C"] * 4 + ["M"] * 2
        weights = [7, -3, 5, 9, -4, 6, 8, -5, 3, 11, -7, 4, 2, -6, 1, 5, 3, -2]
        variables = []
        for j, (kind, weight) in enumerate(zip(kinds, weights, strict=True)):
            lower, upper = {"B": (0, 1), "I": (-9, 9), "C": (None, 12.5), "M": (0, None)}[kind]
            variables.append(model.addVar(f"x{j}", kind, lower, upper, sign * weight))
        if maximise:
            model.setMaximize()
        for i in range(14):
            row = sum(((3 * i + 5 * j) % 11 - 4.5) * x for j, x in enumerate(variables))
            if i % 3 == 0:
                model.addCons((row >= -30.5) <= 41.25)
            elif i % 3 == 1:
                model.addCons(row <= 37.75)
            else:
                model.addCons(row >= -33.25)
        model.addCons(sum(variables[:6]) + variables[16] == 5)
        model.addCons(variables[12] + variables[13] + variables[17] >= -20)
        model.addCons(sum(x for x in variables[12:16]) >= -15.5)
        model.setHeuristics(SCIP_PARAMSETTING.OFF)
        model.setSeparating(SCIP_PARAMSETTING.OFF)
        model.setPresolve(SCIP_PARAMSETTING.OFF)
        # Propagation would find finite bounds for the infinite ones.
        model.setParams({"propagating/maxrounds": 0, "propagating/maxroundsroot": 0})
        return model

    return mixed
