"""Two devices share one semaphore: it belongs to neither, and each may wait for what the other signals."""

import numpy as np

import tidegate as tg

ROUNDS = 10


def increment(workgroups, bindings, constants):
    bindings[0].view(np.int64)[0] += 1


def main() -> None:
    turns = tg.Semaphore(label="turns")
    with tg.open_device("cpu?workers=1", label="left") as left, tg.open_device("cpu?workers=1", label="right") as right:
        counters = {device: device.upload(np.zeros(1, dtype=np.int64)) for device in (left, right)}
        functions = {device: device.load(increment)["increment"] for device in (left, right)}
        for turn in range(ROUNDS):
            device = (left, right)[turn % 2]
            device.queue().dispatch(
                functions[device],
                (1, 1, 1),
                bindings=[counters[device]],
                wait=turns.at(turn),
                signal=turns.at(turn + 1),
            )
        turns.wait(ROUNDS, timeout=60)
        counts = [int(counters[device].to_numpy(np.int64)[0]) for device in (left, right)]
    print(f"left counted {counts[0]}, right counted {counts[1]}")
    assert counts == [ROUNDS // 2, ROUNDS // 2]


if __name__ == "__main__":
    main()
