"""A chain handed in backwards: the last link first, and the signal that opens it at the very end."""

import tidegate as tg

LINKS = 1_000


def main() -> None:
    timeline = tg.Semaphore(label="chain")
    with tg.open_device("cpu") as device:
        queue = device.queue()
        counter = device.upload(b"\x00" * 4)

        # Each link waits for the one before it. None of those exist yet, and that is fine.
        for link in reversed(range(1, LINKS + 1)):
            queue.update(counter, link.to_bytes(4, "little"), wait=timeline.at(link), signal=timeline.at(link + 1))
        assert timeline.value == 0

        # The host opens the gate; the whole chain follows.
        timeline.signal(1)
        timeline.wait(LINKS + 1, timeout=60)
        last = int.from_bytes(counter.read(timeout=60), "little")
    print(f"{LINKS} links, the last one wrote {last}")
    assert last == LINKS


if __name__ == "__main__":
    main()
