"""How much a stream and a device take before somebody is held up."""

from __future__ import annotations

from collections.abc import Callable

from calls import ALL
from registry import Fact, fact, register
from rig import GRACE, Rig, soon

MOST = 2000
"""As many calls as are tried: a kind of work of which so many are taken is not limited."""

Prepare = Callable[[Rig, int], Callable[[], object]]


def taken(rig: Rig, call: Callable[[], object], most: int = MOST) -> int:
    """Return how many calls, one after the other, return before one does not."""
    count = [0]

    def repeated() -> None:
        while count[0] < most:
            call()
            count[0] += 1

    attempt, seen = rig.attempt(repeated), -1
    while not attempt.returned(0) and count[0] != seen:
        seen = count[0]
        attempt.returned(GRACE)
    return count[0]


def _launches(rig: Rig, stream: int) -> Callable[[], object]:
    work = rig.call("nothing")
    return lambda: rig.native.launch(work, stream)


def _launches_with_arguments(rig: Rig, stream: int) -> Callable[[], object]:
    work = rig.call("store", rig.words(1).at(0), 1)
    return lambda: rig.native.launch(work, stream)


def _fills(rig: Rig, stream: int) -> Callable[[], object]:
    address = rig.memory(256)
    return lambda: rig.native.fill(address, 1, 4, 64, stream)


def _copies_on_the_device(rig: Rig, stream: int) -> Callable[[], object]:
    target, source = rig.memory(256), rig.memory(256)
    return lambda: rig.native.copy(target, source, 256, stream)


def _copies_up(rig: Rig, stream: int) -> Callable[[], object]:
    target, source = rig.memory(256), rig.pinned(256)
    return lambda: rig.native.copy(target, source, 256, stream)


def _copies_down(rig: Rig, stream: int) -> Callable[[], object]:
    target, source = rig.pinned(256), rig.memory(256)
    return lambda: rig.native.copy(target, source, 256, stream)


def _writes(rig: Rig, stream: int) -> Callable[[], object]:
    words = rig.words(1)
    return lambda: rig.native.write_value(stream, words.at(0), 1)


def _waits_for_values(rig: Rig, stream: int) -> Callable[[], object]:
    words = rig.words(1)
    return lambda: rig.native.wait_value(stream, words.at(0), 0)


def _records(rig: Rig, stream: int) -> Callable[[], object]:
    event = rig.event()
    return lambda: rig.native.record_event(event, stream)


def _records_of_many_events(rig: Rig, stream: int) -> Callable[[], object]:
    events = iter([rig.event() for _ in range(MOST)])
    return lambda: rig.native.record_event(next(events), stream)


def _waits_for_events_that_are_over(rig: Rig, stream: int) -> Callable[[], object]:
    event, other = rig.event(), rig.stream()
    rig.native.record_event(event, other)
    rig.synchronize(other)
    return lambda: rig.native.wait_event(stream, event)


def _waits_for_events_to_come(rig: Rig, stream: int) -> Callable[[], object]:
    event, other = rig.event(), rig.stream()
    rig.latch().run(other)
    rig.native.record_event(event, other)
    return lambda: rig.native.wait_event(stream, event)


def _graphs(rig: Rig, stream: int) -> Callable[[], object]:
    graph = rig.graph()
    rig.native.add_kernel_node(graph, [], rig.call("nothing"))
    instance = rig.instance(graph)
    return lambda: rig.native.launch_graph(instance, stream)


def _graphs_of_ten_nodes(rig: Rig, stream: int) -> Callable[[], object]:
    graph, after = rig.graph(), []
    for _ in range(10):
        after = [rig.native.add_kernel_node(graph, after, rig.call("nothing"))]
    instance = rig.instance(graph)
    return lambda: rig.native.launch_graph(instance, stream)


def _allocations_and_frees(rig: Rig, stream: int) -> Callable[[], object]:
    pool = rig.pool()
    rig.native.free(rig.native.allocate(256, pool, stream), stream)
    rig.synchronize(stream)
    return lambda: rig.native.free(rig.native.allocate(256, pool, stream), stream)


def _submissions(rig: Rig, stream: int) -> Callable[[], object]:
    launch, write, record = _launches(rig, stream), _writes(rig, stream), _records(rig, stream)
    return lambda: (launch(), write(), record())


def _launches_and_writes_after_waits(rig: Rig, stream: int) -> Callable[[], object]:
    wait, submit = _waits_for_events_to_come(rig, stream), _submissions(rig, stream)
    return lambda: (wait(), submit())


KINDS: dict[str, Prepare] = {
    "launches": _launches,
    "launches_with_arguments": _launches_with_arguments,
    "fills": _fills,
    "copies_on_the_device": _copies_on_the_device,
    "copies_up": _copies_up,
    "copies_down": _copies_down,
    "writes_of_values": _writes,
    "waits_for_values": _waits_for_values,
    "records_of_an_event": _records,
    "records_of_many_events": _records_of_many_events,
    "waits_for_events_that_are_over": _waits_for_events_that_are_over,
    "waits_for_events_to_come": _waits_for_events_to_come,
    "graphs": _graphs,
    "graphs_of_ten_nodes": _graphs_of_ten_nodes,
    "allocations_and_frees": _allocations_and_frees,
    "submissions": _submissions,
    "submissions_that_wait": _launches_and_writes_after_waits,
}


