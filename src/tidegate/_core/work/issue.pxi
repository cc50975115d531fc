"""From the queue to the device: issuing, promises, giving up (M3, M15, M17, M19)."""


cdef int launch(Submission one) except -1:
    """All waits of a held submission are decided: give it to its device, or fail it with what failed first."""
    cdef bint mine
    CORE_LOCK()
    mine = one.stage == HELD
    if mine:
        one.stage = READY
        own(one)
        leave_waits(one)
    CORE_UNLOCK()
    if not mine:
        return 0
    if one.pending_error is not None:
        return retire(one, None)
    return send(one)


cdef int send(Submission one) except -1:
    """Give ready work to its device; what that has no room for is put off."""
    return 0 if give(one, False) else put_off(one)


cdef int put_off(Submission one) except -1:
    """The driver said "not now": keep it, and try again when something has ended."""
    cdef Workload workload = one.workload
    workload._backlog.append(one)
    workload._attention = True
    # Whatever made the driver refuse may have ended before this stood in the backlog.
    return surely(workload._after_retirement, ())


cdef int follow_promises(Submission one) except -1:
    """What a held submission waits for may have been issued by its own device: then it may go down behind that."""
    cdef bint may
    CORE_LOCK()
    may = one.stage == HELD and all_promised(one)
    if may:
        one.stage = READY
        own(one)
    CORE_UNLOCK()
    return send_behind(one) if may else 0


cdef int send_behind(Submission one) except -1:
    """Issue behind what is on the device already; where the driver would rather not, hold after all."""
    cdef bint held = False
    cdef bint taken = True
    try:
        taken = give(one, True)
    finally:
        if taken:
            CORE_LOCK()
            leave_waits(one)
            CORE_UNLOCK()
    if taken:
        return 0
    # What may be a last reference is not dropped inside of the step below.
    producers = [(<Wait>wait_of(one, index)).producer for index in range(wait_count(one))]
    CORE_LOCK()
    if one.stage == READY:
        forget_producers(one)
        recount(one)
        if one.open != 0 and one.pending_error is None:
            held = True
            stand_in_line(one)
            disown(one)
        else:
            leave_waits(one)
    CORE_UNLOCK()
    del producers
    if held:
        return listen(one)
    if one.stage == READY:
        if one.pending_error is not None:
            return retire(one, None)
        return send(one)
    return 0


cdef void forget_producers(Submission one) noexcept:
    """Step: it was not issued behind them, so their ends are not before its own. The caller holds them."""
    cdef Py_ssize_t index
    for index in range(wait_count(one)):
        (<Wait>wait_of(one, index)).producer = None


cdef void recount(Submission one) noexcept:
    """Step: count what it waits for anew."""
    cdef Py_ssize_t index
    cdef Wait wait
    one.open = 0
    for index in range(wait_count(one)):
        wait = <Wait>wait_of(one, index)
        if wait.timeline.payload < wait.node.value:
            if wait.timeline.failure is None:
                one.open += 1
            elif one.pending_error is None:
                one.pending_error = wait.timeline.failure
                one.unseen = wait.timeline.unseen


cdef object native_waits(Submission one):
    """Return the epochs to wait for, the last one per native timeline."""
    cdef Py_ssize_t index
    cdef Submission producer
    cdef dict last = {}
    for index in range(wait_count(one)):
        producer = (<Wait>wait_of(one, index)).producer
        if producer is not None and producer.native is not None:
            last[producer.native] = max(last.get(producer.native, 0), producer.epoch_)
    return list(last.items())


cdef bint give(Submission one, bint follows) except -1:
    """Give ready work to its device, or to the threads for host calls. False: not now, and nothing has happened.

    The one place where a driver written in Python is given work. What that raises fails the submission; where the driver
    has said that the work is its own by then (`taken`), at the end that it reports.
    """
    cdef Turn *turn = turn_here()
    cdef int before = turn.in_driver
    cdef TidegateQueue *queue = (<WorkTarget>one.queue_).native
    cdef int answer
    cdef bint mine
    raised = None
    taken = True
    if queue != NULL and before == 0:
        answer = put(one, queue)
        if answer != TIDEGATE_ELSEWHERE:
            return answer != TIDEGATE_NOT_NOW
    CORE_LOCK()
    mine = one.stage == READY
    if mine:
        one.stage = ISSUED
        own(one)
    CORE_UNLOCK()
    if not mine:
        return True          # its device was lost meanwhile
    turn.in_driver = 1
    try:
        if one.work_code == WORK_HOST:
            one.workload._run_on_host(one, one.work_)
        else:
            taken = one.queue_._port.issue(one, one.work_, native_waits(one) if follows else ())
    except BaseException as error:
        error.__traceback__ = None   # its frames know the arguments of all who called
        raised = error
    turn.in_driver = before
    if raised is not None:
        not_issued(one, raised)
    elif not taken:
        return not take_back(one)
    if one.native is not None:
        promise(one)
    if raised is not None and not isinstance(raised, Exception):
        raise raised
    return True


cdef bint take_back(Submission one) except -1:
    """The device did not take it: it is ready as before. False: it is over, for the device was lost meanwhile."""
    cdef bint back
    CORE_LOCK()
    back = one.stage == ISSUED
    if back:
        one.stage = READY
    CORE_UNLOCK()
    return back


cdef int not_issued(Submission one, object error) except -1:
    """The driver raised, or somebody interrupted it: put an allocation among those that starve, and fail the rest."""
    if isinstance(error, ResourceExhaustedError) and one.work_code == WORK_ALLOCATE \
            and not one.taken:
        return starve(one, error) if take_back(one) else 0
    give_up(one, error)
    if one.native is not None:
        # What the driver would have done behind the epoch may be missing: it is told of somebody who waits for the end.
        leave_note(ask_for_wake_up, (one,))
    return 0


