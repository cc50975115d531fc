"""Stream-ordered memory: who gets which address when, and what a pool keeps."""

from __future__ import annotations

from registry import fact
from rig import LIMIT, MIB, Rig, code

from tidegate.drivers.cuda._prototypes import PoolAttribute


def _only(rig: Rig, pool: int, *reuse: int) -> int:
    """Allow a pool no way of reusing memory across streams but those given."""
    for attribute in (PoolAttribute.FOLLOW_EVENTS, PoolAttribute.OPPORTUNISTIC, PoolAttribute.INTERNAL_DEPENDENCIES):
        rig.native.set_pool(pool, attribute, int(attribute in reuse))
    return pool


@fact()
def fact_pool_defaults(rig: Rig) -> dict[str, int]:
    """What are the attributes of a new pool?"""
    pool = rig.pool(threshold=None)
    names = sorted(name for name in vars(PoolAttribute) if name.isupper())
    return {name: rig.native.pool_attribute(pool, getattr(PoolAttribute, name)) for name in names}


@fact()
def fact_reuse_on_one_stream(rig: Rig) -> list[bool]:
    """Does an allocation get the address just freed on its stream, idle and behind a running kernel?"""
    pool, stream, native = rig.pool(), rig.stream(), rig.native
    first = native.allocate(MIB, pool, stream)
    native.free(first, stream)
    second = native.allocate(MIB, pool, stream)
    rig.latch().run(stream)
    native.free(second, stream)
    third = native.allocate(MIB, pool, stream)
    native.free(third, stream)
    return [second == first, third == second]


def _reused(rig: Rig, *reuse: int, event: bool = False) -> bool:
    """Whether another stream gets an address that is freed behind a running kernel."""
    pool, first, second, native = _only(rig, rig.pool(), *reuse), rig.stream(), rig.stream(), rig.native
    address = native.allocate(MIB, pool, first)
    rig.synchronize(first)
    rig.latch().run(first)
    native.free(address, first)
    if event:
        recorded = rig.event()
        native.record_event(recorded, first)
        native.wait_event(second, recorded)
    other = native.allocate(MIB, pool, second)
    native.free(other, second)
    return other == address


@fact()
def fact_reuse_across_streams_behind_an_event(rig: Rig) -> dict[str, bool]:
    """Does a stream that waits for the event behind a free get its address?"""
    return {
        "following events": _reused(rig, PoolAttribute.FOLLOW_EVENTS, event=True),
        "not following": _reused(rig, event=True),
        "without an event": _reused(rig, PoolAttribute.FOLLOW_EVENTS),
    }


@fact()
def fact_reuse_across_streams_of_what_is_not_over(rig: Rig) -> dict[str, bool]:
    """Does another stream get an address whose free is not over?"""
    return {
        "opportunistic": _reused(rig, PoolAttribute.OPPORTUNISTIC),
        "internal dependencies": _reused(rig, PoolAttribute.INTERNAL_DEPENDENCIES),
    }


def _reused_afterwards(rig: Rig, *reuse: int) -> bool:
    pool, first, second, native = _only(rig, rig.pool(), *reuse), rig.stream(), rig.stream(), rig.native
    address = native.allocate(MIB, pool, first)
    native.free(address, first)
    rig.synchronize(first)
    other = native.allocate(MIB, pool, second)
    native.free(other, second)
    return other == address


@fact()
def fact_reuse_across_streams_of_what_is_over(rig: Rig) -> dict[str, bool]:
    """Does another stream get an address whose free is over?"""
    return {
        "opportunistic": _reused_afterwards(rig, PoolAttribute.OPPORTUNISTIC),
        "not": _reused_afterwards(rig),
    }


