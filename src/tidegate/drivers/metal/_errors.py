"""Metal's errors as Tidegate's: domain, code and text, and nothing of Objective-C beyond this file."""

from __future__ import annotations

from tidegate.drivers.metal import _native
from tidegate.drivers.metal._native import Object
from tidegate.errors import CompileError, DeviceLostError, InternalError, ResourceExhaustedError, TidegateError

_COMMANDS = "MTLCommandBufferErrorDomain"
_NAMES = {
    value: name
    for name, value in vars(_native).items()
    if name.startswith("MTLCommandBufferError") and isinstance(value, int)
}


def given(made: Object | None, what: str) -> Object:
    """Return an object that Metal made; it may always say no, and says no reason then.

    Raises:
        ResourceExhaustedError: it made none.

    """
    if made is None:
        raise ResourceExhaustedError(f"metal makes no {what}, and does not say why")
    return made


def commands_error(error: Object | None, label: str) -> TidegateError:
    """Return why a command buffer failed, from its NSError."""
    if error is None:
        return InternalError(f"{label} ended in error, and Metal does not say why")
    domain, code, text = _native.error_facts(error)
    name = _NAMES.get(code) if domain == _COMMANDS else None
    kind: type[TidegateError] = InternalError
    if name == "MTLCommandBufferErrorDeviceRemoved":
        kind = DeviceLostError
    elif name == "MTLCommandBufferErrorOutOfMemory":
        kind = ResourceExhaustedError
    return kind(
        f"{label} ended in error: {text} ({name or domain}, code {code})",
        native_code=code,
        native_name=name,
        native_domain=domain,
    )


def compile_error(error: Object | None, what: str) -> CompileError:
    """Return why a source, a library or a pipeline was refused; its text is the log."""
    if error is None:
        return CompileError(f"metal: {what} failed, and Metal does not say why", log="")
    domain, code, text = _native.error_facts(error)
    first = text.strip().splitlines()[0] if text.strip() else "no text"
    return CompileError(
        f"metal: {what} failed: {first} ({domain}, code {code})",
        log=text,
        native_code=code,
        native_domain=domain,
    )
