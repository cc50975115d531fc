"""The pytest plugin behind the suite: which driver is tested, the fixtures, and the limits of a subject.

Loaded with `-p tidegate.conformance.plugin`; `tidegate conformance` does that. Options:

- `--tidegate-driver NAME`: the subject, `cpu` if not given; see `subjects` for the names.
- `--tidegate-require`: a driver that is not available here fails the run instead of skipping it.
- `--tidegate-programs N`: how many random programs to run, 100 if not given.
- `--tidegate-json FILE`: writes one record per test, with the rules it proves; `table` reads them.

Marks: `rules("M6", "M7")` names the rules of the model a test proves (on the test, or as the module's `pytestmark`),
`needs("work")` the capabilities it needs of a subject, `slow` a test of more than a quarter of a second.

Nothing of Tidegate but this package is imported until a fixture is used, so that the plugin may be loaded for every
test run of a project.
"""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import tidegate as tg

    from .latches import Latch
    from .scarcity import Scene
    from .subjects import Subject
    from .witnesses import Log
    from .works import Works

# Their asserts tell as much as those of the tests that call them.
pytest.register_assert_rewrite(f"{__package__}.buffers", f"{__package__}.witnesses", f"{__package__}.works")

SUITE = Path(__file__).parent

_MARKS = (
    "rules(*names): the rules of the model this test proves",
    "needs(*capabilities): what a conformance subject must be able to do for this test",
    "slow: takes longer than a quarter of a second",
)

_SUBJECT = pytest.StashKey["Subject"]()
_RECORDS = pytest.StashKey[dict[str, dict[str, Any]]]()


# Options, marks and the limits of the subject ---------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tidegate", "Tidegate conformance")
    group.addoption("--tidegate-driver", default="cpu", metavar="NAME", help="the subject to test (default: cpu)")
    group.addoption("--tidegate-require", action="store_true", help="fail if the driver is not available here")
    group.addoption(
        "--tidegate-programs", type=int, default=100, metavar="N", help="how many random programs to run (default: 100)"
    )
    group.addoption("--tidegate-json", metavar="FILE", help="write one record per test, with the rules it proves")


def pytest_configure(config: pytest.Config) -> None:
    for mark in _MARKS:
        config.addinivalue_line("markers", mark)
    config.stash[_RECORDS] = {}


def pytest_report_header(config: pytest.Config) -> str:
    return f"tidegate: subject {config.getoption('--tidegate-driver')}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.parent == SUITE]
    if not ours:
        return
    subject = _subject_of(config)
    for item in ours:
        rules = rules_of(item)
        item.user_properties.append(("rules", rules))
        if config.getoption("--collect-only"):
            test = _test_of(item.nodeid)
            config.stash[_RECORDS][test] = {"test": test, "rules": rules, "outcome": "collected", "why": ""}
        _apply_limits(item, subject)


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    if not any(item.path.parent == SUITE for item in session.items):
        return (yield)
    with _subject_of(session.config).around():
        # Many tests collect, and need not go through everything that is there already.
        gc.collect()
        gc.freeze()
        try:
            return (yield)
        finally:
            gc.unfreeze()


def rules_of(item: pytest.Item) -> list[str]:
    """The rules a test proves, by number; those nearest to the test count, a module's are the default."""
    mark = item.get_closest_marker("rules")
    names: tuple[str, ...] = mark.args if mark else ()
    return sorted(names, key=lambda name: int(name[1:]))


def _apply_limits(item: pytest.Item, subject: Subject) -> None:
    test = _test_of(item.nodeid)
    missing = [name for mark in item.iter_markers("needs") for name in mark.args if name in subject.lacks]
    never = subject.why_never(test)
    not_yet = subject.why_not_yet(test)
    if missing:
        item.add_marker(pytest.mark.skip(reason=f"{subject.name} lacks {missing[0]!r}: {subject.lacks[missing[0]]}"))
    elif never is not None:
        item.add_marker(pytest.mark.skip(reason=f"never on {subject.name}: {never}"))
    elif not_yet is not None:
        item.add_marker(pytest.mark.xfail(reason=f"not yet on {subject.name}: {not_yet}", strict=True))


def _subject_of(config: pytest.Config) -> Subject:
    from . import subjects

    if _SUBJECT not in config.stash:
        try:
            config.stash[_SUBJECT] = subjects.find(config.getoption("--tidegate-driver"))
        except ValueError as error:
            raise pytest.UsageError(str(error)) from error
    return config.stash[_SUBJECT]


