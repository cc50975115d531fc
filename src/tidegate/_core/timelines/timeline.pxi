"""The state behind a semaphore: a payload that only rises, at most one failure, who waits, who will signal (M1, M4 to M7).

A timeline owns those who wait (the `Wait`s that stand at it) and knows those who will signal by claims that it does not
own. So when nobody is left who could signal, the work that waits goes too, and with it what others wait for (M12).
"""

cdef uint64_t MOST = 18446744073709551614    # the largest payload

cdef int generation = 1
"""Counts the forks: what was made in another generation belongs to the parent process."""


@cython.trashcan(True)
cdef class Wait:
    """A place at a timeline. Owns who waits there, and is held by that as well until it has gone on."""
    cdef Node node
    cdef Waiter owner
    cdef Timeline timeline
    cdef PyObject *at             # the timeline where it stands, NULL while it does not; borrowed, for that owns this
    cdef Wait following           # those that stand at the same timeline, in no order
    cdef PyObject *before
    cdef Submission producer      # the work behind whose epoch the waiter was issued

    def __dealloc__(self):
        if self.at != NULL:
            order_remove(&(<Timeline>self.at).waits, &self.node)


cdef class Claim:
    """A submission will signal a timepoint. Holds the right to: the semaphore."""
    cdef Node node
    cdef Semaphore semaphore      # None for the timeline of the submission itself
    cdef Timeline timeline
    cdef PyObject *at             # the timeline where it stands, or NULL; that takes this away when it goes
    cdef PyObject *owner          # the submission, which takes its claims away when it goes
    cdef bint promised            # whether that is issued on a device that counts
    cdef object error             # of a lane's work that failed before its turn: the lane fails when it gets here,
    cdef object unseen            # with this record,
    cdef Claim next_failed        # and until then the timeline owns the claim

    def __dealloc__(self):
        if self.at != NULL:
            (<Timeline>self.at).withdraw(self)


