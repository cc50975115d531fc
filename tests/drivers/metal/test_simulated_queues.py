"""Queues of the simulated Metal: order, capacity, event waits, and command buffers from encoding to completion."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest

from .workbench import COMPLETED, ERROR, LIMIT, Workbench


def test_command_buffers_execute_in_the_order_of_their_commits(bench: Workbench) -> None:
    """Rule queue-order."""
    seen: list[int] = []
    for number in range(20):
        last = bench.run(bench.host_pipeline(lambda *_, number=number: seen.append(number)))
    last.waitUntilCompleted()
    assert seen == list(range(20))


def test_an_enqueued_command_buffer_keeps_its_place(bench: Workbench) -> None:
    """Rule queue-order."""
    seen: list[str] = []
    first = bench.commands()
    first.enqueue()
    second = bench.run(bench.host_pipeline(lambda *_: seen.append("second")))
    assert (first.status(), second.status()) == (1, 2)
    bench.run(bench.host_pipeline(lambda *_: seen.append("first")), first)
    second.waitUntilCompleted()
    assert seen == ["first", "second"]


def test_a_busy_queue_holds_up_no_other(bench: Workbench) -> None:
    gate = bench.block()
    gate.wait_for_arrival()
    other = bench.device.newCommandQueue()
    done = bench.fill(bench.buffer(16), 1, bench.commands(other))
    done.waitUntilCompleted()
    assert done.status() == COMPLETED


def test_the_65th_command_buffer_blocks_its_caller(bench: Workbench) -> None:
    """Rule queue-capacity."""
    kept = [bench.commands() for _ in range(64)]
    assert "blocked" not in bench.metal.statistics
    made = threading.Event()

    def one_more() -> None:
        with bench.metal.autorelease_pool():
            bench.queue.commandBuffer()
        made.set()

    thread = threading.Thread(target=one_more)
    thread.start()
    assert bench.metal.wait_for("blocked")
    assert not made.is_set()
    kept[0].commit()
    assert made.wait(LIMIT)
    thread.join(LIMIT)


def test_a_call_that_blocks_for_too_long_raises() -> None:
    """Rule queue-capacity."""
    bench = Workbench(limit=0.01)
    queue = bench.device.newCommandQueueWithMaxCommandBufferCount_(2)
    kept = [bench.commands(queue) for _ in range(2)]
    with bench.breaks("queue-capacity"):
        bench.commands(queue)
    assert len(kept) == 2
    bench.close()


def test_a_completed_command_buffer_may_still_count() -> None:
    """Choice slot-release."""
    seen = set()
    for seed in range(300):
        bench = Workbench(seed=seed)
        commands = bench.commands()
        commands.commit()
        commands.waitUntilCompleted()
        seen.add(bench.queue._line.uncompleted)
        bench.close()
        if seen == {0, 1}:
            return
    raise AssertionError(f"always {seen}")


def test_a_command_buffer_that_is_dropped_gives_its_place_back(bench: Workbench) -> None:
    queue = bench.device.newCommandQueueWithMaxCommandBufferCount_(1)
    for _ in range(3):
        bench.commands(queue).enqueue()
    assert "blocked" not in bench.metal.statistics


def test_an_event_wait_blocks_its_queue_until_the_value_is_there(bench: Workbench) -> None:
    """Rule event-wait."""
    event, seen = bench.device.newSharedEvent(), []
    waiting = bench.commands()
    waiting.encodeWaitForEvent_value_(event, 3)
    bench.run(bench.host_pipeline(lambda *_: seen.append(event.signaledValue())), waiting)
    behind = bench.fill(bench.buffer(16), 1)
    waiting.waitUntilScheduled()
    event.setSignaledValue_(2)
    assert (waiting.status(), behind.status()) == (3, 2)
    event.setSignaledValue_(4)
    behind.waitUntilCompleted()
    assert seen == [4]


def test_queues_wait_for_one_another_by_events(bench: Workbench) -> None:
    """Rule event-wait."""
    event, other, seen = bench.device.newSharedEvent(), bench.device.newCommandQueue(), []
    second = bench.commands(other)
    second.encodeWaitForEvent_value_(event, 1)
    bench.run(bench.host_pipeline(lambda *_: seen.append("second")), second)
    first = bench.commands()
    encoder = bench.compute(first)
    encoder.setComputePipelineState_(bench.host_pipeline(lambda *_: seen.append("first")))
    encoder.dispatchThreadgroups_threadsPerThreadgroup_((1, 1, 1), (1, 1, 1))
    encoder.endEncoding()
    first.encodeSignalEvent_value_(event, 1)
    first.commit()
    second.waitUntilCompleted()
    assert seen == ["first", "second"]


def test_the_status_goes_through_all_stages(bench: Workbench) -> None:
    """Rule status."""
    gate, pipeline = bench.gate()
    commands = bench.commands()
    seen = [commands.status()]
    commands.enqueue()
    seen.append(commands.status())
    bench.run(pipeline, commands)
    gate.wait_for_arrival()
    seen.append(commands.status())
    gate.open()
    commands.waitUntilCompleted()
    assert [*seen, commands.status()] == [0, 1, 3, 4]
    assert commands.error() is None


def test_a_command_buffer_is_committed_once(bench: Workbench) -> None:
    """Rule commit-once."""
    commands = bench.commands()
    commands.commit()
    with bench.breaks("commit-once"):
        commands.commit()


@pytest.mark.parametrize("name", ["blitCommandEncoder", "computeCommandEncoder", "enqueue"])
def test_nothing_is_encoded_behind_the_commit(bench: Workbench, name: str) -> None:
    commands = bench.commands()
    commands.commit()
    with bench.breaks("commit-once"), bench.metal.autorelease_pool():
        getattr(commands, name)()


def test_events_are_not_encoded_behind_the_commit(bench: Workbench) -> None:
    commands, event = bench.commands(), bench.device.newSharedEvent()
    commands.commit()
    with bench.breaks("commit-once"):
        commands.encodeSignalEvent_value_(event, 1)
    with bench.breaks("commit-once"):
        commands.encodeWaitForEvent_value_(event, 1)


def test_handlers_are_not_added_behind_the_commit(bench: Workbench) -> None:
    """Rule handler-before-commit."""
    commands = bench.commands()
    commands.commit()
    with bench.breaks("handler-before-commit"):
        commands.addCompletedHandler_(lambda _: None)
    with bench.breaks("handler-before-commit"):
        commands.addScheduledHandler_(lambda _: None)


def test_nobody_waits_for_what_was_not_committed(bench: Workbench) -> None:
    """Rule wait-after-commit."""
    commands = bench.commands()
    with bench.breaks("wait-after-commit"):
        commands.waitUntilCompleted()
    with bench.breaks("wait-after-commit"):
        commands.waitUntilScheduled()


def test_a_wait_that_never_ends_raises() -> None:
    """Rule wait-after-commit."""
    bench = Workbench(limit=0.001)
    commands = bench.commands()
    commands.encodeWaitForEvent_value_(event := bench.device.newSharedEvent(), 1)
    commands.commit()
    with bench.breaks("wait-after-commit"):
        commands.waitUntilCompleted()
    event.setSignaledValue_(1)
    bench.close()


def test_handlers_run_in_order_on_another_thread_with_the_completed_buffer(bench: Workbench) -> None:
    """Rule handlers-elsewhere."""
    seen: list[Any] = []
    commands = bench.commands()
    for number in range(3):
        commands.addCompletedHandler_(
            lambda given, number=number: seen.append((number, given is commands, given.status(), threading.get_ident()))
        )
    commands.commit()
    commands.waitUntilCompleted()
    assert [each[:3] for each in seen] == [(number, True, COMPLETED) for number in range(3)]
    assert threading.get_ident() not in {each[3] for each in seen}


def test_a_wait_for_completion_returns_behind_the_completed_handlers(bench: Workbench) -> None:
    """Rule handlers-elsewhere."""
    for _ in range(20):
        seen: list[int] = []
        commands = bench.commands()
        commands.addCompletedHandler_(lambda _: seen.append(1))
        commands.commit()
        commands.waitUntilCompleted()
        assert seen == [1]


def test_a_wait_for_the_schedule_returns_behind_the_scheduled_handlers(bench: Workbench) -> None:
    """Rule handlers-elsewhere."""
    for _ in range(20):
        seen: list[int] = []
        gate, pipeline = bench.gate()
        commands = bench.commands()
        commands.addScheduledHandler_(lambda _, seen=seen: seen.append(1))
        bench.run(pipeline, commands)
        commands.waitUntilScheduled()
        assert seen == [1]
        gate.open()


def test_a_scheduled_handler_runs_before_the_end(bench: Workbench) -> None:
    scheduled = threading.Event()
    gate, pipeline = bench.gate()
    commands = bench.commands()
    commands.addScheduledHandler_(lambda _: scheduled.set())
    bench.run(pipeline, commands)
    assert scheduled.wait(LIMIT)
    gate.open()


def test_a_handler_that_raises_is_found_out(bench: Workbench) -> None:
    """Rule block."""
    commands = bench.commands()
    commands.addCompletedHandler_(lambda _: 1 / 0)
    commands.commit()
    commands.waitUntilCompleted()
    assert bench.metal.close(LIMIT)
    assert bench.broken() == ["block"]


def test_a_kernel_that_raises_ends_the_command_buffer_in_error(bench: Workbench) -> None:
    """Rule error."""

    def fails(workgroups: Any, bindings: Any, constants: Any) -> None:
        raise ArithmeticError("out of luck")

    commands = bench.run(bench.host_pipeline(fails))
    commands.waitUntilCompleted()
    assert commands.status() == ERROR
    assert commands.error().domain() == "MTLCommandBufferErrorDomain"
    assert "ArithmeticError: out of luck" in commands.error().localizedDescription()


def test_a_fault_ends_the_command_buffer_with_domain_code_and_text(bench: Workbench) -> None:
    """Rule error."""
    bench.metal.fault("command_buffer", code=8, text="no memory")
    commands = bench.fill(bench.buffer(16), 1)
    commands.waitUntilCompleted()
    error = commands.error()
    assert commands.status() == ERROR
    assert (error.domain(), error.code(), error.localizedDescription()) == (
        "MTLCommandBufferErrorDomain",
        8,
        "no memory",
    )
    following = bench.fill(bench.buffer(16), 1)
    following.waitUntilCompleted()
    assert following.status() == COMPLETED


def test_a_fault_can_skip_be_repeated_and_choose(bench: Workbench) -> None:
    bench.metal.fault("command_buffer", skip=1, count=2, matches=lambda commands: commands.label() == "x")
    statuses = []
    for label in ["x", "y", "x", "y", "x", "x"]:
        commands = bench.commands()
        commands.setLabel_(label)
        commands.commit()
        commands.waitUntilCompleted()
        statuses.append(commands.status())
    assert statuses == [COMPLETED, COMPLETED, ERROR, COMPLETED, ERROR, COMPLETED]


def test_an_unknown_fault_is_refused(bench: Workbench) -> None:
    with pytest.raises(ValueError, match="no fault 'meteor'"):
        bench.metal.fault("meteor")


def test_a_lost_device_ends_everything_in_error(bench: Workbench) -> None:
    bench.metal.lose()
    for _ in range(2):
        commands = bench.fill(bench.buffer(16), 1)
        commands.waitUntilCompleted()
        assert (commands.status(), commands.error().code()) == (ERROR, 11)


def test_an_event_is_signalled_despite_the_error_and_before_the_completion(bench: Workbench) -> None:
    """Rule signal-despite-error."""
    event, held, go_on = bench.device.newSharedEvent(), threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        held.set()
        assert go_on.wait(LIMIT)

    bench.metal.before_completion = hold
    bench.metal.fault("command_buffer")
    commands = bench.commands()
    commands.encodeSignalEvent_value_(event, 7)
    commands.commit()
    assert event.waitUntilSignaledValue_timeoutMS_(7, 30_000)
    assert held.wait(LIMIT)
    assert commands.status() == 3
    go_on.set()
    commands.waitUntilCompleted()
    assert commands.status() == ERROR


def test_a_fault_can_keep_the_signals_back(bench: Workbench) -> None:
    """What Apple does not promise, a driver must not need."""
    bench.metal.fault("command_buffer", signals=False)
    commands, event = bench.commands(), bench.device.newSharedEvent()
    commands.encodeSignalEvent_value_(event, 7)
    commands.commit()
    commands.waitUntilCompleted()
    assert (commands.status(), event.signaledValue()) == (ERROR, 0)


def test_how_much_of_failed_work_has_an_effect_depends_on_the_seed() -> None:
    """Choice failed-work."""
    outcomes = set()
    for seed in range(12):
        bench = Workbench(seed=seed)
        buffers = [bench.buffer(4) for _ in range(3)]
        commands = bench.commands()
        encoder = bench.blit(commands)
        for buffer in buffers:
            encoder.fillBuffer_range_value_(buffer, (0, 4), 1)
        encoder.endEncoding()
        bench.metal.fault("command_buffer")
        commands.commit()
        commands.waitUntilCompleted()
        outcomes.add(sum(bool(bench.words(buffer)[0]) for buffer in buffers))
        bench.close()
    assert outcomes == {0, 1, 2, 3}


def test_what_is_released_before_it_runs_is_found_out(bench: Workbench) -> None:
    """Rule unretained."""
    gate = bench.block()
    buffer = bench.buffer(16)
    commands = bench.fill(buffer, 1, bench.commands(retained=False))
    del buffer
    gate.open()
    commands.waitUntilCompleted()
    assert (commands.status(), commands.error().code()) == (ERROR, 9)
    assert bench.broken() == ["unretained"]


def test_what_is_released_after_its_use_but_before_the_completion_is_found_out(bench: Workbench) -> None:
    """Rule unretained."""
    buffer = bench.buffer(16)
    held, go_on = threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        held.set()
        assert go_on.wait(LIMIT)

    bench.metal.before_completion = hold
    commands = bench.fill(buffer, 1, bench.commands(retained=False))
    assert held.wait(LIMIT)
    del buffer
    go_on.set()
    commands.waitUntilCompleted()
    assert commands.status() == ERROR
    assert bench.broken() == ["unretained"]


@pytest.mark.parametrize("what", ["pipeline", "binding", "counts", "signal", "wait", "resident", "heap", "fence"])
def test_everything_that_is_encoded_must_outlive_the_command_buffer(bench: Workbench, what: str) -> None:
    """Rule unretained."""
    gate = bench.block()
    objects = _everything(bench)
    commands = bench.commands(retained=False)
    commands.encodeWaitForEvent_value_(objects["wait"], 0)
    encoder = bench.compute(commands)
    encoder.setComputePipelineState_(objects["pipeline"])
    encoder.setBuffer_offset_atIndex_(objects["binding"], 0, 0)
    encoder.useResource_usage_(objects["resident"], 1)
    encoder.useHeap_(objects["heap"])
    encoder.updateFence_(objects["fence"])
    encoder.dispatchThreadgroupsWithIndirectBuffer_indirectBufferOffset_threadsPerThreadgroup_(
        objects["counts"], 0, (1, 1, 1)
    )
    encoder.endEncoding()
    commands.encodeSignalEvent_value_(objects["signal"], 1)
    commands.commit()
    del objects[what]
    gate.open()
    commands.waitUntilCompleted()
    assert commands.status() == ERROR
    assert set(bench.broken()) == {"unretained"}


def _everything(bench: Workbench) -> dict[str, Any]:
    descriptor = bench.metal.MTLHeapDescriptor.alloc().init()
    descriptor.setSize_(4096)
    return {
        "pipeline": bench.host_pipeline(lambda *_: None, "device uint *x [[buffer(0)]]"),
        "binding": bench.buffer(16),
        "counts": bench.buffer(16),
        "signal": bench.device.newSharedEvent(),
        "wait": bench.device.newSharedEvent(),
        "resident": bench.buffer(16),
        "heap": bench.device.newHeapWithDescriptor_(descriptor),
        "fence": bench.device.newFence(),
    }


def test_a_command_buffer_with_references_keeps_what_it_needs_until_the_end(bench: Workbench) -> None:
    """Rule retained."""
    gate = bench.block()
    buffer = bench.buffer(16)
    known = weakref.ref(buffer)
    commands = bench.fill(buffer, 1, bench.commands(retained=True))
    del buffer
    gc.collect()
    assert known() is not None
    gate.open()
    commands.waitUntilCompleted()
    assert commands.status() == COMPLETED
    assert known() is None


def test_the_place_of_a_dead_object_is_not_taken_for_it(bench: Workbench) -> None:
    """Rule unretained, where a new object has the address of the old."""
    gate = bench.block()
    commands = bench.commands(retained=False)
    encoder = bench.blit(commands)
    kept = []
    for _ in range(50):
        buffer = bench.buffer(16)
        encoder.fillBuffer_range_value_(buffer, (0, 16), 1)
        del buffer
        kept.append(bench.buffer(16))
        encoder.fillBuffer_range_value_(kept[-1], (0, 16), 1)
    encoder.endEncoding()
    commands.commit()
    gate.open()
    commands.waitUntilCompleted()
    assert commands.status() == ERROR
    assert set(bench.broken()) == {"unretained"}


def test_a_descriptor_says_whether_references_are_kept(bench: Workbench) -> None:
    descriptor = bench.metal.MTLCommandBufferDescriptor.alloc().init()
    descriptor.setRetainedReferences_(False)
    with bench.metal.autorelease_pool():
        assert bench.queue.commandBufferWithDescriptor_(descriptor).retainedReferences() is False
        assert bench.queue.commandBuffer().retainedReferences() is True


def test_the_thread_of_a_queue_ends_with_the_queue(bench: Workbench) -> None:
    queue = bench.device.newCommandQueue()
    bench.fill(bench.buffer(16), 1, bench.commands(queue)).waitUntilCompleted()
    thread = queue._line.thread
    assert thread.is_alive()
    del queue
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_closing_ends_what_waits_for_ever(bench: Workbench) -> None:
    commands = bench.commands()
    commands.encodeWaitForEvent_value_(bench.device.newSharedEvent(), 1)
    commands.commit()
    assert bench.metal.close(LIMIT)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("simulated-")]
