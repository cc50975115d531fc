"""What is to be done once a wait is decided (M10).

A step that decides waiters puts them onto a chain. After the step the chain joins what this thread has still to do, and
the thread does it: one after the other, what is added meanwhile included, so that a chain of any length needs no stack.
A callback that signals leaves what follows to the frame that runs it.

Elsewhere a thread must not go on with anything: inside of a driver written in Python, which may hold locks and be half
done, and where an object is freed, which may be anywhere in the user's code. There threads that sleep are woken, and the
rest goes to a thread of ours (`defer`). So a signal handler or a finalizer may signal and submit wherever it comes.
"""

cdef enum:
    SHARE = 256             # how many submissions one signal sets going on its own thread, ...
    SHARE_NS = 1_000_000    # ... and for how long, before another thread takes the rest


cdef class Waiter:
    """Whoever stands at timelines: a callback, a sleeping thread, a suspended task, held work."""
    cdef PyObject *next_due
    cdef PyObject *next_offered
    cdef bint is_due, is_offered
    cdef bint is_work            # whether another thread may go on with it: work, but never a user's callback

    cdef void decided(self, Wait wait, Chain *due) noexcept:
        """Step: a wait of this waiter is reached, or its timeline has failed."""

    cdef int go_on(self) except -1:
        """After: act on it. What this raises comes from outside (KeyboardInterrupt)."""
        return 0

    cdef bint wake(self) noexcept:
        """After: if this is a sleeping thread, wake it, and say so. Safe anywhere."""
        return False

    cdef void push(self, Chain *due) noexcept:
        """Step: put this onto a chain, once."""
        if self.is_due:
            return
        self.is_due = True
        self.next_due = NULL
        Py_INCREF(self)
        if due.first == NULL:
            due.first = <PyObject *>self
        else:
            (<Waiter>due.last).next_due = <PyObject *>self
        due.last = <PyObject *>self

    cdef void offer(self, Chain *due) noexcept:
        """Step: let this look whether it may go down already. To be decided comes before that and is no offer."""
        if self.is_offered or self.is_due:
            return
        self.is_offered = True
        self.next_offered = NULL
        Py_INCREF(self)
        if due.first_offered == NULL:
            due.first_offered = <PyObject *>self
        else:
            (<Waiter>due.last_offered).next_offered = <PyObject *>self
        due.last_offered = <PyObject *>self


cdef object put_note = deferred._notes.put
cdef bint is_exiting = False


cdef void leave_note(object function, tuple arguments) noexcept:
    """Have a thread of ours call a function. Safe anywhere: no Python runs here, and nothing is left while we exit."""
    if not is_exiting and not Py_IsFinalizing():
        put_note((function, arguments))


cdef int surely(object function, tuple arguments) except -1:
    """Call a function that may be called twice; what an interrupt cuts short a thread of ours does again."""
    try:
        function(*arguments)
    except BaseException:
        leave_note(function, arguments)
        raise
    return 0


cdef inline bint is_empty(Chain *due) noexcept:
    """Step: whether nothing is on a chain."""
    return due.first == NULL and due.first_offered == NULL


cdef void join_chains(Chain *due, Chain *more) noexcept:
    """Step: put one chain behind another."""
    if more.first != NULL:
        if due.first == NULL:
            due.first = more.first
        else:
            (<Waiter>due.last).next_due = more.first
        due.last = more.last
    if more.first_offered != NULL:
        if due.first_offered == NULL:
            due.first_offered = more.first_offered
        else:
            (<Waiter>due.last_offered).next_offered = more.first_offered
        due.last_offered = more.last_offered
    more.first = more.last = more.first_offered = more.last_offered = NULL


cdef Waiter take_first(Chain *due):
    """Take the next one off a chain: what is decided first. None: it is empty."""
    cdef Waiter waiter
    if due.first != NULL:
        waiter = <Waiter>due.first
        due.first = waiter.next_due
        waiter.is_due = False
    elif due.first_offered != NULL:
        waiter = <Waiter>due.first_offered
        due.first_offered = waiter.next_offered
        waiter.is_offered = False
    else:
        return None
    Py_DECREF(waiter)   # the chain's; this frame has one of its own
    return waiter


cdef inline int drain(Chain *due) except -1:
    """After: do what a step has set free, unless a frame of this thread is at it, which then does this too."""
    cdef Turn *turn
    if is_empty(due):
        return 0
    turn = turn_here()
    if turn.in_driver:
        defer(due)
        return 0
    join_chains(&turn.chain, due)
    return 0 if turn.running else take_turn(turn)


cdef int take_turn(Turn *turn) except -1:
    """After: run what this thread has to do to its end. What comes from outside meanwhile ends it here, not at all."""
    cdef Waiter waiter
    cdef Py_ssize_t share = -1 if turn.unlimited else SHARE
    cdef uint64_t end = 0
    turn.running = 1
    try:
        while True:
            waiter = take_first(&turn.chain)
            if waiter is None:
                return 0
            if waiter.is_work and share >= 0:
                if end == 0:
                    end = now_ns() + SHARE_NS
                share -= 1
                if share < 0 or (share % 16 == 0 and now_ns() > end):
                    hand_to_runner(waiter, turn)
                    share = 0
                    continue
            waiter.go_on()
    finally:
        turn.running = 0
        if not is_empty(&turn.chain):
            defer(&turn.chain)


cdef int hand_to_runner(Waiter first, Turn *turn) except -1:
    """Give the work on this thread's chain to another thread; callbacks stay."""
    cdef list given = [first]
    cdef Chain kept = Chain(NULL, NULL, NULL, NULL)
    cdef Waiter waiter
    while (waiter := take_first(&turn.chain)) is not None:
        if waiter.is_work:
            given.append(waiter)
        else:
            waiter.push(&kept)
    join_chains(&turn.chain, &kept)
    runner._notes.put((go_on_here, (given,)))    # not by `leave`, which is Python: an interrupt there would lose them
    return 0


cdef void defer(Chain *due) noexcept:
    """Wake the threads that sleep, and have a thread of ours do the rest."""
    cdef list given = []
    cdef Waiter waiter
    while (waiter := take_first(due)) is not None:
        if not waiter.wake():
            given.append(waiter)
    due.last = due.last_offered = NULL
    if given:
        leave_note(go_on_here, (given,))


def go_on_here(list given):
    """Act, on this thread of ours, on what other threads have set free."""
    cdef Chain due = Chain(NULL, NULL, NULL, NULL)
    cdef Waiter waiter
    turn_here().unlimited = 1
    for waiter in given:
        waiter.push(&due)
    given.clear()
    waiter = None
    drain(&due)


def work_without_limit():
    """This thread is one of ours: what a signal on it sets free is its own to do."""
    turn_here().unlimited = 1


def forget_turn():
    """In a forked child: what the parent's thread was in the middle of is not ours; the references stay with that."""
    cdef Turn *turn = turn_here()
    turn.chain = Chain(NULL, NULL, NULL, NULL)
    turn.running = turn.in_driver = 0
