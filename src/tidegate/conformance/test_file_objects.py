"""File objects that are Python code: without a descriptor, and with a will of their own."""

import gzip
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .buffers import contents, guarded, numbered
from .latches import LIMIT
from .witnesses import failure_of

pytestmark = [pytest.mark.rules("M14", "M18"), pytest.mark.needs("work")]

DATA = numbered(1000).tobytes()


class Memory:
    """A file object in plain Python: neither hashable nor weakly referable, and equal to every other."""

    __slots__ = ("_owner", "data", "position")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, data: bytes) -> None:
        self.data = bytearray(data)
        self.position = 0
        self._owner = 0

    def __eq__(self, other: object) -> bool:
        return True

    def readable(self) -> bool:
        return True

    writable = readable

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._owner = threading.get_ident()
        self.position = offset + (len(self.data) if whence == os.SEEK_END else 0)
        return self.position

    def read(self, size: int) -> bytes:
        assert self._owner == threading.get_ident(), "another operation came between the seek and the read"
        return bytes(self.data[self.position : self.position + size])

    def write(self, data: Any) -> int:
        assert self._owner == threading.get_ident(), "another operation came between the seek and the write"
        self.data[self.position : self.position + len(data)] = data
        return len(data)


class Meeting(Memory):
    """One whose reads and writes end only together with those of another."""

    __slots__ = ("_together",)

    def __init__(self, data: bytes, together: threading.Barrier) -> None:
        super().__init__(data)
        self._together = together

    def read(self, size: int) -> bytes:
        self._together.wait(LIMIT)
        return super().read(size)

    def write(self, data: Any) -> int:
        self._together.wait(LIMIT)
        return super().write(data)


class Gated(io.BytesIO):
    """One that blocks in its reads and writes until it is let go."""

    def __init__(self, data: bytes = b"", inside: Callable[[], object] = lambda: None) -> None:
        super().__init__(data)
        self._inside = inside
        self._arrived = threading.Event()
        self.let_go = threading.Event()

    def wait_until_inside(self) -> None:
        assert self._arrived.wait(LIMIT), "nobody came to the file"

    def _pass(self) -> None:
        self._arrived.set()
        assert self.let_go.wait(LIMIT), "the test did not let the file go"
        self._inside()

    def read(self, size: int | None = -1) -> bytes:
        self._pass()
        return super().read(size)

    def write(self, data: Any) -> int:
        self._pass()
        return super().write(data)


@pytest.mark.rules("M14", "M33")
def test_operations_on_two_file_objects_overlap(device: tg.Device, queue: tg.Queue) -> None:
    together = threading.Barrier(2)
    one, another = Meeting(DATA[:64], together), Meeting(DATA[:64], together)
    buffers = guarded(device, 64), guarded(device, 64)
    tg.wait_all([queue.read_file(one, buffers[0]), queue.read_file(another, buffers[1])], LIMIT)  # type: ignore[arg-type]
    assert contents(buffers[0]).tobytes() == contents(buffers[1]).tobytes() == DATA[:64]
    written = [
        queue.write_file(device.upload(np.full(8, 1, np.uint8)), one),  # type: ignore[arg-type]
        queue.write_file(device.upload(np.full(8, 2, np.uint8)), another),  # type: ignore[arg-type]
    ]
    tg.wait_all(written, LIMIT)
    assert bytes(one.data) == b"\x01" * 8 + DATA[:64][8:]
    assert bytes(another.data) == b"\x02" * 8 + DATA[:64][8:]


@pytest.mark.rules("M14", "M33")
def test_no_operation_comes_between_the_seek_of_another_and_its_read(device: tg.Device, queue: tg.Queue) -> None:
    file, first, second = Gated(DATA), guarded(device, 16), guarded(device, 16)
    work = [queue.read_file(file, first, length=16)]
    file.wait_until_inside()
    work.append(queue.read_file(file, second, file_offset=16, length=16))
    for _ in range(20):
        queue.host_call(len, "").wait(LIMIT)  # meanwhile the other would have come to the file, if it could
    file.let_go.set()
    tg.wait_all(work, LIMIT)
    assert contents(first).tobytes() == DATA[:16]
    assert contents(second).tobytes() == DATA[16:32]


