"""Kernels for every device, and what a device makes of them: executables and functions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..driver import DriverFunction, Signature
from ..errors import InvalidArgumentError, NotFoundError, UnsupportedError
from .checks import checked_int
from .compiled import BaseFunction

if TYPE_CHECKING:
    from .device import Device

Workgroups = tuple[int, int, int]

MOST_BINDINGS = 2**16
"""Far more than any device takes. What a driver makes of a kernel grows with the number, so there has to be a limit."""


class Kernel:
    """One function with an implementation per driver, so that the same program runs everywhere.

    Args:
        name: the function's name, in every source that has names.
        bindings: how many buffers it takes.
        constants: the types of its constants, in order.
        workgroup: the size of a workgroup.
        cpu: a Python function `fn(workgroups, bindings, constants)`, C source, or `[c_source, fn]`: C with a fallback.
        cuda: CUDA C++ source, PTX or a cubin.
        metal: Metal Shading Language source or a metallib.
        **others: implementations for drivers of other packages, by driver name.

    Raises:
        InvalidArgumentError: no implementation, or a declaration that makes no sense.

    """

    def __init__(
        self,
        name: str,
        *,
        bindings: int,
        constants: Sequence[npt.DTypeLike] = (),
        workgroup: int | Sequence[int] = (1, 1, 1),
        cpu: Any = None,
        cuda: Any = None,
        metal: Any = None,
        **others: Any,
    ) -> None:
        if not isinstance(name, str) or not name.isidentifier():
            raise InvalidArgumentError(f"kernel {name!r}: the name must be an identifier")
        if not 0 <= checked_int(bindings, "number of bindings") <= MOST_BINDINGS:
            raise InvalidArgumentError(
                f"kernel {name!r}: it declares {bindings} bindings, and must have 0..{MOST_BINDINGS}"
            )
        size = checked_workgroups(workgroup, f"kernel {name!r}: workgroup")
        if 0 in size:
            raise InvalidArgumentError(f"kernel {name!r}: the workgroup {size} has a zero in it")
        given = {"cpu": cpu, "cuda": cuda, "metal": metal, **others}
        self.name = name
        self.implementations: Mapping[str, Any] = {
            driver: source for driver, source in given.items() if source is not None
        }
        if not self.implementations:
            raise InvalidArgumentError(f"kernel {name!r}: it needs an implementation for at least one driver")
        self.signature = Signature(name, bindings, tuple(np.dtype(kind) for kind in constants), size)

    def __repr__(self) -> str:
        return f"<tidegate.Kernel {self.name!r} for {', '.join(self.implementations)}>"

    def source_for(self, driver: str) -> Any:
        """Return the implementation for a driver.

        Raises:
            UnsupportedError: there is none.

        """
        try:
            return self.implementations[driver]
        except KeyError:
            known = ", ".join(self.implementations)
            raise UnsupportedError(
                f"kernel {self.name!r} has no implementation for {driver!r}: it has {known}"
            ) from None


class Executable:
    """Compiled functions of one device, by name."""

    def __init__(self, device: Device, functions: Mapping[str, DriverFunction], label: str = "") -> None:
        self.device = device
        self.label = label
        self._functions = {name: Function(device, function) for name, function in functions.items()}

    def __repr__(self) -> str:
        return f"<tidegate.Executable {', '.join(self._functions)} on {self.device.describe()}>"

    @property
    def functions(self) -> Mapping[str, Function]:
        """The functions by name."""
        return dict(self._functions)

    def __getitem__(self, name: str) -> Function:
        try:
            return self._functions[name]
        except KeyError:
            known = ", ".join(self._functions) or "none"
            raise NotFoundError(f"the executable has no function {name!r}; it has: {known}", name=name) from None

    def __iter__(self) -> Any:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __contains__(self, name: object) -> bool:
        return name in self._functions


class Function(BaseFunction):
    """An entry point of an executable: what `dispatch` takes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<tidegate.Function {self.name!r} bindings={self.bindings} constants={self.constants}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._function.name

    @property
    def bindings(self) -> int | None:
        """How many buffers it takes; None where the source does not tell."""
        return self._function.bindings

    @property
    def constants(self) -> tuple[np.dtype[Any], ...] | None:
        """The types of its constants; None where the source does not tell."""
        return self._function.constants

    @property
    def workgroup(self) -> Workgroups:
        """The size of a workgroup."""
        return self._function.workgroup

    def workgroups_for(self, n: int | Sequence[int]) -> Workgroups:
        """Return how many workgroups cover `n` items, or items in up to three dimensions."""
        items = checked_workgroups(n, f"function {self.name!r}: items")
        return tuple(math.ceil(count / size) for count, size in zip(items, self.workgroup, strict=True))  # type: ignore[return-value]

    def check_bindings(self, count: int) -> None:
        """Refuse a wrong number of bindings."""
        needed = self._function.bindings
        if needed is not None and needed != count:
            raise InvalidArgumentError(f"function {self.name!r} takes {needed} bindings, and {count} were given")

    def check_launch(self, workgroups: Workgroups, local_memory: int) -> None:
        """Refuse more workgroups or local memory than the device has for it (M16). An empty grid is never too large."""
        limits = self._function.limits
        most, local = limits.max_workgroups, limits.max_local_memory
        x, y, z = workgroups
        if (x > most[0] or y > most[1] or z > most[2]) and 0 not in workgroups:
            raise InvalidArgumentError(f"function {self.name!r}: {workgroups} workgroups are more than {most}")
        if local is not None and local_memory > local:
            local_memory = checked_int(local_memory, "local memory")  # or it could not be written out
            raise InvalidArgumentError(
                f"function {self.name!r}: {local_memory} bytes of local memory are more than the {local} that it can"
                " have on this device"
            )

    def convert_constants(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Return the constants as their declared types, or refuse them."""
        kinds = self._function.constants
        if kinds == () and values == ():
            return ()
        given = tuple(values)
        if kinds is None:
            return given
        if len(kinds) != len(given):
            raise InvalidArgumentError(
                f"function {self.name!r} takes {len(kinds)} constants, and {len(given)} were given"
            )
        return tuple(
            [
                _plain(value, kind) or _convert(value, kind, f"function {self.name!r}: constant {index}")
                for index, (value, kind) in enumerate(zip(given, kinds, strict=True))
            ]
        )


_BOUNDS: dict[str, tuple[Any, int, int]] = {
    code: (np.dtype(code).type, int(np.iinfo(code).min), int(np.iinfo(code).max)) for code in "bBhHiIlLqQ"
}


def _plain(value: Any, kind: np.dtype[Any]) -> Any:
    """Return a constant that needs no check: an int that fits an integer type, or a number of the type itself.

    None for all others. A zero counts as false for the caller, which then converts it the long way: the result is the
    same, and the caller stays one expression.
    """
    if value.__class__ is int:
        bounds = _BOUNDS.get(kind.char)
        return bounds[0](value) if bounds is not None and bounds[1] <= value <= bounds[2] else None
    return value if value.__class__ is kind.type and kind.names is None else None


def _convert(value: Any, kind: np.dtype[Any], what: str) -> Any:
    if kind.names is not None:
        return _structured(value, kind, what)
    if kind.kind in "iub":
        return _integer(value, kind, what)
    if kind.kind in "fc":
        return _real(value, kind, what)
    raise InvalidArgumentError(f"{what}: constants of type {kind} are not supported")


def _structured(value: Any, kind: np.dtype[Any], what: str) -> Any:
    found = getattr(value, "dtype", None)
    if found is not None and found != kind:
        raise TypeError(f"{what} must be {kind}, not {found}")
    try:
        array = np.array(value, dtype=kind)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what} must be {kind}, not {value!r}") from error
    if array.shape != ():
        raise TypeError(f"{what} must be a single {kind}, not an array of shape {array.shape}")
    return array[()]


@cache
def _range_of(kind: np.dtype[Any]) -> tuple[int, int]:
    return (0, 1) if kind.kind == "b" else (int(np.iinfo(kind).min), int(np.iinfo(kind).max))


def _integer(value: Any, kind: np.dtype[Any], what: str) -> Any:
    if isinstance(value, (float, np.floating)) or not hasattr(value, "__index__"):
        if not isinstance(value, np.bool_):
            raise TypeError(f"{what} must be {kind}, not {type(value).__name__}")
        value = bool(value)
    number = int(value)
    low, high = _range_of(kind)
    if not low <= number <= high:
        raise InvalidArgumentError(f"{what} is {number}, which does not fit {kind}: {low}..{high}")
    return kind.type(number)


def _real(value: Any, kind: np.dtype[Any], what: str) -> Any:
    if isinstance(value, (str, bytes)) or not (hasattr(value, "__float__") or hasattr(value, "__complex__")):
        raise TypeError(f"{what} must be {kind}, not {type(value).__name__}")
    if getattr(value, "shape", ()) != ():
        raise TypeError(f"{what} must be a single {kind}, not an array of shape {value.shape}")
    with np.errstate(over="ignore"):
        try:
            number = kind.type(value)
        except TypeError:
            raise TypeError(f"{what} must be {kind}, not {type(value).__name__}") from None
    if not np.isfinite(number) and np.isfinite(complex(value)):
        raise InvalidArgumentError(f"{what} is {value}, which does not fit {kind}")
    return number


def checked_workgroups(value: Any, what: str) -> Workgroups:
    """Return one to three counts as three."""
    counts = (value,) if not isinstance(value, (tuple, list, np.ndarray)) else tuple(value)
    if not 1 <= len(counts) <= 3:
        raise InvalidArgumentError(f"{what}: {len(counts)} counts were given, and one to three are needed")
    numbers = [checked_int(count, what) for count in counts] + [1] * (3 - len(counts))
    for number in numbers:
        if not 0 <= number < 2**32:
            raise InvalidArgumentError(f"{what}: the count {number} must be in 0..2**32-1")
    return (numbers[0], numbers[1], numbers[2])
