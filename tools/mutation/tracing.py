"""Which tests run which lines.

A trace function, for there is nothing else in Python 3.11: it looks at each call and follows line by line only what is
in the files of interest. Lines run at import, before any test, count for the test called "" (nobody's).

Processes that a test starts count for that test: in new interpreters a sitecustomize module begins a trace, and forked
children go on with theirs. Both write each line when it is first run, for nobody knows how they will end.

A test that sets a trace function of its own is served beside it. But where that one raises, Python takes it away, and
what runs next is not seen: such tests are remembered as `takers`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import IO, Any

FILES = "MUTATE_TRACE_FILES"
FOLDER = "MUTATE_TRACE_FOLDER"
TEST = "MUTATE_TRACE_TEST"

_OFTEN_ENOUGH = 40

Hits = dict[str, dict[str, list[int]]]


class Tracer:
    """Records, per test, the lines it ran in some files."""

    def __init__(self, files: Iterable[str], folder: str, journal: bool = False) -> None:
        self._files = frozenset(files)
        self._folder = folder
        self._journal = self._open_journal() if journal else None
        self._test = ""
        self._hits: set[tuple[str, int]] = set()
        self._done: dict[str, set[tuple[str, int]]] = {"": self._hits}
        self._entered: dict[CodeType, int] = {}
        self.takers: set[str] = set()
        os.register_at_fork(after_in_child=self._forked)
        self._settrace = sys.settrace
        sys.settrace = self._taken_over

    def begin(self, test: str) -> None:
        """Record for this test from now on, on every thread."""
        self._test = test
        os.environ[TEST] = test
        self._hits = self._done.setdefault(test, set())
        self._entered = {}
        self.install()

    def end(self) -> None:
        self._hits = set()  # what runs between tests is nobody's
        self._test = ""
        os.environ.pop(TEST, None)

    def install(self) -> None:
        threading.settrace(self._call)
        self._settrace(self._call)

    def result(self) -> Hits:
        """What was seen so far in this process: test -> file -> lines."""
        found: Hits = {}
        for test, lines in self._done.items():
            by_file = found.setdefault(test, {})
            for file, line in sorted(lines):
                by_file.setdefault(file, []).append(line)
        return found

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if code.co_filename not in self._files:
            return None
        # What a test does ten thousand times it need not show ten thousand times.
        times = self._entered[code] = self._entered.get(code, 0) + 1
        return self._line if times <= _OFTEN_ENOUGH else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.note(frame)
        return self._line

    def _forked(self) -> None:
        self._journal = self._open_journal()
        self._hits.clear()

    def _open_journal(self) -> IO[str]:
        descriptor, _ = tempfile.mkstemp(dir=self._folder, suffix=".journal")
        return open(descriptor, "w", buffering=1)

    def _taken_over(self, function: Any) -> None:
        """Stands in for `sys.settrace`: who sets a trace function of their own gets one that serves both.

        Not by an audit hook: its code would run amid the change of a trace function, which then fails elsewhere. A new
        thread comes this way too, with our own function.
        """
        if function is None or function == self._call or not self._test:
            self._settrace(function)
        else:
            self.takers.add(self._test)
            self._settrace(_Both(self, function))

    def note(self, frame: FrameType) -> None:
        """Record the line that a frame is at."""
        hit = (frame.f_code.co_filename, frame.f_lineno)
        if hit not in self._hits and hit[1] is not None:  # some instructions belong to no line
            self._hits.add(hit)
            if self._journal is not None and self._test:
                self._journal.write(json.dumps([self._test, *hit]) + "\n")

    def watches(self, frame: FrameType) -> bool:
        return frame.f_code.co_filename in self._files


class _Both:
    """A test's own trace function, with ours before it. Theirs may have asked for other events than lines."""

    def __init__(self, tracer: Tracer, theirs: Any) -> None:
        self._tracer = tracer
        self._theirs = theirs

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if self._tracer.watches(frame):
            self._tracer.note(frame)
        following = self._theirs(frame, event, argument)
        return None if following is None else _Both(self._tracer, following)


def trace_this_interpreter() -> None:
    """Record the lines of a process that a test started; called by sitecustomize."""
    files, folder, test = (os.environ.get(name) for name in (FILES, FOLDER, TEST))
    if files and folder and test:
        Tracer(json.loads(files), folder, journal=True).begin(test)


def collect(folder: str, hits: Hits) -> None:
    """Add what other processes have left in a folder; a last line cut short by a kill is passed over."""
    for name in os.listdir(folder):
        if name.endswith(".journal"):
            with open(os.path.join(folder, name)) as file:
                for line in file:
                    with contextlib.suppress(ValueError):
                        test, path, number = json.loads(line)
                        hits.setdefault(test, {}).setdefault(path, []).append(number)
