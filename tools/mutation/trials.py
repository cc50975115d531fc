"""Copies of the tree, the workers in them, and the trial of each mutant against the tests that reach it."""

from __future__ import annotations

import json
import os
import queue
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from mutation import tracing
from mutation.mutants import Mutant

T = TypeVar("T")
Killers = dict[tuple[str, str], Counter[str]]
"""How often each test killed mutants of a function, or with "" of a whole file."""

TOOLS = Path(__file__).resolve().parent.parent
_LEFT_OUT = shutil.ignore_patterns(
    ".git",
    ".venv",
    "venv",
    "__pycache__",
    "*.pyc",
    ".*_cache",
    ".hypothesis",
    "build",
    "dist",
    "node_modules",
    "_build",
)
# The first tests run by themselves: most mutants end there, and collecting all files would cost more than they do.
_FIRST = 25
# How many of the tests that killed mutants elsewhere in a file are tried early.
_FROM_THE_FILE = 40
# Between the name of a suite and the id of a test.
_MARK = "|"
# A test of the unchanged tree may wait out its own time limit and fail by that.
_UNCHANGED_LIMIT_S = 180.0
_TRACED_LIMIT_S = 45.0


@dataclass(frozen=True)
class Suite:
    """Tests that are run in one way. Its name, which may be empty, stands before the ids of its tests."""

    name: str
    tests: Sequence[str]
    arguments: Sequence[str] = ()


@dataclass
class Settings:
    """What every trial has in common."""

    root: Path
    suites: Sequence[Suite]
    jobs: int = 2
    hang: float = 8.0
    budget: float = 12.0
    memory: int = 16 << 30
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Verdict:
    """What became of a mutant: `killed`, `survived` or `unreached` (no test runs its line)."""

    mutant: Mutant
    status: str
    how: str = ""
    test: str = ""
    tried: int = 0


