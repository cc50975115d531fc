"""The kinds of storms: what strikes, and what that does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Kind:
    """What comes while the program runs.

    Attributes:
        text: The kind in words.
        acts: What a signal handler does, one of these each time; see `Storm.act`.
        finalizers: Whether objects in cycles do things when they are collected.
        hostile: Whether arguments have code of their own that does things.
        callbacks: Whether callbacks do things.
    """

    text: str
    acts: tuple[str, ...] = ("nothing",)
    finalizers: bool = False
    hostile: bool = False
    callbacks: bool = False

    @property
    def interrupts(self) -> bool:
        """Whether KeyboardInterrupt comes out of calls."""
        return "interrupt" in self.acts


#: What code that comes from anywhere may do.
FRIENDLY = ("signal", "signal", "host-call", "host-call", "submit", "follow")

KINDS: Mapping[str, Kind] = {
    "nothing": Kind("the handler does nothing"),
    "interrupt": Kind("the handler raises KeyboardInterrupt", ("interrupt",)),
    "signal": Kind("the handler signals what held work waits for", ("signal",)),
    "host-call": Kind("the handler signals what held host calls wait for", ("host-call",)),
    "submit": Kind("the handler submits", ("submit",)),
    "follow": Kind("the handler submits what follows from what is just being submitted", ("follow",)),
    "fail": Kind("the handler fails what held work waits for", ("fail", "nothing", "nothing", "nothing")),
    "finalizer": Kind("finalizers signal and submit", finalizers=True),
    "hostile": Kind("arguments signal, submit and raise", hostile=True),
    "callback": Kind("callbacks signal, submit and raise, and are interrupted", ("interrupt",), callbacks=True),
    "all": Kind(
        "all of it at once",
        ("interrupt", "interrupt", "nothing", "fail", *FRIENDLY),
        finalizers=True,
        hostile=True,
        callbacks=True,
    ),
}
