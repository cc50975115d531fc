"""The commands and what becomes of errors.

Each command imports what it needs when it runs, so that `tidegate --help` stays quick. Wrong use and errors of ours
(and of the system: no memory, no file) are told in one line, without a traceback; anything else is a bug, and shows
one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from ._bench import bench
from ._conformance import conformance
from ._demo import demo
from ._devices import devices
from ._later import explore
from ._later import run as run_script

PROGRAM = "tidegate"


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=False)
@click.version_option(package_name=PROGRAM, prog_name=PROGRAM)
def application() -> None:
    """Timelines for asynchronous accelerator programs."""


for _command in (devices, demo, conformance, bench, run_script, explore):
    application.add_command(_command)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    try:
        status = application.main(arguments, prog_name=PROGRAM, standalone_mode=False)
    except click.exceptions.Exit as leaving:
        return leaving.exit_code
    except click.ClickException as error:
        _say(" ".join(error.format_message().split()))
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        _say("interrupted")
        return 1
    except Exception as error:
        from tidegate.errors import TidegateError

        if not isinstance(error, TidegateError | MemoryError | OSError):
            raise
        _say(_one_line(error))
        return 1
    return status if isinstance(status, int) else 0


def _say(text: str) -> None:
    print(f"{PROGRAM}: {text}", file=sys.stderr)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
