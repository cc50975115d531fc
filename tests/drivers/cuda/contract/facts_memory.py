"""Host memory, fills and copies."""

from __future__ import annotations

import ctypes
import mmap
import tempfile
from typing import Any

import numpy as np
from registry import fact
from rig import LIMIT, MIB, Rig, code


def _ordinary(nbytes: int) -> tuple[Any, int]:
    """Return an array and a page-aligned address in it with room for `nbytes`."""
    array = np.zeros(nbytes + 8192, np.uint8)
    return array, (array.ctypes.data + 4095) // 4096 * 4096


@fact()
def fact_page_locked_memory_has_one_address(rig: Rig) -> int:
    """Does a kernel reach page-locked memory at the host's address?"""
    stream, words = rig.stream(), rig.words(1)
    rig.launch(stream, "store", words.at(0), 3)
    rig.synchronize(stream)
    return words[0]


@fact()
def fact_a_kernel_sees_what_the_host_stored(rig: Rig) -> int:
    """Does a kernel see what the host stored in page-locked memory just before the launch?"""
    stream, words, missed = rig.stream(), rig.words(1), 0
    for value in range(100):
        words[0] = value
        rig.launch(stream, "add", words.at(0), 1)
        rig.synchronize(stream)
        missed += words[0] != value + 1
    return missed


@fact()
def fact_what_is_page_locked(rig: Rig) -> dict[str, bool]:
    """Which addresses does CUDA know as page-locked?"""
    native, device, pinned = rig.native, rig.memory(64), rig.pinned(4096)
    array, address = _ordinary(3 * 4096)
    found = {"ordinary": native.is_page_locked(address), "device": native.is_page_locked(device)}
    found |= {"page-locked": native.is_page_locked(pinned), "inside": native.is_page_locked(pinned + 100)}
    native.register_host(address, 4096)
    found |= {"registered": native.is_page_locked(address + 10), "next page": native.is_page_locked(address + 4096)}
    native.unregister_host(address)
    found["unregistered"] = native.is_page_locked(address)
    return found if array.size else {}


@fact()
def fact_device_of_an_address(rig: Rig) -> dict[str, int]:
    """What does CUDA say about the device of an address?"""
    native, device, pinned = rig.native, rig.memory(64), rig.pinned(64)
    array, address = _ordinary(4096)
    found = {"device": native.pointer_device(device), "page-locked": native.pointer_device(pinned)}
    found["ordinary"] = code(lambda: native.pointer_device(address))
    return found if array.size else {}


@fact()
def fact_registering_odd_addresses(rig: Rig) -> dict[str, object]:
    """Can memory at an odd address be registered, is it usable, and what is page-locked besides?"""
    native, stream = rig.native, rig.stream()
    array, page = _ordinary(3 * 4096)
    address = page + 104
    found: dict[str, object] = {"register": code(lambda: native.register_host(address, 1000))}
    if found["register"] == 0:
        rig.launch(stream, "store", address, 5)
        rig.synchronize(stream)
        found["stored"] = ctypes.c_uint64.from_address(address).value
        found["before it, same page"] = native.is_page_locked(page)
        found["behind it, same page"] = native.is_page_locked(address + 2000)
        found["unregister"] = code(lambda: native.unregister_host(address))
    return found if array.size else {}


@fact()
def fact_registering_an_odd_number_of_bytes(rig: Rig) -> list[int]:
    """Can seven bytes at an odd address be registered, and unregistered?"""
    array, page = _ordinary(4096)
    address = page + 13
    found = [code(lambda: rig.native.register_host(address, 7))]
    return [*found, code(lambda: rig.native.unregister_host(address))] if array.size else []


@fact()
def fact_registering_what_is_registered(rig: Rig) -> dict[str, int]:
    """What does registering return for memory that is page-locked already, all of it or in part?"""
    native, pinned = rig.native, rig.pinned(4096)
    array, address = _ordinary(4 * 4096)
    native.register_host(address, 2 * 4096)
    found = {
        "again": code(lambda: native.register_host(address, 2 * 4096)),
        "overlapping": code(lambda: native.register_host(address + 4096, 2 * 4096)),
        "page-locked": code(lambda: native.register_host(pinned, 4096)),
    }
    native.unregister_host(address)
    return found if array.size else {}


@fact()
def fact_two_registrations_in_one_page(rig: Rig) -> list[int]:
    """Can two parts of one page be registered one by one?"""
    native = rig.native
    array, page = _ordinary(4096)
    found = [code(lambda: native.register_host(page, 512)), code(lambda: native.register_host(page + 1024, 512))]
    found += [code(lambda: native.unregister_host(page)), code(lambda: native.unregister_host(page + 1024))]
    return found if array.size else []


