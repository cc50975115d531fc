"""The two forms of the shortest calls behave alike, and Python serves wherever C cannot.

Which form serves is settled when Tidegate is imported, so each program here runs in a process of its own.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tidegate._core import fast_path

ROOT = Path(__file__).parents[2]
BUILT = importlib.util.find_spec("tidegate._core._fast") is not None
FORMS = ["python", pytest.param("c", marks=pytest.mark.skipif(not BUILT, reason="the C form was not built"))]

needs_c = pytest.mark.skipif(not fast_path.COMPILED, reason="the C form was not built, or is not wanted")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")


def run(program: str, form: str = "c") -> str:
    """What a program prints in a fresh interpreter that uses the given form."""
    environment = {**os.environ, "TIDEGATE_PURE": "1" if form == "python" else ""}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


ANSWERS = """
import math, re
import tidegate as tg

class Odd(int):
    pass

class Index:
    def __index__(self):
        return 6

VALUES = [-1, 0, 1, 4, 5, 6, 2**30, 2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]
VALUES += [True, 1.0, "1", None, Odd(6), Index()]
TIMEOUTS = [0, 0.0001, 0.001, 1, 0.01, Odd(1), True, -1, -0.5, math.inf, math.nan, 2**70, "1"]

def show(call, *args, **names):
    try:
        found = call(*args, **names)
    except Exception as error:
        # Where too few or too many arguments come, the words are the interpreter's.
        found = type(error).__name__ if "argument" in str(error) else repr(error)
    return re.sub("0x[0-9a-f]+", "0x", repr(found))

def fresh(kind):
    start = {"high": 2**63 - 1, "higher": 2**63 + 1}.get(kind, 5)
    semaphore = tg.Semaphore(start)
    if kind == "failed":
        semaphore.fail(OSError("broken"))
    if kind == "waited":
        semaphore.at(2**64 - 2).add_callback(lambda *found: None)
    return semaphore
"""

CALLS = """
for kind in ("calm", "high", "higher", "waited", "failed"):
    for value in VALUES:
        semaphore = fresh(kind)
        print(kind, "signal", show(semaphore.signal, value), show(semaphore.query), semaphore.value)
        semaphore = fresh(kind)
        print(kind, "signal by name", show(semaphore.signal, value=value), semaphore.value)
        print(kind, "at", show(semaphore.at, value), show(semaphore.at, value=value))
        print(kind, "polled", show(semaphore.wait, value, 0), show(semaphore.wait, value=value, timeout=0))
    semaphore = fresh(kind)
    print(kind, "for ever", show(semaphore.wait, 5), show(semaphore.wait, value=5), show(semaphore.wait, 5, None))
    for timeout in TIMEOUTS:
        print(kind, timeout, show(semaphore.wait, 5, timeout), show(semaphore.wait, 5, timeout=timeout))
    for args, names in [((), {}), ((1, 2, 3), {}), ((1,), {"value": 1}), ((1,), {"none": 1}), ((1,) * 9, {})]:
        calls = semaphore.query, semaphore.signal, semaphore.wait, semaphore.at
        print(kind, args, names, [show(call, *args, **names) for call in calls[0 if args or names else 1 :]])
"""


@needs_c
def test_both_forms_answer_alike() -> None:
    program = ANSWERS + CALLS
    assert run(program, "c").splitlines() == run(program, "python").splitlines()


@needs_c
def test_both_forms_have_the_same_docstrings_and_parameters() -> None:
    program = """
import inspect
import tidegate as tg
for name in ("query", "signal", "wait", "at"):
    method = getattr(tg.Semaphore, name)
    print(name, [(p.name, p.default) for p in inspect.signature(method).parameters.values()], inspect.getdoc(method))
"""
    assert run(program, "c") == run(program, "python")


@pytest.mark.parametrize("form", FORMS)
def test_the_environment_chooses_the_form(form: str) -> None:
    program = """
import tidegate as tg
from tidegate._core import fast_path
print(fast_path.COMPILED, type(tg.Semaphore.query).__name__)
"""
    assert run(program, form) == ("True method_descriptor" if form == "c" else "False function")


@pytest.mark.parametrize("form", FORMS)
def test_a_waiter_is_woken_by_a_signal(form: str) -> None:
    program = """
