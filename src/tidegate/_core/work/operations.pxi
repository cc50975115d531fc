"""The operations that programs call most, from the call to the device. The others are Python's: see `operations`."""



@cython.no_gc_clear
cdef class WorkTarget:
    """Where work is given: a queue or a lane."""
    cdef Workload workload
    cdef object device_
    cdef TidegateQueue *native    # of a queue whose driver is compiled, ...
    cdef object port              # ... and the object that has it
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

    def _use_native(self, uintptr_t address, port):
        """Give work to a queue of a compiled driver, which `port` has; 0 stands for none."""
        self.port = port
        self.native = <TidegateQueue *>address

    def _submit(
        self, Work work not None, wait, signal, tuple touches=(), Py_ssize_t first_written=MOST_TOUCHES, result=None
    ):
        """Take work in, for operations written in Python, from the user's call to which there is one frame.

        `touches` are the memories that it uses, those last that it writes, from `first_written` on.
        """
        cdef Submission one = new_submission(self, work, 1)
        one.touches = touches if touches else None
        one.first_written = first_written
        one.result_ = result
        submit(one, wait, signal)
        return one

    def _prepared(self, Work work not None):
        """Return a submission that is still to be taken in, by `_take_in`."""
        return new_submission(self, work, 1)

    def _take_in(self, Submission one not None, wait, signal):
        submit(one, wait, signal)
        return one

    def _tail(self):
        """Return the end of everything submitted to a lane so far."""
        cdef Timeline timeline = self.line_.timeline
        return point_at(self.line_, timeline.high if timeline.high > timeline.payload else timeline.payload)

    def _submit_part(self, Work work not None, tuple touches):
        """Take in a transfer that is a part of host work, which may be drained already."""
        cdef Submission one = new_submission(self, work, 1)
        one.touches = touches
        one.first_written = MOST_TOUCHES
        one._nested = True
        submit(one, None, None)
        return one

    def _over(self):
        """Return a submission that is over: for what needed none."""
        cdef Submission one = new_submission(self, BARRIER, 0)
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
        cdef Fill work = Fill.__new__(Fill)
        cdef Py_ssize_t unit = len(data)
        aim(work, self.device_, target, offset, length, "fill")
        if unit > 1 and (work.range.offset % unit or work.range.nbytes % unit):
            check_fill(work.target, data)
        work.pattern = data
        return submit_transfer(self, work, True, wait, signal)

    def update(self, target, data, *, offset=0, wait=None, signal=None):
        """Write small host data, captured during the call: the source may change at once."""
        cdef bytes captured = data if type(data) is bytes else update_data(data)
        cdef Update work = Update.__new__(Update)
        aim(work, self.device_, target, offset, len(captured), "update")
        work.data = captured
        return submit_transfer(self, work, True, wait, signal)

    def upload(self, array, target, *, offset=0, wait=None, signal=None):
        """Write a host array, borrowed until the submission retires: do not change it before."""
        cdef Upload work = Upload.__new__(Upload)
        cdef uint64_t nbytes = work.borrow(array, False)
        if nbytes == 0:
            work.borrow_flat(host_bytes_of(array, "upload"))
            nbytes = len(work.flat)
        aim(work, self.device_, target, offset, <object>nbytes, "upload")
        return submit_transfer(self, work, True, wait, signal)

    def download(self, source, out=None, *, offset=0, length=None, dtype=None, shape=None, wait=None, signal=None):
        """Read into an array: the given one, or a new one of `dtype` and `shape`. `result()` and `await` return it."""
        cdef Download work = Download.__new__(Download)
        cdef Submission one
        aim(work, self.device_, source, offset, length, "download")
        cdef uint64_t nbytes = 0
        if out is not None and dtype is None and shape is None:
            nbytes = work.borrow(out, True)
        if nbytes == 0:
            out = array_to_fill(work.source, out, dtype, shape)
            nbytes = out.nbytes
            flat = flat_bytes(out)
            if flat is not None:
                work.borrow_flat(flat)
        if nbytes != work.range.nbytes:
            if length is not None or nbytes > work.range.nbytes:
                refuse_download(work.source, nbytes, length)
            work.range.nbytes = nbytes
            work.named = None
            work.cost_ = <int64_t>nbytes
        if work.host is None and work.flat is None:
            return self._download_scattered(work.source, out, wait, signal)
        one = new_submission(self, work, 0)
        one.touch1 = work.memory
        one.first_written = MOST_TOUCHES
        one.result_ = out
        submit(one, wait, signal)
        return one

    def copy(self, source, target, *, source_offset=0, target_offset=0, length=None, wait=None, signal=None):
        """Copy between ranges that do not overlap; without a length, the rest of the source, which must fit."""
        cdef Copy work = Copy.__new__(Copy)
        cdef Submission one
        cdef Range written
        aim(work, self.device_, source, source_offset, length, "copy")
        work.target_memory = checked_target(
            self.device_, target, target_offset, <object>work.range.nbytes, "copy", &written
        )
        work.target_offset = written.offset
        if work.memory is work.target_memory:
            check_copy(work.source, work.target)
        one = new_submission(self, work, 0)
        one.touches = (work.memory, work.target_memory)
        one.first_written = 1
        submit(one, wait, signal)
        return one

    def barrier(self, *, wait=None, signal=None):
        """Do nothing but wait and signal: joins and forks."""
        one = new_submission(self, BARRIER, 0)
        submit(one, wait, signal)
        return one

    def dispatch(
        self, function, workgroups, *, bindings=(), constants=(), local_memory=0, wait=None, signal=None
    ):
        """Run a function over workgroups.

        Args:
            function: of an executable of this device.
            workgroups: how many, in up to three dimensions; a zero means: do nothing.
            bindings: the buffers, in the order the function takes them; all count as written (M26).
            constants: in order, converted to their declared types.
            local_memory: bytes of scratch memory per workgroup.
            wait: what must be reached first.
            signal: what is reached afterwards.

        """
        cdef Dispatch work
        cdef Submission one
        cdef BaseFunction entry
        cdef tuple given, memories
        cdef Py_ssize_t index, count
        if type(bindings) is not tuple:
            bindings = tuple(bindings)
        given = <tuple>bindings
        count = len(given)
        entry = <BaseFunction>function if isinstance(function, BaseFunction) else None
        work = Dispatch.__new__(Dispatch)
        if (
            entry is None or entry.device is not self.device_ or count > FEW
            or (entry.binding_count >= 0 and entry.binding_count != count)
            or type(local_memory) is not int or not 0 <= local_memory <= entry.most_local
            or not entry.accepts_groups(workgroups, work.groups)
            or not (entry.kinds is None or entry.pack(constants, work.packed))
        ):
            work = self._checked_dispatch(function, workgroups, given, constants, local_memory)
            given = work.spans
            memories = tuple([(<Span>span)._memory for span in given])
        else:
            memories = tuple([
                checked_target(self.device_, given[index], 0, None, "dispatch", &work.ranges[index])
                for index in range(count)
            ])
            work.function = entry._function
            work.local = local_memory
            if entry.kinds is None:
                work.values = tuple(constants)      # as they are: only the driver knows what they should be
            else:
                work.plain = tuple(constants)
        work.entry = entry
        work.memories = memories
        one = new_submission(self, work, 0)
        one.touches = memories if memories else None
        one.first_written = 0
        submit(one, wait, signal)
        return one

    def execute(self, commands, *, bindings=(), wait=None, signal=None):
        """Run a command buffer; `bindings` is the table that fills its slots, captured during the call (M31).

        Raises:
            OutOfRangeError: a slot has no entry.
            FailedPreconditionError: the recording has not ended, or is one-shot and was used.

        """
        cdef BaseCommands known
        cdef Submission one
        cdef Memory memory
        if not isinstance(commands, BaseCommands):
            raise TypeError(f"execute takes a command buffer, not {type(commands).__name__}")
        known = <BaseCommands>commands
        if known._plain is None or bindings or known.device is not self.device_:
            work, touches, first_written = commands._execute(self.device_, bindings)
        else:
            work, touches, first_written = known._plain, known._uses, known._first_written
            for memory in known._uses:
                if memory.closed or memory.phase == FREED:
                    memory.refuse_unusable()
        one = new_submission(self, work, 0)
        one.touches = touches if touches else None
        one.first_written = first_written
        if not known.one_shot:
            submit(one, wait, signal)
            return one
        commands._use()
        try:
            submit(one, wait, signal)
        except BaseException:
            commands._used = False
            raise
        return one


