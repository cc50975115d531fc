"""Executables: functions by name, with what their source tells of bindings and constants."""

from __future__ import annotations

from typing import Any

from tidegate.driver import DriverFunction, Signature
from tidegate.types import Limits


class NullFunction(DriverFunction):
    """Any source at all. Yours compiles it, with CompileError and the log where that fails."""

    limits = Limits(max_local_memory=2**32 - 1)
    """Yours: what the compiled function can have, which may be less than the device has."""

    def __init__(self, source: Any, signature: Signature | None) -> None:
        self.name = signature.name if signature else getattr(source, "__name__", "kernel")
        if signature:
            self.bindings, self.constants, self.workgroup = signature.bindings, signature.constants, signature.workgroup
