"""What the streams of a device share: its context, its lock, CUDA's functions, events, and the staging ring."""


@cython.final
cdef class Entered:
    """Makes a context current for a block, and the caller's current again behind it."""
    cdef DeviceState device
    cdef bint pushed

    def __enter__(self):
        self.pushed = self.device.enter()

    def __exit__(self, kind, error, trace):
        if self.pushed:
            self.device.leave()


cdef class DeviceState:
    """The compiled side of a device.

    Args:
        native: the way to CUDA.
        releases: whether even short calls give the GIL away; then the core is offered no compiled way.

    """
    cdef out_t get_current
    cdef handle_t push
    cdef out_t pop
    cdef wait_t wait_event
    cdef launch_t launch
    cdef write_t write
    cdef pair_t record
    cdef handle_t query
    cdef handle_t synchronize
    cdef copy_t copy
    cdef fill8_t fill8
    cdef fill16_t fill16
    cdef fill32_t fill32
    cdef pair_t launch_graph
    cdef pointer_t pointer_attribute
    cdef readonly bint releases
    cdef readonly object native
    """The way to CUDA for everything else."""
    cdef void *current            # the device's context
    cdef readonly DeviceLock lock
    """Guards the streams and what is on them; never held while the core is called."""
    cdef readonly EventPool event_pool
    """Plain events: where epochs end."""
    cdef readonly EventPool sleep_events
    """Events to sleep for."""
    cdef public object doomed
    """The error that told that the device is gone, or None."""
    cdef public list garbage
    """What finalizers have left to be destroyed: functions."""
    cdef public set quiet
    """Who wants new work to stay on the host for a while: see `code`."""
    cdef public Py_ssize_t peers
    """How many devices are open on this GPU."""
    cdef public Py_ssize_t most_streams
    """How many streams of our own there may be."""
    cdef readonly Py_ssize_t made
    """How many there are."""
    cdef list streams             # all, somebody else's too, in the order in which they were made
    cdef Gaps ring
    cdef uint64_t ring_address    # of the staging ring; 0: there is none yet

    def __init__(self, native, bint releases=False):
        cdef uintptr_t at[CALL_COUNT]
        cdef Py_ssize_t index
        for index in range(CALL_COUNT):
            at[index] = native.address(CALLS[index])
        self.get_current = <out_t><void *>at[IN_GET]
        self.push = <handle_t><void *>at[IN_PUSH]
        self.pop = <out_t><void *>at[IN_POP]
        self.wait_event = <wait_t><void *>at[IN_WAIT]
        self.launch = <launch_t><void *>at[IN_LAUNCH]
        self.write = <write_t><void *>at[IN_WRITE]
        self.record = <pair_t><void *>at[IN_RECORD]
        self.query = <handle_t><void *>at[IN_QUERY]
        self.synchronize = <handle_t><void *>at[IN_SYNCHRONIZE]
        self.copy = <copy_t><void *>at[IN_COPY]
        self.fill8 = <fill8_t><void *>at[IN_FILL8]
        self.fill16 = <fill16_t><void *>at[IN_FILL16]
        self.fill32 = <fill32_t><void *>at[IN_FILL32]
        self.launch_graph = <pair_t><void *>at[IN_GRAPH]
        self.pointer_attribute = <pointer_t><void *>at[IN_POINTER]
        self.native = native
        self.releases = releases
        self.lock = DeviceLock()
        self.event_pool = EventPool(native, self.lock)
        self.sleep_events = EventPool(native, self.lock, blocking=True)
        self.garbage = []
        self.quiet = set()
        self.peers = self.most_streams = 1
        self.streams = []

    @property
    def context(self):
        """The device's context."""
        return <uintptr_t>self.current

    @context.setter
    def context(self, uintptr_t context):
        self.current = <void *>context

    cpdef bint enter(self) except -1:
        """Make the context current. Returns whether it was not: then `leave` must follow."""
        cdef void *found = NULL
        cdef int code
        if self.releases:
            with nogil:
                code = self.get_current(&found)
        else:
            code = self.get_current(&found)
        if code == 0 and found == self.current:
            return False
        if self.releases:
            with nogil:
                code = self.push(self.current)
        else:
            code = self.push(self.current)
        if code:
            self.refuse(IN_PUSH, code)
        return True

    cpdef int leave(self) except -1:
        """Make the context current that was before."""
        cdef void *found = NULL
        cdef int code
        if self.releases:
            with nogil:
                code = self.pop(&found)
        else:
            code = self.pop(&found)
        return self.refuse(IN_POP, code) if code else 0

    def entered(self):
        """Return a block in which the context is current."""
        cdef Entered block = Entered.__new__(Entered)
        block.device = self
        return block

    cdef int refuse(self, int call, int code) except -1:
        """Raise the error for a code."""
        raise self.native.error(CALLS[call], code)

    cdef bint is_page_locked(self, uint64_t address, uint64_t nbytes) noexcept:
        """Step: whether CUDA may copy from or to this host memory on its own. The context is current."""
        return self.knows(address) and self.knows(address + nbytes - 1)

    cdef bint knows(self, uint64_t address) noexcept:
        """Step: whether CUDA knows a host address."""
        cdef int kind = 0
        return self.pointer_attribute(&kind, 2, address) == 0 and kind == 1

    # Streams ----------------------------------------------------------------------------------------------------------

    def all_streams(self):
        """Return the timelines of all streams that this device puts work on. The caller holds the lock."""
        cdef StreamState state
        return [state.timeline for state in self.streams if state.timeline is not None]

    def add_stream(self, StreamState stream not None):
        """Use one more stream, which has a timeline and is kept. The caller holds the lock."""
        self.made += stream.is_ours
        self.streams.append(stream)

    def may_park(self):
        """Whether one more stream may be lent or wait for another: see `placement.pxi`. The caller holds the lock."""
        return may_park(self)

    def forget_streams(self):
        """The device is being closed: its streams are gone."""
        self.streams.clear()

    def use_ring(self, uint64_t address, Gaps ring not None):
        """Stage small data in this memory, which `ring` divides; 0: in none."""
        self.ring = ring
        self.ring_address = address

    def collect_all(self):
        """Take back all that is over on all streams, as far as that is known without asking. The caller holds the lock."""
        collect_all(self)
