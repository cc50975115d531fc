"""Draws timeline.svg: four chunks streaming through three queues, held together by three semaphores.

Run `python docs/pictures/timeline.py` after a change; a test compares the committed picture with the script.
The picture carries its own panel and its own dark colours, so it reads well on light and dark pages alike.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

CHUNKS = 4
UPLOAD, COMPUTE, DOWNLOAD = 1.0, 1.5, 1.0  # how long a chunk takes on each queue
FIRST = 0.55  # when the first upload starts: just after the calls of the host

LEFT, UNIT, WIDTH = 150, 92, 1000
QUEUE_HEIGHT, STAIR_HEIGHT = 34, 46

STYLE = """
  .panel { fill: #fbfcfe; stroke: #d5dce6; }
  text { font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
  .name { font-size: 15px; font-weight: 600; fill: #1c2733; }
  .kind { font-size: 12px; fill: #5b6b7c; }
  .note { font-size: 13px; fill: #33424f; }
  .value { font-size: 12px; font-weight: 600; fill: #33424f; }
  .block { font-size: 13px; font-weight: 600; fill: #ffffff; }
  .track { stroke: #e3e8ef; stroke-width: 1; }
  .stair { fill: none; stroke: #5b6b7c; stroke-width: 2; stroke-linejoin: round; }
  .link { stroke-width: 1.6; stroke-dasharray: 2 4; stroke-linecap: round; }
  .call { fill: #5b6b7c; }
  .await { stroke: #5b6b7c; stroke-width: 2; stroke-dasharray: 6 5; }
  .c1 { fill: #0f766e; stroke: #0f766e; } .c2 { fill: #1d5fbf; stroke: #1d5fbf; }
  .c3 { fill: #7c3fb3; stroke: #7c3fb3; } .c4 { fill: #b4540a; stroke: #b4540a; }
  @media (prefers-color-scheme: dark) {
    .panel { fill: #131a22; stroke: #2b3643; }
    .name { fill: #eaf0f6; } .kind { fill: #94a3b3; } .note { fill: #c6d0da; } .value { fill: #c6d0da; }
    .track { stroke: #26303b; } .stair { stroke: #94a3b3; }
    .call { fill: #94a3b3; } .await { stroke: #94a3b3; }
    .c1 { fill: #12877d; stroke: #2cb5a8; } .c2 { fill: #2f6fd0; stroke: #5b9bf5; }
    .c3 { fill: #8a4cc4; stroke: #b886ea; } .c4 { fill: #c2620f; stroke: #ee9a4d; }
  }
"""


def x_of(time: float) -> float:
    """Return the horizontal place of a moment."""
    return LEFT + time * UNIT


def schedule() -> list[list[tuple[float, float]]]:
    """Return start and end of every chunk on each queue: a chunk starts when the semaphore before it says so."""
    ready = [FIRST] * CHUNKS
    rows = []
    for cost in (UPLOAD, COMPUTE, DOWNLOAD):
        free, row = FIRST, []
        for chunk in range(CHUNKS):
            start = max(free, ready[chunk])
            free = start + cost
            row.append((start, free))
        ready = [end for _, end in row]
        rows.append(row)
    return rows


def label(y: float, name: str, kind: str) -> Iterator[str]:
    """Write the words at the left of a row."""
    yield f'<text class="name" x="24" y="{y - 2:g}">{name}</text>'
    yield f'<text class="kind" x="24" y="{y + 15:g}">{kind}</text>'


def queue(y: float, name: str, row: list[tuple[float, float]], end: float) -> Iterator[str]:
    """Draw one queue: its chunks as blocks."""
    middle = y + QUEUE_HEIGHT / 2
    yield from label(middle, name, "queue")
    yield f'<line class="track" x1="{LEFT}" y1="{middle:g}" x2="{end:g}" y2="{middle:g}"/>'
    for number, (start, stop) in enumerate(row, 1):
        width = (stop - start) * UNIT - 4
        yield (
            f'<rect class="c{number}" x="{x_of(start) + 2:g}" y="{y:g}" '
            f'width="{width:g}" height="{QUEUE_HEIGHT}" rx="6"/>'
        )
        centre = x_of((start + stop) / 2)
        yield f'<text class="block" x="{centre:g}" y="{middle + 5:g}" text-anchor="middle">chunk {number}</text>'


def stair(y: float, name: str, row: list[tuple[float, float]], end: float) -> Iterator[str]:
    """Draw one semaphore: a payload that only rises, a step for each chunk."""
    step = (STAIR_HEIGHT - 12) / CHUNKS
    level = y + STAIR_HEIGHT - 4
    yield from label(y + STAIR_HEIGHT / 2, name, "semaphore")
    path = f"M {LEFT} {level:g}"
    yield f'<text class="value" x="{LEFT - 14}" y="{level + 4:g}">0</text>'
    values = []
    for number, (_, stop) in enumerate(row, 1):
        path += f" H {x_of(stop):g} V {level - step:g}"
        level -= step
        values.append(f'<text class="value" x="{x_of(stop) + 6:g}" y="{level - 5:g}">{number}</text>')
    yield f'<path class="stair" d="{path} H {end:g}"/>'
    yield from values


def link(number: int, time: float, top: float, bottom: float) -> str:
    """Draw a dotted line: the end of a block signals a value, and a value opens a block."""
    return f'<line class="link c{number}" x1="{x_of(time):g}" y1="{top:g}" x2="{x_of(time):g}" y2="{bottom:g}"/>'


def host(y: float, finish: float) -> Iterator[str]:
    """Draw the host: twelve calls that return at once, then one await."""
    yield from label(y + 12, "host", "one thread")
    for call in range(CHUNKS * 3):
        yield f'<rect class="call" x="{LEFT + call * 4:g}" y="{y:g}" width="2" height="24"/>'
    yield f'<text class="note" x="{LEFT}" y="{y - 10:g}">12 submissions, none of them blocks</text>'
    after = LEFT + CHUNKS * 3 * 4 + 8
    yield f'<line class="await" x1="{after:g}" y1="{y + 12:g}" x2="{x_of(finish) - 7:g}" y2="{y + 12:g}"/>'
    yield f'<circle class="c4" cx="{x_of(finish):g}" cy="{y + 12:g}" r="6"/>'
    yield (f'<text class="note" x="{x_of(finish) - 14:g}" y="{y - 10:g}" text-anchor="end">await done.at(4)</text>')


def draw() -> str:
    """Return the whole picture as SVG text."""
    upload, compute, download = schedule()
    end = WIDTH - 28
    parts: list[str] = []
    links: list[str] = []
    y = 52.0
    host_y = y
    parts += host(y, download[-1][1])
    y += 52
    for name, semaphore, row, following in (
        ("upload", "uploaded", upload, compute),
        ("compute", "computed", compute, download),
        ("download", "done", download, None),
    ):
        bottom = y + QUEUE_HEIGHT
        parts += queue(y, name, row, end)
        stair_y = bottom + 6
        parts += stair(stair_y, semaphore, row, end)
        step = (STAIR_HEIGHT - 12) / CHUNKS
        for number, (_, stop) in enumerate(row, 1):
            level = stair_y + STAIR_HEIGHT - 4 - number * step
            links.append(link(number, stop, bottom + 2, level))
            if following is not None and following[number - 1][0] == stop:
                links.append(link(number, stop, level + step, stair_y + STAIR_HEIGHT + 12))
        y = stair_y + STAIR_HEIGHT + 14
    last = download[-1][1]
    links.append(link(CHUNKS, last, host_y + 20, y - STAIR_HEIGHT - 8))
    height = y + 8
    body = "\n  ".join(links + parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" role="img" aria-label="Four chunks stream through an upload, a compute and a download '
        'queue. Each queue raises a semaphore, and each value opens the next piece of work.">\n'
        f"  <style>{STYLE}  </style>\n"
        f'  <rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="14"/>\n'
        f"  {body}\n</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_name("timeline.svg").write_text(draw(), encoding="utf-8")
