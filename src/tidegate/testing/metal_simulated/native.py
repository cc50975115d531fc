"""The namespace that stands in for PyObjC's frameworks, and the strings by which a test pulls the simulation."""

from __future__ import annotations

import itertools
import mmap
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from . import plain
from .compute_encoder import resolve
from .device import Device
from .dispatch import DispatchData, make_queue
from .events import Listener, SharedEvent
from .foundation import URL, Data
from .heaps import HeapDescriptor
from .library import MAGIC, CompileOptions, FunctionConstantValues
from .objects import Metal, metadata
from .pools import autorelease_pool
from .queue import CommandBufferDescriptor
from .rules import Violation
from .simulation import Fault, HostFunction, Settings, Simulation

__all__ = ["Native", "native"]

PAGE_FAULT = 3
FAULTS = ("command_buffer", "allocation", "compile", "pipeline", "queue", "event")


class _Class:
    """A class object: `Class.alloc().init()` and `Class.new()` make instances."""

    def __init__(self, simulation: Simulation, made: Callable[[Simulation], Metal]) -> None:
        self._simulation = simulation
        self._made = made

    def alloc(self) -> Any:
        """Return an instance; those without an init of their own get one."""
        instance = self._made(self._simulation)
        return instance if isinstance(instance, Listener) else _Allocated(instance)

    def new(self) -> Any:
        """Return an initialised instance."""
        return self.alloc().init()


class _Allocated:
    """An object between alloc and init."""

    def __init__(self, instance: Metal) -> None:
        self._instance = instance

    def init(self) -> Metal:
        """Return the object."""
        return self._instance


class _Files:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def fileURLWithPath_(self, path: str) -> URL:
        """Return the URL of a file."""
        return URL(self._simulation, path)


class _Datas:
    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def dataWithBytes_length_(self, data: Any, length: int) -> Data:
        """Return a copy of bytes."""
        return Data(self._simulation, bytes(memoryview(data).cast("B")[:length]))


