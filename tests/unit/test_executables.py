"""Executables and their functions: workgroups, constants and local memory, checked before they are submitted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate.testing import ManualDevice

LIMIT = 30.0


def noop(workgroups: Any, bindings: Any, constants: Any) -> None:
    pass


def test_an_executable_is_a_mapping_of_its_functions(device: tg.Device) -> None:
    executable = device.load(tg.Kernel("noop", bindings=1, constants=["u4"], workgroup=(4, 2), cpu=noop))
    assert list(executable) == ["noop"]
    assert (len(executable), "noop" in executable, "other" in executable) == (1, True, False)
    assert list(executable.functions) == ["noop"]
    assert repr(executable) == "<tidegate.Executable noop on device 'dev'>"
    with pytest.raises(tg.NotFoundError, match=r"^the executable has no function 'other'; it has: noop$") as caught:
        executable["other"]
    assert caught.value.name == "other"
    function = executable["noop"]
    assert (function.name, function.bindings, function.constants) == ("noop", 1, (np.dtype("u4"),))
    assert function.workgroup == (4, 2, 1)
    assert repr(function) == "<tidegate.Function 'noop' bindings=1 constants=(dtype('uint32'),)>"
    assert tg.Kernel("k", bindings=0, cpu=noop).signature.workgroup == (1, 1, 1)
    with pytest.raises(tg.UnsupportedError, match=r"^kernel 'k' has no implementation for 'cuda': it has cpu$"):
        tg.Kernel("k", bindings=0, cpu=noop).source_for("cuda")
    assert repr(tg.Kernel("k", bindings=0, cpu=noop, metal="x")) == "<tidegate.Kernel 'k' for cpu, metal>"


def test_functions_belong_to_their_device_and_take_no_negative_local_memory(device: tg.Device) -> None:
    function = device.load(tg.Kernel("noop", bindings=0, cpu=noop))["noop"]
    device.queue().dispatch(function, 1).wait(LIMIT)
    text = r"^function 'noop' belongs to device 'dev', not to device 'other'$"
    with tg.open_device("cpu?workers=1", label="other") as other, pytest.raises(tg.InvalidArgumentError, match=text):
        other.queue().dispatch(function, 1)
    with pytest.raises(TypeError, match=r"^dispatch takes a function of an executable, not int$"):
        device.queue().dispatch(3, 1)  # type: ignore[arg-type]
    with pytest.raises(
        tg.InvalidArgumentError, match=r"^function 'noop': the local memory is -1, and must be 0 or more$"
    ):
        device.queue().dispatch(function, 1, local_memory=-1)
    device.queue().dispatch(function, 1, local_memory=0).wait(LIMIT)


def test_a_dispatch_goes_down_with_what_was_asked_for(manual: ManualDevice) -> None:
    function = manual.device.load(noop)["noop"]
    manual.queue.dispatch(function, 2, bindings=[manual.buffer])
    manual.queue.dispatch(function, (1, 2, 3), bindings=[manual.buffer.subspan(8)], local_memory=16)
    works = [piece.work for piece in manual.issued]
    assert [work.workgroups for work in works] == [(2, 1, 1), (1, 2, 3)]  # type: ignore[attr-defined]
    assert [work.local_memory for work in works] == [0, 16]  # type: ignore[attr-defined]
    assert [work.bindings[0].nbytes for work in works] == [64, 56]  # type: ignore[attr-defined]


def test_no_constants_are_no_constants_and_zero_is_one(device: tg.Device) -> None:
    none = device.load(tg.Kernel("none", bindings=0, cpu=noop))["none"]
    assert none.convert_constants(()) == ()
    assert none.convert_constants([]) == ()
    with pytest.raises(tg.InvalidArgumentError, match=r"^function 'none' takes 0 constants, and 1 were given$"):
        none.convert_constants((1,))
    one = device.load(tg.Kernel("one", bindings=0, constants=["i4"], cpu=noop))["one"]
    assert one.convert_constants((0,)) == (0,)
    with pytest.raises(tg.InvalidArgumentError, match=r"^function 'one' takes 1 constants, and 0 were given$"):
        one.convert_constants(())
    for local in (True, 1.5):
        with pytest.raises(TypeError, match="the local memory must be an int"):
            device.queue().dispatch(none, 1, local_memory=local)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [2, -1, 255])
def test_a_boolean_constant_is_at_most_one(device: tg.Device, value: int) -> None:
    function = device.load(tg.Kernel("flag", bindings=0, constants=["?"], cpu=noop))["flag"]
    with pytest.raises(tg.InvalidArgumentError, match=r"which does not fit bool: 0\.\.1$"):
        function.convert_constants((value,))
