"""From the call to the queue: claiming, passing, holding (M3, M5, M6, M14 to M20).

`admit` is one step: it checks and claims the signals, and then the work is over (there was nothing to do), ready, held,
or ready to follow what its device has promised. What is refused leaves no trace.
"""

cdef enum:
    # What comes of an admission.
    ADMITTED, REFUSED_BY_DEVICE, REFUSED_FORKED, REFUSED_CLAIM


cdef Wait new_wait(Submission one, object point):
    """Prepare: one thing to wait for."""
    cdef Wait wait = Wait.__new__(Wait)
    wait.owner = one
    if type(point) is Timepoint:
        wait.timeline = (<Timepoint>point).semaphore.timeline
        wait.node.value = (<Timepoint>point).target
    elif isinstance(point, Submission):
        wait.timeline = completion_of(<Submission>point)
        wait.node.value = 1
    elif type(point) is Target:
        wait.timeline = (<Target>point).timeline
        wait.node.value = (<Target>point).value
    else:
        raise TypeError(f"wait= takes timepoints and submissions, not {type(point).__name__}")
    return wait


cdef int add_waits(Submission one, object wait) except -1:
    """Prepare: what `wait=` says, and the lane."""
    cdef list waits
    if wait is None:
        waits = []
    elif type(wait) is Timepoint or isinstance(wait, Submission) or type(wait) is Target:
        if one.line is None:
            one.wait1 = new_wait(one, wait)
            return 0
        waits = [new_wait(one, wait)]
    else:
        try:
            points = iter(wait)
        except TypeError:
            raise TypeError(f"wait= takes timepoints and submissions, not {type(wait).__name__}") from None
        waits = [new_wait(one, point) for point in points]
    if one.line is not None:
        waits.append(new_wait(one, new_target(one.line.timeline, 0)))   # its value is that of the moment of the step
    if waits:
        one.wait1 = waits[0]
        one.more_waits = tuple(waits[1:]) if len(waits) > 1 else None
    return 0


cdef Claim new_claim(Semaphore semaphore, uint64_t value):
    """Prepare: one signal."""
    cdef Claim claim = Claim.__new__(Claim)
    claim.semaphore = semaphore
    claim.timeline = semaphore.timeline
    claim.node.value = value
    return claim


cdef int add_claims(Submission one, object signal) except -1:
    """Prepare: what `signal=` says, of two on one semaphore the higher (M3), and the lane."""
    cdef dict highest
    cdef list claims
    cdef Timepoint point, known
    if signal is None:
        claims = []
    elif type(signal) is Timepoint:
        point = <Timepoint>signal
        if one.line is None:
            one.claim1 = new_claim(point.semaphore, point.target)
            return 0
        claims = [new_claim(point.semaphore, point.target)]
    else:
        try:
            points = list(signal)
        except TypeError:
            raise TypeError(f"signal= takes timepoints, not {type(signal).__name__}") from None
        highest = {}
        for each in points:
            if type(each) is not Timepoint:
                raise TypeError(f"signal= takes timepoints, not {type(each).__name__}")
            point = <Timepoint>each
            known = highest.get(point.semaphore.timeline)
            if known is None or known.target < point.target:
                highest[point.semaphore.timeline] = point
        claims = [new_claim((<Timepoint>point).semaphore, (<Timepoint>point).target) for point in highest.values()]
    if one.line is not None:
        claims.append(new_claim(one.line, 0))
    if claims:
        one.claim1 = claims[0]
        one.more_claims = tuple(claims[1:]) if len(claims) > 1 else None
    return 0


cdef int submit(Submission one, object wait, object signal) except -1:
    """Take a new submission in: claim its signals, then hold or issue it. Refusals raise and leave no trace."""
    cdef Chain due = Chain(NULL, NULL, NULL, NULL)
    cdef Py_ssize_t refused = -1
    cdef int outcome
    add_waits(one, wait)
    add_claims(one, signal)
    errors = errors_of_writes(one)
    CORE_LOCK()
    outcome = admit(one, &refused, &due)
    CORE_UNLOCK()
    del errors
    if outcome != ADMITTED:
        raise refusal(one, outcome, refused)
    drain(&due)
    return go_down(one)


cdef list errors_of_writes(Submission one):
    """Hold what the step takes away: an error may be the last reference to much."""
    cdef Memory memory
    cdef Py_ssize_t index
    cdef list errors = None
    for index in range(one.first_written, touch_count(one)):
        memory = <Memory>touch_of(one, index)
        if memory.write_error is not None:
            errors = errors or []
            errors.append(memory.write_error)
    return errors


cdef int go_down(Submission one) except -1:
    """After an admission: what became ready goes to its device; what is held has the devices tell of its waits."""
    if one.stage == RETIRED:
        let_go(one)
        one.work_ = None
        return 0
    if one.stage == HELD:
        return listen(one)
    if turn_here().in_driver:
        leave_note(pass_down, (one,))     # a signal handler or a finalizer that interrupted a driver
        return 0
    return pass_down(one)


cpdef int pass_down(Submission one) except -1:
    """Give what is ready to its device, or end it."""
    if one.stage != READY:
        return 0
    if one.pending_error is not None:
        return retire(one, None)
    return send(one) if one.open == 0 else send_behind(one)


