"""Code on the GPU: loaded once for all devices of the process that are open on it, and only at rest.

Measured: to bring code onto a GPU, and to take it away, waits until nothing runs or waits there, and meanwhile holds a
lock of CUDA's, so that a launch from any other thread stands still too; with the GIL, if it keeps that. So code is
loaded while no open device has work in flight and none can begin any; what is there already is found again by its
content. Who loads something new while work runs waits until that is over. If it never is, because there is always more,
new work stays on the host for a while; and then goes on for a moment, and stays for twice as long, and so on: what runs
may be waiting for something that is still to come.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from weakref import WeakSet

from tidegate._core import process
from tidegate._core.background import deferred as reaper

from ._errors import is_not_found
from ._native import Native, NativeError
from .page_locked import at_rest, open_devices

if TYPE_CHECKING:
    from .device import CudaDevice

_PAUSE = 0.0005
_PATIENCE = 0.25
"""How long loading waits for a moment of rest before it keeps new work back, in seconds."""
_LONGEST = 4.0
"""How long it keeps it back at most."""
_BREAK = 0.05
"""How long it lets it go on in between."""

Result = TypeVar("Result")


class Loaded(NamedTuple):
    """A function that is on the GPU; `parameters` are None where the driver cannot tell."""

    handle: int
    parameters: list[tuple[int, int]] | None


class Library:
    """Code by its content, and the functions of it that are on the GPU.

    To load a library is quick, and nobody looks at it then: what is wrong with it is told by whichever call needs it
    first. To find its kernels compiles PTX, which takes a while and needs nothing of the GPU. All else that is asked
    of it brings it there, even the size of a parameter.
    """

    def __init__(self, native: Native, image: bytes) -> None:
        self._native = native
        self.handle = native.load_library(image)
        self._functions: dict[str, Loaded] = {}
        self._names: list[str] | None = None

    def functions(self, name: str | None = None) -> dict[str, Loaded]:
        """Return one function, or all of them, brought onto the GPU if they are not there. The context is current.

        Raises:
            NativeError: CUDA does not take the code; or it has no such function, which is a code of its own.

        """
        names = self._all_names() if name is None else [name]
        missing = {each: self._kernel(each) for each in names if each not in self._functions}
        if missing:
            when_at_rest(lambda: self._bring(missing))
        return {each: self._functions[each] for each in names}

    def _all_names(self) -> list[str]:
        if self._names is None:
            names = self.names()
            if not names:
                self._look_at_all_of_it()  # of code that no card takes, CUDA says that it has no kernels
            self._names = names
        return self._names

    def _kernel(self, name: str) -> int:
        try:
            return self._native.kernel(self.handle, name)
        except NativeError as error:
            if is_not_found(error):
                self._look_at_all_of_it()  # it may have none because nothing of it is any good
            raise

    def _look_at_all_of_it(self) -> None:
        """Have CUDA say what is wrong with the code, if there is anything."""
        when_at_rest(lambda: self._native.module(self.handle))

    def _bring(self, kernels: Mapping[str, int]) -> None:
        for name, kernel in kernels.items():
            function = self._native.function(kernel)
            self._functions[name] = Loaded(function, self._native.kernel_parameters(kernel))

    def names(self) -> list[str]:
        """Return which kernels there are, as far as that can be told."""
        return list(self._native.kernels(self.handle))


class Code:
    """What is loaded on one GPU. Kept until the last device that is open on it is closed."""

    def __init__(self, native: Native) -> None:
        self._native = native
        self._lock = threading.RLock()
        self._libraries: dict[bytes, Library] = {}
        self._users: WeakSet[CudaDevice] = WeakSet()

    def join(self, device: CudaDevice) -> None:
        """One more device is open."""
        with self._lock:
            self._users.add(device)

    def leave(self, device: CudaDevice) -> None:
        """One less; the last one takes the code away, if all is at rest. The context is current, no lock held.

        Devices that reach CUDA by another way may have work on the same GPU. Then the code stays, for the next device
        that is opened there.
        """
        with self._lock:
            self._users.discard(device)
            last = not self._users
        if last:
            at_rest(self._clear)

    def _clear(self) -> None:
        with self._lock:
            while self._libraries and not self._users:
                self._unload(self._libraries.popitem()[1])

    def _unload(self, library: Library) -> None:
        try:
            self._native.unload_library(library.handle)
        except NativeError:
            pass  # the context is lost, and the code with it

    def library(self, image: bytes) -> Library:
        """Return code, loaded before or now."""
        digest = hashlib.sha256(image).digest()
        with self._lock:
            found = self._libraries.get(digest)
            if found is None:
                found = self._libraries[digest] = Library(self._native, image)
            return found


_codes: dict[tuple[int, int], Code] = {}
_table = threading.RLock()


def code_of(device: CudaDevice) -> Code:
    """Return what is loaded on the GPU of a device."""
    with _table:
        return _codes.setdefault((id(device.native), device.handle), Code(device.native))


def when_at_rest(load: Callable[[], Result]) -> Result:
    """Call `load` as soon as no open device has work in flight. Under no lock of ours; an interrupt ends the wait."""
    done: list[Result] = []

    def once() -> None:
        done.append(load())

    patience = _PATIENCE
    while not _rest_within(patience, once):
        if _rest_by_force(patience, once) or _rest_within(_BREAK, once):
            break
        patience = min(2 * patience, _LONGEST)
    return done[0]


def _rest_within(seconds: float, then: Callable[[], None]) -> bool:
    limit = time.monotonic() + seconds
    while not at_rest(then):
        if time.monotonic() >= limit:
            return False
        time.sleep(_PAUSE)
    return True


def _rest_by_force(seconds: float, then: Callable[[], None]) -> bool:
    """Do the same with new work kept back."""
    devices = open_devices()
    token = object()
    leave, note = reaper._notes.put, (_let_go, (devices, token))
    try:
        for device in devices:
            device.quiet.add(token)
        return _rest_within(seconds, then)
    finally:
        leave(note)  # one call, in C: an interrupt can come behind it only


def _let_go(devices: list[CudaDevice], token: object) -> None:
    for device in devices:
        device.quiet.discard(token)
        device.sink.room()


def _renew_in_child() -> None:
    _table._at_fork_reinit()  # type: ignore[attr-defined]


process.in_child(_renew_in_child)
