"""A process that tries mutants faster: it has imported the tested package and collected all tests of a suite already.

A trial is a forked child in which the functions of the changed file get the code of the mutant; then it runs the tests
it is asked to. So a trial costs hardly more than its tests. What that cannot show is answered with `cold`, and the
plain `worker` tries it: a function that has run already, while modules were imported and tests collected, and one whose
code does not fit the old function.

The file itself is changed as well, for the interpreters that tests start.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from mutation.worker import ARGUMENTS, Reporter, die_with_parent, mutated, run, set_up_hypothesis

Key = tuple[str, str, int]


class Unfit(Exception):
    """The mutant cannot be tried in here."""


class Serving:
    """The pytest plugin that, instead of running the tests, serves requests to run some of them."""

    def __init__(self, requests: int, answers: int) -> None:
        self._requests = os.fdopen(requests, encoding="utf-8")
        self._answers = os.fdopen(answers, "w", encoding="utf-8")
        self.ran: set[CodeType] = set()
        self._functions: dict[str, list[FunctionType]] = defaultdict(list)
        self._session: pytest.Session

    def note_call(self, frame: FrameType, event: str, _argument: object) -> None:
        """The profile function during collection."""
        if event == "call":
            self.ran.add(frame.f_code)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        sys.setprofile(None)
        self._session = session
        assert threading.active_count() == 1, "a thread of the parent would be missing in the children"
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                self._functions[each.__code__.co_filename].append(each)
        gc.freeze()
        for line in self._requests:
            self._answers.write(json.dumps(mutated(json.loads(line), self._run)) + "\n")
            self._answers.flush()
        return True

    def _run(self, request: dict[str, Any]) -> dict[str, Any]:
        # By the C library, not by `os`: the tested package must not notice, for it marks what was made before a fork.
        return run(request, self._be_child, ctypes.PyDLL(None).fork)

    def _be_child(self, request: dict[str, Any], pipe: int) -> None:
        reporter = Reporter(pipe, request["tests"], None)
        try:
            self._change(request["path"])
        except Unfit as error:
            reporter.tell(cold=str(error))
            return
        self._session.config.pluginmanager.register(reporter)
        items = list(self._session.items)
        reporter.pytest_collection_modifyitems(self._session.config, items)
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        reporter.tell(exit="0" if items else "5")

    def _change(self, path: str) -> None:
        """Give the functions made from this file the code that is in it now."""
        now = dict(_codes(compile(Path(path).read_bytes(), path, "exec", dont_inherit=True)))
        changed = [each for each in self._functions[path] if _differs(each.__code__, now)]
        if not changed:
            raise Unfit("no function is changed")
        for function in changed:
            if not self.ran.isdisjoint(code for _, code in _codes(function.__code__)):
                raise Unfit(f"{function.__qualname__} has run already")
            try:
                function.__code__ = now[_key(function.__code__)]
            except ValueError as error:
                raise Unfit(str(error)) from error


def _key(code: CodeType) -> Key:
    return code.co_filename, code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[tuple[Key, CodeType]]:
    yield _key(code), code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _differs(code: CodeType, now: dict[Key, CodeType]) -> bool:
    new = now.get(_key(code))
    return new is not None and new != code


def main() -> None:
    die_with_parent()
    requests, answers = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    set_up_hypothesis()
    serving = Serving(requests, answers)
    sys.setprofile(serving.note_call)
    sys.exit(int(pytest.main([*sys.argv[1:], *ARGUMENTS], plugins=[serving])))


if __name__ == "__main__":
    main()
