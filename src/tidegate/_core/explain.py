"""Why a wait does not end: the chain from a timepoint down to the missing signal (M13).

The walk is iterative, because chains may be long. The text leaves out the middle of a long chain, never the last link.
The walk visits each submission once and only notes what it finds; words are made for the links that are shown. It takes
no lock: it copies what may change, and tells each link as it found it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from .compiled import HELD, ISSUED, READY, STAGES, Completion, Submission, site_text, target_of
from .compiled import Timeline as TimelineState
from .failures import brief
from .host_calls import pool

Target = tuple[TimelineState, int]

if TYPE_CHECKING:
    from ..driver import Ticket
    from .awaiting import Point

_HEAD, _TAIL = 24, 12


def explain(point: Point) -> str:
    """Say who is to signal a timepoint or end a submission, what that waits for in turn, down to the missing signal.

    Each link comes with the file and line of the call that made it. A cycle that can never resolve is named as one.
    """
    return explain_targets([target_of(point, "explain").point])


def explain_targets(targets: Iterable[Target]) -> str:
    """Explain several targets, one after the other.

    What several of them lead to is told once, with the last one: whatever is elided, the text ends in a last link.
    """
    listed = list(targets)
    walk, words = _Walk(), _Words()
    ending = walk.down_from(listed.pop()) if listed else []
    links = [link for target in listed for link in walk.down_from(target)] + ending
    if len(links) <= _HEAD + _TAIL + 1:
        return "\n".join(map(words.tell, links))
    left_out = f"... {len(links) - _HEAD - _TAIL} more links ..."
    return "\n".join([*map(words.tell, links[:_HEAD]), left_out, *map(words.tell, links[-_TAIL:])])


class _Link(NamedTuple):
    """One timepoint on the way down, and who is to signal it, as they were found."""

    state: TimelineState
    value: int
    payload: int
    failure: BaseException | None
    producer: Submission | None = None
    highest: int | None = None
    """The highest claim on a timeline where nobody claims this value."""
    circular: bool = False
    """Whether the producer is one of the submissions that led here."""
    missing: Target | None = None
    """Of such a circle, the timepoint in it that nobody claims: what is missing is that signal."""


class _Walk:
    """Goes down from targets, depth first. A submission that was met before is not gone through again."""

    def __init__(self) -> None:
        self._met: set[Submission] = set()
        # The submissions that lead to the current link: meeting one of them again is a cycle. Their places in that
        # list. And the timepoints that nobody claims, where the walk went on with the claimant of a higher value.
        self._path: list[Submission] = []
        self._places: dict[Submission, int] = {}
        self._guesses: list[tuple[int, Target]] = []
        self._claims: dict[TimelineState, _Claims] = {}

    def down_from(self, target: Target) -> list[_Link]:
        """Return the links from a target down."""
        links: list[_Link] = []
        stack: list[tuple[int, Target]] = [(0, target)]
        while stack:
            depth, (state, value) = stack.pop()
            self._back_to(depth)
            link = self._link(state, value)
            links.append(link)
            producer = link.producer
            if producer is not None and producer not in self._met:
                self._enter(producer, link)
                stack += [(depth + 1, wait) for wait in reversed(producer._pending())]
        self._back_to(0)
        return links

    def _enter(self, submission: Submission, link: _Link) -> None:
        self._met.add(submission)
        self._places[submission] = len(self._path)
        if link.highest is not None:
            self._guesses.append((len(self._path), (link.state, link.value)))
        self._path.append(submission)

    def _back_to(self, depth: int) -> None:
        while len(self._path) > depth:
            del self._places[self._path.pop()]
        while self._guesses and self._guesses[-1][0] >= depth:
            self._guesses.pop()

    def _link(self, state: TimelineState, value: int) -> _Link:
        """Find out who is to take a timeline to a value: the one that claims it, else the next above."""
        payload, failure = state.value, state.error
        if payload >= value or failure is not None:
            return _Link(state, value, payload, failure)
        producer = state.producer_of(value)
        if producer is None:
            claims = self._claims.get(state)
            if claims is None:
                claims = self._claims[state] = _Claims(state)
            above = claims.above(value)
            return _Link(
                state, value, payload, None, above if self._helps(above, state, value) else None, claims.highest
            )
        place = self._places.get(producer)
        if place is None:
            return _Link(state, value, payload, None, producer)
        missing = self._guesses[-1][1] if self._guesses and self._guesses[-1][0] > place else None
        return _Link(state, value, payload, None, producer, None, True, missing)

    def _helps(self, above: Submission | None, state: TimelineState, value: int) -> bool:
        """Whether the claimant of a higher value can bring this one. It cannot if it waits for this one itself."""
        return above is not None and above not in self._places and dict(above._pending()).get(state, -1) < value


class _Claims:
    """All claims on one timeline, in order: made once, for all that look above."""

    def __init__(self, state: TimelineState) -> None:
        known = state.claimed()
        self._values = [value for value, _ in known]
        self._submissions = [submission for _, submission in known]

    @property
    def highest(self) -> int | None:
        """The highest value that is claimed."""
        return self._values[-1] if self._values else None

    def above(self, value: int) -> Submission | None:
        """Return who claims the next value above one."""
        index = bisect_right(self._values, value)
        return self._submissions[index] if index < len(self._values) else None


class _Words:
    """Tells links in words."""

    def tell(self, link: _Link) -> str:
        """Return a link as one line."""
        state, value = link.state, link.value
        if link.payload >= value:
            return f"{state.describe()} has reached {value}: its payload is {link.payload}"
        if link.failure is not None:
            return f"{state.describe()} failed before {value}: {brief(link.failure)}"
        what = "" if isinstance(state, Completion) else f"{state.describe()} at {value} (payload {link.payload}): "
        if link.producer is None:
            return f"{what}{_missing(state, link.highest)}"
        cycle = f" - which waits for {_circle(link)}" if link.circular else ""
        return f"{what}to be signalled by {link.producer.describe()}, {self._doing(link.producer)}{cycle}"

    def _doing(self, submission: Submission) -> str:
        stage = submission._stage
        if stage == HELD:
            return "held"
        if stage == READY:
            return submission._workload._why_not_issued(submission)
        if stage == ISSUED:
            return pool.why_waiting() if submission in self._queued else "issued and not over yet"
        return STAGES[stage]

    @cached_property
    def _queued(self) -> set[Ticket]:
        """The submissions that no host thread has come for."""
        return pool.waiting()


def _circle(link: _Link) -> str:
    if link.missing is None:
        return "this very signal: a cycle that can never resolve"
    state, value = link.missing
    return f"{state.describe()} at {value}: {_missing(state, None)}"


def _missing(state: TimelineState, highest: int | None) -> str:
    claims = "" if highest is None else f", the highest claim is {highest}"
    made = "" if state.site is None else f"; made at {site_text(*state.site)}"
    return f"nobody has promised this signal{claims}{made}"