class Native:
    """A simulated Metal: what the driver takes from PyObjC, and what a test takes from the simulation.

    Every enumerator of `selectors.json` and of `plain` is an attribute by its name. Close it at the end: it ends the
    threads, and with `check` says what went wrong.

    Attributes:
        violations: the rules that were broken.
        statistics: counts, by name: "blocked" (callers that had to wait in `commandBuffer`), "commits", "handlers"
            (blocks of command buffers that ran) and "notifications" (blocks of listeners).

    """

    def __init__(self, settings: Settings) -> None:
        simulation = self.simulation = Simulation(settings)
        for name, value in metadata()["enums"].items():
            setattr(self, name, value)
        for name, (value, _) in plain.CONSTANTS.items():
            setattr(self, name, name if name.endswith("Domain") else value)
        self.devices = [Device(simulation, index) for index in range(settings.devices)]
        self.MTLCompileOptions = _Class(simulation, CompileOptions)
        self.MTLHeapDescriptor = _Class(simulation, HeapDescriptor)
        self.MTLSharedEventListener = _Class(simulation, Listener)
        self.MTLFunctionConstantValues = _Class(simulation, FunctionConstantValues)
        self.MTLCommandBufferDescriptor = _Class(simulation, CommandBufferDescriptor)
        self.NSURL = _Files(simulation)
        self.NSData = _Datas(simulation)
        self._names = itertools.count(1)

    # What PyObjC has

    autorelease_pool = autorelease_pool

    def MTLCreateSystemDefaultDevice(self) -> Device | None:
        """Return the first device, if there is one."""
        return self.devices[0] if self.devices else None

    def MTLCopyAllDevices(self) -> tuple[Device, ...]:
        """Return all devices."""
        return tuple(self.devices)

    def MTLSizeMake(self, width: int, height: int, depth: int) -> tuple[int, int, int]:
        """Return an MTLSize."""
        return (width, height, depth)

    def NSMakeRange(self, location: int, length: int) -> tuple[int, int]:
        """Return an NSRange."""
        return (location, length)

    def dispatch_queue_create(self, label: bytes, attributes: None) -> Any:
        """Return a serial dispatch queue."""
        return make_queue(self.simulation, label, attributes)

    def dispatch_data_create(self, data: Any, size: int, queue: Any, destructor: Any) -> DispatchData:
        """Return dispatch data with a copy of bytes: what the default destructor, None, means."""
        if destructor is not None:
            raise NotImplementedError("dispatch_data_create: only the default destructor is simulated")
        return DispatchData(self.simulation, bytes(memoryview(data).cast("B")[:size]))

    # What tests use

    @property
    def violations(self) -> list[Violation]:
        """The rules that were broken, in order."""
        return self.simulation.violations

    @property
    def races(self) -> list[Violation]:
        """Accesses to the same memory that nothing orders; see `hazards`."""
        return self.simulation.hazards.races

    @property
    def statistics(self) -> dict[str, int]:
        """Counts, by name."""
        return dict(self.simulation.statistics)

    def wait_for(self, name: str, count: int = 1, timeout: float = 30.0) -> bool:
        """Block until something was counted so often; False if that took too long."""
        simulation = self.simulation
        with simulation.counted:
            return simulation.counted.wait_for(lambda: simulation.statistics[name] >= count, timeout)

    def register(self, name: str, function: HostFunction) -> None:
        """Have kernels of that name run `function(workgroups, bindings, constants)` on the host.

        The bindings are the kernel's pointers in the order of their indices, as arrays of bytes from the offset to the
        end of the buffer; the constants are its `constant T &` arguments. A function with a fourth parameter gets the
        values of the function constants, by name.
        """
        self.simulation.functions[name] = function

    def register_kernels(self, kernels: Iterable[Any]) -> None:
        """Register the Python functions of `tidegate.Kernel` objects."""
        for kernel in kernels:
            sources = kernel.implementations.get("cpu")
            for source in sources if isinstance(sources, list | tuple) else [sources]:
                if callable(source):
                    self.register(kernel.name, source)

    def host_kernel(self, function: HostFunction, parameters: str = "", name: str = "") -> tuple[str, str]:
        """Register a function under a fresh name; return the name and a source that has it as a kernel."""
        name = name or f"host_kernel_{next(self._names)}"
        self.register(name, function)
        return name, f"#include <metal_stdlib>\nusing namespace metal;\nkernel void {name}({parameters}) {{ }}\n"

    def metallib(self, source: str) -> bytes:
        """Return what a metallib of a source looks like here."""
        return MAGIC + source.encode()

    def resolve(self, address: int) -> Any:
        """Return the bytes behind a GPU address, inside a kernel."""
        return resolve(self.simulation, address)

    def fault(
        self,
        kind: str,
        *,
        code: int = PAGE_FAULT,
        text: str = "a fault was asked for",
        domain: str = "MTLCommandBufferErrorDomain",
        count: int = 1,
        skip: int = 0,
        matches: Callable[[Any], bool] | None = None,
        signals: bool = True,
    ) -> None:
        """Have something go wrong, `count` times, after it went well `skip` times.

        Args:
            kind: "command_buffer" (it ends in error, with domain, code and text; its signals happen all the same),
                "allocation" (no buffer, no heap), "compile" and "pipeline" (an NSError), "queue" and "event" (None).
            code: of the error.
            text: of the error.
            domain: of the error.
            count: how often.
            skip: how often not, before.
            matches: which command buffers, by a function of the command buffer.
            signals: whether a failing command buffer still signals. It does, as far as is known; Apple does not say.

        """
        if kind not in FAULTS:
            raise ValueError(f"no fault {kind!r}; there are {', '.join(FAULTS)}")
        with self.simulation.lock:
            self.simulation.faults.append(Fault(kind, code, text, domain, count, skip, matches, signals))

    def lose(self, text: str = "the device was removed", code: int = 11) -> None:
        """Have every command buffer end in error from now on."""
        self.simulation.lost = Fault("lost", code, text, "MTLCommandBufferErrorDomain", 0, 0)

    @property
    def before_completion(self) -> Callable[[Any], None] | None:
        """Called on the queue's thread with each command buffer, behind its last signal, before it is completed."""
        return self.simulation.before_completion

    @before_completion.setter
    def before_completion(self, hook: Callable[[Any], None] | None) -> None:
        self.simulation.before_completion = hook

    def new_shared_event(self) -> SharedEvent:
        """Return a shared event as another framework in the process would have it."""
        return SharedEvent(self.devices[0])

    def check(self) -> None:
        """Raise AssertionError if a rule was broken."""
        if self.violations:
            raise AssertionError("\n".join(str(violation) for violation in self.violations))

    def close(self, timeout: float = 5.0) -> bool:
        """End: waits for events are given up, threads end. Returns whether all of them did in time."""
        simulation = self.simulation
        simulation.closed = True
        with simulation.lock:
            events, lines, workers = list(simulation.events), list(simulation.lines), list(simulation.workers)
        for event in events:
            with event._state.changed:
                event._state.changed.notify_all()
        threads = []
        for line in lines:
            with line.changed:
                line.changed.notify_all()
                threads.append(line.thread)
        deadline = time.monotonic() + timeout
        for thread in threads:
            if thread is not None and thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        ended = all(worker.join(max(0.0, deadline - time.monotonic())) for worker in workers)
        return ended and not any(thread is not None and thread.is_alive() for thread in threads)


def native(seed: int = 0, **settings: Any) -> Native:
    """Return a simulated Metal; `settings` are those of `Settings`, the page size is this machine's."""
    return Native(Settings(seed=seed, **{"page": mmap.PAGESIZE, **settings}))
