"""The steps of `card.py`: what is run on a card, with which time limits, and what has the card for itself."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SUITE = ROOT / "src" / "tidegate" / "conformance"
EXAMPLES = ROOT / "examples"
TESTS = ROOT / "tests" / "drivers" / "cuda" / "card"
SANITIZER = "compute-sanitizer"
_SANITIZERS = (SANITIZER, "/usr/local/cuda/bin/compute-sanitizer")


@dataclass(frozen=True)
class Step:
    """One process, or several for one set of tests.

    Attributes:
        name: what it is called.
        command: what is run; of a step with tests, what is put in front of its own arguments.
        otherwise: what is run if no test was begun by that.
        limit: seconds for all of it.
        alone: whether nothing else may run meanwhile.
        tests: arguments of pytest; None for a step that is no pytest.
        subject: the conformance subject; empty for other tests.
        test_limit: seconds for each test.
        variables: additions to the environment.
        also: a log that the command writes by itself; its end goes into the summary.

    """

    name: str
    command: tuple[str, ...]
    otherwise: tuple[str, ...] = ()
    limit: float = 120.0
    alone: bool = False
    tests: tuple[str, ...] | None = None
    subject: str = ""
    test_limit: float = 60.0
    variables: tuple[tuple[str, str], ...] = field(default=())
    also: Path | None = None


_RUN = (
    "import sys; from tidegate.conformance import run; sys.exit(run(sys.argv[1], require=True, arguments=sys.argv[2:]))"
)
_COMMANDS = ("test_commands", "test_bindings")
_WAITING = (
    "test_queue_order", "test_host_waits", "test_callbacks", "test_failure", "test_ends", "test_several_devices",
    "test_submission", "test_budgets",
)  # fmt: skip
FORMS = {
    "graph": _COMMANDS,
    "stream": _COMMANDS,
    "events": _WAITING,
    "release": ("test_dispatch", "test_threads", "test_host_waits"),
}
SHARDS = 6
LIBRARIES = ("torch", "cupy", "raw")
SHARING = "work_together or shared_memory_it"
"""The tests of kernels whose threads share memory."""
INTERRUPTS = "test_interrupts"
OPENING = ("test_closed_devices", "test_signal_handlers")
"""Modules with tests that open very many devices, which takes a card a quarter of a second each."""


def modules() -> list[str]:
    """Return the modules of the suite, those of which much is known to be slow first."""
    return sorted((path.stem for path in SUITE.glob("test_*.py")), key=lambda name: (name != "test_threads", name))


def conformance(subject: str, chosen: Sequence[str], *arguments: str, name: str = "", **options: Any) -> Step:
    """Return a step that runs modules of the suite."""
    ignored = tuple(f"--ignore={SUITE / other}.py" for other in modules() if other not in chosen)
    label = f"conformance {subject} {name or ' '.join(chosen)}"
    commands = _commands(options, "-c", _RUN, subject)
    return Step(label, *commands, tests=(*ignored, *arguments), subject=subject, **options)


def card_tests(name: str, module: str, only: str, limit: float = 150.0, **options: Any) -> Step:
    """Return a step that runs tests of a module of `tests/drivers/cuda/card`."""
    own = (str(TESTS / f"{module}.py"), "-p", "no:cacheprovider", "-k", only)
    return Step(name, *_commands(options, "-m", "pytest"), limit=limit, tests=own, **options)


def _commands(options: dict[str, Any], *arguments: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return Python with arguments behind what shall stand before it, and the same for when that is not understood."""
    python = (sys.executable, "-X", "faulthandler", *arguments)
    before, otherwise = options.pop("before", ()), options.pop("otherwise", ())
    return (*before, *python), (*otherwise, *python) if otherwise else ()


def program(name: str, *arguments: str, **options: Any) -> Step:
    """Return a step that runs Python."""
    return Step(name, (sys.executable, "-X", "faulthandler", *arguments), **options)


def steps(submissions: int, driver: str, logs: Path) -> list[Step]:
    """Return all steps, in the order in which they begin."""
    sanitizer = next((found for name in _SANITIZERS if (found := shutil.which(name))), SANITIZER)
    real = "not simulated" if driver == "cuda" else "simulated"
    kept = "--card-keep-context"

    def sanitized(tool: str) -> dict[str, Any]:
        """Errors of calls are none of its business: the driver asks for things that may be missing."""
        log = logs / f"{tool}.txt"
        plain = (sanitizer, "--tool", tool, "--error-exitcode", "86", "--log-file", str(log))
        more = ("--launch-timeout", "60", "--target-processes", "application-only")
        errors = ("--report-api-errors", "no") if tool == "memcheck" else ()
        return {"before": (*plain, *more, *errors), "otherwise": plain, "also": log, "test_limit": 120}

    def interrupts(subject: str, name: str, *arguments: str) -> Step:
        return conformance(subject, [INTERRUPTS], *arguments, kept, name=name, limit=260, test_limit=240)

    return [
        program("devices", "-m", "tidegate", "devices", limit=60),
        program("opening", str(ROOT / "tools" / "card_opening.py"), driver, limit=90),
        program("random programs", "-m", "tidegate.conformance.programs.run", "--driver", driver, "--seeds", "2000",
                limit=400),
        program("storm", str(ROOT / "tools" / "storm.py"), "--driver", driver, "--seconds", "300", limit=420),
        *(card_tests(f"libraries {name}", "test_libraries", f"{driver}-{name}", 200) for name in LIBRARIES),
        *(interrupts(driver, f"interrupts {part}", f"--card-shard={part}/{SHARDS}") for part in range(SHARDS)),
        *(
            conformance(driver, [name], kept, limit=400, test_limit=240 if name in OPENING else 60)
            for name in modules()
            if name != INTERRUPTS
        ),
        *(conformance(f"{driver}-{form}", [name], kept, limit=200) for form, names in FORMS.items() for name in names),
        card_tests("kernels", "test_kernels", real),
        card_tests("contexts", "test_contexts", real),
        card_tests("triton", "test_triton", ""),
        *(program(f"example {path.stem}", str(path), limit=90) for path in sorted(EXAMPLES.glob("cuda_*.py"))),
        program("demo", "-m", "tidegate", "demo", "--device", driver, limit=90),
        conformance(driver, ["test_transfer", "test_dispatch", "test_upload_download"], "--card-without=latch", kept,
                    name="memcheck", limit=200, **sanitized("memcheck")),
        card_tests("racecheck", "test_kernels", f"{real} and ({SHARING})", **sanitized("racecheck")),
        card_tests("must hold", "test_must_hold", real, 200, alone=True, test_limit=100),
        card_tests("loss", "test_loss", real, 200, alone=True, test_limit=110),
        card_tests("leaks", "test_leaks", real, 240, alone=True, test_limit=220,
                   variables=(("TIDEGATE_CARD_SUBMISSIONS", str(submissions)),)),
        program("bench", "-m", "tidegate", "bench", "--device", driver, "--json", "bench.json", alone=True, limit=420),
    ]  # fmt: skip
