"""Allocations that find no memory: who is waited for, who is served, and when it is hopeless (M22)."""

from __future__ import annotations

from collections.abc import Iterator
from threading import get_ident
from types import SimpleNamespace
from typing import Any

import pytest

import tidegate as tg
from tidegate._core import issuing, workload
from tidegate._core.lock import core_lock
from tidegate._core.retirement import retire
from tidegate._core.submission import Submission

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

    # Memory that comes back has the reaper try, too: here it shall be this thread.
    monkeypatch.setattr(device._driver._pool, "sink", None)
    monkeypatch.setattr(device._driver, "allocate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        gate.signal(1)
    assert isinstance(first.ready.error, KeyboardInterrupt)
    second.ready.wait(LIMIT)


def starving(device: tg.Device) -> tuple[tg.Semaphore, tg.Buffer]:
    """An allocation that waits for a held free."""
    gate = tg.Semaphore()
    device.queue().free(device.allocate(ALL), wait=gate.at(1))
    return gate, device.queue().allocate(ALL)


def test_what_starves_is_neither_issued_nor_put_off_and_the_device_pays_attention(device: tg.Device) -> None:
    gate, hungry = starving(device)
    assert device._starvation
    assert device._starvation.submissions() == (hungry.ready,)
    assert hungry.ready not in device._issued
    assert not device._backlog
    assert device._attention
    gate.signal(1)
    hungry.ready.wait(LIMIT)
    assert not device._starvation


def test_memory_that_comes_back_during_a_try_is_tried_for_again(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, hungry = starving(device)
    starvation, tries = device._starvation, []
    issue = issuing.issue

    def meanwhile(submission: Submission, waits: Any) -> bool:
        tries.append(submission)
        taken = issue(submission, waits)
        if len(tries) == 1:
            assert starvation
            starvation.retry()  # somebody has seen an end, and finds a try going on
        return taken

    monkeypatch.setattr(issuing, "issue", meanwhile)
    starvation.retry()
    assert tries == [hungry.ready] * 2
    gate.signal(1)


def test_a_try_that_nobody_asked_for_again_is_made_once(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, hungry = starving(device)
    tries: list[Submission] = []
    issue = issuing.issue
    monkeypatch.setattr(issuing, "issue", lambda *given: (tries.append(given[0]), issue(*given))[1])
    device._starvation.retry()
    assert tries == [hungry.ready]
    gate.signal(1)


@pytest.mark.parametrize("taken", [False, True])
def test_an_interrupt_around_a_try_keeps_what_is_neither_taken_nor_over(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch, taken: bool
) -> None:
    gate, hungry = starving(device)
    submission = hungry.ready

    def interrupted(one: Submission, _waits: Any) -> bool:
        one.taken = taken
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(issuing, "issue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            device._starvation.retry()
    assert device._starvation.submissions() == (() if taken else (submission,))
    assert device._starvation._trying == {}
    submission.taken = False
    if taken:
        retire(submission, ValueError())
    gate.signal(1)


def test_an_interrupt_around_a_try_forgets_what_is_over(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, hungry = starving(device)

    def interrupted(one: Submission, _waits: Any) -> bool:
        retire(one, ValueError())
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(issuing, "issue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            device._starvation.retry()
    assert device._starvation.submissions() == ()
    assert isinstance(hungry.ready.error, ValueError)
    gate.signal(1)


def test_what_is_over_meanwhile_is_not_tried_and_counts_as_served(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, hungry = starving(device)
    with monkeypatch.context() as patched:
        patched.setattr(issuing, "issue", lambda *_given: pytest.fail("tried"))
        patched.setattr(device, "_attention", False)
        retire(hungry.ready, ValueError())
        assert device._starvation._try({hungry.ready: tg.ResourceExhaustedError("x")})
    assert device._starvation.submissions() == ()
    gate.signal(1)


def test_one_that_finds_memory_but_no_room_is_put_off(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, hungry = starving(device)
    refused: list[Submission] = []
    with monkeypatch.context() as patched:
        patched.setattr(issuing, "issue", lambda *_given: False)
        patched.setattr(device, "_put_off", refused.append)
        device._starvation.retry()
    assert refused == [hungry.ready]
    device._put_off(hungry.ready)
    gate.signal(1)
    hungry.ready.wait(LIMIT)


def test_help_that_is_hoped_for_is_listened_for(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    armed: list[int] = []
    monkeypatch.setattr(device, "_arm_for_room", lambda: armed.append(1))
    gate, hungry = starving(device)
    assert armed == [1]
    assert not hungry.ready.done
    gate.signal(1)


def test_giving_up_passes_over_those_who_were_served_meanwhile(device: tg.Device) -> None:
    gate, hungry = starving(device)
    served = device.queue().barrier()
    problem = tg.ResourceExhaustedError("none")
    device._starvation._give_up({served: problem, hungry.ready: problem})
    assert served.error is None
    assert hungry.ready.error is problem
    gate.signal(1)


def test_what_is_being_tried_again_is_in_sight(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, hungry = starving(device)
    seen: list[list[Submission]] = []

    def look(*_given: object) -> bool:
        with core_lock:
            seen.append(device._under_way_locked())
        return real(*_given)

    real = issuing.issue
    monkeypatch.setattr(issuing, "issue", look)
    device._starvation.retry()
    assert [hungry.ready in found for found in seen] == [True]
    gate.signal(1)


# On its way back ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("look", ["allocate", "statistics", "trim"])
def test_memory_on_its_way_back_is_waited_for(device: tg.Device, monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    taken = device.allocate(ALL)
    device._releasing[device.queue().barrier()] = 0  # another thread has told the end, and will release it

    def released() -> None:
        taken.close()
        device._releasing.clear()

    monkeypatch.setattr(workload, "breathe", released)
    if look == "allocate":
        device.allocate(ALL)
    elif look == "statistics":
        assert device.statistics().allocated_bytes == 0
    else:
        device.trim()
        assert device.statistics().reserved_bytes == 0


def test_what_this_thread_releases_itself_is_not_waited_for(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device.allocate(ALL)
    device._releasing[device.queue().barrier()] = get_ident()
    monkeypatch.setattr(workload, "breathe", lambda: pytest.fail("waits for itself"))
    with pytest.raises(tg.ResourceExhaustedError) as refused:
        device.allocate(ALL + 1)
    assert refused.value.__context__ is None
    device._releasing.clear()


def test_a_thread_that_never_gets_its_turn_is_waited_for_a_while(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "_RELEASE_S", 0.001)
    device._releasing[device.queue().barrier()] = 0
    with pytest.raises(tg.ResourceExhaustedError):
        device.allocate(ALL + 1)
    device._releasing.clear()


def test_what_is_being_released_is_hope(device: tg.Device) -> None:
    device._releasing[device.queue().barrier()] = 0
    hungry = device.queue().allocate(ALL + 1)
    assert not hungry.ready.done
    device._releasing.clear()
    device._after_retirement()
    assert is_hopeless(hungry)


def test_who_comes_while_another_tries_asks_for_one_more_try(
    device: tg.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, hungry = starving(device)
    starvation = device._starvation
    with monkeypatch.context() as patched:
        patched.setattr(issuing, "issue", lambda *_given: pytest.fail("two try at once"))
        starvation._trying = {hungry.ready: tg.ResourceExhaustedError("none")}
        starvation._asked = False
        starvation.retry()
    assert starvation._asked
    assert list(starvation._trying) == [hungry.ready]
    starvation._trying = {}
    gate.signal(1)


def test_a_forked_child_waits_for_no_thread_of_its_parent(device: tg.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    device._releasing[device.queue().barrier()] = 0
    monkeypatch.setattr(workload, "breathe", lambda: pytest.fail("waits for a thread that is not there"))
    with monkeypatch.context() as patched:
        patched.setattr(device, "_process", SimpleNamespace(forked=True))
        device._await_releases()
    device._releasing.clear()
