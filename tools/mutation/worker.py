"""A process that tries mutants: it has imported pytest and what tests need, but nothing of the tested package.

Reads requests, one JSON object per line, and answers each with one. Every run of pytest happens in a forked child, in
a process group of its own that is ended with it. The child tells through a pipe which test it is at, so a test that
hangs is known after its own time limit, not after that of all of them; and it ends at the first failure without any
clearing up. `warm` is the faster form, for most mutants.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import numpy  # noqa: F401 - imported here so that the children need not
import pytest

from mutation import tracing

_COLLECTION_LIMIT_S = 60.0
_PR_SET_PDEATHSIG = 1
# A test has noticed if it takes so many times longer than usual, and longer than the limit of the request.
HANG_TIMES = 6
ARGUMENTS = ("-q", "-p", "no:cacheprovider", "--hypothesis-seed=0")


class Reporter:
    """The pytest plugin in the child: chooses and orders the tests, and tells what happens."""

    def __init__(self, pipe: int, wanted: list[str] | None, tracer: tracing.Tracer | None) -> None:
        self._pipe = pipe
        self._wanted = None if wanted is None else {test: place for place, test in enumerate(wanted)}
        self._tracer = tracer

    def tell(self, **message: Any) -> None:
        os.write(self._pipe, json.dumps(message).encode() + b"\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        if self._wanted is not None:
            order = self._wanted
            items[:] = sorted((item for item in items if item.nodeid in order), key=lambda item: order[item.nodeid])
        self.tell(collected=len(items))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.tell(start=item.nodeid)
        started = time.perf_counter()
        if self._tracer:
            self._tracer.begin(item.nodeid)
        try:
            return (yield)
        finally:
            if self._tracer:
                self._tracer.end()
            self.tell(end=item.nodeid, seconds=time.perf_counter() - started)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            why = getattr(report, "longreprtext", "").strip().splitlines()[-1:]
            self.tell(outcome=report.outcome, test=report.nodeid, why="".join(why)[:300])
            if self._wanted is not None:
                os._exit(0)  # skipped counts too: every wanted test passes unchanged


def die_with_parent() -> None:
    """Have the kernel end this process when its parent is gone, where it can (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def set_up_hypothesis() -> None:
    hypothesis.settings.register_profile(
        "mutate",
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # a failure is enough: no shrinking
    )
    hypothesis.settings.load_profile("mutate")


def _settle_in(request: dict[str, Any], log: int) -> None:
    os.setsid()
    die_with_parent()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    limit = request["memory"]
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _be_child(request: dict[str, Any], pipe: int) -> None:
    set_up_hypothesis()
    tracer = None
    if request.get("trace_files"):
        tracer = tracing.Tracer(request["trace_files"], request["trace_folder"])
    reporter = Reporter(pipe, request.get("tests"), tracer)
    if tracer:
        os.environ[tracing.FILES] = json.dumps(request["trace_files"])
        os.environ[tracing.FOLDER] = request["trace_folder"]
        tracer.install()
    code = "error"
    try:
        code = str(int(pytest.main([*request["arguments"], *ARGUMENTS], plugins=[reporter])))
    except BaseException as error:
        reporter.tell(broken=f"{type(error).__name__}: {error}"[:300])
    if tracer:
        sys.settrace(None)
        found = {"hits": tracer.result(), "takers": sorted(tracer.takers)}
        Path(request["trace_folder"], "result.json").write_text(json.dumps(found))
    reporter.tell(exit=code)


def run(
    request: dict[str, Any],
    be_child: Callable[[dict[str, Any], int], None] = _be_child,
    fork: Callable[[], int] = os.fork,
) -> dict[str, Any]:
    """Have a child run the tests; follow what it tells until it ends or one of its tests hangs."""
    answer: dict[str, Any] = {"ended": "crash", "test": None, "why": "", "durations": {}, "outcomes": {}}
    with tempfile.TemporaryFile() as log:
        reading, writing = os.pipe()
        child = fork()
        if child == 0:
            try:
                os.close(reading)
                _settle_in(request, log.fileno())
                be_child(request, writing)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)  # whatever happens, the child must not go on as a worker
        os.close(writing)
        try:
            _follow(request, reading, answer)
        finally:
            os.close(reading)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child, signal.SIGKILL)  # the processes that tests have started, too
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        log.seek(0)
        answer["log"] = log.read()[-4000:].decode(errors="replace")
    return answer


def _follow(request: dict[str, Any], pipe: int, answer: dict[str, Any]) -> None:
    usual = request.get("durations", {})
    deadline = time.monotonic() + _COLLECTION_LIMIT_S
    buffered = b""
    while True:
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            answer["ended"] = "hang"
            return
        data = os.read(pipe, 65536)
        if not data:
            return  # ended without a word: a crash, unless a failure was told before
        *lines, buffered = (buffered + data).split(b"\n")
        for line in lines:
            message = json.loads(line)
            if "start" in message:
                answer["test"] = message["start"]
                deadline = time.monotonic() + max(request["hang"], HANG_TIMES * usual.get(message["start"], 0.0))
            elif "end" in message:
                answer["durations"][message["end"]] = message["seconds"]
                deadline = time.monotonic() + _COLLECTION_LIMIT_S
            _note(message, answer)
            if answer["ended"] != "crash":
                if request.get("tests") is not None or "exit" in message:
                    return
                answer["ended"] = "crash"  # a whole run goes on after a failure


def _note(message: dict[str, Any], answer: dict[str, Any]) -> None:
    if "outcome" in message:
        answer["outcomes"][message["test"]] = message["outcome"]
        answer.update(ended=message["outcome"], test=message["test"], why=message["why"])
    elif "broken" in message:
        answer.update(why=message["broken"])
    elif "cold" in message:
        answer.update(ended="cold", why=message["cold"])
    elif "exit" in message:
        answer["ended"] = {"0": "passed", "5": "empty"}.get(message["exit"], "broken")


def mutated(request: dict[str, Any], run_it: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """Try one mutant: change the file in this worker's copy, run, and change it back."""
    path = Path(request["path"])
    original = path.read_bytes()
    mutant = original[: request["start"]] + request["text"].encode() + original[request["end"] :]
    try:
        path.write_bytes(mutant)
        return run_it(request)
    finally:
        path.write_bytes(original)


def main() -> None:
    die_with_parent()
    for line in sys.stdin:
        request = json.loads(line)
        answer = mutated(request, run) if "path" in request else run(request)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
