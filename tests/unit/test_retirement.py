"""The end of a submission, cut short by an interrupt and completed by somebody else."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

import tidegate as tg
from tidegate._core import retirement, scheduling
from tidegate._core.background import reaper
from tidegate._core.buffer import Memory
from tidegate._core.lock import core_lock
from tidegate._core.retirement import retire
from tidegate._core.submission import FINISHING, RETIRED, Submission
from tidegate.driver import Barrier
from tidegate.drivers.cpu.workers import Task

from .hand_driver import catch_up


def test_a_retirement_that_is_repeated_lets_go_of_memory_once():
    with tg.open_device("cpu") as device:
        gate = tg.Semaphore()
        buffer = device.allocate(16)
        work = device.queue().fill(buffer, 1, wait=gate.at(1))
        memory = buffer._memory
        assert memory.uses == 1
        touched = work._touches
        gate.signal(1)
        work.wait(30)
        assert (work._stage, memory.uses) == (RETIRED, 0)
        # As an interrupt leaves it that comes between the decision and the release.
        work._touches = touched
        memory.uses = 1
        retire(work)
        retire(work)
        assert memory.uses == 0


def test_a_task_that_was_over_when_an_interrupt_came_is_not_run_again():
    ran = []
    task = Task(lambda: ran.append(1))
    assert task.run()
    task._claimed = False  # as the interrupted thread leaves it, which then hands it to the workers
    assert not task.run()
    assert ran == [1]


@pytest.mark.parametrize("error", [None, ValueError("broken")])
def test_who_has_seen_the_signal_of_a_submission_finds_it_done(
    monkeypatch: pytest.MonkeyPatch, error: Exception | None
) -> None:
    ends: list[object] = []
    end = retirement._end_locked

    def interrupted(*arguments):
        end(*arguments)
        raise KeyboardInterrupt

    with tg.open_device("cpu") as device:
        gate, done = tg.Semaphore(), tg.Semaphore()
        work = device.queue().barrier(wait=gate.at(1), signal=done.at(1))
        with monkeypatch.context() as patch:
            patch.setattr(retirement, "_end_locked", interrupted)
            patch.setattr(retirement, "reaper", SimpleNamespace(leave=lambda *note: ends.append(note)))
            with pytest.raises(KeyboardInterrupt):
                retire(work, error)
        assert ends == [(retire, work, error)]
        assert work._stage == FINISHING  # as a thread finds it that looks while another retires it
        assert (done.value, done.failure) == ((1, None) if error is None else (0, error))
        assert work.done
        assert work._stage == RETIRED
        assert work.error is error
        assert (done.value, done.failure) == ((1, None) if error is None else (0, error))
        gate.signal(1)


@pytest.mark.parametrize("step", [0, 1, 2])
def test_an_interrupt_while_memory_is_let_go_leaves_the_rest_to_the_next_try(
    monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    with tg.open_device("cpu") as device:
        gate = tg.Semaphore()
        buffers = [device.allocate(16) for _ in range(3)]
        with device.record() as commands:
            for buffer in buffers:
                commands.fill(buffer, 1)
        work = device.queue().execute(commands, wait=gate.at(1))
        memories = list(work._touches)
        assert {buffer._memory for buffer in buffers} == set(memories)
        end_use = Memory.end_use

        def interrupted(memory: Memory) -> None:
            if memory is memories[step]:
                raise KeyboardInterrupt
            end_use(memory)

        with monkeypatch.context() as patch:
            patch.setattr(Memory, "end_use", interrupted)
            patch.setattr(retirement, "reaper", SimpleNamespace(leave=lambda *_note: None))
            with pytest.raises(KeyboardInterrupt):
                retire(work, ValueError("broken"))
        assert [memory.uses for memory in memories] == [0] * step + [1] * (3 - step)
        assert list(device._releasing) == [work]
        retire(work)
        assert [memory.uses for memory in memories] == [0, 0, 0]
        assert device._releasing == {}
        gate.signal(1)


def test_an_interrupt_behind_the_last_use_leaves_nothing_that_is_being_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with tg.open_device("cpu") as device:
        gate = tg.Semaphore()
        buffer = device.allocate(16)
        work = device.queue().fill(buffer, 1, wait=gate.at(1))

        class Last(tuple):
            """Uses, and an interrupt when all of them are ended."""

            def __iter__(self):
                yield from super().__iter__()
                raise KeyboardInterrupt

        work._touches = Last(work._touches)
        with monkeypatch.context() as patch:
            patch.setattr(retirement, "reaper", SimpleNamespace(leave=lambda *_note: None))
            with pytest.raises(KeyboardInterrupt):
                retire(work, ValueError("broken"))
        assert device._releasing == {}
        assert buffer._memory.uses == 0
        retire(work)
        assert buffer._memory.uses == 0
        gate.signal(1)


def test_what_is_released_is_back_when_it_is_said_to_be() -> None:
    seen = []

    class Releasing(dict):
        def pop(self, *arguments):
            seen.append(device._driver.default_pool.statistics()["allocated_bytes"])
            return super().pop(*arguments)

    with tg.open_device("cpu") as device:
        device._releasing = Releasing()
        gate = tg.Semaphore()
        work = device.queue().fill(device.allocate(16), 1, wait=gate.at(1))
        gate.signal(1)
        work.wait(30)
        device.statistics()
        assert seen == [0]


@pytest.mark.parametrize("step", ["uses", "writes"])
def test_an_interrupted_admission_leaves_memory_as_it_was(step: str) -> None:
    with tg.open_device("cpu") as device:
        queue, gate = device.queue(), tg.Semaphore()
        buffer = device.allocate(16)
        write = queue.fill(buffer, 1, wait=gate.at(1))
        memory = buffer._memory

        class Cut(tuple):
            def __iter__(self):
                yield memory
                raise KeyboardInterrupt

        late = Submission(queue, Barrier(), None)
        other = device.allocate(16)._memory
        late._touches = (memory, other) if step == "writes" else Cut((memory, other))
        late._writes = Cut((memory,)) if step == "writes" else (memory,)
        with core_lock, pytest.raises(KeyboardInterrupt):
            scheduling._note_uses(late)
        catch_up(reaper)
        assert (memory.uses, other.uses) == (1, 0)
        assert memory.pending_write() is write
        gate.signal(1)
        write.wait(30)