@dataclass
class Reach:
    """Which tests pass, how long each takes, and which lines each runs. Files are paths from the root.

    `takers` set a trace function of their own; `early` lines run while modules are imported and tests collected.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    lines: dict[tuple[str, int], set[str]] = field(default_factory=lambda: defaultdict(set))
    files: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    broken: set[str] = field(default_factory=set)
    takers: set[str] = field(default_factory=set)
    early: set[tuple[str, int]] = field(default_factory=set)

    def add(self, test: str, file: str, lines: Iterable[int]) -> None:
        self.files[file].add(test)
        for line in lines:
            self.lines[file, line].add(test)

    def save(self, path: Path) -> None:
        numbers = {test: number for number, test in enumerate(self.seconds)}
        lines = [[file, line, [numbers[test] for test in tests]] for (file, line), tests in self.lines.items()]
        document = {"seconds": self.seconds, "lines": lines}
        document |= {"broken": sorted(self.broken), "takers": sorted(self.takers), "early": sorted(self.early)}
        path.write_text(json.dumps(document), encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Reach:
        document = json.loads(path.read_text(encoding="utf-8"))
        reach = cls(seconds=document["seconds"], broken=set(document["broken"]), takers=set(document["takers"]))
        reach.early = {(file, line) for file, line in document["early"]}
        names = list(reach.seconds)
        for file, line, tests in document["lines"]:
            for number in tests:
                reach.add(names[number], file, [line])
        return reach

    def tests_for(self, mutant: Mutant) -> set[str]:
        """The tests that may notice.

        Those that run its lines, or any line of its file for what runs at import; and of those that set a trace
        function of their own, which may have hidden the very lines, those that are seen anywhere in its function. All
        of the latter where nobody was seen on its lines: in a function that runs often, a rare line may be missed.
        """
        first, last = mutant.lines
        if mutant.at_import or any((mutant.file, line) in self.early for line in range(first, last + 1)):
            return set(self.files[mutant.file])
        inside = self._on(mutant.file, mutant.body)
        return self._on(mutant.file, mutant.lines) | (inside & self.takers) or inside

    def _on(self, file: str, lines: tuple[int, int]) -> set[str]:
        return set().union(*(self.lines.get((file, line), ()) for line in range(lines[0], lines[1] + 1)))


class Worker:
    """A copy of the tree with processes in it: one for plain runs, and a warm one for each suite.

    One thread uses it at a time.
    """

    def __init__(self, settings: Settings, folder: Path) -> None:
        self.tree = folder / "tree"
        self.settings = settings
        shutil.copytree(settings.root, self.tree, ignore=_LEFT_OUT, symlinks=True)
        source = self.tree / "src"
        # Found by content, for a mutant may have the size and the time of the original.
        compile_all = [sys.executable, "-m", "compileall", "-q", "--invalidation-mode", "checked-hash", str(source)]
        subprocess.run(compile_all, check=False, stdout=subprocess.DEVNULL)
        path = [str(source), str(TOOLS / "mutation" / "site"), str(TOOLS)]
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            **settings.environment,
        }
        self._plain = self._start("mutation.worker")
        self._warm: dict[str, subprocess.Popen[str]] = {}

    def _start(self, module: str, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=self.tree,
            env=self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, suite: Suite, files: Sequence[str], **request: Any) -> dict[str, Any]:
        """Have pytest run in a child of the plain process; see `worker`."""
        return self._ask(self._plain, arguments=self._arguments(suite, files), **request)

    def ask_warm(self, suite: Suite, **request: Any) -> dict[str, Any]:
        """Have tests run in a child of the warm process, which may decline; see `warm`."""
        if suite.name not in self._warm:
            self._warm[suite.name] = self._start("mutation.warm", *self._arguments(suite, suite.tests))
        return self._ask(self._warm[suite.name], **request)

    def _arguments(self, suite: Suite, files: Sequence[str]) -> list[str]:
        return [*suite.arguments, f"--rootdir={self.tree}", *files]

    def _ask(self, process: subprocess.Popen[str], **request: Any) -> dict[str, Any]:
        assert process.stdin
        assert process.stdout
        request = {"hang": self.settings.hang, "memory": self.settings.memory, **request}
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"a worker ended by itself: {shlex.join(map(str, process.args))}")  # type: ignore[arg-type]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        for process in (self._plain, *self._warm.values()):
            assert process.stdin
            process.stdin.close()
        for process in (self._plain, *self._warm.values()):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


class Trials:
    """The workers. A context manager: the copies are removed at its end."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._folder = tempfile.TemporaryDirectory(prefix="mutate-", ignore_cleanup_errors=True)
        self._workers: list[Worker] = []

    def __enter__(self) -> Trials:
        for number in range(self.settings.jobs):
            self._workers.append(Worker(self.settings, Path(self._folder.name, str(number))))
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.close()
        self._folder.cleanup()

    def find_reach(self, files: Iterable[str]) -> Reach:
        """Run all tests as they are, for their times, then traced, for the lines they run.

        Raises:
            RuntimeError: They could not be run at all.
        """
        reach = Reach()
        listed = sorted(files)
        self._share(self.settings.suites, lambda worker, suite: self._reach_of(worker, suite, listed, reach))
        return reach

    @staticmethod
    def _reach_of(worker: Worker, suite: Suite, files: Sequence[str], reach: Reach) -> None:
        plain = worker.ask(suite, suite.tests, hang=_UNCHANGED_LIMIT_S)
        if plain["ended"] not in ("passed", "broken") or not plain["durations"]:
            raise RuntimeError(f"the tests do not run unchanged ({plain['ended']}): {plain['why']}\n{plain['log']}")
        for test, took in plain["durations"].items():
            outcome = plain["outcomes"].get(test, "passed")
            if outcome == "passed":
                reach.seconds[_named(suite, test)] = took
            elif outcome == "failed":
                reach.broken.add(_named(suite, test))
        folder = tempfile.mkdtemp(dir=worker.tree.parent)
        traced = {str(worker.tree / file): file for file in files}
        # A trace may upset a test so much that it hangs; it is given up then, and the lines it ran count.
        bounded = Suite(suite.name, suite.tests, [*suite.arguments, f"--timeout={_TRACED_LIMIT_S:g}"])
        request = {"trace_files": list(traced), "trace_folder": folder, "hang": _UNCHANGED_LIMIT_S}
        answer = worker.ask(bounded, suite.tests, **request)
        result = Path(folder, "result.json")
        if not result.exists():
            raise RuntimeError(f"the traced run did not end ({answer['ended']}): {answer['why']}\n{answer['log']}")
        found = json.loads(result.read_text())
        tracing.collect(folder, found["hits"])
        reach.takers |= {_named(suite, test) for test in found["takers"]}
        for path, lines in found["hits"].get("", {}).items():
            reach.early |= {(traced[path], line) for line in lines}
        for test, lines_by_file in found["hits"].items():
            if _named(suite, test) in reach.seconds:
                for path, lines in lines_by_file.items():
                    reach.add(_named(suite, test), traced[path], lines)

    def run(self, mutants: Sequence[Mutant], reach: Reach, report: Callable[[Verdict], None]) -> None:
        """Try each mutant on some worker; `report` is called on one thread at a time."""
        killers: Killers = defaultdict(Counter)
        reporting = threading.Lock()

        def trial(worker: Worker, mutant: Mutant) -> None:
            verdict = self._try(worker, mutant, reach, killers)
            with reporting:
                report(verdict)

        self._share(mutants, trial)

    def _share(self, things: Iterable[T], function: Callable[[Worker, T], None]) -> None:
        """Call the function once for each thing, on whichever worker is free; the first error ends it."""
        waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
        for thing in things:
            waiting.put(thing)
        failures: list[BaseException] = []

        def serve(worker: Worker) -> None:
            try:
                while not failures:
                    function(worker, waiting.get_nowait())
            except queue.Empty:
                pass
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in self._workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def _try(self, worker: Worker, mutant: Mutant, reach: Reach, killers: Killers) -> Verdict:
        near, far = killers[mutant.file, mutant.function], killers[mutant.file, ""]
        tests = _ordered(reach.tests_for(mutant), reach, (near, far), self.settings.budget)
        if not tests:
            return Verdict(mutant, "unreached")
        for stage in (tests[:_FIRST], tests[_FIRST:]):
            for suite in self.settings.suites:
                wanted = [test.partition(_MARK)[2] for test in stage if test.partition(_MARK)[0] == suite.name]
                if not wanted:
                    continue
                answer = self._ask(worker, suite, wanted, mutant, reach)
                if answer["ended"] != "passed":
                    test = _named(suite, answer["test"] or "")
                    for known in (near, far):
                        known[test] += answer["ended"] == "failed"  # one that hangs takes its time
                    how = answer["why"] or answer["log"].strip()[-200:]
                    return Verdict(mutant, "killed", f"{answer['ended']}: {how}", test, len(tests))
        return Verdict(mutant, "survived", tried=len(tests))

    @staticmethod
    def _ask(worker: Worker, suite: Suite, wanted: list[str], mutant: Mutant, reach: Reach) -> dict[str, Any]:
        request = {
            "path": str(worker.tree / mutant.file),
            "start": mutant.start,
            "end": mutant.end,
            "text": mutant.text,
            "tests": wanted,
            "durations": {test: reach.seconds[_named(suite, test)] for test in wanted},
        }
        if not mutant.at_import:
            answer = worker.ask_warm(suite, **request)
            if answer["ended"] != "cold":
                return answer
        return worker.ask(suite, list(dict.fromkeys(test.partition("::")[0] for test in wanted)), **request)


def _named(suite: Suite, test: str) -> str:
    return f"{suite.name}{_MARK}{test}"


def _ordered(tests: set[str], reach: Reach, known: tuple[Counter[str], Counter[str]], budget: float) -> list[str]:
    """Those that killed a neighbour first, then the fastest; as many as the budget of seconds allows.

    A neighbour is a mutant of the same function, then one of the same file; of the file's killers only the best,
    because there may be hundreds.
    """
    near, far = known
    best = {test for test, _ in far.most_common(_FROM_THE_FILE)}
    order = sorted(tests, key=lambda test: (-near[test], -far[test] if test in best else 0, reach.seconds[test]))
    taken: list[str] = []
    spent = 0.0
    for test in order:
        spent += reach.seconds[test]
        if taken and spent > budget:
            break
        taken.append(test)
    return taken
