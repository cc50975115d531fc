"""The rules that the simulated Metal follows, each with the title of Apple's page that states it.

A rule that is broken is recorded in `native.violations` and, where a call broke it, raised from that call. What the
pages leave open is listed in `CHOICES`: there the simulation draws from its seed, so that nobody can rely on one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CHOICES", "RULES", "Choice", "Rule", "Violation", "ViolationError"]


@dataclass(frozen=True)
class Rule:
    """What Metal demands or guarantees.

    Attributes:
        name: how violations and tests refer to it.
        says: the rule in one sentence.
        source: the title of the page in Apple's documentation, or of PyObjC's, that states it.

    """

    name: str
    says: str
    source: str


@dataclass(frozen=True)
class Choice:
    """What is left open, and between what the seed chooses."""

    name: str
    between: str


@dataclass(frozen=True)
class Violation:
    """A rule that was broken."""

    rule: Rule
    text: str

    def __str__(self) -> str:
        return f"{self.text} [{self.rule.name}: {self.rule.says} ({self.rule.source})]"


class ViolationError(Exception):
    """A call broke a rule; on a Mac the validation layer would have ended the process."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


def _rules(*rows: tuple[str, str, str]) -> Mapping[str, Rule]:
    return {name: Rule(name, says, source) for name, says, source in rows}


