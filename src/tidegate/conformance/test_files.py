"""Files as sources and targets of queue operations."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tidegate as tg

from .buffers import GUARD, contents, guarded
from .latches import LIMIT
from .witnesses import failure_of

pytestmark = [pytest.mark.rules("M14", "M16", "M27"), pytest.mark.needs("work")]


def numbered(nbytes: int) -> bytes:
    return np.random.default_rng(5).integers(0, 256, nbytes, np.uint8).tobytes()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file of 1,000 bytes."""
    made = tmp_path / "thousand.bin"
    made.write_bytes(numbered(1000))
    return made


@pytest.fixture
def few_descriptors() -> Iterator[int]:
    """This process may open some fifty files more; the number is of those it may have in all."""
    resource = pytest.importorskip("resource", reason="this system has no limit on open files")
    free = os.open(os.devnull, os.O_RDONLY)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(free + 50, soft)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    yield most
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def refuse(queue: tg.Queue, kind: type[BaseException], call: Callable[[tg.Timepoint], object]) -> None:
    """The call is refused: nothing was submitted, so its signal has not moved and can still be claimed."""
    semaphore = tg.Semaphore()
    with pytest.raises(kind):
        call(semaphore.at(1))
    assert semaphore.value == 0
    assert semaphore.failure is None
    queue.barrier(signal=semaphore.at(1)).wait(LIMIT)


def assert_out_of_range(submission: tg.Submission, done: tg.Semaphore) -> None:
    failure = failure_of(submission)
    assert isinstance(failure, tg.OutOfRangeError)
    with pytest.raises(tg.SemaphoreFailedError):
        done.wait(1, LIMIT)
    assert done.failure is failure


# Reading


