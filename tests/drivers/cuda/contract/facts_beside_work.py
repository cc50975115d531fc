"""Which calls return while the device is busy: beside a kernel that runs, and beside a stream that waits.

Each call has been made before, so that what happens only once per process has happened.
"""

from __future__ import annotations

from collections.abc import Callable

from calls import ALL, PAGEABLE, Maker, pageable_down, pageable_up
from registry import Fact, fact, register
from rig import GRACE, LIMIT, Latch, Park, Rig, code, soon


def _returns_beside(rig: Rig, maker: Maker, gate: Latch | Park) -> bool:
    call = maker(rig)
    gate.run(rig.stream())
    attempt = rig.attempt(call)
    returned = attempt.returned()
    gate.open()
    if not attempt.returned(LIMIT):
        raise TimeoutError("the call did not return afterwards either")
    if attempt.code:
        raise RuntimeError(f"the call failed with {attempt.code}")
    return returned


def beside(maker: Maker) -> Callable[[Rig], dict[str, bool]]:
    """Return the question whether a call returns while the device is busy."""

    def ask(rig: Rig) -> dict[str, bool]:
        maker(rig)()
        running = _returns_beside(rig, maker, rig.latch())
        waiting = _returns_beside(rig, maker, rig.park())
        return {"beside a running kernel": running, "beside a waiting stream": waiting}

    return ask


for _name, _maker in ALL.items():
    register(
        Fact(
            f"{_name}_beside_work",
            f"Does {_name.replace('_', ' ')} return while a kernel runs, and while a stream waits?",
            beside(_maker),
        )
    )


class _OneStream(Rig):
    """A rig all of whose streams are the same."""

    def stream(self, priority: int = 0) -> int:
        return self._streams[0] if self._streams else super().stream(priority)


def _behind(maker: Maker) -> Callable[[Rig], bool]:
    def ask(rig: Rig) -> bool:
        with _OneStream(rig.session) as one:
            maker(one)()
            call = maker(one)
            one.latch().run(one.stream())
            return one.attempt(call).returned(GRACE)

    return ask


for _name, _size in PAGEABLE.items():
    for _way, _make in (("up", pageable_up), ("down", pageable_down)):
        register(
            Fact(
                f"copy_pageable_{_way}_{_name}_behind_a_kernel",
                f"Does a copy of {_name.replace('_', ' ')} {_way} return while a kernel runs before it on its stream?",
                _behind(_make(_size)),
            )
        )


@fact()
def fact_destroy_stream_with_work_on_it(rig: Rig) -> dict[str, bool]:
    """Does destroying a stream return while it works, and is what was on it still done?"""
    stream, words = rig.stream(), rig.words(1)
    rig.forget(stream)
    latch = rig.latch().run(stream)
    rig.native.write_value(stream, words.at(0), 1)
    attempt = rig.attempt(lambda: rig.native.destroy_stream(stream))
    returned = attempt.returned()
    latch.open()
    attempt.finish()
    return {"returned": returned, "done": soon(lambda: words[0] == 1, LIMIT)}


@fact(alone=True)
def fact_unload_library_of_the_running_kernel(rig: Rig) -> dict[str, object]:
    """Does unloading the library of a kernel that runs return, and does the kernel go on?"""
    library = rig.native.load_library(rig.session.image)
    function = rig.native.function(rig.native.kernel(library, "latch"))
    stream, latch = rig.stream(), rig.latch()
    rig.native.launch(latch.launch()._replace(function=function), stream)
    latch.wait_until_running()
    attempt = rig.attempt(lambda: rig.native.unload_library(library))
    returned = attempt.returned()
    latch.open()
    attempt.returned(LIMIT)
    return {"returned": returned, "code": attempt.code, "stream": code(lambda: rig.synchronize(stream))}
