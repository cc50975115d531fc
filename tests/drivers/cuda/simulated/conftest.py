"""A simulated machine to try things on: streams, words, kernels, and a kernel that the host holds."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tidegate.drivers.cuda._native import Launch, NativeError
from tidegate.testing import cuda_simulated
from tidegate.testing.cuda_simulated.stream import Stream

LIMIT = 30.0
ARCHITECTURE = ["--gpu-architecture=sm_90"]

KERNELS = """
extern "C" __global__ void nothing() {}
extern "C" __global__ void hold(volatile unsigned long long *arrived, volatile unsigned long long *opened) {
    *arrived += 1;
    long long begin = clock64();
    while (!*opened && clock64() - begin < 60000000000ll) __nanosleep(1000);
}
extern "C" __global__ void store(unsigned long long *target, unsigned long long value) { *target = value; }
extern "C" __global__ void add(unsigned long long *target, unsigned long long value) { *target += value; }
extern "C" __global__ void twice_plus(unsigned long long *target, unsigned long long value) {
    *target = 2 * *target + value;
}
extern "C" __global__ void overrun(unsigned char *target, unsigned long long count) {
    for (unsigned long long i = 0; i < count; ++i) target[i] = 1;
}
extern "C" __global__ void threads(unsigned *target) {
    unsigned block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    target[block * blockDim.x * blockDim.y * blockDim.z + thread] += 1;
}
extern "C" __global__ void sum(const unsigned *x, unsigned *y) {
    __shared__ unsigned part[256];
    part[threadIdx.x] = x[threadIdx.x];
    for (unsigned step = blockDim.x / 2; step; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    }
    __syncthreads();
    if (threadIdx.x == 0) *y = part[0];
}
extern "C" __global__ void atomics(unsigned *counter, float *total, int *most) {
    atomicAdd(counter, 1);
    atomicAdd(total, 0.5f);
    atomicMax(most, (int)threadIdx.x);
}
extern "C" __global__ void reverse(unsigned *x) {
    extern __shared__ unsigned copy[];
    copy[threadIdx.x] = x[threadIdx.x];
    __syncthreads();
    x[threadIdx.x] = copy[blockDim.x - 1 - threadIdx.x];
}
struct pair { float a; double b; };
extern "C" __global__ void mixed(char a, double *b, pair p, short t, float3 f) { *b = a + p.a + p.b + t + f.z; }
extern "C" __global__ void trap() { __trap(); }
"""


class Gate:
    """A kernel that runs until the host opens it."""

    def __init__(self, bench: Bench, stream: int) -> None:
        self._words = bench.words(2)
        bench.launch(stream, "hold", ctypes.addressof(self._words), ctypes.addressof(self._words) + 8)

    def wait_until_running(self) -> Gate:
        until(lambda: self._words[0] != 0)
        return self

    def open(self) -> None:
        self._words[1] = 1


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that has to come."""
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.0005)


def code(call: Callable[[], Any]) -> int:
    """Return the code of a call, 0 for success."""
    try:
        call()
    except NativeError as error:
        return error.code
    return 0


class Bench:
    """A machine, started, with its first context current on the thread that made it."""

    code = staticmethod(code)
    until = staticmethod(until)

    def __init__(self, image: bytes, **options: Any) -> None:
        self.native = cuda_simulated.native(**options)
        self.native.init()
        self.context = self.native.primary_context(0)
        self.native.push_context(self.context)
        self.library = self.native.load_library(image)
        self.function("nothing")  # now, since the first function of a library waits for all work
        self.pool = self.native.create_pool(0)
        self.unused = self.native.create_stream()
        self._gates: list[Gate] = []
        self._streams: list[int] = []

    def stream(self) -> int:
        self._streams.append(self.native.create_stream())
        return self._streams[-1]

    def gate(self, stream: int) -> Gate:
        """Hold a stream by a running kernel."""
        self._gates.append(Gate(self, stream))
        return self._gates[-1].wait_until_running()

    def words(self, count: int) -> Any:
        """Return words in page-locked memory."""
        cells = (ctypes.c_uint64 * count).from_address(self.native.allocate_host(8 * count))
        ctypes.memset(cells, 0, 8 * count)
        return cells

    def memory(self, nbytes: int) -> int:
        """Return device memory that is ready everywhere."""
        stream = self.stream()
        address = self.native.allocate(nbytes, self.pool, stream)
        self.native.synchronize_stream(stream)
        return address

    def function(self, name: str) -> int:
        return self.native.function(self.native.kernel(self.library, name))

    def call(self, name: str, *values: Any, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), shared: int = 0) -> Launch:
        cells = [value if hasattr(value, "_b_base_") else ctypes.c_uint64(value) for value in values]
        places = (ctypes.c_void_p * max(1, len(cells)))(*map(ctypes.addressof, cells))
        return Launch(self.function(name), grid, block, shared, ctypes.addressof(places), (cells, places))

    def launch(self, stream: int, name: str, *values: Any, **options: Any) -> None:
        self.native.launch(self.call(name, *values, **options), stream)

    def read(self, address: int, nbytes: int) -> bytes:
        """Return device memory, behind everything that is over."""
        stream, host = self.stream(), self.native.allocate_host(nbytes)
        self.native.copy(host, address, nbytes, stream)
        self.native.synchronize_stream(stream)
        return ctypes.string_at(host, nbytes)

    def close(self) -> None:
        """End everything, whatever it waits for."""
        for gate in self._gates:
            gate.open()
        for card in self.native.machine.cards:
            card.die(719)
        for stream in self._streams:
            self.native.machine.remove(Stream, stream).destroy()


@pytest.fixture(scope="session")
def image() -> bytes:
    """The kernels, compiled."""
    if not cuda_simulated.find_compiler():
        pytest.skip("there is no C++ compiler")
    return cuda_simulated.SimulatedNvrtc().compile(KERNELS, "kernels.cu", ARCHITECTURE)


@pytest.fixture
def make_bench(image: bytes) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**options: Any) -> Bench:
        made.append(Bench(image, **options))
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.fixture
def bench(make_bench: Callable[..., Bench]) -> Bench:
    return make_bench()


@pytest.fixture
def on_a_thread() -> Iterator[Callable[[Callable[[], Any]], Any]]:
    """Run a call on a thread of its own; all are waited for at the end."""
    threads: list[threading.Thread] = []

    def start(call: Callable[[], Any]) -> threading.Thread:
        threads.append(threading.Thread(target=call, daemon=True))
        threads[-1].start()
        return threads[-1]

    yield start
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()
    gc.collect()
