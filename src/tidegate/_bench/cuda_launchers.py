"""The smallest kernel there is, given to a stream again and again: the same thing by every side.

A launcher submits once per call and waits for all it has submitted. What a side must prepare for each submission, so
that it is not part of the time, it does in `ready`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any

import numpy as np

from .contestants import Contestants, iree_runtime
from .cuda_bindings import Arguments, Raw, check
from .cuda_kernels import TOUCH, load_touch
from .cuda_sides import (
    BINDINGS,
    CORE,
    CUPY,
    EVENTS,
    FORMS,
    IREE,
    ONE_CALL,
    TIMEOUT,
    TORCH,
    cuda_core,
    imported,
    iree_device,
    real_device,
)
from .model import TIDEGATE

ONE = (1, 1, 1)


def nothing(_count: int) -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Launcher:
    """What a side can do: `submit` one, `wait` for all, and get `ready` for a number of them."""

    submit: Callable[[], object]
    wait: Callable[[], object]
    ready: Callable[[int], object] = nothing


MakeLauncher = Callable[[Contestants], AbstractContextManager[Launcher]]


@contextmanager
def tidegate(side: str, chained: bool, contestants: Contestants) -> Iterator[Launcher]:
    """Dispatch; `chained`: each waits for the one before."""
    import tidegate as tg

    device = contestants.form(FORMS[side])
    dispatch, function = device.queue().dispatch, load_touch(device)
    counter, semaphore, value = device.upload(np.zeros(1, np.uint32)), tg.Semaphore(), 0
    at, bindings = semaphore.at, [counter]

    def submit() -> None:
        nonlocal value
        value += 1
        dispatch(function, ONE, bindings=bindings, signal=at(value))

    def submit_chained() -> None:
        nonlocal value
        before = value
        value = before + 1
        dispatch(function, ONE, bindings=bindings, wait=at(before), signal=at(value))

    yield Launcher(submit_chained if chained else submit, lambda: semaphore.wait(value, TIMEOUT))
    semaphore.wait(value, TIMEOUT)


def words_at(address: int) -> memoryview:
    """Return eight words of page-locked memory, set to 0: looking into them is no call into CUDA."""
    words = memoryview((ctypes.c_uint8 * 64).from_address(address)).cast("B").cast("Q")
    words[0] = 0
    return words


class Word:
    """A stream of our own with a word that it raises: the calls that Tidegate makes, without Tidegate around them."""

    def __init__(self, contestants: Contestants) -> None:
        device: Any = contestants.device._driver
        self.device = device
        native = device.native
        with device.entered():
            self.stream, self.event = native.create_stream(), native.create_event(blocking=False)
            self.address = native.allocate_host(64)
        self.value = 0
        self._words = words_at(self.address)

    def wait(self) -> None:
        """Look until the word is there."""
        words, value = self._words, self.value
        end = monotonic() + TIMEOUT
        while words[0] < value:
            if monotonic() > end:
                raise TimeoutError("the word was not raised")

    def close(self) -> None:
        """Give everything back."""
        native = self.device.native
        with suppress(Exception), self.device.entered():
            native.synchronize_stream(self.stream)
            native.destroy_event(self.event)
            native.destroy_stream(self.stream)
            native.free_host(self.address)


@contextmanager
def entered_word(contestants: Contestants) -> Iterator[Word]:
    """Give a word, with the context current as long as it lives."""
    word = Word(contestants)
    try:
        with word.device.entered():
            yield word
    finally:
        word.close()


@contextmanager
def one_call(contestants: Contestants) -> Iterator[Launcher]:
    """Make the calls of a submission in C, at once: nothing in Python can be faster."""
    from ..drivers.cuda.encoding import address_of
    from ..drivers.cuda.native.compiled import bare_calls

    with entered_word(contestants) as word:
        function = load_touch(contestants.device)
        counter = contestants.device.upload(np.zeros(1, np.uint32))
        launch = function._function.launch(ONE, [address_of(counter)], (), 0)
        device, stream, event, address = word.device, word.stream, word.event, word.address
        handle, params = launch.function, launch.params

        def submit() -> None:
            word.value += 1
            code = bare_calls(device, stream, handle, params, address, word.value, event)
            if code:
                raise RuntimeError(f"CUDA says {code}")

        yield Launcher(submit, word.wait)
        word.wait()


@contextmanager
def bindings(contestants: Contestants) -> Iterator[Launcher]:
    """Launch with arguments packed before, and record an event; wait for that, spinning."""
    with Raw(contestants) as raw:
        stream, event, function = raw.stream(), raw.event(), raw.function("touch", TOUCH)
        arguments = Arguments([ctypes.c_void_p(raw.memory(256))])
        launch, record, params = raw.driver.cuLaunchKernel, raw.driver.cuEventRecord, arguments.address
        synchronize = raw.driver.cuEventSynchronize

        def submit() -> None:
            (code,) = launch(function, 1, 1, 1, 1, 1, 1, 0, stream, params, 0)
            if code:
                check(code)
            (code,) = record(event, stream)
            if code:
                check(code)

        yield Launcher(submit, lambda: check(synchronize(event)[0]))


@contextmanager
def core(contestants: Contestants) -> Iterator[Launcher]:
    """Launch by cuda.core, and synchronise the stream."""
    from .cuda_kernels import cubin

    native = real_device(contestants)
    module = cuda_core()
    device = module.Device(native.ordinal)
    device.set_current()
    stream = device.create_stream()
    kernel = module.ObjectCode.from_cubin(cubin(TOUCH, native.architecture)).get_kernel("touch")
    memory = device.allocate(256, stream=stream)
    launch, config = module.launch, module.LaunchConfig(grid=1, block=1)
    yield Launcher(lambda: launch(stream, config, kernel, memory), stream.sync)
    stream.sync()


@contextmanager
def cupy(contestants: Contestants) -> Iterator[Launcher]:
    """Launch a RawKernel of CuPy on the current stream."""
    ordinal = real_device(contestants).ordinal
    module = imported("cupy", "cupy")
    with module.cuda.Device(ordinal):
        kernel, counter = module.RawKernel(TOUCH, "touch"), module.zeros(1, module.uint32)
        grid, arguments = (1,), (counter,)
        with module.cuda.Stream(non_blocking=True) as stream:
            kernel(grid, grid, arguments)
            stream.synchronize()
            yield Launcher(lambda: kernel(grid, grid, arguments), stream.synchronize)
            stream.synchronize()


@contextmanager
def torch(contestants: Contestants) -> Iterator[Launcher]:
    """Launch a kernel of our own by PyTorch where it can, else add one to a tensor."""
    ordinal = real_device(contestants).ordinal
    module = imported("torch", "torch")
    counter = module.zeros(1, dtype=module.int32, device=f"cuda:{ordinal}")
    module.cuda.synchronize()
    stream = module.cuda.Stream(ordinal)
    with module.cuda.stream(stream):
        submit, note = _torch_submit(module, counter)
        contestants.notes[TORCH] = note
        submit()
        stream.synchronize()
        yield Launcher(submit, stream.synchronize)
        stream.synchronize()


def _torch_submit(module: Any, counter: Any) -> tuple[Callable[[], object], str]:
    arguments = [counter]
    try:
        kernel = module.cuda._compile_kernel(TOUCH, "touch")
        kernel(grid=ONE, block=ONE, args=arguments)
        module.cuda.current_stream().synchronize()
    except Exception:  # private, and of late versions only
        return lambda: counter.add_(1), "counter.add_(1), a kernel of PyTorch's own"
    return lambda: kernel(grid=ONE, block=ONE, args=arguments), "torch.cuda._compile_kernel"


@contextmanager
def iree(filled: bool, chained: bool, contestants: Contestants) -> Iterator[Launcher]:
    """Execute command buffers with one small fill, or none: its Python bindings have no dispatch."""
    runtime, device = iree_runtime(), iree_device(contestants)
    contestants.notes[IREE] = "a fill of 4 bytes in place of the kernel: its Python bindings have no dispatch"
    usage, kind = runtime.BufferUsage.DEFAULT, runtime.MemoryType.DEVICE_LOCAL
    buffer = device.allocator.allocate_buffer(kind, usage, 4) if filled else None
    semaphore, value = device.create_semaphore(0), 0
    ready: list[Any] = []

    def record(count: int) -> None:
        for _ in range(count - len(ready)):
            commands = runtime.HalCommandBuffer(device)
            if buffer is not None:
                commands.fill(buffer, np.uint32(1))
            commands.end()
            ready.append(commands)

    def submit() -> None:
        nonlocal value
        before = value
        value = before + 1
        device.queue_execute(ready.pop(), [(semaphore, before)] if chained else [], [(semaphore, value)])

    def wait() -> None:
        if not semaphore.wait(value, timeout=int(TIMEOUT * 1e9)):
            raise TimeoutError("the semaphore did not reach its value")

    yield Launcher(submit, wait, record)


def kernels(chained: bool) -> dict[str, MakeLauncher]:
    """Return who launches kernels; a stream orders those of the others in any case."""
    return {
        TIDEGATE: partial(tidegate, TIDEGATE, chained),
        EVENTS: partial(tidegate, EVENTS, chained),
        ONE_CALL: one_call,
        BINDINGS: bindings,
        CORE: core,
        CUPY: cupy,
        TORCH: torch,
        IREE: partial(iree, True, chained),
    }
