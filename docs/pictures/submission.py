"""Draws submission.svg: one submission from the call to the wake of its waiter, on two kinds of device.

Run `python docs/pictures/submission.py` after a change; a test compares the committed picture with the script.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

WIDTH = 1000
ROW = 30
YOURS, THEIRS = "yours", "theirs"  # the thread that submits and waits; the thread of the device

STYLE = """
  .panel { fill: #fbfcfe; stroke: #d5dce6; }
  text { font-family: ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
  .title { font-size: 16px; font-weight: 600; fill: #1c2733; }
  .name { font-size: 13px; font-weight: 600; fill: #1c2733; }
  .kind { font-size: 11px; fill: #5b6b7c; }
  .note { font-size: 12px; fill: #33424f; }
  .step { font-size: 12px; font-weight: 600; fill: #ffffff; }
  .line { stroke: #cfd8e3; stroke-width: 1; }
  .soft { fill: #fbfcfe; stroke-width: 1.4; stroke-dasharray: 4 3; }
  .yours { stroke: #1d5fbf; } .theirs { stroke: #b4540a; }
  .call { stroke-width: 1.6; fill: none; } .back { stroke-dasharray: 2 4; stroke-linecap: round; }
  .head-yours, .full-yours { fill: #1d5fbf; } .head-theirs, .full-theirs { fill: #b4540a; }
  @media (prefers-color-scheme: dark) {
    .panel { fill: #131a22; stroke: #2b3643; } .soft { fill: #131a22; }
    .title { fill: #eaf0f6; } .name { fill: #eaf0f6; } .kind { fill: #94a3b3; } .note { fill: #c6d0da; }
    .line { stroke: #2b3643; }
    .yours { stroke: #5b9bf5; } .theirs { stroke: #ee9a4d; }
    .head-yours { fill: #5b9bf5; } .head-theirs { fill: #ee9a4d; }
    .full-yours { fill: #2f6fd0; } .full-theirs { fill: #c2620f; }
  }
"""


class Sequence:
    """One diagram: those who take part, side by side, and what passes between them, from top to bottom."""

    def __init__(self, top: float, title: str, parties: dict[str, tuple[float, str]]) -> None:
        self.y = top + 100
        self._top = top
        self._title = title
        self._places = {name: x for name, (x, _) in parties.items()}
        self._below = {name: below for name, (_, below) in parties.items()}
        self._parts: list[str] = []

    def call(self, thread: str, source: str, target: str, text: str, *, back: bool = False) -> None:
        """Draw an arrow: a call, or with `back` the way back from one."""
        x1, x2 = self._places[source], self._places[target]
        tip = x2 - 7 if x2 > x1 else x2 + 7
        style = f"call {thread}{' back' if back else ''}"
        self._parts.append(f'<line class="{style}" x1="{x1:g}" y1="{self.y:g}" x2="{tip:g}" y2="{self.y:g}"/>')
        side = -1 if x2 > x1 else 1
        self._parts.append(
            f'<path class="head-{thread}" d="M {x2:g} {self.y:g} l {side * 9} -4.5 v 9 z"/>'
            f'<text class="note" x="{(x1 + x2) / 2:g}" y="{self.y - 6:g}" text-anchor="middle">{text}</text>'
        )
        self.y += ROW

    def step(self, thread: str, at: str, text: str, width: float) -> None:
        """Draw a step: nothing comes between what it does."""
        x = self._places[at] - width / 2
        self._parts.append(
            f'<rect class="full-{thread}" x="{x:g}" y="{self.y - 17:g}" width="{width:g}" height="24" rx="5"/>'
            f'<text class="step" x="{self._places[at]:g}" y="{self.y - 1:g}" text-anchor="middle">{text}</text>'
        )
        self.y += ROW + 2

    def do(self, thread: str, at: str, text: str, width: float) -> None:
        """Draw what is prepared, or done afterwards: anything may come in the middle of it."""
        x = self._places[at] - width / 2
        self._parts.append(
            f'<rect class="soft {thread}" x="{x:g}" y="{self.y - 17:g}" width="{width:g}" height="24" rx="5"/>'
            f'<text class="note" x="{self._places[at]:g}" y="{self.y - 1:g}" text-anchor="middle">{text}</text>'
        )
        self.y += ROW + 2

    def gap(self, height: float = 10) -> None:
        """Leave some room."""
        self.y += height

    def draw(self) -> Iterator[str]:
        """Draw all of it."""
        yield f'<text class="title" x="24" y="{self._top + 22:g}">{self._title}</text>'
        for name, x in self._places.items():
            yield f'<text class="name" x="{x:g}" y="{self._top + 50:g}" text-anchor="middle">{name}</text>'
            yield f'<text class="kind" x="{x:g}" y="{self._top + 65:g}" text-anchor="middle">{self._below[name]}</text>'
            yield f'<line class="line" x1="{x:g}" y1="{self._top + 72:g}" x2="{x:g}" y2="{self.y - 12:g}"/>'
        yield from self._parts


def submits(seen: Sequence) -> None:
    """Draw what both kinds have in common: from the call to the work that is ready."""
    seen.call(YOURS, "program", "submitting", "queue.dispatch(...)")
    seen.do(YOURS, "submitting", "prepare: check, make objects", 190)
    seen.step(YOURS, "submitting", "admit: claim, count, own", 180)


def tells(seen: Sequence, thread: str) -> None:
    """Draw what both kinds have in common: from the end of the work to the wake."""
    seen.do(thread, "ending", "prepare: error, memory", 166)
    seen.step(thread, "ending", "end", 60)
    seen.call(thread, "ending", "timelines", "in that step: rise or fail, and decide who waits")
    seen.do(thread, "ending", "after: continuations", 150)
    seen.call(thread, "ending", "timelines", "wake")
    seen.call(YOURS, "timelines", "program", "wait returns", back=True)


def on_the_cpu(top: float) -> Sequence:
    """Return the diagram of a device that tells each end."""
    seen = Sequence(
        top,
        "The CPU device: it tells each end as it comes",
        {
            "program": (82, "your code"),
            "timelines": (250, "timelines/*.pxi"),
            "submitting": (440, "operations, admission"),
            "issuing": (610, "issue"),
            "ending": (760, "workload, retirement"),
            "driver": (922, "cpu/queue, workers"),
        },
    )
    submits(seen)
    seen.call(YOURS, "submitting", "issuing", "send")
    seen.step(YOURS, "issuing", "issued", 80)
    seen.call(YOURS, "issuing", "driver", "queue.issue(ticket, work, ())")
    seen.do(YOURS, "driver", "put the task", 110)
    seen.call(YOURS, "issuing", "program", "submission", back=True)
    seen.gap()
    seen.call(YOURS, "program", "timelines", "sem.wait(1)")
    seen.do(YOURS, "timelines", "look, spin up to 100 µs", 170)
    seen.step(YOURS, "timelines", "register: stand in line", 170)
    seen.do(YOURS, "timelines", "sleep", 70)
    seen.gap()
    seen.do(THEIRS, "driver", "run the kernel", 110)
    seen.call(THEIRS, "driver", "ending", "sink.finished")
    tells(seen, THEIRS)
    return seen


def on_a_device_that_counts(top: float) -> Sequence:
    """Return the diagram of a device that counts, whose driver is compiled."""
    seen = Sequence(
        top,
        "A device that counts, with a compiled driver: a word in memory tells what is over",
        {
            "program": (82, "your code"),
            "timelines": (250, "timelines/*.pxi"),
            "submitting": (440, "operations, admission"),
            "issuing": (610, "issue, native"),
            "ending": (760, "native, retirement"),
            "driver": (922, "its own C"),
        },
    )
    submits(seen)
    seen.call(YOURS, "submitting", "issuing", "send")
    seen.do(YOURS, "issuing", "prepare: the work in numbers", 196)
    seen.call(YOURS, "issuing", "driver", "put(queue, work)")
    seen.step(YOURS, "driver", "native calls", 110)
    seen.step(YOURS, "issuing", "in flight: epoch, promises", 190)
    seen.call(YOURS, "issuing", "program", "submission", back=True)
    seen.gap()
    seen.call(YOURS, "program", "timelines", "sem.wait(1)")
    seen.do(YOURS, "timelines", "look at the word, 20 µs", 170)
    seen.do(YOURS, "timelines", "and up to 2 ms without the GIL", 210)
    seen.call(YOURS, "timelines", "ending", "if it was reached: advance, end on this thread")
    seen.step(YOURS, "timelines", "else register: stand in line", 196)
    seen.call(YOURS, "timelines", "driver", "arm(epoch): request a wake-up")
    seen.do(YOURS, "timelines", "sleep", 70)
    seen.gap()
    seen.do(THEIRS, "driver", "the word rises", 110)
    seen.call(THEIRS, "driver", "ending", "sink.wake(timeline)")
    seen.do(THEIRS, "ending", "advance: what is over, in order", 210)
    tells(seen, THEIRS)
    return seen


def legend(y: float) -> Iterator[str]:
    """Say what the forms and the colours mean."""
    yield f'<rect class="full-yours" x="24" y="{y - 15:g}" width="56" height="20" rx="5"/>'
    yield f'<text class="step" x="52" y="{y:g}" text-anchor="middle">step</text>'
    yield f'<text class="note" x="90" y="{y:g}">nothing can come between</text>'
    yield f'<rect class="soft yours" x="272" y="{y - 15:g}" width="50" height="20" rx="5"/>'
    yield f'<text class="note" x="330" y="{y:g}">prepare or after: a handler may come</text>'
    yield f'<line class="call yours" x1="566" y1="{y - 4:g}" x2="596" y2="{y - 4:g}"/>'
    yield f'<text class="note" x="604" y="{y:g}">thread that submits and waits</text>'
    yield f'<line class="call theirs" x1="800" y1="{y - 4:g}" x2="836" y2="{y - 4:g}"/>'
    yield f'<text class="note" x="844" y="{y:g}">thread of the device</text>'


def draw() -> str:
    """Return the whole picture as SVG text."""
    first = on_the_cpu(44)
    second = on_a_device_that_counts(first.y + 18)
    height = second.y + 8
    body = "\n  ".join([*legend(30), *first.draw(), *second.draw()])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:g}" width="{WIDTH}" '
        f'height="{height:g}" role="img" aria-label="Two sequence diagrams: a submission is admitted, given to its '
        'driver, ended and told to the thread that waits, on the CPU device and on a device that counts.">\n'
        f"  <style>{STYLE}  </style>\n"
        f'  <rect class="panel" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1:g}" rx="14"/>\n'
        f"  {body}\n</svg>\n"
    )


if __name__ == "__main__":
    Path(__file__).with_name("submission.svg").write_text(draw(), encoding="utf-8")
