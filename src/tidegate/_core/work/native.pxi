"""Devices that count, and the seam to those whose drivers are compiled (M2, M3; see `native.h`)."""

cdef extern from "native.h":
    ctypedef struct TidegateStream:
        const uint64_t *word
        uint64_t issued
        uint64_t event_only
        int failed
        int watchers
        void *epochs
        void (*release)(TidegateStream *) noexcept
    ctypedef struct TidegateWait:
        TidegateStream *stream
        uint64_t epoch
    enum:
        TIDEGATE_BARRIER, TIDEGATE_FILL, TIDEGATE_UPDATE, TIDEGATE_UPLOAD, TIDEGATE_DOWNLOAD, TIDEGATE_COPY
        TIDEGATE_DISPATCH, TIDEGATE_EXECUTE
        TIDEGATE_TAKEN, TIDEGATE_NOT_NOW, TIDEGATE_ELSEWHERE, TIDEGATE_FAILED
        TIDEGATE_INTEGER, TIDEGATE_FLOAT
    ctypedef struct TidegateWork:
        int kind
        uint64_t target
        uint64_t source
        uint64_t nbytes
        void *host
        uint32_t pattern
        uint32_t unit
        void *function
        uint32_t workgroups[3]
        uint32_t local_memory
        const uint64_t *bindings
        const uint64_t *binding_sizes
        const uint8_t *binding_visible
        uint32_t binding_count
        uint32_t constant_count
        const void *const *constants
        const uint32_t *constant_sizes
        const TidegateWait *waits
        uint32_t wait_count
        TidegateStream *stream
        uint64_t epoch
        int call
        int code
    ctypedef struct TidegateQueue:
        int (*put)(TidegateQueue *, TidegateWork *) noexcept

cdef enum:
    MOST_FLAT = 32          # with more bindings, constants or waits than this, work takes the way in Python
    LOOKS = 256             # every so many fruitless looks at a word the driver is asked whether something is wrong
    HOUSEKEEPING = 64       # every so many epochs the device tells of one although nobody listens


cdef class Epochs:
    """The native timeline of an in-order queue: epochs 1, 2, 3... (M2). See `driver.EpochTimeline`."""
    cdef TidegateStream own
    cdef TidegateStream *stream
    cdef Submission first         # in flight, oldest first: what was issued and is not over as far as the host knows
    cdef PyObject *last
    cdef unsigned looks
    cdef bint is_known            # whether whoever looks after this device looks here
    cdef bint is_stalled          # whether another thread is ending what must end first; then we are called
    cdef public object sink
    """Where its driver reports to; None before the device is connected."""

    def __cinit__(self):
        self.stream = &self.own
        self.own.failed = 1       # a driver in Python is always asked
        self.own.epochs = <void *>self

    def __dealloc__(self):
        cut_chain(self)
        if self.stream != &self.own:
            self.stream.epochs = NULL
            self.stream.release(self.stream)

    def _attach(self, uintptr_t address):
        """Use the stream of a compiled driver, by its address."""
        self.stream = <TidegateStream *>address
        self.stream.epochs = <void *>self

    @property
    def issued(self):
        """The last epoch that was taken."""
        return self.stream.issued

    @property
    def oldest(self):
        """What was issued first of all that is not over as far as the host knows, or None."""
        return self.first

    @property
    def in_flight(self):
        """What was issued and is not over as far as the host knows, oldest first."""
        cdef list found = []
        cdef Submission one = self.first
        while one is not None:
            found.append(one)
            one = one.next_in_flight
        return found

    def _go_on(self):
        """What had to end first has ended."""
        self.is_stalled = False
        surely(advance, (self,))

    def begin(self, Submission ticket not None):
        """Take the next epoch for `ticket`."""
        CORE_LOCK()
        self.stream.issued += 1
        ticket.epoch_ = self.stream.issued
        ticket.native = self
        ticket.taken = True
        enter_flight(self, ticket)
        CORE_UNLOCK()
        return ticket.epoch_


cdef void enter_flight(Epochs native, Submission one) noexcept:
    """Step: it is in flight, in the order of the epochs."""
    cdef Submission before
    one.is_in_flight = True
    if native.last == NULL:
        native.first = one
    elif (<Submission>native.last).epoch_ < one.epoch_:
        (<Submission>native.last).next_in_flight = one
    else:
        # Of two threads without a GIL the one with the later epoch was the first to come here.
        before = native.first
        if before.epoch_ > one.epoch_:
            one.next_in_flight = before
            native.first = one
        else:
            while before.next_in_flight.epoch_ < one.epoch_:
                before = before.next_in_flight
            one.next_in_flight = before.next_in_flight
            before.next_in_flight = one
        return
    native.last = <PyObject *>one


