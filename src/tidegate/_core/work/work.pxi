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
    cdef int64_t cost_
    cdef readonly bint empty
    """The core's: whether there is nothing to do but wait and signal."""

    def __cinit__(self):
        self.kind = "work"

    @property
    def cost(self):
        """Bytes moved by built-in work, or None where user code runs. Drivers decide by it what may run in place (M34)."""
        return None if self.cost_ < 0 else self.cost_

    def __init__(self, str kind=None):
        if kind is not None:
            self.kind = kind     # a driver's own kind of work, which may take as long as it likes
            self.cost_ = -1


@cython.final
cdef class Barrier(Work):
    """Nothing: only waits and signals."""

    def __cinit__(self):
        self.code = WORK_BARRIER
        self.kind = "barrier"
        self.empty = True


cdef class Mark(Work):
    """Nothing, but on the device: its end is a moment in the order of a native queue."""

    def __cinit__(self):
        self.kind = "mark"


@cython.final
cdef class Allocate(Work):
    """Commit the storage of a buffer."""
    cdef readonly Memory block
    """The memory that gets it."""
    cdef readonly object pool

    def __cinit__(self):
        self.code = WORK_ALLOCATE
        self.kind = "allocate"

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


cdef struct Range:
    uint64_t offset
    uint64_t nbytes


cdef class Ranged(Work):
    """Work that names a range. It is kept in numbers, and made an object when a driver asks for it."""
    cdef object named            # the range as an object: in a recording it may be a `SlotSpan`
    cdef Memory memory           # None where it is a `SlotSpan`
    cdef Range range

    cdef void name(self, object given):
        """Take a range that is an object."""
        self.named = given
        if isinstance(given, Span):
            self.memory = (<Span>given)._memory
            self.range.offset = (<Span>given).offset_
            self.range.nbytes = (<Span>given).nbytes_
            self.cost_ = <int64_t>self.range.nbytes
        else:
            self.cost_ = -1

    cdef object as_object(self):
        if self.named is None:
            self.named = new_span(self.memory, self.range.offset, self.range.nbytes)
        return self.named


@cython.final
cdef class Fill(Ranged):
    """Repeat a pattern of 1, 2 or 4 bytes; offset and length are multiples of it."""
    cdef readonly bytes pattern

    def __cinit__(self):
        self.code = WORK_FILL
        self.kind = "fill"

    def __init__(self, target, bytes pattern not None):
        self.name(target)
        self.pattern = pattern

    @property
    def target(self):
        """The range that is filled."""
        return self.as_object()


@cython.final
cdef class Update(Ranged):
    """Write small host data that was captured at the call."""
    cdef readonly bytes data

    def __cinit__(self):
        self.code = WORK_UPDATE
        self.kind = "update"

    def __init__(self, target, bytes data not None):
        self.name(target)
        self.data = data
        self.cost_ = len(data)

    @property
    def target(self):
        """The range that is written."""
        return self.as_object()


cdef class HostRanged(Ranged):
    """Work between a range and memory of the host, which is borrowed until the work is over."""
    cdef object host             # the array that was given
    cdef object flat             # the same as one-dimensional contiguous bytes, made when a driver asks for it
    cdef void *address           # where its bytes lie

    @property
    def array(self):
        """The host's memory, as one-dimensional contiguous bytes."""
        if self.flat is None:
            self.flat = self.host.reshape(-1).view(BYTE)
        return self.flat

    cdef uint64_t borrow(self, object given, bint writable) except? 0:
        """Prepare: take an array whose bytes lie one after the other; returns how many. 0: it needs a look."""
        cdef Py_buffer view
        cdef uint64_t nbytes
        if type(given) is not ndarray:
            return 0
        try:
            PyObject_GetBuffer(given, &view, PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0))
        except (BufferError, ValueError):
            return 0
        nbytes = 0 if view.format[0] == 79 or view.format[1] != 0 else <uint64_t>view.len   # 79: O, Python's objects
        self.address = view.buf
        PyBuffer_Release(&view)    # the work keeps the array, and what is kept does not move
        self.host = given
        return nbytes

    cdef int borrow_flat(self, object flat) except -1:
        """Prepare: take one-dimensional contiguous bytes."""
        cdef Py_buffer view
        PyObject_GetBuffer(flat, &view, PyBUF_SIMPLE)
        self.address = view.buf
        PyBuffer_Release(&view)
        self.flat = flat
        return 0


