"""The mutation tool: which mutants it sees, and that it tells killed ones from survivors."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture(autouse=True)
def tools_on_path(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))


def mutants_of(tmp_path, source):
    from mutation.mutants import find_mutants

    file = tmp_path / "module.py"
    file.write_text(source)
    return find_mutants(tmp_path, file)


def changes_of(tmp_path, source):
    return {mutant.change for mutant in mutants_of(tmp_path, source)}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return a < b", {"`a < b` -> `a <= b`", "`a < b` -> `a >= b`"}),
        ("return a == b", {"`a == b` -> `a != b`"}),
        ("return a is None", {"`a is None` -> `a is not None`"}),
        ("return a not in b", {"`a not in b` -> `a in b`"}),
        ("return 0 <= a < b", {"`0 <= a < b` -> `0 < a < b`", "`0 <= a < b` -> `0 <= a <= b`"}),
        ("return a and b", {"`a and b` -> `a or b`"}),
        ("return not a", {"`not a` -> `a`"}),
        ("return a + b", {"`a + b` -> `a - b`", "`return a + b` -> `return None`"}),
        ("a += b", {"`a += b` -> `a -= b`", "remove `a += b`"}),
        ("f(7, True)", {"`7` -> `8`", "`True` -> `False`", "remove `f(7, True)`"}),
        ("while a:\n  break", {"`break` -> `continue`", "`a` -> `not a`"}),
        ("for a in b:\n  continue", {"`continue` -> `break`"}),
        ("if a:\n  return", {"`a` -> `not a`", "remove `return`"}),
        ("return [a for a in b if a]", {"`a` -> `not a`"}),
        ("return a if b else 0", {"`b` -> `not b`", "`0` -> `1`"}),
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
    "source",
    [
        '"""Text with 1 < 2."""\n',
        "import os\nfrom a import b\n",
        "__slots__ = ('a', 1)\n__all__ = ['x'] + ['y']\n",
        "if TYPE_CHECKING:\n    f(1)\n",
        "def f(a: int | None, b: Literal[1]) -> A | B: ...\n",
        "@overload\ndef f(a=1):\n    g()\n",
        "@dataclass(frozen=True)\nclass A: ...\n",
        "Alias = A | B\n",
        "def f():\n    pass\n",
        "x: Annotated[int, 3]\n",
        "def f():\n    a = b()\n",
        "def f(a):\n    return None\n",
    ],
)
def test_declarations_and_what_cannot_be_done_without_are_left_alone(tmp_path, source):
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


def test_every_mutant_keeps_the_lines_and_can_be_compiled(tmp_path):
    source = (TOOLS / "mutation" / "trials.py").read_text() + "\n\nx = 'äöü', 1 + 2\n"
    tree_lines = source.count("\n")
    found = mutants_of(tmp_path, source)
    assert len(found) > 50
    for mutant in found:
        changed = mutant.apply(source.encode()).decode()
        assert changed.count("\n") == tree_lines, mutant
        assert changed != source
        ast.parse(changed)
    assert (
        mutants_of(tmp_path, "x = 'äöü', 1 + 2\n")[0].apply("x = 'äöü', 1 + 2\n".encode()).decode().startswith("x = ")
    )


def test_like_changes_of_one_function_are_numbered_and_keys_are_unique(tmp_path):
    found = mutants_of(tmp_path, "class A:\n def f(self):\n  g()\n  g()\n def h(self):\n  g()\n")
    assert [(mutant.function, mutant.change) for mutant in found] == [
        ("A.f", "remove `g()`"),
        ("A.f", "remove `g()` (#2)"),
        ("A.h", "remove `g()`"),
    ]


def test_a_mutant_knows_the_lines_that_must_run_for_it(tmp_path):
    source = "LIMIT = 3\ndef f(a, b=2):\n    if (a\n        and b):\n        return g(\n            1)\n"
    found = {mutant.change: (mutant.lines, mutant.at_import) for mutant in mutants_of(tmp_path, source)}
    assert found["`3` -> `4`"] == ((1, 1), True)
    assert found["`2` -> `3`"] == ((2, 2), True)
    assert found["`a and b` -> `a or b`"] == ((3, 4), False)
    assert found["`1` -> `2`"] == ((5, 6), False)


def test_the_tracer_tells_lines_by_test_in_threads_processes_and_beside_other_tracers(tmp_path):
    # In a process of its own, whose trace function nobody else needs.
    file = tmp_path / "traced.py"
    file.write_text("def f(a):\n    if a:\n        return 1\n    return 2\n")
    program = """