cdef void leave_flight(Epochs native, Submission one) noexcept:
    """Step: the first one in flight is over. The caller holds it."""
    if native.first is not one:
        return
    native.first = one.next_in_flight
    one.next_in_flight = None
    one.is_in_flight = False
    if native.first is None:
        native.last = NULL


cdef void cut_chain(Epochs native) noexcept:
    """Let go of what is in flight one by one: a chain of any length needs no stack."""
    cdef Submission one = native.first
    cdef Submission following
    native.first = None
    native.last = NULL
    while one is not None:
        following = one.next_in_flight
        one.next_in_flight = None
        one.is_in_flight = False
        one = following


cdef uint64_t reached_of(Epochs native) except? 18446744073709551615:
    """Return the last epoch that is over."""
    cdef uint64_t reached
    cdef Turn *turn
    cdef int before
    if native.stream.word != NULL:
        reached = word_load(native.stream.word)
        if reached >= native.stream.event_only:
            return reached
    turn = turn_here()
    before = turn.in_driver
    turn.in_driver = 1
    try:
        return native.reached
    finally:
        turn.in_driver = before


cpdef int look_at_device(Epochs native) except -1:
    """Retire what is over, if anything is."""
    cdef Turn *turn
    cdef int before
    if native is None or native.first is None:
        return 0
    if native.stream.word != NULL and native.stream.event_only == 0:
        if word_load(native.stream.word) >= native.first.epoch_:
            advance(native)
            return 0
        native.looks += 1
        if native.looks % LOOKS:
            return 0
    turn = turn_here()
    before = turn.in_driver
    turn.in_driver = 1
    try:
        native.advance()    # the driver looks: also for what no word tells
    finally:
        turn.in_driver = before
    return 0


cpdef advance(Epochs native):
    """Retire, in order, what a counting device has finished."""
    advance_by(native, 1 << 62)


cdef int advance_by(Epochs native, uint64_t most) except -1:
    """The same, at most so many."""
    cdef uint64_t reached
    cdef Submission one, other
    if native.first is None:
        return 0
    reached = reached_of(native)
    while most:
        most -= 1
        one = native.first
        if one is None or one.epoch_ > reached:
            return 0
        other = retire_counted(one)
        if other is not None:
            wait_to_go_on(native, other)
            return 0
        CORE_LOCK()
        leave_flight(native, one)   # unless another thread was faster
        CORE_UNLOCK()
    return 0


cdef int wait_to_go_on(Epochs native, Submission other) except -1:
    """Another thread is ending what must end first, and will not come here: be told of its end."""
    if native.is_stalled:
        return 0
    native.is_stalled = True
    try:
        subscribe(completion_of(other), 1, native._go_on, False)
    except BaseException:
        native._go_on()
        raise
    return 0


cdef Submission open_producer(Submission one):
    """Return a submission that this one was issued behind and that is not over, or None."""
    cdef Py_ssize_t index
    cdef Wait wait
    for index in range(wait_count(one)):
        wait = <Wait>wait_of(one, index)
        if wait.producer is not None and wait.producer.stage != RETIRED:
            return wait.producer
    return None


cdef Submission retire_counted(Submission one):
    """Retire a submission whose epoch is over, what it was issued behind first; their epochs are over too (M17).

    Returns the one at which another thread is, if there is one: the rest has to wait for that.
    """
    cdef Submission producer
    cdef list stack
    producer = open_producer(one)
    if producer is None and one.stage == ISSUED:
        retire(one, outcome_of(one))      # mostly
        return None
    stack = [one]
    while stack:
        one = <Submission>stack[len(stack) - 1]
        if one.stage == RETIRED:
            stack.pop()
            continue
        producer = open_producer(one)
        if one.stage == FINISHING:
            return one
        if producer is not None:
            stack.append(producer)
            continue
        stack.pop()
        retire(one, outcome_of(one))
    return None


cdef object outcome_of(Submission one):
    """Ask the driver why the work failed, if it may have."""
    cdef Turn *turn = turn_here()
    cdef int before
    if not (<Epochs>one.native).stream.failed:
        return None
    before = turn.in_driver
    turn.in_driver = 1
    try:
        return one.native.outcome(one.epoch_)
    finally:
        turn.in_driver = before


# Giving work to a compiled driver -------------------------------------------------------------------------------------


cdef union Number:
    # A constant without a type of its own.
    int64_t integer
    double real

cdef struct Flat:
    # A `TidegateWork` with what it points to.
    TidegateWork work
    uint64_t bindings[MOST_FLAT]
    uint64_t binding_sizes[MOST_FLAT]
    uint8_t binding_visible[MOST_FLAT]
    const void *constants[MOST_FLAT]
    uint32_t constant_sizes[MOST_FLAT]
    Number numbers[MOST_FLAT]
    TidegateWait waits[MOST_FLAT]


