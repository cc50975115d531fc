"""Semaphores to the outside, as a device's own events (MTLSharedEvent), for other users of that device in the process.

The drivers do the work. This module only finds the right one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..errors import FailedPreconditionError, InvalidArgumentError, UnsupportedError
from .compiled import Timepoint
from .device import Device, open_devices

if TYPE_CHECKING:
    from .compiled import Semaphore, Submission
    from .operations import Signal, Wait
    from .queue import Queue


def export_event(timepoint: Timepoint, device: Device | None = None) -> Any:
    """Return a native event that gets the timepoint's value when that is reached.

    On Metal an MTLSharedEvent. Work of other frameworks in the process can wait for it on the GPU. A failure has no
    number: if the timepoint fails, the event stays below its value, and whoever waits for it has to be told otherwise.

    Args:
        timepoint: what it shall follow. Whoever is to signal it must be kept, as for any wait.
        device: whose event it shall be; None is the open device that has events, if there is one such.

    Raises:
        UnsupportedError: the device has no events of that kind.
        FailedPreconditionError: no device is given, and none that has events is open.
        InvalidArgumentError: no device is given, and several that have events are open.

    """
    if not isinstance(timepoint, Timepoint):
        raise TypeError(f"export_event takes a timepoint, not {type(timepoint).__name__}")
    return _events_of(device, "export_event").export(timepoint)


def import_event(event: Any, device: Device | None = None, label: str = "") -> Semaphore:
    """Return a semaphore that follows a native event: on Metal an MTLSharedEvent of any origin.

    The semaphore begins with the event's value and rises with it; where it is signalled itself, it raises the event. It
    is followed until the device is closed.

    Args:
        event: the native event.
        device: whose listener shall hear of it; None is the open device that has events, if there is one such.
        label: the semaphore's name in errors and traces.

    Raises:
        UnsupportedError: the device has no events of that kind.
        FailedPreconditionError: no device is given, and none that has events is open.
        InvalidArgumentError: no device is given, and several that have events are open.

    """
    return _events_of(device, "import_event").follow(event, label)  # type: ignore[no-any-return]


def event_barrier(
    queue: Queue,
    *,
    signals: Iterable[tuple[Any, int]] = (),
    waits: Iterable[tuple[Any, int]] = (),
    wait: Wait = None,
    signal: Signal = None,
) -> Submission:
    """Submit work that signals native events, and then waits for others, on the device itself.

    The host is told nothing before the waits are over, as with any work. Until then a native queue stands still, so
    whoever signals those events should be quick.

    Args:
        queue: of a device that has events.
        signals: (event, value) pairs to be signalled as soon as the work starts.
        waits: (event, value) pairs to be waited for after that.
        wait: what must be reached first.
        signal: what it reaches when it is over.

    Raises:
        UnsupportedError: the device has no events.

    """
    work = _events_of(queue.device, "event_barrier").barrier(signals, waits)
    return queue._submit(work, wait, signal)


def _events_of(device: Device | None, what: str) -> Any:
    found = [device] if device is not None else [each for each in open_devices() if each._driver.events is not None]
    if not found:
        raise FailedPreconditionError(f"{what}: no open device has events to share: open one, for example 'metal'")
    if len(found) > 1:
        names = ", ".join(each.describe() for each in found)
        raise InvalidArgumentError(f"{what}: several open devices have events: {names}; say which with device=")
    found[0]._refuse_closed()
    if found[0]._driver.events is None:
        raise UnsupportedError(f"{what}: {found[0].describe()} has no events to share")
    return found[0]._driver.events