RULES = _rules(
    # Calls
    (
        "selector",
        "an object answers only to its selectors, with as many arguments as they have colons",
        "PyObjC — An introduction to PyObjC, Underscores, and lots of them",
    ),
    (
        "argument-type",
        "arguments convert to the types of the selector's encoding",
        "PyObjC — Objective-C objects and C types",
    ),
    (
        "autorelease",
        "an object that no new, alloc or copy made is autoreleased, and leaks on a thread without a pool",
        "Advanced Memory Management Programming Guide — Using Autorelease Pool Blocks",
    ),
    (
        "ownership",
        "an object is released only by who holds it: what a new selector returns belongs to its caller",
        "Advanced Memory Management Programming Guide — Memory Management Policy",
    ),
    ("block", "a block must not let an exception out", "PyObjC — Blocks"),
    # Queues
    (
        "queue-order",
        "command buffers of a queue execute in the order in which they were enqueued",
        "MTLCommandBuffer — enqueue()",
    ),
    (
        "queue-capacity",
        "a queue has at most maxCommandBufferCount uncompleted command buffers, 64 by default; making one more blocks",
        "MTLCommandQueue — makeCommandBuffer(); MTLDevice — makeCommandQueue(maxCommandBufferCount:)",
    ),
    (
        "event-wait",
        "a queue executes nothing behind an event wait until the event has the value",
        "MTLCommandBuffer — encodeWaitForEvent(_:value:)",
    ),
    # Command buffers
    (
        "commit-once",
        "a command buffer is committed once, and takes no commands afterwards",
        "MTLCommandBuffer — commit()",
    ),
    (
        "handler-before-commit",
        "handlers are added before the command buffer is committed",
        "MTLCommandBuffer — addCompletedHandler(_:)",
    ),
    (
        "wait-after-commit",
        "waiting for a command buffer that was not committed never ends",
        "MTLCommandBuffer — waitUntilCompleted()",
    ),
    (
        "handlers-elsewhere",
        "handlers run on a thread that Metal chooses, and before a wait for that status returns",
        "MTLCommandBuffer — addCompletedHandler(_:); waitUntilScheduled(); waitUntilCompleted()",
    ),
    (
        "status",
        "a command buffer goes from not enqueued over enqueued, committed and scheduled to completed or error",
        "MTLCommandBufferStatus",
    ),
    (
        "error",
        "a command buffer that fails has the status error, and an NSError with domain, code and text",
        "MTLCommandBuffer — error; MTLCommandBufferError",
    ),
    (
        "signal-despite-error",
        "an encoded signal happens at its place although commands failed, before the command buffer is completed",
        "MTLCommandBuffer — encodeSignalEvent(_:value:): between passes, as the buffer runs; of errors it says nothing",
    ),
    (
        "unretained",
        "what is encoded into a command buffer with unretained references lives until it has completed",
        "MTLCommandQueue — makeCommandBufferWithUnretainedReferences()",
    ),
    (
        "retained",
        "a command buffer keeps what is encoded into it until it has completed",
        "MTLCommandBuffer — retainedReferences",
    ),
    # Encoders
    (
        "one-encoder",
        "an encoder is ended before the next is made, before an event is encoded and before the commit",
        "MTLCommandEncoder — endEncoding()",
    ),
    ("ended-encoder", "an encoder that was ended takes no commands", "MTLCommandEncoder — endEncoding()"),
    ("debug-groups", "debug groups of an encoder balance", "MTLCommandEncoder — popDebugGroup()"),
    (
        "blit-alignment",
        "offsets and lengths of fills and buffer copies are multiples of 4 on macOS",
        "MTLBlitCommandEncoder — fill(buffer:range:value:); copy(from:sourceOffset:to:destinationOffset:size:)",
    ),
    (
        "blit-range",
        "fills and copies stay inside their buffers, are not empty, and source and destination do not overlap",
        "MTLBlitCommandEncoder — copy(from:sourceOffset:to:destinationOffset:size:)",
    ),
    (
        "synchronize-managed",
        "only managed resources are synchronized",
        "MTLBlitCommandEncoder — synchronize(resource:)",
    ),
    (
        "pipeline-set",
        "a dispatch needs a pipeline state",
        "MTLComputeCommandEncoder — setComputePipelineState(_:)",
    ),
    (
        "bindings",
        "every buffer argument of the function is bound, large enough and aligned",
        "MTLComputeCommandEncoder — setBuffer(_:offset:index:)",
    ),
    ("buffer-index", "there are 31 entries in the buffer argument table", "Metal Feature Set Tables"),
    (
        "set-bytes",
        "setBytes takes between 1 and 4096 bytes",
        "MTLComputeCommandEncoder — setBytes(_:length:index:)",
    ),
    (
        "threadgroup-size",
        "a threadgroup is not empty and no larger than the pipeline allows, and a grid is not empty",
        "MTLComputePipelineState — maxTotalThreadsPerThreadgroup; "
        "MTLComputeCommandEncoder — dispatchThreadgroups(_:threadsPerThreadgroup:)",
    ),
    (
        "threadgroup-memory",
        "threadgroup memory is a multiple of 16 bytes, is set where the function uses it, and stays below the limit",
        "MTLComputeCommandEncoder — setThreadgroupMemoryLength(_:index:)",
    ),
    (
        "indirect-offset",
        "the offset of indirect arguments is a multiple of 4, and the three counts lie inside the buffer",
        "MTLComputeCommandEncoder — dispatchThreadgroups(indirectBuffer:indirectBufferOffset:threadsPerThreadgroup:)",
    ),
    (
        "residency",
        "what a kernel reaches through an address was made resident by useResource or useHeap",
        "MTLComputeCommandEncoder — useResource(_:usage:)",
    ),
    # Memory
    (
        "private-contents",
        "the host sees no contents of private storage",
        "MTLBuffer — contents()",
    ),
    ("zeroed", "a buffer made by a device is cleared with zeros", "MTLDevice — makeBuffer(length:options:)"),
    (
        "no-copy",
        "memory used without a copy starts on a page and is whole pages",
        "MTLDevice — makeBuffer(bytesNoCopy:length:options:deallocator:)",
    ),
    (
        "buffer-length",
        "a buffer has at least one byte and at most maxBufferLength",
        "MTLDevice — makeBuffer(length:options:); maxBufferLength",
    ),
    (
        "heap-options",
        "a buffer of a heap has the storage mode and the cache mode of the heap, and inherits its hazard tracking",
        "MTLHeap — makeBuffer(length:options:); MTLHeapDescriptor — hazardTrackingMode",
    ),
    (
        "heap-placement",
        "offsets are given exactly for placement heaps, aligned and inside the heap",
        "MTLHeap — makeBuffer(length:options:offset:)",
    ),
    (
        "heap-descriptor",
        "a heap has a size, and is neither managed nor memoryless on a Mac",
        "MTLHeapDescriptor — storageMode",
    ),
    ("aliasable", "an aliasable buffer is not used any more", "MTLResource — makeAliasable()"),
    (
        "hazards",
        "untracked memory, and memory used by two queues, is ordered by fences, barriers, events or the host",
        "MTLHazardTrackingMode; Resource Synchronization",
    ),
    # Events
    (
        "listener",
        "a listener's block runs once, on the listener's dispatch queue, when the event has reached the value",
        "MTLSharedEvent — notify(_:atValue:block:)",
    ),
    (
        "event-order",
        "the values of an event rise",
        "MTLEvent; Synchronizing events between a GPU and the CPU",
    ),
    # Libraries
    ("source", "source that does not compile gives no library and an NSError with the log", "MTLLibraryError"),
    (
        "function-constants",
        "a function with required constants is made with their values",
        "MTLLibrary — makeFunction(name:constantValues:)",
    ),
    (
        "library-data",
        "newLibraryWithData takes dispatch data",
        "MTLDevice — makeLibrary(data:)",
    ),
)

CHOICES: Mapping[str, Choice] = {
    choice.name: choice
    for choice in (
        Choice("signal-gap", "how long a command buffer whose signal was seen still takes to be completed"),
        Choice(
            "notification", "whether listeners hear of a buffer's last signal before or after its completed handlers"
        ),
        Choice("concurrent-dispatch", "in which order dispatches between barriers of a concurrent encoder run"),
        Choice("failed-work", "how many of the commands before the failing one have an effect"),
        Choice("slot-release", "how long behind its completed status a command buffer still counts for its queue"),
        Choice("heap-contents", "what stands in fresh memory of a heap"),
        Choice("dispatch-threads", "which thread runs handlers, and how they mix with other threads"),
    )
}
