"""What the calls of the native layer cost the host, and how soon the host sees that work is over.

    python tests/drivers/cuda/contract/costs.py --output costs.json

A measurement, not a test. Each call is made 2,000 times in batches of 200 with the stream empty between them, well
below what a stream holds; the median, the least and the greatest mean of a batch are written down in microseconds.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rig import Rig, Session

BATCHES, BATCH = 10, 200
NODES = 1000


def _cost(rig: Rig, stream: int, call: Callable[[], Any], batch: int = BATCH) -> dict[str, float]:
    for _ in range(20):
        call()
    rig.synchronize(stream)
    means = []
    for _ in range(BATCHES):
        begun = time.perf_counter_ns()
        for _ in range(batch):
            call()
        means.append((time.perf_counter_ns() - begun) / batch / 1000)
        rig.synchronize(stream)
    return _summary(means)


def _summary(values: list[float]) -> dict[str, float]:
    return {name: round(of(values), 3) for name, of in (("median", statistics.median), ("least", min), ("most", max))}


def _latency(once: Callable[[int], None]) -> dict[str, float]:
    values = []
    for value in range(1, 2021):
        begun = time.perf_counter_ns()
        once(value)
        values.append((time.perf_counter_ns() - begun) / 1000)
    ordered = sorted(values[20:])
    return {"median": round(statistics.median(ordered), 3), "of a hundred 99": round(ordered[1980], 3)}


def _calls(rig: Rig, stream: int) -> dict[str, Callable[[], Any]]:
    native, event, words, device = rig.native, rig.event(), rig.words(1), rig.memory(8192)
    work, stored, address = rig.call("nothing"), rig.call("store", device, 1), words.at(0)
    over, other, pool = rig.event(), rig.stream(), rig.pool()
    native.record_event(over, other)
    rig.synchronize(other)

    def submit() -> None:
        native.launch(work, stream)
        native.write_value(stream, address, 1)
        native.record_event(event, stream)

    def launch_and_record() -> None:
        native.launch(work, stream)
        native.record_event(event, stream)

    def launch_and_write() -> None:
        native.launch(work, stream)
        native.write_value(stream, address, 1)

    def push_and_pop() -> None:
        native.push_context(rig.context)
        native.pop_context()

    return {
        "launch": lambda: native.launch(work, stream),
        "launch with arguments": lambda: native.launch(stored, stream),
        "launch, record": launch_and_record,
        "launch, write value": launch_and_write,
        "launch, write value, record": submit,
        "write value": lambda: native.write_value(stream, address, 1),
        "record": lambda: native.record_event(event, stream),
        "wait for an event that is over": lambda: native.wait_event(stream, over),
        "query of an event": lambda: native.event_over(over),
        "fill": lambda: native.fill(device, 1, 4, 1024, stream),
        "copy on the device": lambda: native.copy(device, device + 4096, 4096, stream),
        "copy up": lambda: native.copy(device, address, 8, stream),
        "copy down": lambda: native.copy(address, device, 8, stream),
        "allocate, free": lambda: native.free(native.allocate(65536, pool, stream), stream),
        "current context": native.current_context,
        "push, pop": push_and_pop,
        "nothing at all": lambda: None,
    }


def _graphs(rig: Rig, stream: int) -> dict[str, Any]:
    native, graph, words = rig.native, rig.graph(), rig.words(1)
    work, node = rig.call("add", words.at(0), 1), 0
    begun, after = time.perf_counter_ns(), []
    for _ in range(NODES):
        node = native.add_kernel_node(graph, after, work)
        after = [node]
    added = time.perf_counter_ns()
    instance = rig.instance(graph)
    made = time.perf_counter_ns()
    changed = rig.call("add", words.at(0), 2)
    return {
        "add a node": round((added - begun) / NODES / 1000, 3),
        "instantiate, per node": round((made - added) / NODES / 1000, 3),
        "launch of 1000 nodes": _cost(rig, stream, lambda: native.launch_graph(instance, stream), 20),
        "set a kernel node": _cost(rig, stream, lambda: native.set_kernel_node(instance, node, changed)),
        "enable a node": _cost(rig, stream, lambda: native.enable_node(instance, node, True)),
    }


def _latencies(rig: Rig, stream: int) -> dict[str, Any]:
    native, words, event, work = rig.native, rig.words(1), rig.event(), rig.call("nothing")
    cell = memoryview(words._cells).cast("B").cast("Q")

    def by_word(value: int) -> None:
        native.launch(work, stream)
        native.write_value(stream, words.address, value)
        while cell[0] < value:
            pass

    def by_event(_: int) -> None:
        native.launch(work, stream)
        native.record_event(event, stream)
        while not native.event_over(event):
            pass

    def by_synchronising(_: int) -> None:
        native.launch(work, stream)
        native.record_event(event, stream)
        native.synchronize_event(event)

    found = {"until the word is seen": _latency(by_word), "until the event is over": _latency(by_event)}
    return {**found, "until a sleeping wait returns": _latency(by_synchronising)}


def measure(native: Any, compiler: Any) -> dict[str, Any]:
    """Return all figures, in microseconds."""
    with Rig(Session.of(native, compiler)) as rig:
        stream = rig.stream()
        calls = {name: _cost(rig, stream, call) for name, call in _calls(rig, stream).items()}
        return {
            "device": native.device_name(rig.device),
            "driver version": native.driver_version(),
            "python": platform.python_version(),
            "calls": calls,
            "graphs": _graphs(rig, stream),
            "latencies": _latencies(rig, stream),
        }


def main() -> None:
    """Run the command."""
    from tidegate.drivers.cuda._native import Native
    from tidegate.drivers.cuda._nvrtc import Nvrtc

    parser = argparse.ArgumentParser(description="Measure what the calls of the native layer cost.")
    parser.add_argument("--output", type=Path, help="the JSON file to write")
    parser.add_argument("--date", default="", help="the date to write into it")
    parser.add_argument("--release-gil", action="store_true", help="give the GIL away in every call")
    options = parser.parse_args()
    found = {"date": options.date, **measure(Native(release_gil=options.release_gil), Nvrtc())}
    text = json.dumps(found, indent=1) + "\n"
    print(text)
    if options.output is not None:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
