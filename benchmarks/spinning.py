"""How long a spinning thread should work without the GIL before it looks again.

Two threads hand a value back and forth. A waiter spins: it computes a checksum (a *breath*, which CPython does without
the GIL) and looks. What decides is how long the other side holds the GIL between its signal and its own first breath,
the *preamble*: if that is longer than a breath, the spinning thread finds the GIL taken, and the interpreter puts it
to sleep, which is what the spin was to avoid.

It wants a core for each thread. Where other processes take them, the partner does not run while this one spins: every
spin fails, whatever its length, and not spinning (the line of breath 0) is best. That is why a spin that failed has to
make the next one shorter. Run it: python benchmarks/spinning.py
"""

from __future__ import annotations

import statistics
import threading
from _thread import allocate_lock
from time import perf_counter_ns
from zlib import crc32

LOOKS = 64
TRIPS = 1000


class Spinning:
    def __init__(self, breath: int, preamble_ns: int) -> None:
        self.value = 0
        self.gate = None
        self.breath = bytes(breath)
        self.preamble = preamble_ns

    def signal(self, value: int) -> None:
        self.value = value
        gate, self.gate = self.gate, None
        if gate is not None:
            gate.release()

    def wait(self, value: int) -> None:
        end = perf_counter_ns() + self.preamble
        while perf_counter_ns() < end:
            pass
        breath = self.breath
        for _ in range(LOOKS if breath else 0):
            crc32(breath)
            if self.value >= value:
                return
        gate = allocate_lock()
        gate.acquire()
        self.gate = gate
        if self.value >= value:
            self.gate = None
        else:
            gate.acquire()


def play(breath: int, preamble_ns: int) -> list[float]:
    ping, pong = Spinning(breath, preamble_ns), Spinning(breath, preamble_ns)

    def partner() -> None:
        for value in range(1, TRIPS + 1):
            ping.wait(value)
            pong.signal(value)

    thread = threading.Thread(target=partner)
    thread.start()
    samples = []
    for value in range(1, TRIPS + 1):
        start = perf_counter_ns()
        ping.signal(value)
        pong.wait(value)
        samples.append((perf_counter_ns() - start) / 1e3)
    thread.join()
    return samples[TRIPS // 10 :]


def main() -> None:
    preambles = (0, 500, 1000, 2000, 3000, 4000)
    print("round trip, p50 in us; across: nanoseconds of Python before the first breath")
    print(f"{'breath':>8} " + "".join(f"{preamble:>8}" for preamble in preambles))
    for breath in (0, 4096, 8192, 16384, 32768):
        cells = [statistics.median(play(breath, preamble)) for preamble in preambles]
        print(f"{breath:>8} " + "".join(f"{cell:>8.1f}" for cell in cells))


if __name__ == "__main__":
    main()
