"""The rule of the compiled core: nothing can come between what a step does.

A step calls no Python, allocates nothing, drops no last reference, blocks nowhere and cannot fail. The C that Cython
makes of each is read against a list of what it may call, and so that the reading proves something, it must find what is
planted here. That no reference is the last one only a running program tells: a build that checks it aborts.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from .generated_c import generate, marked_steps, offences, sources_of

pytest.importorskip("Cython")

PACKAGE = Path(__file__).parents[2] / "src" / "tidegate"
CORE = PACKAGE / "_core"
MODULES = sorted(PACKAGE.glob("**/*.pyx"))

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("source", MODULES, ids=[source.relative_to(PACKAGE).as_posix() for source in MODULES])
def test_a_step_calls_steps_and_plain_c_alone(source: Path, tmp_path: Path) -> None:
    steps = [step for file in sources_of(source) for step in marked_steps(file)]
    module = ".".join(source.relative_to(PACKAGE.parent).with_suffix("").parts)
    assert offences(generate(source, tmp_path, CORE), steps, module) == {}


def test_the_core_has_steps() -> None:
    names = {str(step) for file in sources_of(CORE / "compiled.pyx") for step in marked_steps(file)}
    assert {"Timeline.rise", "Timeline.fail", "order_insert", "admit", "end"} <= names


PLANTED = '''
# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
include "ground/step.pxi"

cdef class Thing:
    cdef object kept
    cdef Thing following
    cdef list listed

    cdef void allocates(self) noexcept:
        """Step: it makes a list."""
        self.kept = []

    cdef int may_fail(self) except -1:
        """Step: it says that it may fail."""
        return 0

    cdef void innocent(self, Thing other) noexcept:
        """Step: it links, counts and calls another step."""
        cdef Py_ssize_t index
        if other.following is None:
            other.following = self
        for index in range(PyList_GET_SIZE(self.listed)):
            (<Thing>PyList_GET_ITEM(self.listed, index)).hidden()
        innocent_too(other)

    cdef void hidden(self) noexcept:
        """Step: nothing."""

    cdef int unmarked(self) noexcept:
        return 1

cdef void innocent_too(Thing thing) noexcept:
    """Step: nothing but a pointer moves."""
    thing.following = None

cdef void calls_python(Thing thing) noexcept:
    """Step: it calls an object."""
    thing.kept()

cdef void reads_an_attribute(Thing thing) noexcept:
    """Step: an attribute may be a property."""
    thing.kept.name

cdef bint compares(Thing thing, object other) noexcept:
    """Step: to compare may be Python."""
    return thing.kept == other

cdef void makes_a_number(Thing thing, uint64_t value) noexcept:
    """Step: a number is an object."""
    thing.kept = value

cdef void raises(Thing thing) noexcept:
    """Step: nobody hears of it."""
    raise ValueError(thing)

cdef void tests_a_type(Thing thing) noexcept:
    """Step: what is of another type raises."""
    thing.following = thing.kept

cdef void appends(Thing thing) noexcept:
    """Step: a list may have to grow."""
    thing.listed.append(thing)

cdef void takes_a_lock(PyThread_type_lock gate) noexcept:
    """Step: it sleeps."""
    PyThread_acquire_lock_timed(gate, -1, 1)

cdef void gives_the_gil_away(const uint64_t *word) noexcept:
    """Step: another thread comes between."""
    with nogil:
        word_load(word)

cdef int helper(int number) noexcept:
    return number + 1

cdef int calls_what_is_no_step(int number) noexcept:
    """Step: who knows what a helper does."""
    return helper(number)

cdef int calls_a_method_that_is_no_step(Thing thing) noexcept:
    """Step: likewise."""
    return thing.unmarked()

cdef void looks_for_signals() noexcept:
    """Step: a signal handler runs."""
    PyErr_CheckSignals()

def allocates_while_locked(Thing thing not None):
    CORE_LOCK()
    thing.kept = {}
    CORE_UNLOCK()

def leaves_the_lock_behind(Thing thing not None, int number):
    CORE_LOCK()
    if number:
        return None
    thing.following = None
    CORE_UNLOCK()

def is_careful(Thing thing not None):
    kept = thing.kept
    CORE_LOCK()
    thing.kept = None
    CORE_UNLOCK()
    del kept

def fill(Thing thing not None, kept):
    thing.kept = kept

def drops_a_last_reference(Thing thing not None):
    CORE_LOCK()
    thing.kept = None
    CORE_UNLOCK()
'''

#: A part of what the reading must find in each; how it is called exactly is Cython's.
CAUGHT = {
    "Thing.allocates": "PyList_New",
    "Thing.may_fail": "it is not noexcept",
    "calls_python": "Call",
    "reads_an_attribute": "GetAttr",
    "compares": "Compare",
    "makes_a_number": "From_uint64_t",
    "raises": "Raise",
    "tests_a_type": "TypeTest",
    "appends": "Append",
    "takes_a_lock": "PyThread_acquire_lock_timed",
    "gives_the_gil_away": "PyEval_RestoreThread",
    "calls_what_is_no_step": "helper",
    "calls_a_method_that_is_no_step": "unmarked",
    "looks_for_signals": "PyErr_CheckSignals",
    "allocates_while_locked": "PyDict_New",
    "leaves_the_lock_behind": "goto __pyx_L0",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("planted") / "planted.pyx"
    source.write_text(PLANTED.lstrip(), encoding="utf-8")
    return source


def test_the_reading_finds_everything_that_is_planted_and_nothing_else(planted: Path) -> None:
    found = offences(generate(planted, planted.parent, CORE), marked_steps(planted), "planted")
    caught = {name: calls for name in CAUGHT for place, calls in found.items() if place.endswith(name)}
    assert len(caught) == len(found) == len(CAUGHT), f"found in {sorted(found)}"
    assert not {name: calls for name, calls in caught.items() if not any(CAUGHT[name] in call for call in calls)}


def compiler() -> list[str]:
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    pytest.importorskip("ziglang", reason="there is no C compiler here")
    return [sys.executable, "-m", "ziglang", "cc"]


@pytest.mark.skipif(sys.platform == "win32", reason="the build that checks steps is for systems with a C compiler")
@pytest.mark.parametrize(("call", "aborts"), [("is_careful", False), ("drops_a_last_reference", True)])
def test_a_build_that_checks_steps_aborts_where_one_drops_a_last_reference(
    planted: Path, call: str, aborts: bool
) -> None:
    built = planted.with_name("planted" + sysconfig.get_config_var("EXT_SUFFIX"))
    if not built.exists():
        generate(planted, planted.parent, CORE)
        flags = ["-O0", "-w", "-shared", "-fPIC", "-DTIDEGATE_CHECK_STEPS", f"-I{sysconfig.get_path('include')}"]
        flags += ["-undefined", "dynamic_lookup"] if sys.platform == "darwin" else []
        subprocess.run([*compiler(), *flags, planted.with_suffix(".c"), "-o", built], timeout=100, check=True)
    program = f"import planted; thing = planted.Thing(); planted.fill(thing, object()); planted.{call}(thing)"
    ended = subprocess.run(
        [sys.executable, "-c", program], cwd=planted.parent, capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.returncode != 0, "a step dropped a last reference" in ended.stderr) == (aborts, aborts)
