"""Why a wait does not end: the chain from a timepoint down to the missing signal (M13).

Told iteratively, because chains may be long; the middle is elided, the last link never.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .host_wait import Target, target_of
from .submission import HELD, ISSUED, READY, STAGES, Completion, Submission, site_text
from .timeline import brief

if TYPE_CHECKING:
    from .host_wait import Point

_HEAD, _TAIL = 24, 12
_MOST_LINKS = 200_000


def explain(point: Point) -> str:
    """Say who is to signal a timepoint or end a submission, what that waits for in turn, down to the missing signal.

    Each link comes with the file and line of the call that made it. A cycle that can never resolve is named as one.
    """
    return explain_targets([target_of(point, "explain")])


def explain_targets(targets: Iterable[Target]) -> str:
    """Explain several targets, one after the other."""
    lines: list[str] = []
    for state, value in targets:
        lines += _chain((state, value))
    if len(lines) > _HEAD + _TAIL + 1:
        left_out = len(lines) - _HEAD - _TAIL
        lines[_HEAD:-_TAIL] = [f"... {left_out} more links ..."]
    return "\n".join(lines)


def _chain(target: Target) -> list[str]:
    lines: list[str] = []
    # Depth first; `path` holds what leads to the current link, so that meeting one of it again is a cycle.
    path: list[object] = []
    on_path: set[int] = set()
    told: set[int] = set()
    stack: list[tuple[int, Target]] = [(0, target)]
    while stack and len(lines) < _MOST_LINKS:
        depth, (state, value) = stack.pop()
        while len(path) > depth:
            on_path.discard(id(path.pop()))
        producer = _producer((state, value), on_path)
        lines += _state_lines(state, value, producer)
        if producer is None:
            continue
        if id(producer) in on_path:
            lines[-1] += " - which waits for this very signal: a cycle that can never resolve"
            continue
        if id(producer) in told:
            continue
        told.add(id(producer))
        on_path.add(id(producer))
        path.append(producer)
        stack += [(depth + 1, wait) for wait in reversed((producer._pending or {}).copy().items())]
    return lines


def _producer(target: Target, on_path: set[int]) -> Submission | None:
    """Return the submission that is to take a timeline to a value: the one that claims it, else the next above.

    One above that itself waits for this value is no help: then the signal is missing.
    """
    state, value = target
    if state.payload >= value or state.failure is not None:
        return None
    claims = {claim: found for claim, ref in state.claims.copy().items() if (found := ref()) is not None}
    if value in claims:
        return claims[value]
    above = [claim for claim in claims if claim > value and id(claims[claim]) not in on_path]
    return claims[min(above)] if above else None


def _state_lines(state: object, value: int, producer: Submission | None) -> list[str]:
    from .timeline import TimelineState

    assert isinstance(state, TimelineState)
    if state.payload >= value:
        return [f"{state.describe()} has reached {value}: its payload is {state.payload}"]
    if state.failure is not None:
        return [f"{state.describe()} failed before {value}: {brief(state.failure)}"]
    name = "" if isinstance(state, Completion) else f"{state.describe()} at {value} (payload {state.payload}): "
    if producer is None:
        made = f"; made at {site_text(state.site)}" if state.site is not None else ""
        claims = f", the highest claim is {max(state.claims)}" if state.claims else ""
        return [f"{name}nobody has promised this signal{claims}{made}"]
    return [f"{name}to be signalled by {producer.describe()}, {_doing(producer)}"]


def _doing(submission: Submission) -> str:
    stage = submission._stage
    if stage == HELD:
        return "held"
    if stage == READY:
        return submission._device._why_not_issued(submission)
    if stage == ISSUED:
        return "issued and not over yet"
    return STAGES[stage]
