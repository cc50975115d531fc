"""The few classes of Foundation that Metal's calls need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .objects import Metal

if TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["URL", "Data", "Error"]


class Error(Metal, registered="NSError"):
    """An NSError."""

    def __init__(self, simulation: Simulation, domain: str, code: int, text: str) -> None:
        super().__init__(simulation)
        self._domain = domain
        self._code = code
        self._text = text

    def domain(self) -> str:
        return self._domain

    def code(self) -> int:
        return self._code

    def localizedDescription(self) -> str:
        return self._text

    def localizedFailureReason(self) -> str | None:
        return None

    def userInfo(self) -> Any:
        return {"NSLocalizedDescription": self._text}


class URL(Metal, registered="NSURL"):
    """An NSURL of a file."""

    def __init__(self, simulation: Simulation, path: str) -> None:
        super().__init__(simulation)
        self._path = path

    def path(self) -> str:
        return self._path


class Data(Metal, registered="NSData"):
    """An NSData."""

    def __init__(self, simulation: Simulation, data: bytes) -> None:
        super().__init__(simulation)
        self._bytes = data

    def length(self) -> int:
        return len(self._bytes)
