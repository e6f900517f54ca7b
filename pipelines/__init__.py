"""What a user runs: generate, collect, train, evaluate, and the two secondary tasks."""
