"""Blocking waits of host threads, for one point or several (M8, M9, M34).

A wait looks, spins briefly, and sleeps. Waking a sleeping thread can cost hundreds of microseconds, so a short spin is
worth it where the signal comes soon. Before the first look at a word of a device the GIL is kept for a moment, because
beside a busy thread it costs five milliseconds to get it back; then the spin does without it, so that whoever is to
signal can run. A spin that failed halves the next one's budget. While it looks, a thread also lets the devices do small
ready work (`pollers`).
"""

cdef enum:
    HOLD_NS = 20_000          # how long a thread looks at a word of a device without giving the GIL away
    SPIN_LEAST_NS = 2_000
    SPIN_MOST_NS = 100_000
    LEAST_PATIENCE_NS = 50_000          # how long it looks without the GIL
    MOST_PATIENCE_NS = 2_000_000
    CROWDED_NS = 1_000_000    # when the GIL took this long to come back, other threads are busy

cdef uint64_t spin_ns = 50_000
pollers = []
"""What waiting threads do for the devices: each makes a little progress here, and says whether it did."""


@cython.final
cdef class Target:
    """What is waited for."""
    cdef Timeline timeline
    cdef uint64_t value

    @property
    def state(self):
        """The timeline."""
        return self.timeline

    @property
    def point(self):
        """Timeline and value."""
        return self.timeline, self.value


cdef inline Target new_target(Timeline timeline, uint64_t value):
    cdef Target target = Target.__new__(Target)
    target.timeline = timeline
    target.value = value
    return target


cpdef Target target_of(object point, str what):
    """Return the timeline and value behind a timepoint or a submission."""
    if type(point) is Timepoint:
        return new_target((<Timepoint>point).semaphore.timeline, (<Timepoint>point).target)
    if isinstance(point, Submission):
        return new_target(completion_of(<Submission>point), 1)
    raise TypeError(f"{what} takes timepoints and submissions, not {type(point).__name__}")


def targets_of(points, what):
    """Return the points as a list, and their targets."""
    try:
        listed = list(points)
    except TypeError:
        raise TypeError(
            f"{what} takes an iterable of timepoints and submissions, not {type(points).__name__}"
        ) from None
    return listed, [target_of(point, what) for point in listed]


cpdef object checked_timeout(object timeout):
    """Return a timeout in seconds, None for ever."""
    if timeout is None:
        return None
    if not isinstance(timeout, (int, float)):
        try:
            timeout = float(timeout)
        except (TypeError, ValueError):
            raise TypeError(f"a timeout is None or seconds, not {type(timeout).__name__}") from None
    if timeout != timeout or timeout < 0:
        raise InvalidArgumentError(f"the timeout is {timeout}, and must be 0 or more seconds", timeout=timeout)
    return None if timeout > 1e9 else timeout


cdef class GroupWaiter(Waiter):
    """Waits for all or any of some targets. `fire` tells the one who waits, on whatever thread decides."""
    cdef list waits
    cdef bint any_of_them
    cdef Py_ssize_t open
    cdef bint is_over

    def __init__(self, targets, any_of_them):
        cdef Wait wait
        cdef Target target
        self.any_of_them = any_of_them
        self.waits = []
        for target in targets:
            wait = Wait.__new__(Wait)
            wait.owner = self
            wait.timeline = target.timeline
            wait.node.value = target.value
            self.waits.append(wait)

    def fire(self):
        """Tell the one who waits."""

    cdef void decided(self, Wait wait, Chain *due) noexcept:
        """Step: see `Waiter`."""
        self.open -= 1
        if not self.is_over and (self.any_of_them or self.open == 0 or wait.timeline.payload < wait.node.value):
            self.is_over = True
            self.push(due)

    cdef int go_on(self) except -1:
        """After: see `Waiter`."""
        return surely(self.fire, ())

    cpdef bint register(self):
        """Stand at all timelines. False: it is decided already."""
        cdef Wait wait
        cdef Py_ssize_t index
        deferred.ensure()
        CORE_LOCK()
        self.open = PyList_GET_SIZE(self.waits)
        for index in range(PyList_GET_SIZE(self.waits)):
            wait = <Wait>PyList_GET_ITEM(self.waits, index)
            if wait.timeline.payload >= wait.node.value:
                self.open -= 1
                self.is_over = self.is_over or self.any_of_them or self.open == 0
            elif wait.timeline.failure is not None:
                self.is_over = True
            else:
                wait.timeline.stand(wait)
            if self.is_over:
                break
        CORE_UNLOCK()
        if self.is_over:
            return False
        for wait in self.waits:
            if wait.at != NULL and wait.timeline.promises:
                wake_up_for(wait.timeline, wait.node.value)
        return True

    cpdef unregister(self):
        """Stand nowhere."""
        cdef Wait wait
        cdef Py_ssize_t index
        CORE_LOCK()
        self.is_over = True
        for index in range(PyList_GET_SIZE(self.waits)):
            wait = <Wait>PyList_GET_ITEM(self.waits, index)
            wait.timeline.leave(wait)
        CORE_UNLOCK()
        self.waits = []