def test_a_whole_file_is_read_by_path(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    for file in (path, str(path)):
        buffer = guarded(device, 1004)
        queue.read_file(file, buffer, offset=2).wait(LIMIT)
        assert buffer.read(timeout=LIMIT) == bytes([GUARD] * 2) + path.read_bytes() + bytes([GUARD] * 2)


def test_a_whole_file_is_read_from_a_file_object(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    buffer = guarded(device, 1000)
    with path.open("rb") as file:
        queue.read_file(file, buffer).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == path.read_bytes()


def test_ranges_of_a_file_land_where_they_belong(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    data = path.read_bytes()
    for file_offset, offset, length in ((0, 0, 0), (1, 0, 1), (7, 13, 100), (999, 3, 1), (1000, 5, 0), (500, 0, 500)):
        buffer = guarded(device, 600)
        queue.read_file(path, buffer, file_offset=file_offset, offset=offset, length=length).wait(LIMIT)
        expected = bytearray([GUARD] * 600)
        expected[offset : offset + length] = data[file_offset : file_offset + length]
        assert buffer.read(timeout=LIMIT) == bytes(expected), (file_offset, offset, length)


def test_a_read_without_a_length_takes_the_rest_of_the_file(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    buffer = guarded(device, 200)
    queue.read_file(path, buffer, file_offset=900).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == path.read_bytes()[900:] + bytes([GUARD] * 100)


def test_a_large_file_is_read_exactly(device: tg.Device, queue: tg.Queue, tmp_path: Path) -> None:
    data = numbered(3 * 2**20 + 7)
    large = tmp_path / "large.bin"
    large.write_bytes(data)
    buffer = device.allocate(len(data))
    queue.read_file(large, buffer).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == data


def test_an_empty_file_is_legal(device: tg.Device, queue: tg.Queue, tmp_path: Path) -> None:
    empty = tmp_path / "empty.bin"
    empty.touch()
    buffer = guarded(device, 8)
    queue.read_file(empty, buffer).wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == bytes([GUARD] * 8)


def test_reading_a_missing_file_is_refused_at_the_call(device: tg.Device, queue: tg.Queue, tmp_path: Path) -> None:
    buffer = guarded(device, 8)
    refuse(queue, FileNotFoundError, lambda point: queue.read_file(tmp_path / "absent", buffer, signal=point))
    assert buffer.read(timeout=LIMIT) == bytes([GUARD] * 8)


def test_a_range_larger_than_the_target_is_refused_at_the_call(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    buffer = guarded(device, 999)
    refuse(queue, tg.OutOfRangeError, lambda point: queue.read_file(path, buffer, length=1000, signal=point))
    refuse(queue, tg.OutOfRangeError, lambda point: queue.read_file(path, buffer, offset=1000, length=0, signal=point))
    assert buffer.read(timeout=LIMIT) == bytes([GUARD] * 999)


def test_the_rest_of_a_file_that_does_not_fit_the_target_fails_the_read(
    device: tg.Device, queue: tg.Queue, path: Path
) -> None:
    buffer, done = guarded(device, 999), tg.Semaphore()
    assert_out_of_range(queue.read_file(path, buffer, signal=done.at(1)), done)
    queue.read_file(path, buffer, file_offset=1).wait(LIMIT)


@pytest.mark.parametrize(("file_offset", "length"), [(0, 1001), (1000, 1), (2000, 1), (990, 20)])
def test_a_file_too_short_for_the_range_fails_the_read(
    device: tg.Device, queue: tg.Queue, path: Path, file_offset: int, length: int
) -> None:
    """Not at the call: work before it may still make the file longer, or shorter."""
    buffer, done = guarded(device, 2000), tg.Semaphore()
    assert_out_of_range(queue.read_file(path, buffer, file_offset=file_offset, length=length, signal=done.at(1)), done)
    queue.barrier().wait(LIMIT)


def test_a_file_that_became_too_short_while_the_read_was_held_fails_it(
    device: tg.Device, queue: tg.Queue, path: Path
) -> None:
    buffer = guarded(device, 1000)
    gate, done = tg.Semaphore(), tg.Semaphore()
    read = queue.read_file(path, buffer, length=1000, wait=gate.at(1), signal=done.at(1))
    os.truncate(path, 10)
    gate.signal(1)
    assert_out_of_range(read, done)


def test_a_file_made_longer_by_work_before_it_is_long_enough(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    gate = tg.Semaphore()
    buffer = guarded(device, 1500)
    written = queue.write_file(device.upload(np.full(500, 1, np.uint8)), path, file_offset=1000, wait=gate.at(1))
    read = queue.read_file(path, buffer, length=1500, wait=written)
    gate.signal(1)
    read.wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == numbered(1000) + b"\x01" * 500


def test_a_file_opened_for_the_wrong_direction_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, path: Path
) -> None:
    buffer = guarded(device, 1000)
    with path.open("ab") as write_only:
        refuse(queue, tg.InvalidArgumentError, lambda point: queue.read_file(write_only, buffer, signal=point))
    with path.open("rb") as read_only:
        refuse(queue, tg.InvalidArgumentError, lambda point: queue.write_file(buffer, read_only, signal=point))
    assert path.read_bytes() == numbered(1000)
    assert buffer.read(timeout=LIMIT) == bytes([GUARD] * 1000)


@pytest.mark.parametrize("file", [17.5, object(), None, ["a"]], ids=["float", "object", "None", "list"])
def test_what_is_no_file_is_a_type_error(device: tg.Device, queue: tg.Queue, file: object) -> None:
    buffer = guarded(device, 8)
    refuse(queue, TypeError, lambda point: queue.read_file(file, buffer, signal=point))  # type: ignore[arg-type]
    refuse(queue, TypeError, lambda point: queue.write_file(buffer, file, signal=point))  # type: ignore[arg-type]


@pytest.mark.parametrize("option", ["file_offset", "offset", "length"])
def test_negative_ranges_of_files_are_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, path: Path, option: str
) -> None:
    buffer = guarded(device, 2000)
    negative: dict[str, Any] = {option: -1}
    semaphore = tg.Semaphore()
    with pytest.raises((tg.OutOfRangeError, tg.InvalidArgumentError)):
        queue.read_file(path, buffer, **negative, signal=semaphore.at(1))
    with pytest.raises((tg.OutOfRangeError, tg.InvalidArgumentError)):
        queue.write_file(buffer, path, **negative, signal=semaphore.at(1))
    queue.barrier(signal=semaphore.at(1)).wait(LIMIT)
    assert path.read_bytes() == numbered(1000)


# Writing


def test_a_whole_buffer_is_written_to_a_new_file(device: tg.Device, queue: tg.Queue, tmp_path: Path) -> None:
    data = numbered(5000)
    new = tmp_path / "new.bin"
    queue.write_file(device.upload(np.frombuffer(data, np.uint8)), new).wait(LIMIT)
    assert new.read_bytes() == data


def test_a_written_range_leaves_the_rest_of_the_file_alone(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    before = path.read_bytes()
    data = numbered(300)
    buffer = device.upload(np.frombuffer(data, np.uint8))
    queue.write_file(buffer, path, offset=10, file_offset=200, length=77).wait(LIMIT)
    assert path.read_bytes() == before[:200] + data[10:87] + before[277:]
    with path.open("r+b") as file:
        queue.write_file(buffer, file, offset=299, file_offset=0).wait(LIMIT)
    assert path.read_bytes()[:1] == data[299:]
    assert path.read_bytes()[1:200] == before[1:200]


def test_writing_past_the_end_of_a_file_makes_it_longer(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    before = path.read_bytes()
    buffer = device.upload(np.full(100, 1, np.uint8))
    queue.write_file(buffer, path, file_offset=950).wait(LIMIT)
    assert path.read_bytes() == before[:950] + b"\x01" * 100


def test_a_written_range_past_the_end_of_the_buffer_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, path: Path
) -> None:
    buffer = guarded(device, 64)
    refuse(queue, tg.OutOfRangeError, lambda point: queue.write_file(buffer, path, length=65, signal=point))
    refuse(queue, tg.OutOfRangeError, lambda point: queue.write_file(buffer, path, offset=65, signal=point))
    assert path.read_bytes() == numbered(1000)


def test_writing_into_a_missing_folder_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, tmp_path: Path
) -> None:
    buffer = guarded(device, 64)
    nowhere = tmp_path / "missing" / "file.bin"
    refuse(queue, FileNotFoundError, lambda point: queue.write_file(buffer, nowhere, signal=point))


def test_writing_to_a_new_path_makes_the_file_when_the_work_runs(
    device: tg.Device, queue: tg.Queue, tmp_path: Path
) -> None:
    new, gate = tmp_path / "new.bin", tg.Semaphore()
    held = queue.write_file(device.upload(np.full(4, 3, np.uint8)), new, wait=gate.at(1))
    assert not new.exists()
    gate.signal(1)
    held.wait(LIMIT)
    assert new.read_bytes() == b"\x03" * 4


@pytest.mark.rules("M16", "M17", "M21")
def test_a_write_that_is_refused_cancelled_or_fails_before_it_runs_makes_no_file(
    device: tg.Device, queue: tg.Queue, tmp_path: Path
) -> None:
    new, buffer, gate = tmp_path / "new.bin", guarded(device, 64), tg.Semaphore()
    refuse(queue, tg.OutOfRangeError, lambda point: queue.write_file(buffer, new, length=65, signal=point))
    refuse(queue, tg.OutOfRangeError, lambda point: queue.write_file(buffer, new, file_offset=-1, signal=point))
    nonsense: Any = "later"
    refuse(queue, TypeError, lambda point: queue.write_file(buffer, new, wait=nonsense, signal=point))
    assert queue.write_file(buffer, new, wait=gate.at(1)).cancel()
    failed = queue.write_file(buffer, new, wait=gate.at(2))
    gate.fail(ValueError("no"))
    failure_of(failed)
    assert not new.exists()


def test_a_folder_is_refused_at_the_call(device: tg.Device, queue: tg.Queue, tmp_path: Path) -> None:
    buffer = guarded(device, 8)
    for folder in (tmp_path, f"{tmp_path}/"):
        refuse(queue, IsADirectoryError, lambda point: queue.read_file(folder, buffer, signal=point))
        refuse(queue, IsADirectoryError, lambda point: queue.write_file(buffer, folder, signal=point))


def test_a_path_below_a_file_is_refused_at_the_call(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    buffer = guarded(device, 8)
    refuse(queue, NotADirectoryError, lambda point: queue.read_file(path / "below", buffer, signal=point))
    refuse(queue, NotADirectoryError, lambda point: queue.write_file(buffer, path / "below", signal=point))


@pytest.mark.parametrize("nothing", ["", b"", "a\0b", "\ud800"], ids=["empty", "no bytes", "zero", "half a letter"])
def test_what_can_be_no_path_is_refused_at_the_call(device: tg.Device, queue: tg.Queue, nothing: Any) -> None:
    buffer = guarded(device, 8)
    kind = (FileNotFoundError, tg.InvalidArgumentError)
    with pytest.raises(kind):
        queue.read_file(nothing, buffer)
    with pytest.raises(kind):
        queue.write_file(buffer, nothing)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_refused_at_the_call_and_blocks_nobody(device: tg.Device, queue: tg.Queue, tmp_path: Path) -> None:
    buffer, pipe = guarded(device, 8), tmp_path / "pipe"
    os.mkfifo(pipe)
    refuse(queue, tg.InvalidArgumentError, lambda point: queue.read_file(pipe, buffer, length=8, signal=point))
    refuse(queue, tg.InvalidArgumentError, lambda point: queue.write_file(buffer, pipe, signal=point))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="this user may do everything")
def test_a_file_without_the_right_is_refused_at_the_call(
    device: tg.Device, queue: tg.Queue, path: Path, tmp_path: Path
) -> None:
    buffer = guarded(device, 1000)
    path.chmod(0o200)
    refuse(queue, PermissionError, lambda point: queue.read_file(path, buffer, signal=point))
    queue.write_file(device.upload(np.zeros(1, np.uint8)), path).wait(LIMIT)
    path.chmod(0o400)
    refuse(queue, PermissionError, lambda point: queue.write_file(buffer, path, signal=point))
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o500)
    refuse(queue, PermissionError, lambda point: queue.write_file(buffer, closed / "new", signal=point))


@pytest.mark.rules("M5")
def test_a_file_may_be_read_behind_the_held_write_that_makes_it(
    device: tg.Device, queue: tg.Queue, tmp_path: Path
) -> None:
    new, gate, buffer = tmp_path / "new.bin", tg.Semaphore(), guarded(device, 4)
    refuse(queue, FileNotFoundError, lambda point: queue.read_file(new, buffer, signal=point))
    written = queue.write_file(device.upload(np.full(4, 3, np.uint8)), new, wait=gate.at(1))
    read = queue.read_file(new, buffer, wait=written)
    gate.signal(1)
    read.wait(LIMIT)
    assert contents(buffer).tolist() == [3] * 4


@pytest.mark.rules("M14", "M16")
@pytest.mark.parametrize("spelling", [b"new.bin", "./new.bin", "../{folder}/new.bin", "link/new.bin"], ids=str)
def test_the_file_that_a_held_write_makes_may_be_spelled_in_another_way(
    device: tg.Device, queue: tg.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spelling: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("link").symlink_to(tmp_path, target_is_directory=True)
    if isinstance(spelling, str):
        spelling = spelling.format(folder=tmp_path.name)
    gate, written = tg.Semaphore(), tg.Semaphore()
    source, target = device.upload(np.frombuffer(b"abcd", np.uint8)), device.allocate(4)
    queue.write_file(source, tmp_path / "new.bin", wait=gate.at(1), signal=written.at(1))
    read = queue.read_file(spelling, target, wait=written.at(1))
    with pytest.raises(FileNotFoundError):
        queue.read_file("other.bin", target)
    gate.signal(1)
    read.wait(LIMIT)
    assert target.read(timeout=LIMIT) == b"abcd"


def test_a_cancelled_write_makes_its_path_no_file_to_read(device: tg.Device, queue: tg.Queue, tmp_path: Path) -> None:
    new, gate, buffer = tmp_path / "new.bin", tg.Semaphore(), guarded(device, 4)
    written = queue.write_file(buffer, new, wait=gate.at(1))
    read = queue.read_file(new, buffer, wait=written)
    assert written.cancel()
    assert isinstance(failure_of(read), tg.AbortedError)
    refuse(queue, FileNotFoundError, lambda point: queue.read_file(new, buffer, signal=point))


def test_a_file_that_is_gone_when_its_read_runs_fails_it(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    gate = tg.Semaphore()
    read = queue.read_file(path, guarded(device, 1000), wait=gate.at(1))
    path.unlink()
    gate.signal(1)
    assert isinstance(failure_of(read), FileNotFoundError)


def test_a_relative_path_means_what_it_meant_at_the_call(
    device: tg.Device, queue: tg.Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, value in ((here, 1), (there, 2)):
        folder.mkdir()
        (folder / "f").write_bytes(bytes([value] * 4))
    monkeypatch.chdir(here)
    gate, buffer = tg.Semaphore(), guarded(device, 4)
    held = [
        queue.read_file("f", buffer, wait=gate.at(1)),
        queue.write_file(device.upload(np.full(4, 3, np.uint8)), b"new", wait=gate.at(1)),  # type: ignore[arg-type]
    ]
    monkeypatch.chdir(there)
    gate.signal(1)
    tg.wait_all(held, LIMIT)
    assert contents(buffer).tolist() == [1] * 4
    assert (here / "new").read_bytes() == b"\x03" * 4
    assert not (there / "new").exists()


# Order


def test_files_are_read_and_written_in_the_order_the_waits_give(
    device: tg.Device, queue: tg.Queue, second_queue: tg.Queue, path: Path
) -> None:
    """Submitted backwards: what is read last was written by the steps before it."""
    timeline = tg.Semaphore()
    first, second = guarded(device, 1000), guarded(device, 1000)
    submissions = [
        queue.read_file(path, second, wait=timeline.at(4), signal=timeline.at(5)),
        second_queue.write_file(first, path, offset=500, length=250, wait=timeline.at(3), signal=timeline.at(4)),
        queue.fill(first, 9, offset=500, length=250, wait=timeline.at(2), signal=timeline.at(3)),
        second_queue.read_file(path, first, wait=timeline.at(1), signal=timeline.at(2)),
    ]
    timeline.signal(1)
    tg.wait_all(submissions, LIMIT)
    original = numbered(1000)
    assert first.read(timeout=LIMIT) == original[:500] + b"\x09" * 250 + original[750:]
    assert second.read(timeout=LIMIT) == b"\x09" * 250 + original[250:]


def test_a_file_is_not_touched_before_the_wait_is_met(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    gate = tg.Semaphore()
    buffer = device.upload(np.full(10, 1, np.uint8))
    written = queue.write_file(buffer, path, wait=gate.at(1))
    queue.barrier().wait(LIMIT)
    assert path.read_bytes() == numbered(1000)
    gate.signal(1)
    written.wait(LIMIT)
    assert path.read_bytes() == b"\x01" * 10 + numbered(1000)[10:]


@pytest.mark.rules("M17", "M27")
def test_a_failed_wait_leaves_the_file_alone(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    gate = tg.Semaphore()
    written = queue.write_file(guarded(device, 10), path, wait=gate.at(1))
    gate.fail(ValueError("no"))
    with pytest.raises(tg.SemaphoreFailedError):
        written.wait(LIMIT)
    assert path.read_bytes() == numbered(1000)


@pytest.mark.rules("M18")
def test_a_file_object_closed_by_the_caller_while_the_work_is_held_still_serves(
    device: tg.Device, queue: tg.Queue, path: Path
) -> None:
    gate = tg.Semaphore()
    buffer = guarded(device, 1000)
    with path.open("rb") as file:
        read = queue.read_file(file, buffer, wait=gate.at(1))
    with path.open("r+b") as file:
        written = queue.write_file(device.upload(np.full(4, 2, np.uint8)), file, wait=read)
    gate.signal(1)
    written.wait(LIMIT)
    assert buffer.read(timeout=LIMIT) == numbered(1000)
    assert path.read_bytes() == b"\x02" * 4 + numbered(1000)[4:]


@pytest.mark.rules("M26", "M27")
def test_a_host_read_follows_a_held_file_read(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    gate = tg.Semaphore()
    buffer = guarded(device, 1000)
    queue.read_file(path, buffer, wait=gate.at(1))
    with pytest.raises(tg.DeadlineExceededError):
        buffer.read(timeout=0)
    gate.signal(1)
    assert buffer.read(timeout=LIMIT) == numbered(1000)


@pytest.mark.rules("M18")
def test_no_file_stays_open_after_the_work(device: tg.Device, queue: tg.Queue, path: Path) -> None:
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        pytest.skip("this system does not list open files")
    buffer = guarded(device, 1000)
    queue.read_file(path, buffer).wait(LIMIT)
    before = len(list(descriptors.iterdir()))
    for _ in range(50):
        read = queue.read_file(path, buffer)
        queue.write_file(buffer, path, wait=read).wait(LIMIT)
        gate = tg.Semaphore()
        assert queue.read_file(path, buffer, wait=gate.at(1)).cancel()
    queue.barrier().wait(LIMIT)
    assert len(list(descriptors.iterdir())) <= before + 2


@pytest.mark.slow
@pytest.mark.rules("M14", "M20")
def test_held_work_on_paths_keeps_no_file_open(
    device: tg.Device, queue: tg.Queue, path: Path, few_descriptors: int
) -> None:
    """More of it than files may be open, and more of it runs in the end."""
    gate, buffer = tg.Semaphore(), guarded(device, 1000)
    reads = [queue.read_file(path, buffer, wait=gate.at(1)) for _ in range(few_descriptors)]
    writes = [queue.write_file(buffer, path, wait=gate.at(1)) for _ in range(few_descriptors)]
    gate.signal(1)
    tg.wait_all([*reads, *writes], LIMIT)


@pytest.mark.rules("M18")
def test_a_buffer_closed_while_file_work_on_it_is_held_still_serves(
    device: tg.Device, queue: tg.Queue, path: Path, tmp_path: Path
) -> None:
    gate, copied = tg.Semaphore(), guarded(device, 1000)
    source, target = device.upload(np.full(8, 3, np.uint8)), guarded(device, 1000)
    written = queue.write_file(source, tmp_path / "new.bin", wait=gate.at(1))
    read = queue.read_file(path, target, wait=gate.at(1))
    follower = queue.copy(target, copied, wait=read)
    source.close()
    target.close()
    gate.signal(1)
    tg.wait_all([written, follower], LIMIT)
    assert (tmp_path / "new.bin").read_bytes() == b"\x03" * 8
    assert contents(copied).tobytes() == numbered(1000)


@pytest.mark.rules("M26")
def test_the_end_of_a_file_read_is_no_write_that_comes_after_those_submitted_behind_it(
    device: tg.Device, queue: tg.Queue, path: Path
) -> None:
    gate, buffer = tg.Semaphore(), guarded(device, 1000)
    view = buffer.view(np.uint8)
    read = queue.read_file(path, buffer)
    filled = queue.fill(buffer, 9, wait=[read, gate.at(1)])
    read.wait(LIMIT)
    assert view.ready is filled
    gate.signal(1)
    assert set(contents(buffer).tolist()) == {9}
