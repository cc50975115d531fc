"""Memory of a device, shared by a buffer and its subspans, and the ranges of it that work names (M18, M22 to M27)."""

cdef enum:
    PENDING, LIVE, FREED, NEVER      # the phases of a memory

PHASES = ("not committed yet", "live", "freed", "never committed: its allocation failed")


cdef class Memory:
    """The storage behind a buffer comes and goes: committed at once or in queue order, given back by `free`, `close` or
    the collector. Submissions count their uses, so that `close` takes effect at the end of the last one."""
    cdef readonly object device
    cdef readonly object nbytes
    cdef readonly str kind
    cdef readonly str label
    cdef object storage_
    cdef uint64_t address            # where the storage lies for compiled drivers, once it was asked; 0: not known
    cdef public object ready         # the submission that commits it, None where it had storage from the start
    cdef readonly list host_accesses # the ends of transfers for host accesses, begun and not known to be over
    cdef object write_error          # why the last write that is over failed
    cdef PyObject *last_write        # the last submitted write while it is not over; borrowed, and taken away by that
    cdef PyObject *freed_by          # the `Free` that was first; borrowed, and taken away by that
    cdef PyObject *root              # the buffer that stands for all of it, while there is one
    cdef Py_ssize_t uses
    cdef int phase
    cdef readonly bint closed

    def __init__(self, device, nbytes, str kind, str label):
        self.device = device
        self.nbytes = nbytes
        self.kind = kind
        self.label = label
        self.host_accesses = []

    def accessed(self):
        """Return the ends of the transfers for host accesses that are under way.

        Whoever gave up such an access, because its time was over or by an interrupt, has nothing to wait for; so `free`
        waits for these by itself.
        """
        return [end for end in self.host_accesses if (<Timepoint>end).semaphore.timeline.claims != NULL]

    def describe(self):
        """Return how texts name it."""
        label = f" {self.label!r}" if self.label else ""
        return f"buffer{label} of {self.nbytes} bytes"

    @property
    def storage(self):
        """The storage behind it, or None."""
        return self.storage_

    @storage.setter
    def storage(self, storage):
        self.address = 0
        self.storage_ = storage

    @property
    def phase_name(self):
        """What state it is in, in words."""
        return PHASES[self.phase]

    @property
    def given_up(self):
        """Whether it was closed, or the buffer that stands for all of it dropped: the end of its uses frees it."""
        return self.closed or self.root == NULL

    @property
    def is_pending(self):
        """Whether its storage was not committed yet."""
        return self.phase == PENDING

    @property
    def is_live(self):
        """Whether it has storage."""
        return self.phase == LIVE

    def commit(self, storage):
        """The storage is there. A buffer that was closed meanwhile, and that nobody uses, lets it go at once."""
        self.phase = LIVE
        if not self.closed or self.uses:
            self.storage = storage

    def pending_write(self):
        """Return the last submitted write while it is not over."""
        return None if self.last_write == NULL else <object>self.last_write

    def failure_of_last_write(self):
        """Return why the last write that is over failed, or None."""
        return self.write_error

    def close(self):
        """No further use; the storage goes with the last one. Returns whether that is still to come."""
        self.closed = True
        if self.uses == 0:
            self.storage = None
        return self.uses > 0

    cpdef refuse_unusable(self):
        """Raise if no new work may name this memory."""
        if self.closed:
            raise ClosedError(f"{self.describe()} is closed")
        # Not where its allocation failed: whether that is known by now depends on timing, and the work will fail.
        if self.phase == FREED:
            raise FailedPreconditionError(f"{self.describe()} is freed")


cdef inline void end_use(Memory memory) noexcept:
    """After: a submission that used it is over. The storage may go with it."""
    memory.uses -= 1
    if memory.closed and memory.uses == 0:
        memory.storage = None


@cython.no_gc_clear
cdef class Span:
    """A range of a memory: what a buffer is, and what work names."""
    cdef readonly Memory _memory
    cdef uint64_t offset_, nbytes_
    cdef readonly bint _root
    cdef object __weakref__

    def __init__(self, Memory memory not None, offset, nbytes, bint root=False):
        self._memory = memory
        self.offset_ = offset
        self.nbytes_ = nbytes
        self._root = root
        if root:
            memory.root = <PyObject *>self

    def __dealloc__(self):
        if self._root and self._memory is not None and self._memory.root == <PyObject *>self:
            self._memory.root = NULL

    @property
    def nbytes(self):
        """The size in bytes."""
        return self.nbytes_

    @property
    def offset(self):
        """Where this range begins in the memory it is part of."""
        return self.offset_

    @property
    def _offset(self):
        return self.offset_

    def locate(self):
        """Return the storage and the offset of this range in it: for drivers."""
        storage = self._memory.storage
        if storage is None:
            raise FailedPreconditionError(f"{self._memory.describe()} has no storage: it is {self._memory.phase_name}")
        return storage, self.offset_

    def _visible(self):
        """Return the bytes of this range if the host can see them, in an array of its own."""
        storage, offset = self.locate()
        whole = storage.host()
        return None if whole is None else whole[offset : offset + self.nbytes_]

    def subspan(self, offset, nbytes=None):
        """Return a range of this range; without a length, the rest."""
        offset, nbytes = checked_range(self, offset, nbytes)
        return new_span(self._memory, self.offset_ + <uint64_t>offset, nbytes)

    def bind(self, table):
        """Return itself: for drivers."""
        return self
