"""What people see where CUDA, a device, or the compiler is missing: a reason in words, and nothing else breaks."""

from __future__ import annotations

import pytest

import tidegate as tg
from tidegate.driver import DeviceRequest
from tidegate.drivers.cuda import CudaDriver, _native, _nvrtc
from tidegate.drivers.cuda._native import NativeError
from tidegate.drivers.cuda.executable import Loader

REQUEST = DeviceRequest("cuda", "cuda")


def raising(error):
    def open_native(_release):
        raise error

    return open_native


class NoDevice:
    """A driver library on a machine without a card."""

    def __init__(self, code=100, name="CUDA_ERROR_NO_DEVICE", count=None):
        self._error = NativeError("cuInit", code, name, "no CUDA-capable device is detected")
        self._count = count

    def init(self):
        if self._count is None:
            raise self._error

    def device_count(self):
        if self._count is None:
            raise self._error
        return self._count


CASES = {
    "no library": (raising(OSError("libcuda.so.1: cannot open shared object file")), "install the driver"),
    "an old library": (raising(AttributeError("the CUDA driver has no cuFuncLoad")), "update the driver"),
    "no card": (lambda _: NoDevice(), "CUDA cannot start"),
    "no card in the end": (lambda _: NoDevice(count=0), "no device that it can use"),
    "a driver too old for the library": (lambda _: NoDevice(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), "MISMATCH"),
}


@pytest.mark.parametrize("case", CASES)
def test_what_is_missing_is_said_in_words(case):
    open_native, text = CASES[case]
    driver = CudaDriver(open_native=open_native)
    info = driver.describe()
    assert not info.available
    assert text in info.reason
    assert info.devices == ()
    with pytest.raises(tg.DriverUnavailableError, match=text):
        driver.open(REQUEST)


def test_a_failed_start_is_tried_again():
    answers = [OSError("not yet"), NoDevice(count=0)]

    def open_native(_release):
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    driver = CudaDriver(open_native=open_native)
    assert "install the driver" in driver.describe().reason
    assert "no device" in driver.describe().reason


def test_every_driver_is_listed_whatever_is_missing(monkeypatch):
    monkeypatch.setattr(_native, "_library", lambda kind: (_ for _ in ()).throw(OSError("no libcuda here")))
    reasons = {info.name: info.reason for info in tg.list_drivers()}
    assert "cuda" in reasons
    assert reasons["cpu"] == ""
    with tg.open_device("cpu") as device:
        assert device.health is tg.Health.OK


def test_without_nvrtc_only_cuda_source_is_refused():
    def no_compiler():
        raise OSError("no NVRTC: tried libnvrtc.so")

    with pytest.raises(tg.DriverUnavailableError, match="NVRTC") as caught:
        Loader(no_compiler).compiler()
    assert "tidegate[cuda]" in str(caught.value)
    assert "PTX and cubins load without it" in str(caught.value)


def test_nvrtc_says_what_it_tried(monkeypatch):
    monkeypatch.setattr(_nvrtc, "_candidates", lambda: iter(["nowhere/libnvrtc.so"]))
    with pytest.raises(OSError, match=r"nowhere/libnvrtc\.so"):
        _nvrtc.Nvrtc()


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("color=red", "unknown option 'color'"),
        ("gil=maybe", "gil is 'maybe'"),
        ("epochs=never", "epochs is 'never'"),
        ("memory=lots", "memory is 'lots'"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_opened(query, text):
    name, _, value = query.partition("=")
    driver = CudaDriver(open_native=raising(AssertionError("opened")))
    with pytest.raises(tg.InvalidArgumentError, match=text):
        driver.open(DeviceRequest(f"cuda?{query}", "cuda", options={name: value}))
