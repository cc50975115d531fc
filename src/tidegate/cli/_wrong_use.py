"""Tells the user's mistakes from our failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click


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


def writable_file(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse a file whose folder is not there before the work that is to fill it, not after."""
    if value is not None and not Path(value).absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder for {value!r}", param_hint=parameter.opts[0])
    return value
