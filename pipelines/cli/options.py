"""Options that mean the same wherever they appear; each is defined here once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from pipelines.progress import set_verbosity

F = TypeVar("F", bound=Callable[..., Any])

SPLITS = ("train", "valid", "test", "transfer")
PRESETS = ("tiny", "small", "paper")


def _family_names() -> tuple[str, ...]:
    from instances import FAMILIES

    return tuple(FAMILIES)


class Family(click.ParamType):
    """The name of a problem family."""

    name = "family"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Accept a family's name; anything else is answered with all of them."""
        if value in _family_names():
            return str(value)
        return self.fail(f"'{value}' is not one of {', '.join(_family_names())}", param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Show the choices in the help."""
        return "FAMILY"


_MANY_SECONDS = 1e9  # 30 years
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


class Duration(click.ParamType):
    """A time as people write it: 90s, 45m, 1.5h, 1h30m, or plain seconds; never without an end."""

    name = "time"

    def __init__(self, least: float = 0.0, *, zero: bool = False) -> None:
        self.least, self.zero = least, zero

    def convert(self, value: Any, param: Any, ctx: click.Context | None) -> float:
        """Return seconds."""
        if isinstance(value, int | float):
            return float(value)
        parts = re.findall(r"(\d+(?:\.\d+)?)([smh]?)", value)
        if not parts or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"'{value}' is not a time such as 90s, 45m or 1h30m", param, ctx)
        seconds = sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
        if seconds < self.least or not (seconds or self.zero):
            self.fail(f"'{value}' is too short a time", param, ctx)
        if seconds > _MANY_SECONDS:
            self.fail(f"'{value}' is more than anyone will wait", param, ctx)
        return seconds


problem = click.option(
    "--problem", type=Family(), help="A problem family: setcover, cauctions, facilities, indset, …"
)
instances = click.option(
    "--instances",
    metavar="PATH_OR_GLOB",
    multiple=True,
    help="Your own instances: a file, folder or glob (.lp, .mps, .cip, each also .gz).",
)
preset = click.option(
    "--preset",
    type=click.Choice(PRESETS),
    default="paper",
    show_default=True,
    help="Sizes: tiny (seconds), small, paper (as published).",
)
split = click.option(
    "--split",
    type=click.Choice(SPLITS),
    multiple=True,
    help="Which split; repeat for several. All of the preset's if left out.",
)
count = click.option("--count", type=click.IntRange(min=1), help="How many instances a split.")
seed = click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Of all that is random.",
)
model = click.option(
    "--model",
    type=click.Choice(("dualattn", "bgnn")),
    default="dualattn",
    show_default=True,
    help="The backbone to train.",
)
size = click.option(
    "--size",
    type=click.Choice(("full", "small")),
    default="full",
    show_default=True,
    help="Of the backbone; full is the paper's.",
)
budget = click.option(
    "--budget",
    "budget_seconds",
    type=Duration(),
    help="Time to train, e.g. 45m; towards its end the rate falls to zero.",
)
jobs = click.option(
    "--jobs",
    type=click.IntRange(min=1),
    default=os.cpu_count() or 1,
    show_default="all cores",
    help="Processes to use.",
)


protocol = click.option(
    "--protocol",
    type=click.Choice(("gasse", "default")),
    default="gasse",
    show_default=True,
    help="gasse: cuts at the root only, no restarts, as the papers do; default: SCIP as it comes. "
    "Both permute and seed.",
)


def read_settings(
    ctx: click.Context, param: click.Parameter, values: tuple[str, ...]
) -> dict[str, str]:
    """Read repeated NAME=VALUE, the callback of a `--set`."""
    settings = {}
    for value in values:
        name, equals, setting = value.partition("=")
        if not (name and equals):
            raise click.BadParameter(f"'{value}' is not NAME=VALUE")
        settings[name] = setting
    return settings


parameters = click.option(
    "--set",
    "parameters",
    metavar="NAME=VALUE",
    multiple=True,
    callback=read_settings,
    help="Any parameter of SCIP, e.g. limits/gap=0.01; repeat for several.",
)


def out(default: str, what: str = "Folder to write to.") -> Callable[[F], F]:
    """Return `--out`, the folder a command writes to."""
    return click.option(
        "--out",
        type=click.Path(path_type=Path, file_okay=False),
        default=default,
        show_default=True,
        help=what,
    )


def _apply_verbosity(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    if value:
        set_verbosity(-1 if param.name == "quiet" else value)


def verbosity(command: F) -> F:
    """Give a command `-q` (only results and errors) and `-v` (details, tracebacks)."""
    quiet = click.option(
        "-q", "--quiet", is_flag=True, expose_value=False, callback=_apply_verbosity,
        help="Only results and errors.",
    )  # fmt: skip
    verbose = click.option(
        "-v", "--verbose", count=True, expose_value=False, callback=_apply_verbosity,
        help="Details, and tracebacks of errors.",
    )  # fmt: skip
    return quiet(verbose(command))
