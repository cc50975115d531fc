"""Barriers: submissions that do nothing but come behind others. As launchers, see `cuda_launchers`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from .contestants import Contestants
from .cuda_bindings import Arguments, Raw, check
from .cuda_kernels import SPIN, load_spin
from .cuda_launchers import ONE, Launcher, MakeLauncher, entered_word, iree, words_at
from .cuda_sides import BINDINGS, CORE, CUPY, FORMS, IREE, ONE_CALL, TIMEOUT, TORCH, cuda_core, imported, real_device

HOLD_NS = 20_000_000
"""How long the kernel takes that a held chain stands behind: longer than the chain takes to submit."""


@contextmanager
def _tidegate(side: str, chained: bool, hold_ns: int, contestants: Contestants) -> Iterator[Launcher]:
    import tidegate as tg

    device = contestants.form(FORMS[side])
    queue, spin = device.queue(), load_spin(device)
    semaphore, value, constants = tg.Semaphore(), 0, [np.uint64(hold_ns)]
    barrier, at = queue.barrier, semaphore.at

    def ready(_count: int) -> None:
        nonlocal value
        if hold_ns:
            before = value
            value = before + 1
            queue.dispatch(spin, ONE, constants=constants, wait=at(before), signal=at(value))

    def submit() -> None:
        nonlocal value
        value += 1
        barrier(signal=at(value))

    def submit_chained() -> None:
        nonlocal value
        before = value
        value = before + 1
        barrier(wait=at(before), signal=at(value))

    yield Launcher(submit_chained if chained else submit, lambda: semaphore.wait(value, TIMEOUT), ready)
    semaphore.wait(value, TIMEOUT)


@contextmanager
def _one_call(hold_ns: int, contestants: Contestants) -> Iterator[Launcher]:
    from ..drivers.cuda.native.compiled import bare_calls

    with entered_word(contestants) as word:
        native, spin = word.device.native, load_spin(contestants.device)
        launch = spin._function.launch(ONE, [], (np.uint64(hold_ns),), 0)
        device, stream, event, address = word.device, word.stream, word.event, word.address

        def ready(_count: int) -> None:
            if hold_ns:
                native.launch(launch, stream)

        def submit() -> None:
            word.value += 1
            code = bare_calls(device, stream, 0, 0, address, word.value, event)
            if code:
                raise RuntimeError(f"CUDA says {code}")

        yield Launcher(submit, word.wait, ready)
        word.wait()


@contextmanager
def _bindings(hold_ns: int, contestants: Contestants) -> Iterator[Launcher]:
    with Raw(contestants) as raw:
        stream, function = raw.stream(), raw.function("spin", SPIN)
        arguments = Arguments([ctypes.c_uint64(hold_ns)])
        address, value = raw.host_memory(64), 0
        words = words_at(address)
        write = raw.driver.cuStreamWriteValue64

        def ready(_count: int) -> None:
            if hold_ns:
                raw.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, stream, arguments.address, 0)

        def submit() -> None:
            nonlocal value
            value += 1
            (code,) = write(stream, address, value, 0)
            if code:
                check(code)

        def wait() -> None:
            end = monotonic() + TIMEOUT
            while words[0] < value:
                if monotonic() > end:
                    raise TimeoutError("the word was not raised")

        yield Launcher(submit, wait, ready)


@contextmanager
def _core(contestants: Contestants) -> Iterator[Launcher]:
    native = real_device(contestants)
    device = cuda_core().Device(native.ordinal)
    device.set_current()
    stream = device.create_stream()
    event = stream.record()
    yield Launcher(lambda: stream.record(event), event.sync)


@contextmanager
def _cupy(contestants: Contestants) -> Iterator[Launcher]:
    ordinal = real_device(contestants).ordinal
    module = imported("cupy", "cupy")
    with module.cuda.Device(ordinal), module.cuda.Stream(non_blocking=True) as stream:
        event = module.cuda.Event(disable_timing=True)
        yield Launcher(lambda: event.record(stream), event.synchronize)


@contextmanager
def _torch(contestants: Contestants) -> Iterator[Launcher]:
    ordinal = real_device(contestants).ordinal
    module: Any = imported("torch", "torch")
    stream, event = module.cuda.Stream(ordinal), module.cuda.Event()
    yield Launcher(lambda: event.record(stream), event.synchronize)


def barriers(chained: bool) -> dict[str, MakeLauncher]:
    """Return who submits barriers with nothing before them."""
    ours = {side: partial(_tidegate, side, chained, 0) for side in FORMS}
    return {
        **ours,
        ONE_CALL: partial(_one_call, 0),
        BINDINGS: partial(_bindings, 0),
        CORE: _core,
        CUPY: _cupy,
        TORCH: _torch,
        IREE: partial(iree, False, chained),
    }


def held_barriers(hold_ns: int = HOLD_NS) -> dict[str, MakeLauncher]:
    """Return who submits them behind a kernel that `ready` starts, so that nothing can be done on the host."""
    sides: dict[str, MakeLauncher] = {side: partial(_tidegate, side, True, hold_ns) for side in FORMS}
    return {**sides, ONE_CALL: partial(_one_call, hold_ns), BINDINGS: partial(_bindings, hold_ns)}
