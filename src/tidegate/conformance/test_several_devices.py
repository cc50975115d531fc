"""Semaphores, work and failure across several devices and drivers."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

import tidegate as tg

from .latches import LIMIT, Latch
from .witnesses import Log, failure_of

pytestmark = pytest.mark.rules("M1")


@pytest.mark.rules("M1", "M5")
def test_two_devices_share_semaphores_in_both_orders(
    device: tg.Device, open_device: Callable[..., tg.Device], log: Log
) -> None:
    one, other = device.queue(), open_device(label="second").queue()
    sem = tg.Semaphore()
    log.call(other, "third", wait=sem.at(2), signal=sem.at(3))
    log.call(one, "second", wait=sem.at(1), signal=sem.at(2))
    log.call(other, "first", signal=sem.at(1))
    sem.wait(3, timeout=LIMIT)
    assert log.entries == ["first", "second", "third"]


@pytest.mark.rules("M1", "M5")
def test_two_drivers_share_semaphores_in_both_orders(device: tg.Device, partner_device: tg.Device, log: Log) -> None:
    assert partner_device.info.driver != device.info.driver
    one, other = device.queue(), partner_device.queue()
    sem = tg.Semaphore()
    log.call(one, "fourth", wait=sem.at(3), signal=sem.at(4))
    log.call(other, "third", wait=sem.at(2), signal=sem.at(3))
    log.call(one, "second", wait=sem.at(1), signal=sem.at(2))
    log.call(other, "first", signal=sem.at(1))
    sem.wait(4, timeout=LIMIT)
    assert log.entries == ["first", "second", "third", "fourth"]


@pytest.mark.rules("M17", "M1")
def test_a_failure_on_one_device_reaches_exactly_the_dependents_on_another(
    device: tg.Device, open_device: Callable[..., tg.Device], partner_device: tg.Device
) -> None:
    error = ValueError("on the first device")

    def broken() -> None:
        raise error

    second = open_device(label="second")
    sem, end = tg.Semaphore(), tg.Semaphore()
    dependent = second.queue().barrier(wait=sem.at(1), signal=end.at(1))
    far = partner_device.queue().barrier(wait=end.at(1))
    unrelated = [opened.queue().barrier() for opened in (device, second, partner_device)]
    device.queue().host_call(broken, signal=sem.at(1))
    assert failure_of(dependent) is error
    assert failure_of(far) is error
    tg.wait_all(unrelated, timeout=LIMIT)


@pytest.mark.rules("M5", "M3")
def test_work_of_one_device_waits_for_running_work_of_another(
    queue: tg.Queue, latch: Latch, open_device: Callable[..., tg.Device], partner_device: tg.Device
) -> None:
    sem = tg.Semaphore()
    latch.block(queue, signal=sem.at(1))
    latch.wait_until_running()
    others = [opened.queue().barrier(wait=sem.at(1)) for opened in (open_device(), partner_device)]
    assert not any(work.done for work in others)
    latch.open()
    tg.wait_all(others, timeout=LIMIT)


@pytest.mark.rules("M3", "M5")
def test_held_work_of_another_device_is_freed_by_a_running_device_that_nobody_looks_at(
    queue: tg.Queue, latch: Latch, partner_device: tg.Device
) -> None:
    sem, called = tg.Semaphore(), threading.Event()
    latch.block(queue, signal=sem.at(1))
    latch.wait_until_running()
    partner_device.queue().host_call(called.set, wait=sem.at(1))
    latch.open()
    assert called.wait(LIMIT)


@pytest.mark.rules("M9", "M1")
def test_any_and_all_take_submissions_of_several_devices(
    queue: tg.Queue, open_device: Callable[..., tg.Device], partner_device: tg.Device
) -> None:
    gate = tg.Semaphore()
    queues = [queue, open_device().queue(), partner_device.queue()]
    works = [each.barrier(wait=gate.at(index + 1)) for index, each in enumerate(queues)]
    gate.signal(1)
    assert tg.wait_any(works, timeout=LIMIT) is works[0]
    gate.signal(3)
    tg.wait_all(works, timeout=LIMIT)