@fact()
def fact_unregistering_what_is_not_registered(rig: Rig) -> dict[str, int]:
    """What does unregistering return for ordinary memory, for page-locked memory, and for the inside of some?"""
    native, pinned = rig.native, rig.pinned(4096)
    array, address = _ordinary(2 * 4096)
    found = {"ordinary": code(lambda: native.unregister_host(address))}
    found["page-locked"] = code(lambda: native.unregister_host(pinned))
    native.register_host(address, 2 * 4096)
    found["inside"] = code(lambda: native.unregister_host(address + 4096))
    code(lambda: native.unregister_host(address))
    return found if array.size else {}


@fact()
def fact_registering_memory_that_is_read_only(rig: Rig) -> int:
    """What does registering return for memory that may only be read?"""
    with tempfile.TemporaryFile() as file:
        file.write(bytes(8192))
        file.flush()
        mapped = mmap.mmap(file.fileno(), 8192, prot=mmap.PROT_READ)
        address = np.frombuffer(mapped, np.uint8).ctypes.data
        found = code(lambda: rig.native.register_host(address, 8192))
        if found == 0:
            rig.native.unregister_host(address)
    return found


@fact(alone=True)
def fact_freeing_host_memory_of_others(rig: Rig) -> dict[str, int]:
    """What does freeing page-locked memory return for ordinary memory, and for the inside of some?"""
    native = rig.native
    array, address = _ordinary(4096)
    own = native.allocate_host(8192)
    found = {"ordinary": code(lambda: native.free_host(address)), "inside": code(lambda: native.free_host(own + 4096))}
    found["own"] = code(lambda: native.free_host(own))
    found["again"] = code(lambda: native.free_host(own))
    return found if array.size else {}


@fact()
def fact_write_combined_memory(rig: Rig) -> int:
    """Does a copy see what the host stored in write-combined memory?"""
    stream, device, words = rig.stream(), rig.memory(64), rig.words(1)
    address = rig.native.allocate_host(4096, True)
    rig.undo(lambda: rig.native.free_host(address))
    ctypes.c_uint64.from_address(address).value = 12
    rig.native.copy(device, address, 8, stream)
    rig.native.copy(words.at(0), device, 8, stream)
    rig.synchronize(stream)
    return words[0]


@fact()
def fact_page_locked_memory_is_aligned(rig: Rig) -> bool:
    """Is page-locked memory aligned to pages, even a little of it?"""
    addresses = [rig.native.allocate_host(nbytes) for nbytes in (1, 100, 5000)]
    for address in addresses:
        rig.undo(lambda address=address: rig.native.free_host(address))
    return all(address % 512 == 0 for address in addresses)


@fact()
def fact_fills(rig: Rig) -> dict[str, list[int]]:
    """What do fills with elements of one, two and four bytes store?"""
    stream, device, found = rig.stream(), rig.memory(64), {}
    for element in (1, 2, 4):
        rig.native.fill(device, 0, 1, 16, stream)
        rig.native.fill(device, 0x11223344 & ((1 << 8 * element) - 1), element, 2, stream)
        rig.synchronize(stream)
        found[str(element)] = list(rig.read(device, 10))
    return found


@fact()
def fact_fill_of_page_locked_memory(rig: Rig) -> list[int]:
    """Does a fill reach page-locked memory?"""
    stream, words = rig.stream(), rig.words(2)
    said = code(lambda: rig.native.fill(words.at(0), 1, 1, 12, stream))
    rig.synchronize(stream)
    return [said, *words.list()]


@fact()
def fact_fill_of_nothing(rig: Rig) -> dict[str, int]:
    """What does a fill of no elements return?"""
    stream, device, fill = rig.stream(), rig.memory(64), rig.native.fill
    found = {str(element): code(lambda element=element: fill(device, 1, element, 0, stream)) for element in (1, 2, 4)}
    return {**found, "at null": code(lambda: fill(0, 1, 1, 0, stream))}


@fact()
def fact_copy_of_nothing(rig: Rig) -> dict[str, int]:
    """What does a copy of no bytes return?"""
    stream, device, words, copy = rig.stream(), rig.memory(64), rig.words(1), rig.native.copy
    return {
        "on the device": code(lambda: copy(device, device + 8, 0, stream)),
        "up": code(lambda: copy(device, words.at(0), 0, stream)),
        "from null": code(lambda: copy(device, 0, 0, stream)),
    }


