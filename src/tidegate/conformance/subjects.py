"""What the suite runs against: a driver in one configuration, and what it is known not to do.

A driver joins with one `Subject`, or a function without arguments that returns one, named in the entry point group
`tidegate.conformance` of its package. While a driver is being written, `--driver package.module:attribute` does the
same without installing anything.

Three lists say what a subject does not do; each entry carries its reason, because an entry without one is never
removed again:

- `lacks`: capabilities, by name. A test asks for one with `@pytest.mark.needs("work")` and is skipped without it.
- `never`: tests that do not apply, by pattern. Skipped.
- `not_yet`: tests that will pass one day, by pattern. They run, and a pass is an error: the entry has to go.

Patterns are shell patterns over `module::test`, for example `test_mapping::test_two_maps*`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any

import tidegate as tg

if TYPE_CHECKING:
    from .latches import Blocker

ENTRY_POINTS = "tidegate.conformance"

#: Capabilities a test may ask for, and what each means.
CAPABILITIES: Mapping[str, str] = {
    "work": "fills, copies, updates and kernels really change memory",
    "beside": "ready work runs while a kernel of the same device is blocked",
    "latch": "a kernel can be blocked by the host",
    "map_device": "the host can map memory of the kind 'device'",
    "budget": "the URI takes `memory=`, the budget of the device's pools",
    "fault": "a kernel can fail without taking the device with it",
    "loss": "`tidegate.testing.lose_device` works on it",
}

_KEYWORDS = frozenset({"label", "validate", "trace"})


@dataclass(frozen=True)
class Subject:
    """A driver in one configuration.

    Attributes:
        name: What `--driver` calls it.
        uri: What `open` is given; keyword options of the `open_device` fixture are added to its query.
        open: Opens a device from a URI; `tidegate.open_device` unless the driver is not in the registry.
        partner: The URI of a device of *another* driver that is always there, to share semaphores with.
        language: The key of this driver's kernels in `kernels.SOURCES`.
        blocker: Submits work that blocks until the host opens a latch; see `latches`.
        lacks: Capabilities it does not have, with the reason.
        never: Tests that do not apply to it, with the reason.
        not_yet: Tests it does not pass yet, with the reason.
        around: Entered for the life of the run; how the wrong drivers of `tidegate.testing.faulty` are made.
    """

    name: str
    uri: str
    open: Callable[..., tg.Device] | None = None
    partner: str = "cpu"
    language: str = "cpu"
    blocker: Blocker | None = None
    lacks: Mapping[str, str] = field(default_factory=dict)
    never: Mapping[str, str] = field(default_factory=dict)
    not_yet: Mapping[str, str] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[None]] = nullcontext

    def __post_init__(self) -> None:
        unknown = sorted(set(self.lacks) - set(CAPABILITIES))
        if unknown:
            raise tg.InvalidArgumentError(
                f"subject {self.name!r} lacks {', '.join(unknown)}; the capabilities are {', '.join(CAPABILITIES)}"
            )

    def open_device(self, **options: Any) -> tg.Device:
        """Open a fresh device; `label`, `validate` and `trace` are passed on, other options join the URI's query."""
        keywords = {name: value for name, value in options.items() if name in _KEYWORDS}
        query = [f"{name}={value}" for name, value in options.items() if name not in _KEYWORDS]
        uri = self.uri
        if query:
            uri += ("&" if "?" in uri else "?") + "&".join(query)
        return (self.open or tg.open_device)(uri, **keywords)

    def why_never(self, test: str) -> str | None:
        """The reason why `module::test` does not apply, or None."""
        return _reason(self.never, test)

    def why_not_yet(self, test: str) -> str | None:
        """The reason why `module::test` does not pass yet, or None."""
        return _reason(self.not_yet, test)


def _reason(patterns: Mapping[str, str], test: str) -> str | None:
    for pattern, reason in patterns.items():
        if fnmatchcase(test, pattern):
            return reason
    return None


def cpu() -> Subject:
    """The CPU device with workers to spare, whatever the machine has."""
    return Subject("cpu", "cpu?workers=4", partner="null")


def cpu_one_worker() -> Subject:
    """The CPU device with a single worker: order that only holds because work overlaps shows here."""
    return Subject(
        "cpu-one-worker",
        "cpu?workers=1",
        partner="null",
        lacks={"beside": "its only worker is inside the blocked kernel"},
    )


def streams() -> Subject:
    """In-order streams, epochs, promises and memory the host cannot map, as a GPU has them, run by the CPU."""
    from tidegate.testing import register_streams

    register_streams()
    return Subject(
        "streams",
        "streams",
        lacks={"map_device": "its device memory is out of the host's sight, as on most GPUs"},
    )


_CUDA_LACKS = {
    "map_device": "device memory is out of the host's sight",
    "fault": "a kernel that faults takes the whole device with it, for the life of the process",
}


def _cuda(name: str, uri: str, around: Callable[[], AbstractContextManager[None]] = nullcontext) -> Subject:
    from .latches import block_by_watched_memory

    return Subject(name, uri, language="cuda", blocker=block_by_watched_memory, lacks=_CUDA_LACKS, around=around)