cdef int starve(Submission one, object error) except -1:
    """There was no memory for it (M22)."""
    cdef Workload workload = one.workload
    cdef bint is_new = one not in workload._starving
    one.starves = True
    workload._starving[one] = error
    workload._attention = True
    return surely(workload._starves_anew, ()) if is_new else 0


cdef int give_up(Submission one, object error) except -1:
    """An exception came between: fail it, now or, if the device has it, when that is done with it."""
    if one.taken and one.stage != RETIRED:
        if one.pending_error is None:
            one.pending_error = error
        return 0
    return retire(one, error)


cdef int promise(Submission one) except -1:
    """A device that counts has taken it: its claims are promises now, for those who wait and may follow."""
    cdef Chain due = Chain(NULL, NULL, NULL, NULL)
    cdef bint listened_to
    CORE_LOCK()
    listened_to = make_promises(one, &due)
    CORE_UNLOCK()
    return was_promised(one, listened_to, &due)


cdef int was_promised(Submission one, bint listened_to, Chain *due) except -1:
    """After: see to it that somebody looks where it was issued, and let those follow who may."""
    cdef Epochs native = one.native
    raised = None
    try:
        if not native.is_known:
            surely(one.workload._looks_at, (native,))
            native.is_known = True
        # Memory that starving allocations wait for may come with any end, and nobody else need be listening for it.
        if listened_to or one.epoch_ % HOUSEKEEPING == 0 or one.workload._starving:
            surely(ask_for_wake_up, (one,))
    except BaseException as error:
        raised = error
    drain(due)
    if raised is not None:
        raise raised
    return 0


cdef bint make_promises(Submission one, Chain *due) noexcept:
    """Step: see `promise`. True: somebody waits there who will not follow it onto the device."""
    cdef Py_ssize_t index
    cdef bint listened_to = False
    if one.stage != ISSUED:
        return False
    for index in range(claim_count(one)):
        listened_to = promise_claim(one, <Claim>claim_of(one, index), due) or listened_to
    if one.completion_claim is not None:
        listened_to = promise_claim(one, one.completion_claim, due) or listened_to
    return listened_to


cdef bint promise_claim(Submission one, Claim claim, Chain *due) noexcept:
    """Step: see `promise`."""
    cdef Timeline timeline
    cdef Node *node
    cdef Waiter waiter
    cdef bint listened_to = False
    if claim.at == NULL:
        return False
    timeline = <Timeline>claim.at
    if not claim.promised:
        claim.promised = True
        timeline.promises += 1
    node = order_first(timeline.waits)
    while node != NULL:
        waiter = (<Wait>node.link).owner
        if waiter is not <Waiter>one:
            # Whoever waits for more may be failed by this.
            listened_to = True
            if node.value > claim.node.value:
                break
            if waiter is not None and waiter.is_work and isinstance(waiter, Submission):
                if (<Submission>waiter).stage == HELD and may_follow(<Submission>waiter, one):
                    waiter.offer(due)
        node = order_next(node)
    return listened_to


cdef inline bint may_follow(Submission waiter, Submission one) noexcept:
    """Step: whether it may go down behind one."""
    return (
        waiter.workload is one.workload and one.workload._promises
        and waiter.work_code != WORK_HOST
    )


cpdef int listen(Submission one) except -1:
    """Have the devices tell about what a held submission waits for."""
    cdef Py_ssize_t index
    cdef Wait wait
    cdef list waits = [<Wait>wait_of(one, index) for index in range(wait_count(one))]
    try:
        for wait in waits:
            if wait.at != NULL and wait.timeline.promises:
                wake_up_for(wait.timeline, wait.node.value)
    except BaseException:
        leave_note(listen, (one,))
        raise
    return 0


cdef int wake_up_for(Timeline timeline, uint64_t value) except -1:
    """Have a device tell when a timeline is taken to a value, if one will.

    Where nobody has promised that yet, what is promised below may still fail it.
    """
    cdef PyObject *found
    if timeline.promises == 0:
        return 0
    found = timeline.producer(value)
    if found != NULL:
        ask_for_wake_up(<Submission>found)
        return 0
    for _, one in timeline.claimed():
        if (<Submission>one).native is not None:
            ask_for_wake_up(<Submission>one)
    return 0


cpdef ask_for_wake_up(Submission one):
    """Have the device that counts it tell of its end, once."""
    cdef Turn *turn = turn_here()
    cdef int before = turn.in_driver
    if one.native is None or one.armed or one.stage == RETIRED:
        return
    if before:
        leave_note(ask_for_wake_up, (one,))
        return
    turn.in_driver = 1
    try:
        one.native.arm(one.epoch_)
        one.armed = True   # not before: what an interrupt cut short must be asked for again
    finally:
        turn.in_driver = before


cdef bint abort(Submission one, object error) except -1:
    """Fail a submission that is still held. False: it is not, or no longer."""
    cdef bint mine
    if one.workload.generation != generation:
        raise FailedPreconditionError(
            f"{one.describe()} was made before this process was forked: make a new one in the child"
        )
    CORE_LOCK()
    mine = one.stage == HELD and not one.is_due
    if mine:
        one.stage = READY
        one.pending_error = error
        own(one)
        leave_waits(one)
    CORE_UNLOCK()
    if mine:
        retire(one, None)
    return mine


def abort_submission(Submission one not None, error):
    """Fail a submission that is still held. False: it is not, or no longer."""
    return abort(one, error)


def try_again(Submission one not None):
    """Give once more to the device what it did not take.

    True: it has it, or the work is over. False: not now. None: an allocation that found no memory.
    """
    one.starves = False
    if one.stage == READY and not give(one, False):
        return False
    return None if one.starves else True
