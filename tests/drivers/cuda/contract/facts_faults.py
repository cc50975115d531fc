"""What is left when a kernel has failed. Each fact breaks the context of a process of its own."""

from __future__ import annotations

from collections.abc import Callable

import sources
from calls import CALLS
from registry import Fact, fact, register
from rig import GRACE, LIMIT, Rig, code, outcome, soon

from tidegate.drivers.cuda._native import Launch

NULL = 0


def _break(rig: Rig) -> int:
    """Have a kernel store to address zero and return what the stream says."""
    stream = rig.stream()
    rig.launch(stream, "store", NULL, 1)
    return code(lambda: rig.synchronize(stream))


def _function(rig: Rig, name: str, *candidates: str) -> int:
    library = rig.native.load_library(rig.session.compile(*candidates))
    return rig.native.function(rig.native.kernel(library, name))


def _twice(rig: Rig, work: Launch) -> list[int]:
    stream = rig.stream()
    rig.native.launch(work, stream)
    return [code(lambda: rig.synchronize(stream)) for _ in range(2)]


@fact(alone=True)
def fact_store_to_null(rig: Rig) -> list[int]:
    """What does a stream say, twice, after a kernel stored to address zero?"""
    return _twice(rig, rig.call("store", NULL, 1))


@fact(alone=True)
def fact_store_to_unmapped_memory(rig: Rig) -> list[int]:
    """What does a stream say, twice, after a kernel stored where there is no memory?"""
    return _twice(rig, rig.call("store", 1 << 20, 1))


@fact(alone=True)
def fact_misaligned_store(rig: Rig) -> list[int]:
    """What does a stream say, twice, after a kernel stored eight bytes at an address that is a multiple of four?"""
    return _twice(rig, rig.call("store", rig.memory(256) + 4, 1))


@fact(alone=True)
def fact_trap(rig: Rig) -> list[int]:
    """What does a stream say, twice, after a kernel trapped?"""
    return _twice(rig, rig.call(_function(rig, "trapped", sources.TRAP)))


@fact(alone=True)
def fact_assertion(rig: Rig) -> list[int]:
    """What does a stream say, twice, after an assertion failed in a kernel?"""
    return _twice(rig, rig.call(_function(rig, "assertion", *sources.ASSERTIONS), 0))


@fact(alone=True)
def fact_assertion_that_holds(rig: Rig) -> list[int]:
    """What does a stream say, twice, after an assertion held?"""
    return _twice(rig, rig.call(_function(rig, "assertion", *sources.ASSERTIONS), 1))


@fact(alone=True)
def fact_assertion_beside_a_running_kernel(rig: Rig) -> dict[str, object]:
    """Who tells of an assertion that failed while a kernel on another stream goes on, and who when that is over?"""
    function = _function(rig, "assertion", *sources.ASSERTIONS)
    busy, broken, native = rig.stream(), rig.stream(), rig.native
    plain, blocking = rig.event(), rig.event()
    latch = rig.latch().run(busy)
    native.launch(rig.call(function, 0), broken)
    native.record_event(plain, broken)
    native.record_event(blocking, broken)
    waiting = rig.attempt(lambda: native.synchronize_event(blocking))
    asked = {
        "its stream": lambda: native.stream_idle(broken),
        "its event": lambda: native.event_over(plain),
        "the other stream": lambda: native.stream_idle(busy),
    }

    def told() -> dict[str, object]:
        soon(lambda: any(code(ask) for ask in asked.values()), 2.0)
        return {name: outcome(ask) for name, ask in asked.items()}

    meanwhile: dict[str, object] = {"woken": waiting.returned(2.0), **told()}
    latch.open()
    afterwards: dict[str, object] = {"woken": waiting.returned(2.0), **told()}
    return {"meanwhile": meanwhile, "afterwards": afterwards, "code": waiting.code}


@fact(alone=True)
def fact_word_behind_a_fault(rig: Rig) -> dict[str, int]:
    """Is the word raised that the stream was to write behind the kernel that faults?"""
    stream, words = rig.stream(), rig.words(1)
    latch = rig.latch().run(stream)
    rig.launch(stream, "store", NULL, 1)
    rig.native.write_value(stream, words.at(0), 5)
    latch.open()
    said = code(lambda: rig.synchronize(stream))
    return {"code": said, "word": 5 if soon(lambda: words[0] == 5) else words[0]}


@fact(alone=True)
def fact_event_behind_a_fault(rig: Rig) -> dict[str, int]:
    """What does an event say that was recorded behind the kernel that faults?"""
    stream, event = rig.stream(), rig.event()
    latch = rig.latch().run(stream)
    rig.launch(stream, "store", NULL, 1)
    rig.native.record_event(event, stream)
    latch.open()
    synchronized = code(lambda: rig.native.synchronize_event(event))
    return {"synchronize": synchronized, "query": code(lambda: rig.native.event_over(event))}


@fact(alone=True)
def fact_event_before_a_fault(rig: Rig) -> dict[str, object]:
    """What does an event say that was over before a kernel on another stream faulted?"""
    stream, event = rig.stream(), rig.event()
    rig.native.record_event(event, stream)
    rig.synchronize(stream)
    _break(rig)
    said, over = outcome(lambda: rig.native.event_over(event))
    return {"code": said, "over": over}


