"""What a fact is made with: streams, words, kernels, gates, and calls on threads of their own.

A `Session` is what lasts as long as the process: the context and the compiled kernels. A `Rig` is what lasts as long as
a fact. When it closes it opens every gate, waits for its threads and streams, and gives everything back; not so where
the fact is the last of its process, since it may leave a context behind in which every call fails, or none.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sources

from tidegate.drivers.cuda._native import Launch, NativeError
from tidegate.drivers.cuda._nvrtc import CompilerError
from tidegate.drivers.cuda._prototypes import PoolAttribute

#: How long a call that is thought to block is watched before that is believed.
GRACE = float(os.environ.get("TIDEGATE_CONTRACT_GRACE", "0.5"))

#: How long to wait for what has to come.
LIMIT = 10.0

#: After so many cycles of the device a closed latch lets go by itself: some eight seconds.
CYCLES = 16_000_000_000

ARENA = 1 << 18
MIB = 1 << 20
EVERYTHING = (1 << 64) - 1


def outcome(call: Callable[[], Any]) -> tuple[int, Any]:
    """Return the code of a call, 0 for success, and what it returned."""
    try:
        return 0, call()
    except NativeError as error:
        return error.code, None


def code(call: Callable[[], Any]) -> int:
    """Return the code of a call."""
    return outcome(call)[0]


def soon(condition: Callable[[], bool], limit: float = GRACE) -> bool:
    """Whether a condition comes true in time."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return condition()
        time.sleep(0.0005)
    return True


class Session:
    """The context and the kernels of the process."""

    _all: dict[int, Session] = {}

    def __init__(self, native: Any, compiler: Any) -> None:
        self.native = native
        self.compiler = compiler
        native.init()
        self.device = native.device(0)
        self.context = native.primary_context(self.device)
        native.push_context(self.context)
        major, minor = (native.device_attribute(number, self.device) for number in (75, 76))
        self.options = [f"--gpu-architecture=sm_{major}{minor}"]
        self.image = self.compile(sources.KERNELS)
        self.library = native.load_library(self.image)
        # Now, since loading a function may wait for a kernel that a fact keeps running.
        self._functions = {name: native.function(native.kernel(self.library, name)) for name in sources.NAMES}

    @classmethod
    def of(cls, native: Any, compiler: Any) -> Session:
        """Return the session of a native layer."""
        if id(native) not in cls._all:
            cls._all[id(native)] = cls(native, compiler)
        return cls._all[id(native)]

    def compile(self, *candidates: str) -> bytes:
        """Return the image of the first source that compiles."""
        for source in candidates[:-1]:
            try:
                return self._compile(source)
            except CompilerError:
                continue
        return self._compile(candidates[-1])

    def _compile(self, source: str) -> bytes:
        """Compile a source, or take what another process of the same record has compiled."""
        cache = os.environ.get("TIDEGATE_CONTRACT_CACHE", "")
        path = Path(cache, hashlib.sha256(repr((source, self.options)).encode()).hexdigest())
        if cache and path.exists():
            return path.read_bytes()
        image = self.compiler.compile(source, "contract.cu", self.options)
        if cache:
            path.write_bytes(image)
        return bytes(image)

    def function(self, name: str) -> int:
        """Return a loaded function of `sources.KERNELS`."""
        return self._functions[name]


class Words:
    """Some 64-bit words that host and device both see."""

    def __init__(self, address: int, count: int) -> None:
        self.address = address
        self._cells = (ctypes.c_uint64 * count).from_address(address)

    def at(self, index: int) -> int:
        """Return the address of one."""
        return self.address + 8 * index

    def __getitem__(self, index: int) -> int:
        return self._cells[index]

    def __setitem__(self, index: int, value: int) -> None:
        self._cells[index] = value

    def list(self) -> list[int]:
        """Return all."""
        return list(self._cells)


