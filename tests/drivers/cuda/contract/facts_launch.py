"""Kernels: their arguments, shapes, attributes and reflection."""

from __future__ import annotations

import sources
from registry import fact
from rig import Rig, code

from tidegate.drivers.cuda._prototypes import Attribute, FunctionAttribute


def _fresh(rig: Rig, name: str) -> int:
    """Return a function of a library of its own, whose attributes nobody has set."""
    return rig.native.function(rig.native.kernel(rig.library(), name))


@fact()
def fact_arguments_are_copied(rig: Rig) -> int:
    """Which value does a kernel store whose argument was changed after the launch?"""
    stream, words = rig.stream(), rig.words(1)
    latch, work = rig.latch().run(stream), rig.call("store", words.at(0), 1)
    rig.native.launch(work, stream)
    work.keep[0][1] = 2
    latch.open()
    rig.synchronize(stream)
    return words[0]


@fact()
def fact_kernel_handle_instead_of_a_function(rig: Rig) -> list[int]:
    """Can a kernel be launched by the handle its library gives?"""
    stream, words = rig.stream(), rig.words(1)
    kernel = rig.native.kernel(rig.library(), "store")
    said = code(lambda: rig.launch(stream, kernel, words.at(0), 6))
    rig.synchronize(stream)
    return [said, words[0]]


@fact()
def fact_shared_memory_past_48_kib(rig: Rig) -> dict[str, int]:
    """What is needed to launch with 100 KiB of shared memory?"""
    stream, words, nbytes, function = rig.stream(), rig.words(1), 100 * 1024, _fresh(rig, "use_shared")
    found = {"untold": code(lambda: rig.launch(stream, function, words.at(0), nbytes, shared=nbytes))}
    rig.native.set_function_attribute(function, FunctionAttribute.MAX_DYNAMIC_SHARED, nbytes)
    found["told"] = code(lambda: rig.launch(stream, function, words.at(0), nbytes, shared=nbytes))
    rig.synchronize(stream)
    found["stored"] = words[0]
    found["more than told"] = code(lambda: rig.launch(stream, function, words.at(0), nbytes, shared=nbytes + 1))
    return found


@fact()
def fact_shared_memory_at_48_kib(rig: Rig) -> dict[str, int]:
    """Is 48 KiB of shared memory taken without saying so?"""
    stream, words, function = rig.stream(), rig.words(1), _fresh(rig, "use_shared")
    said = code(lambda: rig.launch(stream, function, words.at(0), 49152, shared=49152))
    rig.synchronize(stream)
    return {"code": said, "stored": words[0]}


@fact()
def fact_most_shared_memory(rig: Rig) -> dict[str, int]:
    """Can a function be told to use as much shared memory as the device says, and one byte more?"""
    most, function = rig.native.device_attribute(Attribute.MAX_SHARED_OPTIN, rig.device), _fresh(rig, "use_shared")
    tell = rig.native.set_function_attribute
    return {
        "all": code(lambda: tell(function, FunctionAttribute.MAX_DYNAMIC_SHARED, most)),
        "one more": code(lambda: tell(function, FunctionAttribute.MAX_DYNAMIC_SHARED, most + 1)),
        "less than none": code(lambda: tell(function, FunctionAttribute.MAX_DYNAMIC_SHARED, -1)),
    }


@fact()
def fact_function_attributes(rig: Rig) -> dict[str, int]:
    """What do functions say about their threads and shared memory?"""
    ask, function = rig.native.function_attribute, rig.session.function
    return {
        "threads": ask(function("store"), FunctionAttribute.MAX_THREADS),
        "threads with bounds": ask(function("few_threads"), FunctionAttribute.MAX_THREADS),
        "shared": ask(function("static_shared"), FunctionAttribute.SHARED_BYTES),
        "dynamic": ask(_fresh(rig, "use_shared"), FunctionAttribute.MAX_DYNAMIC_SHARED),
    }


