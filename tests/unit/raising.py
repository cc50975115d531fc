"""What raises: a function that does so once, and calls that are refused in given words."""

from __future__ import annotations

import re
from typing import Any

import pytest


def once(function: Any, error: BaseException, after: bool = False) -> Any:
    """Return the function as it is, but that its first call raises, either in its place or after it."""
    errors = [error]

    def wrapped(*arguments: Any) -> Any:
        if errors and not after:
            raise errors.pop()
        result = function(*arguments)
        if errors:
            raise errors.pop()
        return result

    return wrapped


def refused(error: type[BaseException], text: str) -> Any:
    """Expect this error, with this text and nothing else."""
    return pytest.raises(error, match=f"^{re.escape(text)}$")
