"""A CUDA stream with its epochs: what it has of them, how full it is, and where each epoch ends.

A *point* is the end of one epoch: the event behind it, how many of the stream's places the submission takes, and what
it has of the staging ring. The points of what is not over yet stand in line.
"""

cdef enum:
    BUDGET_ = 384         # so many places may be taken when more is put on; one submission takes 256 at most
    POINTS = 1024         # so many there is room for at first, more than places may be taken; a power of two

BUDGET = BUDGET_

cdef struct Point:
    uint64_t epoch
    PyObject *event       # used once, and owned
    uint64_t begin        # what it has of the staging ring; `end` 0: nothing
    uint64_t end
    uint32_t places
    bint event_only       # whether only the event tells of its end

cdef struct CudaStream:
    TidegateStream base
    PyObject *state       # the `StreamState` that it belongs to; NULL: it is gone
    uint64_t last_word    # what the word said when the device was closed


cdef void release_stream(TidegateStream *stream) noexcept:
    """Either its `StreamState` or its timeline is gone: the other one frees it."""
    if (<CudaStream *>stream).state == NULL and stream.epochs == NULL:
        free(stream)


@cython.final
@cython.no_gc_clear
cdef class StreamState:
    """The compiled side of a stream. Everything but what looks is under the device's lock.

    Args:
        device: the device.
        handle: the CUstream.
        word: the address of its word; 0 where epochs are told by events alone.
        priority: the native priority; None for a stream of somebody else, who alone says what goes there.

    """
    cdef CudaStream *own
    cdef DeviceState device
    cdef void *at
    cdef uint64_t found           # the last epoch that an event has told of
    cdef public uint64_t closed_epoch
    """The last epoch whose end is on the stream."""
    cdef public uint64_t parked_until
    """The last epoch that waits for another stream; nothing independent goes behind it (M15)."""
    cdef public Py_ssize_t places
    """How many of the native queue's places may be taken."""
    cdef public bint lent
    """Whether one user has it for itself at the moment."""
    cdef bint is_ours
    cdef int native_priority
    cdef Point *points            # a ring
    cdef Py_ssize_t first, count, capacity
    cdef uint64_t failed_epoch    # what failed on the compiled way, until the timeline was told
    cdef int failed_call, failed_code

    def __cinit__(self):
        self.own = <CudaStream *>calloc(1, sizeof(CudaStream))
        self.points = <Point *>realloc(NULL, POINTS * sizeof(Point))
        self.capacity = POINTS
        if self.own == NULL or self.points == NULL:
            raise MemoryError
        self.own.state = <PyObject *>self
        self.own.base.release = release_stream

    def __init__(self, DeviceState device not None, uintptr_t handle, uintptr_t word, priority):
        self.device = device
        self.at = <void *>handle
        self.own.base.word = <const uint64_t *>word
        self.is_ours = priority is not None
        self.native_priority = priority if self.is_ours else 0

    def __dealloc__(self):
        cdef Py_ssize_t index
        for index in range(self.count):       # of a device that went with work on it
            Py_DECREF(<object>self.points[(self.first + index) & (self.capacity - 1)].event)
        free(self.points)
        if self.own != NULL:
            self.own.state = NULL
            if self.own.base.word != NULL and self.own.base.word != &self.own.last_word:
                self.own.last_word = self.found     # the device went without having been closed
                self.own.base.word = &self.own.last_word
            release_stream(&self.own.base)

    @property
    def address(self):
        """Of its `TidegateStream`."""
        return <uintptr_t>self.own

    @property
    def timeline(self):
        """Its timeline, or None."""
        return None if self.own.base.epochs == NULL else <object>self.own.base.epochs

    @property
    def handle(self):
        """The CUstream."""
        return <uintptr_t>self.at

    @property
    def priority(self):
        """The native priority, None for a stream of somebody else."""
        return self.native_priority if self.is_ours else None

    @property
    def word(self):
        """What its word says, 0 where it has none."""
        return 0 if self.own.base.word == NULL else load_word(self.own.base.word)

    @property
    def word_address(self):
        """Where that is, 0 if it has none."""
        return <uintptr_t>self.own.base.word

    @property
    def event_only(self):
        """The last epoch of which its event may be the only one that tells."""
        return self.own.base.event_only

    @property
    def watchers(self):
        """How many threads look at its word without the GIL."""
        return self.own.base.watchers

    @property
    def failed(self):
        """Whether some epoch may have ended badly, or there is something to do when it ends."""
        return bool(self.own.base.failed)

    @failed.setter
    def failed(self, bint failed):
        self.own.base.failed = failed

    @property
    def reached(self):
        """The last epoch that is over."""
        cdef int code
        cdef bint pushed
        if known(self) >= self.own.base.event_only or self.device.doomed is not None:
            return known(self)
        pushed = self.device.enter()
        try:
            self.device.lock.acquire()
            try:
                code = ask_events_slowly(self) if self.device.releases else ask_events(self)
            finally:
                self.device.lock.release()
        finally:
            if pushed:
                self.device.leave()
        if code and self.device.doomed is None:
            # Many read this, some under locks: whoever looks next tells.
            self.device.doomed = self.device.native.error(CALLS[IN_QUERY], code)
        return known(self)

    @property
    def idle(self):
        """Whether everything issued is over."""
        return self.reached == self.own.base.issued

    @property
    def parked(self):
        """Whether something on it may still wait for another stream."""
        return self.parked_until > self.reached

    def follow(self, StreamState other not None, uint64_t epoch):
        """Wait for an epoch of another stream that is not over."""
        cdef Point *point = point_at(other, epoch)
        cdef void *event
        cdef int code
        if point == NULL:
            return                # it is over
        event = (<Event>point.event).at
        if self.device.releases:
            with nogil:
                code = self.device.wait_event(self.at, event, 0)
        else:
            code = self.device.wait_event(self.at, event, 0)
        if code:
            self.device.refuse(IN_WAIT, code)

    def close(self, uint32_t places, bint event_only=False):
        """End the last epoch that was taken: its word, its event, its point.

        Args:
            places: how many places its work takes.
            event_only: whether no word shall be raised behind it.

        """
        cdef int call = IN_RECORD, code
        if self.device.event_pool.count == 0:
            self.device.event_pool.grow()
        if self.count == self.capacity and not double_room(self):
            raise MemoryError
        if self.device.releases:
            code = end_epoch_slowly(self, places, event_only, &call)
        else:
            code = end_epoch(self, self.own.base.issued, places, event_only, 0, 0, &call)
        if code:
            self.device.refuse(call, code)

    def event_at(self, uint64_t epoch):
        """Return the event behind an epoch that is not over, or behind the next one that has one; None: there is none."""
        cdef Point *point = point_at(self, epoch)
        return None if point == NULL else <object>point.event

    def collect(self, Py_ssize_t most=8):
        """Take back what is over, a bounded number each time: every submission adds one."""
        self.reached
        collect(self, most)

    def take_failure(self):
        """Return epoch, call and code of what failed on the compiled way, once; None: nothing has."""
        cdef uint64_t epoch = self.failed_epoch
        self.failed_epoch = 0
        return (epoch, CALLS[self.failed_call], self.failed_code) if epoch else None

    def leave_word(self):
        """The device is being closed: say from now on what the word says now."""
        if self.own.base.word != NULL:
            self.own.last_word = load_word(self.own.base.word)
            self.own.base.word = &self.own.last_word


