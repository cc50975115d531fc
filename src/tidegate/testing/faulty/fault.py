"""What a fault is: a name, the rules it breaks, the test that must catch it, and how it is put in.

A fault of Python code changes functions and methods of the core or of a driver, for as long as it is applied, and puts
everything back afterwards. It names what it changes; if that is no longer there, applying it raises, so that a fault
cannot rot into one that does nothing.

A fault of compiled code is an edit of its text. It needs a build of its own: `tools/faulty.py` makes one that holds all
of them, switched off, and `apply` switches one on there. A text that is not found exactly once ends that build, and
fails a test of ours.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from tidegate import _core
from tidegate.drivers import cpu, cuda
from tidegate.errors import FailedPreconditionError, NotFoundError
from tidegate.testing import streams

__all__ = ["FAULTS", "Edit", "Fault", "Patch", "fault", "planted", "streams"]

# All of it, before anything is changed: a module imported meanwhile would take over a wrong function for good.
for _package in (_core, cpu, cuda):
    for _found in pkgutil.iter_modules(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_found.name)


class Patch:
    """Changes made for a time; `undo` takes them back, the last first."""

    def __init__(self) -> None:
        self._undo = ExitStack()

    def undo(self) -> None:
        """Put everything back."""
        self._undo.close()

    def method(self, owner: Any, name: str, replacement: object) -> None:
        """Replace what `owner`, a class or a module, itself defines as `name`.

        Raises:
            NotFoundError: it defines no such thing.

        """
        if name not in vars(owner):
            raise NotFoundError(f"the fault no longer applies: {owner.__name__} defines no {name!r}")
        self._set(owner, name, vars(owner)[name], replacement)

    def function(self, original: Callable[..., Any], replacement: Callable[..., Any]) -> None:
        """Replace a function wherever Tidegate refers to it: in modules, in their tables, on their classes.

        Raises:
            NotFoundError: nothing refers to it.

        """
        places = list(_places_of(original))
        if not places:
            raise NotFoundError(f"the fault no longer applies: nothing refers to {original.__qualname__}")
        for owner, name, value in places:
            wrapped = staticmethod(replacement) if isinstance(value, staticmethod) else replacement
            self._set(owner, name, value, wrapped)

    def _set(self, owner: Any, name: Any, before: object, after: object) -> None:
        store = owner.__setitem__ if isinstance(owner, dict) else lambda key, value: setattr(owner, key, value)
        self._undo.callback(store, name, before)
        store(name, after)


def _places_of(original: object) -> Iterator[tuple[Any, Any, object]]:
    for module in [module for name, module in sys.modules.items() if name.partition(".")[0] == "tidegate"]:
        for name, value in list(vars(module).items()):
            if value is original:
                yield module, name, value
            elif isinstance(value, dict) and name.isupper():
                yield from ((value, key, entry) for key, entry in list(value.items()) if entry is original)
            elif isinstance(value, type) and value.__module__ == module.__name__:
                yield from ((value, key, entry) for key, entry in list(vars(value).items()) if _is(entry, original))


def _is(entry: object, original: object) -> bool:
    return entry is original or (isinstance(entry, staticmethod) and entry.__func__ is original)


@dataclass(frozen=True)
class Edit:
    """A change of compiled code.

    Attributes:
        room: The file, from the folder of the core.
        before: Statements or an expression of it, there exactly once.
        after: What stands there instead.

    """

    room: str
    before: str
    after: str


@dataclass(frozen=True)
class Fault:
    """One way to be wrong.

    Attributes:
        name: What the conformance suite calls it: the subject is `faulty-NAME`.
        description: What it does wrong.
        rules: The rules of the model that it breaks.
        killed_by: The conformance test that must catch it, as `module::test`.
        base: The conformance subject that has the fault.
        edit: What it is in compiled code, None for a fault of Python code.
        number: Of a fault of compiled code, in a build that has all of them.

    """

    name: str
    description: str
    rules: tuple[str, ...]
    killed_by: str
    base: str
    edit: Edit | None = None
    number: int = 0
    _spoil: Callable[[Patch], None] | None = field(default=None, repr=False)

    @contextmanager
    def apply(self) -> Iterator[None]:
        """Be wrong for the life of a `with` block. Everything opened before is spoilt too.

        Raises:
            NotFoundError: what the fault changes is no longer there.
            AttributeError: likewise.
            FailedPreconditionError: it is one of compiled code, and this build has none.

        """
        if self._spoil is None:
            switch_on = self._switch()
            switch_on(self.number)
            try:
                yield
            finally:
                switch_on(0)
            return
        patch = Patch()
        try:
            self._spoil(patch)
            yield
        finally:
            patch.undo()

    def _switch(self) -> Callable[[int], None]:
        try:
            return importlib.import_module("tidegate._switch").switch_on  # type: ignore[no-any-return]
        except ImportError:
            raise FailedPreconditionError(
                f"{self.name} is a fault of compiled code: `python tools/faulty.py {self.name}` builds it and runs its"
                " test"
            ) from None


FAULTS: dict[str, Fault] = {}


def fault(*rules: str, killed_by: str, base: str = "cpu") -> Callable[[Callable[[Patch], None]], Fault]:
    """Make a fault of a function that puts it in; its name and its docstring are the fault's."""

    def make(spoil: Callable[[Patch], None]) -> Fault:
        description = " ".join((spoil.__doc__ or "").split())
        return _known(Fault(spoil.__name__.replace("_", "-"), description, rules, killed_by, base, _spoil=spoil))

    return make


def planted(
    name: str, description: str, *rules: str, killed_by: str, room: str, before: str, after: str, base: str = "cpu"
) -> Fault:
    """Make a fault of an edit of compiled code. Both texts may be indented as it suits."""
    edit = Edit(room, textwrap.dedent(before).strip(), textwrap.dedent(after).strip())
    number = 1 + sum(known.edit is not None for known in FAULTS.values())
    return _known(Fault(name, description, rules, killed_by, base, edit, number))


def _known(made: Fault) -> Fault:
    assert made.name not in FAULTS, f"two faults are called {made.name}"
    FAULTS[made.name] = made
    return made
