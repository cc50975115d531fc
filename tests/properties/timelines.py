"""A small pure model of timelines and submissions, for the state machine.

Operations have no order but what their waits say, so the model is not one state but the set of all states the world may
be in: a step is one thing that may happen next, and whatever order the steps are taken in is right. What the machine
sees then rules states out; when none is left, the world has done something the rules do not allow.

Errors that Tidegate makes have no object here. A *cause* stands for them, and the machine binds it to the object it
first sees; from then on it must be that very object everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

# Held; issued on promises; running until it is opened; running, and about to end by itself; over.
HELD, PROMISED, RUNNING, OPENED, DONE = "held", "promised", "running", "opened", "done"

Cause = tuple[str, ...] | tuple[object, ...]
Point = tuple[str, int, int]
"""("timeline", number, value), or ("entry", number, 1) for a submission."""


@dataclass(frozen=True)
class Plan:
    """What a submission was asked to do."""

    device: int
    kind: str
    """"plain" ends by itself, "raise" fails by itself, "gate" runs until it is opened."""
    native: bool
    """Whether the device runs it, so that it may go down on a promise, and be one."""
    waits: tuple[Point, ...]
    signals: tuple[tuple[int, int], ...]


class Timeline(NamedTuple):
    payload: int
    failure: Cause | None = None
    kept: bool = True
    """Whether the user still has the semaphore."""


class Entry(NamedTuple):
    phase: str = HELD
    error: Cause | None = None
    behind: tuple[int, ...] = ()
    """Whose promises it went down on."""
    aborting: bool = False
    """Whether its closing device is about to give it up."""


class State(NamedTuple):
    timelines: tuple[Timeline, ...] = ()
    entries: tuple[Entry, ...] = ()

    def with_timeline(self, number: int, timeline: Timeline) -> State:
        return self._replace(timelines=(*self.timelines[:number], timeline, *self.timelines[number + 1 :]))

    def with_entry(self, number: int, entry: Entry) -> State:
        return self._replace(entries=(*self.entries[:number], entry, *self.entries[number + 1 :]))


Outcome = tuple[object, State]
"""What a call gives back, and the state it leaves."""


class Model:
    """All the states the world may be in."""

    def __init__(self, promising: bool) -> None:
        self.promising = promising
        self.plans: list[Plan] = []
        self.states: set[State] = {State()}

    # What the user does ----------------------------------------------------------------------------------------------

    def apply(self, action: Callable[[State], Outcome], told: object, may_be: Callable[[object, object], bool]) -> None:
        """Do something that was seen to give back `told`, in every state where it may be that."""
        outcomes = [action(state) for state in self.states]
        after = {state for result, state in outcomes if may_be(told, result)}
        assert after, f"{told!r} came back, and only {sorted({repr(result) for result, _ in outcomes})} may"
        self.states = after

    def make(self, state: State, value: int) -> Outcome:
        return None, state._replace(timelines=(*state.timelines, Timeline(value)))

    def signal(self, state: State, number: int, value: int) -> Outcome:
        timeline = state.timelines[number]
        if timeline.failure is not None:
            return ("failed", timeline.failure), state
        if value <= timeline.payload:
            return "refused", state
        return None, state.with_timeline(number, timeline._replace(payload=value))

    def fail(self, state: State, number: int, cause: Cause) -> Outcome:
        return None, self._failed(state, number, cause)

    def drop(self, state: State, number: int) -> Outcome:
        return None, state.with_timeline(number, state.timelines[number]._replace(kept=False))

    def submit(self, state: State, plan: Plan) -> Outcome:
        for number, value in plan.signals:
            timeline = state.timelines[number]
            if timeline.failure is None and (value <= timeline.payload or value in self.claims(state, number)):
                return "refused", state
        return None, state._replace(entries=(*state.entries, Entry()))

    def cancel(self, state: State, number: int) -> Outcome:
        if state.entries[number].phase != HELD:
            return False, state
        return True, self._retired(state, number, ("cancelled", number))

    def open(self, state: State, number: int) -> Outcome:
        entry = state.entries[number]
        return None, state.with_entry(number, entry._replace(phase=OPENED)) if entry.phase == RUNNING else state

    def close(self, state: State, device: int) -> Outcome:
        """Close with no time to wait: true if something still runs."""
        safe = self._following(state, device)
        for number, entry in enumerate(state.entries):
            if self.plans[number].device == device and entry.phase == HELD and number not in safe:
                state = state.with_entry(number, entry._replace(aborting=True))
        return None, state

    def lose(self, state: State, device: int) -> Outcome:
        for number, entry in enumerate(state.entries):
            if self.plans[number].device == device and entry.phase != DONE:
                state = self._retired(state, number, ("lost", device))
        return None, state

    # What can be seen ------------------------------------------------------------------------------------------------

    def claims(self, state: State, number: int) -> dict[int, int]:
        """Who is to take a timeline to which value."""
        return {
            value: claimant
            for claimant, entry in enumerate(state.entries)
            if entry.phase != DONE
            for claimed, value in self.plans[claimant].signals
            if claimed == number
        }

    def decided(self, state: State, point: Point) -> tuple[bool, Cause | None]:
        """Whether a point is decided, and by which failure."""
        kind, number, value = point
        if kind == "entry":
            entry = state.entries[number]
            return entry.phase == DONE, entry.error
        timeline = state.timelines[number]
        if timeline.payload >= value:
            return True, None
        return timeline.failure is not None, timeline.failure

    # What happens by itself ------------------------------------------------------------------------------------------

    def settle(self) -> set[State]:
        """Let happen what may; returns the states in which nothing more must, and keeps those the world may be in."""
        ends: set[State] = set()
        known = set(self.states)
        left = list(known)
        while left:
            state = left.pop()
            must = list(self._must(state))
            if not must:
                ends.add(state)
            for following in (*must, *(self._may(state) if self.promising else ())):
                if following not in known:
                    known.add(following)
                    left.append(following)
            assert len(known) < 100_000, "the model has too many states to be of use"
        # Where nothing happens on threads of its own, the world comes to rest before the machine looks.
        self.states = known if self.promising else ends
        return ends

    def _must(self, state: State) -> Iterator[State]:
        """What happens sooner or later, if nothing else prevents it."""
        for number, entry in enumerate(state.entries):
            if entry.phase == HELD:
                yield from self._of_held(state, number, entry)
            elif entry.phase == PROMISED and all(state.entries[other].phase == DONE for other in entry.behind):
                yield from self._started(state, number)
            elif entry.phase == OPENED:
                yield from self._ended(state, number)
        for number, timeline in enumerate(state.timelines):
            if not timeline.kept and timeline.failure is None and self._is_missed(state, number):
                yield self._failed(state, number, ("dropped", number))

    def _of_held(self, state: State, number: int, entry: Entry) -> Iterator[State]:
        decided = [self.decided(state, point) for point in self.plans[number].waits]
        for cause in {cause for _, cause in decided if cause is not None}:
            yield self._retired(state, number, cause)
        if all(over and cause is None for over, cause in decided):
            yield from self._started(state, number)
        elif entry.aborting:
            yield self._retired(state, number, ("closed", number))

    def _may(self, state: State) -> Iterator[State]:
        """What may happen: work goes down on promises of work of its own device."""
        for number, entry in enumerate(state.entries):
            plan = self.plans[number]
            if entry.phase != HELD or not plan.native:
                continue
            unmet = [point for point in plan.waits if not self.decided(state, point)[0]]
            producers = [self._promiser(state, point, plan.device) for point in unmet]
            if unmet and None not in producers:
                behind = tuple(producer for producer in producers if producer is not None)
                yield state.with_entry(number, Entry(PROMISED, behind=behind))

    def _promiser(self, state: State, point: Point, device: int) -> int | None:
        """Who of a device has been given to it and will decide a point."""
        kind, number, value = point
        if kind == "entry":
            candidates = [number]
        else:
            candidates = [claimant for claim, claimant in sorted(self.claims(state, number).items()) if claim >= value]
        for candidate in candidates:
            plan = self.plans[candidate]
            if plan.native and plan.device == device and state.entries[candidate].phase not in (HELD, DONE):
                return candidate
        return None

    def _started(self, state: State, number: int) -> Iterator[State]:
        """The work runs. Where others may follow it meanwhile, its end is a step of its own."""
        if self.plans[number].kind == "gate":
            yield state.with_entry(number, state.entries[number]._replace(phase=RUNNING))
        elif self.promising:
            yield state.with_entry(number, state.entries[number]._replace(phase=OPENED))
        else:
            yield from self._ended(state, number)

    def _ended(self, state: State, number: int) -> Iterator[State]:
        """The work is over. If it went down on promises that were then broken, it fails all the same (M17)."""
        error = ("raised", number) if self.plans[number].kind == "raise" else None
        causes = {error}
        if state.entries[number].behind:
            broken = {cause for over, cause in (self.decided(state, wait) for wait in self.plans[number].waits) if over}
            causes |= broken
            if causes != {None}:
                causes.discard(None)
        for cause in causes:
            yield self._retired(state, number, cause)

    def _retired(self, state: State, number: int, error: Cause | None) -> State:
        for signalled, value in self.plans[number].signals:
            timeline = state.timelines[signalled]
            if error is not None:
                state = self._failed(state, signalled, error)
            elif timeline.failure is None and timeline.payload < value:
                state = state.with_timeline(signalled, timeline._replace(payload=value))
            else:
                state = self._failed(state, signalled, ("overtaken", number, signalled))
        return state.with_entry(number, Entry(DONE, error))

    @staticmethod
    def _failed(state: State, number: int, cause: Cause) -> State:
        timeline = state.timelines[number]
        return state if timeline.failure is not None else state.with_timeline(number, timeline._replace(failure=cause))

    def _is_missed(self, state: State, number: int) -> bool:
        """Whether nobody is left who could signal a timeline."""
        return not self.claims(state, number)

    def _following(self, state: State, device: int) -> set[int]:
        """What a device was given, and what follows from that alone (M35)."""
        mine = [number for number in range(len(state.entries)) if self.plans[number].device == device]
        safe = {number for number in mine if state.entries[number].phase not in (HELD, DONE)}
        grown = True
        while grown:
            more = {
                number for number in mine if state.entries[number].phase == HELD and self._follows(state, number, safe)
            }
            grown = not more <= safe
            safe |= more
        return safe

    def _follows(self, state: State, number: int, safe: set[int]) -> bool:
        for point in self.plans[number].waits:
            kind, waited, value = point
            over, cause = self.decided(state, point)
            if over and cause is None:
                continue
            claims = {1: waited} if kind == "entry" else self.claims(state, waited)
            if not any(claim >= value and claimant in safe for claim, claimant in claims.items()):
                return False
        return True


def certain(states: Iterable[State]) -> State:
    """What holds in every one of some states: the least payloads, and what is over in all of them."""
    listed = list(states)
    first = listed[0]
    timelines = tuple(
        Timeline(min(state.timelines[number].payload for state in listed)) for number in range(len(first.timelines))
    )
    entries = tuple(
        Entry(DONE if all(state.entries[number].phase == DONE for state in listed) else HELD)
        for number in range(len(first.entries))
    )
    return State(timelines, entries)