import json, os, subprocess, sys, threading, traced
from mutation.tracing import FILES, FOLDER, Tracer, collect
folder = os.getcwd()
os.environ[FILES], os.environ[FOLDER] = json.dumps([traced.__file__]), folder
tracer = Tracer([traced.__file__], folder)
tracer.begin("thread")
thread = threading.Thread(target=traced.f, args=(True,))
thread.start()
thread.join(30)
tracer.end()
traced.f(False)
tracer.begin("fork")
child = os.fork()
if child == 0:
    traced.f(False)
    os._exit(0)
os.waitpid(child, 0)
tracer.begin("started")
subprocess.run([sys.executable, "-c", "import os, traced; traced.f(False); os._exit(1)"])
tracer.begin("beside")
seen = []
def theirs(frame, event, argument):
    frame.f_trace_lines, frame.f_trace_opcodes = False, True
    seen.append(event)
    return theirs
before = sys.gettrace()
sys.settrace(theirs)
traced.f(True)
sys.settrace(before)
traced.f(False)
tracer.end()
hits = tracer.result()
collect(folder, hits)
print(json.dumps([hits, sorted(set(seen)), sorted(tracer.takers)]))
"""
    path = [str(tmp_path), str(TOOLS), str(TOOLS / "mutation" / "site")]
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    hits, seen, takers = json.loads(done.stdout)
    assert hits["thread"] == {str(file): [2, 3]}
    assert hits["fork"] == {str(file): [2, 4]}
    assert hits["started"] == {str(file): [1, 2, 4]}
    assert hits["beside"] == {str(file): [1, 2, 3, 4]}
    assert seen == ["call", "opcode", "return"]
    assert takers == ["beside"]


def test_a_test_that_may_have_hidden_a_line_is_tried_if_it_is_seen_in_the_function(tmp_path):
    from mutation.trials import Reach

    (mutant,) = (
        each
        for each in mutants_of(tmp_path, "def f():\n try:\n  g()\n except E:\n  h()\n\ndef o():\n pass\n")
        if "h()" in each.change
    )
    assert (mutant.lines, mutant.body) == ((5, 5), (2, 5))
    reach = Reach(takers={"|hiding", "|elsewhere"})
    reach.add("|hiding", "module.py", [3])
    reach.add("|plain", "module.py", [3])
    reach.add("|elsewhere", "module.py", [8])
    assert reach.tests_for(mutant) == {"|hiding"}
    reach.add("|reaching", "module.py", [5])
    assert reach.tests_for(mutant) == {"|hiding", "|reaching"}
    reach.takers.clear()
    reach.lines.pop(("module.py", 5))
    assert reach.tests_for(mutant) == {"|hiding", "|plain"}  # nobody was seen on the line: all who were in the function
    reach.early.add(("module.py", 5))
    assert reach.tests_for(mutant) == {"|hiding", "|plain", "|elsewhere", "|reaching"}


# The whole tool, on a small project


MODULE = '''
import subprocess, sys
LIMIT = 10

def clip(value):
    """Cut off at the limit."""
    if value > LIMIT:
        return LIMIT
    return value

def spin(count):
    while count > 0:
        count -= 1
    return count

def in_child():
    return 5

def never():
    return 1 + 1
'''

TESTS = """
import subprocess, sys
import toy

def test_clip():
    assert toy.clip(12) == 10
    assert toy.clip(3) == 3

def test_spin():
    assert toy.spin(3) == 0

def test_in_child():
    program = "import toy, sys; sys.exit(toy.in_child() != 5)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0

def test_that_fails_unchanged():
    assert False