cdef inline uint64_t known(StreamState stream) noexcept:
    """Step: the last epoch that is over, without asking CUDA."""
    cdef uint64_t word = 0 if stream.own.base.word == NULL else load_word(stream.own.base.word)
    return word if word > stream.found else stream.found


cdef Point *next_event_only(StreamState stream) noexcept:
    """Step: the point of the next epoch that is not known to be over, if only its event tells; else NULL."""
    cdef uint64_t reached = known(stream)
    cdef Py_ssize_t index
    cdef Point *point
    for index in range(stream.count):
        point = &stream.points[(stream.first + index) & (stream.capacity - 1)]
        if point.epoch > reached:
            return point if point.event_only else NULL
    return NULL


cdef int ask_events(StreamState stream) noexcept:
    """Step: ask the events of the epochs that no word tells of, if one of those is the next. Returns CUDA's code."""
    cdef Point *point = next_event_only(stream)
    cdef int code
    while point != NULL:
        code = stream.device.query((<Event>point.event).at)
        if code:
            return 0 if code == NOT_READY else code
        stream.found = point.epoch
        point = next_event_only(stream)
    return 0


cdef int ask_events_slowly(StreamState stream) noexcept:
    """The same, with the GIL given away for each call."""
    cdef Point *point = next_event_only(stream)
    cdef void *event
    cdef int code
    while point != NULL:
        event = (<Event>point.event).at
        with nogil:
            code = stream.device.query(event)
        if code:
            return 0 if code == NOT_READY else code
        stream.found = point.epoch
        point = next_event_only(stream)
    return 0


cdef uint64_t reached_now(StreamState stream) noexcept:
    """Step: the last epoch that is over; events are asked where they must be. Under the lock, with the context current."""
    if known(stream) < stream.own.base.event_only and stream.device.doomed is None:
        ask_events(stream)
    return known(stream)


