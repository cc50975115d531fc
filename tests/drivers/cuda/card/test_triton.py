"""Kernels that Triton compiled, as submissions. No device of Triton's is used: only its compiler."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate as tg
from tidegate import lowlevel

from .programs import LIMIT, counter

EXAMPLE = Path(__file__).parents[4] / "examples" / "cuda_triton.py"

KERNEL = '''
import triton
import triton.language as tl

@triton.jit
def row_sums(x, y, columns, block: tl.constexpr):
    """One row for each program; the warps of a program add up in shared memory."""
    row = tl.program_id(0)
    i = tl.arange(0, block)
    tl.store(y + row, tl.sum(tl.load(x + row * columns + i, mask=i < columns, other=0.0), axis=0))
'''
"""In a file of its own, because Triton reads the source of its kernels, and where there is no Triton nobody can."""


@pytest.fixture
def device(card: str) -> Any:
    pytest.importorskip("triton")
    with tg.open_device(card) as opened:
        yield opened


def imported(name: str, path: Path) -> Any:
    specification = importlib.util.spec_from_file_location(name, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, int], capability: str, warps: int) -> Any:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    return triton.compile(
        ASTSource(kernel, types, constexprs=constants),
        target=GPUTarget("cuda", int(capability.replace(".", "")), 32),
        options={"num_warps": warps},
    )


def hidden(made: Any, known: int) -> int:
    """How many pointers Triton has added behind the known parameters."""
    parameters = re.search(r"\.entry\s+\w+\s*\((.*?)\)", made.asm["ptx"], re.DOTALL)
    assert parameters is not None
    return parameters.group(1).count(".param") - known


def test_the_example_runs(device: tg.Device) -> None:
    imported("card_cuda_triton", EXAMPLE).main()


def test_a_kernel_of_triton_uses_shared_memory_and_runs_in_order(device: tg.Device, tmp_path: Path) -> None:
    path = tmp_path / "card_row_sums.py"
    path.write_text(KERNEL, encoding="utf-8")
    types = {"x": "*fp32", "y": "*fp32", "columns": "i32", "block": "constexpr"}
    made = compiled(
        imported("card_row_sums", path).row_sums, types, {"block": 1024}, device.info.details["compute_capability"], 8
    )
    assert made.metadata.shared > 0, "the warps exchange what they found"
    loaded = device.load(made.asm["cubin"], options=(f"workgroup={32 * made.metadata.num_warps}",))[made.metadata.name]
    more = hidden(made, known=3)
    function = lowlevel.with_parameters(loaded, "bbc" + "c" * more)
    data = np.arange(300 * 1000, dtype=np.float32).reshape(300, 1000) % 17
    lane, x, y = device.lane(), device.allocate(data.nbytes), device.allocate(4 * 300)
    lane.upload(data, x)
    lane.dispatch(
        function,
        300,
        bindings=[x, y],
        constants=[np.int32(1000), *[np.uint64(0)] * more],
        local_memory=made.metadata.shared,
    )
    found = lane.download(y, dtype=np.float32).result(LIMIT)
    assert np.array_equal(found, data.sum(axis=1))


def test_an_order_that_does_not_fit_the_kernel_is_refused(device: tg.Device) -> None:
    source = 'extern "C" __global__ void mixed(unsigned a, unsigned *x) { x[0] = a; }'
    loaded = device.load(source)["mixed"]
    mine = counter(device)
    with pytest.raises(tg.InvalidArgumentError, match="mixed"):
        lowlevel.with_parameters(loaded, "bc")
    function = lowlevel.with_parameters(loaded, "cb")
    device.queue().dispatch(function, 1, bindings=[mine], constants=[np.uint32(5)]).wait(LIMIT)
