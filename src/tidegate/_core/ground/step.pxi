"""The ground of the rule: prepare, step, after.

A *step* changes shared state between CORE_LOCK and CORE_UNLOCK. It calls no Python, allocates nothing, drops no last
reference and cannot fail. CPython runs signal handlers and the collector only in its evaluation loop and in
allocations, and gives the GIL away only there; so with a GIL nothing comes between, and the lock is nothing at all.
Functions that run inside a step are `noexcept` and say so in the first line of their docstring: "Step:". A test finds
them by that mark and reads their generated C. With TIDEGATE_CHECK_STEPS defined, a build aborts where a step drops a
last reference.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #include <pythread.h>
    #if PY_VERSION_HEX < 0x030D0000
    #define Py_IsFinalizing _Py_IsFinalizing
    #endif
    #include <time.h>

    #ifdef Py_GIL_DISABLED
    static PyMutex core_mutex;
    #define CORE_LOCK() PyMutex_Lock(&core_mutex)
    #define CORE_UNLOCK() PyMutex_Unlock(&core_mutex)
    #elif defined(TIDEGATE_CHECK_STEPS)
    static int in_step;
    #define CORE_LOCK() ((void)++in_step)
    #define CORE_UNLOCK() ((void)--in_step)
    #else
    #define CORE_LOCK() ((void)0)
    #define CORE_UNLOCK() ((void)0)
    #endif

    #ifdef TIDEGATE_CHECK_STEPS
    static void checked_decref(PyObject *object) {
        if (in_step && Py_REFCNT(object) == 1)
            Py_FatalError("tidegate: a step dropped a last reference");
        Py_DECREF(object);
    }
    static void checked_xdecref(PyObject *object) { if (object) checked_decref(object); }
    #undef Py_DECREF
    #define Py_DECREF(object) checked_decref((PyObject *)(object))
    #undef Py_XDECREF
    #define Py_XDECREF(object) checked_xdecref((PyObject *)(object))
    #endif

    /* What a thread is in the middle of, and what it has still to run: see continuations. */
    typedef struct { PyObject *first, *last, *first_offered, *last_offered; } Chain;
    typedef struct {
        Chain chain;
        int running, in_driver, unlimited;
    } Turn;
    static _Thread_local Turn turn_of_thread;
    static inline Turn *turn_here(void) { return &turn_of_thread; }

    static inline uint64_t word_load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_ACQUIRE); }

    static inline uint64_t now_ns(void) {
        struct timespec t;
        clock_gettime(CLOCK_MONOTONIC, &t);
        return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
    }

    /* Look at a word for a while; with or without the GIL. */
    static int spin_on_word(const uint64_t *word, uint64_t value, uint64_t ns) {
        uint64_t end = 0;
        for (unsigned n = 1;; ++n) {
            if (word_load(word) >= value) return 1;
            if (n % 64 == 0) {
                uint64_t now = now_ns();
                if (!end) end = now + ns;
                else if (now >= end) return 0;
            }
        #if defined(__x86_64__) || defined(__i386__)
            __builtin_ia32_pause();
        #elif defined(__aarch64__)
            __asm__ __volatile__("yield");
        #endif
        }
    }

    /* The call that the user made: compiled functions have no frames, so the top one is Python's. `above`: how many
       Python frames of ours stand between. The code object is a new reference, NULL without a frame. */
    static PyObject *code_of_caller(int above, int *lasti) {
        PyFrameObject *frame = PyThreadState_GetFrame(PyThreadState_Get());
        while (frame && above-- > 0) {
            PyFrameObject *back = PyFrame_GetBack(frame);
            Py_DECREF(frame);
            frame = back;
        }
        if (!frame) { *lasti = -1; return NULL; }
        PyObject *code = (PyObject *)PyFrame_GetCode(frame);
        *lasti = PyFrame_GetLasti(frame);
        Py_DECREF(frame);
        return code;
    }
    """
    ctypedef struct Chain:
        # What is decided, first to last, ...
        PyObject *first
        PyObject *last
        # ... and held work that may follow what its device was given just now.
        PyObject *first_offered
        PyObject *last_offered
    ctypedef struct Turn:
        Chain chain
        int running
        int in_driver
        int unlimited

    void CORE_LOCK() noexcept nogil
    void CORE_UNLOCK() noexcept nogil
    Turn *turn_here() noexcept nogil
    uint64_t word_load(const uint64_t *) noexcept nogil
    uint64_t now_ns() noexcept nogil
    bint spin_on_word(const uint64_t *, uint64_t, uint64_t) noexcept nogil
    PyObject *code_of_caller(int, int *) noexcept

# As pointers, so that no step has a Python result to check, and therefore no way to raise.
cdef extern from "Python.h":
    PyObject *PyList_GET_ITEM(list, Py_ssize_t) noexcept
    Py_ssize_t PyList_GET_SIZE(list) noexcept
    PyObject *PyTuple_GET_ITEM(tuple, Py_ssize_t) noexcept
    Py_ssize_t PyTuple_GET_SIZE(tuple) noexcept
    int PyErr_CheckSignals() except -1
    long long PyLong_AsLongLongAndOverflow(object, int *) except? -1
    int Py_IsFinalizing() noexcept
    Py_ssize_t Py_REFCNT(object) noexcept

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_FORMAT, PyBUF_SIMPLE, PyBUF_WRITABLE
from cpython.buffer cimport PyBuffer_Release, PyObject_CheckBuffer, PyObject_GetBuffer

cdef extern from "pythread.h":
    ctypedef void *PyThread_type_lock
    ctypedef long long PY_TIMEOUT_T
    enum: PY_LOCK_ACQUIRED
    PyThread_type_lock PyThread_allocate_lock() noexcept
    void PyThread_free_lock(PyThread_type_lock) noexcept
    int PyThread_acquire_lock_timed(PyThread_type_lock, PY_TIMEOUT_T, int) noexcept nogil
    void PyThread_release_lock(PyThread_type_lock) noexcept
