"""Everything that touches a solver: observing, asking the expert, branching, searching."""
