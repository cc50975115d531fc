"""Ctrl-C at every place where it can strike.

`interrupted_at(n)` raises KeyboardInterrupt at the n-th place inside the Tidegate package where CPython would really
run a signal handler. A test repeats an operation with n = 1, 2, 3, ... until it comes through uninterrupted.
`calls_at(n, function)` calls a function there instead, as a signal handler that raises nothing. `Striker` sends real
signals, at random.

**Where CPython looks for signals.** Not between any two instructions: only where the evaluation loop checks its
"eval breaker". In CPython 3.11 to 3.13 that is

- at the entry of a function (`RESUME`; not when a generator is resumed by `await` or `yield from`),
- at a backward jump,
- after a call that was carried out by C code. A call of a function written in Python has no check of its own: its
  frame runs in the same loop, its own checks come before, and on its return execution goes straight on.

Code may rely on there being no others. `taken = pool.pop()` can be interrupted between the pop and the store, but
nothing can come between `a = b` and `c = d`; and between the acquisition in `with lock:` and the body there is no check
either, which is why `with lock:` is safe and `lock.acquire()` followed by `try:` is not.

**How the places are found.** From 3.12 on `sys.monitoring` reports exactly these events, and an exception from its
callback is raised where the check would raise it (but for a jump: see there). In 3.11 there is only `sys.settrace` with
opcode events, which come *before* each instruction: a check after instruction A is an event at the next instruction B
of the same frame. An exception from the trace function counts as raised by B, in CPython as raised by A. The two differ
where A is the last instruction that a `try` or `with` covers and B the first outside: raising at B would skip an
`__exit__` that CPython never skips, so these places are left out.

Finalizers are left out: what interrupts a `__del__` can only be reported, and nothing that it could do would help.
A Python function outside the package (`threading.Event.set`, say) counts as C code: its inner checks are not taken one
by one, the last of them has the same effect as one after the call. Where it is the way into a `with` it has not: an
interrupt in `Condition.__enter__` comes after the lock was taken and before the body is sure to give it back. So a
condition is entered by its lock. From 3.12 on such a place is found; in 3.11 it looks as if it were in the body.

For a call nothing need be left out: a handler may come in a finalizer too, and after A is before B. The streams of
`tidegate.testing` are a driver like any other then; what is simulated there stands for C code.
"""

from __future__ import annotations

import contextlib
import dis
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from queue import Empty, SimpleQueue
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import tidegate

from .threads import background

_PACKAGE = os.path.dirname(os.path.abspath(tidegate.__file__)) + os.sep
_TESTS = (os.path.join(_PACKAGE, "conformance") + os.sep, os.path.join(_PACKAGE, "testing") + os.sep)
_STREAMS = os.path.join(_PACKAGE, "testing", "streams.py")