@fact(alone=True)
def fact_another_stream_beside_a_fault(rig: Rig) -> dict[str, object]:
    """Is work on another stream that was held up by a running kernel done after a fault?"""
    stream, words = rig.stream(), rig.words(1)
    latch = rig.latch().run(stream)
    rig.native.write_value(stream, words.at(0), 1)
    broken = rig.stream()
    rig.launch(broken, "store", NULL, 1)
    soon(lambda: code(lambda: rig.native.stream_idle(broken)) != 0, 1.0)
    latch.open()
    said = code(lambda: rig.synchronize(stream))
    return {"code": said, "done": soon(lambda: words[0] == 1)}


@fact(alone=True)
def fact_a_stream_that_waits_for_the_event_of_a_fault(rig: Rig) -> dict[str, object]:
    """Does a stream go on that waits for an event behind the kernel that faults?"""
    first, second, words, event = rig.stream(), rig.stream(), rig.words(1), rig.event()
    latch = rig.latch().run(first)
    rig.launch(first, "store", NULL, 1)
    rig.native.record_event(event, first)
    rig.native.wait_event(second, event)
    rig.native.write_value(second, words.at(0), 1)
    latch.open()
    said = code(lambda: rig.synchronize(second))
    return {"code": said, "done": soon(lambda: words[0] == 1)}


@fact(alone=True)
def fact_host_memory_after_a_fault(rig: Rig) -> dict[str, object]:
    """Is what kernels stored in page-locked memory before the fault still there, and can the host store?"""
    stream, words = rig.stream(), rig.words(2)
    rig.launch(stream, "store", words.at(0), 7)
    rig.synchronize(stream)
    said = _break(rig)
    words[1] = 9
    return {"code": said, "words": words.list()}


@fact(alone=True)
def fact_a_fault_is_seen_without_synchronising(rig: Rig) -> dict[str, int | bool]:
    """Does asking whether a stream is idle tell of a fault?"""
    stream = rig.stream()
    rig.launch(stream, "store", NULL, 1)
    seen: list[int] = []

    def told() -> bool:
        seen.append(code(lambda: rig.native.stream_idle(stream)))
        return seen[-1] != 0

    return {"told": soon(told, LIMIT), "code": seen[-1]}


@fact(alone=True)
def fact_primary_context_again_after_a_fault(rig: Rig) -> dict[str, int]:
    """Does letting go of the context and taking it anew bring the device back?"""
    broken = _break(rig)
    rig.native.pop_context()
    released = code(lambda: rig.native.release_primary_context(rig.device))
    retained, context = outcome(lambda: rig.native.primary_context(rig.device))
    pushed = code(lambda: rig.native.push_context(context)) if context else -1
    created = code(lambda: rig.native.create_stream(0))
    return {"fault": broken, "release": released, "retain": retained, "push": pushed, "create stream": created}


@fact(alone=True)
def fact_a_fault_in_a_graph(rig: Rig) -> dict[str, object]:
    """What does the stream say after a graph with a kernel that faults, and is what depends on it done?"""
    stream, words, graph = rig.stream(), rig.words(1), rig.graph()
    bad = rig.native.add_kernel_node(graph, [], rig.call("store", NULL, 1))
    rig.native.add_kernel_node(graph, [bad], rig.call("store", words.at(0), 1))
    rig.native.launch_graph(rig.instance(graph), stream)
    return {"code": code(lambda: rig.synchronize(stream)), "done": soon(lambda: words[0] == 1)}


@fact(alone=True)
def fact_a_wait_in_progress_when_a_fault_comes(rig: Rig) -> dict[str, object]:
    """Does a thread that synchronises with an event wake when another stream's kernel faults?"""
    stream, event = rig.stream(), rig.event()
    latch = rig.latch().run(stream)
    rig.native.record_event(event, stream)
    waiting = rig.attempt(lambda: rig.native.synchronize_event(event))
    broken = rig.stream()
    rig.launch(broken, "store", NULL, 1)
    woken = waiting.returned(4 * GRACE)
    latch.open()
    waiting.returned(LIMIT)
    return {"woken": woken, "code": waiting.code}


@fact(alone=True)
def fact_a_refused_launch_is_forgotten(rig: Rig) -> list[int]:
    """Does a launch that was refused leave later ones alone?"""
    stream = rig.stream()
    refused = code(lambda: rig.launch(stream, "nothing", grid=(0, 1, 1)))
    accepted = code(lambda: rig.launch(stream, "nothing"))
    return [refused, accepted, code(lambda: rig.synchronize(stream))]


def _after(group: str) -> Callable[[Rig], dict[str, int]]:
    def ask(rig: Rig) -> dict[str, int]:
        ready = {name: maker(rig) for name, maker in CALLS[group].items()}
        broken = _break(rig)
        return {"the fault": broken} | {name: code(call) for name, call in ready.items()}

    return ask


for _group in CALLS:
    register(
        Fact(
            f"calls_about_{_group.replace(' ', '_')}_after_a_fault",
            f"What do the calls about {_group} return after a kernel stored to address zero?",
            _after(_group),
            alone=True,
        )
    )