@fact()
def fact_no_memory_within_a_maximum(rig: Rig) -> dict[str, int]:
    """What does an allocation beyond the maximum of a pool return, and once the first one is freed?"""
    pool, stream, native = rig.pool(64 * MIB), rig.stream(), rig.native
    first = native.allocate(48 * MIB, pool, stream)
    refused = code(lambda: native.allocate(48 * MIB, pool, stream))
    native.free(first, stream)
    again = code(lambda: native.allocate(48 * MIB, pool, stream))
    return {"refused": refused, "after the free": again}


def _room_by_a_pending_free(rig: Rig, *reuse: int) -> dict[str, object]:
    pool, first, second, native = _only(rig, rig.pool(64 * MIB), *reuse), rig.stream(), rig.stream(), rig.native
    address = native.allocate(48 * MIB, pool, first)
    rig.synchronize(first)
    latch = rig.latch().run(first)
    native.free(address, first)
    attempt = rig.attempt(lambda: native.allocate(48 * MIB, pool, second))
    found: dict[str, object] = {"returned": attempt.returned()}
    held = attempt.code == 0 and not rig.passes(second)
    latch.open()
    attempt.returned(LIMIT)
    rig.synchronize(first, second)
    return {**found, "code": attempt.code, "its stream waits": held}


@fact()
def fact_room_by_a_pending_free_with_internal_dependencies(rig: Rig) -> dict[str, object]:
    """Does an allocation in a full pool get what another stream will free, with internal dependencies?"""
    return _room_by_a_pending_free(rig, PoolAttribute.INTERNAL_DEPENDENCIES)


@fact()
def fact_room_by_a_pending_free_without_reuse(rig: Rig) -> dict[str, object]:
    """Does an allocation in a full pool get what another stream will free, without any reuse?"""
    return _room_by_a_pending_free(rig)


@fact()
def fact_room_by_a_pending_free_by_default(rig: Rig) -> dict[str, object]:
    """Does an allocation in a full pool get what another stream will free, with all reuse?"""
    return _room_by_a_pending_free(
        rig, PoolAttribute.FOLLOW_EVENTS, PoolAttribute.OPPORTUNISTIC, PoolAttribute.INTERNAL_DEPENDENCIES
    )


@fact()
def fact_room_by_a_free_that_is_over(rig: Rig) -> int:
    """Does an allocation in a full pool get what another stream has freed, without any reuse?"""
    pool, first, second, native = _only(rig, rig.pool(64 * MIB)), rig.stream(), rig.stream(), rig.native
    native.free(native.allocate(48 * MIB, pool, first), first)
    rig.synchronize(first)
    return code(lambda: native.allocate(48 * MIB, pool, second))


@fact()
def fact_maximum_of_a_pool(rig: Rig) -> dict[str, int]:
    """How large an allocation does a pool with a maximum of 1 MiB take?"""
    found = {}
    for name, nbytes in (("1 MiB", MIB), ("2 MiB", 2 * MIB), ("32 MiB", 32 * MIB), ("33 MiB", 33 * MIB)):
        pool, stream = rig.pool(MIB), rig.stream()
        found[name] = code(lambda pool=pool, stream=stream, n=nbytes: rig.native.allocate(n, pool, stream))
    return found


@fact()
def fact_alignment_of_addresses(rig: Rig) -> dict[str, bool]:
    """Of what are the addresses of small allocations multiples?"""
    pool, stream = rig.pool(), rig.stream()
    found = [rig.native.allocate(nbytes, pool, stream) for nbytes in (1, 3, 255, 256, 257, 1000, 4096, 5000, 1)]
    for address in found:
        rig.native.free(address, stream)
    return {str(step): all(address % step == 0 for address in found) for step in (256, 512, 1024)}


@fact()
def fact_allocation_of_nothing(rig: Rig) -> int:
    """What does an allocation of no bytes return?"""
    pool, stream = rig.pool(), rig.stream()
    return code(lambda: rig.native.allocate(0, pool, stream))


