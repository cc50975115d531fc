"""The public semaphore: the right to signal a timeline; its timepoints; and callbacks on them (M1 to M12)."""


@cython.final
cdef class Semaphore:
    """Semaphore(initial_value=0, label="")\n--\n\nA timeline: a 64-bit payload that only rises.

    Everybody may wait for it and signal it. It is host state, belongs to no device and works with all of them. Any
    thread may call anything here. While a semaphore object exists somebody may still signal it; when it is collected,
    those who wait for values it has not reached fail with AbortedError instead of hanging (M12).

    Args:
        initial_value: the first payload.
        label: the name in errors, explanations and traces.

    Raises:
        InvalidArgumentError: the initial value is not in 0..2**64-2.

    """

    cdef Timeline timeline
    cdef object __weakref__

    def __init__(self, initial_value=0, label=""):
        begin_timeline(self, initial_value, label, 0)

    def __del__(self):
        # Where the collector finalizes it, others hold it still.
        orphan(self.timeline, self, collecting and Py_REFCNT(self) > 1)

    def __dealloc__(self):
        orphan(self.timeline, self, False)    # a finalizer brought it back after its own, and now it goes for good

    def __repr__(self):
        cdef Timeline timeline = self.timeline
        label = f" {timeline.label!r}" if timeline.label else ""
        failed = "" if timeline.failure is None else f" failed={timeline.failure!r}"
        return f"<tidegate.Semaphore{label} value={timeline.payload}{failed}>"

    @property
    def label(self):
        """The name given to it."""
        return self.timeline.label

    @property
    def value(self):
        """The last payload. Never raises, also after a failure."""
        if self.timeline.promises:
            poll_promises(self.timeline)
        return self.timeline.payload

    @property
    def failure(self):
        """The first error, or None."""
        cdef Timeline timeline = self.timeline
        if timeline.promises:
            poll_promises(timeline)
        mark_seen(timeline.unseen)
        return timeline.failure

    def query(self):
        """Return the payload.

        Raises:
            SemaphoreFailedError: the semaphore has failed; `__cause__` is the first error.

        """
        cdef Timeline timeline = self.timeline
        if timeline.generation != generation:
            refuse_forked(timeline)
        if timeline.promises:
            poll_promises(timeline)
        if timeline.failure is not None:
            raise failed_error(timeline, min(timeline.payload + 1, MOST))
        return timeline.payload

    def signal(self, value):
        """Raise the payload to `value` and set free whoever waits for it. Never blocks.

        Callbacks run on this thread before the call returns (M10).

        Raises:
            InvalidArgumentError: the value does not raise the payload; nothing has changed.
            SemaphoreFailedError: the semaphore has failed.

        """
        signal_by(self, checked_value(value, self.timeline, None))

    def fail(self, error):
        """Fail the semaphore: whoever waits for an unreached value gets `error` as cause. The first failure wins.

        What was reached stays reached (M7). Never blocks.
        """
        cdef Timeline timeline = self.timeline
        cdef Chain due = Chain(NULL, NULL, NULL, NULL)
        if not isinstance(error, BaseException):
            raise TypeError(f"{timeline.describe()}: fail takes an exception, not {type(error).__name__}")
        if timeline.generation != generation:
            refuse_forked(timeline)
        if timeline.promises:
            poll_promises(timeline)
        forget_frames(error)
        record = record_of(error)
        CORE_LOCK()
        timeline.fail(error, record, &due)
        CORE_UNLOCK()
        drain(&due)

    def wait(self, value, timeout=None):
        """Block until the payload is `value` or more.

        Args:
            value: the payload to wait for.
            timeout: seconds; None waits for ever, 0 polls.

        Raises:
            DeadlineExceededError: not reached in time; the text says who was to signal.
            SemaphoreFailedError: it failed before it got there.
            InvalidArgumentError: the timeout is negative or not a number.

        """
        cdef uint64_t target = checked_value(value, self.timeline, None)
        if self.timeline.payload >= target and timeout is None and self.timeline.generation == generation:
            return
        wait_for_one(self.timeline, target, timeout)

    def at(self, value):
        """Return the timepoint of this semaphore at `value`."""
        return point_at(self, checked_value(value, self.timeline, None))

    def next(self):
        """Return the timepoint one above the payload and every value claimed or given out so far."""
        cdef Timeline timeline = self.timeline
        cdef uint64_t value
        CORE_LOCK()
        value = timeline.high if timeline.high > timeline.payload else timeline.payload
        if value < MOST:
            timeline.high = value + 1
        CORE_UNLOCK()
        return point_at(self, checked_value(<object>value + 1, timeline, None))

    def _timeline(self):
        """Return the state behind it."""
        return self.timeline

    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError(f"{self.timeline.describe()} belongs to its process and cannot be pickled")