import threading
import tidegate as tg
semaphore, answer, seen = tg.Semaphore(), tg.Semaphore(), []
semaphore.at(2).add_callback(lambda point, outcome, error: seen.append(point.value))
def echo():
    for value in range(1, 200):
        semaphore.wait(value, 30)
        answer.signal(value)
thread = threading.Thread(target=echo)
thread.start()
for value in range(1, 200):
    semaphore.signal(value)
    answer.wait(value, timeout=30)
thread.join(30)
print(seen, answer.query())
"""
    assert run(program, form) == "[2] 199"


@pytest.mark.parametrize("form", FORMS)
def test_a_semaphore_in_a_cycle_is_collected_and_fails_who_waits(form: str) -> None:
    program = """
import gc, threading, weakref
import tidegate as tg
semaphore, over, errors = tg.Semaphore(), threading.Event(), []
def note(point, outcome, error):
    errors.append(type(error).__name__)
    over.set()
semaphore.at(1).add_callback(note)
cycle = [semaphore.at(1), tg.Timepoint(semaphore, 2)]
cycle.append(cycle)
gone = weakref.ref(semaphore)
del semaphore, cycle
gc.collect()
print(gone() is None, over.wait(30), errors)
"""
    assert run(program, form) == "True True ['AbortedError']"


@pytest.mark.parametrize("form", FORMS)
def test_calls_leave_no_references_behind(form: str) -> None:
    program = """
import sys
import tidegate as tg
semaphore, big = tg.Semaphore(), 10**15
before = sys.getrefcount(big), sys.getrefcount(semaphore), sys.getrefcount(semaphore._state)
for _ in range(100):
    point = semaphore.at(big)
    tg.Timepoint(semaphore, big).__init__(semaphore, big)
    semaphore.wait(0)
    semaphore.query()
semaphore.signal(big)
semaphore.signal(big + 1)
del point
print(before == (sys.getrefcount(big), sys.getrefcount(semaphore), sys.getrefcount(semaphore._state)))
"""
    assert run(program, form) == "True"


@needs_fork
@pytest.mark.parametrize("form", FORMS)
def test_a_forked_child_refuses_what_its_parent_made(form: str) -> None:
    program = """
import os
import tidegate as tg
semaphore = tg.Semaphore(5)
child = os.fork()
if not child:
    refused = 0
    for call in (semaphore.query, lambda: semaphore.signal(6), lambda: semaphore.wait(5)):
        try:
            call()
        except tg.FailedPreconditionError:
            refused += 1
    new = tg.Semaphore()
    new.signal(1)
    os._exit(refused if new.query() == 1 else 9)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), semaphore.query())
"""
    assert run(program, form) == "3 5"


SERVED = """
from tidegate._core import fast_path
import tidegate as tg
semaphore = tg.Semaphore()
semaphore.signal(3)
print(fast_path.COMPILED, semaphore.query())
"""


@pytest.mark.parametrize(
    "obstacle",
    [
        pytest.param("sys.modules['tidegate._core._fast'] = None", id="no module"),
        pytest.param("sys.modules['tidegate._core._fast'] = types.SimpleNamespace(FORM=0)", id="an older module"),
        pytest.param("sys._is_gil_enabled = lambda: False", id="no GIL"),
    ],
)
def test_python_serves_where_c_cannot(obstacle: str) -> None:
    assert run(f"import sys, types\n{obstacle}\n{SERVED}") == "False 3"


@needs_c
def test_a_second_copy_in_the_process_gets_the_python_form_and_leaves_the_first_alone() -> None:
    program = """
import sys
import tidegate as tg
first = tg.Semaphore()
for name in [name for name in sys.modules if name.partition(".")[0] == "tidegate"]:
    del sys.modules[name]
"""
    again = "first.signal(2)\nprint(first.query())"
    assert run(program + SERVED + again) == "False 3\n2"


@pytest.fixture
def hook() -> ModuleType:
    """The build hook; it stands in a checkout only."""
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("compiler", ["/nonexistent/cc", f"{sys.executable} -c 'raise SystemExit(1)'"])
def test_a_compiler_that_is_missing_or_fails_is_told_in_one_line(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiler: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    for source in hook.MODULES:
        told = hook._compile(ROOT / source, tmp_path / "built.so")
        assert "C compiler" in told
        assert "\n" not in told
        assert not list(tmp_path.iterdir())


def test_a_build_can_be_asked_to_stay_pure(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEGATE_PURE", "1")
    assert "TIDEGATE_PURE" in hook._reason_against()
