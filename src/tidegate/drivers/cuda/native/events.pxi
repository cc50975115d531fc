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
@cython.no_gc_clear
cdef class Event:
    """A native event and how many use it. Made by an `EventPool`."""
    cdef EventPool pool
    cdef void *at
    cdef readonly Py_ssize_t uses

    def __dealloc__(self):
        if self.at != NULL:
            self.pool.inherit(self.at)

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
    cdef list free
    cdef void **left              # handles of events that were forgotten
    cdef Py_ssize_t left_count, left_capacity

    def __init__(self, native, DeviceLock lock not None, blocking=False):
        self.native = native
        self.lock = lock
        self.blocking = blocking
        self.free = []

    def __dealloc__(self):
        free(self.left)

    def __len__(self):
        return len(self.free)     # how many are there for use

    def take(self):
        """Return an event of one's own; there is no limit to how many."""
        cdef PyObject *found
        self.lock.acquire()
        try:
            found = self.pop()
            if found == NULL:
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
        self.end_use(event)

    def trim(self):
        """Destroy what is free."""
        cdef Event event
        self.lock.acquire()
        try:
            while self.free:
                event = self.free.pop()
                handle = <uintptr_t>event.at
                event.at = NULL      # before: it must not be left behind as one that is there
                self.native.destroy_event(handle)
            while self.left_count:
                self.left_count -= 1
                self.native.destroy_event(<uintptr_t>self.left[self.left_count])
        finally:
            self.lock.release()

    def grow(self):
        """Have some that are free. Under the lock, with the context current."""
        cdef Py_ssize_t count
        while self.left_count:
            self.left_count -= 1
            self.free.append(self.made(<uintptr_t>self.left[self.left_count]))
        for count in range(0 if self.free else EVENTS_AT_A_TIME):
            self.free.append(self.made(self.native.create_event(self.blocking)))

    cdef Event made(self, uintptr_t handle):
        cdef Event event = Event.__new__(Event)
        event.pool = self
        event.at = <void *>handle
        return event

    cdef PyObject *pop(self) noexcept:
        """Return a reference to a free event, used once; NULL: there is none."""
        cdef Event event = None
        SMALL_LOCK()
        if PyList_GET_SIZE(self.free):
            event = <Event>self.free.pop()
            event.uses = 1
            Py_INCREF(event)
        SMALL_UNLOCK()
        return <PyObject *>event if event is not None else NULL

    cdef void end_use(self, Event event) noexcept:
        SMALL_LOCK()
        event.uses -= 1
        if event.uses == 0:
            self.free.append(event)
        SMALL_UNLOCK()

    cdef void inherit(self, void *handle) noexcept:
        """An event was forgotten: keep its handle."""
        cdef void **left
        SMALL_LOCK()
        if self.left_count == self.left_capacity:
            left = <void **>realloc(self.left, (2 * self.left_capacity + 8) * sizeof(void *))
            if left != NULL:
                self.left = left
                self.left_capacity = 2 * self.left_capacity + 8
        if self.left_count < self.left_capacity:
            self.left[self.left_count] = handle
            self.left_count += 1
        SMALL_UNLOCK()
