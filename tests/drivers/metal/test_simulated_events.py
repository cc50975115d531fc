"""Events and listeners of the simulated Metal, and the order in which one hears of things."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from .workbench import LIMIT, Workbench


def listener(bench: Workbench) -> Any:
    queue = bench.metal.dispatch_queue_create(b"listener", None)
    return bench.metal.MTLSharedEventListener.alloc().initWithDispatchQueue_(queue)


def signalling(bench: Workbench, event: Any, value: int) -> Any:
    commands = bench.commands()
    commands.encodeSignalEvent_value_(event, value)
    return commands


def test_a_shared_event_starts_at_zero_and_has_what_the_host_sets(bench: Workbench) -> None:
    event = bench.device.newSharedEvent()
    assert event.signaledValue() == 0
    event.setSignaledValue_(2**64 - 1)
    assert event.signaledValue() == 2**64 - 1


def test_a_plain_event_is_nothing_for_the_host(bench: Workbench) -> None:
    event = bench.device.newEvent()
    with pytest.raises(AttributeError, match="signaledValue"):
        event.signaledValue()
    commands = bench.commands()
    commands.encodeSignalEvent_value_(event, 1)
    commands.encodeWaitForEvent_value_(event, 1)
    commands.commit()
    commands.waitUntilCompleted()


def test_values_rise(bench: Workbench) -> None:
    """Rule event-order."""
    event = bench.device.newSharedEvent()
    event.setSignaledValue_(5)
    with bench.breaks("event-order"):
        event.setSignaledValue_(4)
    commands = signalling(bench, event, 3)
    commands.commit()
    commands.waitUntilCompleted()
    assert bench.broken() == ["event-order", "event-order"]
    assert event.signaledValue() == 5


def test_the_host_waits_for_a_value_or_for_the_timeout(bench: Workbench) -> None:
    event = bench.device.newSharedEvent()
    assert event.waitUntilSignaledValue_timeoutMS_(1, 0) is False
    assert event.waitUntilSignaledValue_timeoutMS_(1, 1) is False
    signalling(bench, event, 3).commit()
    assert event.waitUntilSignaledValue_timeoutMS_(1, 30_000) is True


def test_a_listener_hears_of_a_value_once_on_its_queue(bench: Workbench) -> None:
    """Rule listener."""
    event, mine, seen = bench.device.newSharedEvent(), listener(bench), []
    event.notifyListener_atValue_block_(
        mine, 2, lambda given, value: seen.append((given is event, value, threading.current_thread().name))
    )
    event.setSignaledValue_(1)
    event.setSignaledValue_(3)
    event.setSignaledValue_(4)
    assert bench.metal.wait_for("notifications")
    assert bench.metal.close(LIMIT)
    assert len(seen) == 1
    assert seen[0][0] is True
    assert seen[0][1] >= 3
    assert seen[0][2] == "simulated-dispatch-listener"


def test_a_listener_hears_of_a_value_that_is_there_already(bench: Workbench) -> None:
    """Rule listener."""
    event, heard = bench.device.newSharedEvent(), threading.Event()
    event.setSignaledValue_(5)
    event.notifyListener_atValue_block_(listener(bench), 2, lambda _, __: heard.set())
    assert heard.wait(LIMIT)


def test_blocks_of_one_dispatch_queue_run_one_after_the_other(bench: Workbench) -> None:
    """Rule listener."""
    event, mine, seen = bench.device.newSharedEvent(), listener(bench), []
    for value in range(1, 20):
        event.notifyListener_atValue_block_(mine, value, lambda _, __, value=value: seen.append(value))
    for value in range(1, 20):
        event.setSignaledValue_(value)
    assert bench.metal.wait_for("notifications", 19)
    assert bench.metal.close(LIMIT)
    assert seen == list(range(1, 20))


def test_a_listener_makes_its_own_queue_if_none_is_given(bench: Workbench) -> None:
    made = bench.metal.MTLSharedEventListener.alloc().init()
    assert made.dispatchQueue() is not None


def test_a_listener_that_was_never_initialised_is_refused(bench: Workbench) -> None:
    """Rule listener."""
    event = bench.device.newSharedEvent()
    event.setSignaledValue_(1)
    with bench.breaks("listener"):
        event.notifyListener_atValue_block_(bench.metal.MTLSharedEventListener.alloc(), 1, lambda _, __: None)


def test_another_device_takes_part_by_a_handle() -> None:
    bench = Workbench(devices=2)
    event = bench.device.newSharedEvent()
    other = bench.metal.MTLCopyAllDevices()[1].newSharedEventWithHandle_(event.newSharedEventHandle())
    event.setSignaledValue_(3)
    assert other.signaledValue() == 3
    bench.close()


def heard_first(seed: int) -> str:
    """Whether the listener or the completed handler hears first of one command buffer."""
    bench = Workbench(seed=seed)
    event, seen, both = bench.device.newSharedEvent(), [], threading.Semaphore(0)

    def hear(who: str) -> None:
        seen.append(who)
        both.release()

    event.notifyListener_atValue_block_(listener(bench), 1, lambda _, __: hear("listener"))
    commands = signalling(bench, event, 1)
    commands.addCompletedHandler_(lambda _: hear("handler"))
    commands.commit()
    for _ in range(2):
        assert both.acquire(timeout=LIMIT)
    bench.close()
    return seen[0]


def test_listeners_and_handlers_are_heard_in_any_order() -> None:
    """Choice notification."""
    assert {heard_first(seed) for seed in range(40)} == {"listener", "handler"}


def test_news_of_a_signal_is_not_held_back_by_what_blocks_behind_it(bench: Workbench) -> None:
    """A listener that lets the rest of the same command buffer go on must be heard."""
    first, second = bench.device.newSharedEvent(), bench.device.newSharedEvent()
    for value in range(1, 11):
        first.notifyListener_atValue_block_(
            listener(bench), value, lambda _, __, value=value: second.setSignaledValue_(value)
        )
        commands = signalling(bench, first, value)
        commands.encodeWaitForEvent_value_(second, value)
        commands.commit()
        commands.waitUntilCompleted()
        assert commands.status() == 4


def test_how_long_a_signalled_buffer_takes_to_complete_is_drawn() -> None:
    """Choice signal-gap: sometimes the host sees the signal of a buffer that is not completed yet."""
    for seed in range(300):
        bench = Workbench(seed=seed)
        event = bench.device.newSharedEvent()
        commands = signalling(bench, event, 1)
        commands.commit()
        assert event.waitUntilSignaledValue_timeoutMS_(1, 30_000)
        early = commands.status() == 3
        bench.close()
        if early:
            return
    raise AssertionError("the signal was never early")


def test_handlers_have_threads_of_their_own(bench: Workbench) -> None:
    """Choice dispatch-threads: a handler that waits for a listener's block gets what it waits for."""
    event, heard, done = bench.device.newSharedEvent(), threading.Event(), threading.Event()
    event.notifyListener_atValue_block_(listener(bench), 1, lambda _, __: heard.set())
    commands = bench.commands()

    def handler(_: Any) -> None:
        event.setSignaledValue_(1)
        assert heard.wait(LIMIT)
        done.set()

    commands.addCompletedHandler_(handler)
    commands.commit()
    assert done.wait(LIMIT)


def test_an_event_can_be_made_to_fail(bench: Workbench) -> None:
    bench.metal.fault("event")
    bench.metal.fault("queue")
    assert bench.device.newSharedEvent() is None
    assert bench.device.newCommandQueue() is None
    assert bench.device.newSharedEvent() is not None
