"""What is wrong at the call is refused at the call, and nothing is submitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

import tidegate as tg

from .latches import LIMIT
from .witnesses import Log

pytestmark = pytest.mark.rules("M16")


FOREIGN: dict[str, Any] = {"int": 3, "str": "sem", "object": object(), "semaphore": tg.Semaphore}


@pytest.mark.rules("M16")
@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("place", ["wait", "signal"])
@pytest.mark.parametrize("listed", [False, True])
def test_foreign_objects_in_wait_and_signal_are_a_type_error(
    device: tg.Device, queue: tg.Queue, log: Log, kind: str, place: str, listed: bool
) -> None:
    foreign = FOREIGN[kind]() if kind == "semaphore" else FOREIGN[kind]
    end = tg.Semaphore()
    arguments: dict[str, Any] = {"signal": [end.at(1)]}
    if place == "wait":
        arguments["wait"] = [end.at(0), foreign] if listed else foreign
    else:
        arguments["signal"] = [end.at(1), foreign] if listed else foreign
    before = device.statistics().submitted
    with pytest.raises(TypeError):
        log.call(queue, "ran", **arguments)
    assert device.statistics().submitted == before
    queue.barrier(signal=end.at(1)).wait(timeout=LIMIT)
    assert log.entries == []


@pytest.mark.rules("M16")
def test_a_submission_in_signal_is_a_type_error(queue: tg.Queue) -> None:
    work: Any = queue.barrier()
    with pytest.raises(TypeError):
        queue.barrier(signal=work)


@pytest.mark.rules("M16")
def test_an_iterable_that_raises_submits_nothing(device: tg.Device, queue: tg.Queue) -> None:
    class Stop(Exception):
        pass

    sem = tg.Semaphore()

    def broken() -> Iterable[tg.Timepoint]:
        yield sem.at(1)
        raise Stop

    before = device.statistics().submitted
    with pytest.raises(Stop):
        queue.barrier(signal=broken())
    with pytest.raises(Stop):
        queue.barrier(wait=broken(), signal=sem.at(1))
    assert device.statistics().submitted == before
    queue.barrier(signal=sem.at(1)).wait(timeout=LIMIT)


@pytest.mark.rules("M16")
def test_a_refused_operation_moves_no_signal(device: tg.Device, queue: tg.Queue) -> None:
    end = tg.Semaphore()
    buffer = device.allocate(64)
    with pytest.raises(tg.InvalidArgumentError):
        queue.fill(buffer, b"abc", signal=end.at(1))
    with pytest.raises(tg.OutOfRangeError):
        queue.fill(buffer, 0, offset=60, length=8, signal=end.at(1))
    with pytest.raises(TypeError):
        queue.host_call("not callable", signal=end.at(1))  # type: ignore[arg-type]
    assert (end.value, end.failure) == (0, None)
    queue.barrier(signal=end.at(1)).wait(timeout=LIMIT)
    assert end.query() == 1


@pytest.mark.rules("M14", "M16")
@pytest.mark.parametrize("kind", ["no such kind", "", 3])
def test_an_unknown_kind_of_queue_is_refused(device: tg.Device, kind: Any) -> None:
    with pytest.raises((tg.TidegateError, TypeError)):
        device.queue(kind)
