"""What all simulated objects have in common: checked selectors, labels, and nothing else in public.

A public method of a class here *is* a selector: its name, with underscores for colons, must be in `selectors.json` or
in `plain`, and calls are checked against the encodings there, so neither the driver nor the simulation can invent one.
Result arguments (`error:`) are passed as None and come back as members of a tuple, as PyObjC does it; the methods here
do not see them.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import resources
from typing import Any, ClassVar

from . import plain
from .encodings import array_lengths, check_of, length_of
from .foreign import uninterrupted
from .pools import autorelease
from .rules import RULES

if typing.TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["Metal", "encodings_of", "selector_of"]

_CLASSES: dict[str, type] = {}


@cache
def metadata() -> Mapping[str, Any]:
    """Return the selectors and enumerators that the project carries."""
    text = resources.files(__package__).joinpath("selectors.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def selector_of(name: str) -> str:
    """Return the selector behind a PyObjC name."""
    return name.replace("_", ":")


def encodings_of(owner: str, selector: str) -> list[Mapping[str, Any]] | None:
    """Return what is known of a selector's arguments, in order; None if there is no such selector."""
    for known in (owner, "NSObject"):
        by_hand = plain.SELECTORS.get(known, {}).get(selector)
        if by_hand is not None:
            return [_plain_argument(letter) for letter in by_hand[0][1:]]
    listed = metadata()["selectors"].get(selector)
    if listed is None:
        return None
    arguments = listed.get("arguments", {})
    return [arguments.get(str(index + 2), {"type": "@"}) for index in range(selector.count(":"))]


def _plain_argument(letter: str) -> Mapping[str, Any]:
    return {"type": "^v", "type_modifier": "n"} if letter == "^" else {"type": letter}


