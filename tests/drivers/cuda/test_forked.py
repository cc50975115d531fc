"""CUDA in a forked child: what its library answers there, in words of ours. `test_process_ends` forks."""

from __future__ import annotations

from typing import Any

import pytest

import tidegate as tg
from tidegate.driver import DeviceRequest
from tidegate.drivers.cuda import CudaDriver
from tidegate.drivers.cuda._native import NativeError

REQUEST = DeviceRequest("cuda", "cuda")
NOT_INITIALIZED = (3, "CUDA_ERROR_NOT_INITIALIZED")
UNKNOWN = (999, "CUDA_ERROR_UNKNOWN")
NO_DEVICE = (100, "CUDA_ERROR_NO_DEVICE")


class Library:
    """A driver library that starts or does not, and says that it is not initialised when asked for its devices."""

    def __init__(self, start: tuple[int, str] | None, counts: list[int]) -> None:
        self._start = start
        self._counts = counts

    def init(self) -> None:
        if self._start is not None:
            raise NativeError("cuInit", *self._start, "words of CUDA's")

    def device_count(self) -> int:
        if not self._counts:
            raise NativeError("cuDeviceGetCount", *NOT_INITIALIZED, "words of CUDA's")
        return self._counts.pop(0)


def driver_over(start: tuple[int, str] | None = None, counts: Any = ()) -> CudaDriver:
    library: Any = Library(start, list(counts))
    return CudaDriver(open_native=lambda _release: library)


@pytest.mark.rules("M37")
@pytest.mark.parametrize("answer", [NOT_INITIALIZED, UNKNOWN], ids=lambda answer: answer[1])
def test_a_start_that_fails_as_in_a_forked_child_says_what_may_have_happened_and_what_to_do(
    answer: tuple[int, str],
) -> None:
    driver = driver_over(answer)
    with pytest.raises(tg.DriverUnavailableError, match=r"forked after CUDA had been used.*'spawn'") as caught:
        driver.open(REQUEST)
    assert (caught.value.native_code, caught.value.native_name) == answer
    info = driver.describe()
    assert not info.available
    assert "'spawn'" in info.reason


def test_a_start_that_fails_otherwise_says_nothing_of_forks() -> None:
    with pytest.raises(tg.DriverUnavailableError, match="NO_DEVICE") as caught:
        driver_over(NO_DEVICE).open(REQUEST)
    assert (caught.value.native_code, caught.value.native_name) == NO_DEVICE
    assert "fork" not in str(caught.value)


def test_a_library_that_stops_after_its_start_leaves_no_error_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8")  # else the start asks for the devices once more
    driver = driver_over(counts=[1])
    with pytest.raises(tg.TidegateError) as caught:
        driver.open(REQUEST)
    assert (caught.value.native_code, caught.value.native_name) == NOT_INITIALIZED
    assert not driver.describe().available
