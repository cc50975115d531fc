"""Every error Tidegate raises. Imports nothing of ours, so that each layer may raise what it needs.

Each class is also the built-in a Python programmer would catch (`InvalidArgumentError` is a `ValueError`). A message is
one lowercase line that names the object by its label, what was found and what was needed; the facts in it are
attributes too, so that programs need not parse text.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core.compiled import Timepoint

__all__ = [
    "AbortedError",
    "ClosedError",
    "CompileError",
    "DeadlineExceededError",
    "DeviceLostError",
    "DriverUnavailableError",
    "FailedPreconditionError",
    "InternalError",
    "InvalidArgumentError",
    "NotFoundError",
    "OutOfRangeError",
    "ResourceExhaustedError",
    "SemaphoreFailedError",
    "TidegateError",
    "UnsupportedError",
    "ValidationError",
]


class TidegateError(Exception):
    """The base of every error of this package.

    Args:
        message: one lowercase line: the object's label, what was found, what was needed.
        **facts: become attributes of the error.

    """

    native_code: int | None = None
    """The vendor's own error code, where a driver's library gave one."""
    native_name: str | None = None
    """The vendor's own name for that code."""

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.__dict__.update(facts)


class InvalidArgumentError(TidegateError, ValueError):
    """An argument has the right type and a value that can never be right."""


class OutOfRangeError(TidegateError, IndexError):
    """An offset, length or index lies outside of the object it speaks of."""


class FailedPreconditionError(TidegateError, RuntimeError):
    """The call is legal, but not in the state the object is in."""


class ClosedError(FailedPreconditionError):
    """The object was closed."""


class NotFoundError(TidegateError, LookupError):
    """A name is not known; the message lists the known ones."""


class UnsupportedError(TidegateError, NotImplementedError):
    """This driver, or this version, does not have the feature."""


class DriverUnavailableError(TidegateError):
    """The driver is known, but its hardware or library is absent; the message says what to install."""


class DeadlineExceededError(TidegateError, TimeoutError):
    """A wait ran over its time. The message explains whose signal is missing (M13).

    The explanation may be given as a function: then the text is made when somebody first reads it, which keeps polls
    cheap.
    """

    def __init__(self, message: str | Callable[[], str] = "", **facts: Any) -> None:
        super().__init__("", **facts)
        self._message = message

    def __str__(self) -> str:
        if callable(self._message):
            self._message = self._message()
        return self._message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (type(self), (str(self),))


class ResourceExhaustedError(TidegateError, MemoryError):
    """There is no room: memory of a device, or space in a staging buffer."""


class AbortedError(TidegateError):
    """The work was given up before it ran: cancelled, its device closed, or nobody left who could signal."""


class CompileError(TidegateError):
    """A kernel's source does not compile."""

    log: str = ""
    """What the compiler said."""


class SemaphoreFailedError(TidegateError):
    """What was waited for has failed; `__cause__` is the first error."""

    timepoint: Timepoint | None = None
    """The timepoint that was waited for, where it was one."""


class DeviceLostError(TidegateError):
    """The device is gone and everything that was on it has failed."""


class ValidationError(TidegateError):
    """The validation layer found a broken rule."""

    rule: str = ""
    """The number of the rule, as `M6`."""


class InternalError(TidegateError):
    """A bug of Tidegate or of a driver."""