cdef int put(Submission one, TidegateQueue *queue) except -1:
    """Give ready work to the compiled driver. Returns what `put` answers; all that follows from it is done."""
    cdef Flat flat
    cdef Chain due = Chain(NULL, NULL, NULL, NULL)
    cdef Turn *turn = turn_here()
    cdef Epochs native
    cdef int answer = TIDEGATE_ELSEWHERE
    cdef bint mine
    cdef bint listened_to = False
    try:
        if not flatten(one, &flat):
            return TIDEGATE_ELSEWHERE
    except BaseException as error:
        error.__traceback__ = None        # its frames know the arguments of all who called
        give_up(one, error)
        if isinstance(error, Exception):
            return TIDEGATE_TAKEN
        raise
    CORE_LOCK()
    mine = one.stage == READY
    if mine:
        one.stage = ISSUED
        own(one)
        flatten_waits(one, &flat)
    CORE_UNLOCK()
    if not mine:
        return TIDEGATE_TAKEN             # its device was lost meanwhile
    if flat.work.wait_count <= MOST_FLAT:
        turn.in_driver = 1
        answer = queue.put(queue, &flat.work)
        turn.in_driver = 0
    CORE_LOCK()
    mine = answer == TIDEGATE_TAKEN or answer == TIDEGATE_FAILED
    if mine:
        one.taken = True
        one.epoch_ = flat.work.epoch
        one.native = <Epochs>flat.work.stream.epochs
        enter_flight(<Epochs>flat.work.stream.epochs, one)
        listened_to = make_promises(one, &due)
    elif one.stage == ISSUED:
        one.stage = READY
    else:
        answer = TIDEGATE_TAKEN
    CORE_UNLOCK()
    if not mine:
        return answer
    native = one.native
    try:
        if answer == TIDEGATE_FAILED:
            surely(native.failed, (one.epoch_, flat.work.call, flat.work.code))
    finally:
        was_promised(one, listened_to, &due)
    # A device that keeps up leaves little in flight: what is over goes at twice the rate at which work comes.
    if native.first is not one and is_over(native):
        advance_by(native, 2)
    return TIDEGATE_TAKEN


cdef inline bint is_over(Epochs native) noexcept:
    """Whether a word tells that the oldest in flight is over."""
    cdef TidegateStream *stream = native.stream
    return (
        native.first is not None and stream.word != NULL and stream.event_only < native.first.epoch_
        and word_load(stream.word) >= native.first.epoch_
    )


cdef void flatten_waits(Submission one, Flat *flat) noexcept:
    """Step: what it is issued behind; the last epoch of each stream."""
    cdef Py_ssize_t index
    cdef uint32_t known, count = 0
    cdef Submission producer
    cdef TidegateStream *stream
    for index in range(wait_count(one)):
        producer = (<Wait>wait_of(one, index)).producer
        if producer is None or producer.native is None:
            continue
        stream = (<Epochs>producer.native).stream
        for known in range(count):
            if flat.waits[known].stream == stream:
                if flat.waits[known].epoch < producer.epoch_:
                    flat.waits[known].epoch = producer.epoch_
                break
        else:
            if count == MOST_FLAT:
                count += 1
                break
            flat.waits[count].stream = stream
            flat.waits[count].epoch = producer.epoch_
            count += 1
    flat.work.wait_count = count


cdef bint flatten(Submission one, Flat *flat) except -1:
    """Prepare: tell the work in plain numbers. False: it takes the way in Python, which also says what is wrong."""
    cdef TidegateWork *work = &flat.work
    cdef int code = one.work_code
    cdef Copy copy
    cdef Execute execute
    work.waits = flat.waits
    work.bindings = flat.bindings
    work.binding_sizes = flat.binding_sizes
    work.binding_visible = flat.binding_visible
    work.constants = flat.constants
    work.constant_sizes = flat.constant_sizes
    work.binding_count = work.constant_count = 0
    if code == WORK_DISPATCH:
        return flatten_dispatch(<Dispatch>one.work_, flat)
    if code == WORK_FILL:
        work.kind = TIDEGATE_FILL
        flatten_pattern((<Fill>one.work_).pattern, work)
        return flatten_range(<Ranged>one.work_, work, &work.target)
    if code == WORK_COPY:
        copy = <Copy>one.work_
        work.kind = TIDEGATE_COPY
        return place(copy.target_memory, copy.target_offset, &work.target) and flatten_range(copy, work, &work.source)
    if code == WORK_UPDATE:
        work.kind = TIDEGATE_UPDATE
        work.host = <void *><char *>(<Update>one.work_).data
        return flatten_range(<Ranged>one.work_, work, &work.target)
    if code == WORK_UPLOAD:
        work.kind = TIDEGATE_UPLOAD
        work.host = (<HostRanged>one.work_).address
        return flatten_range(<Ranged>one.work_, work, &work.target)
    if code == WORK_DOWNLOAD:
        work.kind = TIDEGATE_DOWNLOAD
        work.host = (<HostRanged>one.work_).address
        return flatten_range(<Ranged>one.work_, work, &work.source)
    if code == WORK_BARRIER:
        work.kind = TIDEGATE_BARRIER
        return True
    if code == WORK_EXECUTE:
        execute = <Execute>one.work_
        work.kind = TIDEGATE_EXECUTE
        work.function = <void *>execute.native
        return work.function != NULL and all_there(one.touches) and flatten_bindings(execute.table, flat)
    return False


