"""Who listens for an epoch is told of it, whatever else is over and runs meanwhile (M10, M40)."""

from __future__ import annotations

import threading

import pytest

import tidegate as tg
from tidegate.drivers.cuda.stream import Stream
from tidegate.lowlevel import when_over

from .simulated_bench import LIMIT, bench, until


@pytest.mark.parametrize("options", [{}, {"epochs": "events"}], ids=str)
def test_an_epoch_that_is_over_just_after_those_before_it_were_told_is_told_too(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with bench(options) as found:
        latches = []
        points: list[tg.Submission] = []
        for _ in range(3):
            latch, blocked = found.latch(wait=points[-1] if points else None)
            latches.append(latch)
            points.append(blocked)
        stream = points[-1].timeline
        assert isinstance(stream, Stream)
        told = [threading.Event() for _ in points]
        for point, event in reversed(list(zip(points, told, strict=True))):
            when_over(point, event.set)
        real = Stream._wake

        def wake_and_go_on(self: Stream) -> None:
            real(self)
            if told[0].is_set() and self is stream:
                latches[1].open()
                until(lambda: self.reached >= 2)

        monkeypatch.setattr(Stream, "_wake", wake_and_go_on)
        latches[0].open()
        assert told[0].wait(LIMIT)
        assert told[1].wait(LIMIT), "what lasts behind it kept it back"
        assert not told[2].is_set()
        latches[2].open()
        assert told[2].wait(LIMIT)
