"""The options of `device.load` on Metal, taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tidegate.errors import InvalidArgumentError


@dataclass
class LoadOptions:
    """What `options=` says."""

    workgroup: tuple[int, int, int] | None = None
    macros: dict[str, str] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)


def parse_options(options: Sequence[str]) -> LoadOptions:
    """Take the options apart.

    Raises:
        InvalidArgumentError: an unknown or wrong one; names the known ones.

    """
    found = LoadOptions()
    for option in options:
        name, equals, value = option.partition("=")
        if name == "workgroup":
            found.workgroup = _workgroup(option, value)
        elif name.startswith("-D") and name[2:].isidentifier():
            found.macros[name[2:]] = value if equals else "1"
        elif name.startswith("constant:") and name[9:].isidentifier() and equals:
            found.constants[name[9:]] = value
        else:
            raise InvalidArgumentError(
                f"driver 'metal': unknown option {option!r}; the known ones are workgroup=X[,Y[,Z]], -DNAME[=VALUE] and"
                " constant:NAME=VALUE"
            )
    return found


def _workgroup(option: str, text: str) -> tuple[int, int, int]:
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise InvalidArgumentError(f"driver 'metal': the option {option} must be one to three counts above 0")
    sizes = [int(part) for part in parts] + [1] * (3 - len(parts))
    return sizes[0], sizes[1], sizes[2]