cdef bint all_there(tuple memories):
    """Prepare: whether every memory that a recording names has storage."""
    cdef Memory memory
    for memory in memories or ():
        if memory.storage_ is None:
            return False
    return True


cdef bint flatten_dispatch(Dispatch given, Flat *flat) except -1:
    cdef TidegateWork *work = &flat.work
    cdef Py_ssize_t index, count
    if given.entry is None or given.entry.native == 0 or given.local > 0xFFFFFFFF:
        return False
    work.kind = TIDEGATE_DISPATCH
    work.function = <void *>given.entry.native
    work.workgroups = given.groups
    work.local_memory = <uint32_t>given.local
    if given.spans is not None:
        if not flatten_bindings(given.spans, flat):
            return False
    else:
        work.binding_count = <uint32_t>len(given.memories)
        for index in range(work.binding_count):
            if not place(<Memory>given.memories[index], given.ranges[index].offset, &flat.bindings[index]):
                return False
    if given.values is None:
        work.constant_count = <uint32_t>given.entry.constant_count
        work.constant_sizes = given.entry.constant_sizes
        for index in range(work.constant_count):
            flat.constants[index] = &given.packed[index]
        return True
    count = len(given.values)
    if count > MOST_FLAT:
        return False
    for index in range(count):
        if not constant_at(given.values[index], flat, index):
            return False
    work.constant_count = <uint32_t>count
    return True


cdef bint flatten_bindings(tuple bindings, Flat *flat) except -1:
    cdef Span span
    cdef Py_ssize_t index, count = len(bindings)
    if count > MOST_FLAT:
        return False
    for index in range(count):
        span = <Span>bindings[index]
        if not place(span._memory, span.offset_, &flat.bindings[index]):
            return False
        flat.binding_sizes[index] = span.nbytes_
        if flat.work.kind == TIDEGATE_EXECUTE:
            flat.binding_visible[index] = span._memory.kind != "device"
    flat.work.binding_count = <uint32_t>count
    return True


cdef inline bint flatten_range(Ranged given, TidegateWork *work, uint64_t *address) except -1:
    work.nbytes = given.range.nbytes
    return place(given.memory, given.range.offset, address)


cdef bint place(Memory memory, uint64_t offset, uint64_t *address) except -1:
    """Prepare: where a range lies, if compiled drivers can reach it."""
    if memory.address == 0:
        if memory.storage_ is None:
            return False
        memory.address = memory.storage_.address
        if memory.address == 0:
            return False
    address[0] = memory.address + offset
    return True


cdef void flatten_pattern(bytes pattern, TidegateWork *work) noexcept:
    cdef const unsigned char *data = pattern
    cdef Py_ssize_t index
    work.unit = <uint32_t>len(pattern)
    work.pattern = 0
    for index in range(work.unit):
        work.pattern |= <uint32_t>data[index] << <uint32_t>(8 * index)


cdef bint constant_at(object constant, Flat *flat, Py_ssize_t index) except -1:
    """Prepare: where the value of a constant lies. What has a type keeps it inside, as NumPy's scalars do."""
    cdef Py_buffer view
    cdef int overflow = 0
    flat.constants[index] = &flat.numbers[index]
    if type(constant) is int or type(constant) is bool:
        flat.numbers[index].integer = PyLong_AsLongLongAndOverflow(constant, &overflow)
        flat.constant_sizes[index] = TIDEGATE_INTEGER
        return overflow == 0
    if type(constant) is float:
        flat.numbers[index].real = constant
        flat.constant_sizes[index] = TIDEGATE_FLOAT
        return True
    if not PyObject_CheckBuffer(constant):
        return False
    try:
        PyObject_GetBuffer(constant, &view, PyBUF_SIMPLE)
    except BufferError:
        return False          # an array whose elements are not in a row
    flat.constants[index] = view.buf
    flat.constant_sizes[index] = <uint32_t>view.len
    PyBuffer_Release(&view)
    return True
