"""The mutation tool: which mutants it sees, and that it tells killed ones from survivors."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
CORE = ROOT / "src" / "tidegate" / "_core"


@pytest.fixture(autouse=True)
def tools_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))


def mutants_of(tmp_path, source, name="module.py"):
    from mutation.mutants import find_mutants

    file = tmp_path / name
    file.write_text(source)
    return find_mutants(tmp_path, file)


def changes_of(tmp_path, source, name="module.py"):
    return {mutant.words for mutant in mutants_of(tmp_path, source, name)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", {"`a < b` -> `a <= b`", "`a < b` -> `a >= b`"}),
        ("return a == b", {"`a == b` -> `a != b`"}),
        ("return a is None", {"`a is None` -> `a is not None`"}),
        ("return a not in b", {"`a not in b` -> `a in b`"}),
        ("return (a) < (b)", {"`(a) < (b)` -> `(a) <= (b)`"}),
        ("return 0 <= a < b", {"`0 <= a < b` -> `0 < a < b`", "`0 <= a < b` -> `0 <= a <= b`"}),
        ("return a and b", {"`a and b` -> `a or b`"}),
        ("return a and b and c", {"`a and b and c` -> `a or b or c`"}),
        ("return not a", {"`not a` -> `a`"}),
        ("return a & b", {"`a & b` -> `a | b`"}),
        ("return a + b", {"`a + b` -> `a - b`", "`return a + b` -> `return None`"}),
        ("a += b", {"`a += b` -> `a -= b`", "remove `a += b`"}),
        ("f(7, True)", {"`7` -> `8`", "`True` -> `False`", "remove `f(7, True)`"}),
        ("while a:\n  break", {"`break` -> `continue`", "`a` -> `not ...`"}),
        ("for a in b:\n  continue", {"`continue` -> `break`"}),
        ("if a:\n  return", {"`a` -> `not ...`", "remove `return`"}),
        ("return [a for a in b if a]", {"`a` -> `not ...`"}),
        ("return a if b else 0", {"`b` -> `not ...`", "`0` -> `1`"}),
        ("raise ValueError", {"remove `raise ValueError`"}),
        ("del a[0]", {"remove `del a[0]`"}),
        ("a.b = 1", {"remove `a.b = 1`"}),
        ("a = b\n a = 2", {"remove `a = b`", "remove `a = 2`"}),
        ("with f(1):\n  await_()", {"`1` -> `2`", "remove `await_()`"}),
        ("match a:\n  case 1 if b < a:\n   f()", {"`b < a` -> `b <= a`", "remove `f()`"}),
        ("try:\n  f()\n except E:\n  g()\n finally:\n  h()", {"remove `f()`", "remove `g()`", "remove `h()`"}),
    ],
)
def test_every_kind_of_change_is_found(tmp_path, body, expected):
    assert expected <= changes_of(tmp_path, f"def function(a, b):\n {body}\n")


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("cdef int f(A a) except -1:\n return g(a)", {"`return g(a)` -> `return 0`"}),
        ("cdef int f(A a) except -1:\n return 0", set()),
        ("cdef Py_ssize_t f(A a):\n return 0", {"`0` -> `1`"}),
        ("cdef bint f(A a) noexcept:\n return g(a)", {"`g(a)` -> `not ...`"}),
        ("cdef inline Node *f(A a):\n return g(a)", {"`return g(a)` -> `return NULL`"}),
        ("cdef A f(A a):\n return g(a)", {"`return g(a)` -> `return None`"}),
        ("cdef void f(A a):\n cdef int b = a + 1", {"`a + 1` -> `a - 1`", "`1` -> `2`"}),
        ("cdef void f(A a):\n CORE_LOCK()\n CORE_UNLOCK()", set()),
        ("cdef void f(A *a):\n a.b = <B>a < <B *>c", {"`<B>a < <B *>c` -> `<B>a <= <B *>c`"}),
        ("cdef void f(A *a):\n g(&a, <B *>a == NULL)", {"`<B *>a == NULL` -> `<B *>a != NULL`"}),
        ("cdef class A:\n cdef int a\n def f(self, B b not None):\n  g()", {"remove `g()`"}),
    ],
)
def test_compiled_functions_are_changed_as_their_types_allow(tmp_path, function, expected):
    found = changes_of(tmp_path, function + "\n", "module.pxi")
    assert expected <= found
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    "source",
    [
        '"""Text with 1 < 2."""\n',
        "import os\nfrom a import b\nx = 1 + 2\n",
        "if TYPE_CHECKING:\n    f(1)\n",
        "class A:\n    b = 1 < 2\n",
        "def f(a: int | None, b: Literal[1] = 2) -> A | B: ...\n",
        "@overload\ndef f(a=1):\n    g()\n",
        "def f():\n    pass\n",
        "def f():\n    a = b()\n",
        "def f(a):\n    return None\n",
        "def f(a):\n    assert a > 1\n",
    ],
)
def test_what_runs_at_import_and_what_cannot_be_done_without_is_left_alone(tmp_path, source):
    assert changes_of(tmp_path, source) == set()


def test_text_for_people_is_left_alone(tmp_path):
    assert changes_of(tmp_path, "def f(a):\n return f'{a + 1} {a < 2}'\n") == {
        "`return f'{a + 1} {a < 2}'` -> `return None`"
    }


def test_a_negation_that_another_change_makes_too_is_not_made_twice(tmp_path):
    assert changes_of(tmp_path, "def f(a):\n if not a:\n  pass\n if a == b:\n  pass\n") == {
        "`not a` -> `a`",
        "`a == b` -> `a != b`",
    }


def test_like_changes_of_one_function_are_numbered_and_keys_are_unique(tmp_path):
    found = mutants_of(tmp_path, "class A:\n def f(self):\n  g()\n  g()\n def h(self):\n  g()\n")
    assert [(mutant.function, mutant.words) for mutant in found] == [
        ("A.f", "remove `g()`"),
        ("A.f", "remove `g()` (#2)"),
        ("A.h", "remove `g()`"),
    ]


@pytest.mark.parametrize("file", sorted(CORE.glob("*.py")), ids=lambda path: path.name)
def test_all_mutants_of_a_file_can_be_in_it_at_once(file):
    from changes.schemata import put_in
    from mutation.mutants import find_mutants

    source = file.read_text()
    found = {number: mutant.change for number, mutant in enumerate(find_mutants(ROOT, file), start=1)}
    text = put_in(source, found)
    compile(text, file.name, "exec")
    assert text.count("change_at(") >= len(found)


# Accepted survivors


def test_an_accepted_survivor_needs_a_reason(tmp_path):
    from mutation.accepted import Accepted

    file = tmp_path / "accepted.toml"
    file.write_text("[[mutant]]\nfile = 'a'\nfunction = 'b'\nchange = 'c'\nreason = ' '\n")
    with pytest.raises(ValueError, match="a reason"):
        Accepted(file)
    file.write_text("[[mutant]]\nfile = 'a'\n")
    with pytest.raises(ValueError, match="change, function, reason"):
        Accepted(file)


def test_an_accepted_survivor_is_known_by_its_change_wherever_its_line_is(tmp_path):
    from mutation.accepted import Accepted

    file = tmp_path / "accepted.toml"
    file.write_text("[[mutant]]\nfile = 'module.py'\nfunction = 'f*'\nchange = '`1` -> `2`'\nreason = 'so'\n")
    accepted = Accepted(file)
    for before in ("", "\n\n\n"):
        (mutant,) = (each for each in mutants_of(tmp_path, f"{before}def four():\n f(1)\n") if "2" in each.words)
        assert accepted.reason(mutant) == "so"
    (other,) = (each for each in mutants_of(tmp_path, "def g():\n f(1)\n") if "2" in each.words)
    assert accepted.reason(other) is None
    assert accepted.stale([other])[0]["function"] == "f*"


def test_every_accepted_survivor_is_there():
    from mutation.accepted import Accepted
    from mutation.mutants import find_mutants

    files = [*CORE.glob("*.py"), *CORE.glob("*/*.pxi")]
    every = [mutant for file in files for mutant in find_mutants(ROOT, file)]
    assert Accepted(TOOLS / "mutants-accepted.toml").stale(every) == []


# The whole tool


def mutate(*arguments):
    command = [sys.executable, str(TOOLS / "mutate.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)


def test_the_same_seed_chooses_the_same_sample():
    first, second = (mutate("--list", "--sample", "4", "--seed", "3").stdout for _ in range(2))
    other = mutate("--list", "--sample", "4", "--seed", "4").stdout
    assert first == second != other
    assert len(first.splitlines()) == 4


@pytest.mark.long
@pytest.mark.timeout(600)
def test_killed_surviving_and_unreached_mutants_are_told_apart(tmp_path):
    from mutation.report import survivors_in

    report = tmp_path / "report.json"
    what = (
        "--files",
        "src/tidegate/_core/timelines/order.pxi",
        "src/tidegate/_core/following.py",
        "--json",
        str(report),
    )
    done = mutate(*what, "--tests", "--conformance", "src/tidegate/conformance/test_callbacks.py", "--drivers", "cpu")
    records = json.loads(report.read_text())["mutants"]
    statuses = {(each["file"].rpartition("/")[2], each["status"]) for each in records}
    assert {("order.pxi", "killed"), ("order.pxi", "survived"), ("following.py", "unreached")} <= statuses, done.stderr
    assert done.returncode == 1
    first = survivors_in(report)

    # With more tests fewer survive; those that were killed are not tried again.
    done = mutate(
        *what, "--again", "--tests", "--conformance", "src/tidegate/conformance/test_ends.py", "--drivers", "cpu"
    )
    assert len(json.loads(report.read_text())["mutants"]) == len(first), done.stderr
    assert survivors_in(report) < first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--files", "no/such/*.py"], "no file matches"),
        (["--sample", "0"], "not above 0"),
        (["--again"], "--again needs"),
    ],
)
def test_wrong_use_is_told_with_status_2(arguments, message):
    done = mutate(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