@cython.final
cdef class Upload(HostRanged):
    """Write host data."""

    def __cinit__(self):
        self.code = WORK_UPLOAD
        self.kind = "upload"

    def __init__(self, array, target):
        self.name(target)
        self.borrow_flat(array)

    @property
    def target(self):
        """The range that is written."""
        return self.as_object()


@cython.final
cdef class Download(HostRanged):
    """Read into host memory."""

    def __cinit__(self):
        self.code = WORK_DOWNLOAD
        self.kind = "download"

    def __init__(self, source, array):
        self.name(source)
        self.borrow_flat(array)

    @property
    def source(self):
        """The range that is read."""
        return self.as_object()


@cython.final
cdef class Copy(Ranged):
    """Copy between ranges of equal length that do not overlap."""
    cdef object target_          # the range that is written, as `Ranged` keeps the one that is read
    cdef Memory target_memory
    cdef uint64_t target_offset

    def __cinit__(self):
        self.code = WORK_COPY
        self.kind = "copy"

    def __init__(self, source, target):
        self.name(source)
        self.target_ = target

    @property
    def source(self):
        """The range that is read."""
        return self.as_object()

    @property
    def target(self):
        """The range that is written."""
        if self.target_ is None:
            self.target_ = new_span(self.target_memory, self.target_offset, self.range.nbytes)
        return self.target_


cdef enum:
    FEW = 8              # so many bindings and constants are kept in numbers


@cython.final
cdef class Dispatch(Work):
    """Run a function over workgroups. A zero among them means: do nothing.

    A dispatch with few bindings and plain constants is kept in numbers, and told in objects when a driver asks.
    """
    cdef readonly object function
    cdef BaseFunction entry      # the function as the user has it, None in a recording
    cdef uint32_t groups[3]
    cdef uint64_t local
    cdef tuple spans             # the bindings and constants as objects; None while they are kept in numbers
    cdef tuple values
    cdef tuple memories
    cdef Range ranges[FEW]
    cdef uint64_t packed[FEW]
    cdef tuple plain             # the constants as they were given

    def __cinit__(self):
        self.code = WORK_DISPATCH
        self.kind = "dispatch"
        self.cost_ = -1

    def __init__(self, function, tuple workgroups, tuple bindings, tuple constants, local_memory):
        self.function = function
        self.groups[0], self.groups[1], self.groups[2] = workgroups
        self.spans = bindings
        self.values = constants
        self.local = local_memory

    @property
    def workgroups(self):
        """How many, in three dimensions."""
        return self.groups[0], self.groups[1], self.groups[2]

    @property
    def local_memory(self):
        """Bytes of scratch memory per workgroup."""
        return self.local

    @property
    def bindings(self):
        """The ranges, in order."""
        cdef Py_ssize_t index
        if self.spans is None:
            self.spans = tuple([
                new_span(<Memory>memory, self.ranges[index].offset, self.ranges[index].nbytes)
                for index, memory in enumerate(self.memories)
            ])
        return self.spans

    @property
    def constants(self):
        """The constants, of their declared types."""
        if self.values is None:
            self.values = tuple([kind.type(value) for kind, value in zip(self.entry.kinds, self.plain)])
        return self.values


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
        self.cost_ = -1

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
    cdef uintptr_t native        # of a compiled driver: what it knows that by
    cdef readonly tuple table

    def __cinit__(self):
        self.code = WORK_EXECUTE
        self.kind = "execute"

    def __init__(self, recording, prepared, tuple table, cost):
        self.recording = recording
        self.prepared = prepared
        self.native = getattr(prepared, "native", 0)
        self.table = table
        self.cost_ = -1 if cost is None else cost
        self.empty = not recording.commands


@cython.final
cdef class HostWork(Work):
    """Work that a host thread does: host calls and files. `run` returns the submission's result."""
    cdef readonly object run

    def __cinit__(self):
        self.code = WORK_HOST
        self.cost_ = -1

    def __init__(self, str kind not None, run):
        self.kind = kind
        self.run = run
