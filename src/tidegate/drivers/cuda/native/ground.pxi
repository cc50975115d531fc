"""The seam, the types of CUDA's functions, and the device's lock."""

cdef extern from *:
    """
    #include <pythread.h>
    #ifdef Py_GIL_DISABLED
    static PyMutex small_mutex;
    #define SMALL_LOCK() PyMutex_Lock(&small_mutex)
    #define SMALL_UNLOCK() PyMutex_Unlock(&small_mutex)
    #else
    #define SMALL_LOCK() ((void)0)
    #define SMALL_UNLOCK() ((void)0)
    #endif
    static inline int try_gate(PyThread_type_lock gate) {
        return PyThread_acquire_lock_timed(gate, 0, 0) == PY_LOCK_ACQUIRED;
    }
    static inline uint64_t load_word(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }
    """
    # For the few lines that change what more than one device's lock may lead to. Nothing where there is a GIL.
    void SMALL_LOCK() noexcept nogil
    void SMALL_UNLOCK() noexcept nogil
    bint try_gate(void *) noexcept
    uint64_t load_word(const uint64_t *) noexcept nogil

cdef extern from "Python.h":
    Py_ssize_t PySet_GET_SIZE(object) noexcept
    Py_ssize_t PyList_GET_SIZE(list) noexcept
    PyObject *PyList_GET_ITEM(list, Py_ssize_t) noexcept
    Py_ssize_t Py_REFCNT(PyObject *) noexcept
    int PyErr_CheckSignals() except -1

cdef extern from "pythread.h":
    ctypedef void *PyThread_type_lock
    enum: PY_LOCK_ACQUIRED
    PyThread_type_lock PyThread_allocate_lock() noexcept
    void PyThread_free_lock(PyThread_type_lock) noexcept
    int PyThread_acquire_lock_timed(PyThread_type_lock, long long, int) noexcept nogil
    void PyThread_release_lock(PyThread_type_lock) noexcept
    unsigned long PyThread_get_thread_ident() noexcept

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

# CUDA's functions, as far as they are called from here. Handles are pointers, device memory is a number.
ctypedef int (*out_t)(void **) noexcept nogil
ctypedef int (*handle_t)(void *) noexcept nogil
ctypedef int (*pair_t)(void *, void *) noexcept nogil
ctypedef int (*wait_t)(void *, void *, unsigned) noexcept nogil
ctypedef int (*launch_t)(
    void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **
) noexcept nogil
ctypedef int (*write_t)(void *, uint64_t, uint64_t, unsigned) noexcept nogil
ctypedef int (*copy_t)(uint64_t, uint64_t, size_t, void *) noexcept nogil
ctypedef int (*fill8_t)(uint64_t, unsigned char, size_t, void *) noexcept nogil
ctypedef int (*fill16_t)(uint64_t, unsigned short, size_t, void *) noexcept nogil
ctypedef int (*fill32_t)(uint64_t, unsigned, size_t, void *) noexcept nogil
ctypedef int (*pointer_t)(void *, int, uint64_t) noexcept nogil

cdef enum:
    # Which call failed, as an index of CALLS.
    IN_GET, IN_PUSH, IN_POP, IN_WAIT, IN_LAUNCH, IN_WRITE, IN_RECORD, IN_QUERY, IN_SYNCHRONIZE, IN_COPY, IN_FILL8
    IN_FILL16, IN_FILL32, IN_GRAPH, IN_POINTER
    CALL_COUNT

cdef enum:
    NOT_READY = 600       # of CUDA's codes

CALLS = (
    "cuCtxGetCurrent",
    "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2",
    "cuStreamWaitEvent",
    "cuLaunchKernel",
    "cuStreamWriteValue64_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuEventSynchronize",
    "cuMemcpyAsync",
    "cuMemsetD8Async",
    "cuMemsetD16Async",
    "cuMemsetD32Async",
    "cuGraphLaunch",
    "cuPointerGetAttribute",
)
"""The names of the functions that are called from here."""


@cython.final
cdef class DeviceLock:
    """A lock that its thread may take again, as `threading.RLock`, and that can be tried without any Python."""
    cdef PyThread_type_lock gate
    cdef unsigned long owner      # the thread that has it, 0 for none
    cdef Py_ssize_t depth

    def __cinit__(self):
        self.gate = PyThread_allocate_lock()
        if self.gate == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.gate != NULL:
            PyThread_free_lock(self.gate)

    def __enter__(self):
        self.acquire()
        return True

    def __exit__(self, kind, error, trace):
        self.release()

    def _is_owned(self):
        """Whether this thread has it."""
        return self.owner == PyThread_get_thread_ident()

    cdef bint try_it(self) noexcept:
        """Step: take it if nobody has it, this thread included."""
        if self.owner != 0 or not try_gate(self.gate):
            return False
        self.owner = PyThread_get_thread_ident()
        self.depth = 1
        return True

    cdef int acquire(self) except -1:
        """Take it; while it waits, signals are answered."""
        cdef int got
        if self.owner == PyThread_get_thread_ident():
            self.depth += 1
            return 0
        got = PY_LOCK_ACQUIRED if try_gate(self.gate) else -1
        while got != PY_LOCK_ACQUIRED:
            with nogil:
                got = PyThread_acquire_lock_timed(self.gate, -1, 1)
            if got != PY_LOCK_ACQUIRED:
                PyErr_CheckSignals()
        self.owner = PyThread_get_thread_ident()
        self.depth = 1
        return 0

    cdef void release(self) noexcept:
        """Step: give it back."""
        self.depth -= 1
        if self.depth == 0:
            self.owner = 0
            PyThread_release_lock(self.gate)
