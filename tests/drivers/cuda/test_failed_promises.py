"""Work that waits for a promise on a semaphore which the host has failed does not run (M7, M17)."""

from __future__ import annotations

import pytest

import tidegate as tg

from .simulated_bench import LIMIT, bench


@pytest.mark.parametrize("options", [{}, {"epochs": "events"}], ids=str)
def test_work_behind_a_promise_of_a_failed_semaphore_does_not_run(options: dict[str, str]) -> None:
    with bench(options) as found:
        latch, blocked = found.latch()
        done, target, cause = tg.Semaphore(), found.shared(), ValueError("given up")
        promised = found.queue.fill(found.shared(), 1, wait=blocked, signal=done.at(1))
        assert promised.taken
        done.fail(cause)
        late = found.queue.fill(target, 9, wait=done.at(1))
        assert late.done
        assert late.error is cause
        assert not late.taken
        latch.open()
        blocked.wait(LIMIT)
        with target.map(wait=()) as data:
            assert not data.any()
