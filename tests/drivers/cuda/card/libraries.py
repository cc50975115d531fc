"""Other libraries on the same card, each behind the same few words: PyTorch, CuPy, and CUDA's own calls.

The last one needs no library and stands for all of them on the simulation. An array has 1,024 numbers of 32 bits. Each
library has a stream of its own, and what it does goes there.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import tidegate as tg
from tidegate._core import dlpack

from .programs import function, spin

LENGTH = 1024
LONG = 300_000_000
"""Nanoseconds that a long kernel takes."""

GHZ = 1.7
"""About what a card of today makes; the libraries count cycles."""

SPIN = """
extern "C" __global__ void spin(unsigned long long cycles) {
    long long begin = clock64();
    while ((unsigned long long)(clock64() - begin) < cycles) __nanosleep(1000);
}
"""


class Torch:
    """PyTorch."""

    def __init__(self, device: tg.Device) -> None:
        self._torch = pytest.importorskip("torch")
        if not self._torch.cuda.is_available():
            pytest.skip("this PyTorch has no CUDA")
        self.stream = self._torch.cuda.Stream()
        self.handle = self.stream.cuda_stream

    def array(self, value: int) -> Any:
        with self._torch.cuda.stream(self.stream):
            return self._torch.full((LENGTH,), value, dtype=self._torch.int32, device="cuda")

    def pointer(self, array: Any) -> int:
        return int(array.data_ptr())

    def fill(self, array: Any, value: int) -> None:
        with self._torch.cuda.stream(self.stream):
            array.fill_(value)

    def add(self, array: Any, value: int) -> None:
        with self._torch.cuda.stream(self.stream):
            array.add_(value)

    def numpy(self, array: Any) -> npt.NDArray[Any]:
        with self._torch.cuda.stream(self.stream):
            return array.cpu().numpy()  # type: ignore[no-any-return]

    def from_dlpack(self, view: tg.BufferView) -> Any:
        with self._torch.cuda.stream(self.stream):
            return self._torch.from_dlpack(view)

    def into_tidegate(self, array: Any, device: tg.Device) -> tg.BufferView:
        with self._torch.cuda.stream(self.stream):
            return tg.from_dlpack(array, device=device)

    def from_interface(self, view: tg.BufferView) -> Any:
        with self._torch.cuda.stream(self.stream):
            return self._torch.as_tensor(view, device="cuda")

    def event(self) -> Any:
        made = self._torch.cuda.Event()
        made.record(self.stream)
        return made

    def idle(self) -> bool:
        return bool(self.stream.query())

    def run_long(self, nanoseconds: int = LONG) -> None:
        with self._torch.cuda.stream(self.stream):
            self._torch.cuda._sleep(int(nanoseconds * GHZ))

    def close(self) -> None:
        self.stream.synchronize()


class Cupy:
    """CuPy."""

    def __init__(self, device: tg.Device) -> None:
        self._cupy = pytest.importorskip("cupy")
        self.stream = self._cupy.cuda.Stream(non_blocking=True)
        self.handle = self.stream.ptr
        self._spin = self._cupy.RawKernel(SPIN, "spin")

    def array(self, value: int) -> Any:
        with self.stream:
            return self._cupy.full(LENGTH, value, dtype=np.int32)

    def pointer(self, array: Any) -> int:
        return int(array.data.ptr)

    def fill(self, array: Any, value: int) -> None:
        with self.stream:
            array.fill(value)

    def add(self, array: Any, value: int) -> None:
        with self.stream:
            array += value

    def numpy(self, array: Any) -> npt.NDArray[Any]:
        return array.get(stream=self.stream)  # type: ignore[no-any-return]

    def from_dlpack(self, view: tg.BufferView) -> Any:
        with self.stream:
            return self._cupy.from_dlpack(view)

    def into_tidegate(self, array: Any, device: tg.Device) -> tg.BufferView:
        with self.stream:
            return tg.from_dlpack(array, device=device)

    def from_interface(self, view: tg.BufferView) -> Any:
        with self.stream:
            return self._cupy.asarray(view)

    def event(self) -> Any:
        return self.stream.record()

    def idle(self) -> bool:
        return bool(self.stream.done)

    def run_long(self, nanoseconds: int = LONG) -> None:
        with self.stream:
            self._spin((1,), (1,), (np.uint64(nanoseconds * GHZ),))

    def close(self) -> None:
        self.stream.synchronize()


class Array:
    """Memory that is used by CUDA's own calls, with the two methods of DLPack."""

    def __init__(self, library: Raw, memory: Any, address: int) -> None:
        self._library = library
        self._memory = memory
        self.address = address

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)

    def __dlpack__(self, *, stream: int, **_options: Any) -> Any:
        self._library.be_followed_by(stream)
        return self._memory.view(np.int32, LENGTH).__dlpack__(stream=-1)


