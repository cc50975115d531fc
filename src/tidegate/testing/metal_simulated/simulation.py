"""The state that all objects of one simulated Metal share: the seed, the faults, the kernels, and what went wrong."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakSet

from .rules import RULES, Rule, Violation, ViolationError

if TYPE_CHECKING:
    from .dispatch import Worker
    from .events import Event
    from .execution import Line
    from .hazards import Hazards

__all__ = ["Fault", "Settings", "Simulation"]

HostFunction = Callable[..., None]
"""A kernel: `fn(workgroups, bindings, constants)`, and `function_constants` as a fourth where it takes one."""


@dataclass(frozen=True)
class Settings:
    """The machine that is simulated.

    Attributes:
        seed: decides all that Apple's documentation leaves open.
        devices: how many there are.
        memory: how many bytes buffers and heaps of a device may have together.
        max_buffer: the largest buffer.
        limit: for how many seconds a call may block before the simulation raises.
        max_threads: the largest threadgroup.
        threadgroup_memory: how many bytes a threadgroup may have.
        page: the size of a page.
        constant_alignment: what offsets in the constant address space are multiples of.
        owns_new: whether PyObjC knows that what an instance's `new` selectors return belongs to the caller. Up to
            12.2.2 it does not, and holds such an object for ever, unless the caller releases it.

    """

    seed: int = 0
    devices: int = 1
    memory: int = 8 << 30
    max_buffer: int = 4 << 30
    limit: float = 30.0
    max_threads: int = 1024
    threadgroup_memory: int = 32 << 10
    page: int = 4096
    constant_alignment: int = 4
    owns_new: bool = True


@dataclass
class Fault:
    """Something that shall go wrong: see `Native.fault`."""

    kind: str
    code: int
    text: str
    domain: str
    count: int
    skip: int
    matches: Callable[[Any], bool] | None = None
    signals: bool = True


@dataclass
class Simulation:
    """Shared state. `lock` guards the small things; queues and events have locks of their own."""

    settings: Settings
    violations: list[Violation] = field(default_factory=list)
    functions: dict[str, HostFunction] = field(default_factory=dict)
    statistics: Counter[str] = field(default_factory=Counter)
    closed: bool = False
    lost: Fault | None = None
    before_completion: Callable[[Any], None] | None = None
    """Called on the queue's thread with each command buffer, behind its last signal and before it is completed."""

    def __post_init__(self) -> None:
        from .hazards import Hazards

        self.lock = threading.RLock()
        self.counted = threading.Condition(self.lock)
        self.random = random.Random(self.settings.seed)
        self.faults: list[Fault] = []
        self.lines: WeakSet[Line] = WeakSet()
        self.events: WeakSet[Event] = WeakSet()
        self.workers: WeakSet[Worker] = WeakSet()
        self.hazards: Hazards = Hazards(self)
        self.address = 0x1_0000_0000
        self.held_twice: dict[int, Any] = {}

    def choose(self, choices: int) -> int:
        """Draw one of 0 .. choices - 1 from the seed."""
        with self.lock:
            return self.random.randrange(choices)

    def dawdle(self) -> None:
        """Take a moment, now and then: give up the GIL and the core as often as the seed says."""
        for _ in range(self.choose(16) - 12):
            time.sleep(0)

    def count(self, name: str) -> None:
        """Count something that tests may want to know."""
        with self.lock:
            self.statistics[name] += 1
            self.counted.notify_all()

    def record(self, rule: Rule, text: str) -> Violation:
        """Note that a rule was broken."""
        violation = Violation(rule, text)
        self.violations.append(violation)
        return violation

    def demand(self, condition: object, rule: str, text: str) -> None:
        """Raise ViolationError unless the condition holds."""
        if not condition:
            self.refuse(rule, text)

    def refuse(self, rule: str, text: str) -> NoReturn:
        """Raise ViolationError. Where it matters how long a call takes, the text is made only when it is needed."""
        raise ViolationError(self.record(RULES[rule], text))

    def take_fault(self, kind: str, subject: Any = None) -> Fault | None:
        """Return the fault that strikes now, if there is one of that kind."""
        if not self.faults:
            return None
        with self.lock:
            for fault in self.faults:
                if fault.kind != kind or (fault.matches is not None and not fault.matches(subject)):
                    continue
                if fault.skip:
                    fault.skip -= 1
                    return None
                fault.count -= 1
                if not fault.count:
                    self.faults.remove(fault)
                return fault
        return None

    def next_address(self, nbytes: int) -> int:
        """Return a fresh range of GPU addresses."""
        with self.lock:
            address = self.address
            self.address += (nbytes + 0xFFFF) & ~0xFFFF
            return address