class Latch:
    """A kernel that runs until the host lets it go on."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.words = rig.words(2)

    def launch(self) -> Launch:
        """Return the kernel."""
        return self._rig.call("latch", self.words.at(0), self.words.at(1), CYCLES)

    def hold(self, stream: int) -> Latch:
        """Put it on a stream."""
        self._rig.native.launch(self.launch(), stream)
        return self

    def run(self, stream: int) -> Latch:
        """Put it on a stream and wait until it runs."""
        before = self.arrivals
        self.hold(stream)
        self.wait_until_running(before)
        return self

    def wait_until_running(self, before: int = 0) -> None:
        """Wait until more kernels than `before` have come."""
        if not soon(lambda: self.arrivals > before, LIMIT):
            raise TimeoutError("the latch never ran")

    @property
    def arrivals(self) -> int:
        """How many kernels have come to it."""
        return self.words[1]

    def open(self) -> None:
        """Let all of them go on."""
        self.words[0] = 1


class Park:
    """A word that streams wait for."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.words = rig.words(1)

    def run(self, stream: int) -> Park:
        """Have a stream wait."""
        self._rig.native.wait_value(stream, self.words.at(0), 1)
        return self

    def open(self) -> None:
        """Let all of them go on."""
        self.words[0] = 1


class Attempt:
    """A call on a thread of its own, in the context unless told otherwise."""

    def __init__(self, rig: Rig, call: Callable[[], Any], entered: bool = True) -> None:
        self.code: int | None = None
        self.value: Any = None
        self._error: BaseException | None = None
        self._over = threading.Event()
        self._rig, self._call, self._entered = rig, call, entered
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            if self._entered:
                self._rig.native.push_context(self._rig.context)
            self.code, self.value = outcome(self._call)
        except BaseException as error:
            self._error = error
        finally:
            self._over.set()

    def returned(self, limit: float = GRACE) -> bool:
        """Whether it is over in time."""
        over = self._over.wait(limit)
        if self._error is not None:
            raise self._error
        return over

    def finish(self) -> Any:
        """Return what it returned; its code is checked."""
        if not self.returned(LIMIT):
            raise TimeoutError("a call never returned")
        if self.code:
            raise RuntimeError(f"a call failed with {self.code}")
        return self.value