def cuda(name: str = "cuda", options: str = "") -> Subject:
    """The first CUDA device, in one of its forms."""
    return _cuda(name, f"cuda?{options}" if options else "cuda")


def cuda_simulated(name: str = "cuda-simulated", options: str = "") -> Subject:
    """The CUDA driver over a simulated native layer, which behaves as a real card was recorded to."""
    from tidegate.testing import register_cuda_simulated

    register_cuda_simulated()
    return _cuda(name, f"cuda-simulated?{options}" if options else "cuda-simulated", _without_violations)


@contextmanager
def _without_violations() -> Iterator[None]:
    """Fail the run if the driver did what no driver of a real card may do, whatever the tests saw of it."""
    yield
    from tidegate.testing.cuda_simulated import driver

    if driver.native.violations:
        raise AssertionError("\n".join(driver.native.violations))


#: The forms of the CUDA driver that the suite runs on their own, and the options that ask for them.
CUDA_FORMS: Mapping[str, str] = {
    "": "",
    "-graph": "commands=graph",
    "-stream": "commands=stream",
    "-events": "epochs=events",
    "-release": "gil=release",
}


_METAL_LACKS = {"map_device": "private storage is out of the host's sight"}


def metal() -> Subject:
    """The first GPU that Metal knows."""
    from .latches import block_by_shared_event

    unsafe = "a kernel that faults on a real GPU may disturb others' work on it"
    return Subject(
        "metal", "metal", language="metal", blocker=block_by_shared_event, lacks={**_METAL_LACKS, "fault": unsafe}
    )


def metal_simulated() -> Subject:
    """The Metal driver over a simulated Metal, which follows Apple's rules and watches over them."""
    from tidegate.testing import register_metal_simulated
    from tidegate.testing.metal_device import native

    from . import kernels
    from .latches import block_by_shared_event

    register_metal_simulated()
    native.register_kernels(kernels.ALL)
    for name, function in kernels.HOST_FUNCTIONS.items():
        native.register(name, function)
    return Subject(
        "metal-simulated",
        "metal-simulated",
        language="metal",
        blocker=block_by_shared_event,
        lacks=_METAL_LACKS,
        around=partial(_watching, native),
    )


@contextmanager
def _watching(native: Any) -> Iterator[None]:
    """Fail the run if a rule of the simulated Metal was broken, whatever the tests saw of it."""
    yield
    native.check()


def null() -> Subject:
    """The driver that does no work: all that stands above the seam still holds."""
    from .latches import block_by_host_call

    nothing_runs = "the null driver does no work"
    return Subject(
        "null",
        "null",
        blocker=block_by_host_call,
        lacks={"work": nothing_runs, "latch": nothing_runs, "fault": nothing_runs, "budget": "it has no pools"},
    )


def faulty(fault: str) -> Subject:
    """A device with a fault of `tidegate.testing.faulty`: a subject that must fail, as `faulty-NAME`."""
    from tidegate.testing.faulty import FAULTS

    if fault not in FAULTS:
        raise tg.InvalidArgumentError(f"there is no fault {fault!r}; the faults are {', '.join(FAULTS)}")
    return replace(BUILT_IN[FAULTS[fault].base](), name=f"faulty-{fault}", around=FAULTS[fault].apply)


#: The subjects that come with Tidegate. A function each, so that asking for one imports no other driver.
BUILT_IN: Mapping[str, Callable[[], Subject]] = {
    "cpu": cpu,
    "cpu-one-worker": cpu_one_worker,
    "streams": streams,
    "null": null,
    "metal": metal,
    "metal-simulated": metal_simulated,
    **{f"cuda{form}": partial(cuda, f"cuda{form}", options) for form, options in CUDA_FORMS.items()},
    **{
        f"cuda-simulated{form}": partial(cuda_simulated, f"cuda-simulated{form}", options)
        for form, options in CUDA_FORMS.items()
    },
}


def known() -> list[str]:
    """The names that `find` knows: the built-in subjects and those of installed packages."""
    return [*BUILT_IN, *(point.name for point in metadata.entry_points(group=ENTRY_POINTS))]


def find(name: str) -> Subject:
    """The subject called `name`: built in, faulty, from an entry point, or written as `package.module:attribute`.

    Raises:
        InvalidArgumentError: nothing is known by that name; the text lists what is.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]()
    if name.startswith("faulty-"):
        return faulty(name.removeprefix("faulty-"))
    for point in metadata.entry_points(group=ENTRY_POINTS):
        if point.name == name:
            return _made(point.load())
    module, colon, attribute = name.partition(":")
    if colon and attribute:
        return _made(_attribute(name, module, attribute))
    raise tg.InvalidArgumentError(
        f"conformance subject {name!r} is not known; known are {', '.join(known())}, and any 'package.module:attribute'"
    )


def _attribute(name: str, module: str, attribute: str) -> object:
    try:
        found: object = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise tg.InvalidArgumentError(f"conformance subject {name!r} cannot be loaded: {error}") from error
    return found


def _made(found: object) -> Subject:
    subject = found() if callable(found) else found
    if not isinstance(subject, Subject):
        raise TypeError(f"a conformance subject is a Subject or makes one, not {type(subject).__name__}")
    return subject