@fact()
def fact_allocation_of_more_than_there_is(rig: Rig) -> dict[str, int]:
    """What does an allocation of a pebibyte return, and a small one after it?"""
    pool, stream = rig.pool(), rig.stream()
    huge = code(lambda: rig.native.allocate(1 << 50, pool, stream))
    return {"huge": huge, "small": code(lambda: rig.native.allocate(256, pool, stream))}


@fact(alone=True)
def fact_free_twice(rig: Rig) -> list[int]:
    """What does freeing an address return, the first time and the second?"""
    pool, stream = rig.pool(), rig.stream()
    address = rig.native.allocate(MIB, pool, stream)
    return [code(lambda: rig.native.free(address, stream)) for _ in range(2)]


@fact(alone=True)
def fact_free_of_what_was_not_allocated(rig: Rig) -> dict[str, int]:
    """What does freeing the inside of an allocation return, and freeing page-locked memory?"""
    pool, stream = rig.pool(), rig.stream()
    address, words = rig.native.allocate(MIB, pool, stream), rig.words(1)
    return {
        "inside": code(lambda: rig.native.free(address + 256, stream)),
        "page-locked": code(lambda: rig.native.free(words.at(0), stream)),
    }


@fact()
def fact_an_allocation_is_usable_behind_an_event(rig: Rig) -> int:
    """Can another stream use an allocation behind an event, while its own stream is idle?"""
    pool, first, second, event = rig.pool(), rig.stream(), rig.stream(), rig.event()
    address, words = rig.native.allocate(64, pool, first), rig.words(1)
    rig.native.record_event(event, first)
    rig.native.wait_event(second, event)
    rig.launch(second, "store", address, 8)
    rig.native.copy(words.at(0), address, 8, second)
    rig.synchronize(second)
    rig.native.free(address, first)
    return words[0]


@fact()
def fact_an_address_is_given_before_its_time(rig: Rig) -> bool:
    """Does an allocation on a busy stream return its address at once?"""
    pool, stream = rig.pool(), rig.stream()
    rig.latch().run(stream)
    attempt = rig.attempt(lambda: rig.native.allocate(MIB, pool, stream))
    return attempt.returned() and attempt.value != 0


@fact()
def fact_trim_with_live_allocations(rig: Rig) -> dict[str, object]:
    """What does trimming leave of a pool with an allocation in use, and is its content kept?"""
    pool, stream, native = rig.pool(), rig.stream(), rig.native
    kept, gone = native.allocate(64, pool, stream), native.allocate(256 * MIB, pool, stream)
    rig.launch(stream, "store", kept, 9)
    native.free(gone, stream)
    rig.synchronize(stream)
    before = native.pool_attribute(pool, PoolAttribute.RESERVED)
    native.trim_pool(pool, 0)
    after = native.pool_attribute(pool, PoolAttribute.RESERVED)
    content = int.from_bytes(rig.read(kept, 8), "little")
    native.free(kept, stream)
    return {"less": after < before, "none": after == 0, "content": content}


@fact()
def fact_trim_while_a_free_is_pending(rig: Rig) -> dict[str, bool]:
    """Does trimming give back what a stream will free, or return at all?"""
    pool, stream, native = rig.pool(), rig.stream(), rig.native
    address = native.allocate(64 * MIB, pool, stream)
    rig.synchronize(stream)
    rig.latch().run(stream)
    native.free(address, stream)
    returned = rig.returns(lambda: native.trim_pool(pool, 0))
    found = native.pool_attribute(pool, PoolAttribute.RESERVED) if returned else -1
    return {"returned": returned, "given back": found == 0}


@fact()
def fact_trim_to_some(rig: Rig) -> dict[str, bool]:
    """Does trimming an unused pool leave at least what is asked for, and nothing for zero?"""
    pool, stream, native = rig.pool(), rig.stream(), rig.native
    native.free(native.allocate(128 * MIB, pool, stream), stream)
    rig.synchronize(stream)
    native.trim_pool(pool, 64 * MIB)
    some = native.pool_attribute(pool, PoolAttribute.RESERVED)
    native.trim_pool(pool, 0)
    return {"at least": some >= 64 * MIB, "none": native.pool_attribute(pool, PoolAttribute.RESERVED) == 0}


