"""What streams promise about order."""

from __future__ import annotations

from registry import fact
from rig import Rig, code, soon


@fact()
def fact_one_stream_runs_in_order(rig: Rig) -> list[int]:
    """In what order do kernels, put on one stream while it is busy, run?"""
    stream, log = rig.stream(), rig.words(8)
    latch = rig.latch().run(stream)
    for value in (3, 1, 4, 1, 5):
        rig.launch(stream, "append", log.at(0), value)
    latch.open()
    rig.synchronize(stream)
    return log.list()[: 1 + log[0]]


@fact()
def fact_kinds_of_work_share_the_order(rig: Rig) -> list[int]:
    """Does a copy on a stream see the fill before it, and a kernel the copy?"""
    stream, device, words = rig.stream(), rig.memory(64), rig.words(2)
    latch = rig.latch().run(stream)
    rig.native.fill(device, 5, 4, 16, stream)
    rig.native.copy(words.at(0), device, 8, stream)
    rig.launch(stream, "add", words.at(0), 1)
    rig.native.copy(words.at(1), words.at(0), 8, stream)
    latch.open()
    rig.synchronize(stream)
    return words.list()


@fact()
def fact_two_streams_run_side_by_side(rig: Rig) -> bool:
    """Does a kernel on one stream run while one on another is running?"""
    latch, other, words = rig.latch().run(rig.stream()), rig.stream(), rig.words(1)
    rig.launch(other, "store", words.at(0), 1)
    return soon(lambda: words[0] == 1) and latch.words[0] == 0


@fact()
def fact_copies_run_beside_kernels(rig: Rig) -> dict[str, bool]:
    """Do copies and fills on one stream run while a kernel on another is running?"""
    device, source, words = rig.memory(64), rig.words(1), rig.words(2)
    source[0] = 7
    stream = rig.stream()
    rig.latch().run(rig.stream())
    rig.native.copy(device, source.at(0), 8, stream)
    rig.native.copy(words.at(0), device, 8, stream)
    copied = soon(lambda: words[0] == 7)
    rig.native.fill(device, 1, 1, 8, stream)
    rig.native.copy(words.at(1), device, 8, stream)
    return {"copies": copied, "fills": soon(lambda: words[1] == 0x0101010101010101)}


@fact()
def fact_stream_idle(rig: Rig) -> dict[str, bool]:
    """When is a stream idle?"""
    stream, idle = rig.stream(), rig.native.stream_idle
    found = {"new": idle(stream)}
    latch = rig.latch().run(stream)
    found["beside its running kernel"] = idle(stream)
    latch.open()
    rig.synchronize(stream)
    found["afterwards"] = idle(stream)
    return found


@fact()
def fact_stream_idle_while_it_waits(rig: Rig) -> dict[str, bool]:
    """Is a stream idle that only waits, for an event or for a value?"""
    busy, first, second, event = rig.stream(), rig.stream(), rig.stream(), rig.event()
    rig.latch().run(busy)
    rig.native.record_event(event, busy)
    rig.native.wait_event(first, event)
    rig.park().run(second)
    return {"event": rig.native.stream_idle(first), "value": rig.native.stream_idle(second)}


@fact()
def fact_priority_range(rig: Rig) -> list[int]:
    """Which priorities do streams have, least and greatest?"""
    return list(rig.native.priority_range())


@fact()
def fact_priority_beyond_the_range(rig: Rig) -> list[int]:
    """Is a priority beyond the range refused?"""
    return [code(lambda: rig.stream(-100)), code(lambda: rig.stream(100))]


@fact()
def fact_synchronize_stream_waits(rig: Rig) -> dict[str, bool]:
    """Does synchronising with a stream wait for it, and only for it?"""
    busy, other = rig.stream(), rig.stream()
    latch = rig.latch().run(busy)
    alone = rig.returns(lambda: rig.synchronize(other))
    attempt = rig.attempt(lambda: rig.synchronize(busy))
    early = attempt.returned()
    latch.open()
    attempt.finish()
    return {"the other returns": alone, "this one returns early": early}


@fact()
def fact_the_default_stream_goes_its_own_way(rig: Rig) -> bool:
    """Does work on the legacy default stream run while a stream of ours is busy?"""
    words = rig.words(1)
    rig.latch().run(rig.stream())
    attempt = rig.attempt(lambda: rig.launch(0, "store", words.at(0), 1))
    return attempt.returned() and soon(lambda: words[0] == 1)


@fact()
def fact_work_that_was_put_on_by_two_threads(rig: Rig) -> int:
    """Is work that two threads put on one stream at the same time all done?"""
    stream, words = rig.stream(), rig.words(1)

    def put() -> None:
        for _ in range(200):
            rig.launch(stream, "add", words.at(0), 1)

    rig.session.function("add")
    attempts = [rig.attempt(put), rig.attempt(put)]
    for attempt in attempts:
        attempt.finish()
    rig.synchronize(stream)
    return words[0]
