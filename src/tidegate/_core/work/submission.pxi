"""A submission: work on its way, and the handle the user holds (M3, M14 to M21).

Who holds whom. A held submission is owned by the places where it waits (`Wait`), and so by the timelines it waits for,
and by nothing else: those it will signal, the buffers it will write and its device know it without owning it. So when
nobody is left who could signal what it waits for, it goes with them, and fails what it was to signal (M12). One that is
past being held is owned by its device. It holds what it touches, and the semaphores it will signal, until it is over.
"""

cdef enum:
    HELD, READY, ISSUED, FINISHING, RETIRED      # the stages
    MOST_TOUCHES = 1 << 30                       # more memories than work uses: it writes none of them

globals().update(HELD=0, READY=1, ISSUED=2, FINISHING=3, RETIRED=4)
STAGES = ("held", "ready", "issued", "finishing", "retired")


@cython.no_gc_clear
@cython.trashcan(True)
cdef class Submission(Waiter):
    """Work given to a queue: awaitable, waitable, usable in `wait=`, cancellable while it is held.

    Made by queue operations only. Every member may be used from any thread.
    """

    cdef Work work_               # until it is over
    cdef str kind_
    cdef Workload workload
    cdef object queue_
    cdef Semaphore line           # of the lane that orders it
    cdef Wait wait1               # the first wait and signal stand here, ...
    cdef Claim claim1
    cdef tuple more_waits         # ... the others in tuples, which the collector never empties
    cdef tuple more_claims
    cdef Completion completion    # made when somebody waits for the submission itself
    cdef Claim completion_claim
    cdef Memory touch1            # the memory it uses, where it is one, ...
    cdef tuple touches            # ... or all of them, ...
    cdef Py_ssize_t first_written # ... of which it writes those from this one on
    cdef Epochs native            # the native timeline that counts it
    cdef object result_
    cdef object error_
    cdef object pending_error     # why it will fail
    cdef object unseen            # the record of that error
    cdef object code
    cdef Submission next_in_flight
    cdef Submission next_owned    # among what its device owns
    cdef PyObject *before_owned
    cdef PyObject *next_held      # among what is held, borrowed
    cdef PyObject *before_held
    cdef object __weakref__
    cdef uint64_t epoch_
    cdef Py_ssize_t open          # waits that are not decided
    cdef int lasti
    cdef int stage
    cdef int work_code
    cdef bint is_owned, is_held, is_in_flight
    cdef bint starves             # whether there was no memory for it just now
    cdef public bint taken
    """For drivers: whether the device has it."""
    cdef public bint armed
    """Whether its device was asked to tell of its end."""
    cdef public bint _nested
    """Whether it is a part of other work, without which that cannot end: taken also while the device closes."""

    def __cinit__(self):
        self.is_work = True

    def __init__(self):
        raise TypeError("submissions are made by queue operations")

    def __dealloc__(self):
        """It goes without ever having been over, with a device that was dropped, say: what it was to signal fails."""
        cdef Py_ssize_t index
        cdef list gone
        if self.stage == RETIRED or self.workload is None:
            return
        leave_held(self)
        for index in range(self.first_written, touch_count(self)):
            forget_write(<Memory>touch_of(self, index), self)
        gone = []
        for index in range(claim_count(self)):
            vanish(<Claim>claim_of(self, index), gone)
        if self.completion_claim is not None:
            vanish(self.completion_claim, gone)
        if gone and self.workload.generation == generation:
            leave_note(fail_vanished, (gone,))

    # What the timelines call ------------------------------------------------------------------------------------------

    cdef void decided(self, Wait wait, Chain *due) noexcept:
        """Step: see `Waiter`."""
        self.open -= 1
        if self.pending_error is None and wait.timeline.payload < wait.node.value:
            self.pending_error = wait.timeline.failure
            self.unseen = wait.timeline.unseen
        if self.stage == HELD and (self.open == 0 or self.pending_error is not None):
            self.push(due)

    cdef int go_on(self) except -1:
        """After: all waits are over, or what it waits for was promised: go down, or fail."""
        if self.stage == HELD:
            if self.open == 0 or self.pending_error is not None:
                launch(self)
            else:
                follow_promises(self)
        return 0

    # For drivers ------------------------------------------------------------------------------------------------------

    @property
    def timeline(self):
        """The native timeline that counts it, or None."""
        return self.native

    @property
    def epoch(self):
        """Its number there."""
        return self.epoch_

    # The user's side --------------------------------------------------------------------------------------------------

    cpdef str describe(self):
        """Return how texts name this submission: what, where and from which line."""
        return described(self.kind_, self.queue_, self.code, self.lasti)

    def __repr__(self):
        failed = "" if self.error_ is None else f" error={self.error_!r}"
        return f"<tidegate.Submission {self.describe()} {STAGES[self.stage]}{failed}>"

    @property
    def kind(self):
        """The word for what it does."""
        return self.kind_

    @property
    def line(self):
        """The file and line of the call that made it."""
        return site_text(self.code, self.lasti)

    @property
    def queue(self):
        """The queue it was given to."""
        return self.queue_

    @property
    def done(self):
        """Whether it is over, well or not. Never blocks."""
        if self.stage != RETIRED and self.native is not None and self.workload.generation == generation:
            if not turn_here().in_driver:
                look_at_device(self.native)
        return self.stage == RETIRED

    @property
    def error(self):
        """The work's error, None if there is none so far."""
        cdef bint done = self.done
        mark_seen(self.unseen)
        return self.error_ if done else None

    def wait(self, timeout=None):
        """Block until it is over.

        Raises:
            SemaphoreFailedError: it failed; `__cause__` is the work's error.
            DeadlineExceededError: over time.

        """
        cdef Turn *turn = turn_here()
        if timeout is None and self.stage == ISSUED and self.native is not None and not turn.running and not turn.in_driver:
            # Most often a word tells within microseconds, and nothing else is needed.
            if self.native.stream.word != NULL and self.native.stream.event_only < self.epoch_:
                spin_on_word(self.native.stream.word, self.epoch_, HOLD_NS)
                if is_over(self.native):
                    advance(self.native)
        if self.stage != RETIRED or self.error_ is not None or timeout is not None:
            wait_for([target_of(self, "wait")], False, timeout)

    def result(self, timeout=None):
        """Block until it is over and return what it made: the array of a download, what a host call returned."""
        self.wait(timeout)
        return self.result_

    def __await__(self):
        return await_submission(self)

    def cancel(self):
        """Give it up while it is still held: its signals fail with AbortedError. False: too late."""
        return abort(self, AbortedError(f"{self.describe()} was cancelled"))

    def explain(self):
        """Say what it waits for, down to the missing signal (M13)."""
        return explain_point(self)

    # For the rest of the core -----------------------------------------------------------------------------------------

    @property
    def _result(self):
        return self.result_

    @_result.setter
    def _result(self, value):
        self.result_ = value

    @property
    def _queue(self):
        return self.queue_

    @property
    def _workload(self):
        return self.workload

    @property
    def _device(self):
        return self.workload

    @property
    def _kind(self):
        return self.kind_

    @property
    def _native(self):
        return self.native

    @property
    def _stage(self):
        return self.stage

    @property
    def _work(self):
        return self.work_

    @property
    def _error(self):
        return self.error_

    @property
    def _touches(self):
        return self.touches or (() if self.touch1 is None else (self.touch1,))

    @property
    def _is_decided(self):
        return self.stage == HELD and (self.open == 0 or self.pending_error is not None)

    @property
    def _is_over(self):
        return self.stage == RETIRED

    @property
    def _is_held(self):
        return self.stage == HELD

    @property
    def _is_issued(self):
        return self.stage == ISSUED

    def _pending(self):
        """Return what it still waits for: timelines and values."""
        cdef Py_ssize_t index
        cdef Wait wait
        found = []
        for index in range(wait_count(self)):
            wait = <Wait>wait_of(self, index)
            if wait.timeline.payload < wait.node.value and wait.at != NULL:
                found.append((wait.timeline, wait.node.value))
        return found

    def _claims(self):
        """Return what it will signal: timelines and values."""
        cdef Py_ssize_t index
        cdef Claim claim
        found = []
        for index in range(claim_count(self)):
            claim = <Claim>claim_of(self, index)
            found.append((claim.timeline, claim.node.value))
        if self.completion is not None:
            found.append((self.completion, 1))
        return found