# Results ------------------------------------------------------------------------------------------------------------


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    rules = dict(report.user_properties).get("rules")
    if rules is None or _current is None:
        return
    test = _test_of(report.nodeid)
    record = _current.stash[_RECORDS].setdefault(test, {"test": test, "rules": rules, "outcome": "passed", "why": ""})
    if report.failed:
        record.update(outcome="failed", why=_last_line(report))
    elif report.skipped and record["outcome"] == "passed":
        record.update(outcome="not yet" if hasattr(report, "wasxfail") else "skipped", why=_skip_reason(report))


def _test_of(nodeid: str) -> str:
    module, _, name = nodeid.partition("::")
    return f"{Path(module).stem}::{name}"


def _last_line(report: pytest.TestReport) -> str:
    lines = report.longreprtext.strip().splitlines()
    return lines[-1] if lines else ""


def _skip_reason(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return str(report.wasxfail)
    return str(report.longrepr[2]) if isinstance(report.longrepr, tuple) else ""


_current: pytest.Config | None = None


def pytest_sessionstart(session: pytest.Session) -> None:
    global _current
    _current = session.config


def pytest_sessionfinish(session: pytest.Session) -> None:
    global _current
    _current = None
    path = session.config.getoption("--tidegate-json")
    if path:
        records = list(session.config.stash[_RECORDS].values())
        document = {"subject": session.config.getoption("--tidegate-driver"), "tests": records}
        Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


# Fixtures -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def subject(pytestconfig: pytest.Config) -> Subject:
    """The driver under test, known to be available: otherwise the test is skipped, or fails with --tidegate-require."""
    import tidegate as tg

    found = _subject_of(pytestconfig)
    try:
        found.open_device().close(timeout=30)
    except tg.DriverUnavailableError as error:
        if pytestconfig.getoption("--tidegate-require"):
            pytest.fail(f"{found.name} is required and not available: {error}", pytrace=False)
        pytest.skip(f"{found.name} is not available: {error}")
    return found


@pytest.fixture
def open_device(subject: Subject) -> Iterator[Callable[..., tg.Device]]:
    """Opens further devices: `open_device(label="second", memory="1MiB")`; they are closed and checked at the end.

    `label`, `validate` and `trace` go to `tidegate.open_device`, other options into the URI.
    """
    opened: list[tg.Device] = []

    def open_another(**options: Any) -> tg.Device:
        device = subject.open_device(**options)
        opened.append(device)
        return device

    yield open_another
    for device in reversed(opened):
        _close_and_check(device)


def _close_and_check(device: tg.Device) -> None:
    """Close a device; whatever a test left behind, nothing may be held or running afterwards."""
    from .latches import LIMIT

    device.close(timeout=LIMIT)
    statistics = device.statistics()
    assert (statistics.held, statistics.issued) == (0, 0), f"{device!r} leaked submissions: {statistics}"


@pytest.fixture
def device(open_device: Callable[..., tg.Device]) -> tg.Device:
    """A fresh device of the subject, closed and checked for leaked submissions at the end."""
    return open_device()


@pytest.fixture
def partner_device(subject: Subject) -> Iterator[tg.Device]:
    """A device of another driver, to share semaphores with."""
    import tidegate as tg

    with tg.open_device(subject.partner) as device:
        yield device


@pytest.fixture
def queue(device: tg.Device) -> tg.Queue:
    """A compute queue of the device."""
    return device.queue()


@pytest.fixture
def second_queue(device: tg.Device) -> tg.Queue:
    """Another compute queue of the same device."""
    return device.queue(priority=1)


@pytest.fixture
def small_device(open_device: Callable[..., tg.Device]) -> tg.Device:
    """A device whose pools may hold 4 MiB."""
    return open_device(memory="4MiB")


@pytest.fixture
def kernels() -> ModuleType:
    """The module `kernels`: the suite's kernels in every language."""
    from . import kernels

    return kernels


@pytest.fixture
def latch(subject: Subject, request: pytest.FixtureRequest) -> Iterator[Latch]:
    """A closed latch, which makes more when called; all are opened at the end, before the devices are closed."""
    from .latches import Latch, block_by_python_kernel

    # Opened before the devices close: fixtures end in the reverse order in which they were made.
    request.getfixturevalue("open_device")
    made = Latch(subject.blocker or block_by_python_kernel)
    yield made
    made.open_all()


@pytest.fixture
def log() -> Log:
    """A log that host calls write."""
    from .witnesses import Log

    return Log()


@pytest.fixture
def works(device: tg.Device, subject: Subject) -> Works:
    """Makes work of every kind on the device."""
    from .works import Works

    return Works(device, real="work" not in subject.lacks)


@pytest.fixture
def scene(small_device: tg.Device, latch: Latch, kernels: ModuleType) -> Scene:
    """A small device, and what it takes to run out of its memory."""
    from .scarcity import Scene

    return Scene(small_device, latch, kernels)


@pytest.fixture
def switch_often() -> Iterator[None]:
    """Threads change places as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
