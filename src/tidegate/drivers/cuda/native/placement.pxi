"""Where work goes: which stream takes it, and when none should (M15).

Streams are few and all alike. What follows a submission goes behind it on the same stream, where order costs nothing.
What waits for several, or for one that has others behind it already, needs a stream that would otherwise be empty, and
only half of them may stand waiting: a stream parked on an event holds up one of the device's few hardware queues, and
what is behind it too. The rest stays on the host until its waits are over. Independent work takes an empty stream; if
there is none it goes behind other independent work, never behind a wait.
"""

cdef enum:
    # What comes of looking for a stream.
    FOUND, NONE_NOW, MAKE_ONE

cdef struct CudaQueue:
    TidegateQueue base
    PyObject *state       # the `QueueState` around this


@cython.no_gc_clear
cdef class QueueState:
    """The compiled side of a queue: the streams of one priority.

    Args:
        device: the device.
        priority: the native priority of its streams.
        takes_all: whether the core may give it everything: not if it has ideas of its own where work shall go.

    """
    cdef CudaQueue own
    cdef DeviceState device
    cdef readonly int priority
    cdef StreamState last         # where work went last
    cdef bint takes_all

    def __init__(self, DeviceState device not None, int priority, bint takes_all=True):
        self.own.base.put = put
        self.own.state = <PyObject *>self
        self.device = device
        self.priority = priority
        self.takes_all = takes_all and not device.releases

    @property
    def native(self):
        """The address of its `TidegateQueue`, 0 if it has none."""
        return <uintptr_t>&self.own if self.takes_all else 0

    def choose(self, list waits not None):
        """Return a stream for work that waits for these (stream, epoch); False: none now; None: for one more.

        Under the lock, with the context current.
        """
        cdef StreamState stream, found = None
        cdef uint32_t count = 0
        cdef int answer
        cdef TidegateWait *open_waits = <TidegateWait *>realloc(NULL, (len(waits) + 1) * sizeof(TidegateWait))
        if open_waits == NULL:
            raise MemoryError
        try:
            for stream, epoch in waits:
                open_waits[count] = TidegateWait(&stream.own.base, epoch)
                count += 1
            answer = choose(self, open_waits, count)
            if answer == FOUND:
                found = self.last
        finally:
            free(open_waits)
        return found if answer == FOUND else None if answer == MAKE_ONE else False


    def empty_stream(self):
        """Return a stream with nothing on it; False: all are busy; None: there may be one more. As `choose`."""
        cdef int answer = choose_empty(self)
        return self.last if answer == FOUND else None if answer == MAKE_ONE else False


cdef bint may_park(DeviceState device) noexcept:
    """Step: whether one more stream may be lent or wait for another.

    Never more than half of them: there must be some left for what is independent of all that (M15). Devices that are
    open on one GPU share its hardware queues, and so that half.
    """
    cdef Py_ssize_t index, taken = 0
    cdef StreamState stream
    for index in range(PyList_GET_SIZE(device.streams)):
        stream = <StreamState>PyList_GET_ITEM(device.streams, index)
        taken += stream.lent or stream.parked_until > reached_now(stream)
    return taken < max(<Py_ssize_t>1, device.most_streams // (2 * device.peers))


cdef inline bint is_empty(StreamState stream) noexcept:
    """Step: whether it has nothing on it, and may be given something."""
    return not stream.lent and reached_now(stream) == stream.own.base.issued


cdef int choose(QueueState queue, const TidegateWait *waits, uint32_t count) noexcept:
    """Step: find a stream for work that waits for epochs that are not over; it is `queue.last` then."""
    cdef uint32_t index
    cdef StreamState stream
    if count == 0:
        if queue.last is not None and is_empty(queue.last):
            return FOUND
        return choose_independent(queue)
    if count == 1 or may_park(queue.device):
        for index in range(count):
            stream = <StreamState>(<CudaStream *>waits[index].stream).state
            if (
                stream.is_ours and stream.native_priority == queue.priority and not stream.lent
                and waits[index].epoch == stream.own.base.issued and stream.places < BUDGET_
            ):
                queue.last = stream
                return FOUND
    return choose_empty(queue) if may_park(queue.device) else NONE_NOW


cdef int choose_empty(QueueState queue) noexcept:
    """Step: find a stream with nothing on it."""
    cdef DeviceState device = queue.device
    cdef Py_ssize_t index
    cdef StreamState stream
    cdef bint any_of_these = False
    for index in range(PyList_GET_SIZE(device.streams)):
        stream = <StreamState>PyList_GET_ITEM(device.streams, index)
        if stream.is_ours and stream.native_priority == queue.priority:
            any_of_these = True
            if is_empty(stream):
                queue.last = stream
                return FOUND
    return NONE_NOW if any_of_these and device.made >= device.most_streams else MAKE_ONE


cdef int choose_independent(QueueState queue) noexcept:
    """Step: find an empty stream, or else the least loaded on which nothing waits."""
    cdef DeviceState device = queue.device
    cdef Py_ssize_t index
    cdef StreamState stream, least = None
    cdef uint64_t load, least_load = 0
    cdef int answer = choose_empty(queue)
    if answer != NONE_NOW:
        return answer
    for index in range(PyList_GET_SIZE(device.streams)):
        stream = <StreamState>PyList_GET_ITEM(device.streams, index)
        if not stream.is_ours or stream.native_priority != queue.priority or stream.lent:
            continue
        load = reached_now(stream)
        if stream.parked_until > load:
            continue
        load = stream.own.base.issued - load
        if least is None or load < least_load:
            least = stream
            least_load = load
    if least is None:
        return NONE_NOW
    collect(least, BUDGET_)
    if least.places >= BUDGET_:
        return NONE_NOW
    queue.last = least
    return FOUND
