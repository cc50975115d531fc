"""C sources that do not compile, and machines without a compiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import tidegate as tg

from .world import LIMIT, Case, World, assert_no_trace, python_kernel

C_KERNEL = "tidegate_kernel void twice(float *x, uint32_t n) { tidegate_for(i, n) x[i] *= 2; }"


@contextmanager
def compiler_or_skip() -> Iterator[None]:
    """What needs a C compiler is skipped where there is none."""
    try:
        yield
    except tg.DriverUnavailableError as error:
        pytest.skip(str(error))


def test_a_source_that_does_not_compile_is_refused_and_leaves_no_trace(world: World) -> None:
    with compiler_or_skip():
        Case(
            "C source that does not compile",
            tg.CompileError,
            ("no_such_name",),
            lambda w, _: w.device.load("tidegate_kernel void f(float *x) { x[0] = no_such_name; }"),
        ).check(world)


def test_the_log_of_a_failed_compilation_is_kept_apart_from_the_text(world: World) -> None:
    with compiler_or_skip(), pytest.raises(tg.CompileError) as caught:
        world.device.load(
            "tidegate_kernel void f(float *x) {\n    x[0] = first_wrong_name;\n    second_wrong_name();\n}"
        )
    assert "first_wrong_name" in caught.value.log
    assert "second_wrong_name" in caught.value.log


def test_without_a_compiler_c_kernels_say_what_to_install_and_python_kernels_work(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    source = C_KERNEL + f" /* {world.folder} */"  # not compiled before, so no cache can have it
    point = tg.Semaphore().at(1)
    with pytest.raises(tg.DriverUnavailableError, match=r"compiler.*install"):
        world.device.load(source)
    assert_no_trace(world, point)
    both = tg.Kernel("twice", cpu=[source, python_kernel], bindings=1, constants=[np.uint32])
    target = world.device.upload(np.zeros(8, np.uint8))
    world.queue.dispatch(world.device.load(both)["twice"], (1, 1, 1), bindings=[target], constants=[2]).wait(LIMIT)
    assert target.read(timeout=LIMIT) == b"\xff" * 8


def test_a_compiler_that_is_not_there_is_named(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(tg.DriverUnavailableError, match="no-such-compiler"):
        world.device.load(C_KERNEL + f" /* {world.folder} */")
