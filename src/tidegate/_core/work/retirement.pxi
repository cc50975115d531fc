"""The end of a submission, on the host: decide once, let go, signal or fail, free what was held (M3, M6, M17, M18).

In this order: what it kept is let go of before anybody is told, so that whoever is told may allocate at once.
"""


cdef int retire(Submission one, object error) except -1:
    """End a submission; the first call decides. What it raises comes from outside, and everything is done all the same."""
    cdef Chain due = Chain(NULL, NULL, NULL, NULL)
    cdef tuple touches
    cdef Work work
    cdef Memory memory
    cdef Py_ssize_t overtaken
    cdef bint mine
    cdef bint ahead
    raised = None
    late = None
    CORE_LOCK()
    mine = one.stage < FINISHING
    if mine:
        one.stage = FINISHING
        # Who gave it up first has told so: a cancel that came through is not overtaken by a loss.
        if one.pending_error is None:
            one.pending_error = error
        if one.pending_error is None:
            take_over_failure(one)
        end_writes(one)
    CORE_UNLOCK()
    if not mine:
        return 0
    error = one.pending_error
    try:
        if error is not None:
            forget_frames(error)
            if one.unseen is None:
                one.unseen = note_failure(one, error)
    except BaseException as interrupt:
        raised = interrupt
    work = one.work_
    touches = one.touches
    memory = one.touch1
    one.work_ = None
    one.touches = None
    one.touch1 = None
    if error is not None and work is not None:
        if work.code == WORK_FREE:
            give_up_free(<Free>work)
        elif work.code == WORK_ALLOCATE and (<Allocate>work).block.phase == PENDING:
            (<Allocate>work).block.phase = NEVER
    work = None
    if memory is not None:
        end_use(memory)
    elif touches is not None:
        for memory in touches:
            end_use(memory)
    memory = None
    touches = None
    while True:
        CORE_LOCK()
        overtaken = end(one, error, late, &due)
        CORE_UNLOCK()
        if overtaken < 0:
            break
        try:
            late = overtaken_error(one, <Claim>claim_of(one, overtaken))
        except BaseException as interrupt:
            raised = interrupt
            late = FailedPreconditionError("somebody was released too early: the payload was reached already")
    ahead = error is not None and one.line is not None
    line = one.line
    let_go(one)
    try:
        if ahead:
            surely(ask_all_in_front, (line,))   # the lane's failure may wait for those in front
    except BaseException as interrupt:
        raised = interrupt
    try:
        if one.workload._attention:
            if turn_here().in_driver:
                leave_note(one.workload._after_retirement, ())
            else:
                surely(one.workload._after_retirement, ())
    except BaseException as interrupt:
        raised = interrupt
    try:
        drain(&due)
    except BaseException as interrupt:
        raised = interrupt
    if raised is not None:
        raise raised
    return 0


def ask_all_in_front(Semaphore line not None):
    """Have the devices tell of the work on a lane."""
    wake_up_for(line.timeline, MOST)


cdef void let_go(Submission one) noexcept:
    """After: drop what is of no use any more."""
    one.wait1 = None
    one.more_waits = None
    one.claim1 = None
    one.more_claims = None
    one.completion_claim = None
    one.line = None


cdef void end_writes(Submission one) noexcept:
    """Step: it is no memory's last write any more; a host read after one that failed fails too."""
    cdef Py_ssize_t index
    cdef Memory memory
    for index in range(one.first_written, touch_count(one)):
        memory = <Memory>touch_of(one, index)
        if memory.last_write == <PyObject *>one:
            memory.last_write = NULL
            if memory.write_error is None:
                memory.write_error = one.pending_error


cdef void take_over_failure(Submission one) noexcept:
    """Step: what it was issued behind may have failed (M17)."""
    cdef Py_ssize_t index
    cdef Wait wait
    for index in range(wait_count(one)):
        wait = <Wait>wait_of(one, index)
        if wait.producer is not None and wait.timeline.payload < wait.node.value:
            if wait.timeline.failure is not None:
                one.pending_error = wait.timeline.failure
                one.unseen = wait.timeline.unseen
                return


cdef Py_ssize_t end(Submission one, object error, object late, Chain *due) noexcept:
    """Step: signal or fail everything. Returns which claim was overtaken, if the error for that is not there yet."""
    cdef Py_ssize_t index
    cdef Claim claim
    cdef Memory memory
    cdef Workload workload = one.workload
    if error is None and late is None:
        for index in range(claim_count(one)):
            claim = <Claim>claim_of(one, index)
            if claim.at != NULL and claim.timeline.failure is None and claim.timeline.payload >= claim.node.value:
                return index
    finish_waits(one)
    one.error_ = error
    one.stage = RETIRED
    for index in range(claim_count(one)):
        signal_claim(one, <Claim>claim_of(one, index), error, late, due)
    if one.completion_claim is not None:
        signal_claim(one, one.completion_claim, error, None, due)
    disown(one)
    workload._retired += 1
    return -1


cdef void finish(Submission one, Chain *due) noexcept:
    """Step: end what had nothing to do and nothing to wait for, and was never anywhere."""
    cdef Py_ssize_t index
    one.stage = RETIRED
    for index in range(claim_count(one)):
        signal_claim(one, <Claim>claim_of(one, index), None, None, due)
    if one.completion_claim is not None:
        signal_claim(one, one.completion_claim, None, None, due)
    one.workload._retired += 1


cdef void finish_waits(Submission one) noexcept:
    """Step: stand in line nowhere any more."""
    leave_waits(one)


cdef void signal_claim(Submission one, Claim claim, object error, object late, Chain *due) noexcept:
    """Step: take one claimed timepoint to its value, or fail it."""
    cdef Timeline timeline = claim.timeline
    cdef uint64_t value = claim.node.value
    cdef bint stood = claim.at != NULL
    if (
        error is not None and stood and one.line is not None and one.line.timeline is timeline
        and timeline.failure is None and timeline.payload + 1 < value
    ):
        if claim.promised:
            claim.promised = False
            timeline.promises -= 1
        timeline.fail_later(claim, error, one.unseen)
        return
    timeline.withdraw(claim)
    if error is not None:
        timeline.fail(error, one.unseen, due)
    elif stood and timeline.failure is None:
        if timeline.payload < value:
            timeline.rise(value, due)
        elif late is not None:
            timeline.fail(late, None, due)


cdef object overtaken_error(Submission one, Claim claim):
    return FailedPreconditionError(
        f"{one.describe()} was to signal {claim.timeline.describe()} to {claim.node.value}, but the payload was"
        f" {claim.timeline.payload} already: somebody was released too early"
    )
