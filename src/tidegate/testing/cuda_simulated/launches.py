"""Kernels on a card: libraries, functions, and the work of one launch, fill or copy with everything checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import prod

from ...drivers.cuda._native import Launch
from ...drivers.cuda._prototypes import FunctionAttribute
from .codes import (
    COOPERATIVE_LAUNCH_TOO_LARGE,
    INVALID_CLUSTER_SIZE,
    INVALID_HANDLE,
    INVALID_IMAGE,
    INVALID_PTX,
    INVALID_VALUE,
    MISALIGNED_ADDRESS,
    NOT_FOUND,
    Fault,
    Refusal,
)
from .kernels import MAGIC, Arguments, Code, known, load_image
from .machine import Card, Machine
from .memory import check_range, copy_now, fill_now, touch
from .python_kernels import PYTHON_MAGIC, load_python_image

_MAX_GRID = (2**31 - 1, 65535, 65535)
_MAX_BLOCK = (1024, 1024, 64)
_MAX_THREADS = 1024
_MAX_SHARED = 227 << 10
_DEFAULT_SHARED = 48 << 10
_MULTIPROCESSORS = 132
_MAX_RESIDENT = 2048
_PORTABLE_CLUSTER, _LARGE_CLUSTER = 8, 16
_PTX_ENTRY = re.compile(r"\.entry\s+([\w$]+)\s*\(([^)]*)\)[^{]*\{(.*?)\n?\}", re.DOTALL)

Work = Callable[[Card], None]


class Library:
    """Code that was loaded. What is wrong with it is found out when a kernel is asked for (measured)."""

    def __init__(self, machine: Machine, image: bytes) -> None:
        self.image = image
        self.machine = machine
        self.handles: dict[str, int] = {}
        self.loaded_on: set[int] = set()
        self._codes: dict[str, Code] | None = None

    @property
    def codes(self) -> dict[str, Code]:
        """Its kernels by name."""
        if self._codes is None:
            self._codes = self._read()
        return self._codes

    @property
    def good(self) -> bool:
        """Whether a card takes it."""
        try:
            self.check()
        except Refusal:
            return False
        return True

    @property
    def log(self) -> str:
        """What the compiler for PTX has to say about it; nothing if there is nothing wrong, or it is no PTX."""
        refused = not self.good and not self.image.startswith((MAGIC, PYTHON_MAGIC))
        return "ptxas fatal   : simulated: this code is refused" if refused else ""

    def check(self) -> None:
        """Refuse what no card takes."""
        self._codes = self.codes

    def _read(self) -> dict[str, Code]:
        if self.image.startswith(MAGIC):
            codes = load_image(self.image)
            known.update(codes)
            return codes
        if self.image.startswith(PYTHON_MAGIC):
            return load_python_image(self.image, self._extent)
        if self.image.lstrip().startswith((b".version", b"//")):
            return self._read_ptx()
        raise Refusal(INVALID_IMAGE)

    def _read_ptx(self) -> dict[str, Code]:
        """PTX is not run; a kernel in it that was compiled from source before runs as that."""
        if not self.image.endswith(b"\0"):
            self.machine.violation("PTX was loaded that is not ended by a zero")
        codes: dict[str, Code] = {}
        for name, parameters, body in _PTX_ENTRY.findall(self.image.decode(errors="replace")):
            found = known.get(name) or (_idle(name) if not parameters and body.split() == ["ret;"] else None)
            if found is None:
                raise Refusal(INVALID_PTX)
            codes[name] = found
        return codes

    def _extent(self, address: int) -> int:
        for arena in (*(card.arena for card in self.machine.cards), self.machine.host):
            if address in arena and (found := arena.find(address)):
                return sum(found) - address
        return 0


def _idle(name: str) -> Code:
    return Code(name, (), lambda arguments, grid, block, shared: 0)


class Kernel:
    """A kernel of a library."""

    def __init__(self, library: Library, code: Code) -> None:
        self.library = library
        self.code = code
        self.functions: dict[int, int] = {}


class Function:
    """A kernel on a card."""

    def __init__(self, kernel: Kernel, card: Card) -> None:
        self.code = kernel.code
        self.card = card
        self.attributes = {
            FunctionAttribute.MAX_THREADS: self.code.max_threads,
            FunctionAttribute.SHARED_BYTES: self.code.shared,
            2: 0,
            3: 0,
            FunctionAttribute.REGISTERS: 16,
            FunctionAttribute.MAX_DYNAMIC_SHARED: _DEFAULT_SHARED,
            FunctionAttribute.NON_PORTABLE_CLUSTER: 0,
        }

    def get(self, attribute: int) -> int:
        """Return an attribute."""
        if attribute not in self.attributes:
            raise Refusal(INVALID_VALUE)
        return self.attributes[attribute]

    def set(self, attribute: int, value: int) -> None:
        """Set one of the two that can be set."""
        limits = {FunctionAttribute.MAX_DYNAMIC_SHARED: _MAX_SHARED, FunctionAttribute.NON_PORTABLE_CLUSTER: 1}
        if not 0 <= value <= limits.get(attribute, -1):
            raise Refusal(INVALID_VALUE)
        self.attributes[attribute] = value


def find_code(library: Library, name: str) -> Code:
    """Return a kernel's code by its name."""
    if name not in library.codes:
        raise Refusal(NOT_FOUND)
    return library.codes[name]


