"""A process that tries changes: it has imported the package they are built into, and collected all tests of a suite.

A trial is a forked child that switches a change on and runs the tests it is asked to, so it costs hardly more than they
do. Requests come by the standard input, one JSON object per line, and several may be under way; each is answered with
one. The child tells through a pipe which test it is at, so one that hangs is known after its own time limit; and it
ends at the first failure, without any clearing up.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import resource
import selectors
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

import pytest

_BETWEEN_TESTS_S = 60.0
_PR_SET_PDEATHSIG = 1
HANG_TIMES = 6
"""A test has noticed if it takes so many times longer than usual, and longer than the limit of the request."""


class Reporter:
    """The pytest plugin in the child: tells what happens."""

    def __init__(self, pipe: int, request: dict[str, Any]) -> None:
        self._pipe = pipe
        self._goes_on = bool(request.get("record"))

    def tell(self, **message: Any) -> None:
        os.write(self._pipe, json.dumps(message).encode() + b"\n")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self.tell(start=item.nodeid)
        started = time.perf_counter()
        try:
            return (yield)
        finally:
            found = {"reached": _take_reached()} if self._goes_on else {}
            self.tell(end=item.nodeid, seconds=time.perf_counter() - started, **found)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.outcome != "passed":
            outcome = "not yet" if hasattr(report, "wasxfail") else report.outcome
            self.tell(outcome=outcome, test=report.nodeid, why=_last_line(report))
            if report.failed and not self._goes_on:
                os._exit(0)


def _last_line(report: pytest.TestReport) -> str:
    return "".join(report.longreprtext.strip().splitlines()[-1:])[:300]


def _take_reached() -> list[int]:
    from tidegate import _switch

    return _switch.take_reached()


def _switch_on(request: dict[str, Any], entered: contextlib.ExitStack) -> None:
    if request.get("change"):
        from tidegate import _switch

        _switch.switch_on(request["change"])
    if request.get("fault"):
        from tidegate.testing.faulty import FAULTS

        entered.enter_context(FAULTS[request["fault"]].apply())


@dataclass
class Child:
    """One that is under way."""

    request: dict[str, Any]
    process: int
    pipe: int
    log: IO[bytes]
    deadline: float = field(default_factory=lambda: time.monotonic() + _BETWEEN_TESTS_S)
    buffered: bytes = b""
    answer: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.answer.update(id=self.request["id"], ended="crash", test=None, why="", tests={})

    def read(self) -> bool:
        """Take in what it tells. False: there is nothing more to come."""
        data = os.read(self.pipe, 65536)
        *lines, self.buffered = (self.buffered + data).split(b"\n")
        for line in lines:
            if not self._note(json.loads(line)):
                return False
        return bool(data)  # an end without a word is a crash

    def _note(self, message: dict[str, Any]) -> bool:
        answer = self.answer
        if "start" in message:
            answer["test"] = message["start"]
            usual = self.request.get("usual", {}).get(message["start"], 0.0)
            self.deadline = time.monotonic() + max(self.request["hang"], HANG_TIMES * usual)
            answer["tests"][message["start"]] = {"outcome": "passed"}
        elif "end" in message:
            answer["tests"][message["end"]].update(seconds=message["seconds"], reached=message.get("reached", []))
            self.deadline = time.monotonic() + _BETWEEN_TESTS_S
        elif "outcome" in message:
            answer["tests"][message["test"]].update(outcome=message["outcome"], why=message["why"])
            if message["outcome"] == "failed" and not self.request.get("record"):
                answer.update(ended="failed", why=message["why"])
                return False
        elif "broken" in message:
            answer.update(ended="broken", why=message["broken"])
            return False
        elif "exit" in message:
            answer["ended"] = "passed"
            return False
        return True

    def finish(self) -> dict[str, Any]:
        """End it, with all that its tests have started, and return the answer."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process, signal.SIGKILL)
        os.kill(self.process, signal.SIGKILL)
        os.waitpid(self.process, 0)
        os.close(self.pipe)
        with self.log:
            self.log.seek(0)
            self.answer["log"] = self.log.read()[-4000:].decode(errors="replace")
        return self.answer


class Serving:
    """The pytest plugin that, instead of running the tests, serves requests to run some of them."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = requests
        self._answers = answers
        self._children: dict[int, Child] = {}
        self._items: dict[str, pytest.Item]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        assert threading.active_count() == 1, "a thread of the parent would be missing in the children"
        self._items = {item.nodeid: item for item in session.items}
        self._answer({"collected": list(self._items)})
        gc.freeze()
        with selectors.DefaultSelector() as selector:
            selector.register(self._requests, selectors.EVENT_READ)
            buffered = b""
            while True:
                for key, _ in selector.select(self._patience()):
                    if key.fd != self._requests:
                        child = self._children[key.fd]
                        if not child.read():
                            self._end(selector, child)
                        continue
                    data = os.read(self._requests, 65536)
                    if not data:
                        return True
                    *lines, buffered = (buffered + data).split(b"\n")
                    for line in lines:
                        child = self._begin(json.loads(line))
                        selector.register(child.pipe, selectors.EVENT_READ)
                for child in [each for each in self._children.values() if time.monotonic() >= each.deadline]:
                    child.answer["ended"] = "hang"
                    self._end(selector, child)

    def _patience(self) -> float | None:
        if not self._children:
            return None
        return max(0.0, min(child.deadline for child in self._children.values()) - time.monotonic())

    def _answer(self, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode() + b"\n"
        while data:
            data = data[os.write(self._answers, data) :]

    def _begin(self, request: dict[str, Any]) -> Child:
        log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the child has ended
        reading, writing = os.pipe()
        # By the C library, not by `os`: the package must not notice, for it marks what was made before a fork.
        process = ctypes.PyDLL(None).fork()
        if process == 0:
            try:
                self._be_child(request, writing, log.fileno())
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)  # whatever happens, the child must not go on as the parent
        os.close(writing)
        child = self._children[reading] = Child(request, process, reading, log)
        return child

    def _end(self, selector: selectors.BaseSelector, child: Child) -> None:
        selector.unregister(child.pipe)
        del self._children[child.pipe]
        self._answer(child.finish())

    def _be_child(self, request: dict[str, Any], pipe: int, log: int) -> None:
        os.setsid()
        die_with_parent()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for other in (self._requests, self._answers, *self._children):
            os.close(other)
        resource.setrlimit(resource.RLIMIT_AS, (request["memory"], request["memory"]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        reporter = Reporter(pipe, request)
        entered = contextlib.ExitStack()
        try:
            items = [self._items[test] for test in request["tests"]]
            _switch_on(request, entered)
        except Exception as error:
            reporter.tell(broken=f"{type(error).__name__}: {error}"[:300])
            return
        items[0].config.pluginmanager.register(reporter)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        reporter.tell(exit=0)


def die_with_parent() -> None:
    """Have the kernel end this process when its parent is gone, where it can (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _set_up_hypothesis() -> None:
    import hypothesis

    hypothesis.settings.register_profile(
        "changes",
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],  # a failure is enough: no shrinking
    )
    hypothesis.settings.load_profile("changes")


def main() -> None:
    die_with_parent()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored in the background
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    _set_up_hypothesis()
    arguments = [*sys.argv[1:], "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0"]
    sys.exit(int(pytest.main(arguments, plugins=[Serving(requests, answers)])))


if __name__ == "__main__":
    main()