class Interruption:
    """What became of one injection.

    Attributes:
        step: Which place it was meant for, counted from 1.
        where: That place as `file:line function`; None as long as it has not been reached.
        raised: Whether the KeyboardInterrupt came out of the operation.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.where: str | None = None
        self.raised = False

    @property
    def fired(self) -> bool:
        """Whether the operation got as far as the step."""
        return self.where is not None

    def __repr__(self) -> str:
        return f"<interrupt at step {self.step}: {self.where or 'not reached'}>"


@contextmanager
def interrupted_at(step: int) -> Iterator[Interruption]:
    """Interrupt what the block does on this thread at the given step, counted from 1; swallows that interrupt.

    In 3.11 the thread's trace function is set aside meanwhile, so a debugger or a coverage tool does not see the block.
    """
    interruption = Interruption(step)
    places = _Places(interruption)
    try:
        with _watched(places):
            yield interruption
    except KeyboardInterrupt as error:
        if error is not places.interrupt:
            raise
        interruption.raised = True


@contextmanager
def calls_at(step: int, function: Callable[[], object]) -> Iterator[Interruption]:
    """Call `function` on this thread at the given step of the block, counted from 1, as a signal handler is called."""
    interruption = Interruption(step)
    with _watched(_Calls(interruption, function)):
        yield interruption


class _Places:
    """Counts the places and raises at the one that was asked for."""

    def __init__(self, interruption: Interruption) -> None:
        self._interruption = interruption
        self._left = interruption.step
        self.interrupt = KeyboardInterrupt()

    def has(self, code: CodeType) -> bool:
        """Whether there are places in code."""
        return is_inside(code)

    def parted(self, before: int | None, after: int | None) -> bool:
        """Whether two neighbouring instructions are no place, because different handlers cover them."""
        return before != after

    def passed(self, frame: FrameType) -> None:
        if not in_finalizer(frame):
            self._count(frame)

    def _count(self, frame: FrameType) -> None:
        self._left -= 1
        if self._left == 0:
            code = frame.f_code
            self._interruption.where = f"{code.co_filename}:{frame.f_lineno} {code.co_qualname}"
            self.strike()

    def strike(self) -> None:
        raise self.interrupt


class _Calls(_Places):
    """Counts the places and calls a function at the one that was asked for."""

    def __init__(self, interruption: Interruption, function: Callable[[], object]) -> None:
        super().__init__(interruption)
        self._function = function

    def has(self, code: CodeType) -> bool:
        return is_inside(code) or is_streams(code)

    def parted(self, before: int | None, after: int | None) -> bool:
        return False

    def passed(self, frame: FrameType) -> None:
        self._count(frame)

    def strike(self) -> None:
        self._function()


#: Functions that the collector calls: finalizers, and the callback by which a weak set forgets.
_FINALIZERS = frozenset({"__del__", "_remove"})


def in_finalizer(frame: FrameType | None) -> bool:
    """Whether a finalizer is at work, out of which no exception can come."""
    while frame is not None:
        if frame.f_code.co_name in _FINALIZERS:
            return True
        frame = frame.f_back
    return False


@cache
def _simulates(code: CodeType) -> bool:
    """Whether code stands for a foreign library, so that there is no check in it where C code calls it."""
    return os.path.abspath(code.co_filename).startswith(_TESTS[1])


@cache
def is_inside(code: CodeType) -> bool:
    """Whether code belongs to Tidegate itself, and not to its tests."""
    path = os.path.abspath(code.co_filename)
    return path.startswith(_PACKAGE) and not path.startswith(_TESTS)


@cache
def is_streams(code: CodeType) -> bool:
    """Whether code belongs to the driver with in-order streams, which lies among the simulations and is none."""
    return os.path.abspath(code.co_filename) == _STREAMS


def in_simulation(frame: FrameType | None) -> bool:
    """Whether a foreign library is at work, as a simulation of it: the real one is C code, without any place."""
    while frame is not None:
        if _simulates(frame.f_code) and not is_streams(frame.f_code):
            return True
        frame = frame.f_back
    return False


class StuckError(BaseException):
    """The main thread came no further."""


@contextmanager
def unless_stuck(seconds: float) -> Iterator[None]:
    """Fail if the main thread is still in the block after so long: a lock that one thread takes twice is never given.

    A signal takes it out, so that the locks it holds are given back and other tests are none the worse.
    """
    main = threading.main_thread().ident
    assert main is not None
    over = threading.Event()
    places: list[str] = []

    def stuck(number: int, frame: FrameType | None) -> None:
        if not over.is_set():
            places.append("".join(traceback.format_stack(frame)))
            raise StuckError

    def watch() -> None:
        while not over.wait(seconds):
            signal.pthread_kill(main, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, stuck)
    watching = background(watch)
    try:
        yield
    except StuckError:
        pass
    finally:
        over.set()
        watching.result()
        signal.signal(signal.SIGUSR1, before)
    assert not places, f"the main thread came no further for {seconds:g} s in\n{places[0]}"


# Real signals -------------------------------------------------------------------------------------------------------


class Striker:
    """Sends the main thread real signals, one after the other, each as soon as the one before has been handled.

    A context manager. The handler gets the frame that was struck and may raise.

    One that strikes just before the thread goes to sleep in a lock may find nobody awake to handle it: that is so
    with every lock of CPython, and the next one helps.
    """

    def __init__(self, number: signal.Signals, handler: Callable[[FrameType | None], None]) -> None:
        self._number = number
        self._handler = handler
        # Its put may be interrupted by itself, so a signal handler may call it.
        self._handled: SimpleQueue[None] = SimpleQueue()
        self._stop = threading.Event()

    def __enter__(self) -> None:
        self._before = signal.signal(self._number, self._handle)
        self._thread = background(self._strike)

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._handled.put(None)
        self._thread.result()
        signal.signal(self._number, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        try:
            if not self._stop.is_set():
                self._handler(frame)
        finally:
            self._handled.put(None)

    def _strike(self) -> None:
        main = threading.main_thread().ident
        assert main is not None
        while not self._stop.is_set():
            signal.pthread_kill(main, self._number)
            with contextlib.suppress(Empty):
                self._handled.get(timeout=0.1)


def inside_tidegate(frame: FrameType | None) -> bool:
    """Whether a signal has struck while the core was at work."""
    while frame is not None:
        if is_inside(frame.f_code):
            return True
        frame = frame.f_back
    return False


# Python 3.12 and later ----------------------------------------------------------------------------------------------

if sys.version_info >= (3, 12):
    _PYTHON = (FunctionType, MethodType)
    _monitoring = sys.monitoring
    _events = _monitoring.events

    @contextmanager
    def _watched(places: _Places) -> Iterator[None]:
        thread = threading.get_ident()
        tool = next(number for number in range(6) if _monitoring.get_tool(number) is None)

        def entered(code: CodeType, offset: int) -> object:
            if not places.has(code):
                return _monitoring.DISABLE
            if threading.get_ident() == thread:
                places.passed(sys._getframe(1))
            return None

        # An exception from the event of a jump does not find the handlers around the loop, as that of a signal does:
        # it is raised at the instruction jumped to instead.
        jumping: list[FrameType] = []

        def jumped(code: CodeType, offset: int, target: int) -> object:
            if not places.has(code) or target > offset:
                return _monitoring.DISABLE
            if threading.get_ident() == thread:
                jumping.append(sys._getframe(1))
            return None

        def instruction(code: CodeType, offset: int) -> object:
            if not places.has(code):
                return _monitoring.DISABLE
            if jumping and jumping[-1] is sys._getframe(1):
                places.passed(jumping.pop())
            return None

        # The frames that are in the middle of a call of C code.
        in_c: set[int] = set()

        def called(code: CodeType, offset: int, function: object, argument: object) -> object:
            # Comes with CALL, and decides about the C_RETURN that follows it.
            if not places.has(code):
                return _monitoring.DISABLE
            (in_c.discard if isinstance(function, _PYTHON) else in_c.add)(id(sys._getframe(1)))
            return None

        def c_returned(code: CodeType, offset: int, function: object, argument: object) -> object:
            if places.has(code) and threading.get_ident() == thread:
                in_c.discard(id(sys._getframe(1)))
                places.passed(sys._getframe(1))
            return None

        def python_returned(code: CodeType, offset: int, value: object) -> object:
            if places.has(code):
                return _monitoring.DISABLE
            caller = sys._getframe(1).f_back
            if caller is None or not places.has(caller.f_code) or threading.get_ident() != thread:
                return None
            if not (id(caller) in in_c and _simulates(code)):
                places.passed(caller)
            return None

        callbacks = {
            _events.PY_START: entered,
            _events.JUMP: jumped,
            _events.INSTRUCTION: instruction,
            _events.CALL: called,
            _events.C_RETURN: c_returned,
            _events.PY_RETURN: python_returned,
        }
        _monitoring.use_tool_id(tool, "tidegate interrupts")
        try:
            for event, callback in callbacks.items():
                _monitoring.register_callback(tool, event, callback)
            # C_RETURN is not asked for by itself: it comes with CALL.
            _monitoring.set_events(tool, sum(callbacks) - _events.C_RETURN)
            yield
        finally:
            _monitoring.set_events(tool, 0)
            for event in callbacks:
                _monitoring.register_callback(tool, event, None)
            _monitoring.free_tool_id(tool)


# Python 3.11 --------------------------------------------------------------------------------------------------------

_CALLS = frozenset({"CALL", "CALL_FUNCTION_EX"})

if sys.version_info < (3, 12):

    @contextmanager
    def _watched(places: _Places) -> Iterator[None]:
        before = sys.gettrace()
        sys.settrace(_Tracer(places).enter)
        try:
            yield
        finally:
            sys.settrace(before)


class _Tracer:
    """Follows the frames of the package on this thread."""

    def __init__(self, places: _Places) -> None:
        self.places = places
        self._frames: dict[FrameType, _Frame] = {}

    def enter(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not self.places.has(frame.f_code):
            return None
        caller = frame.f_back
        if caller is not None and caller in self._frames and frame.f_code.co_name != "__init__":
            # A constructor is entered through the C code of `type`, so there is a check after it.
            self._frames[caller].called_python = True
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        self._frames[frame] = _Frame(self, frame)
        return self._frames[frame].event

    def leave(self, frame: FrameType) -> None:
        self._frames.pop(frame, None)


class _Frame:
    """One frame of the package while it runs."""

    def __init__(self, tracer: _Tracer, frame: FrameType) -> None:
        self._tracer = tracer
        self._code = frame.f_code
        # The event of the entry comes when RESUME is just over.
        self._previous: int | None = frame.f_lasti
        self.called_python = False

    def event(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "opcode":
            previous, self._previous = self._previous, frame.f_lasti
            called_python, self.called_python = self.called_python, False
            if previous is not None and self._checks(previous, frame.f_lasti, called_python):
                self._tracer.places.passed(frame)
        elif event == "exception":
            # An instruction that raises is followed by its handler, without a check.
            self._previous = None
        elif event == "return":
            self._tracer.leave(frame)
        return self.event

    def _checks(self, previous: int, here: int, called_python: bool) -> bool:
        name = _check_after(self._code).get(previous)
        if name is None or (name in _CALLS and called_python):
            return False
        if "JUMP" in name:
            return here < previous
        parted = self._tracer.places.parted
        return name == "RESUME" or not parted(_handler(self._code, previous), _handler(self._code, here))


@cache
def _check_after(code: CodeType) -> dict[int, str]:
    """The instructions after which the evaluation loop checks: offset and name."""
    found = {}
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        entry = name == "RESUME" and instruction.arg is not None and instruction.arg < 2
        jump = "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name
        if name in _CALLS or entry or jump:
            found[instruction.offset] = name
    return found


@cache
def _handlers(code: CodeType) -> list[tuple[int, int, int]]:
    entries: Any = dis.Bytecode(code).exception_entries  # type: ignore[attr-defined]
    return [(entry.start, entry.end, entry.target) for entry in entries]


def _handler(code: CodeType, offset: int) -> int | None:
    """Where an exception raised at an instruction goes; None: out of the function."""
    for start, end, target in _handlers(code):
        if start <= offset < end:
            return target
    return None
