"""What streams do to words: writing them, and waiting for them."""

from __future__ import annotations

import ctypes

from registry import fact
from rig import EVERYTHING, LIMIT, Rig, code, soon

COUNT = 4096


@fact()
def fact_write_value_is_a_plain_store(rig: Rig) -> list[int]:
    """Does a write lower a word?"""
    stream, words, found = rig.stream(), rig.words(1), []
    words[0] = 10
    for value in (5, EVERYTHING, 0):
        rig.native.write_value(stream, words.at(0), value)
        rig.synchronize(stream)
        found.append(words[0])
    return found


@fact()
def fact_write_value_comes_after_the_kernel(rig: Rig) -> dict[str, bool]:
    """Is a word written before the kernel in front of the write is over?"""
    stream, words = rig.stream(), rig.words(1)
    latch = rig.latch().run(stream)
    rig.native.write_value(stream, words.at(0), 1)
    early = soon(lambda: words[0] == 1)
    latch.open()
    return {"early": early, "afterwards": soon(lambda: words[0] == 1, LIMIT)}


@fact()
def fact_writes_come_in_order(rig: Rig) -> dict[str, object]:
    """Does the host ever see an earlier write of a stream after a later one?"""
    stream, words, fell, last = rig.stream(), rig.words(1), 0, 0
    for value in range(1, 301):
        rig.native.write_value(stream, words.at(0), value)
    while not rig.native.stream_idle(stream):
        seen = words[0]
        fell += seen < last
        last = seen
    return {"fell": fell, "last": words[0]}


