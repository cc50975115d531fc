"""Telling which states of the model the world may be in, by what is seen of it.

The model speaks of causes, the world has error objects. The causes of errors that the program made are known from the
start; one that Tidegate made gets its cause's name where it is first seen, if its type and text allow it, and from then
on the same cause must be the same object, and another cause another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tidegate as tg

from .timelines import DONE, Cause, Model, Point, State
from .world import Fact, Seen

_MADE = {
    "overtaken": tg.FailedPreconditionError,
    "cancelled": tg.AbortedError,
    "closed": tg.AbortedError,
    "dropped": tg.AbortedError,
    "lost": tg.DeviceLostError,
}

Names = dict[Cause, BaseException]

UNKNOWN = "unknown"
"""Stands for the cause of an error that has no name yet."""


class Recognition:
    """The names of the errors seen so far."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self.names: Names = {}

    def name_of(self, error: BaseException | None) -> Cause | str:
        """The cause of an error, or UNKNOWN."""
        return next((cause for cause, known in self.names.items() if known is error), UNKNOWN)

    def may_be(self, told: object, expected: object) -> bool:
        """Whether what a call gave back is what a state of the model gives."""
        if told == ("failed", UNKNOWN) and isinstance(expected, tuple):
            return expected[0] == "failed" and expected[1] not in self.names
        return told == expected

    def recognise(
        self, states: Iterable[State], seen: Seen, points: Sequence[Point | None], *, exactly: bool
    ) -> set[State]:
        """Return the states that are what was seen, or, if not `exactly`, that it may become.

        Args:
            states: those to choose from.
            seen: what was seen.
            points: where each callback waits; None for a cancelled one.
            exactly: whether everything that is to happen has happened.
        """
        fitting = {state: self._fit(state, seen, points, exactly) for state in states}
        found = {state: names for state, names in fitting.items() if names is not None}
        # What all of them agree on is certain; the rest may be told apart later.
        for cause, error in next(iter(found.values()), {}).items():
            if all(names.get(cause) is error for names in found.values()):
                self.names[cause] = error
        return set(found)

    def _fit(self, state: State, seen: Seen, points: Sequence[Point | None], exactly: bool) -> Names | None:
        """The names under which a state fits, or None."""
        expected: list[tuple[Fact, bool, Cause | None]] = [
            (fact, entry.phase == DONE, entry.error) for fact, entry in zip(seen.entries, state.entries, strict=True)
        ]
        for fact, point in zip(seen.callbacks, points, strict=True):
            if point is not None:
                expected.append((fact, *self._model.decided(state, point)))
        for each, timeline in zip(seen.timelines, state.timelines, strict=True):
            if each is not None:
                payload, fact = each
                if payload > timeline.payload or (exactly and payload != timeline.payload):
                    return None
                expected.append((fact, timeline.failure is not None, timeline.failure))
        names = dict(self.names)
        return names if all(self._agree(*each, names, exactly) for each in expected) else None

    @staticmethod
    def _agree(fact: Fact, over: bool, cause: Cause | None, names: Names, exactly: bool) -> bool:
        if not fact.over:
            return not (exactly and over)
        if not over or (fact.error is None) != (cause is None):
            return False
        if cause is None or fact.error is None:
            return True
        if (
            cause not in names
            and not any(known is fact.error for known in names.values())
            and _may_be(fact.error, cause)
        ):
            names[cause] = fact.error
        return names.get(cause) is fact.error


def _may_be(error: BaseException, cause: Cause) -> bool:
    kind, number, *_ = cause
    if type(error) is not _MADE.get(str(kind)):
        return False
    whose = {"dropped": f"timeline{number}", "lost": f"device{number}"}.get(str(kind), "")
    return whose in str(error)
