"""Backbones: each maps a `BipartiteGraph` to embeddings of its variables and constraints."""