"""


@pytest.fixture
def project(tmp_path):
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "tests").mkdir()
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\n")
    (root / "src" / "toy.py").write_text(MODULE)
    (root / "tests" / "test_toy.py").write_text(TESTS)
    return root


def mutate(root, *arguments):
    command = [sys.executable, str(TOOLS / "mutate.py"), "--root", str(root), "--accepted", str(root / "accepted.toml")]
    command += ["--files", "src/toy.py", "--tests", "tests", "--hang", "1", "--json", str(root / "report.json")]
    return subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.slow
def test_killed_hung_surviving_and_unreached_mutants_are_told_apart(project):
    done = mutate(project)
    assert done.returncode == 1, done.stderr
    report = json.loads((project / "report.json").read_text())
    by_change = {(record["function"], record["change"]): record for record in report["mutants"]}

    def status(function, change):
        return by_change[function, change]["status"]

    assert status("clip", "`value > LIMIT` -> `value <= LIMIT`") == "killed"
    assert status("clip", "`value > LIMIT` -> `value >= LIMIT`") == "survived"
    assert status("<module>", "`10` -> `11`") == "killed"
    assert status("in_child", "`5` -> `6`") == "killed"
    assert status("never", "`1 + 1` -> `1 - 1`") == "unreached"
    hung = by_change["spin", "remove `count -= 1`"]
    assert (hung["status"], hung["how"].partition(":")[0]) == ("killed", "hang")
    assert "tests/test_toy.py::test_that_fails_unchanged" in done.stderr.replace("\n", "")
    assert "src/toy.py:7 clip: `value > LIMIT` -> `value >= LIMIT`  [" in done.stdout
    assert (project / "src" / "toy.py").read_text() == MODULE

    # Accepted with a reason it no longer counts against the run, though it counts in the score.
    survivors = [record for record in report["mutants"] if record["status"] != "killed"]
    accepted = "".join(
        f"[[mutant]]\nfile = {json.dumps(record['file'])}\nfunction = {json.dumps(record['function'])}\n"
        f"change = {json.dumps(record['change'])}\nreason = 'looked at'\n"
        for record in survivors
    )
    stale = "[[mutant]]\nfile = 'src/toy.py'\nfunction = 'gone'\nchange = 'x'\nreason = 'y'\n"
    (project / "accepted.toml").write_text(accepted + stale)
    again = mutate(project, "--resume", "--minimum", "10")
    assert again.returncode == 0, again.stdout
    assert f"{len(survivors)} survivors, {len(survivors)} of them accepted" in again.stdout
    assert "accepted, but no longer there: src/toy.py gone: x" in again.stdout
    assert mutate(project, "--resume", "--minimum", "99.9").returncode == 1


@pytest.mark.slow
def test_the_same_seed_chooses_the_same_sample(project):
    first, second = (mutate(project, "--list", "--sample", "4", "--seed", "3").stdout for _ in range(2))
    other = mutate(project, "--list", "--sample", "4", "--seed", "4").stdout
    assert first == second != other
    assert len(first.splitlines()) == 4


@pytest.mark.slow
def test_tests_that_do_not_run_unchanged_are_wrong_use(project):
    (project / "tests" / "test_toy.py").write_text("import nothing_of_this_name\n")
    done = mutate(project)
    assert done.returncode == 2
    assert "do not run unchanged" in done.stderr


WARM_MODULE = """
import os
FORKED = []
os.register_at_fork(after_in_child=lambda: FORKED.append(1))

def at_import():
    return 2 + 2

FOUR = at_import()

class Base:
    def __init__(self):
        self.ready = True

class Derived(Base):
    def __init__(self):
        super().__init__()

    @property
    def answer(self):
        return [number * FOUR for number in (1, 2)]
"""

WARM_TESTS = """
import warm

def test_four():
    assert warm.FOUR == 4

def test_derived():
    assert warm.Derived().ready
    assert warm.Derived().answer == [4, 8]

def test_the_tested_package_is_not_told_of_the_fork():
    assert warm.FORKED == []
"""


@pytest.mark.slow
def test_what_a_warm_process_cannot_show_is_tried_in_a_fresh_one(project):
    (project / "src" / "warm.py").write_text(WARM_MODULE)
    (project / "tests" / "test_warm.py").write_text(WARM_TESTS)
    done = mutate(project, "--files", "src/warm.py", "--tests", "tests/test_warm.py")
    report = json.loads((project / "report.json").read_text())
    by_change = {(record["function"], record["change"]): record for record in report["mutants"]}
    assert by_change["at_import", "`2 + 2` -> `2 - 2`"]["status"] == "killed"
    assert by_change["Derived.__init__", "remove `super().__init__()`"]["status"] == "killed"
    assert by_change["Derived.answer", "`number * FOUR` -> `number // FOUR`"]["status"] == "killed"
    assert "left out" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--files", "no/such/*.py"], "no file matches"),
        (["--tests", "no/such/tests"], "none of these tests is there"),
        (["--sample", "0"], "not above 0"),
        (["--again"], "there is no"),
    ],
)
def test_wrong_use_is_told_with_status_2(project, arguments, message):
    done = mutate(project, *arguments)
    assert done.returncode == 2
    assert message in done.stderr


def test_the_map_from_lines_to_tests_can_be_kept(tmp_path):
    from mutation.trials import Reach

    reach = Reach(seconds={"|a": 0.5, "|b": 0.25}, broken={"|c"}, takers={"|b"}, early={("f.py", 2)})
    reach.add("|a", "f.py", [1, 2])
    reach.add("|b", "f.py", [2])
    reach.save(tmp_path / "map.json")
    kept = Reach.load(tmp_path / "map.json")
    assert kept == reach


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
        (mutant,) = (each for each in mutants_of(tmp_path, f"{before}def four():\n f(1)\n") if "2" in each.change)
        assert accepted.reason(mutant) == "so"
    (other,) = (each for each in mutants_of(tmp_path, "def g():\n f(1)\n") if "2" in each.change)
    assert accepted.reason(other) is None
    assert accepted.stale([other])[0]["function"] == "f*"
