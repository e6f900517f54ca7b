"""`build_model`: a backbone and a head for one of the three tasks, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

from learn2branch.backbones.registry import BACKBONES
from learn2branch.errors import InputError
from learn2branch.features import SCHEMAS
from learn2branch.graph import BipartiteGraph
from learn2branch.heads import InstanceHead, VariableHead

TASKS = ("state", "element", "instance")


class GraphModel(nn.Module):
    """A backbone with a head. `config` is all that `build_model` needs to build it again."""

    def __init__(self, config: dict[str, Any], backend: str = "auto") -> None:
        super().__init__()
        self.config = config
        options = dict(config)
        backbone, self.task = BACKBONES[options.pop("backbone")], options.pop("task")
        self.schema = SCHEMAS[options.pop("schema")]
        self.backbone = backbone(self.schema, backend=backend, **options)
        head = InstanceHead if self.task == "instance" else VariableHead
        self.head = head(config["width"])
        self.apply(_start)

    def forward(self, graph: BipartiteGraph, candidates: Tensor | None = None) -> Tensor:
        """Score the variables of a batch, (n,), or its candidates, (k,); or its graphs, (graphs,).

        `candidates` are variables of the batch, graph by graph: all of the first graph, then all
        of the second, and so on.
        """
        V, C = self.backbone(graph, candidates, constraints=self.task == "instance")
        if self.task == "instance":
            return self.head(V, C, graph.variable_ptr, graph.constraint_ptr)
        return self.head(V)

    def fit_normaliser(self, graphs: Iterable[BipartiteGraph]) -> None:
        """Estimate shift and scale of the features; before training, from training data.

        A few hundred graphs are enough; they are all held in memory.
        """
        self.backbone.fit_normaliser(list(graphs))

    def __repr__(self) -> str:
        count = sum(parameter.numel() for parameter in self.parameters())
        settings = ", ".join(f"{key}={value!r}" for key, value in self.config.items())
        return f"{count:,} parameters, build_model({settings})\n{super().__repr__()}"


def _start(module: nn.Module) -> None:
    """Begin with orthogonal weights and no bias, as Gasse et al. do; both backbones gain by it."""
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


def check_sizes(config: Mapping[str, Any]) -> None:
    """Refuse a configuration whose layers, width and so on are not whole numbers from 1 on."""
    for name in BACKBONES[config["backbone"]].SIZES["full"]:
        value = config.get(name)
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")


def build_model(
    backbone: str, task: str = "state", size: str = "full", *, backend: str = "auto", **sizes: Any
) -> GraphModel:
    """Build a model with fresh weights, e.g. `build_model("dualattn", layers=2)`.

    `sizes` override those of `size`: layers, width and, for dualattn, heads, inner, edge_encoding
    ("linear" or "mlp"), self_attention, cross_attention; `schema` names another feature schema.
    `backend="scatter"` sums with torch-scatter.
    """
    if backbone not in BACKBONES:
        raise InputError(f"there is no backbone {backbone!r}: choose from {', '.join(BACKBONES)}")
    if task not in TASKS:
        raise InputError(f"there is no task {task!r}: choose from {', '.join(TASKS)}")
    known = BACKBONES[backbone].SIZES
    if size not in known:
        raise InputError(f"there is no size {size!r}: choose from {', '.join(known)}")
    if sizes.setdefault("schema", task) not in SCHEMAS:
        raise InputError(
            f"there is no schema {sizes['schema']!r}: choose from {', '.join(SCHEMAS)}"
        )
    if backend not in ("auto", "scatter"):
        raise InputError(f"there is no backend {backend!r}: choose 'auto' or 'scatter'")
    if backend == "scatter" and find_spec("torch_scatter") is None:
        raise InputError("backend 'scatter' needs torch-scatter: pip install learn2branch[scatter]")
    config = {"backbone": backbone, "task": task, **known[size], **sizes}
    check_sizes(config)
    try:
        return GraphModel(config, backend)
    except TypeError as error:
        raise InputError(f"{backbone} cannot be built: {error}") from None