class Rig:
    """What one fact uses."""

    def __init__(self, session: Session, last: bool = False) -> None:
        self.session = session
        self._last = last
        self.native = session.native
        self.device = session.device
        self.context = session.context
        self._arena = 0
        self._used = 0
        self._pool = 0
        self._gates: list[Latch | Park] = []
        self._attempts: list[Attempt] = []
        self._streams: list[int] = []
        self._allocated: list[int] = []
        self._undo: list[Callable[[], Any]] = []

    def __enter__(self) -> Rig:
        self._arena = self.native.allocate_host(ARENA)
        ctypes.memset(self._arena, 0, ARENA)
        return self

    def __exit__(self, *_: object) -> None:
        for gate in self._gates:
            gate.open()
        if not self._last:
            self._clean_up()

    def _clean_up(self) -> None:
        for attempt in self._attempts:
            soon(attempt._over.is_set, LIMIT)
        for stream in self._streams:
            code(lambda stream=stream: self.native.synchronize_stream(stream))
        for address in self._allocated:
            code(lambda address=address: self.native.free(address, self._streams[0]))
        for undo in reversed(self._undo):
            code(undo)
        for stream in self._streams:
            code(lambda stream=stream: self.native.synchronize_stream(stream))
            code(lambda stream=stream: self.native.destroy_stream(stream))
        code(lambda: self.native.free_host(self._arena))

    def undo(self, call: Callable[[], Any]) -> None:
        """Have something done at the end."""
        self._undo.append(call)

    def forget(self, stream: int) -> None:
        """Leave a stream to the fact."""
        self._streams.remove(stream)

    # Objects ----------------------------------------------------------------------------------------------------------

    def stream(self, priority: int = 0) -> int:
        """Create a stream."""
        self._streams.append(self.native.create_stream(priority))
        return self._streams[-1]

    def event(self) -> int:
        """Create an event."""
        event = self.native.create_event()
        self.undo(lambda: self.native.destroy_event(event))
        return event

    def words(self, count: int) -> Words:
        """Return words in page-locked memory, all zero."""
        address = self.pinned(8 * count)
        return Words(address, count)

    def pinned(self, nbytes: int) -> int:
        """Return the address of page-locked memory, all zero."""
        address = self._arena + self._used
        self._used += (nbytes + 255) // 256 * 256
        if self._used > ARENA:
            raise MemoryError("the fact wants more page-locked memory than a rig has")
        return address

    def pool(self, max_size: int = 0, threshold: int | None = EVERYTHING) -> int:
        """Create a pool that keeps what it has."""
        pool = self.native.create_pool(self.device, max_size)
        self.undo(lambda: self.native.destroy_pool(pool))
        if threshold is not None:
            self.native.set_pool(pool, PoolAttribute.RELEASE_THRESHOLD, threshold)
        return pool

    def memory(self, nbytes: int) -> int:
        """Return the address of memory of the device, ready on every stream."""
        self._pool = self._pool or self.pool()
        stream = self.stream()
        address = self.native.allocate(nbytes, self._pool, stream)
        self.native.synchronize_stream(stream)
        self._allocated.append(address)
        return address

    def library(self, image: bytes | None = None) -> int:
        """Load a library once more."""
        library = self.native.load_library(image or self.session.image)
        self.undo(lambda: self.native.unload_library(library))
        return library

    def graph(self) -> int:
        """Create a graph."""
        graph = self.native.create_graph()
        self.undo(lambda: self.native.destroy_graph(graph))
        return graph

    def instance(self, graph: int) -> int:
        """Make an instance of a graph."""
        instance = self.native.instantiate_graph(graph)
        self.undo(lambda: self.native.destroy_graph_instance(instance))
        return instance

    # Work -------------------------------------------------------------------------------------------------------------

    def call(self, name: str | int, *values: int, grid: Any = (1, 1, 1), block: Any = (1, 1, 1), **rest: Any) -> Launch:
        """Return a launch of a kernel; a number is a function of another library."""
        function = self.session.function(name) if isinstance(name, str) else name
        cells = (ctypes.c_uint64 * max(1, len(values)))(*values)
        places = (ctypes.addressof(cells) + 8 * index for index in range(len(cells)))
        pointers = (ctypes.c_void_p * len(cells))(*places)
        rest = {"shared": 0, **rest}
        return Launch(function, grid, block, params=ctypes.addressof(pointers), keep=(cells, pointers), **rest)

    def launch(self, stream: int, name: str | int, *values: int, **rest: Any) -> None:
        """Launch a kernel."""
        self.native.launch(self.call(name, *values, **rest), stream)

    def synchronize(self, *streams: int) -> None:
        """Wait for streams."""
        for stream in streams:
            self.native.synchronize_stream(stream)

    def read(self, address: int, nbytes: int) -> bytes:
        """Return memory of the device as it is now."""
        stream, target = self.stream(), self.pinned(nbytes)
        self.native.copy(target, address, nbytes, stream)
        self.native.synchronize_stream(stream)
        return ctypes.string_at(target, nbytes)

    # Gates and threads ------------------------------------------------------------------------------------------------

    def latch(self) -> Latch:
        """Return a closed latch."""
        self._gates.append(Latch(self))
        return self._gates[-1]  # type: ignore[return-value]

    def park(self) -> Park:
        """Return a word to wait for."""
        self._gates.append(Park(self))
        return self._gates[-1]  # type: ignore[return-value]

    def attempt(self, call: Callable[[], Any], entered: bool = True) -> Attempt:
        """Make a call on a thread of its own."""
        self._attempts.append(Attempt(self, call, entered))
        return self._attempts[-1]

    def returns(self, call: Callable[[], Any]) -> bool:
        """Whether a call returns while things are as they are."""
        return self.attempt(call).returned()

    def passes(self, stream: int) -> bool:
        """Whether a stream gets to work that is put on it now."""
        seen = self.words(1)
        self.native.write_value(stream, seen.at(0), 1)
        return soon(lambda: seen[0] == 1)
