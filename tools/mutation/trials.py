"""The trial of each mutant against the tests that reach it."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from changes.serving import Server, Suite

from mutation.mutants import Mutant

Test = tuple[str, str]
"""The name of a suite, and the id of a test."""
Killers = dict[str, Counter[Test]]
"""How often each test killed mutants of a function."""

# So many tests are recorded by one process.
_BATCH = 50
_RECORDING_LIMIT_S = 120.0


@dataclass(frozen=True)
class Settings:
    """What every trial has in common: how many at a time, and how long tests may take."""

    jobs: int = 4
    hang: float = 5.0
    budget: float = 12.0


@dataclass
class Verdict:
    """What became of a mutant: `killed`, `survived` or `unreached` (no test runs it)."""

    mutant: Mutant
    status: str
    how: str = ""
    test: str = ""
    tried: int = 0


@dataclass
class Reach:
    """Which tests pass, how long each takes, and which mutants each reaches, by number."""

    seconds: dict[Test, float] = field(default_factory=dict)
    tests: dict[int, set[Test]] = field(default_factory=lambda: defaultdict(set))
    broken: list[Test] = field(default_factory=list)


class Trials:
    """The processes that try. A context manager: they end with the block."""

    def __init__(self, tree: Path, suites: Iterable[Suite], settings: Settings) -> None:
        self._settings = settings
        self._opened = ExitStack()
        self._servers: dict[str, Server] = {}
        with ExitStack() as opened:
            for suite in suites:
                self._servers[suite.name] = opened.enter_context(Server(tree, suite))
            self._opened = opened.pop_all()

    def __enter__(self) -> Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def find_reach(self) -> Reach:
        """Run all tests with no mutant switched on, and note what they reach."""
        reach = Reach()
        with ThreadPoolExecutor(len(self._servers)) as pool:
            for _ in pool.map(lambda server: self._record(server, reach), self._servers.values()):
                pass
        return reach

    @staticmethod
    def _record(server: Server, reach: Reach) -> None:
        waiting = list(server.tests)
        while waiting:
            batch, waiting = waiting[:_BATCH], waiting[_BATCH:]
            answer = server.ask(batch, hang=_RECORDING_LIMIT_S, record=True)
            if not answer["tests"]:
                raise RuntimeError(f"no test runs: {answer['why']}\n{answer['log']}")
            for test in batch:
                found = answer["tests"].get(test)
                named = server.suite.name, test
                if found is None:
                    waiting.append(test)
                elif found["outcome"] == "passed" and "seconds" in found:
                    reach.seconds[named] = found["seconds"]
                    for number in found["reached"]:
                        reach.tests[number].add(named)
                elif found["outcome"] != "skipped":
                    reach.broken.append(named)  # it failed, hung or died

    def run(self, mutants: Sequence[tuple[int, Mutant]], reach: Reach) -> Iterator[Verdict]:
        """Try each mutant, and give the verdicts as they come."""
        killers: Killers = defaultdict(Counter)
        with ThreadPoolExecutor(self._settings.jobs) as pool:
            stopped = threading.Event()
            trials = [pool.submit(self._try, number, mutant, reach, killers, stopped) for number, mutant in mutants]
            try:
                for trial in trials:
                    if verdict := trial.result():
                        yield verdict
            finally:
                stopped.set()

    def _try(
        self, number: int, mutant: Mutant, reach: Reach, killers: Killers, stopped: threading.Event
    ) -> Verdict | None:
        if stopped.is_set():
            return None
        known = killers[f"{mutant.file} {mutant.function}"]
        tests = _ordered(reach.tests.get(number, set()), reach, known, self._settings.budget)
        if not tests:
            return Verdict(mutant, "unreached")
        for name in dict.fromkeys(name for name, _ in tests):
            wanted = [test for suite, test in tests if suite == name]
            usual = {test: reach.seconds[name, test] for test in wanted}
            answer = self._servers[name].ask(wanted, change=number, usual=usual, hang=self._settings.hang)
            if answer["ended"] != "passed":
                if answer["ended"] == "failed":  # one that hangs takes its time
                    known[name, answer["test"]] += 1
                how = answer["why"] or answer["log"].strip()[-200:]
                return Verdict(mutant, "killed", f"{answer['ended']}: {how}", f"{name} {answer['test']}", len(tests))
        return Verdict(mutant, "survived", tried=len(tests))


def _ordered(tests: set[Test], reach: Reach, known: Counter[Test], budget: float) -> list[Test]:
    """Those that killed other mutants of the function first, then the fastest; as many as there are seconds for."""
    taken: list[Test] = []
    spent = 0.0
    for test in sorted(tests, key=lambda test: (-known[test], reach.seconds[test])):
        spent += reach.seconds[test]
        if taken and spent > budget:
            break
        taken.append(test)
    return taken
