# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: binding=False, auto_pickle=False, autotestdict=False, embedsignature=True, embedsignature.format=clinic
# cython: freethreading_compatible=True
"""The core, compiled: timelines, submissions, waits and the operations that programs call most.

Every operation has three parts, and only the middle one changes what is shared (see `ground/step.pxi`): *prepare*, in
which anything may raise and nothing can be seen yet; a *step*, with which nothing can interfere; and what comes *after*,
when all is true already: references are dropped, threads woken, drivers called, callbacks run.

One module, because everything here knows everything else; one file for each noun, by rooms. Read in this order.
"""

cimport cython

import gc
import weakref
from collections import deque

from numpy import dtype, ndarray

from ..errors import (
    AbortedError,
    ClosedError,
    DeadlineExceededError,
    FailedPreconditionError,
    InvalidArgumentError,
    ResourceExhaustedError,
    SemaphoreFailedError,
)
from ..types import Outcome
from .background import deferred, report_unraisable, runner
from .checks import (
    array_to_fill,
    check_copy,
    check_fill,
    checked_range,
    flat_bytes,
    host_bytes_of,
    odd_pattern,
    refuse_download,
    update_data,
)
from .failures import brief, forget_frames, note_failure, record_of
from .slots import SlotSpan

REACHED, FAILED = Outcome.REACHED, Outcome.FAILED
cdef object BYTE = dtype("u1")

cdef object explain_point, explain_targets, await_point, await_submission, host_pool_of_thread


def install(*, explain, targets, awaiting_point, awaiting_submission, host_pool):
    """Take the parts that stand above: how a point is explained and awaited, and which pool a thread works for."""
    global explain_point, explain_targets, await_point, await_submission, host_pool_of_thread
    explain_point, explain_targets = explain, targets
    await_point, await_submission = awaiting_point, awaiting_submission
    host_pool_of_thread = host_pool


def after_fork():
    """In a forked child: what was made before belongs to the parent."""
    global generation, put_note
    generation += 1
    put_note = deferred._notes.put
    forget_turn()
    orphans.clear()


def exits():
    """The interpreter exits: what is garbage from here on tells nobody."""
    global is_exiting
    is_exiting = True


include "ground/step.pxi"
include "timelines/order.pxi"
include "timelines/continuations.pxi"
include "timelines/timeline.pxi"
include "timelines/semaphore.pxi"
include "timelines/waiting.pxi"
include "memory/memory.pxi"
include "work/work.pxi"
include "programs/function.pxi"
include "work/submission.pxi"
include "work/workload.pxi"
include "work/admission.pxi"
include "work/issue.pxi"
include "work/retirement.pxi"
include "work/native.pxi"
include "work/operations.pxi"