def _behind_a_kernel(prepare: Prepare) -> Callable[[Rig], int]:
    def ask(rig: Rig) -> int:
        stream = rig.stream()
        call = prepare(rig, stream)
        call()
        rig.latch().run(stream)
        return taken(rig, call)

    return ask


def _behind_a_kernel_without_trial(prepare: Prepare) -> Callable[[Rig], int]:
    def ask(rig: Rig) -> int:
        stream = rig.stream()
        call = prepare(rig, stream)
        rig.latch().run(stream)
        return taken(rig, call)

    return ask


#: These would hold up the stream before the latch is on it, or use up an event.
_WITHOUT_TRIAL = ("waits_for_events_to_come", "submissions_that_wait", "records_of_many_events")

for _name, _prepare in KINDS.items():
    _asking = _behind_a_kernel_without_trial if _name in _WITHOUT_TRIAL else _behind_a_kernel
    register(
        Fact(
            f"{_name}_taken_behind_a_running_kernel",
            f"How many {_name.replace('_', ' ')} does a stream take behind a running kernel ({MOST}: all tried)?",
            _asking(_prepare),
            alone=True,
        )
    )


@fact(alone=True)
def fact_other_streams_beside_a_full_one(rig: Rig) -> dict[str, bool]:
    """Which calls return while a thread is held up by a full stream?"""
    ready = {name: ALL[name](rig) for name in _BESIDE}
    full, event = rig.stream(), rig.event()
    rig.latch().run(full)
    taken(rig, _launches(rig, full))
    found = {name: rig.returns(call) for name, call in ready.items()}
    found["record_event on the full stream"] = rig.returns(lambda: rig.native.record_event(event, full))
    found["stream_idle of the full stream"] = rig.returns(lambda: rig.native.stream_idle(full))
    return found


_BESIDE = (
    "launch",
    "record_event",
    "wait_event",
    "write_value",
    "event_over",
    "stream_idle",
    "fill_device",
    "copy_on_device",
    "copy_pinned_up",
    "allocate",
    "free",
    "create_event",
    "create_stream",
    "instantiate_graph",
    "launch_graph",
    "set_kernel_node",
    "current_context",
)


@fact(alone=True)
def fact_two_streams_filled_at_once(rig: Rig) -> list[int]:
    """Does each of two streams take as many launches as one does?"""
    first, second = rig.stream(), rig.stream()
    rig.latch().run(first)
    rig.latch().run(second)
    return [taken(rig, _launches(rig, first)), taken(rig, _launches(rig, second))]


@fact(alone=True)
def fact_launches_taken_behind_a_waiting_stream(rig: Rig) -> int:
    """How many launches does a stream take that waits for a value?"""
    stream = rig.stream()
    _launches(rig, stream)()
    rig.park().run(stream)
    return taken(rig, _launches(rig, stream))


@fact(alone=True)
def fact_a_full_stream_goes_on(rig: Rig) -> bool:
    """Does a call that a full stream held up return once the kernel is over?"""
    stream = rig.stream()
    latch = rig.latch().run(stream)
    held = taken(rig, _launches(rig, stream))
    latch.open()
    return held < MOST and soon(lambda: rig.native.stream_idle(stream), 10)


def _parked(rig: Rig) -> int:
    """Return how many streams wait for a value when the next one gets no work done."""
    park, parked = rig.park(), 0
    while parked < 40:
        stream = rig.stream()
        if not _runs(rig, stream):
            break
        park.run(stream)
        parked += 1
    return parked


def _waiting(rig: Rig) -> int:
    """Return how many streams wait for an event behind a running kernel when the next one gets no work done."""
    event, waiting, busy = rig.event(), 0, rig.stream()
    rig.latch().run(busy)
    rig.native.record_event(event, busy)
    while waiting < 40:
        stream = rig.stream()
        if not _runs(rig, stream):
            break
        rig.native.wait_event(stream, event)
        rig.launch(stream, "nothing")
        waiting += 1
    return waiting


def _runs(rig: Rig, stream: int) -> bool:
    words = rig.words(1)
    attempt = rig.attempt(lambda: rig.launch(stream, "store", words.at(0), 1))
    return attempt.returned() and soon(lambda: words[0] == 1)


def _busy(rig: Rig) -> int:
    """Return how many streams run kernels when the next one gets no work done."""
    busy = 0
    while busy < 40:
        stream = rig.stream()
        if not _runs(rig, stream):
            break
        rig.latch().run(stream)
        busy += 1
    return busy


_CASES: dict[str, tuple[Callable[[Rig], int], str]] = {
    "parked_streams": (_parked, "How many streams may wait for a value before another one is held up"),
    "waiting_streams": (_waiting, "How many streams may wait for an event to come before another one is held up"),
    "busy_streams": (_busy, "How many streams may run kernels before another one is held up (40: all that are tried)"),
}

for _connections in (None, "32"):
    for _case, (_ask, _words) in _CASES.items():
        register(
            Fact(
                f"{_case}_{'by_default' if _connections is None else f'with_{_connections}_connections'}",
                f"{_words}, {'by default' if _connections is None else f'with {_connections} connections'}?",
                _ask,
                alone=True,
                environment={"CUDA_DEVICE_MAX_CONNECTIONS": _connections},
            )
        )
