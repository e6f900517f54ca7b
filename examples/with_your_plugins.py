"""Use a learned policy together with a separator and an event handler of your own.

    python examples/with_your_plugins.py runs/mine/policy.pt

The problem is a small multi-dimensional knapsack. The separator adds cover cuts, the event handler
prints every better solution as it is found; the policy sees the cuts as rows of the LP.
"""

import random
import sys

from pyscipopt import SCIP_EVENTTYPE, SCIP_RESULT, Eventhdlr, Model, Sepa, quicksum

from solver_plugins import include_branchrule


class Incumbents(Eventhdlr):
    """Print and count better solutions."""

    def __init__(self):
        self.found = 0

    def eventinit(self):
        """Ask SCIP to be told."""
        self.model.catchEvent(SCIP_EVENTTYPE.BESTSOLFOUND, self)

    def eventexit(self):
        """Ask SCIP to be told no longer."""
        self.model.dropEvent(SCIP_EVENTTYPE.BESTSOLFOUND, self)

    def eventexec(self, event):
        """Print the solution's value."""
        self.found += 1
        # Of the solution itself: SCIP's primal bound follows only after this event.
        value = self.model.getSolObjVal(self.model.getBestSol())
        print(f"  solution {self.found}: {value:g}")


class CoverCuts(Sepa):
    """Cut off LP solutions by covers: items too heavy to be packed together."""

    def __init__(self, rows, variables):
        self.rows, self.variables, self.cuts = rows, variables, 0

    def sepaexeclp(self):
        """Look for a violated cover inequality in each knapsack row."""
        variables = [self.model.getTransformedVar(v) for v in self.variables]
        values = [v.getLPSol() for v in variables]
        result = SCIP_RESULT.DIDNOTFIND
        for weights, capacity in self.rows:
            cover, total = [], 0
            for j in sorted(range(len(values)), key=lambda j: -values[j]):
                cover.append(j)
                total += weights[j]
                if total > capacity:
                    break
            if sum(values[j] for j in cover) > len(cover) - 1 + 1e-4:
                cut = self.model.createEmptyRowSepa(
                    self, f"cover_{self.cuts}", lhs=None, rhs=len(cover) - 1, local=False
                )
                self.model.cacheRowExtensions(cut)
                for j in cover:
                    self.model.addVarToRow(cut, variables[j], 1.0)
                self.model.flushRowExtensions(cut)
                self.model.addCut(cut)
                self.model.releaseRow(cut)
                self.cuts += 1
                result = SCIP_RESULT.SEPARATED
        return {"result": result}


def main(policy: str) -> None:
    """Build the problem, add the three plugins, solve."""
    rng = random.Random(1)
    model = Model()
    model.hideOutput()
    x = [model.addVar(f"x{j}", vtype="B") for j in range(40)]
    rows = []
    for _ in range(6):
        weights = [rng.randint(10, 60) for _ in x]
        rows.append((weights, sum(weights) // 3))
        model.addCons(quicksum(w * v for w, v in zip(weights, x, strict=True)) <= rows[-1][1])
    model.setObjective(quicksum(rng.randint(20, 50) * v for v in x), "maximize")

    incumbents, covers = Incumbents(), CoverCuts(rows, x)
    model.includeEventhdlr(incumbents, "incumbents", "prints better solutions")
    model.includeSepa(covers, "covers", "cover cuts", priority=1000, freq=1)
    rule = include_branchrule(model, policy)

    model.optimize()
    print(f"{model.getStatus()}: objective {model.getObjVal():g}, {model.getNNodes()} nodes")
    print(f"{incumbents.found} solutions, {covers.cuts} cover cuts")
    print(rule.statistics)


if __name__ == "__main__":
    main(*sys.argv[1:])