cdef class Timeline:
    """See the head of this file."""
    cdef uint64_t payload, high
    cdef Node *waits
    cdef Node *claims
    cdef Wait standing            # all waits, owned
    cdef object failure
    cdef object unseen            # the record of that failure, until somebody looks at it
    cdef Claim failed_ahead       # claims that have failed before their turn
    cdef Py_ssize_t promises      # how many claims are of work that a device counts
    cdef PyObject *owner          # the semaphore, while there is one
    cdef int generation
    cdef int lasti
    cdef object code
    cdef object label
    cdef object __weakref__

    def __cinit__(self):
        self.generation = generation

    def __dealloc__(self):
        """Whoever stands here stands nowhere."""
        while self.claims != NULL:
            (<Claim>self.claims.link).at = NULL
            order_remove(&self.claims, self.claims)
        while self.waits != NULL:
            (<Wait>self.waits.link).at = NULL
            order_remove(&self.waits, self.waits)

    # Steps ------------------------------------------------------------------------------------------------------------

    cdef void stand(self, Wait wait) noexcept:
        """Step: let a wait stand here. The caller holds it."""
        wait.at = <PyObject *>self
        wait.node.link = <PyObject *>wait
        order_insert(&self.waits, &wait.node)
        wait.before = NULL
        wait.following = self.standing
        if self.standing is not None:
            self.standing.before = <PyObject *>wait
        self.standing = wait

    cdef void leave(self, Wait wait) noexcept:
        """Step: take a wait away, if it stands here. The caller holds it."""
        if wait.at == NULL:
            return
        wait.at = NULL
        order_remove(&self.waits, &wait.node)
        if self.standing is None:
            return      # the collector has been here: those that stood before this one may be gone
        if wait.following is not None:
            wait.following.before = wait.before
        if wait.before != NULL:
            (<Wait>wait.before).following = wait.following
        else:
            self.standing = wait.following
        wait.before = NULL
        wait.following = None

    cdef void collect(self, uint64_t limit, Chain *due) noexcept:
        """Step: tell everybody who waits for `limit` or less. Each wait is held by its waiter as well."""
        cdef Wait wait
        cdef Node *node
        while True:
            node = order_first(self.waits)
            if node == NULL or node.value > limit:
                return
            wait = <Wait>node.link
            self.leave(wait)
            if wait.owner is not None:
                wait.owner.decided(wait, due)

    cdef void rise(self, uint64_t value, Chain *due) noexcept:
        """Step: take the payload to a value above it."""
        self.payload = value
        if self.waits != NULL:
            self.collect(value, due)
        if self.failed_ahead is not None:
            self.fail_in_turn(due)

    cdef void fail_in_turn(self, Chain *due) noexcept:
        """Step: fail, if what stands next has failed before its turn."""
        cdef Claim claim = <Claim>order_first(self.claims).link
        if claim.error is not None and claim.node.value == self.payload + 1 and self.failure is None:
            self.fail(claim.error, claim.unseen, due)

    cdef void fail_later(self, Claim claim, object error, object record) noexcept:
        """Step: a lane's work has failed before its turn; failing now would reach the work in front of it (M17)."""
        claim.owner = NULL
        claim.error = error
        claim.unseen = record
        claim.next_failed = self.failed_ahead
        self.failed_ahead = claim

    cdef void fail(self, object error, object record, Chain *due) noexcept:
        """Step: fail, unless it has failed already; the first failure stays (M7). The caller holds both."""
        if self.failure is None:
            self.failure = error
            self.unseen = record
        if self.waits != NULL:
            self.collect(<uint64_t>-1, due)

    cdef void claim(self, Claim claim, Submission owner) noexcept:
        """Step: a submission will signal here."""
        claim.at = <PyObject *>self
        claim.owner = <PyObject *>owner
        claim.node.link = <PyObject *>claim
        order_insert(&self.claims, &claim.node)
        if self.high < claim.node.value:
            self.high = claim.node.value

    cdef void withdraw(self, Claim claim) noexcept:
        """Step: take a claim away, if it stands here."""
        if claim.at == NULL:
            return
        claim.at = NULL
        order_remove(&self.claims, &claim.node)
        if claim.promised:
            claim.promised = False
            self.promises -= 1

    cdef Claim claim_of(self, uint64_t value):
        """Return the claim on just this value, or None."""
        cdef Node *node = order_at_least(self.claims, value)
        return <Claim>node.link if node != NULL and node.value == value else None

    cdef inline bint is_claimed(self, uint64_t value) noexcept:
        """Step: whether a submission will signal just this value."""
        cdef Node *node
        if self.claims == NULL:
            return False
        node = order_at_least(self.claims, value)
        return node != NULL and node.value == value

    cdef PyObject *producer(self, uint64_t value) noexcept:
        """Step: the issued submission that will take the payload to `value`, if a device counts it.

        The one that claims this value, and where nobody does, whoever claims the next one above.
        """
        cdef Node *node
        if self.promises == 0:
            return NULL
        node = order_at_least(self.claims, value)
        if node == NULL or not (<Claim>node.link).promised:
            return NULL
        return (<Claim>node.link).owner

    # For texts --------------------------------------------------------------------------------------------------------

    cpdef str describe(self):
        """Return how texts name this timeline."""
        return f"semaphore {self.label!r}" if self.label else f"semaphore at {<uintptr_t><PyObject *>self:#x}"

    @property
    def value(self):
        """The payload."""
        return self.payload

    @property
    def error(self):
        """The failure, or None."""
        return self.failure

    @property
    def site(self):
        """Where the user made it: a code object and an instruction, or None."""
        return None if self.code is None else (self.code, self.lasti)

    def producer_of(self, value):
        """Return the submission that claims just this value, or None."""
        cdef Claim claim = self.claim_of(value)
        return None if claim is None or claim.owner == NULL else <object>claim.owner

    @property
    def highest(self):
        """The highest value that was claimed, given out or reached."""
        return self.high if self.high > self.payload else self.payload

    def claimed(self):
        """Return the values that are claimed, in order, each with the submission that does."""
        cdef list found = []    # made first: that may run the collector, and what it frees may stand here
        cdef Node *node = order_first(self.claims)
        while node != NULL:     # the objects alone: with anything that is made here the collector may run again
            found.append(<Claim>node.link)
            node = order_next(node)
        return [((<Claim>one).node.value, <object>(<Claim>one).owner) for one in found if (<Claim>one).at != NULL and (<Claim>one).owner != NULL]

    def waiting(self):
        """Return the submissions that wait here, in the order of the values that they wait for."""
        cdef list found = []    # made first: see `claimed`
        cdef Node *node = order_first(self.waits)
        while node != NULL:
            found.append(<Wait>node.link)
            node = order_next(node)
        return [
            ((<Wait>one).node.value, (<Wait>one).owner) for one in found if isinstance((<Wait>one).owner, Submission)
        ]


cdef class Completion(Timeline):
    """The timeline of one submission: 0, then 1. Made when somebody first waits for the submission itself."""
    cdef object kind, queue

    cpdef str describe(self):
        return described(self.kind, self.queue, self.code, self.lasti)


cdef uint64_t checked_value(object value, Timeline timeline, str what) except? 18446744073709551615:
    """Return a payload value, or raise what is wrong with it."""
    if type(value) is not int:
        if isinstance(value, bool) or not hasattr(value, "__index__"):
            raise TypeError(f"{what or timeline.describe()}: the value must be an int, not {type(value).__name__}")
        value = value.__index__()
    if not 0 <= value <= MOST:
        raise InvalidArgumentError(
            f"{what or timeline.describe()}: the value is {value}, and must be in 0..2**64-2", value=value
        )
    return <uint64_t>value