cdef int begin_timeline(Semaphore semaphore, object initial_value, object label, int above) except -1:
    cdef uint64_t value = checked_value(initial_value, None, f"semaphore {label!r}" if label else "a new semaphore")
    cdef Timeline timeline = Timeline.__new__(Timeline)
    timeline.payload = timeline.high = value
    timeline.label = label
    timeline.code = site_here(above, &timeline.lasti)
    semaphore.timeline = timeline
    timeline.owner = <PyObject *>semaphore
    return 0


def new_semaphore(initial_value, label, int above):
    """Return a semaphore for the user; `above` is how many of our Python frames stand in between."""
    cdef Semaphore semaphore = Semaphore.__new__(Semaphore)
    begin_timeline(semaphore, initial_value, label, above)
    return semaphore


# Nobody is left who could signal (M12). What is garbage together with a semaphore may still signal it in a finalizer:
# those of one collection have all run when that ends, and not before it is said that nobody will.

cdef list orphans = []
cdef bint collecting = False


cdef void orphan(Timeline timeline, Semaphore semaphore, bint with_others) noexcept:
    """The semaphore of a timeline goes, alone or with other garbage of a collection."""
    if timeline is None or timeline.owner != <PyObject *>semaphore:
        return
    timeline.owner = NULL
    if timeline.waits != NULL and timeline.generation == generation and not is_exiting:
        if with_others:
            orphans.append(timeline)
        else:
            leave_note(fail_orphans, ([timeline],))


def fail_orphans(list given):
    """Fail the timelines that nobody can signal any more: on a thread of ours, for this may be anywhere."""
    cdef Chain due = Chain(NULL, NULL, NULL, NULL)
    cdef Timeline timeline
    for timeline in given:
        if timeline.owner == NULL:
            error = AbortedError(
                f"{timeline.describe()} was dropped at {timeline.payload}: nobody is left who could signal"
            )
            CORE_LOCK()
            timeline.fail(error, None, &due)
            CORE_UNLOCK()
    drain(&due)


def on_collection(phase, _):
    """The collector begins, or has ended."""
    global collecting, orphans
    collecting = phase == "start"
    if not collecting and orphans:
        given, orphans = orphans, []
        leave_note(fail_orphans, (given,))


gc.callbacks.append(on_collection)


cdef Semaphore semaphore_over(Timeline timeline):
    """Return the semaphore of a timeline, made anew if it was collected."""
    cdef Semaphore semaphore
    if timeline.owner != NULL:
        return <Semaphore>timeline.owner
    semaphore = Semaphore.__new__(Semaphore)
    semaphore.timeline = timeline
    timeline.owner = <PyObject *>semaphore
    return semaphore


cdef inline int signal_by(Semaphore semaphore, uint64_t value) except -1:
    cdef Timeline timeline = semaphore.timeline
    cdef Chain due = Chain(NULL, NULL, NULL, NULL)
    cdef bint rises
    if timeline.generation != generation:
        refuse_forked(timeline)
    if timeline.owner == NULL:
        timeline.owner = <PyObject *>semaphore     # a finalizer has brought it back
    CORE_LOCK()
    rises = timeline.failure is None and timeline.payload < value
    if rises:
        timeline.rise(value, &due)
    CORE_UNLOCK()
    if not rises:
        raise not_raised(timeline, value)
    return drain(&due)