cdef inline Py_ssize_t wait_count(Submission one) noexcept:
    """Step: how many waits it has."""
    return 0 if one.wait1 is None else 1 if one.more_waits is None else 1 + PyTuple_GET_SIZE(one.more_waits)


cdef inline PyObject *wait_of(Submission one, Py_ssize_t index) noexcept:
    """Step: one of its waits."""
    return <PyObject *>one.wait1 if index == 0 else PyTuple_GET_ITEM(one.more_waits, index - 1)


cdef inline Py_ssize_t claim_count(Submission one) noexcept:
    """Step: how many signals it has."""
    return 0 if one.claim1 is None else 1 if one.more_claims is None else 1 + PyTuple_GET_SIZE(one.more_claims)


cdef inline PyObject *claim_of(Submission one, Py_ssize_t index) noexcept:
    """Step: one of its claims."""
    return <PyObject *>one.claim1 if index == 0 else PyTuple_GET_ITEM(one.more_claims, index - 1)


cdef inline Py_ssize_t touch_count(Submission one) noexcept:
    """Step: how many memories it uses."""
    return PyTuple_GET_SIZE(one.touches) if one.touches is not None else 0 if one.touch1 is None else 1


cdef inline PyObject *touch_of(Submission one, Py_ssize_t index) noexcept:
    """Step: one of the memories it uses."""
    return PyTuple_GET_ITEM(one.touches, index) if one.touches is not None else <PyObject *>one.touch1


