"""Which tests run which lines.

A trace function, for there is nothing else in Python 3.11: it looks at each call and follows line by line only what is
in the files of interest. Lines run at import, before any test, are recorded for the test called "" (nobody's).

Two kinds of test hide lines from it: one that takes the trace function for itself, and one that starts processes. The
first are remembered as `wild`. In started interpreters a sitecustomize module records lines too, for the test named in
the environment; but a process that is killed or forked leaves no record, so those tests are remembered as well.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterable
from types import FrameType
from typing import Any

FILES = "MUTATE_TRACE_FILES"
FOLDER = "MUTATE_TRACE_FOLDER"
TEST = "MUTATE_TRACE_TEST"

_WILD_EVENTS = frozenset({"sys.settrace", "subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"})


class Tracer:
    """Records, per test, the lines it ran in some files."""

    def __init__(self, files: Iterable[str]) -> None:
        self._files = frozenset(files)
        self._test = ""
        self._hits: set[tuple[str, int]] = set()
        self._done: dict[str, set[tuple[str, int]]] = {"": self._hits}
        self.wild: set[str] = set()
        self._busy = False
        sys.addaudithook(self._audit)

    def begin(self, test: str) -> None:
        """Record for this test from now on, on every thread."""
        self._test = test
        os.environ[TEST] = test
        self._hits = self._done.setdefault(test, set())
        self.install()

    def end(self) -> None:
        self._hits = set()  # what runs between tests is nobody's
        self._test = ""

    def install(self) -> None:
        self._busy = True
        threading.settrace(self._call)
        sys.settrace(self._call)
        self._busy = False

    def result(self) -> dict[str, Any]:
        hits = {test: _by_file(lines) for test, lines in self._done.items()}
        return {"hits": hits, "wild": sorted(self.wild)}

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename in self._files else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self._hits.add((frame.f_code.co_filename, frame.f_lineno))
        return self._line

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        # A new thread sets its trace function by the same call; only a test's own code is of interest.
        ours = event == "sys.settrace" and (self._busy or _caller_is_threading())
        if event in _WILD_EVENTS and self._test and not ours:
            self.wild.add(self._test)


def _caller_is_threading() -> bool:
    frame: FrameType | None = sys._getframe(2)
    return frame is not None and frame.f_code.co_filename == threading.__file__


def _by_file(lines: set[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for file, line in sorted(lines):
        found.setdefault(file, []).append(line)
    return found


def trace_this_interpreter() -> None:
    """Record the lines of a process that a test started; called by sitecustomize."""
    files, folder, test = (os.environ.get(name) for name in (FILES, FOLDER, TEST))
    if not (files and folder and test):
        return
    tracer = Tracer(json.loads(files))
    tracer.begin(test)
    owner = os.getpid()

    def write() -> None:
        if os.getpid() == owner:
            sys.settrace(None)
            with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".json", delete=False) as file:
                json.dump(tracer.result()["hits"], file)

    atexit.register(write)


def collect(folder: str, hits: dict[str, dict[str, list[int]]]) -> None:
    """Add what started interpreters have left in a folder."""
    for name in os.listdir(folder):
        with contextlib.suppress(OSError, ValueError), open(os.path.join(folder, name)) as file:
            for test, files in json.load(file).items():
                for path, lines in files.items():
                    known = hits.setdefault(test, {}).setdefault(path, [])
                    known.extend(set(lines) - set(known))
