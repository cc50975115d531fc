"""What is on a device, as far as steps know it: held, owned, and whether it takes more (M22, M35, M36).

The policy of devices (closing, losing, starving, trying again) is Python's: `Workload` there derives from this.
"""

cdef enum:
    OPEN, CLOSING, REFUSING       # what a device does with new work


cdef class Workload:
    """See the head of this file."""
    cdef PyObject *first_held     # borrowed: nobody owns held work but what it waits for
    cdef Submission first_owned   # everything past being held and not over
    cdef public object _refusal_error
    """A function that makes the error for refused work."""
    cdef int state
    cdef int generation
    cdef public bint _promises
    """Whether the driver takes waits for its own epochs."""
    cdef public bint _attention
    """Whether somebody must come when work ends: something was put off, or starves."""
    cdef readonly object _backlog
    """What the driver has no room for now, oldest first."""
    cdef readonly dict _starving
    """The allocations that found no memory, oldest first, each with its last error."""
    cdef bint trying
    cdef readonly bint _asked
    """Whether somebody came to try again while a thread was at it: that will do it once more."""
    cdef readonly Py_ssize_t _submitted
    cdef readonly Py_ssize_t _retired
    cdef readonly Py_ssize_t _issued_count
    cdef public object _dropped_failures
    cdef public object _failures
    cdef object __weakref__

    def __cinit__(self):
        self.generation = generation
        self._backlog = deque()
        self._starving = {}

    def _refuse(self, make_error, bint closing=False):
        """Take no more work, except what is a part of other work if this only closes."""
        self._refusal_error = make_error
        self.state = CLOSING if closing else REFUSING

    @property
    def _takes_work(self):
        return self.state == OPEN

    def _one_at_a_time(self, function):
        """Call a function, unless a thread is at it, which then calls it once more."""
        if self.trying:
            self._asked = True
            return
        self.trying = True
        try:
            while True:
                self._asked = False
                function()
                if not self._asked:
                    return
        except BaseException:
            leave_note(self._one_at_a_time, (function,))   # an interrupt: somebody else goes on
            raise
        finally:
            self.trying = False

    def _unfinished(self):
        """Return what it owns and what is held, as they are at one moment: nothing is missing because it moved on."""
        cdef list owned = []
        cdef list held = []
        cdef tuple both = (owned, held)
        cdef Submission one = self.first_owned
        cdef PyObject *at
        # From here on no object is made that the collector knows, so nothing comes between.
        while one is not None:
            owned.append(one)
            one = one.next_owned
        at = self.first_held
        while at != NULL:
            held.append(<Submission>at)
            at = (<Submission>at).next_held
        return both

    def _held_submissions(self):
        """Return what is held."""
        return self._unfinished()[1]

    def _owned_submissions(self):
        """Return what is past being held and not over."""
        return self._unfinished()[0]


cdef void own(Submission one) noexcept:
    """Step: its device owns it from here on."""
    cdef Workload workload = one.workload
    if one.is_owned:
        return
    one.is_owned = True
    workload._issued_count += 1
    one.before_owned = NULL
    one.next_owned = workload.first_owned
    if one.next_owned is not None:
        one.next_owned.before_owned = <PyObject *>one
    workload.first_owned = one


cdef void disown(Submission one) noexcept:
    """Step: its device owns it no longer. The caller holds it."""
    cdef Workload workload = one.workload
    if not one.is_owned:
        return
    one.is_owned = False
    workload._issued_count -= 1
    if one.next_owned is not None:
        one.next_owned.before_owned = one.before_owned
    if one.before_owned != NULL:
        (<Submission>one.before_owned).next_owned = one.next_owned
    else:
        workload.first_owned = one.next_owned
    one.before_owned = NULL
    one.next_owned = None


cdef void enter_held(Submission one) noexcept:
    """Step: its device knows that it is held."""
    cdef Workload workload = one.workload
    if one.is_held:
        return
    one.is_held = True
    one.before_held = NULL
    one.next_held = workload.first_held
    if one.next_held != NULL:
        (<Submission>one.next_held).before_held = <PyObject *>one
    workload.first_held = <PyObject *>one


cdef void leave_held(Submission one) noexcept:
    """Step: it is held no longer."""
    if not one.is_held:
        return
    one.is_held = False
    if one.next_held != NULL:
        (<Submission>one.next_held).before_held = one.before_held
    if one.before_held != NULL:
        (<Submission>one.before_held).next_held = one.next_held
    else:
        one.workload.first_held = one.next_held
    one.next_held = one.before_held = NULL


@cython.final
cdef class Sink:
    """Where a driver reports to. Knows the device weakly, so that one that was dropped can be collected.

    A driver may report from the very call in which the core has come to it. What the core does then is its own.
    """
    cdef object workload

    def __init__(self, Workload workload not None):
        self.workload = weakref.ref(workload)

    def finished(self, Submission ticket not None, error=None):
        """Work that was taken is over."""
        cdef Turn *turn = turn_here()
        cdef int before = turn.in_driver
        turn.in_driver = 0
        try:
            retire(ticket, error)
        finally:
            turn.in_driver = before

    def advance(self, timeline):
        """Somebody looks: retire what is over."""
        cdef Turn *turn = turn_here()
        cdef int before = turn.in_driver
        turn.in_driver = 0
        try:
            advance(timeline)
        finally:
            turn.in_driver = before

    def wake(self, timeline):
        """An epoch of which the core asked to be told is over."""
        self.advance(timeline)

    def room(self):
        """What was refused with "not now" may be tried again, or memory came back."""
        workload = self.workload()
        if workload is not None and workload._attention:
            leave_note(workload._after_retirement, ())

    def lost(self, error):
        """The device is gone."""
        cdef Turn *turn = turn_here()
        cdef int before = turn.in_driver
        workload = self.workload()
        if workload is None:
            return
        turn.in_driver = 0
        try:
            workload._lose(error)
        finally:
            turn.in_driver = before


def call_driver(function, *arguments):
    """Call a driver's function: what a signal handler or a finalizer begins meanwhile on this thread is put off."""
    cdef Turn *turn = turn_here()
    cdef int before = turn.in_driver
    turn.in_driver = 1
    try:
        return function(*arguments)
    finally:
        turn.in_driver = before


def inside_driver():
    """Whether this thread is inside of a driver, so that the caller is a finalizer or a signal handler."""
    return bool(turn_here().in_driver)


def inside_callback():
    """Whether this thread is inside of a callback."""
    return bool(turn_here().running)


def retire_submission(Submission one not None, error=None):
    """End a submission."""
    retire(one, error)
