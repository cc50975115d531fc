"""Many chunks through upload, kernel and download, a few in flight at a time, from one coroutine."""

import asyncio
from collections import deque

import numpy as np

import tidegate as tg

CHUNKS, LENGTH, DEPTH = 16, 65_536, 3


def scale(workgroups, bindings, constants):
    values = bindings[0].view(np.float32)
    values *= constants[0]


async def stream(device: tg.Device) -> list[np.ndarray]:
    function = device.load(scale)["scale"]
    uploaded, computed = tg.Semaphore(label="uploaded"), tg.Semaphore(label="computed")
    up, compute, down = (device.lane(label=name) for name in ("up", "compute", "down"))
    flying: deque[tg.Submission] = deque()
    results = []
    for i in range(1, CHUNKS + 1):
        if len(flying) == DEPTH:
            results.append(await flying.popleft())
        chunk = np.full(LENGTH, i, dtype=np.float32)
        memory = up.allocate(chunk.nbytes)
        up.upload(chunk, memory, signal=uploaded.at(i))
        compute.dispatch(
            function,
            (1, 1, 1),
            bindings=[memory],
            constants=[np.float32(0.5)],
            wait=uploaded.at(i),
            signal=computed.at(i),
        )
        flying.append(down.download(memory, dtype=np.float32, wait=computed.at(i)))
        down.free(memory)
    while flying:
        results.append(await flying.popleft())
    return results


async def main() -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    # The event loop stays free while the device works: another task goes on beside the pipeline.
    beside = asyncio.create_task(tick())
    with tg.open_device("cpu") as device:
        async with asyncio.timeout(60):
            results = await stream(device)
    beside.cancel()
    print(f"{len(results)} chunks; the other task ran {ticks} times meanwhile")
    assert all(np.all(result == i / 2) for i, result in enumerate(results, 1))
    assert len(results) == CHUNKS


if __name__ == "__main__":
    asyncio.run(main())