cdef inline void forget_write(Memory memory, Submission one) noexcept:
    """Step: it is not the last write of a memory any more."""
    if memory.last_write == <PyObject *>one:
        memory.last_write = NULL


cdef void vanish(Claim claim, list gone) noexcept:
    """The submission of a claim goes: take the claim away, and note it among those that are to fail."""
    cdef Timeline timeline
    if claim.at == NULL:
        return
    timeline = <Timeline>claim.at
    gone.append((timeline, claim.node.value))
    claim.owner = NULL
    timeline.withdraw(claim)


def fail_vanished(list gone):
    """Whoever waits for what will never be signalled fails instead of hanging."""
    cdef Chain due = Chain(NULL, NULL, NULL, NULL)
    cdef Timeline timeline
    for timeline, value in gone:
        error = AbortedError(f"{timeline.describe()} at {value}: the submission that was to signal it is gone")
        CORE_LOCK()
        timeline.fail(error, None, &due)
        CORE_UNLOCK()
    drain(&due)


cdef Completion completion_of(Submission one):
    """Return the timeline of a submission itself."""
    cdef Completion made
    cdef Claim claim
    if one.completion is not None:
        return one.completion
    if one.workload.generation != generation:
        raise FailedPreconditionError(
            f"{one.describe()} was made before this process was forked: make a new one in the child"
        )
    made = Completion.__new__(Completion)
    made.label = ""
    made.kind = one.kind_
    made.queue = one.queue_
    made.code = one.code
    made.lasti = one.lasti
    claim = Claim.__new__(Claim)
    claim.timeline = made
    claim.node.value = 1
    CORE_LOCK()
    if one.completion is None:
        one.completion = made
        if one.stage == RETIRED:
            made.failure = one.error_
            made.unseen = one.unseen
            made.payload = 1 if one.error_ is None else 0
        else:
            one.completion_claim = claim
            made.claim(claim, one)
            if one.native is not None:
                claim.promised = True
                made.promises = 1
    CORE_UNLOCK()
    return one.completion


cdef str described(object kind, object queue, object code, int lasti):
    return f"{kind} on {queue.describe()} ({site_text(code, lasti)})"


cpdef str site_text(object code, int lasti):
    """Return a site as `file:line`."""
    if code is None:
        return "unknown line"
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= lasti < end and number is not None:
            line = number
            break
    return f"{code.co_filename}:{line}"
