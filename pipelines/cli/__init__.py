"""The `l2b` command line: parses, calls one pipeline function, prints its result.

Commands are imported when they are used, so `l2b --help` does not wait for torch.
"""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import click

from pipelines.progress import is_verbose, say

# Command or group -> the module that defines it under the same name (dashes become underscores).
COMMANDS = {
    "generate": "pipelines.cli.generate",
    "check": "pipelines.cli.check",
    "collect": "pipelines.cli.collect",
    "samples": "pipelines.cli.samples",
    "train": "pipelines.cli.train",
    "evaluate": "pipelines.cli.evaluate",
    "solve": "pipelines.cli.solve",
    "report": "pipelines.cli.report",
    "models": "pipelines.cli.models",
    "instance": "pipelines.cli.instance",
    "element": "pipelines.cli.element",
}


class LazyGroup(click.Group):
    """A group whose commands are imported on first use, listed in the order a user needs them."""

    def __init__(self, *args: Any, commands_in: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.commands_in = commands_in

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of a user's work, not of the alphabet."""
        return list(self.commands_in)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module that defines the command."""
        if cmd_name not in self.commands_in:
            return None
        module = importlib.import_module(self.commands_in[cmd_name])
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command


@click.group(
    cls=LazyGroup,
    commands_in=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="learn2branch")
def l2b() -> None:
    """Learn which variable to branch on, and put that knowledge back into SCIP.

    \b
    From nothing to a report:
      l2b generate --problem setcover --preset tiny
      l2b collect  --problem setcover --preset tiny
      l2b train    --problem setcover --budget 2m
      l2b evaluate --problem setcover --preset tiny --policy dualattn --policy relpscost --seeds 2
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `l2b`; a user's mistake ends in one sentence and exit code 2, failed work in code 1."""
    sys.exit(_exit_code(lambda: l2b(arguments, prog_name="l2b", standalone_mode=False)))


def _exit_code(run: Callable[[], Any]) -> int:
    from instances import ParameterError
    from learn2branch.errors import InputError, WorkError

    try:
        result = run()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return 2
    except (click.Abort, KeyboardInterrupt):
        say("stopped: what was finished is kept; the same command goes on from there")
        return 130
    except BrokenPipeError:
        return 1
    except (InputError, ParameterError, FileNotFoundError, PermissionError) as error:
        return _report(str(error), 2)
    except (NotADirectoryError, FileExistsError) as error:
        return _report(f"{error.filename} is a file, or lies in one: a folder is needed there", 2)
    except (WorkError, OSError, MemoryError) as error:
        return _report(str(error) or type(error).__name__, 1)
    except Exception as error:
        message = f"internal error, please report it: {type(error).__name__}: {error}"
        return _report(f"{message} (-v shows where)", 1)


def _report(sentence: str, code: int) -> int:
    if is_verbose():
        traceback.print_exc()
    click.echo(f"Error: {sentence}", err=True)
    return code
