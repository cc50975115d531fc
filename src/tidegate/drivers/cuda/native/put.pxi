"""One submission, from plain numbers to the end of its epoch on a stream: see `_core/native.h`."""

cdef enum:
    STAGED = 65536        # up to so many bytes of an update or upload go through the staging ring
    TINY = 8192           # up to so many bytes, asking whether they are page-locked costs more than to copy them
    LARGE = 1048576       # from so many on, a copy must not keep others from running beside it: no word behind it
    ALIGNMENT = 64        # of what is staged
    MOST_WAITS = 32       # the core gives no more

cdef struct Steps:
    # What a submission does on the stream: one call at most.
    int call              # -1: none
    uint64_t target
    uint64_t source
    uint64_t begin        # what it has of the staging ring; `end` 0: nothing
    uint64_t end
    bint event_only
    bint page_locked      # whether CUDA copies from or to the host memory on its own
    PyObject *instance    # of a graph
    void *parameters[PARAMETERS]
    Number numbers[MOST_WAITS]


cdef int put(TidegateQueue *given, TidegateWork *work) noexcept:
    """Step: take a submission, or say who else shall."""
    cdef QueueState queue = <QueueState>(<CudaQueue *>given).state
    cdef DeviceState device = queue.device
    cdef void *found = NULL
    cdef bint pushed = False
    cdef int answer
    if device.doomed is not None or PyList_GET_SIZE(device.garbage) or not device.lock.try_it():
        return TIDEGATE_ELSEWHERE
    if PySet_GET_SIZE(device.quiet):
        answer = TIDEGATE_NOT_NOW
    elif device.get_current(&found) == 0 and found == device.current:
        answer = put_entered(queue, device, work)
    elif device.push(device.current):
        answer = TIDEGATE_ELSEWHERE
    else:
        answer = put_entered(queue, device, work)
        device.pop(&found)
    device.lock.release()
    return answer


cdef int put_entered(QueueState queue, DeviceState device, TidegateWork *work) noexcept:
    """Step: the same, with the lock and in the context."""
    cdef TidegateWait waits[MOST_WAITS]
    cdef Steps steps
    cdef StreamState stream
    cdef uint32_t index, count = 0
    cdef int answer
    if not can_do(device, work, &steps) or device.event_pool.count == 0:
        return TIDEGATE_ELSEWHERE
    waits[0] = TidegateWait(NULL, 0)
    for index in range(work.wait_count):
        stream = <StreamState>(<CudaStream *>work.waits[index].stream).state
        if reached_now(stream) < work.waits[index].epoch:
            if point_at(stream, work.waits[index].epoch) == NULL:
                return TIDEGATE_ELSEWHERE     # an interrupt has left its epoch open
            waits[count] = work.waits[index]
            count += 1
    answer = choose(queue, waits, count)
    if answer != FOUND:
        return TIDEGATE_NOT_NOW if answer == NONE_NOW else TIDEGATE_ELSEWHERE
    stream = queue.last
    collect(stream, 8)
    if stream.closed_epoch != stream.own.base.issued or stream.failed_epoch or stream.count == stream.capacity:
        return TIDEGATE_ELSEWHERE
    if not prepare(device, work, stream, &steps):
        return TIDEGATE_ELSEWHERE
    return put_on(device, work, stream, &steps, waits, count)


cdef bint can_do(DeviceState device, const TidegateWork *work, Steps *steps) noexcept:
    """Step: whether the kind of work is one for here, as far as can be told before there is a stream."""
    cdef bint small = work.nbytes <= STAGED
    steps.page_locked = False
    if work.kind == TIDEGATE_UPDATE:
        return small
    if (work.kind != TIDEGATE_UPLOAD and work.kind != TIDEGATE_DOWNLOAD) or work.nbytes == 0:
        return True
    if work.kind == TIDEGATE_UPLOAD and work.nbytes <= TINY and work.wait_count == 0:
        return True
    steps.page_locked = device.is_page_locked(<uint64_t><uintptr_t>work.host, work.nbytes)
    # What is not page-locked is read during the call; but work that is not over may still write there.
    return steps.page_locked or (work.kind == TIDEGATE_UPLOAD and small and work.wait_count == 0)


