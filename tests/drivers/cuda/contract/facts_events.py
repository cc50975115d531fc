"""What events mean: when they are set, and whom they hold up."""

from __future__ import annotations

from registry import fact
from rig import LIMIT, Rig, code, soon


@fact()
def fact_event_never_recorded(rig: Rig) -> dict[str, object]:
    """Is an event that was never recorded over, and do waits for it pass?"""
    event, stream, native = rig.event(), rig.stream(), rig.native
    found: dict[str, object] = {"over": native.event_over(event)}
    found["wait"] = code(lambda: native.wait_event(stream, event))
    found["passes"] = rig.passes(stream)
    found["synchronize"] = code(lambda: native.synchronize_event(event))
    return found


@fact()
def fact_event_over(rig: Rig) -> list[bool]:
    """Is an event over while the kernel before it runs, and afterwards?"""
    event, stream = rig.event(), rig.stream()
    latch = rig.latch().run(stream)
    rig.native.record_event(event, stream)
    early = rig.native.event_over(event)
    latch.open()
    rig.synchronize(stream)
    return [early, rig.native.event_over(event)]


@fact()
def fact_event_takes_what_is_before_it(rig: Rig) -> bool:
    """Is an event over although later work of its stream runs?"""
    event, stream = rig.event(), rig.stream()
    first, second = rig.latch().run(stream), rig.latch()
    rig.native.record_event(event, stream)
    second.hold(stream)
    first.open()
    return soon(lambda: rig.native.event_over(event), LIMIT) and second.words[0] == 0


@fact()
def fact_event_recorded_again(rig: Rig) -> list[bool]:
    """Is an event over again only when its second record is reached?"""
    event, stream = rig.event(), rig.stream()
    rig.native.record_event(event, stream)
    rig.synchronize(stream)
    found = [rig.native.event_over(event)]
    latch = rig.latch().run(stream)
    rig.native.record_event(event, stream)
    found.append(rig.native.event_over(event))
    latch.open()
    rig.synchronize(stream)
    return [*found, rig.native.event_over(event)]


@fact()
def fact_wait_takes_the_record_of_its_call(rig: Rig) -> dict[str, bool]:
    """Does a wait stay with the record it saw, when the event is recorded again later?"""
    event, busy, waiting, words = rig.event(), rig.stream(), rig.stream(), rig.words(1)
    first, second = rig.latch().run(busy), rig.latch()
    rig.native.record_event(event, busy)
    rig.native.wait_event(waiting, event)
    rig.native.write_value(waiting, words.at(0), 1)
    second.hold(busy)
    rig.native.record_event(event, busy)
    early = soon(lambda: words[0] == 1)
    first.open()
    return {"before the first": early, "before the second": soon(lambda: words[0] == 1)}


@fact()
def fact_wait_before_the_record(rig: Rig) -> bool:
    """Does a wait pass that was made before the event was recorded?"""
    event, busy, waiting = rig.event(), rig.stream(), rig.stream()
    rig.latch().run(busy)
    rig.native.wait_event(waiting, event)
    rig.native.record_event(event, busy)
    return rig.passes(waiting)


@fact()
def fact_several_streams_wait_for_one_event(rig: Rig) -> dict[str, list[int]]:
    """Can several streams wait for one event?"""
    event, busy, words = rig.event(), rig.stream(), rig.words(5)
    latch = rig.latch().run(busy)
    rig.native.record_event(event, busy)
    for index in range(5):
        stream = rig.stream()
        rig.native.wait_event(stream, event)
        rig.native.write_value(stream, words.at(index), 1)
    soon(lambda: any(words.list()))
    before = words.list()
    latch.open()
    soon(lambda: all(words.list()), LIMIT)
    return {"before": before, "after": words.list()}


@fact()
def fact_one_stream_waits_for_many_events(rig: Rig) -> dict[str, bool]:
    """Can one stream wait for a hundred events, and does it wait for the last?"""
    busy, waiting, native, words = rig.stream(), rig.stream(), rig.native, rig.words(1)
    for _ in range(99):
        event = rig.event()
        native.record_event(event, busy)
        native.wait_event(waiting, event)
    latch, last = rig.latch().run(busy), rig.event()
    native.record_event(last, busy)
    native.wait_event(waiting, last)
    native.write_value(waiting, words.at(0), 1)
    early = soon(lambda: words[0] == 1)
    latch.open()
    return {"early": early, "afterwards": soon(lambda: words[0] == 1, LIMIT)}


@fact()
def fact_event_destroyed_while_waited_for(rig: Rig) -> dict[str, object]:
    """Does destroying an event that a stream waits for return, and does the stream wait on?"""
    busy, waiting, words = rig.stream(), rig.stream(), rig.words(1)
    event = rig.native.create_event()
    latch = rig.latch().run(busy)
    rig.native.record_event(event, busy)
    rig.native.wait_event(waiting, event)
    rig.native.write_value(waiting, words.at(0), 1)
    attempt = rig.attempt(lambda: rig.native.destroy_event(event))
    found: dict[str, object] = {"returned": attempt.returned(), "code": attempt.code}
    found["early"] = soon(lambda: words[0] == 1)
    latch.open()
    found["afterwards"] = soon(lambda: words[0] == 1, LIMIT)
    return found


@fact()
def fact_wait_for_the_own_stream(rig: Rig) -> bool:
    """Does a stream pass that waits for its own event?"""
    event, stream = rig.event(), rig.stream()
    rig.native.record_event(event, stream)
    rig.native.wait_event(stream, event)
    return rig.passes(stream)


@fact()
def fact_synchronize_event_waits(rig: Rig) -> dict[str, bool]:
    """Does synchronising with an event wait for what is before it, and for nothing after it?"""
    event, stream = rig.event(), rig.stream()
    first, second = rig.latch().run(stream), rig.latch()
    rig.native.record_event(event, stream)
    second.hold(stream)
    attempt = rig.attempt(lambda: rig.native.synchronize_event(event))
    early = attempt.returned()
    first.open()
    return {"early": early, "before the second kernel is over": attempt.returned(LIMIT)}


@fact()
def fact_stores_are_seen_once_an_event_is_over(rig: Rig) -> int:
    """How often of a hundred times is a store to page-locked memory not seen when the event behind it is over?"""
    event, stream, words, missed = rig.event(), rig.stream(), rig.words(1), 0
    for value in range(1, 101):
        rig.launch(stream, "store", words.at(0), value)
        rig.native.record_event(event, stream)
        soon(lambda: rig.native.event_over(event), LIMIT)
        missed += words[0] != value
    return missed


@fact()
def fact_event_made_by_another_thread(rig: Rig) -> bool:
    """Can an event be recorded by one thread and waited for by another?"""
    event, busy, waiting = rig.event(), rig.stream(), rig.stream()
    rig.attempt(lambda: rig.native.record_event(event, busy)).finish()
    rig.attempt(lambda: rig.native.wait_event(waiting, event)).finish()
    return rig.passes(waiting)
