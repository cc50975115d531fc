"""The operations that programs call most, from the call to the device. The others are Python's: see `operations`."""



cdef class WorkTarget:
    """Where work is given: a queue or a lane."""
    cdef Workload workload
    cdef object device_
    cdef TidegateQueue *native    # of a queue whose driver is compiled
    cdef object queue_           # of a lane; None for a queue, which is its own
    cdef Semaphore line_         # of a lane: the timeline that orders it

    @property
    def _queue(self):
        return self if self.queue_ is None else self.queue_

    @property
    def _device(self):
        return self.device_

    @property
    def _line(self):
        return self.line_

    def _join(self, Workload workload not None, device, queue=None, Semaphore line=None):
        """Say what it belongs to."""
        self.workload = workload
        self.device_ = device
        self.queue_ = queue
        self.line_ = line

    def _use_native(self, uintptr_t address):
        """Give work to a queue of a compiled driver; 0 stands for none."""
        self.native = <TidegateQueue *>address

    def _submit(self, Work work not None, wait, signal, tuple touches=None, tuple writes=None, result=None, int above=1):
        """Take work in, for operations written in Python; `above` is how many of their frames there are."""
        cdef Submission one = new_submission(self, work, touches or None, writes or None, above)
        one.result_ = result
        submit(one, wait, signal)
        return one

    def _prepared(self, Work work not None, int above=1):
        """Return a submission that is still to be taken in, by `_take_in`."""
        return new_submission(self, work, None, None, above)

    def _take_in(self, Submission one not None, wait, signal):
        submit(one, wait, signal)
        return one

    def _tail(self):
        """Return the end of everything submitted to a lane so far."""
        cdef Timeline timeline = self.line_.timeline
        return point_at(self.line_, timeline.high if timeline.high > timeline.payload else timeline.payload)

    def _submit_part(self, Work work not None, tuple touches):
        """Take in a transfer that is a part of host work, which may be drained already."""
        cdef Submission one = new_submission(self, work, touches, None, 1)
        one._nested = True
        submit(one, None, None)
        return one

    def _over(self):
        """Return a submission that is over: for what needed none."""
        cdef Submission one = new_submission(self, BARRIER, None, None, 0)
        one.line = None
        one.stage = RETIRED
        one.work_ = None
        return one

    def fill(self, target, pattern, *, offset=0, length=None, wait=None, signal=None):
        """Repeat a pattern over a range.

        Args:
            target: the buffer.
            pattern: an int in 0..255, or 1, 2 or 4 bytes.
            offset: where the range begins; a multiple of the pattern's length.
            length: its length; without one, the rest.
            wait: what must be reached first.
            signal: what is reached afterwards.

        """
        cdef bytes data = checked_pattern(pattern)
        cdef Span span = checked_target(self.device_, target, offset, length, "fill")
        cdef Fill work = Fill.__new__(Fill)
        cdef Py_ssize_t unit = len(data)
        if unit > 1 and (span.offset_ % unit or span.nbytes_ % unit):
            check_fill(span, data)
        work.target = span
        work.pattern = data
        work.cost = span.nbytes_
        touches = (span._memory,)
        one = new_submission(self, work, touches, touches, 0)
        submit(one, wait, signal)
        return one

    def update(self, target, data, *, offset=0, wait=None, signal=None):
        """Write small host data, captured during the call: the source may change at once."""
        cdef bytes captured = data if type(data) is bytes else update_data(data)
        cdef Span span = checked_target(self.device_, target, offset, len(captured), "update")
        cdef Update work = Update.__new__(Update)
        work.target = span
        work.data = captured
        work.cost = span.nbytes_
        touches = (span._memory,)
        one = new_submission(self, work, touches, touches, 0)
        submit(one, wait, signal)
        return one

    def upload(self, array, target, *, offset=0, wait=None, signal=None):
        """Write a host array, borrowed until the submission retires: do not change it before."""
        source = host_bytes_of(array, "upload")
        cdef Span span = checked_target(self.device_, target, offset, source.nbytes, "upload")
        cdef Upload work = Upload.__new__(Upload)
        work.array = source
        work.target = span
        work.cost = span.nbytes_
        touches = (span._memory,)
        one = new_submission(self, work, touches, touches, 0)
        submit(one, wait, signal)
        return one

    def copy(self, source, target, *, source_offset=0, target_offset=0, length=None, wait=None, signal=None):
        """Copy between ranges that do not overlap; without a length, the rest of the source, which must fit."""
        cdef Span read = checked_target(self.device_, source, source_offset, length, "copy")
        cdef Span written = checked_target(self.device_, target, target_offset, read.nbytes_, "copy")
        cdef Copy work = Copy.__new__(Copy)
        if read._memory is written._memory:
            check_copy(read, written)
        work.source = read
        work.target = written
        work.cost = read.nbytes_
        one = new_submission(self, work, (read._memory, written._memory), (written._memory,), 0)
        submit(one, wait, signal)
        return one

    def barrier(self, *, wait=None, signal=None):
        """Do nothing but wait and signal: joins and forks."""
        one = new_submission(self, BARRIER, None, None, 0)
        submit(one, wait, signal)
        return one


cdef Barrier BARRIER = Barrier()


cdef Submission new_submission(WorkTarget target, Work work, tuple touches, tuple writes, int above):
    cdef Submission one = Submission.__new__(Submission)
    one.workload = target.workload
    one.queue_ = target if target.queue_ is None else target.queue_
    one.line = target.line_
    one.work_ = work
    one.work_code = work.code
    one.kind_ = work.kind
    one.touches = touches
    one.writes = writes
    one.code = site_here(above, &one.lasti)
    return one


cdef Span checked_target(object device, object buffer, object offset, object length, str what):
    """Return the range of a buffer that an operation names: never the user's own object.

    Whether that was dropped tells starving allocations what may come back.
    """
    cdef Span given, span
    cdef Memory memory
    cdef uint64_t start, size
    if not isinstance(buffer, Span):
        raise TypeError(f"{what} takes a buffer, not {type(buffer).__name__}")
    given = <Span>buffer
    memory = given._memory
    if memory.device is not device:
        raise InvalidArgumentError(
            f"{what}: {memory.describe()} belongs to {memory.device.describe()}, not to {device.describe()}"
        )
    if memory.closed or memory.phase == FREED:
        memory.refuse_unusable()
    if type(offset) is int and (length is None or type(length) is int) and 0 <= offset <= given.nbytes_ and (
        length is None or 0 <= length <= given.nbytes_ - <uint64_t>offset
    ):
        start = offset
        size = given.nbytes_ - start if length is None else <uint64_t>length
    else:
        start, size = checked_range(given, offset, length)
    return new_span(memory, given.offset_ + start, size)


cdef inline Span new_span(Memory memory, uint64_t offset, uint64_t nbytes):
    cdef Span span = Span.__new__(Span)
    span._memory = memory
    span.offset_ = offset
    span.nbytes_ = nbytes
    return span


cdef bytes checked_pattern(object pattern):
    """Return a fill pattern as 1, 2 or 4 bytes."""
    if type(pattern) is int and 0 <= pattern <= 255:
        return ONE_BYTE[<Py_ssize_t>pattern]
    return odd_pattern(pattern)


def pattern_of(pattern):
    """Return a fill pattern as 1, 2 or 4 bytes."""
    return checked_pattern(pattern)


def target_range(device, buffer, offset, length, what):
    """Return the range of a buffer that a command names."""
    return checked_target(device, buffer, offset, length, what)


cdef list ONE_BYTE = [bytes((n,)) for n in range(256)]
