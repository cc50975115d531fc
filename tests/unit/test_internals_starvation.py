"""Allocations that find no memory: who is waited for, who is served, and when it is hopeless (M22)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import tidegate as tg

LIMIT = 30.0
ALL = 1024


@pytest.fixture
def device() -> Iterator[tg.Device]:
    device = tg.open_device("cpu?workers=1&memory=1KiB")
    yield device
    device.close(LIMIT)


def starves(buffer: tg.Buffer) -> bool:
    return buffer.ready.explain().endswith("ready, but waiting for memory")


def is_hopeless(buffer: tg.Buffer) -> bool:
    return buffer.ready.done and isinstance(buffer.ready.error, tg.ResourceExhaustedError)


def test_what_could_never_fit_fails_at_once_and_the_queue_lives_on(device: tg.Device) -> None:
    queue, semaphore = device.queue(), tg.Semaphore()
    big = queue.allocate(ALL + 1, signal=semaphore.at(1))
    assert is_hopeless(big)
    assert semaphore.failure is big.ready.error
    assert str(big.ready.error) == f"cannot allocate {ALL + 1} bytes: 0 of a budget of {ALL} are in use"
    fits = queue.allocate(ALL)
    assert fits.ready.done
    assert fits.ready.error is None
    assert not device._attention
    assert not device._starvation


def test_memory_that_is_in_use_and_that_nobody_will_free_is_hopeless_at_once(device: tg.Device) -> None:
    kept = device.allocate(ALL)
    assert is_hopeless(device.queue().allocate(1))
    kept.close()
    assert device.queue().allocate(1).ready.error is None


def test_a_held_free_is_waited_for(device: tg.Device) -> None:
    queue, gate, done = device.queue(), tg.Semaphore(), tg.Semaphore()
    queue.free(device.allocate(ALL), wait=gate.at(1))
    hungry = queue.allocate(ALL, signal=done.at(1))
    assert starves(hungry)
    assert device._attention
    gate.signal(1)
    done.wait(1, LIMIT)
    assert hungry.ready.error is None
    assert not device._attention


def test_a_held_free_that_fails_ends_the_hope(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    kept = device.allocate(ALL)
    queue.free(kept, wait=gate.at(1))
    hungry = queue.allocate(ALL)
    assert starves(hungry)
    gate.fail(ValueError("never"))
    assert is_hopeless(hungry)
    kept.write(bytes(ALL))  # it is still there


def test_a_held_free_that_is_cancelled_ends_the_hope(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    kept = device.allocate(ALL)
    free = queue.free(kept, wait=gate.at(1))
    hungry = queue.allocate(ALL)
    assert starves(hungry)
    assert free.cancel()
    assert is_hopeless(hungry)


@pytest.mark.parametrize("claimed", [1, 2])
def test_a_free_that_waits_for_the_starving_allocation_is_no_hope(device: tg.Device, claimed: int) -> None:
    queue, semaphore = device.queue(), tg.Semaphore()
    kept = device.allocate(ALL)
    free = queue.free(kept, wait=semaphore.at(1))
    hungry = queue.allocate(ALL, signal=semaphore.at(claimed))
    assert is_hopeless(hungry)
    assert free.error is hungry.ready.error
    kept.write(bytes(ALL))


def test_a_free_that_waits_for_the_starving_allocation_by_a_chain_is_no_hope(device: tg.Device) -> None:
    queue, first, last = device.queue(), tg.Semaphore(), tg.Semaphore()
    kept = device.allocate(ALL)
    middle = queue.barrier(wait=first.at(1))
    queue.barrier(wait=middle, signal=last.at(1))
    queue.free(kept, wait=last.at(1))
    assert is_hopeless(queue.allocate(ALL, signal=first.at(1)))


def test_a_free_that_waits_for_a_lower_value_than_the_starving_allocation_claims_beside_another_is_hope(
    device: tg.Device,
) -> None:
    queue, gate, semaphore = device.queue(), tg.Semaphore(), tg.Semaphore()
    queue.free(device.allocate(ALL), wait=semaphore.at(2))
    queue.barrier(wait=gate.at(1), signal=semaphore.at(2))
    hungry = queue.allocate(ALL, signal=semaphore.at(1))
    assert starves(hungry)
    gate.signal(1)
    # The free ran, but the allocation's own signal came too late: somebody was released too early.
    assert hungry.ready.done
    assert isinstance(semaphore.failure, tg.FailedPreconditionError)


def test_one_dependent_free_and_one_independent_are_hope(device: tg.Device) -> None:
    queue, gate, semaphore = device.queue(), tg.Semaphore(), tg.Semaphore()
    first, second = device.allocate(ALL // 2), device.allocate(ALL // 2)
    queue.free(first, wait=semaphore.at(1))
    queue.free(second, wait=gate.at(1))
    hungry = queue.allocate(ALL // 2, signal=semaphore.at(1))
    assert starves(hungry)
    gate.signal(1)
    semaphore.wait(1, LIMIT)
    assert hungry.ready.error is None


def test_held_work_on_memory_that_the_user_still_holds_is_no_hope(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    buffer = device.allocate(ALL)
    queue.fill(buffer, 1, wait=gate.at(1))
    assert is_hopeless(queue.allocate(ALL))


def test_held_work_on_memory_that_was_dropped_is_hope(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    queue.fill(device.allocate(ALL), 1, wait=gate.at(1))
    hungry = queue.allocate(ALL)
    assert starves(hungry)
    gate.signal(1)
    hungry.ready.wait(LIMIT)


def test_held_work_that_touches_no_memory_is_no_hope(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    kept = device.allocate(ALL)
    queue.barrier(wait=gate.at(1))
    queue.host_call(len, (), wait=gate.at(1))
    assert is_hopeless(queue.allocate(ALL))
    kept.close()
    gate.signal(1)


def test_the_end_of_work_in_place_on_a_closed_buffer_serves_the_starving(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    buffer = device.allocate(ALL)
    queue.fill(buffer, 1, wait=gate.at(1))
    buffer.close()
    hungry = queue.allocate(ALL)
    gate.signal(1)
    hungry.ready.wait(LIMIT)


def test_issued_work_is_hope_whatever_it_is(device: tg.Device) -> None:
    queue, began, go = device.queue(), tg.Semaphore(), tg.Semaphore()
    kept = device.allocate(ALL)

    def call() -> None:
        began.signal(1)
        go.wait(1, LIMIT)
        kept.close()

    running = queue.host_call(call)
    began.wait(1, LIMIT)
    hungry = queue.allocate(ALL)
    assert starves(hungry)
    go.signal(1)
    running.wait(LIMIT)
    hungry.ready.wait(LIMIT)


def test_several_are_served_in_the_order_in_which_they_came(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    order: list[int] = []
    queue.free(device.allocate(ALL), wait=gate.at(1))
    hungry = []
    for number in range(4):
        done = tg.Semaphore()
        done.at(1).add_callback(lambda *_told, number=number: order.append(number))
        buffer = queue.allocate(ALL, signal=done.at(1))
        queue.free(buffer, wait=gate.at(number + 2))
        hungry.append(buffer)
    assert all(starves(buffer) for buffer in hungry)
    for value in range(1, 5):
        gate.signal(value)
        assert order == list(range(value))
        assert [starves(buffer) for buffer in hungry] == [False] * value + [True] * (4 - value)


def test_a_smaller_one_behind_is_served_while_a_larger_one_waits_on(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    for value in (1, 2):
        queue.free(device.allocate(ALL // 2), wait=gate.at(value))
    large, small = queue.allocate(ALL), queue.allocate(ALL // 2)
    assert starves(large)
    assert starves(small)
    gate.signal(1)
    assert starves(large)
    small.ready.wait(LIMIT)
    queue.free(small)
    gate.signal(2)
    large.ready.wait(LIMIT)


def test_all_that_starve_fail_together_when_the_last_hope_is_gone(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    kept = device.allocate(ALL)
    free = queue.free(kept, wait=gate.at(1))
    hungry = [queue.allocate(ALL) for _ in range(3)]
    assert free.cancel()
    assert all(is_hopeless(buffer) for buffer in hungry)
    assert not device._starvation
    kept.close()


def test_memory_dropped_without_a_free_serves_the_starving(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    kept, dropped = device.allocate(ALL // 2), device.allocate(ALL // 2)
    queue.free(kept, wait=gate.at(1))
    hungry = queue.allocate(ALL // 2)
    assert starves(hungry)
    del dropped
    hungry.ready.wait(LIMIT)
    assert hungry.ready.error is None


def test_a_device_closes_while_an_allocation_starves(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    kept = device.allocate(ALL)
    queue.free(kept, wait=gate.at(1))
    hungry = queue.allocate(ALL)
    device.close(LIMIT)
    assert is_hopeless(hungry)


def test_one_that_is_served_may_itself_be_the_hope_of_the_next(device: tg.Device) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    queue.free(device.allocate(ALL), wait=gate.at(1))
    first = queue.allocate(ALL)
    queue.free(first, wait=first.ready)  # no hope while the first starves, and all there is once it is served
    second = queue.allocate(ALL)
    assert starves(first)
    assert starves(second)
    gate.signal(1)
    first.ready.wait(LIMIT)
    second.ready.wait(LIMIT)


def test_dependence_is_found_behind_a_submission_that_two_ways_lead_to(device: tg.Device) -> None:
    queue, gate, semaphore = device.queue(), tg.Semaphore(), tg.Semaphore()
    kept = device.allocate(ALL)
    root = queue.barrier(wait=gate.at(1))
    left, right = queue.barrier(wait=root), queue.barrier(wait=root)
    queue.free(kept, wait=[semaphore.at(1), right, left])
    assert is_hopeless(queue.allocate(ALL, signal=semaphore.at(1)))
    gate.signal(1)


def test_an_interrupt_while_one_is_tried_again_fails_that_one_and_the_others_are_still_served(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue, gate = device.queue(), tg.Semaphore()
    queue.free(device.allocate(ALL), wait=gate.at(1))
    first, second = queue.allocate(ALL), queue.allocate(ALL)
    assert starves(first)
    assert starves(second)
    allocate = device._driver.allocate

    def interrupted(*_arguments: object) -> None:
        monkeypatch.setattr(device._driver, "allocate", allocate)
        raise KeyboardInterrupt

    monkeypatch.setattr(device._driver, "allocate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gate.signal(1)
    assert isinstance(first.ready.error, KeyboardInterrupt)
    second.ready.wait(LIMIT)
