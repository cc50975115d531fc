"""A file through the device, piece by piece, with two buffers: one is read into while the other is worked on."""

import tempfile
from pathlib import Path

import numpy as np

import tidegate as tg

PIECE, PIECES = 64 * 1024, 12


def invert(workgroups, bindings, constants):
    np.invert(bindings[0], out=bindings[0])


def main() -> None:
    content = np.random.default_rng(1).integers(0, 256, PIECE * PIECES, dtype=np.uint8)
    with tempfile.TemporaryDirectory() as folder, tg.open_device("cpu") as device:
        source, target = Path(folder) / "source.bin", Path(folder) / "target.bin"
        source.write_bytes(content.tobytes())
        target.touch()
        function = device.load(invert)["invert"]
        read, work, write = (device.lane(label=name) for name in ("read", "work", "write"))
        buffers = [device.allocate(PIECE) for _ in range(2)]
        filled, inverted, written = (tg.Semaphore(label=name) for name in ("filled", "inverted", "written"))
        for piece in range(PIECES):
            buffer, offset = buffers[piece % 2], piece * PIECE
            # A buffer may be filled again once the piece before last has been written out of it.
            free_again = written.at(piece - 1) if piece >= 2 else None
            read.read_file(
                source, buffer, file_offset=offset, length=PIECE, wait=free_again, signal=filled.at(piece + 1)
            )
            work.dispatch(
                function, (1, 1, 1), bindings=[buffer], wait=filled.at(piece + 1), signal=inverted.at(piece + 1)
            )
            write.write_file(
                buffer, target, file_offset=offset, wait=inverted.at(piece + 1), signal=written.at(piece + 1)
            )
        written.wait(PIECES, timeout=60)
        result = np.frombuffer(target.read_bytes(), dtype=np.uint8)
    print(f"{PIECES} pieces of {PIECE // 1024} KiB through 2 buffers")
    assert np.array_equal(result, ~content)


if __name__ == "__main__":
    main()