@cython.final
cdef class Sleeper(GroupWaiter):
    """A thread asleep."""
    cdef PyThread_type_lock gate
    cdef bint awake

    def __cinit__(self):
        self.gate = PyThread_allocate_lock()
        if self.gate == NULL:
            raise MemoryError
        PyThread_acquire_lock_timed(self.gate, 0, 0)

    def __dealloc__(self):
        if self.gate != NULL:
            PyThread_free_lock(self.gate)

    cdef int go_on(self) except -1:
        """After: see `Waiter`."""
        self.wake()
        return 0

    cdef bint wake(self) noexcept:
        """After: see `Waiter`."""
        if not self.awake:
            self.awake = True
            PyThread_release_lock(self.gate)
        return True

    cdef bint sleep(self, uint64_t deadline) except -1:
        """Sleep until awoken or until the deadline, 0 for none. False: over time. Answers signals."""
        cdef uint64_t now
        cdef long long left = -1
        cdef int got
        while True:
            if deadline:
                now = now_ns()
                left = 0 if now >= deadline else <long long>((deadline - now + 999) // 1000)
            PyErr_CheckSignals()
            with nogil:
                got = PyThread_acquire_lock_timed(self.gate, left, 1)
            if got == PY_LOCK_ACQUIRED:
                return True
            PyErr_CheckSignals()
            if deadline and now_ns() >= deadline:
                return False


cdef Py_ssize_t decided_index(list targets, bint any_of_them) except -2:
    """Return the index that decides a wait, or -1: of *any* the first reached; of *all* anything once all are.

    Raises:
        SemaphoreFailedError: a failure decides.

    """
    cdef Target target, failed = None
    cdef Py_ssize_t index, reached = 0
    for index in range(len(targets)):
        target = <Target>targets[index]
        if target.timeline.payload >= target.value:
            if any_of_them:
                return index
            reached += 1
        elif target.timeline.failure is not None and failed is None:
            failed = target
    if failed is not None:
        raise failed_error(failed.timeline, failed.value)
    return 0 if reached == len(targets) and not any_of_them else -1


def decided(targets, any_of_them):
    """Return the index that decides a wait, or None; raises if a failure does."""
    cdef Py_ssize_t index = decided_index(targets, any_of_them)
    return None if index < 0 else index


def begin_wait(targets):
    """Refuse what a forked child must not wait for, and see what the devices have done."""
    cdef Target target
    for target in targets:
        if target.timeline.generation != generation:
            refuse_forked(target.timeline)
        if target.timeline.promises:
            poll_promises(target.timeline)


def poll_devices():
    """Let every open device make a little progress here. Returns whether any did."""
    cdef bint done = False
    if turn_here().in_driver:
        return False
    for poll in tuple(pollers):
        done = poll() or done
    return done


cdef int poll_promises(Timeline timeline) except -1:
    """Retire what is over of the work that promises this timeline."""
    cdef Node *node
    cdef Submission one
    if turn_here().in_driver:
        return 0
    if timeline.promises == 1:
        node = order_first(timeline.claims)
        while node != NULL and not (<Claim>node.link).promised:
            node = order_next(node)
        if node != NULL:
            one = <Submission>(<Claim>node.link).owner
            look_at_device(one.native)
        return 0
    for native in {(<Submission>found).native for _, found in timeline.claimed()}:
        look_at_device(<Epochs>native)
    return 0


cdef int wait_for_one(Timeline timeline, uint64_t value, object timeout) except -1:
    """Wait for one target."""
    wait_for([new_target(timeline, value)], False, timeout)
    return 0


cdef Py_ssize_t wait_for(list targets, bint any_of_them, object given) except -1:
    """Wait for targets; returns the index of the one that decided.

    Raises:
        DeadlineExceededError: over time.
        SemaphoreFailedError: a failure decided.
        FailedPreconditionError: this thread must not block here.

    """
    cdef uint64_t deadline = 0
    cdef Py_ssize_t index
    cdef Turn *turn = turn_here()
    cdef Sleeper sleeper
    cdef object timeout = checked_timeout(given)
    begin_wait(targets)
    index = decided_index(targets, any_of_them)
    if index >= 0:
        return index
    if timeout is not None and timeout == 0:
        if not turn.running and not turn.in_driver:
            poll_devices()
        index = decided_index(targets, any_of_them)
        if index < 0:
            raise over_time(targets, 0.0)
        return index
    if turn.running or turn.in_driver:
        raise FailedPreconditionError(
            f"cannot block for {(<Target>targets[0]).timeline.describe()} to reach {(<Target>targets[0]).value} inside"
            " a callback, or inside a finalizer or a signal handler that interrupted a driver: poll with timeout=0, or"
            " wait elsewhere"
        )
    if timeout is not None:
        deadline = now_ns() + <uint64_t>(<double>timeout * 1e9)
    index = spin(targets, any_of_them, deadline)
    if index >= 0:
        return index
    sleeper = Sleeper(targets, any_of_them)
    pool = host_pool_of_thread()
    try:
        if sleeper.register():
            if pool is not None:
                pool.worker_blocks()
            try:
                sleeper.sleep(deadline)
            finally:
                if pool is not None:
                    pool.worker_resumes()
    finally:
        sleeper.unregister()
    begin_wait(targets)
    index = decided_index(targets, any_of_them)
    if index < 0:
        raise over_time(targets, timeout)
    return index


cdef Py_ssize_t spin(list targets, bint any_of_them, uint64_t deadline) except -2:
    """Look for a short while. Returns the deciding index, or -1: sleep."""
    global spin_ns
    cdef Py_ssize_t index
    cdef Target target = <Target>targets[0]
    cdef uint64_t begin = now_ns()
    cdef uint64_t budget = spin_ns
    cdef uint64_t now = begin
    cdef bint there
    cdef Submission promised = promised_with_word(targets)
    if promised is not None:
        watch_word(promised.native, promised.epoch_, deadline)
        begin_wait(targets)
        index = decided_index(targets, any_of_them)
        if index >= 0:
            return index
    while poll_devices():
        index = decided_index(targets, any_of_them)
        if index >= 0:
            return index
        if deadline and now_ns() >= deadline:
            return -1
    while now - begin < budget and (deadline == 0 or now < deadline):
        with nogil:
            there = spin_on_word(&target.timeline.payload, target.value, 2_000)
        index = decided_index(targets, any_of_them)
        if index >= 0:
            spin_ns = min(2 * budget, <uint64_t>SPIN_MOST_NS)
            return index
        if now_ns() - now > 1_000_000:
            break          # a busy thread kept the GIL: each look would cost a switch interval
        poll_devices()
        now = now_ns()
    spin_ns = max(budget // 2, <uint64_t>SPIN_LEAST_NS)
    return -1


cdef Submission promised_with_word(list targets):
    """Return the work that one of the targets is promised by, if a word in memory will tell of its end."""
    cdef Target target
    cdef PyObject *found
    cdef Submission one
    for target in targets:
        if target.timeline.payload < target.value:
            found = target.timeline.producer(target.value)
            if found != NULL:
                one = <Submission>found
                if one.native.stream.word != NULL and one.epoch_ > one.native.stream.event_only:
                    return one
    return None


cdef uint64_t patience = MOST_PATIENCE_NS
cdef int crowded = 0, word_waits = 0


cdef int watch_word(Epochs native, uint64_t epoch, uint64_t deadline) except -1:
    """Look at a device's word, for as long as it is likely to take and less costly than to sleep.

    First with the GIL, for as long as a short kernel takes; then without it. How long that may be is learnt: half as
    long after a time in vain, twice what it took after one that was not, and now and then as long as ever. Beside a
    thread that runs Python all the time the GIL does not come back before milliseconds have passed: when that was seen,
    the second part is left out for a while.
    """
    global patience, crowded, word_waits
    cdef TidegateStream *stream = native.stream
    cdef uint64_t begin, back, limit
    cdef bint there
    if spin_on_word(stream.word, epoch, HOLD_NS):
        return 0
    if crowded > 0:
        crowded -= 1
        return 0
    word_waits += 1
    limit = patience if word_waits % 16 else <uint64_t>MOST_PATIENCE_NS
    begin = now_ns()
    if deadline:
        if begin >= deadline:
            return 0
        limit = min(limit, deadline - begin)
    stream.watchers += 1        # so that its memory stays
    with nogil:
        there = spin_on_word(stream.word, epoch, limit)
        back = now_ns()
    stream.watchers -= 1
    if there:
        patience = min(max(patience, 2 * (back - begin)), <uint64_t>MOST_PATIENCE_NS)
    else:
        patience = max(patience // 2, <uint64_t>LEAST_PATIENCE_NS)
    if now_ns() - back > CROWDED_NS:
        crowded = 32
    return 0


def wait_points(wait, timeout):
    """Wait for what `wait=` says."""
    cdef list targets = points_of(wait)
    if targets:
        wait_for(targets, False, timeout)


cdef list points_of(object wait):
    """Return the targets of `wait=`."""
    if wait is None:
        return []
    if type(wait) is Timepoint or isinstance(wait, Submission):
        return [target_of(wait, "wait=")]
    try:
        points = iter(wait)
    except TypeError:
        raise TypeError(f"wait= takes timepoints and submissions, not {type(wait).__name__}") from None
    return [target_of(point, "wait=") for point in points]


cdef object over_time(list targets, object timeout):
    """The error of a wait that ran over. A poll's text is made only when read."""
    cdef Target target
    missing = [target.point for target in targets if target.timeline.payload < target.value]

    def text():
        return f"not reached within {timeout:g} s\n{explain_targets(missing)}"

    return DeadlineExceededError(text if timeout == 0 else text(), timeout=timeout)


def wait_all(points, timeout=None):
    """Block until every timepoint and submission is reached; an empty collection returns at once.

    Args:
        points: timepoints and submissions, of any devices.
        timeout: seconds for the whole call; None waits for ever, 0 polls.

    Raises:
        SemaphoreFailedError: the first failure among them; the others are left alone.
        DeadlineExceededError: over time.

    """
    _, targets = targets_of(points, "wait_all")
    checked_timeout(timeout)
    if targets:
        wait_for(targets, False, timeout)


def wait_any(points, timeout=None):
    """Block until one timepoint or submission is reached, and return that very object; None for an empty collection.

    Raises:
        SemaphoreFailedError: one failed before any was reached.
        DeadlineExceededError: over time.

    """
    listed, targets = targets_of(points, "wait_any")
    checked_timeout(timeout)
    return listed[wait_for(targets, True, timeout)] if targets else None