@fact()
def fact_more_threads_than_the_bounds_of_a_kernel(rig: Rig) -> list[int]:
    """What does a launch of a kernel for 64 threads return with 64 and with 128?"""
    stream, words = rig.stream(), rig.words(1)
    return [
        code(lambda threads=threads: rig.launch(stream, "few_threads", words.at(0), block=(threads, 1, 1)))
        for threads in (64, 128)
    ]


@fact()
def fact_cooperative_launch(rig: Rig) -> dict[str, int]:
    """What does a cooperative launch return that fits, and one with more groups than fit?"""
    stream, words = rig.stream(), rig.words(8)
    fits = code(lambda: rig.launch(stream, "write_groups", words.at(0), grid=(8, 1, 1), cooperative=True))
    rig.synchronize(stream)
    large = code(lambda: rig.launch(stream, "nothing", grid=(1_000_000, 1, 1), cooperative=True))
    return {"fits": fits, "groups": sum(word > 0 for word in words.list()), "too large": large}


@fact()
def fact_cluster_launch(rig: Rig) -> dict[str, int]:
    """What do launches in clusters return?"""
    stream, words = rig.stream(), rig.words(48)

    def clustered(groups: int, size: int) -> int:
        return code(lambda: rig.launch(stream, "write_groups", words.at(0), grid=(groups, 1, 1), cluster=(size, 1, 1)))

    found = {"8 groups by 2": clustered(8, 2)}
    rig.synchronize(stream)
    found["groups"] = sum(word > 0 for word in words.list())
    return {**found, "7 groups by 2": clustered(7, 2), "8 groups by 8": clustered(8, 8), "32 by 16": clustered(32, 16)}


@fact()
def fact_large_clusters(rig: Rig) -> dict[str, int]:
    """What does a launch in clusters of 16 return for a function that is allowed them?"""
    stream, words, function = rig.stream(), rig.words(48), _fresh(rig, "write_groups")
    told = code(lambda: rig.native.set_function_attribute(function, FunctionAttribute.NON_PORTABLE_CLUSTER, 1))
    said = code(lambda: rig.launch(stream, function, words.at(0), grid=(32, 1, 1), cluster=(16, 1, 1)))
    return {"told": told, "launch": said, "synchronize": code(lambda: rig.synchronize(stream))}


@fact()
def fact_names_of_kernels(rig: Rig) -> list[str]:
    """Which kernels does a library say it has?"""
    return sorted(rig.native.kernels(rig.session.library))


@fact()
def fact_parameters_of_kernels(rig: Rig) -> dict[str, object]:
    """What do kernels say about their parameters?"""
    names = ("nothing", "store", "meet")
    found = {name: rig.native.kernel_parameters(rig.native.kernel(rig.session.library, name)) for name in names}
    return {name: parameters and [list(pair) for pair in parameters] for name, parameters in found.items()}


@fact()
def fact_one_kernel_asked_for_twice(rig: Rig) -> dict[str, bool]:
    """Are kernel and function the same each time they are asked for, and another in another library?"""
    native, library = rig.native, rig.session.library
    kernels = [native.kernel(library, "store") for _ in range(2)]
    return {
        "kernel": kernels[0] == kernels[1],
        "function": native.function(kernels[0]) == native.function(kernels[1]),
        "another library": native.kernel(rig.library(), "store") == kernels[0],
    }


@fact()
def fact_two_libraries_side_by_side(rig: Rig) -> int:
    """Does a kernel of a second library run beside those of the first?"""
    stream, words = rig.stream(), rig.words(1)
    library = rig.library(rig.session.compile(sources.ONE_KERNEL))
    rig.launch(stream, rig.native.function(rig.native.kernel(library, "only")), words.at(0))
    rig.synchronize(stream)
    return words[0]


@fact()
def fact_many_groups_in_three_directions(rig: Rig) -> int:
    """What is the sum of what groups in three directions store that go by their x alone?"""
    stream, words = rig.stream(), rig.words(8)
    rig.launch(stream, "write_groups", words.at(0), grid=(4, 3, 2), block=(2, 2, 2))
    rig.synchronize(stream)
    return sum(words.list())