def launch_work(machine: Machine, launch: Launch) -> Work:
    """Check a launch and copy its arguments; returns what is to be done on the card."""
    function: Function = machine.find(Function, launch.function, INVALID_HANDLE)
    _check_shape(function, launch)
    arguments = Arguments(function.code.parameters, launch.params)
    grid, block, shared = launch.grid, launch.block, launch.shared

    def work(card: Card) -> None:
        if card.next_fault:
            fault, card.next_fault = card.next_fault, 0
            raise Fault(fault)
        if arguments.misaligned:
            raise Fault(MISALIGNED_ADDRESS)
        for address in arguments.pointers:
            if address >= 4096:  # through a smaller one the kernel faults by itself, if it uses it
                touch(card, address, 0, f"kernel {function.code.name!r}", False)
        code = function.code.run(arguments, grid, block, shared)
        if code:
            raise Fault(code)

    return work


def _check_shape(function: Function, launch: Launch) -> None:
    threads = prod(launch.block)
    too_large = any(
        not 1 <= extent <= limit
        for extent, limit in zip((*launch.grid, *launch.block), (*_MAX_GRID, *_MAX_BLOCK), strict=True)
    )
    if too_large or threads > min(_MAX_THREADS, function.get(FunctionAttribute.MAX_THREADS)):
        raise Refusal(INVALID_VALUE)
    if not 0 <= launch.shared <= function.get(FunctionAttribute.MAX_DYNAMIC_SHARED):
        raise Refusal(INVALID_VALUE)
    if launch.cluster is not None:
        _check_cluster(function, launch.grid, launch.cluster)
    if launch.cooperative and prod(launch.grid) > _MULTIPROCESSORS * min(32, _MAX_RESIDENT // threads):
        raise Refusal(COOPERATIVE_LAUNCH_TOO_LARGE)


def _check_cluster(function: Function, grid: tuple[int, int, int], cluster: tuple[int, int, int]) -> None:
    large = function.get(FunctionAttribute.NON_PORTABLE_CLUSTER)
    whole = all(part and extent % part == 0 for extent, part in zip(grid, cluster, strict=True))
    if not whole or prod(cluster) > (_LARGE_CLUSTER if large else _PORTABLE_CLUSTER):
        raise Refusal(INVALID_CLUSTER_SIZE)


def fill_work(machine: Machine, address: int, value: int, element: int, count: int) -> Work:
    """Check a fill; returns what is to be done."""
    if address % element:
        raise Refusal(INVALID_VALUE)
    if check_range(machine, address, element * count) == "pageable":
        raise Refusal(INVALID_VALUE)
    pattern = (value & (2 ** (8 * element) - 1)).to_bytes(element, "little")
    return lambda card: fill_now(card, address, pattern, count)


def copy_work(machine: Machine, target: int, source: int, nbytes: int) -> tuple[Work, tuple[str, str]]:
    """Check a copy; returns what is to be done, and the kinds of its two ends."""
    kinds = check_range(machine, target, nbytes), check_range(machine, source, nbytes)
    return (lambda card: copy_now(card, target, source, nbytes)), kinds