cdef object not_raised(Timeline timeline, uint64_t value):
    if timeline.failure is not None:
        return failed_error(timeline, value)
    return InvalidArgumentError(
        f"{timeline.describe()}: cannot signal {value}: the payload is {timeline.payload} and must rise",
        value=value,
        payload=timeline.payload,
    )


cdef object failed_error(Timeline timeline, uint64_t value):
    """Return the error for somebody who waits for, or wants to signal, a failed timeline."""
    cause = timeline.failure
    mark_seen(timeline.unseen)
    point = None if timeline.owner == NULL else point_at(<Semaphore>timeline.owner, value)
    error = SemaphoreFailedError(
        f"{timeline.describe()} failed at {timeline.payload}, before {value}: {brief(cause)}", timepoint=point
    )
    error.__cause__ = cause
    return error


cdef inline void mark_seen(object record) noexcept:
    """Somebody is told of an error: its record need not be reported (M21)."""
    if record is not None:
        record.seen = True


cdef int refuse_forked(Timeline timeline) except -1:
    raise FailedPreconditionError(
        f"{timeline.describe()} was made before this process was forked: make a new one in the child"
    )


cdef object site_here(int above, int *lasti):
    """Return the code object of the user's call and the instruction in it: resolved to a line when asked (M13)."""
    cdef PyObject *found = code_of_caller(above, lasti)
    if found == NULL:
        return None
    code = <object>found
    Py_DECREF(code)
    return code


# Timepoints -----------------------------------------------------------------------------------------------------------


@cython.final
@cython.freelist(64)
cdef class Timepoint:
    """(semaphore, value): reached once the payload is `value` or more. Equal and hashed by that pair.

    It may signal too, so it holds the semaphore.
    """

    cdef readonly Semaphore semaphore
    """The semaphore."""
    cdef uint64_t target

    def __init__(self, Semaphore semaphore not None, value):
        self.semaphore = semaphore
        self.target = checked_value(value, semaphore.timeline, None)

    @property
    def value(self):
        """The value."""
        return self.target

    def __eq__(self, other):
        return (
            type(other) is Timepoint
            and self.semaphore.timeline is (<Timepoint>other).semaphore.timeline
            and self.target == (<Timepoint>other).target
        )

    def __hash__(self):
        return hash((<uintptr_t><PyObject *>self.semaphore.timeline, self.target))

    def __repr__(self):
        cdef Timeline timeline = self.semaphore.timeline
        return f"<tidegate.Timepoint {timeline.label or hex(<uintptr_t><PyObject *>timeline)}@{self.target}>"

    @property
    def reached(self):
        """Whether the payload has got there. Never raises."""
        cdef Timeline timeline = self.semaphore.timeline
        if timeline.payload < self.target and timeline.promises:
            poll_promises(timeline)
        return timeline.payload >= self.target

    @property
    def is_over(self):
        """Whether it is reached or failed; nothing is looked at for that."""
        cdef Timeline timeline = self.semaphore.timeline
        return timeline.payload >= self.target or timeline.failure is not None

    def wait(self, timeout=None):
        """Block until it is reached: see `Semaphore.wait`."""
        wait_for_one(self.semaphore.timeline, self.target, timeout)

    def __await__(self):
        return await_point(self)

    def signal(self):
        """Raise the semaphore to this value: see `Semaphore.signal`."""
        signal_by(self.semaphore, self.target)

    def fail(self, error):
        """Fail the semaphore: see `Semaphore.fail`."""
        self.semaphore.fail(error)

    def _issued_by(self):
        """Return the submission on a counting device that will bring it, or None: for drivers."""
        cdef PyObject *found = self.semaphore.timeline.producer(self.target)
        return None if found == NULL else <object>found

    def explain(self):
        """Say who is to signal this timepoint and what that waits for in turn (M13)."""
        return explain_point(self)

    def add_callback(self, function):
        """Have `function(timepoint, outcome, error)` called exactly once, when this is reached or failed (M10).

        It runs on the thread that decides, outside of every lock, and must not block; if the timepoint is decided
        already, on this thread before the call returns. What it raises goes to `sys.unraisablehook`.
        """
        if not callable(function):
            raise TypeError(f"add_callback takes a function, not {type(function).__name__}")
        return subscribe(self.semaphore.timeline, self.target, function, True)


