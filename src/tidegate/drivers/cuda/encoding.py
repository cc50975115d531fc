"""What a submission becomes on a stream: native calls in order, and what to do on the host when they are over.

`ENCODERS` maps each kind of work to a function `encode(device, work, stream) -> Encoded`. It runs under the device's
lock, with the context current and the stream chosen, before an epoch is taken: it may raise, and then nothing has
happened. `Encoded.run` then makes the calls; whatever it raises fails the submission, but its epoch is taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tidegate.driver import Barrier, Copy, Dispatch, Fill, Mark, Span, Work

from ._native import Launch

if TYPE_CHECKING:
    from .device import CudaDevice
    from .executable import CudaFunction
    from .stream import Stream

Encoder = Callable[["CudaDevice", Any, "Stream"], "Encoded"]


class Encoded:
    """Work that is ready to go onto a stream.

    Attributes:
        places: how many of the stream's places it takes at most.
        over: called once when the epoch is over and before the submission retires; it may be called on any thread, and
            again if an interrupt cut it short.
        event_only: whether no word shall be raised behind it: see `stream`.

    """

    __slots__ = ("over", "places")
    event_only = False

    def __init__(self, places: int = 1, over: Callable[[], None] | None = None) -> None:
        self.places = places
        self.over = over

    def run(self, stream: Stream) -> None:
        """Make the native calls."""


class NotNow(Exception):
    """Raised by an encoder: there is no room now; `issue` then says "not now"."""


NOTHING = Encoded(0)


def address_of(span: Any) -> int:
    """Return where a range lies."""
    storage, offset = span.locate()
    return storage.address + offset  # type: ignore[no-any-return]


class EncodedFill(Encoded):
    """A fill."""

    __slots__ = ("address", "count", "element", "value")

    def __init__(self, target: Span, pattern: bytes) -> None:
        super().__init__()
        self.address = address_of(target)
        self.element = len(pattern)
        self.value = int.from_bytes(pattern, "little")
        self.count = target.nbytes // len(pattern)

    def run(self, stream: Stream) -> None:
        stream.device.native.fill(self.address, self.value, self.element, self.count, stream.handle)


class EncodedCopy(Encoded):
    """A copy between addresses that CUDA knows."""

    __slots__ = ("nbytes", "source", "target")

    def __init__(self, target: int, source: int, nbytes: int, over: Callable[[], None] | None = None) -> None:
        super().__init__(1, over)
        self.target = target
        self.source = source
        self.nbytes = nbytes

    def run(self, stream: Stream) -> None:
        stream.device.native.copy(self.target, self.source, self.nbytes, stream.handle)


class EncodedTransfer(EncodedCopy):
    """A copy between host and device that takes a while."""

    __slots__ = ()
    event_only = True


class EncodedLaunch(Encoded):
    """A kernel."""

    __slots__ = ("launch",)

    def __init__(self, launch: Launch) -> None:
        super().__init__()
        self.launch = launch

    def run(self, stream: Stream) -> None:
        stream.device.native.launch(self.launch, stream.handle)


def _encode_barrier(device: CudaDevice, work: Barrier | Mark, stream: Stream) -> Encoded:
    return NOTHING


def _encode_fill(device: CudaDevice, work: Fill, stream: Stream) -> Encoded:
    return EncodedFill(work.target, work.pattern) if work.target.nbytes else NOTHING  # type: ignore[union-attr, arg-type]


def _encode_copy(device: CudaDevice, work: Copy, stream: Stream) -> Encoded:
    nbytes = work.source.nbytes  # type: ignore[union-attr]
    return EncodedCopy(address_of(work.target), address_of(work.source), nbytes) if nbytes else NOTHING


def _encode_dispatch(device: CudaDevice, work: Dispatch, stream: Stream) -> Encoded:
    if 0 in work.workgroups:
        return NOTHING
    function: CudaFunction = work.function  # type: ignore[assignment]
    addresses = [address_of(binding) for binding in work.bindings]
    return EncodedLaunch(function.launch_now(work.workgroups, addresses, work.constants, work.local_memory))


ENCODERS: dict[type[Work], Encoder] = {
    Barrier: _encode_barrier,
    Mark: _encode_barrier,
    Fill: _encode_fill,
    Copy: _encode_copy,
    Dispatch: _encode_dispatch,
}

Reporter = Callable[["CudaDevice", Any, Any], "bool | None"]

REPORTED: dict[type[Work], Reporter] = {}
"""Work that threads of the driver do, in several steps: `take(device, ticket, work)`.

Asked first, without the lock, and only when no wait is open. True: taken, and reported to the sink when it is over;
False: not now; None: this one goes onto a stream.
"""