cdef class BaseCommands:
    """A command buffer, as far as executing it again and again needs it."""
    cdef readonly object device
    """The device it was recorded for."""
    cdef readonly bint one_shot
    """Whether it may be executed only once."""
    cdef readonly Execute _plain
    """What an execution without a binding table is, once the recording has ended; None where it needs one."""
    cdef readonly tuple _uses
    cdef readonly Py_ssize_t _first_written

    def __init__(self, device, bint one_shot):
        self.device = device
        self.one_shot = one_shot

    def _ended(self, Execute plain, tuple uses, Py_ssize_t first_written):
        """The recording has ended; `uses` are the memories it names, those last that it writes."""
        self._plain = plain
        self._uses = uses
        self._first_written = first_written


cdef Barrier BARRIER = Barrier()


cdef Submission new_submission(WorkTarget target, Work work, int above):
    """Prepare: a submission of work; `above` is how many frames of ours stand between it and the user's call."""
    cdef Submission one = Submission.__new__(Submission)
    one.workload = target.workload
    one.queue_ = target if target.queue_ is None else target.queue_
    one.line = target.line_
    one.work_ = work
    one.work_code = work.code
    one.kind_ = work.kind
    one.code = site_here(above, &one.lasti)
    return one


cdef Submission submit_transfer(WorkTarget target, Ranged work, bint writes, object wait, object signal):
    """Take in work on one range."""
    cdef Submission one = new_submission(target, work, 0)
    one.touch1 = work.memory
    one.first_written = 0 if writes else MOST_TOUCHES
    submit(one, wait, signal)
    return one


cdef int aim(Ranged work, object device, object buffer, object offset, object length, str what) except -1:
    """Prepare: the range that an operation names."""
    work.memory = checked_target(device, buffer, offset, length, what, &work.range)
    work.cost_ = <int64_t>work.range.nbytes
    return 0


cdef Memory checked_target(object device, object buffer, object offset, object length, str what, Range *found):
    """Prepare: the range of a buffer that an operation names, in numbers: never the user's own object.

    Whether that was dropped tells starving allocations what may come back.
    """
    cdef Span given
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
    found.offset = given.offset_ + start
    found.nbytes = size
    return memory


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
    cdef Range found
    cdef Memory memory = checked_target(device, buffer, offset, length, what, &found)
    return new_span(memory, found.offset, found.nbytes)


cdef list ONE_BYTE = [bytes((n,)) for n in range(256)]
