"""Tells the user's mistakes from our failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


@contextmanager
def wrong_use(option: str) -> Iterator[None]:
    """Report a value of `option` that names nothing we know, or nothing this version can do, as wrong use.

    What is known and merely absent (a driver without its hardware) stays a failure.
    """
    from tidegate.errors import InvalidArgumentError, NotFoundError, UnsupportedError

    try:
        yield
    except (NotFoundError, InvalidArgumentError, UnsupportedError) as error:
        raise click.UsageError(f"{option}: {error}") from error


def json_option(help: str) -> Callable[[F], F]:
    """Return the option `--json FILE`, for a file that can be written."""
    path = click.Path(dir_okay=False, writable=True)
    return click.option("--json", "json_file", type=path, callback=_in_a_folder, metavar="FILE", help=help)


def _in_a_folder(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a file whose folder is not there before the work that is to fill it, not after."""
    if value is not None and not Path(value).absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder for {value!r}", param_hint=parameter.opts[0])
    return value
