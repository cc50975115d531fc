"""The everyday way: one lane, which does things in the order you say them."""

import numpy as np

import tidegate as tg


def square(workgroups, bindings, constants):
    values = bindings[0].view(np.float32)
    values *= values


def main() -> None:
    numbers = np.arange(1_000, dtype=np.float32)
    with tg.open_device("cpu") as device:
        function = device.load(square)["square"]
        lane = device.lane(label="hello")
        buffer = lane.allocate(numbers.nbytes)
        lane.upload(numbers, buffer)
        lane.dispatch(function, (1, 1, 1), bindings=[buffer])
        download = lane.download(buffer, dtype=np.float32)
        lane.free(buffer)
        # All of the above came back at once. This is the first line that waits.
        squares = download.result(timeout=60)
    print(squares[:5], "...", squares[-1])
    assert np.array_equal(squares, numbers**2)


if __name__ == "__main__":
    main()
