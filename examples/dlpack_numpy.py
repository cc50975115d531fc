"""Arrays in and out without a copy, by DLPack."""

import numpy as np

import tidegate as tg


def halve(workgroups, bindings, constants):
    values = bindings[0].view(np.float64)
    values /= 2


def main() -> None:
    with tg.open_device("cpu") as device:
        function = device.load(halve)["halve"]

        # In: the device works on NumPy's own memory.
        mine = np.arange(12, dtype=np.float64).reshape(3, 4)
        view = tg.from_dlpack(mine, device=device)
        assert view.shape == (3, 4)
        device.queue().dispatch(function, (1, 1, 1), bindings=[view.buffer]).wait(timeout=60)
        assert np.array_equal(mine, np.arange(12).reshape(3, 4) / 2)

        # Out: NumPy looks into the memory of the device. The export waits for the last write by itself.
        buffer = device.upload(np.arange(6, dtype=np.float64))
        device.queue().dispatch(function, (1, 1, 1), bindings=[buffer])
        array = np.from_dlpack(buffer.view(np.float64, (2, 3)))
        assert np.array_equal(array, np.arange(6).reshape(2, 3) / 2)
    print(f"in: {mine.shape} {mine.dtype}, out: {array.shape} {array.dtype}, no copies")
    assert array.sum() == 7.5


if __name__ == "__main__":
    main()