@fact(alone=True)
def fact_pool_destroyed_with_live_allocations(rig: Rig) -> dict[str, int]:
    """What does destroying a pool with an allocation return, can that be used, and freed?"""
    pool, stream, native, words = rig.native.create_pool(rig.device), rig.stream(), rig.native, rig.words(1)
    address = native.allocate(64, pool, stream)
    found = {"destroy": code(lambda: native.destroy_pool(pool))}
    rig.launch(stream, "store", address, 3)
    native.copy(words.at(0), address, 8, stream)
    found["synchronize"] = code(lambda: rig.synchronize(stream))
    found["content"] = words[0]
    found["free"] = code(lambda: native.free(address, stream))
    return found


@fact()
def fact_what_a_pool_counts(rig: Rig) -> dict[str, int]:
    """What does a pool say is used and reserved after an allocation of a thousand bytes?"""
    pool, stream, native = rig.pool(), rig.stream(), rig.native
    address = native.allocate(1000, pool, stream)
    found = {
        "used": native.pool_attribute(pool, PoolAttribute.USED),
        "reserved": native.pool_attribute(pool, PoolAttribute.RESERVED),
    }
    native.free(address, stream)
    found["used afterwards"] = native.pool_attribute(pool, PoolAttribute.USED)
    return found


@fact()
def fact_what_a_pool_counts_before_a_free_is_over(rig: Rig) -> dict[str, int]:
    """Is memory still used in the eyes of its pool whose free is not over?"""
    pool, stream, native = rig.pool(), rig.stream(), rig.native
    address = native.allocate(MIB, pool, stream)
    rig.latch().run(stream)
    before = native.pool_attribute(pool, PoolAttribute.USED)
    native.free(address, stream)
    return {"before": before, "after": native.pool_attribute(pool, PoolAttribute.USED)}


@fact()
def fact_what_a_pool_keeps(rig: Rig) -> dict[str, bool]:
    """Does a pool keep memory when its stream is synchronised, by default and with a threshold?"""
    found = {}
    for name, threshold in (("by default", None), ("with a threshold", 1 << 40)):
        pool, stream, native = rig.pool(threshold=threshold), rig.stream(), rig.native
        native.free(native.allocate(MIB, pool, stream), stream)
        rig.synchronize(stream)
        found[name] = native.pool_attribute(pool, PoolAttribute.RESERVED) > 0
    return found


@fact()
def fact_what_a_pool_keeps_after_an_event(rig: Rig) -> bool:
    """Does a pool without a threshold keep memory when an event behind the free is waited for?"""
    pool, stream, event, native = rig.pool(threshold=None), rig.stream(), rig.event(), rig.native
    native.free(native.allocate(MIB, pool, stream), stream)
    native.record_event(event, stream)
    native.synchronize_event(event)
    return native.pool_attribute(pool, PoolAttribute.RESERVED) > 0


@fact()
def fact_high_water_mark(rig: Rig) -> list[int]:
    """How does the mark of the most memory used move, and can it be set back?"""
    pool, stream, native = rig.pool(), rig.stream(), rig.native
    for _ in range(2):
        native.free(native.allocate(MIB, pool, stream), stream)
    found = [native.pool_attribute(pool, PoolAttribute.USED_HIGH)]
    native.set_pool(pool, PoolAttribute.USED_HIGH, 0)
    return [*found, native.pool_attribute(pool, PoolAttribute.USED_HIGH)]


@fact()
def fact_free_on_another_stream(rig: Rig) -> int:
    """Can memory be freed on another stream than it was allocated on?"""
    pool, first, second = rig.pool(), rig.stream(), rig.stream()
    address = rig.native.allocate(MIB, pool, first)
    rig.synchronize(first)
    return code(lambda: rig.native.free(address, second))