class Raw:
    """CUDA's own calls, as a program in C would make them."""

    def __init__(self, device: tg.Device) -> None:
        self._device = device
        self._inner: Any = device._driver
        self._native = self._inner.native
        self._spin = function(device, spin)
        self._events: list[int] = []
        with self._entered():
            self.handle = self.stream = self._native.create_stream()

    @contextmanager
    def _entered(self) -> Iterator[None]:
        with self._inner.entered():
            yield

    def array(self, value: int) -> Array:
        memory = self._device.upload(np.zeros(LENGTH, np.int32))
        made = Array(self, memory, self._inner.interop.address(memory.locate()[0]))
        self.fill(made, value)
        return made

    def pointer(self, array: Any) -> int:
        return int(array.address)

    def fill(self, array: Any, value: int) -> None:
        with self._entered():
            self._native.fill(array.address, value, 4, LENGTH, self.handle)

    def add(self, array: Any, value: int) -> None:
        """Store where the others add: nothing of CUDA's adds without a kernel."""
        self.fill(array, int(self.numpy(array)[0]) + value)

    def numpy(self, array: Any) -> npt.NDArray[Any]:
        out = self._device.allocate(4 * LENGTH, memory="host")
        with self._entered():
            self._native.copy(self._inner.interop.address(out.locate()[0]), array.address, 4 * LENGTH, self.handle)
            self._native.synchronize_stream(self.handle)
        with out.map() as data:
            return data.view(np.int32).copy()

    def from_dlpack(self, view: tg.BufferView) -> Array:
        capsule = view.__dlpack__(stream=self.handle)
        return Array(self, capsule, int(dlpack._tensor(capsule).data or 0))

    def into_tidegate(self, array: Any, device: tg.Device) -> tg.BufferView:
        return tg.from_dlpack(array, device=device)

    def from_interface(self, view: tg.BufferView) -> Array:
        return Array(self, view, view.__cuda_array_interface__["data"][0])

    def be_followed_by(self, stream: int) -> None:
        with self._entered():
            event = self._native.create_event()
            self._native.record_event(event, self.handle)
            self._native.wait_event(stream, event)
            self._native.destroy_event(event)

    def event(self) -> Any:
        with self._entered():
            event = self._native.create_event()
            self._events.append(event)
            self._native.record_event(event, self.handle)
        return type("Event", (), {"handle": event})()

    def idle(self) -> bool:
        with self._entered():
            return bool(self._native.stream_idle(self.handle))

    def run_long(self, nanoseconds: int = LONG) -> None:
        launch = self._spin._function.launch((1, 1, 1), (), (nanoseconds,), 0)  # type: ignore[attr-defined]
        with self._entered():
            self._native.launch(launch, self.handle)

    def close(self) -> None:
        with self._entered():
            self._native.synchronize_stream(self.handle)
            self._native.destroy_stream(self.handle)
            while self._events:
                self._native.destroy_event(self._events.pop())


LIBRARIES: dict[str, Any] = {"torch": Torch, "cupy": Cupy, "raw": Raw}


def wait_for_event(device: tg.Device, stream: int, event: object) -> None:
    """Have a stream wait for an event of ours, as any library with the handle does it."""
    inner: Any = device._driver
    with inner.entered():
        inner.native.wait_event(stream, int(event))  # type: ignore[call-overload]


def as_pointer(buffer: tg.Buffer) -> int:
    """Where a buffer lies."""
    inner: Any = buffer.device._driver
    storage, offset = buffer.locate()
    return int(inner.interop.address(storage)) + offset
