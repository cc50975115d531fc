"""Every public name is documented, tells its signature, has one home, and stands in the reference once.

Doors are the modules users import from. The everyday door re-exports the errors and the plain types; everything else is
reached through one door only.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
from pathlib import Path
from types import GetSetDescriptorType, ModuleType

import pytest

from tidegate import driver

ROOT = Path(__file__).parents[2]
DOORS = ["tidegate", "tidegate.driver", "tidegate.lowlevel", "tidegate.testing", "tidegate.conformance"]
PARTS = ["tidegate.errors", "tidegate.types"]  # shown again by the everyday door

# The names that programs outside rely on, by door. Names may be added; none of these may go.
PROMISED = {
    "tidegate": """
        list_drivers list_devices open_device Device Queue Lane Semaphore Timepoint Subscription Outcome Submission
        wait_all wait_any when_all when_any explain Buffer BufferView from_dlpack pinned_empty CommandBuffer slot
        Kernel Executable Function Compatibility DeviceInfo DriverInfo Limits Statistics
        TidegateError InvalidArgumentError OutOfRangeError FailedPreconditionError ClosedError NotFoundError
        UnsupportedError DriverUnavailableError DeadlineExceededError ResourceExhaustedError AbortedError CompileError
        SemaphoreFailedError DeviceLostError ValidationError InternalError
    """,
    "tidegate.lowlevel": "StagingBuffer StagingRange",
    "tidegate.testing": "lose_device Latch",
    "tidegate.conformance": "run",
}
PROMISED_MEMBERS = {
    "Device": """info health queues queue create_semaphore allocate upload load record lane semaphore_compatibility
        statistics trim close""",
    "Semaphore": "value failure query signal fail wait at next",
    "Timepoint": "semaphore value reached wait signal fail explain add_callback",
    "Subscription": "cancel",
    "Queue": """allocate free fill update upload download copy read_file write_file dispatch execute barrier host_call
        flush""",
    "Lane": """allocate free fill update upload download copy read_file write_file dispatch execute barrier host_call
        reset""",
    "Submission": "done error wait result cancel queue explain",
    "Buffer": "nbytes device memory label ready subspan map view read write to_numpy close",
    "BufferView": "dtype shape ready __dlpack__ __dlpack_device__ __array__",
    "CommandBuffer": "fill update copy barrier dispatch dispatch_indirect group",
    "Executable": "functions __getitem__",
    "Function": "name bindings constants workgroup workgroups_for",
    "DriverInfo": "name available reason devices",
    "DeviceInfo": "uri name driver memory_bytes limits",
}


def public_names(module: ModuleType) -> list[str]:
    return sorted(name for name in module.__all__ if not name.startswith("__"))


ALL_NAMES = [(door, name) for door in DOORS for name in public_names(importlib.import_module(door))]


def documented_members(owner: type) -> list[str]:
    """The public members a class defines itself; those it inherits are documented where they come from."""
    return [name for name in vars(owner) if not name.startswith("_")]


def is_property(owner: type, name: str) -> bool:
    member = inspect.getattr_static(owner, name)
    # What a kind of work consists of is said by its class.
    is_field = isinstance(member, GetSetDescriptorType) and not issubclass(owner, driver.Work)
    return is_field or isinstance(member, property)


def docstring_of(owner: type, name: str) -> str | None:
    member = inspect.getattr_static(owner, name)
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    return inspect.getdoc(getattr(owner, name)) if inspect.isroutine(member) else getattr(member, "__doc__", None)


def reference_entries() -> list[str]:
    """What the reference documents, by the full name in each directive."""
    pages = "\n".join(page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs" / "api").glob("*.md")))
    return re.findall(r"^\.\. auto(?:class|function|exception|data)::\s+(\S+)", pages, re.MULTILINE)


@pytest.mark.parametrize("door", [*DOORS, *PARTS])
def test_a_public_module_says_what_it_is_and_lists_its_names(door: str) -> None:
    module = importlib.import_module(door)
    assert (module.__doc__ or "").strip()
    assert len(set(module.__all__)) == len(module.__all__)
    assert not [name for name in module.__all__ if not hasattr(module, name)]


@pytest.mark.parametrize("door", PROMISED)
def test_the_promised_names_are_there(door: str) -> None:
    module = importlib.import_module(door)
    assert not [name for name in PROMISED[door].split() if name not in module.__all__ or not hasattr(module, name)]


@pytest.mark.parametrize("owner", PROMISED_MEMBERS)
def test_the_promised_members_are_there(owner: str) -> None:
    tidegate = importlib.import_module("tidegate")
    cls = getattr(tidegate, owner)
    known = set(dir(cls)) | set(getattr(cls, "__annotations__", ()))
    assert not [name for name in PROMISED_MEMBERS[owner].split() if name not in known]


def test_a_submission_and_a_timepoint_can_be_awaited() -> None:
    tidegate = importlib.import_module("tidegate")
    assert all(hasattr(cls, "__await__") for cls in (tidegate.Submission, tidegate.Timepoint))


@pytest.mark.parametrize(("door", "name"), ALL_NAMES, ids=[f"{door}.{name}" for door, name in ALL_NAMES])
def test_a_public_name_is_documented(door: str, name: str) -> None:
    value = getattr(importlib.import_module(door), name)
    if not (inspect.isclass(value) or inspect.isroutine(value) or inspect.ismodule(value)):
        return  # a plain value or an alias has no docstring of its own: its words stand in the reference
    assert (inspect.getdoc(value) or "").strip()
    if inspect.isclass(value) and not issubclass(value, enum.Enum):
        assert not [m for m in documented_members(value) if callable(getattr(value, m)) and not docstring_of(value, m)]
        assert not [m for m in documented_members(value) if is_property(value, m) and not docstring_of(value, m)]


@pytest.mark.parametrize(("door", "name"), ALL_NAMES, ids=[f"{door}.{name}" for door, name in ALL_NAMES])
def test_a_public_function_or_method_tells_its_signature(door: str, name: str) -> None:
    value = getattr(importlib.import_module(door), name)
    if inspect.isroutine(value):
        assert inspect.signature(value)
    elif inspect.isclass(value) and not issubclass(value, enum.Enum | BaseException):
        members = [getattr(value, m) for m in dir(value) if not m.startswith("_")]
        assert all(inspect.signature(member) for member in members if inspect.isroutine(member))


def test_a_semaphore_is_made_as_its_signature_says() -> None:
    assert str(inspect.signature(importlib.import_module("tidegate").Semaphore)) == "(initial_value=0, label='')"


def test_a_public_name_has_one_door() -> None:
    homes: dict[str, list[str]] = {}
    for door, name in ALL_NAMES:
        if not inspect.ismodule(getattr(importlib.import_module(door), name)):
            homes.setdefault(name, []).append(door)
    assert not {name: doors for name, doors in homes.items() if len(doors) > 1}


@pytest.mark.parametrize("part", PARTS)
def test_the_everyday_door_shows_the_very_same_errors_and_types(part: str) -> None:
    tidegate, module = importlib.import_module("tidegate"), importlib.import_module(part)
    different = [n for n in module.__all__ if n in tidegate.__all__ and getattr(tidegate, n) is not getattr(module, n)]
    assert not different


def test_every_public_name_stands_in_the_reference_once() -> None:
    entries = reference_entries()
    wanted = [
        f"{door}.{name}"
        for door, name in ALL_NAMES
        if not inspect.ismodule(getattr(importlib.import_module(door), name))
    ]
    assert sorted(entries) == sorted(wanted)
