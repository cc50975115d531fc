"""`tidegate demo`: shows in a few seconds what overlap is worth on the device at hand."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING

import click

from ._wrong_use import wrong_use

if TYPE_CHECKING:
    from rich.progress import Progress
    from rich.table import Table

    from tidegate import Device

    from ._streaming import Words


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


@dataclass(frozen=True)
class Pass:
    """One way of sending the array through."""

    title: str
    depth: int
    seconds: float


def _run(device: Device, nbytes: int, depth: int) -> tuple[Pass, Pass]:
    import numpy as np
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from ._streaming import chunk_bytes, load_mix, make_source, stream

    figures = (DownloadColumn(binary_units=True), TransferSpeedColumn())
    with Progress(
        TextColumn("{task.description:<24}"), BarColumn(), *figures, console=Console(stderr=True), auto_refresh=False
    ) as progress:
        source, target = make_source(nbytes), np.zeros(nbytes // 4, np.uint32)
        function, chunk = load_mix(device), chunk_bytes(nbytes, depth)
        # Once unseen, so that neither pass pays for compiling and for touching memory the first time.
        stream(device, function, source, target, depth, chunk, lambda _nbytes: None)

        def one(title: str, chosen: int) -> Pass:
            target.fill(0)
            task = progress.add_task(title, total=nbytes)
            start = perf_counter()
            stream(device, function, source, target, chosen, chunk, lambda done: progress.update(task, advance=done))
            seconds = perf_counter() - start
            progress.refresh()
            _check(source, target, progress)
            return Pass(title, chosen, seconds)

        return one(f"{depth} chunks in flight", depth), one("one chunk at a time", 1)


def _check(source: Words, target: Words, progress: Progress) -> None:
    from ._streaming import find_wrong, mix

    task = progress.add_task("checking every element", total=source.nbytes)
    wrong = find_wrong(source, target, lambda done: progress.update(task, advance=done, refresh=True))
    if wrong is not None:
        expected = int(mix(source[wrong : wrong + 1])[0])
        raise click.ClickException(f"demo: element {wrong} is {int(target[wrong])}, and NumPy says {expected}")


def _show(device: Device, nbytes: int, overlapped: Pass, serial: Pass) -> None:
    from rich.console import Console

    console = Console()
    console.print(_table(device, nbytes, overlapped, serial))
    gain = serial.seconds / overlapped.seconds
    won = f"the overlap won {gain:.2f}x" if gain >= 1.02 else f"the overlap won nothing here ({gain:.2f}x)"
    console.print(f"every element is right; {won}", highlight=False)


def _table(device: Device, nbytes: int, *passes: Pass) -> Table:
    from rich.table import Table

    table = Table("device", "way")
    for heading in ("bytes", "seconds", "GB/s"):
        table.add_column(heading, justify="right")
    for one in passes:
        rate = nbytes / one.seconds / 1e9
        table.add_row(device.info.uri, one.title, f"{nbytes:,}", f"{one.seconds:.3f}", f"{rate:.2f}")
    return table
