"""Problem families: one module a family, parameters and a generator each."""

FAMILIES: dict[str, object] = {}


class ParameterError(ValueError):
    """A family cannot make an instance with these parameters."""
