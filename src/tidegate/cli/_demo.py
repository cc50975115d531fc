"""`tidegate demo`: shows in a few seconds what overlap is worth on the device at hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING

import click

from ._wrong_use import wrong_use

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from tidegate import Device

    from ._streaming import Words

TIMES = 3


@click.command()
@click.option("--device", "uri", metavar="URI", help="Which device; default: the best one present.")
@click.option(
    "--size", type=click.IntRange(min=1), default=256, metavar="MIB", help="How much to stream; default: 256."
)
@click.option("--depth", type=click.IntRange(2, 1024), default=4, metavar="N", help="Chunks in flight; default: 4.")
@click.option("--trace", type=click.Path(dir_okay=False), metavar="FILE", help="Write a trace (not in this version).")
def demo(uri: str | None, size: int, depth: int, trace: str | None) -> None:
    """Stream an array through a device in overlapping chunks, and check every element."""
    if trace is not None:
        raise click.UsageError("--trace: not in this version")
    import tidegate as tg

    with wrong_use("--device"):
        opened = tg.open_device(uri)
    with opened as device:
        overlapped, serial = _run(device, size * 2**20, depth)
        _show(device, size * 2**20, overlapped, serial)


@dataclass
class Way:
    """One way of sending the array through, and how long it took each time."""

    title: str
    depth: int
    times: list[float] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median of the times."""
        return median(self.times)


def _run(device: Device, nbytes: int, depth: int) -> tuple[Way, Way]:
    import numpy as np

    from . import _streaming

    overlapped, serial = Way(f"{depth} chunks in flight", depth), Way("one chunk at a time", 1)
    with _bars() as progress:
        source, target = _streaming.make_source(nbytes), np.zeros(nbytes // 4, np.uint32)
        expected = _streaming.mix_all(source, Bar(progress, "NumPy's answer", nbytes).advance)
        function = _streaming.load_mix(device)
        chunk = _streaming.chunk_bytes(nbytes, depth, device.info.driver)
        # Once unseen, so that nobody pays for compiling and for touching memory the first time.
        _streaming.stream(device, function, source, target, depth, chunk, lambda _nbytes: None)
        bars = [(way, Bar(progress, way.title, TIMES * nbytes)) for way in (overlapped, serial)]
        for way, bar in bars * TIMES:  # by turns: whatever else the machine does hits both
            target.fill(0)
            start = perf_counter()
            _streaming.stream(device, function, source, target, way.depth, chunk, bar.advance)
            way.times.append(perf_counter() - start)
            _check(expected, target)
    return overlapped, serial


def _bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description:<24}"), BarColumn(), DownloadColumn(binary_units=True))
    return Progress(*columns, console=Console(stderr=True), auto_refresh=False)


class Bar:
    """A progress bar that is drawn ten times a second at most, so that drawing is no part of what is measured."""

    def __init__(self, progress: Progress, title: str, total: int) -> None:
        self._progress = progress
        self._task = progress.add_task(title, total=total)
        self._total, self._done, self._drawn = total, 0, 0.0

    def advance(self, nbytes: int) -> None:
        """Note bytes that are done."""
        self._done += nbytes
        now = perf_counter()
        if now - self._drawn > 0.1 or self._done == self._total:
            self._progress.update(self._task, completed=self._done, refresh=True)
            self._drawn = now


def _check(expected: Words, target: Words) -> None:
    from ._streaming import find_wrong

    wrong = find_wrong(expected, target)
    if wrong is not None:
        found, needed = int(target[wrong]), int(expected[wrong])
        raise click.ClickException(f"demo: element {wrong} is {found}, and NumPy says {needed}")


def _show(device: Device, nbytes: int, overlapped: Way, serial: Way) -> None:
    from rich.console import Console

    console = Console()
    console.print(_table(device, nbytes, overlapped, serial))
    gain = serial.seconds / overlapped.seconds
    won = f"the overlap won {gain:.2f}x" if gain >= 1.02 else f"the overlap won nothing here ({gain:.2f}x)"
    console.print(f"every element is right; {won}", highlight=False)


def _table(device: Device, nbytes: int, *ways: Way) -> Table:
    from rich.table import Table

    table = Table("device", "way")
    for heading in ("bytes", "seconds", "GB/s"):
        table.add_column(heading, justify="right")
    for one in ways:
        rate = nbytes / one.seconds / 1e9
        table.add_row(device.info.uri, one.title, f"{nbytes:,}", f"{one.seconds:.3f}", f"{rate:.2f}")
    return table
