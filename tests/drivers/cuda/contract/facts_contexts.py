"""Contexts, threads, and what the device says about itself."""

from __future__ import annotations

from typing import Any

from registry import fact
from rig import Rig, code

from tidegate.drivers.cuda._native import Attribute


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
