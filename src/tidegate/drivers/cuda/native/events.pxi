"""Native events, used again and again.

An event is shared: the place on a stream behind which it was recorded holds it, and so does each thread that sleeps for
it. It may be recorded anew when the last of them has let go. Streams that wait for it hold nothing, because a wait
looks at the event once, when it is given to the stream. One that is forgotten by all of them, because an interrupt came
between taking it and noting it, leaves its handle for whoever needs one next.

There are two kinds. Records of plain events are free, however many. A thread that shall *sleep* for an event needs one
made for that, and of those a stream takes 56 records behind running work before the next one blocks its caller: so they
are recorded only for somebody who sleeps.
"""

EVENTS_AT_A_TIME = 32
"""So many are made at a time."""


@cython.final
cdef class Event:
    """A native event and how many use it. Made by an `EventPool`, which keeps it."""
    cdef void *at                 # NULL: it is destroyed
    cdef readonly Py_ssize_t uses

    @property
    def handle(self):
        """The CUevent."""
        return <uintptr_t>self.at


@cython.final
cdef class EventPool:
    """The events of one device. Any thread may use it, with the device's context current.

    Args:
        native: the way to CUDA.
        lock: the device's lock.
        blocking: whether threads shall sleep for its events.

    """
    cdef object native
    cdef DeviceLock lock
    cdef bint blocking
    cdef list events              # all
    cdef PyObject **free          # those that nobody uses, borrowed
    cdef Py_ssize_t count, capacity

    def __init__(self, native, DeviceLock lock not None, blocking=False):
        self.native = native
        self.lock = lock
        self.blocking = blocking
        self.events = []

    def __dealloc__(self):
        free(self.free)

    def __len__(self):
        return self.count         # how many are there for use

    def take(self):
        """Return an event of one's own; there is no limit to how many."""
        cdef PyObject *found
        self.lock.acquire()
        try:
            if self.count == 0:
                self.grow()
            found = self.pop()
        finally:
            self.lock.release()
        event = <Event>found
        Py_DECREF(event)   # the one that `pop` gave
        return event

    def share(self, Event event not None):
        """Count one more use."""
        event.uses += 1
        return event

    def give(self, Event event not None):
        """End one use."""
        self.end_use(<PyObject *>event)

    def trim(self):
        """Destroy what is free."""
        cdef Event event
        self.lock.acquire()
        try:
            self.take_back_forgotten()
            while self.count:
                self.count -= 1
                event = <Event>self.free[self.count]
                handle = <uintptr_t>event.at
                event.at = NULL      # before: it must not be found as one that is there
                self.native.destroy_event(handle)
        finally:
            self.events = [event for event in self.events if (<Event>event).at != NULL]
            self.lock.release()

    def grow(self):
        """Have some that are free. Under the lock, with the context current."""
        cdef PyObject **free
        cdef Event event
        self.take_back_forgotten()
        for _ in range(0 if self.count else EVENTS_AT_A_TIME):
            if PyList_GET_SIZE(self.events) >= self.capacity:
                free = <PyObject **>realloc(self.free, (2 * self.capacity + 64) * sizeof(PyObject *))
                if free == NULL:
                    raise MemoryError
                self.free = free
                self.capacity = 2 * self.capacity + 64
            event = Event.__new__(Event)
            event.at = <void *><uintptr_t>self.native.create_event(self.blocking)
            self.events.append(event)
            self.free[self.count] = <PyObject *>event
            self.count += 1

    cdef int take_back_forgotten(self) except -1:
        """Find events in use to which nobody refers any more: an interrupt came before they were noted somewhere."""
        cdef Py_ssize_t index
        cdef PyObject *event
        for index in range(PyList_GET_SIZE(self.events)):
            event = PyList_GET_ITEM(self.events, index)
            if Py_REFCNT(event) == 1 and (<Event>event).uses > 0:
                (<Event>event).uses = 1
                self.end_use(event)
        return 0

    cdef PyObject *pop(self) noexcept:
        """Step: return a reference to a free event, used once; NULL: there is none."""
        cdef PyObject *event = NULL
        SMALL_LOCK()
        if self.count:
            self.count -= 1
            event = self.free[self.count]
            (<Event>event).uses = 1
            Py_INCREF(<Event>event)
        SMALL_UNLOCK()
        return event

    cdef void end_use(self, PyObject *event) noexcept:
        """Step: one use less. The caller holds it."""
        SMALL_LOCK()
        (<Event>event).uses -= 1
        if (<Event>event).uses == 0:
            self.free[self.count] = event
            self.count += 1
        SMALL_UNLOCK()
