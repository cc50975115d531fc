"""What the text of a random program stands on: the resources, the threads, and the comparison at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

import tidegate as tg
from tidegate.conformance.latches import LIMIT

Bytes = npt.NDArray[np.uint8]


class InjectedError(Exception):
    """A failure that a program asked for."""


def data(key: int, count: int) -> Bytes:
    """Return bytes that differ from key to key and from place to place."""
    return ((np.arange(count, dtype=np.uint32) * 193 + key * 7919 % 65536) >> 5).astype(np.uint8)


def repeat(pattern: bytes, count: int) -> Bytes:
    """Return a pattern over and over."""
    return np.resize(np.frombuffer(pattern, np.uint8), count)


def flip(array: Bytes, key: int) -> None:
    """Change every byte of an array."""
    np.bitwise_xor(array, key, out=array)


def read_mapped(source: tg.Buffer, target: Bytes) -> None:
    """Copy from a mapped buffer: a host call orders nothing by itself, so this reads what is there."""
    with source.map("r") as view:
        target[:] = view


def write_mapped(target: tg.Buffer, source: Bytes) -> None:
    """Copy to a mapped buffer."""
    with target.map("w") as view:
        view[:] = source


class Run:
    """One run of a program on a device.

    Args:
        device: where it runs.
        must_fail: for each step that cannot end well, the injected errors that may be its error.
        may_fail: the same for steps whose end nobody can foresee.
        errors: how many are injected.
        faults: the steps whose kernel faults, each with the number of its error, which only the device knows.

    """

    def __init__(
        self,
        device: tg.Device,
        must_fail: Mapping[int, set[int]],
        may_fail: Mapping[int, set[int]],
        errors: int,
        faults: Mapping[int, int],
    ) -> None:
        self._device = device
        self._must_fail = must_fail
        self._may_fail = may_fail
        self.errors: list[BaseException | None] = [InjectedError(f"injected error {n}") for n in range(errors)]
        self._faults = faults
        self._failed: set[int] = set()
        self._calls: list[tuple[tg.Timepoint, list[tuple[Any, Any]]]] = []
        self._raised: list[BaseException] = []

    # What there is -------------------------------------------------------------------------------------------------

    def buffer(self, size: int, memory: str) -> tg.Buffer:
        """Return a buffer with known bytes."""
        buffer = self._device.allocate(size, memory=memory)  # type: ignore[arg-type]
        buffer.write(data(size, size))
        return buffer

    def twins(self, sizes: list[int]) -> tuple[list[Bytes], list[npt.NDArray[np.bool_]]]:
        """Return what NumPy has in the place of buffers or arrays, and marks for what is undefined in them."""
        return [data(size, size) for size in sizes], [np.zeros(size, np.bool_) for size in sizes]

    def arrays(self, sizes: list[int]) -> list[Bytes]:
        """Return host arrays, every other one in page-locked memory where the device has that."""
        made = []
        for index, size in enumerate(sizes):
            array = tg.pinned_empty(size, np.uint8, self._device) if index % 2 else np.empty(size, np.uint8)
            array[:] = data(size, size)
            made.append(array)
        return made

    # While it runs -------------------------------------------------------------------------------------------------

    def fail(self, index: int) -> None:
        """Fail, as a host call."""
        error = self.errors[index]
        assert error is not None
        raise error

    def cancel(self, index: int, submission: tg.Submission) -> None:
        """Cancel what is held for certain; its error is the injected one from now on."""
        assert submission.cancel(), f"a held submission could not be cancelled: {submission!r}"
        self.errors[index] = submission.error
        assert isinstance(submission.error, tg.AbortedError), f"{submission!r} was cancelled"

    def watch(self, point: tg.Timepoint) -> None:
        """Register a callback; it must be called once."""
        calls: list[tuple[Any, Any]] = []
        self._calls.append((point, calls))
        point.add_callback(lambda _point, outcome, error: calls.append((outcome, error)))

    def wait(self, submission: tg.Submission) -> None:
        """Wait for the end of a submission, well or not."""
        try:
            submission.wait(LIMIT)
        except tg.SemaphoreFailedError:
            pass

    def threads(self, *functions: Callable[[], None]) -> None:
        """Run functions beside each other, begun at once; a single one on this thread."""
        if len(functions) == 1:
            functions[0]()
            return
        start = threading.Barrier(len(functions))
        started = [threading.Thread(target=self._one, args=(function, start)) for function in functions]
        for thread in started:
            thread.start()
        for thread in started:
            thread.join()
        if self._raised:
            raise self._raised[0]

    def _one(self, function: Callable[[], None], start: threading.Barrier) -> None:
        try:
            start.wait(LIMIT)
            function()
        except BaseException as error:
            self._raised.append(error)

    # Afterwards ----------------------------------------------------------------------------------------------------

    def end(self, submissions: Mapping[int, tg.Submission], order: list[int]) -> None:
        """Wait for all, in an order, and see who failed with what."""
        for number in order:
            self.wait(submissions[number])
        for number, submission in submissions.items():
            assert submission.done, f"s[{number}] has been waited for and is not done: {submission!r}"
        self._learn_faults(submissions)
        for number, submission in submissions.items():
            self._check_end(number, submission.error)

    def _learn_faults(self, submissions: Mapping[int, tg.Submission]) -> None:
        """Take the errors of the kernels that fault from their own submissions, unless another error came first."""
        for index in self._faults.values():
            self.errors[index] = None
        # Those first that nothing else reaches: their error is their own.
        for number, index in sorted(self._faults.items(), key=lambda fault: len(self._may_fail.get(fault[0], ()))):
            error = submissions[number].error
            if all(error is not known for known in self.errors):
                self.errors[index] = error

    def _check_end(self, number: int, error: BaseException | None) -> None:
        possible = self._may_fail.get(number, set())
        if error is None:
            assert number not in self._must_fail, f"s[{number}] ended well and depends on what failed"
            return
        self._failed.add(number)
        reasons = [self.errors[index] for index in possible]
        assert any(error is reason for reason in reasons), (
            f"s[{number}] failed with {error!r}; what may reach it is {reasons or 'nothing'}"
        )

    def bytes_of(self, buffer: tg.Buffer) -> Bytes:
        """Return what is in a buffer now that all work is over, whatever became of the last write to it."""
        found: Bytes = self._device.queue().download(buffer).result(LIMIT)
        return found

    def ended_well(self, number: int, *undefined: npt.NDArray[np.bool_]) -> bool:
        """Whether a step was done; if not, what it would have written is undefined."""
        if number not in self._failed:
            return True
        for marks in undefined:
            marks[:] = True
        return False

    def check_bytes(self, name: str, found: Bytes, expected: Bytes, undefined: npt.NDArray[np.bool_]) -> None:
        """Compare, byte for byte, what can be foreseen."""
        wrong = np.flatnonzero((found != expected) & ~undefined)
        assert wrong.size == 0, (
            f"{name}: {wrong.size} of {found.size} bytes are wrong, the first at {wrong[0]}:"
            f" {found[wrong[0]]} instead of {expected[wrong[0]]}; the last at {wrong[-1]}"
        )

    def check_semaphore(self, name: str, semaphore: tg.Semaphore, last: int, signallers: set[int]) -> None:
        """A semaphore is at its last value, or carries a failure of one who was to signal it."""
        if signallers & self._failed:
            failure = semaphore.failure
            injected = failure is not None and any(failure is error for error in self.errors)
            assert injected, f"{name}: {semaphore!r} carries none of the injected errors"
        else:
            assert (semaphore.failure, semaphore.value) == (None, last), f"{name}: {semaphore!r} should be at {last}"

    def check_device(self) -> None:
        """Nothing is left on the device, and every callback was called once."""
        for point, calls in self._calls:
            assert len(calls) == 1, f"the callback of {point!r} was called {len(calls)} times"
        statistics = self._device.statistics()
        assert (statistics.held, statistics.issued) == (0, 0), f"work is left on the device: {statistics}"
