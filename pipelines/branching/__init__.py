"""Learning to branch: collect samples, train a policy, evaluate it in the solver."""
