"""What the plain query, signal and satisfied wait of a semaphore cost in several forms of Python.

Each form has measuring loops with code of their own: CPython specializes a call for what it meets there. Run it:
python benchmarks/fast_paths.py
"""

from __future__ import annotations

import statistics
from time import perf_counter_ns

from tidegate._bench.own_code import own_code

BATCH, ROUNDS = 2000, 100
MAX_VALUE = 2**64 - 2


class State:
    __slots__ = ("claims", "failure", "payload", "plain")

    def __init__(self) -> None:
        self.payload, self.plain, self.failure, self.claims = 0, True, None, {}


class Empty:
    """The price of a method call."""

    def query(self):
        return 1

    def signal(self, value):
        pass

    def wait(self, value, timeout=None):
        pass


class Checked:
    """Each fact tested on its own."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state = State()

    def query(self):
        state = self._state
        if state.claims:
            raise AssertionError
        if state.failure is None:
            return state.payload
        return None

    def signal(self, value):
        state = self._state
        if type(value) is int and state.plain and state.payload < value <= MAX_VALUE and state.failure is None:
            state.payload = value

    def wait(self, value, timeout=None):
        if timeout is None and type(value) is int and 0 <= value <= self._state.payload:
            return


class Folded(Checked):
    """One flag for all that is not plain, and a bound that fits one digit of a Python integer."""

    __slots__ = ()

    def query(self):
        state = self._state
        if state.plain:
            return state.payload
        return None

    def signal(self, value):
        state = self._state
        if state.plain and state.payload < value <= 0x3FFFFFFF and type(value) is int:
            state.payload = value

    def wait(self, value, timeout=None):
        if timeout is None and value <= self._state.payload:
            return


class Flat:
    """The payload in the object itself."""

    __slots__ = ("payload", "plain")

    def __init__(self) -> None:
        self.payload, self.plain = 0, True

    def query(self):
        if self.plain:
            return self.payload
        return None

    def signal(self, value):
        if self.plain and self.payload < value <= 0x3FFFFFFF and type(value) is int:
            self.payload = value

    def wait(self, value, timeout=None):
        if timeout is None and value <= self.payload:
            return


def query(semaphore, _first):
    call = semaphore.query
    start = perf_counter_ns()
    for _ in range(BATCH):
        call()
    return (perf_counter_ns() - start) / BATCH


def signal(semaphore, first):
    call = semaphore.signal
    start = perf_counter_ns()
    for value in range(first, first + BATCH):
        call(value)
    return (perf_counter_ns() - start) / BATCH


def wait(semaphore, _first):
    call = semaphore.wait
    start = perf_counter_ns()
    for _ in range(BATCH):
        call(0)
    return (perf_counter_ns() - start) / BATCH


def contestants():
    yield from ((form.__name__, form) for form in (Empty, Checked, Folded, Flat))
    import tidegate

    yield "tidegate", tidegate.Semaphore
    try:
        import iree.runtime
    except ImportError:
        return
    device = iree.runtime.get_driver("local-task").create_default_device()
    yield "iree", lambda: device.create_semaphore(0)


def main() -> None:
    forms = dict(contestants())
    print(f"{'':10}" + "".join(f"{name:>10}" for name in forms))
    for measure in (query, signal, wait):
        runs = [(own_code(measure), make()) for make in forms.values()]
        rounds = [[take(semaphore, 1 + number * BATCH) for take, semaphore in runs] for number in range(ROUNDS)]
        medians = [statistics.median(column) for column in zip(*rounds, strict=True)]
        print(f"{measure.__name__:10}" + "".join(f"{median:>7.1f} ns" for median in medians))


if __name__ == "__main__":
    main()
