"""Kernels on the card: their memory, how they are launched, in which form they come, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .programs import LIMIT, REAL, TIMER, counter, function, number, touch

KIB = 1024

reverse = tg.Kernel(
    "reverse",
    cuda="""
extern "C" __global__ void reverse(unsigned *x, unsigned n) {
    extern __shared__ unsigned copy[];
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) copy[i] = x[i];
    __syncthreads();
    for (unsigned i = threadIdx.x; i < n; i += blockDim.x) x[i] = copy[n - 1 - i];
}""",
    bindings=1,
    constants=[np.uint32],
    workgroup=(128, 1, 1),
)

total = tg.Kernel(
    "total",
    cuda="""
extern "C" __global__ void total(const unsigned *x, unsigned *y, unsigned n) {
    __shared__ unsigned part[256];
    unsigned sum = 0;
    for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum += x[i];
    part[threadIdx.x] = sum;
    for (unsigned step = blockDim.x / 2; step; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    }
    if (threadIdx.x == 0) atomicAdd(y, part[0]);
}""",
    bindings=2,
    constants=[np.uint32],
    workgroup=(256, 1, 1),
)

# Every block waits for all others: it ends only if all are there at the same time. Cooperative groups find the memory
# they synchronise by in these two registers, and nothing there without a cooperative launch.
MEETING = f"""{TIMER}
extern "C" __global__ void meeting(unsigned *arrived, unsigned *late, unsigned *found) {{
    if (threadIdx.x) return;
    unsigned high, low;
    asm volatile("mov.u32 %0, %%envreg1;" : "=r"(high));
    asm volatile("mov.u32 %0, %%envreg2;" : "=r"(low));
    if (blockIdx.x == 0) *found = (high | low) != 0;
    atomicAdd(arrived, 1);
    unsigned long long begin = now();
    while (atomicAdd(arrived, 0) < gridDim.x)
        if (now() - begin > 5000000000ULL) {{ atomicAdd(late, 1); return; }}
}}
"""

CLUSTERS = """
extern "C" __global__ void clusters(unsigned *sizes, unsigned *ranks) {
    unsigned size, rank;
    asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(size));
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    sizes[blockIdx.x] = size;
    ranks[blockIdx.x] = rank;
}
"""

WHERE = """
extern "C" __global__ void where(unsigned *blocks) { blocks[blockIdx.x] = blockIdx.x + 1; }
"""

ADD_CUDA = 'extern "C" __global__ void add_some(unsigned *x, unsigned some) { x[0] += some; }'

ADD_PTX = """.version 7.0
.target sm_80
.address_size 64
.visible .entry add_some(.param .u64 x, .param .u32 some)
{
    .reg .b32 %r<4>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [x];
    ld.param.u32 %r1, [some];
    cvta.to.global.u64 %rd2, %rd1;
    ld.global.u32 %r2, [%rd2];
    add.u32 %r3, %r2, %r1;
    st.global.u32 [%rd2], %r3;
    ret;
}
"""


def compiled(device: tg.Device, source: str, architecture: str) -> bytes:
    compiler = device._driver._loader.compiler()  # type: ignore[attr-defined]
    code: bytes = compiler.compile(source, "card.cu", [f"--gpu-architecture={architecture}"])
    return code


@pytest.fixture
def on_the_card(card: str) -> Any:
    with tg.open_device(card) as opened:
        yield opened


@pytest.mark.parametrize("kib", [16, 48, 49, 100, 200])
def test_a_kernel_gets_the_shared_memory_it_asks_for(device: tg.Device, kib: int) -> None:
    words = kib * KIB // 4
    data = np.arange(words, dtype=np.uint32)
    buffer, kernel = device.upload(data), function(device, reverse)
    device.queue().dispatch(kernel, 1, bindings=[buffer], constants=[words], local_memory=kib * KIB).wait(LIMIT)
    assert np.array_equal(buffer.to_numpy(np.uint32, timeout=LIMIT), data[::-1])


def test_a_graph_gives_its_kernels_large_shared_memory_too(device: tg.Device) -> None:
    nbytes = device.info.limits.max_local_memory or 0
    assert nbytes > 48 * KIB
    words = nbytes // 4
    data = np.arange(words, dtype=np.uint32)
    buffer, kernel = device.upload(data), function(device, reverse)
    with device.record() as commands:
        for _ in range(3):
            commands.dispatch(kernel, 1, bindings=[buffer], constants=[words], local_memory=nbytes)
            commands.barrier()
    device.queue().execute(commands).wait(LIMIT)
    assert np.array_equal(buffer.to_numpy(np.uint32, timeout=LIMIT), data[::-1])


def test_threads_of_a_block_work_together(device: tg.Device) -> None:
    data = np.arange(5000, dtype=np.uint32)
    numbers, sum_of_all = device.upload(data), counter(device)
    device.queue().dispatch(function(device, total), 4, bindings=[numbers, sum_of_all], constants=[len(data)]).wait(
        LIMIT
    )
    assert number(sum_of_all) == data.sum()


def refusal(submit: Callable[[], tg.Submission]) -> BaseException | None:
    """What a submission is refused with: by the call, or as its failure."""
    try:
        submission = submit()
    except tg.TidegateError as error:
        return error
    with pytest.raises(tg.SemaphoreFailedError):
        submission.wait(LIMIT)
    return submission.error


@pytest.mark.parametrize("recorded", [False, True], ids=["submitted", "in a graph"])
def test_more_shared_memory_than_there_is_is_refused(device: tg.Device, recorded: bool) -> None:
    most = device.info.limits.max_local_memory or 0
    queue, kernel, buffer = device.queue(), function(device, reverse), counter(device)

    def submit() -> tg.Submission:
        if not recorded:
            return queue.dispatch(kernel, 1, bindings=[buffer], constants=[1], local_memory=most + 1)
        with device.record() as commands:
            commands.dispatch(kernel, 1, bindings=[buffer], constants=[1], local_memory=most + 1)
        return queue.execute(commands)

    assert isinstance(refusal(submit), tg.InvalidArgumentError)
    queue.dispatch(kernel, 1, bindings=[buffer], constants=[1], local_memory=most).wait(LIMIT)


def test_a_workgroup_that_is_too_large_is_refused_when_it_is_loaded(device: tg.Device) -> None:
    with pytest.raises(tg.InvalidArgumentError, match="1024"):
        device.load(WHERE, options=("workgroup=2048",))
    bounded = 'extern "C" __global__ void __launch_bounds__(64) bounded(unsigned *x) { x[0] = threadIdx.x; }'
    with pytest.raises(tg.InvalidArgumentError, match="64"):
        device.load(bounded, options=("workgroup=128",))


def test_more_workgroups_than_a_grid_has_are_refused(device: tg.Device) -> None:
    queue, kernel, mine = device.queue(), function(device, touch), counter(device)
    groups = (1, device.info.limits.max_workgroups[1] + 1, 1)
    assert isinstance(refusal(lambda: queue.dispatch(kernel, groups, bindings=[mine])), tg.InvalidArgumentError)
    queue.dispatch(kernel, 1, bindings=[mine]).wait(LIMIT)
    assert number(mine) == 1


def test_source_that_does_not_compile_tells_why(device: tg.Device) -> None:
    with pytest.raises(tg.CompileError) as caught:
        device.load('extern "C" __global__ void broken(float *x) { x[0] = an_undeclared_name; }')
    assert "an_undeclared_name" in caught.value.log


@pytest.mark.parametrize("text", [True, False], ids=["text", "bytes"])
def test_ptx_runs(device: tg.Device, driver: str, text: bool) -> None:
    if driver != REAL:
        compiled(device, ADD_CUDA, "sm_90")  # the simulation runs what it knows from its source
    loaded = device.load(ADD_PTX if text else ADD_PTX.encode())["add_some"]
    mine = counter(device)
    device.queue().dispatch(loaded, 1, bindings=[mine], constants=[np.uint32(13)]).wait(LIMIT)
    assert number(mine) == 13


def test_broken_ptx_is_a_compile_error(device: tg.Device) -> None:
    with pytest.raises(tg.CompileError):
        device.load(ADD_PTX.replace("add_some", "broken").replace("add.u32", "no_such_instruction"))


def test_a_cubin_runs_and_tells_its_kernels(device: tg.Device, driver: str) -> None:
    architecture = f"sm_{device._driver.architecture}"  # type: ignore[attr-defined]
    image = compiled(device, ADD_CUDA, architecture)
    loaded = device.load(image, format="cubin")
    assert list(loaded.functions) == ["add_some"]
    mine = counter(device)
    device.queue().dispatch(loaded["add_some"], 1, bindings=[mine], constants=[np.uint32(7)]).wait(LIMIT)
    assert number(mine) == 7


def test_a_cubin_for_another_card_is_a_compile_error(on_the_card: tg.Device) -> None:
    image = compiled(on_the_card, ADD_CUDA, "sm_80")
    with pytest.raises(tg.CompileError) as caught:
        on_the_card.load(image)
    assert caught.value.native_code in (200, 209)


def test_a_kernel_that_declares_other_parameters_than_its_code_is_a_compile_error(device: tg.Device) -> None:
    wrong = tg.Kernel("add_some", cuda=ADD_CUDA, bindings=1, constants=[np.uint64])
    with pytest.raises(tg.CompileError, match="parameters"):
        device.load(wrong)


def test_a_cooperative_launch_has_all_blocks_there_at_once(
    on_the_card: tg.Device, measured: Callable[..., None]
) -> None:
    queue, blocks = on_the_card.queue(), 2 * on_the_card.info.details["multiprocessors"]
    facts = {}
    for kind, options in (("plain", ()), ("cooperative", ("cooperative",))):
        meeting = on_the_card.load(MEETING, options=("workgroup=32", *options))["meeting"]
        arrived, late, found = (counter(on_the_card) for _ in range(3))
        queue.dispatch(meeting, blocks, bindings=[arrived, late, found]).wait(LIMIT)
        facts[kind] = (number(arrived), number(late), number(found))
    measured(plain_launch_has_a_workspace=facts["plain"][2])
    assert facts["cooperative"] == (blocks, 0, 1)


def test_a_cooperative_launch_in_a_graph_is_one(on_the_card: tg.Device) -> None:
    blocks = 2 * on_the_card.info.details["multiprocessors"]
    meeting = on_the_card.load(MEETING, options=("workgroup=32", "cooperative"))["meeting"]
    arrived, late, found = (counter(on_the_card) for _ in range(3))
    with on_the_card.record() as commands:
        commands.dispatch(meeting, blocks, bindings=[arrived, late, found])
    on_the_card.queue().execute(commands).wait(LIMIT)
    assert (number(arrived), number(late), number(found)) == (blocks, 0, 1)


def test_a_cooperative_launch_that_does_not_fit_fails_alone(device: tg.Device) -> None:
    queue, blocks = device.queue(), 100_000
    where = device.load(WHERE, options=("cooperative", "workgroup=1024"))["where"]
    refused = queue.dispatch(where, blocks, bindings=[device.allocate(4 * blocks)])
    behind = queue.fill(counter(device), 1, wait=refused)
    for failed in (refused, behind):
        with pytest.raises(tg.SemaphoreFailedError):
            failed.wait(LIMIT)
    assert isinstance(refused.error, tg.InvalidArgumentError)
    assert refused.error.native_code == 720
    assert device.health is tg.Health.OK
    mine = device.upload(np.zeros(4, np.uint32))
    queue.dispatch(where, 4, bindings=[mine]).wait(LIMIT)
    assert mine.to_numpy(np.uint32, timeout=LIMIT).tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("recorded", [False, True], ids=["submitted", "in a graph"])
@pytest.mark.parametrize("size", [2, 8])
def test_blocks_come_in_clusters(on_the_card: tg.Device, size: int, recorded: bool) -> None:
    kernel = on_the_card.load(CLUSTERS, options=(f"cluster={size}", "workgroup=64"))["clusters"]
    sizes, ranks = (on_the_card.upload(np.full(16, 99, np.uint32)) for _ in range(2))
    queue = on_the_card.queue()
    if recorded:
        with on_the_card.record() as commands:
            commands.dispatch(kernel, 16, bindings=[sizes, ranks])
        queue.execute(commands).wait(LIMIT)
    else:
        queue.dispatch(kernel, 16, bindings=[sizes, ranks]).wait(LIMIT)
    assert set(sizes.to_numpy(np.uint32, timeout=LIMIT)) == {size}
    found = ranks.to_numpy(np.uint32, timeout=LIMIT)
    assert sorted(found) == sorted(np.tile(np.arange(size), 16 // size))


@pytest.mark.parametrize("cluster", ["16", "3"], ids=["too large", "no part of the grid"])
def test_a_cluster_that_cannot_be_fails_alone(device: tg.Device, cluster: str) -> None:
    queue = device.queue()
    where = device.load(WHERE, options=(f"cluster={cluster}",))["where"]
    refused = queue.dispatch(where, 16, bindings=[device.allocate(64)])
    with pytest.raises(tg.SemaphoreFailedError):
        refused.wait(LIMIT)
    assert isinstance(refused.error, tg.InvalidArgumentError)
    queue.fill(counter(device), 1).wait(LIMIT)
    assert device.health is tg.Health.OK
