"""One signal that frees very much: how much of it runs where (M10)."""

from __future__ import annotations

import threading

import pytest

import tidegate as tg
from tidegate.conformance.threads import background
from tidegate.testing import ManualDevice

LIMIT = 30.0
SHARE = 256


def hold(manual: ManualDevice, gate: tg.Semaphore, count: int) -> list[str]:
    """Hold work behind a semaphore; returns the names of the threads that give it to the device, as they do."""
    threads: list[str] = []
    manual.automatic = True
    manual.before_taking = lambda _piece: threads.append(threading.current_thread().name)
    for _ in range(count):
        manual.queue.fill(manual.buffer, 0, wait=gate.at(1))
    return threads


@pytest.mark.parametrize("count", [1, 15, SHARE - 1, SHARE, SHARE + 1, 3 * SHARE])
def test_a_thread_sends_off_256_submissions_at_most_and_another_one_the_rest(either: ManualDevice, count: int) -> None:
    gate = tg.Semaphore()
    threads = hold(either, gate, count)
    last = either.queue.fill(either.buffer, 0, wait=gate.at(1))
    gate.signal(1)
    here = threading.current_thread().name
    assert 1 <= threads.count(here) <= SHARE
    last.wait(LIMIT)
    assert len(threads) == count + 1
    assert set(threads) <= {here, "tidegate-runner"}
    assert threads == sorted(threads, key=lambda name: name != here), "what this thread does comes first"


def test_callbacks_stay_on_their_thread_in_order_however_many(either: ManualDevice) -> None:
    gate, told = tg.Semaphore(), []
    threads = hold(either, gate, 600)
    for number in range(600):
        gate.at(1).add_callback(lambda *_told, number=number: told.append((number, threading.current_thread().name)))
    last = either.queue.fill(either.buffer, 0, wait=gate.at(1))
    background(gate.signal, 1).result()
    here = told[0][1]
    assert told == [(number, here) for number in range(600)]
    assert here != "tidegate-runner"
    last.wait(LIMIT)
    assert threads.count(here) <= SHARE


def test_what_callbacks_free_beyond_the_share_goes_to_the_other_thread_too(either: ManualDevice) -> None:
    gate, other = tg.Semaphore(), tg.Semaphore()
    threads = hold(either, gate, 2 * SHARE)
    late = either.queue.fill(either.buffer, 0, wait=other.at(1))
    gate.at(1).add_callback(lambda *_told: other.signal(1))
    gate.signal(1)
    late.wait(LIMIT)
    here = threading.current_thread().name
    assert threads[-1] == "tidegate-runner"
    assert threads.count(here) <= SHARE


def test_an_interrupt_in_a_callback_leaves_what_stands_behind_it_to_another_thread(either: ManualDevice) -> None:
    gate, told = tg.Semaphore(), []

    def interrupted(*_told: object) -> None:
        told.append("interrupted")
        raise KeyboardInterrupt

    gate.at(1).add_callback(interrupted)
    gate.at(1).add_callback(lambda *_told: told.append("second"))
    threads = hold(either, gate, 3)
    last = either.queue.fill(either.buffer, 0, wait=gate.at(1))
    with pytest.raises(KeyboardInterrupt):
        gate.signal(1)
    last.wait(LIMIT)
    assert told == ["interrupted", "second"]
    assert len(threads) == 4
    assert gate.value == 1