cdef Point *point_at(StreamState stream, uint64_t epoch) noexcept:
    """Step: the point of an epoch that is not over, or the next one behind it; NULL: there is none."""
    cdef Py_ssize_t index = 0
    cdef Point *point
    if stream.count == 0:
        return NULL
    point = &stream.points[stream.first]
    if epoch > point.epoch:
        index = <Py_ssize_t>min(epoch - point.epoch, <uint64_t>(stream.count - 1))
        while index > 0 and stream.points[(stream.first + index - 1) & (stream.capacity - 1)].epoch >= epoch:
            index -= 1    # epochs stand one after the other, unless something came between
    while index < stream.count:
        point = &stream.points[(stream.first + index) & (stream.capacity - 1)]
        if point.epoch >= epoch:
            return point
        index += 1
    return NULL


cdef bint double_room(StreamState stream) noexcept:
    """Have room for twice as many points. There are `capacity` of them."""
    cdef Point *points = <Point *>realloc(stream.points, 2 * stream.capacity * sizeof(Point))
    if points == NULL:
        return False
    memcpy(&points[stream.capacity], points, stream.first * sizeof(Point))    # those that come round behind the end
    stream.points = points
    stream.capacity *= 2
    return True


cdef int end_epoch(
    StreamState stream, uint64_t epoch, uint32_t places, bint event_only, uint64_t begin, uint64_t end, int *call
) noexcept:
    """Step: end an epoch: its word, its event, its point. There is a free event, and room. Returns CUDA's code."""
    cdef DeviceState device = stream.device
    cdef uint64_t word = <uint64_t><uintptr_t>stream.own.base.word
    cdef PyObject *event = device.event_pool.pop()
    cdef int code = 0
    if word and not event_only:
        call[0] = IN_WRITE
        code = device.write(stream.at, word, epoch, 0)
    if code == 0:
        call[0] = IN_RECORD
        code = device.record((<Event>event).at, stream.at)
    if code:
        device.event_pool.end_use(event)
        Py_DECREF(<Event>event)
    else:
        add_point(stream, Point(epoch, event, begin, end, places + 1, event_only or not word))
    return code


cdef int end_epoch_slowly(StreamState stream, uint32_t places, bint event_only, int *call) noexcept:
    """The same of the last epoch that was taken, with the GIL given away for each call."""
    cdef DeviceState device = stream.device
    cdef uint64_t word = <uint64_t><uintptr_t>stream.own.base.word
    cdef uint64_t epoch = stream.own.base.issued
    cdef PyObject *event = device.event_pool.pop()
    cdef void *at = (<Event>event).at
    cdef int code = 0
    with nogil:
        if word and not event_only:
            call[0] = IN_WRITE
            code = device.write(stream.at, word, epoch, 0)
        if code == 0:
            call[0] = IN_RECORD
            code = device.record(at, stream.at)
    if code:
        device.event_pool.end_use(event)
        Py_DECREF(<Event>event)
    else:
        add_point(stream, Point(epoch, event, 0, 0, places + 1, event_only or not word))
    return code


cdef void add_point(StreamState stream, Point point) noexcept:
    """Step: remember where an epoch ends."""
    stream.points[(stream.first + stream.count) & (stream.capacity - 1)] = point
    stream.count += 1
    stream.places += point.places
    if point.event_only:
        stream.own.base.event_only = point.epoch
    stream.closed_epoch = point.epoch


cdef void drop_point(StreamState stream) noexcept:
    """Step: take the first point out of the line."""
    cdef Point *point = &stream.points[stream.first]
    cdef PyObject *event = point.event
    stream.first = (stream.first + 1) & (stream.capacity - 1)
    stream.count -= 1
    stream.places -= point.places
    if point.end and stream.device.ring is not None:
        stream.device.ring.put_back(point.begin, point.end)
    stream.device.event_pool.end_use(event)
    Py_DECREF(<Event>event)


cdef void collect(StreamState stream, Py_ssize_t most) noexcept:
    """Step: take back what is over, as far as that is known."""
    cdef uint64_t reached = known(stream)
    while stream.count and most and stream.points[stream.first].epoch <= reached:
        most -= 1
        drop_point(stream)
    if stream.count == 0:
        stream.places = 0     # whatever an interrupt has left
    if stream.own.base.event_only and stream.own.base.word != NULL \
            and load_word(stream.own.base.word) >= stream.own.base.event_only:
        stream.own.base.event_only = 0      # from here on the word tells again


cdef void collect_all(DeviceState device) noexcept:
    """Step: take back all that is over on all streams."""
    cdef Py_ssize_t index
    for index in range(PyList_GET_SIZE(device.streams)):
        collect(<StreamState>PyList_GET_ITEM(device.streams, index), -1)