cdef int admit(Submission one, Py_ssize_t *refused, Chain *due) noexcept:
    """Step: see the head of this file. `refused` tells which claim was."""
    cdef Workload workload = one.workload
    cdef Timeline timeline
    cdef Claim claim
    cdef Wait wait
    cdef Memory memory
    cdef Py_ssize_t index
    cdef uint64_t last
    if workload.state != OPEN and not (workload.state == CLOSING and one._nested):
        return REFUSED_BY_DEVICE
    if one.line is not None:
        # A lane's work waits for the highest claim on its line, and claims the next value.
        timeline = one.line.timeline
        last = timeline.high if timeline.high > timeline.payload else timeline.payload
        (<Wait>wait_of(one, wait_count(one) - 1)).node.value = last
        (<Claim>claim_of(one, claim_count(one) - 1)).node.value = last + 1
        if last >= MOST:
            refused[0] = claim_count(one) - 1
            return REFUSED_CLAIM
    for index in range(claim_count(one)):
        claim = <Claim>claim_of(one, index)
        timeline = claim.timeline
        if timeline.generation != generation:
            refused[0] = index
            return REFUSED_FORKED
        if timeline.failure is None and (
            claim.node.value <= timeline.payload or timeline.is_claimed(claim.node.value)
        ):
            refused[0] = index
            return REFUSED_CLAIM
    for index in range(wait_count(one)):
        wait = <Wait>wait_of(one, index)
        if wait.timeline.generation != generation:
            refused[0] = -1 - index
            return REFUSED_FORKED
    # From here on nothing is refused.
    workload._submitted += 1
    for index in range(wait_count(one)):
        wait = <Wait>wait_of(one, index)
        if wait.timeline.payload < wait.node.value:
            if wait.timeline.failure is None:
                one.open += 1
            elif one.pending_error is None:
                one.pending_error = wait.timeline.failure
                one.unseen = wait.timeline.unseen
    for index in range(claim_count(one)):
        claim = <Claim>claim_of(one, index)
        # On a failed timeline nothing can come of a claim, and it might collide with an older one.
        if claim.timeline.failure is None:
            claim.timeline.claim(claim, one)
    for index in range(touch_count(one)):
        (<Memory>touch_of(one, index)).uses += 1
    for index in range(one.first_written, touch_count(one)):
        memory = <Memory>touch_of(one, index)
        memory.last_write = <PyObject *>one
        memory.write_error = None
    if one.pending_error is not None:
        one.stage = READY
        own(one)
    elif one.open == 0:
        if one.work_.empty and touch_count(one) == 0:
            finish(one, due)
        else:
            one.stage = READY
            own(one)
    elif all_promised(one):
        one.stage = READY
        own(one)
    else:
        stand_in_line(one)
    return ADMITTED


cdef void stand_in_line(Submission one) noexcept:
    """Step: wait for what is neither reached nor failed."""
    cdef Py_ssize_t index
    cdef Wait wait
    one.stage = HELD
    enter_held(one)
    for index in range(wait_count(one)):
        wait = <Wait>wait_of(one, index)
        if wait.timeline.payload < wait.node.value and wait.at == NULL:
            wait.timeline.stand(wait)


cdef void leave_waits(Submission one) noexcept:
    """Step: stand in line nowhere any more. The caller holds it."""
    cdef Py_ssize_t index
    cdef Wait wait
    for index in range(wait_count(one)):
        wait = <Wait>wait_of(one, index)
        wait.timeline.leave(wait)
    leave_held(one)


cdef bint all_promised(Submission one) noexcept:
    """Step: whether the same device has issued whoever will bring what is still waited for; then the waits note them.

    They are noted in a second pass, over None: a step must not drop what may be a last reference.
    """
    cdef Py_ssize_t index
    cdef PyObject *found
    cdef Wait wait
    if not one.workload._promises or one.work_code == WORK_HOST:
        return False
    for index in range(wait_count(one)):
        wait = <Wait>wait_of(one, index)
        if wait.timeline.payload < wait.node.value:
            if wait.timeline.failure is not None:
                return False  # by the host, above a promise: the work must not run any more (M17)
            found = wait.timeline.producer(wait.node.value)
            if found == NULL or (<Submission>found).workload is not one.workload or found == <PyObject *>one:
                return False
    for index in range(wait_count(one)):
        wait = <Wait>wait_of(one, index)
        if wait.timeline.payload < wait.node.value:
            wait.producer = <Submission>wait.timeline.producer(wait.node.value)
    return True


cdef object refusal(Submission one, int outcome, Py_ssize_t index):
    """The error of an admission that was refused."""
    cdef Claim claim
    cdef Wait wait
    cdef Node *node
    if outcome == REFUSED_BY_DEVICE:
        return one.workload._refusal_error(one)
    if outcome == REFUSED_FORKED:
        timeline = (<Claim>claim_of(one, index)).timeline if index >= 0 else (<Wait>wait_of(one, -1 - index)).timeline
        return FailedPreconditionError(
            f"{(<Timeline>timeline).describe()} was made before this process was forked: make a new one in the child"
        )
    claim = <Claim>claim_of(one, index)
    found = f"the payload is {claim.timeline.payload} already"
    node = order_at_least(claim.timeline.claims, claim.node.value)
    if node != NULL and node.value == claim.node.value:
        found = f"{(<Submission>(<Claim>node.link).owner).describe()} claims it already"
    return InvalidArgumentError(
        f"{one.kind_} on {one.queue_.describe()}: cannot signal {claim.timeline.describe()} to {claim.node.value}:"
        f" {found}"
    )
