"""Records of events: how many a stream takes, which depends on what the events were made for."""

from __future__ import annotations

from collections.abc import Callable

from facts_limits import taken
from registry import fact
from rig import LIMIT, Rig


def _event(rig: Rig, blocking: bool) -> int:
    event = rig.native.create_event(blocking)
    rig.undo(lambda: rig.native.destroy_event(event))
    return event


def _records(rig: Rig, stream: int, blocking: bool, count: int) -> Callable[[], object]:
    events = iter([_event(rig, blocking) for _ in range(count)])
    return lambda: rig.native.record_event(next(events), stream)


@fact(alone=True)
def fact_records_of_a_plain_event_taken_behind_a_running_kernel(rig: Rig) -> int:
    """How many records of an event that is not for sleeping does a stream take (3000: all tried)?"""
    event, stream = _event(rig, False), rig.stream()
    rig.latch().run(stream)
    return taken(rig, lambda: rig.native.record_event(event, stream), 3000)


@fact(alone=True)
def fact_records_of_many_plain_events_taken_behind_a_running_kernel(rig: Rig) -> int:
    """How many records of different events that are not for sleeping does a stream take (1500: all tried)?"""
    stream = rig.stream()
    call = _records(rig, stream, False, 1500)
    rig.latch().run(stream)
    return taken(rig, call, 1500)


@fact(alone=True)
def fact_writes_with_plain_records_taken_behind_a_running_kernel(rig: Rig) -> int:
    """How many pairs of a value write and a record of an event that is not for sleeping does a stream take?"""
    stream, words = rig.stream(), rig.words(1)
    record = _records(rig, stream, False, 1400)
    rig.latch().run(stream)
    return taken(rig, lambda: (rig.native.write_value(stream, words.at(0), 1), record()), 1400)


@fact(alone=True)
def fact_records_of_sleeping_events_on_three_streams(rig: Rig) -> list[int]:
    """Does each stream take its own number of records of events for sleeping: of 50, 50 and 100 tried?"""
    counts = []
    for most in (50, 50, 100):
        stream = rig.stream()
        call = _records(rig, stream, True, most)
        rig.latch().run(stream)
        counts.append(taken(rig, call, most))
    return counts


@fact(alone=True)
def fact_records_of_sleeping_and_plain_events_mixed(rig: Rig) -> list[int]:
    """How many records does a stream take of 40 for sleeping, then 500 others, then 40 for sleeping again?"""
    stream = rig.stream()
    calls = [(_records(rig, stream, blocking, most), most) for blocking, most in ((True, 40), (False, 500), (True, 40))]
    rig.latch().run(stream)
    return [taken(rig, call, most) for call, most in calls]


@fact(alone=True)
def fact_records_of_plain_events_of_the_context_taken_behind_a_running_kernel(rig: Rig) -> int:
    """How many records of events of the context, not for sleeping, are taken behind a kernel (1500: all tried)?"""
    events = iter([_event(rig, False) for _ in range(1500)])
    rig.latch().run(rig.stream())
    return taken(rig, lambda: rig.native.record_context(next(events), rig.context), 1500)


@fact(alone=True)
def fact_launches_taken_behind_events_of_the_context(rig: Rig) -> list[int]:
    """How many launches do a busy and an idle stream take behind 200 events of the context (2000: all tried)?"""
    busy, idle, events = rig.stream(), rig.stream(), [_event(rig, False) for _ in range(200)]
    work = rig.call("nothing")
    rig.latch().run(busy)
    for event in events:
        rig.native.record_context(event, rig.context)
    return [taken(rig, lambda stream=stream: rig.native.launch(work, stream), 2000) for stream in (idle, busy)]


@fact()
def fact_sleeping_beside_a_stream(rig: Rig) -> dict[str, bool]:
    """Can a thread sleep for the middle of a stream, by an event on another stream that waits for a plain one?"""
    stream, beside = rig.stream(), rig.stream()
    plain, sleeping = _event(rig, False), _event(rig, True)
    latch = rig.latch().run(stream)
    rig.native.record_event(plain, stream)
    put = rig.returns(lambda: (rig.native.wait_event(beside, plain), rig.native.record_event(sleeping, beside)))
    attempt = rig.attempt(lambda: rig.native.synchronize_event(sleeping))
    early = attempt.returned()
    latch.open()
    return {"put": put, "early": early, "woken": attempt.returned(LIMIT)}