@fact(alone=True)
def fact_copy_to_null(rig: Rig) -> dict[str, int]:
    """What does a copy to or from address zero return?"""
    stream, device, copy = rig.stream(), rig.memory(64), rig.native.copy
    return {"to": code(lambda: copy(0, device, 8, stream)), "from": code(lambda: copy(device, 0, 8, stream))}


@fact()
def fact_copies_of_odd_bytes(rig: Rig) -> list[int]:
    """Do copies of odd sizes at odd addresses arrive, up, on the device and down?"""
    stream, device, words, native = rig.stream(), rig.memory(64), rig.words(8), rig.native
    (ctypes.c_ubyte * 7).from_address(words.at(0) + 1)[:] = list(range(1, 8))
    native.copy(device + 3, words.at(0) + 1, 7, stream)
    native.copy(device + 21, device + 3, 7, stream)
    native.copy(words.at(4) + 5, device + 21, 7, stream)
    rig.synchronize(stream)
    return list(ctypes.string_at(words.at(4) + 5, 7))


@fact()
def fact_copies_of_ordinary_memory_arrive(rig: Rig) -> dict[str, bool]:
    """Do copies from and to ordinary memory arrive, whatever their size?"""
    found = {}
    for nbytes in (1, 4096, 65536, 65537, MIB):
        stream, device = rig.stream(), rig.memory(nbytes)
        source, target = np.arange(nbytes, dtype=np.uint32).astype(np.uint8), np.zeros(nbytes, np.uint8)
        rig.native.copy(device, source.ctypes.data, nbytes, stream)
        rig.native.copy(target.ctypes.data, device, nbytes, stream)
        rig.synchronize(stream)
        found[str(nbytes)] = bool((source == target).all())
    return found


@fact()
def fact_copy_between_ordinary_memory(rig: Rig) -> dict[str, object]:
    """What does a copy from ordinary memory to ordinary memory return, and does it arrive?"""
    stream, source, target = rig.stream(), np.full(64, 3, np.uint8), np.zeros(64, np.uint8)
    said = code(lambda: rig.native.copy(target.ctypes.data, source.ctypes.data, 64, stream))
    rig.synchronize(stream)
    return {"code": said, "arrived": bool((target == 3).all())}


def _source_changed(rig: Rig, nbytes: int) -> dict[str, object]:
    """Upload behind a running kernel, and change the source as soon as the call has returned."""
    stream, device, source = rig.stream(), rig.memory(nbytes), np.full(nbytes, 1, np.uint8)
    latch = rig.latch().run(stream)
    attempt = rig.attempt(lambda: rig.native.copy(device, source.ctypes.data, nbytes, stream))
    returned = attempt.returned()
    if returned:
        source[:] = 2
    latch.open()
    attempt.returned(LIMIT)
    rig.synchronize(stream)
    return {"returned": returned, "first byte": rig.read(device, 1)[0]}


@fact()
def fact_source_changed_after_a_small_upload(rig: Rig) -> dict[str, object]:
    """When is the source of a pageable upload of 4 KiB behind a running kernel read?"""
    return _source_changed(rig, 4096)


@fact()
def fact_source_changed_after_an_upload_of_64_kib(rig: Rig) -> dict[str, object]:
    """When is the source of a pageable upload of 64 KiB behind a running kernel read?"""
    return _source_changed(rig, 65536)


@fact()
def fact_source_changed_after_a_large_upload(rig: Rig) -> dict[str, object]:
    """When is the source of a pageable upload of 1 MiB behind a running kernel read?"""
    return _source_changed(rig, MIB)


@fact()
def fact_source_of_a_page_locked_upload(rig: Rig) -> int:
    """Which value does a page-locked upload behind a kernel bring that was changed before the kernel ended?"""
    stream, device, words = rig.stream(), rig.memory(64), rig.words(2)
    words[0] = 1
    latch = rig.latch().run(stream)
    rig.native.copy(device, words.at(0), 8, stream)
    rig.native.copy(words.at(1), device, 8, stream)
    words[0] = 2
    latch.open()
    rig.synchronize(stream)
    return words[1]


@fact()
def fact_pageable_download_is_there_when_the_call_returns(rig: Rig) -> int:
    """How often of fifty times is a pageable download not there when its call returns?"""
    stream, device, target, missed = rig.stream(), rig.memory(64), np.zeros(1, np.uint64), 0
    for value in range(1, 51):
        rig.launch(stream, "store", device, value)
        rig.native.copy(target.ctypes.data, device, 8, stream)
        missed += int(target[0]) != value
    return missed