@pytest.mark.rules("M14", "M33")
@pytest.mark.usefixtures("switch_often")
@pytest.mark.parametrize("kind", [Memory, io.BytesIO])
def test_operations_on_one_file_object_never_mix_their_seeks(
    device: tg.Device, queue: tg.Queue, kind: Callable[[bytes], Any]
) -> None:
    data = DATA[:960]
    file = kind(data)
    gate, buffer = tg.Semaphore(), guarded(device, len(data))
    work = [
        queue.read_file(file, buffer, file_offset=at, offset=at, length=16, wait=gate.at(1))
        for at in range(0, len(data), 32)
    ]
    work += [
        queue.write_file(device.upload(np.full(16, at // 32, np.uint8)), file, file_offset=at, wait=gate.at(1))
        for at in range(16, len(data), 32)
    ]
    gate.signal(1)
    tg.wait_all(work, LIMIT)
    queue.read_file(file, buffer).wait(LIMIT)
    found = contents(buffer)
    for at in range(0, len(data), 32):
        assert found[at : at + 16].tobytes() == data[at : at + 16]
        assert set(found[at + 16 : at + 32].tolist()) == {at // 32}


@pytest.mark.slow
@pytest.mark.rules("M14", "M33")
def test_a_file_object_may_use_other_files_by_tidegate_itself(device: tg.Device, queue: tg.Queue) -> None:
    """Also while more operations stand in line for it than threads are started without hesitation."""
    inner = io.BytesIO(DATA[:64])

    class Outer(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            scratch = guarded(device, 64)
            queue.read_file(inner, scratch).wait(LIMIT)
            return queue.download(scratch).result(LIMIT).tobytes()[: 64 if size is None else size]  # type: ignore[no-any-return]

    outer, buffer = Outer(bytes(64)), guarded(device, 64)
    tg.wait_all([queue.read_file(outer, buffer, length=64) for _ in range(40)], LIMIT)
    assert contents(buffer).tobytes() == DATA[:64]


def test_a_file_object_that_takes_little_at_a_time_is_written_whole(device: tg.Device, queue: tg.Queue) -> None:
    class Sip(io.BytesIO):
        def write(self, data: Any) -> int:
            return super().write(bytes(data[:100]))

        def read(self, size: int | None = -1) -> bytes:
            return super().read(min(100, 100 if size is None else size))

    file, buffer = Sip(), guarded(device, 1000)
    queue.write_file(device.upload(np.frombuffer(DATA, np.uint8)), file, file_offset=3).wait(LIMIT)
    assert file.getvalue() == bytes(3) + DATA
    queue.read_file(file, buffer, file_offset=3).wait(LIMIT)
    assert contents(buffer).tobytes() == DATA


def test_a_file_object_that_takes_no_more_fails_the_write(device: tg.Device, queue: tg.Queue) -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            return 0

    assert isinstance(failure_of(queue.write_file(guarded(device, 8), Full())), tg.ResourceExhaustedError)


def test_a_file_object_that_unpacks_gives_what_it_reads(device: tg.Device, queue: tg.Queue, tmp_path: Path) -> None:
    """Although it has the descriptor of what is packed."""
    packed = tmp_path / "packed.gz"
    with gzip.open(packed, "wb") as file:
        file.write(DATA)
    buffer: Any = guarded(device, 900)
    opened: Any
    with gzip.open(packed, "rb") as opened:
        queue.read_file(opened, buffer, file_offset=100).wait(LIMIT)
    assert contents(buffer).tobytes() == DATA[100:]
    with gzip.open(packed, "wb") as opened:
        queue.write_file(buffer, opened).wait(LIMIT)
    with gzip.open(packed, "rb") as opened:
        assert opened.read() == DATA[100:]


# The end of a device


@pytest.mark.rules("M35")
def test_closing_drains_file_work_that_is_under_way(open_device: Callable[..., tg.Device], tmp_path: Path) -> None:
    device = open_device()
    queue = device.queue()
    source, target, done = Gated(DATA), Gated(), tg.Semaphore()
    buffer, out = guarded(device, 1000), tmp_path / "out.bin"
    read = queue.read_file(source, buffer)
    follower = queue.write_file(buffer, out, wait=read, signal=done.at(1))
    written = queue.write_file(device.upload(np.full(8, 3, np.uint8)), target)
    for file in (source, target):
        file.wait_until_inside()
    with pytest.raises(tg.DeadlineExceededError):
        device.close(timeout=0)
    with pytest.raises(tg.ClosedError):
        queue.barrier()
    for file in (source, target):
        file.let_go.set()
    device.close(timeout=LIMIT)
    tg.wait_all([read, follower, written], LIMIT)
    assert done.value == 1
    assert out.read_bytes() == DATA
    assert target.getvalue() == b"\x03" * 8


@pytest.mark.rules("M35")
def test_what_a_file_object_submits_while_its_device_is_closed_is_refused(
    open_device: Callable[..., tg.Device], tmp_path: Path
) -> None:
    """It is the user's work, although it comes from within ours."""
    device = open_device()
    queue = device.queue()
    refused: list[BaseException] = []
    other, buffer = guarded(device, 8), guarded(device, 1000)

    calls: list[Callable[[], object]] = [
        lambda: queue.fill(other, 1),
        lambda: queue.read_file(io.BytesIO(bytes(8)), other),
        lambda: queue.download(other, np.zeros(16, np.uint8)[::2]),
    ]

    def submit() -> None:
        for call in calls:
            try:
                call()
            except tg.ClosedError as error:
                refused.append(error)

    source, out = Gated(DATA, submit), tmp_path / "out.bin"
    read = queue.read_file(source, buffer, length=1000)
    written = queue.write_file(buffer, out, wait=read)
    source.wait_until_inside()
    with pytest.raises(tg.DeadlineExceededError):
        device.close(timeout=0)
    source.let_go.set()
    device.close(timeout=LIMIT)
    written.wait(LIMIT)
    assert len(refused) == len(calls)
    assert out.read_bytes() == DATA
