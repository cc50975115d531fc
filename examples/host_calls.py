"""Python functions as operations of a queue: they wait, signal, return results and submit more work."""

import json

import tidegate as tg


def main() -> None:
    with tg.open_device("cpu") as device:
        queue = device.queue()
        parsed = tg.Semaphore(label="parsed")
        raw = device.upload(b'{"values": [3, 1, 2]}')

        # Ordered behind the upload of the data by nothing but its own place: the buffer is ready already.
        parse = queue.host_call(lambda: json.loads(raw.read()), signal=parsed.at(1))

        # Runs when the first has signalled, on another thread of the pool, and reads its result.
        ordered = queue.host_call(lambda: sorted(parse.result()["values"]), wait=parsed.at(1), signal=parsed.at(2))

        # A host call may submit, too, and wait for what it submitted.
        def store() -> bytes:
            target = device.allocate(3)
            queue.update(target, bytes(ordered.result())).wait(timeout=60)
            return target.read()

        stored = queue.host_call(store, wait=parsed.at(2)).result(timeout=60)
    print(f"sorted on the pool: {list(stored)}")
    assert stored == b"\x01\x02\x03"


if __name__ == "__main__":
    main()