cdef bint prepare(DeviceState device, const TidegateWork *work, StreamState stream, Steps *steps) noexcept:
    """Step: have everything that the call needs. False: something is missing, and nothing has happened."""
    cdef Kernel kernel
    steps.call = -1
    steps.begin = steps.end = 0
    steps.event_only = False
    if work.kind == TIDEGATE_BARRIER:
        return True
    if work.kind == TIDEGATE_DISPATCH:
        if 0 == work.workgroups[0] or 0 == work.workgroups[1] or 0 == work.workgroups[2]:
            return True
        steps.call = IN_LAUNCH
        kernel = <Kernel>work.function
        return set_parameters(kernel, work, steps.parameters, steps.numbers)
    if work.kind == TIDEGATE_EXECUTE:
        steps.call = IN_GRAPH
        steps.instance = ready_instance(<GraphState>work.function, work, stream)
        return steps.instance != NULL
    if work.nbytes == 0:
        return True
    if work.kind == TIDEGATE_FILL:
        steps.call = IN_FILL8 if work.unit == 1 else IN_FILL16 if work.unit == 2 else IN_FILL32
        return True
    steps.call = IN_COPY
    steps.target = work.target
    steps.source = work.source
    if work.kind == TIDEGATE_COPY:
        return True
    if not steps.page_locked:
        return stage(device, work, steps)
    if work.kind == TIDEGATE_DOWNLOAD:
        steps.target = <uint64_t><uintptr_t>work.host
    else:
        steps.source = <uint64_t><uintptr_t>work.host
    steps.event_only = work.nbytes >= LARGE
    return True


cdef bint stage(DeviceState device, const TidegateWork *work, Steps *steps) noexcept:
    """Step: copy small host data into the staging ring. False: there is no room."""
    if device.ring_address == 0:
        return False
    if not device.ring.cut(work.nbytes, ALIGNMENT, &steps.begin):
        collect_all(device)
        if not device.ring.cut(work.nbytes, ALIGNMENT, &steps.begin):
            return False
    steps.end = steps.begin + work.nbytes
    steps.source = device.ring_address + steps.begin
    memcpy(<void *><uintptr_t>steps.source, work.host, work.nbytes)
    return True


cdef int put_on(
    DeviceState device, TidegateWork *work, StreamState stream, Steps *steps, const TidegateWait *waits, uint32_t count
) noexcept:
    """Step: make the calls: the waits, the work, the end of the epoch."""
    cdef uint64_t epoch = stream.own.base.issued + 1
    cdef uint32_t index, places = 0 if steps.call < 0 else 1
    cdef StreamState other
    cdef InstanceState instance
    cdef int code = 0, end_code, call = IN_WAIT, end_call = 0
    for index in range(count):
        other = <StreamState>(<CudaStream *>waits[index].stream).state
        if other is stream:
            continue
        stream.parked_until = epoch
        places += 1
        if code == 0:
            code = device.wait_event(stream.at, (<Event>point_at(other, waits[index].epoch).event).at, 0)
    if code == 0:
        call = steps.call
        code = make_call(device, work, stream, steps)
    if code == 0 and steps.call == IN_GRAPH:
        instance = <InstanceState>steps.instance
        instance.holder = <object>stream.own.base.epochs
        instance.stream = stream
        instance.epoch = epoch
    stream.own.base.issued = epoch
    end_code = end_epoch(stream, epoch, places, steps.event_only, steps.begin, steps.end, &end_call)
    work.stream = &stream.own.base
    work.epoch = epoch
    if code == 0 and end_code == 0:
        return TIDEGATE_TAKEN
    work.call = stream.failed_call = call if code else end_call
    work.code = stream.failed_code = code if code else end_code
    stream.failed_epoch = epoch
    stream.own.base.failed = True
    return TIDEGATE_FAILED


def bare_calls(DeviceState device not None, uintptr_t stream, uintptr_t function, uintptr_t parameters,
               uintptr_t word, uint64_t value, uintptr_t event):
    """Make the calls of a submission of one kernel and nothing else: what nothing can be faster than, for benchmarks.

    Without a function (0) there is no kernel. Returns CUDA's code. The context is current.
    """
    cdef int code = 0
    if function:
        code = device.launch(
            <void *>function, 1, 1, 1, 1, 1, 1, 0, <void *>stream, <void **><void *>parameters, NULL
        )
    if code == 0:
        code = device.write(<void *>stream, word, value, 0)
    if code == 0:
        code = device.record(<void *>event, <void *>stream)
    return code


cdef int make_call(DeviceState device, const TidegateWork *work, StreamState stream, Steps *steps) noexcept:
    """Step: make the one call of the work. Returns CUDA's code."""
    cdef Kernel kernel
    if steps.call == IN_LAUNCH:
        kernel = <Kernel>work.function
        return device.launch(
            kernel.function, work.workgroups[0], work.workgroups[1], work.workgroups[2], kernel.block[0],
            kernel.block[1], kernel.block[2], work.local_memory, stream.at, steps.parameters, NULL
        )
    if steps.call == IN_COPY:
        return device.copy(steps.target, steps.source, work.nbytes, stream.at)
    if steps.call == IN_FILL8:
        return device.fill8(work.target, <unsigned char>work.pattern, work.nbytes, stream.at)
    if steps.call == IN_FILL16:
        return device.fill16(work.target, <unsigned short>work.pattern, work.nbytes // 2, stream.at)
    if steps.call == IN_FILL32:
        return device.fill32(work.target, work.pattern, work.nbytes // 4, stream.at)
    if steps.call == IN_GRAPH:
        return device.launch_graph((<InstanceState>steps.instance).at, stream.at)
    return 0
