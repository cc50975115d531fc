"""Contexts, threads, and what the device says about itself."""

from __future__ import annotations

from typing import Any

from registry import fact
from rig import GRACE, LIMIT, Rig, code, soon

from tidegate.drivers.cuda._prototypes import Attribute


def _elsewhere(rig: Rig, call: Any) -> Any:
    return rig.attempt(call, entered=False).finish()


@fact()
def fact_a_new_thread_has_no_context(rig: Rig) -> int:
    """What context does a new thread have?"""
    return _elsewhere(rig, rig.native.current_context)


@fact()
def fact_contexts_are_a_stack_for_each_thread(rig: Rig) -> list[bool]:
    """Is the context that was pushed the current one, twice, and none when both are popped?"""
    native, context = rig.native, rig.context

    def asked() -> list[bool]:
        native.push_context(context)
        native.push_context(context)
        found = [native.current_context() == context, native.pop_context() == context]
        found += [native.current_context() == context, native.pop_context() == context]
        return [*found, native.current_context() == 0]

    return _elsewhere(rig, asked)


@fact()
def fact_pop_without_a_context(rig: Rig) -> int:
    """What does popping return where nothing was pushed?"""
    return _elsewhere(rig, lambda: code(rig.native.pop_context))


@fact()
def fact_pushing_is_seen_by_its_thread_only(rig: Rig) -> int:
    """Does a thread see a context that another one pushed?"""
    rig.native.push_context(rig.context)
    try:
        return _elsewhere(rig, rig.native.current_context)
    finally:
        rig.native.pop_context()


@fact()
def fact_primary_context_is_one(rig: Rig) -> dict[str, bool]:
    """Is the primary context the same each time, and left uncurrent by retaining it?"""

    def asked() -> dict[str, bool]:
        same = rig.native.primary_context(rig.device) == rig.context
        current = rig.native.current_context() != 0
        rig.native.release_primary_context(rig.device)
        return {"same": same, "current": current}

    return _elsewhere(rig, asked)


@fact()
def fact_release_that_leaves_others(rig: Rig) -> bool:
    """Does a stream still work when one of two holders of the context lets go?"""
    stream = rig.stream()
    rig.native.primary_context(rig.device)
    rig.native.release_primary_context(rig.device)
    return rig.passes(stream)


@fact(alone=True)
def fact_release_once_too_often(rig: Rig) -> list[int]:
    """What does letting go of the primary context return, the last time and once more?"""
    return [code(lambda: rig.native.release_primary_context(rig.device)) for _ in range(2)]


@fact()
def fact_handles_serve_every_thread(rig: Rig) -> int:
    """Can another thread use the stream and the kernel of this one?"""
    stream, words = rig.stream(), rig.words(1)

    def asked() -> None:
        rig.launch(stream, "store", words.at(0), 4)
        rig.synchronize(stream)

    rig.attempt(asked).finish()
    return words[0]


@fact()
def fact_initialising_twice(rig: Rig) -> int:
    """What does a second initialisation return?"""
    return code(rig.native.init)


@fact()
def fact_device_attributes(rig: Rig) -> dict[str, int]:
    """What does the device say about itself?"""
    names = sorted(name for name in vars(Attribute) if name.isupper())
    return {name: rig.native.device_attribute(getattr(Attribute, name), rig.device) for name in names}


@fact()
def fact_several_devices(rig: Rig) -> bool:
    """Is there at least one device?"""
    return rig.native.device_count() >= 1


@fact()
def fact_event_behind_a_whole_context(rig: Rig) -> list[bool]:
    """Is an event of the context over while a kernel on one of two streams runs, and afterwards?"""
    event, stream = rig.event(), rig.stream()
    rig.stream()
    latch = rig.latch().run(stream)
    rig.native.record_context(event, rig.context)
    early = rig.native.event_over(event)
    latch.open()
    return [early, soon(lambda: rig.native.event_over(event), LIMIT)]


@fact()
def fact_event_of_the_context_and_a_destroyed_stream(rig: Rig) -> list[object]:
    """Does an event of the context stand behind what still runs of a stream that was destroyed?"""
    event, stream = rig.event(), rig.native.create_stream()
    latch = rig.latch().run(stream)
    destroyed = code(lambda: rig.native.destroy_stream(stream))
    rig.native.record_context(event, rig.context)
    early = rig.native.event_over(event)
    latch.open()
    return [destroyed, early, soon(lambda: rig.native.event_over(event), LIMIT)]


@fact()
def fact_event_of_the_context_and_later_work(rig: Rig) -> bool:
    """Is an event of the context over although work runs that came behind it?"""
    event, stream = rig.event(), rig.stream()
    first, second = rig.latch().run(stream), rig.latch()
    rig.native.record_context(event, rig.context)
    second.hold(stream)
    other = rig.stream()
    third = rig.latch().run(other)
    first.open()
    over = soon(lambda: rig.native.event_over(event), 2 * GRACE)
    second.open()
    third.open()
    return over


@fact()
def fact_event_of_the_context_does_not_block(rig: Rig) -> bool:
    """Does recording an event of the context return while a kernel runs?"""
    event, stream = rig.event(), rig.stream()
    latch = rig.latch().run(stream)
    recording = rig.attempt(lambda: rig.native.record_context(event, rig.context))
    returned = recording.returned()
    latch.open()
    recording.returned(LIMIT)
    return returned


@fact()
def fact_event_of_the_context_on_a_thread_without_one(rig: Rig) -> int | None:
    """What does recording an event of the context return on a thread without a context?"""
    event = rig.event()
    attempt = rig.attempt(lambda: rig.native.record_context(event, rig.context), entered=False)
    attempt.returned(LIMIT)
    return attempt.code


@fact()
def fact_wait_for_an_event_of_the_context(rig: Rig) -> list[bool]:
    """Is a stream held up that waits for an event of the context, while a kernel runs and afterwards?"""
    event, stream, words = rig.event(), rig.stream(), rig.words(1)
    latch = rig.latch().run(rig.stream())
    rig.native.record_context(event, rig.context)
    rig.native.wait_event(stream, event)
    rig.native.write_value(stream, words.at(0), 1)
    early = soon(lambda: words[0] == 1)
    latch.open()
    return [early, soon(lambda: words[0] == 1, LIMIT)]


@fact()
def fact_work_behind_an_event_of_the_context(rig: Rig) -> bool:
    """Does work on another stream go on that comes behind such a record while a kernel runs?"""
    event, stream, other, words = rig.event(), rig.stream(), rig.stream(), rig.words(1)
    latch = rig.latch().run(stream)
    rig.native.record_context(event, rig.context)
    rig.launch(other, "store", words.at(0), 1)
    done = soon(lambda: words[0] == 1)
    latch.open()
    return done