@fact()
def fact_stores_are_seen_once_the_word_is(rig: Rig) -> int:
    """How often of a hundred times are a kernel's stores not all seen once the word written behind it is?"""
    stream, words, missed = rig.stream(), rig.words(1), 0
    address = rig.pinned(4 * COUNT)
    cells = (ctypes.c_uint32 * COUNT).from_address(address)
    for value in range(1, 101):
        rig.launch(stream, "store_all", address, value, COUNT, grid=(COUNT // 256, 1, 1), block=(256, 1, 1))
        rig.native.write_value(stream, words.at(0), value)
        soon(lambda value=value: words[0] == value, LIMIT)
        missed += any(cell != value for cell in cells)
    return missed


@fact()
def fact_copies_are_seen_once_the_word_is(rig: Rig) -> int:
    """How often of a hundred times is a download not seen once the word written behind it is?"""
    stream, words, device, missed = rig.stream(), rig.words(2), rig.memory(64), 0
    for value in range(1, 101):
        rig.launch(stream, "store", device, value)
        rig.native.copy(words.at(1), device, 8, stream)
        rig.native.write_value(stream, words.at(0), value)
        soon(lambda value=value: words[0] == value, LIMIT)
        missed += words[1] != value
    return missed


@fact()
def fact_stores_of_a_graph_are_seen_once_the_word_is(rig: Rig) -> int:
    """How often of a hundred times is a store of a graph's kernel not seen once the word written behind it is?"""
    stream, words, graph, missed = rig.stream(), rig.words(2), rig.graph(), 0
    rig.native.add_kernel_node(graph, [], rig.call("add", words.at(1), 1))
    instance = rig.instance(graph)
    for value in range(1, 101):
        rig.native.launch_graph(instance, stream)
        rig.native.write_value(stream, words.at(0), value)
        soon(lambda value=value: words[0] == value, LIMIT)
        missed += words[1] != value
    return missed


@fact()
def fact_word_is_seen_once_the_event_behind_it_is(rig: Rig) -> int:
    """How often of a hundred times is a word not seen when the event recorded behind its write is over?"""
    stream, words, event, missed = rig.stream(), rig.words(1), rig.event(), 0
    for value in range(1, 101):
        rig.native.write_value(stream, words.at(0), value)
        rig.native.record_event(event, stream)
        soon(lambda: rig.native.event_over(event), LIMIT)
        missed += words[0] != value
    return missed


@fact()
def fact_write_value_to_memory_of_the_device(rig: Rig) -> dict[str, object]:
    """Can a stream write words of the device?"""
    stream, device = rig.stream(), rig.memory(64)
    rig.native.fill(device, 0, 1, 64, stream)
    said = code(lambda: rig.native.write_value(stream, device, 77))
    again = code(lambda: rig.native.write_value(stream, device + 8, 78))
    rig.synchronize(stream)
    return {"codes": [said, again], "words": list(memoryview(rig.read(device, 16)).cast("Q"))}


@fact(alone=True)
def fact_write_value_to_an_odd_address(rig: Rig) -> int:
    """What does a write to an address return that is no multiple of eight?"""
    stream, words = rig.stream(), rig.words(2)
    return code(lambda: rig.native.write_value(stream, words.at(0) + 4, 1))


@fact(alone=True)
def fact_write_value_to_null(rig: Rig) -> int:
    """What does a write to address zero return?"""
    stream = rig.stream()
    return code(lambda: rig.native.write_value(stream, 0, 1))


@fact(alone=True)
def fact_write_value_to_ordinary_memory(rig: Rig) -> int:
    """What does a write to host memory return that is not page-locked?"""
    stream, word = rig.stream(), (ctypes.c_uint64 * 2)()
    return code(lambda: rig.native.write_value(stream, ctypes.addressof(word), 1))


def _passes(rig: Rig, found: int, wanted: int) -> bool:
    stream, word, seen = rig.stream(), rig.words(1), rig.words(1)
    word[0] = found
    rig.native.wait_value(stream, word.at(0), wanted)
    rig.native.write_value(stream, seen.at(0), 1)
    passed = soon(lambda: seen[0] == 1)
    word[0] = wanted
    rig.synchronize(stream)
    return passed


@fact()
def fact_wait_value_compares_cyclically(rig: Rig) -> dict[str, bool]:
    """Which words let a wait pass?"""
    half = 1 << 63
    return {
        "5 for 5": _passes(rig, 5, 5),
        "6 for 5": _passes(rig, 6, 5),
        "4 for 5": _passes(rig, 4, 5),
        "0 for the greatest": _passes(rig, 0, EVERYTHING),
        "half and 4 for 5": _passes(rig, half + 4, 5),
        "half and 5 for 5": _passes(rig, half + 5, 5),
    }


@fact()
def fact_wait_value_sees_the_host(rig: Rig) -> dict[str, bool]:
    """Does a stream that waits for a word go on when the host stores it?"""
    stream, seen, park = rig.stream(), rig.words(1), rig.park()
    park.run(stream)
    rig.native.write_value(stream, seen.at(0), 1)
    early = soon(lambda: seen[0] == 1)
    park.open()
    return {"early": early, "afterwards": soon(lambda: seen[0] == 1, LIMIT)}


@fact()
def fact_wait_value_sees_another_stream(rig: Rig) -> dict[str, bool]:
    """Does a stream that waits for a word go on when another stream writes it?"""
    stream, other, seen, park = rig.stream(), rig.stream(), rig.words(1), rig.park()
    park.run(stream)
    rig.native.write_value(stream, seen.at(0), 1)
    early = soon(lambda: seen[0] == 1)
    rig.native.write_value(other, park.words.at(0), 1)
    return {"early": early, "afterwards": soon(lambda: seen[0] == 1, LIMIT)}


@fact()
def fact_wait_value_sees_a_kernel(rig: Rig) -> bool:
    """Does a stream that waits for a word go on when a kernel stores it?"""
    stream, other, seen, park = rig.stream(), rig.stream(), rig.words(1), rig.park()
    park.run(stream)
    rig.native.write_value(stream, seen.at(0), 1)
    rig.launch(other, "store", park.words.at(0), 1)
    return soon(lambda: seen[0] == 1, LIMIT)


@fact()
def fact_a_word_crosses_streams_by_an_event(rig: Rig) -> list[int]:
    """Does a stream that waits for an event see what was written before it?"""
    first, second, event, words = rig.stream(), rig.stream(), rig.event(), rig.words(2)
    latch = rig.latch().run(first)
    rig.native.write_value(first, words.at(0), 6)
    rig.native.record_event(event, first)
    rig.native.wait_event(second, event)
    rig.native.copy(words.at(1), words.at(0), 8, second)
    latch.open()
    rig.synchronize(second)
    return words.list()
