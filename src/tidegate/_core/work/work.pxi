"""What there is to do: one class per kind of work. See `tidegate.driver`, which names them for drivers."""

cdef enum:
    # The kinds, for those who choose by number.
    WORK_OTHER, WORK_BARRIER, WORK_ALLOCATE, WORK_FREE, WORK_FILL, WORK_UPDATE, WORK_UPLOAD, WORK_DOWNLOAD, WORK_COPY
    WORK_DISPATCH, WORK_EXECUTE, WORK_HOST


cdef class Work:
    """What a submission does. One class per kind; the fields are public and frozen by habit."""
    cdef int code
    cdef readonly str kind
    """The word for it in texts."""
    cdef readonly object cost
    """Bytes moved by built-in work, or None where user code runs. Drivers decide by it what may run in place (M34)."""
    cdef readonly bint empty
    """The core's: whether there is nothing to do but wait and signal."""

    def __cinit__(self):
        self.kind = "work"


@cython.final
cdef class Barrier(Work):
    """Nothing: only waits and signals."""

    def __cinit__(self):
        self.code = WORK_BARRIER
        self.kind = "barrier"
        self.cost = 0
        self.empty = True


cdef class Mark(Work):
    """Nothing, but on the device: its end is a moment in the order of a native queue."""

    def __cinit__(self):
        self.kind = "mark"
        self.cost = 0


@cython.final
cdef class Allocate(Work):
    """Commit the storage of a buffer."""
    cdef readonly Memory block
    """The memory that gets it."""
    cdef readonly object pool

    def __cinit__(self):
        self.code = WORK_ALLOCATE
        self.kind = "allocate"
        self.cost = 0

    def __init__(self, Memory block not None, pool):
        self.block = block
        self.pool = pool

    @property
    def nbytes(self):
        """How much."""
        return self.block.nbytes

    @property
    def memory(self):
        """The kind of memory."""
        return self.block.kind

    def commit(self, storage):
        """Take the storage, during `issue`."""
        self.block.commit(storage)


@cython.final
@cython.no_gc_clear
cdef class Free(Work):
    """Give the storage of a buffer back, in queue order."""
    cdef readonly Memory block
    """The memory whose storage it is."""

    def __cinit__(self):
        self.code = WORK_FREE
        self.kind = "free"
        self.cost = 0

    def __init__(self, Memory block not None):
        self.block = block
        if block.freed_by == NULL:
            block.freed_by = <PyObject *>self

    def __dealloc__(self):
        if self.block is not None:
            give_up_free(self)

    def release(self):
        """Take the storage from the buffer, during `issue`: the buffer no longer refers to it afterwards."""
        cdef Memory memory = self.block
        if memory.freed_by != <PyObject *>self or memory.phase == FREED:
            raise FailedPreconditionError(f"{memory.describe()} is freed twice")
        if memory.phase != LIVE:
            raise FailedPreconditionError(f"{memory.describe()} cannot be freed: it is {memory.phase_name}")
        storage = memory.storage
        memory.storage = None
        memory.phase = FREED
        return storage


cdef void give_up_free(Free work) noexcept:
    """Step: it never came to it: the buffer is still there."""
    if work.block.freed_by == <PyObject *>work and work.block.phase != FREED:
        work.block.freed_by = NULL


@cython.final
cdef class Fill(Work):
    """Repeat a pattern of 1, 2 or 4 bytes; offset and length are multiples of it."""
    cdef readonly object target
    cdef readonly bytes pattern

    def __cinit__(self):
        self.code = WORK_FILL
        self.kind = "fill"

    def __init__(self, target, bytes pattern not None):
        self.target = target
        self.pattern = pattern
        self.cost = None if isinstance(target, SlotSpan) else target.nbytes


@cython.final
cdef class Update(Work):
    """Write small host data that was captured at the call."""
    cdef readonly object target
    cdef readonly bytes data

    def __cinit__(self):
        self.code = WORK_UPDATE
        self.kind = "update"

    def __init__(self, target, bytes data not None):
        self.target = target
        self.data = data
        self.cost = len(data)


@cython.final
cdef class Upload(Work):
    """Write host data, one-dimensional contiguous bytes, borrowed until the work is over."""
    cdef readonly object array
    cdef readonly object target

    def __cinit__(self):
        self.code = WORK_UPLOAD
        self.kind = "upload"

    def __init__(self, array, target):
        self.array = array
        self.target = target
        self.cost = target.nbytes


@cython.final
cdef class Download(Work):
    """Read into host memory, one-dimensional contiguous bytes, borrowed until the work is over."""
    cdef readonly object source
    cdef readonly object array

    def __cinit__(self):
        self.code = WORK_DOWNLOAD
        self.kind = "download"

    def __init__(self, source, array):
        self.source = source
        self.array = array
        self.cost = source.nbytes


@cython.final
cdef class Copy(Work):
    """Copy between ranges of equal length that do not overlap."""
    cdef readonly object source
    cdef readonly object target

    def __cinit__(self):
        self.code = WORK_COPY
        self.kind = "copy"

    def __init__(self, source, target):
        self.source = source
        self.target = target
        self.cost = None if isinstance(source, SlotSpan) else source.nbytes


@cython.final
cdef class Dispatch(Work):
    """Run a function over workgroups. A zero among them means: do nothing."""
    cdef readonly object function
    cdef uintptr_t native        # of a compiled driver: its function
    cdef readonly tuple workgroups
    cdef readonly tuple bindings
    cdef readonly tuple constants
    cdef readonly object local_memory

    def __cinit__(self):
        self.code = WORK_DISPATCH
        self.kind = "dispatch"

    def __init__(self, function, tuple workgroups, tuple bindings, tuple constants, local_memory):
        self.function = function
        self.native = function.native
        self.workgroups = workgroups
        self.bindings = bindings
        self.constants = constants
        self.local_memory = local_memory


@cython.final
cdef class DispatchIndirect(Work):
    """As Dispatch, with three u32 counts read from memory when the command runs."""
    cdef readonly object function
    cdef readonly object counts
    cdef readonly tuple bindings
    cdef readonly tuple constants
    cdef readonly object local_memory

    def __cinit__(self):
        self.kind = "dispatch_indirect"

    def __init__(self, function, counts, tuple bindings, tuple constants, local_memory):
        self.function = function
        self.counts = counts
        self.bindings = bindings
        self.constants = constants
        self.local_memory = local_memory


@cython.final
cdef class Execute(Work):
    """Run a recording; `table` fills its slots, captured at the call."""
    cdef readonly object recording
    cdef readonly object prepared
    """What `DriverDevice.prepare` made of the recording."""
    cdef readonly tuple table

    def __cinit__(self):
        self.code = WORK_EXECUTE
        self.kind = "execute"

    def __init__(self, recording, prepared, tuple table, cost):
        self.recording = recording
        self.prepared = prepared
        self.table = table
        self.cost = cost
        self.empty = not recording.commands


@cython.final
cdef class HostWork(Work):
    """Work that a host thread does: host calls and files. `run` returns the submission's result."""
    cdef readonly object run

    def __cinit__(self):
        self.code = WORK_HOST

    def __init__(self, str kind not None, run):
        self.kind = kind
        self.run = run