cdef inline Timepoint point_at(Semaphore semaphore, uint64_t value):
    cdef Timepoint point = Timepoint.__new__(Timepoint)
    point.semaphore = semaphore
    point.target = value
    return point


# Callbacks ------------------------------------------------------------------------------------------------------------

cdef enum:
    WAITING, OVER, CANCELLED    # of a subscription


@cython.final
cdef class Subscription(Waiter):
    """A registered callback."""
    cdef Wait wait
    cdef object function
    cdef object error
    cdef object unseen            # the record of that error
    cdef bint tells               # whether the callback is told what has happened
    cdef int phase

    def __init__(self):
        raise TypeError("subscriptions are made by add_callback")

    cdef void decided(self, Wait wait, Chain *due) noexcept:
        """Step: see `Waiter`."""
        if self.phase == WAITING:
            if wait.timeline.payload < wait.node.value:
                self.error = wait.timeline.failure
                self.unseen = wait.timeline.unseen
            self.push(due)

    cdef int go_on(self) except -1:
        """After: call, once. What the callback raises goes to `sys.unraisablehook` and harms nobody."""
        cdef Wait wait = self.wait
        function = self.function
        if self.phase != WAITING:
            return 0
        self.phase = OVER
        self.wait = None
        self.function = None
        given = ()
        if self.tells:
            # The waiter holds the timeline, not the semaphore (M12): the timepoint is made anew.
            point = point_at(semaphore_over(wait.timeline), wait.node.value)
            given = (point, REACHED if self.error is None else FAILED, self.error)
            mark_seen(self.unseen)
        try:
            function(*given)
        except Exception as error:
            report_unraisable(error, function)
        return 0

    def cancel(self):
        """Take the callback back. True: it was not called and never will be."""
        cdef Wait wait
        if self.phase == WAITING:
            CORE_LOCK()
            self.phase = CANCELLED
            wait = self.wait
            if wait is not None and wait.at != NULL:
                wait.timeline.leave(wait)
            CORE_UNLOCK()
            self.wait = None
            self.function = None
        return self.phase == CANCELLED


cdef Subscription subscribe(Timeline timeline, uint64_t value, object function, bint tells):
    """Register a callback; called at once if its timepoint is decided."""
    cdef Chain due = Chain(NULL, NULL, NULL, NULL)
    cdef Subscription made = Subscription.__new__(Subscription)
    cdef Wait wait = Wait.__new__(Wait)
    if timeline.generation != generation:
        refuse_forked(timeline)
    deferred.ensure()
    made.function = function
    made.tells = tells
    made.wait = wait
    wait.owner = made
    wait.timeline = timeline
    wait.node.value = value
    CORE_LOCK()
    if timeline.payload >= value or timeline.failure is not None:
        made.decided(wait, &due)
    else:
        timeline.stand(wait)
    CORE_UNLOCK()
    if wait.at != NULL and timeline.promises:
        try:
            wake_up_for(timeline, value)
        except BaseException:
            made.cancel()
            raise
    drain(&due)
    return made


def when_over(point, function):
    """Have `function()` called when a timepoint or submission is over, well or not."""
    cdef Target target = target_of(point, "when_over")
    return subscribe(target.timeline, target.value, function, False)