class Metal:
    """A simulated object. Whoever drops the last reference releases it."""

    _registered: ClassVar[str] = "NSObject"
    _autoreleased: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, simulation: Simulation, label: str | None = None) -> None:
        self._simulation = simulation
        self._label = label

    def __init_subclass__(cls, registered: str | None = None, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        _CLASSES[cls.__name__] = cls
        if registered is not None:
            cls._registered = registered
        for name, member in list(vars(cls).items()):
            if isinstance(member, types.FunctionType) and not name.startswith("_"):
                setattr(cls, name, _checked(cls, name, member))

    def __repr__(self) -> str:
        return f"<simulated {self._registered}{f' {self._label!r}' if self._label else ''} at {id(self):#x}>"

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_"):
            raise AttributeError(f"{self!r}: {name} cannot be assigned: call set{name[:1].upper()}{name[1:]}_")
        object.__setattr__(self, name, value)

    def release(self) -> None:
        """Give one reference back: the one too many that PyObjC holds, and no other."""
        return uninterrupted(Metal._release, self, ())  # type: ignore[no-any-return]

    def _release(self) -> None:
        if self._simulation.held_twice.pop(id(self), None) is None:
            self._simulation.refuse("ownership", f"{self!r}: it is released by somebody who does not hold it")

    if not typing.TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            known = encodings_of(self._registered, selector_of(name)) is not None
            why = "is not simulated, or not one of its selectors" if known else "is no known selector"
            raise AttributeError(f"{self!r}: {selector_of(name)} {why}")


def _checked(owner: type[Metal], name: str, function: types.FunctionType) -> Any:
    selector = selector_of(name)
    arguments = encodings_of(owner._registered, selector)
    if arguments is None:
        raise TypeError(f"{owner.__name__}.{name}: {selector} is no known selector")
    perform = _autoreleasing(selector, function) if name in owner._autoreleased else function
    is_new = name.startswith("new")
    if is_new:
        perform = _held(function)
    check = _Check(owner, selector, function, arguments)

    def method(self: Metal, *values: Any) -> Any:
        given = check(self, values)
        return uninterrupted(perform, self, given)

    method.__name__ = name
    method.__qualname__ = f"{owner.__qualname__}.{name}"
    method.__doc__ = function.__doc__
    return _New(method) if is_new else method


class _New:
    """A selector that makes objects. Bound, it tells as PyObjC's do whether what it returns counts as the caller's."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method

    def __get__(self, target: Metal | None, owner: type[Metal]) -> Any:
        if target is None:
            return self._method
        bound: Any = partial(self._method, target)
        owned = {"already_retained": True} if target._simulation.settings.owns_new else {}
        bound.__metadata__ = lambda: {"retval": {"type": b"@", **owned}}
        return bound


def _held(function: types.FunctionType) -> Callable[..., Any]:
    def perform(target: Metal, *values: Any) -> Any:
        result = function(target, *values)
        made = result[0] if isinstance(result, tuple) else result
        if made is not None and not target._simulation.settings.owns_new:
            target._simulation.held_twice[id(made)] = made
        return result

    return perform


def _autoreleasing(selector: str, function: types.FunctionType) -> Callable[..., Any]:
    def perform(target: Metal, *values: Any) -> Any:
        return autorelease(target._simulation, selector, function(target, *values))

    return perform


class _Check:
    """Checks the arguments of one selector."""

    def __init__(
        self,
        owner: type[Metal],
        selector: str,
        function: types.FunctionType,
        arguments: list[Mapping[str, Any]],
    ) -> None:
        self.name = f"-[{owner._registered} {selector}]"
        self.function = function
        self.checks = [check_of(each.get("type", "@"), each) for each in arguments]
        self.lengths = array_lengths(arguments)
        self.results = [index for index, each in enumerate(arguments) if each.get("type_modifier") == "o"]
        self.classes: list[tuple[int, tuple[type, ...], str]] | None = None

    def __call__(self, target: Metal, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the arguments that the implementation takes: all but the results."""
        if len(values) != len(self.checks):
            self._refuse(target, "selector", TypeError, f"it takes {len(self.checks)} arguments, got {len(values)}")
        try:
            for check, value in zip(self.checks, values, strict=True):
                check(value)
            for index, classes, text in self._resolve() if self.classes is None else self.classes:
                if not isinstance(values[index], classes):
                    raise TypeError(f"{values[index]!r} is a {type(values[index]).__name__}, and must be {text}")  # noqa: TRY301
            for index, count in self.lengths:
                self._check_length(values[index], values[count])
        except (TypeError, ValueError) as error:
            self._refuse(target, "argument-type", type(error), str(error))
        if not self.results:
            return values
        return tuple(value for index, value in enumerate(values) if index not in self.results)

    @staticmethod
    def _check_length(value: Any, count: Any) -> None:
        needed = count[1] if isinstance(count, tuple) else count
        if length_of(value) < needed:
            raise ValueError(f"an array of {length_of(value)} elements is shorter than the {needed} announced")

    def _refuse(self, target: Metal, rule: str, error: type[Exception], text: str) -> None:
        target._simulation.record(RULES[rule], f"{self.name}: {text}")
        raise error(f"{self.name}: {text}")

    def _resolve(self) -> list[tuple[int, tuple[type, ...], str]]:
        """Return which classes the object arguments must have, from the annotations of the implementation."""
        code = self.function.__code__
        names = code.co_varnames[1 : code.co_argcount]
        hints = typing.get_type_hints(self.function, localns={**_CLASSES, "Any": Any})
        places = [index for index in range(len(self.checks)) if index not in self.results]
        classes = []
        for place, name in zip(places, names, strict=True):
            wanted = _classes_of(hints[name])
            if wanted is not None:
                classes.append((place, wanted, " or ".join(each.__name__ for each in wanted)))
        self.classes = classes
        return classes


def _classes_of(hint: Any) -> tuple[type, ...] | None:
    """Return the classes of a hint; None where the encoding says it all."""
    parts = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if not all(isinstance(part, type) and not typing.get_args(part) for part in parts):
        return None
    if any(part in (Any, int, float, bool) for part in parts):
        return None
    return parts


class Labelled(Metal):
    """An object that can be given a label."""

    def label(self) -> str | None:
        return self._label

    def setLabel_(self, label: str | None) -> None:
        self._label = label
