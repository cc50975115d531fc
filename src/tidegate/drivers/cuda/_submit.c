/* The submit path of the CUDA driver in as few calls as can be.

   `launch` and `close` do what `submit.py` does in Python: waits, launch, epoch word, event, all in one. `Port` is the
   express port of a queue (`_express.h` in the core): for a kernel in the plain case it also does what `queue`,
   `encoding` and `stream` do, with no Python in between. `StreamBase` has those members of a stream that it needs, so
   that both see the same ones.

   Optional: the conformance suite runs with and without it. It needs no header and no library of CUDA: the addresses of
   the driver's functions come from Python. The GIL is kept: the calls return at once, and giving it away would cost a
   busy process milliseconds to get it back. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <time.h>
#include "../../_core/_express.h"

#if defined(__x86_64__) || defined(__i386__)
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() __asm__ __volatile__("" ::: "memory")
#endif

#define FORM 5 /* Raised whenever `submit.py` and this file change together: a module built before is not used. */

typedef int (*get_current_t)(void **);
typedef int (*push_t)(void *);
typedef int (*pop_t)(void **);
typedef int (*wait_t)(void *, void *, unsigned);
typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);
typedef int (*write_t)(void *, uint64_t, uint64_t, unsigned);
typedef int (*record_t)(void *, void *);
typedef int (*copy_t)(uint64_t, uint64_t, size_t, void *);
typedef int (*synchronize_t)(void *);
typedef int (*change_kernel_t)(void *, void *, void *);
typedef int (*change_t)(void *, void *, void *, void *);

static get_current_t get_current;
static push_t push_context;
static pop_t pop_context;
static wait_t wait_event;
static launch_t launch_kernel;
static write_t write_value;
static record_t record_event;
static copy_t copy_memory;
static synchronize_t synchronize_event;

/* Which call failed, above the code that CUDA gave. */
enum { IN_WAIT = 1, IN_LAUNCH = 2, IN_WRITE = 3, IN_RECORD = 4, IN_COPY = 5, IN_SYNCHRONIZE = 6 };

static PyObject *failed(long step, int code) { return PyLong_FromLong(step << 16 | code); }

/* Unsigned numbers of any size; false with an exception set if one is not. */
static int numbers(PyObject *const *args, Py_ssize_t count, uint64_t *out) {
    for (Py_ssize_t i = 0; i < count; ++i) {
        out[i] = PyLong_AsUnsignedLongLong(args[i]);
        if (out[i] == (uint64_t)-1 && PyErr_Occurred()) return 0;
    }
    return 1;
}

static int wrong_count(const char *name, Py_ssize_t found, Py_ssize_t needed) {
    if (found == needed) return 0;
    PyErr_Format(PyExc_TypeError, "%s takes %zd arguments, not %zd", name, needed, found);
    return 1;
}

static PyObject *setup(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t at[9];
    if (wrong_count("setup", count, 9) || !numbers(args, 9, at)) return NULL;
    get_current = (get_current_t)(uintptr_t)at[0];
    push_context = (push_t)(uintptr_t)at[1];
    pop_context = (pop_t)(uintptr_t)at[2];
    wait_event = (wait_t)(uintptr_t)at[3];
    launch_kernel = (launch_t)(uintptr_t)at[4];
    write_value = (write_t)(uintptr_t)at[5];
    record_event = (record_t)(uintptr_t)at[6];
    copy_memory = (copy_t)(uintptr_t)at[7];
    synchronize_event = (synchronize_t)(uintptr_t)at[8];
    Py_RETURN_NONE;
}

/* enter(context) -> whether it was pushed; negative: the code of what failed. */
static PyObject *enter(PyObject *self, PyObject *context) {
    void *wanted = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(context);
    void *current = NULL;
    if (wanted == (void *)(uintptr_t)-1 && PyErr_Occurred()) return NULL;
    if (get_current(&current) == 0 && current == wanted) return PyLong_FromLong(0);
    int code = push_context(wanted);
    return PyLong_FromLong(code ? -code : 1);
}

static PyObject *leave(PyObject *self, PyObject *unused) {
    void *popped = NULL;
    return PyLong_FromLong(pop_context(&popped));
}

/* The end of an epoch: the word, then the event. */
static PyObject *finish(uint64_t stream, uint64_t word, uint64_t epoch, uint64_t event) {
    int code = word ? write_value((void *)(uintptr_t)stream, word, epoch, 0) : 0;
    if (code) return failed(IN_WRITE, code);
    code = record_event((void *)(uintptr_t)event, (void *)(uintptr_t)stream);
    return code ? failed(IN_RECORD, code) : PyLong_FromLong(0);
}

/* close(stream, word, epoch, event) */
static PyObject *close_epoch(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t a[4];
    if (wrong_count("close", count, 4) || !numbers(args, 4, a)) return NULL;
    return finish(a[0], a[1], a[2], a[3]);
}

/* launch(stream, function, gx, gy, gz, bx, by, bz, shared, params, word, epoch, event, *events to wait for) */
static PyObject *launch(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t a[13];
    if (count < 13) {
        wrong_count("launch", count, 13);
        return NULL;
    }
    if (!numbers(args, 13, a)) return NULL;
    void *stream = (void *)(uintptr_t)a[0];
    for (Py_ssize_t i = 13; i < count; ++i) {
        uint64_t event;
        if (!numbers(args + i, 1, &event)) return NULL;
        int code = wait_event(stream, (void *)(uintptr_t)event, 0);
        if (code) return failed(IN_WAIT, code);
    }
    int code = launch_kernel((void *)(uintptr_t)a[1], (unsigned)a[2], (unsigned)a[3], (unsigned)a[4], (unsigned)a[5],
                             (unsigned)a[6], (unsigned)a[7], (unsigned)a[8], stream, (void **)(uintptr_t)a[9], NULL);
    PyObject *end = finish(a[0], a[10], a[11], a[12]); /* also after a refusal: the epoch is taken */
    if (!code || !end) return end;
    Py_DECREF(end);
    return failed(IN_LAUNCH, code);
}

enum { MOST_SLOTS = 8 };

/* The pieces of `carry`, without the GIL. Returns 0, or which call failed above its code; others may still be on the
   link then. */
static long carry_pieces(int upload, unsigned char *host, uint64_t device, uint64_t nbytes, uint64_t piece, void *stream,
                      const uint64_t *slots, uint64_t count) {
    uint64_t pieces = (nbytes + piece - 1) / piece;
    /* Turn number i begins piece i and, `count` turns later, ends it. */
    for (uint64_t i = 0; i < pieces + count; ++i) {
        uint64_t slot = slots[2 * (i % count)];
        void *event = (void *)(uintptr_t)slots[2 * (i % count) + 1];
        if (i >= count && i - count < pieces) {
            uint64_t begin = (i - count) * piece, size = nbytes - begin < piece ? nbytes - begin : piece;
            int code = synchronize_event(event);
            if (code) return (long)IN_SYNCHRONIZE << 16 | code;
            if (!upload) memcpy(host + begin, (void *)(uintptr_t)slot, size);
        }
        if (i < pieces) {
            uint64_t begin = i * piece, size = nbytes - begin < piece ? nbytes - begin : piece;
            if (upload) memcpy((void *)(uintptr_t)slot, host + begin, size);
            int code = upload ? copy_memory(device + begin, slot, size, stream)
                              : copy_memory(slot, device + begin, size, stream);
            if (code) return (long)IN_COPY << 16 | code;
            code = record_event(event, stream);
            if (code) return (long)IN_RECORD << 16 | code;
        }
    }
    return 0;
}

/* The same, with nothing on the link behind it: the slots serve the next transfer. */
static long carry_all(int upload, unsigned char *host, uint64_t device, uint64_t nbytes, uint64_t piece, void *stream,
                      const uint64_t *slots, uint64_t count) {
    long code = carry_pieces(upload, host, device, nbytes, piece, stream, slots, count);
    for (uint64_t i = 0; code && i < count; ++i) synchronize_event((void *)(uintptr_t)slots[2 * i + 1]);
    return code;
}

/* carry(upload, host, device, nbytes, piece, stream, *(slot, event)): see `submit.py`. Gives the GIL up, once. */
static PyObject *carry(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t a[6 + 2 * MOST_SLOTS];
    long code;
    if (count < 8 || count > 6 + 2 * MOST_SLOTS || count % 2) {
        wrong_count("carry", count, 8);
        return NULL;
    }
    if (!numbers(args, count, a)) return NULL;
    Py_BEGIN_ALLOW_THREADS
    code = carry_all(a[0] != 0, (unsigned char *)(uintptr_t)a[1], a[2], a[3], a[4], (void *)(uintptr_t)a[5], a + 6,
                     (uint64_t)(count - 6) / 2);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(code);
}

/* store(words, count, address): at each of `count` pairs (where, offset) stores address + offset there. */
static PyObject *store(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t a[3];
    if (wrong_count("store", count, 3) || !numbers(args, 3, a)) return NULL;
    const uint64_t *words = (const uint64_t *)(uintptr_t)a[0];
    for (uint64_t i = 0; i < a[1]; ++i) *(uint64_t *)(uintptr_t)words[2 * i] = a[2] + words[2 * i + 1];
    Py_RETURN_NONE;
}

/* change(function, instance, nodes, count, context) -> code: hands over `count` pairs (node, structure); the function
   for kernels takes no context, and is told by 0. */
static PyObject *change(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    uint64_t a[5];
    if (wrong_count("change", count, 5) || !numbers(args, 5, a)) return NULL;
    const uint64_t *nodes = (const uint64_t *)(uintptr_t)a[2];
    void *instance = (void *)(uintptr_t)a[1], *context = (void *)(uintptr_t)a[4];
    int code = 0;
    for (uint64_t i = 0; i < a[3] && !code; ++i) {
        void *node = (void *)(uintptr_t)nodes[2 * i], *structure = (void *)(uintptr_t)nodes[2 * i + 1];
        code = context ? ((change_t)(uintptr_t)a[0])(instance, node, structure, context)
                       : ((change_kernel_t)(uintptr_t)a[0])(instance, node, structure);
    }
    return PyLong_FromLong(code);
}

/* Streams ---------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    unsigned long long handle, word, issued, closed_epoch, parked_until, found;
    long long places;
    int watchers; /* threads that look at the word without the GIL: it must stay where it is */
    char lent;
    PyObject *in_flight, *line, *priority;
} Stream;

static PyMemberDef stream_members[] = {
    {"handle", T_ULONGLONG, offsetof(Stream, handle), 0, NULL},
    {"word", T_ULONGLONG, offsetof(Stream, word), 0, NULL},
    {"issued", T_ULONGLONG, offsetof(Stream, issued), 0, NULL},
    {"_closed_epoch", T_ULONGLONG, offsetof(Stream, closed_epoch), 0, NULL},
    {"_found", T_ULONGLONG, offsetof(Stream, found), 0, NULL},
    {"parked_until", T_ULONGLONG, offsetof(Stream, parked_until), 0, NULL},
    {"places", T_LONGLONG, offsetof(Stream, places), 0, NULL},
    {"watchers", T_INT, offsetof(Stream, watchers), READONLY, NULL},
    {"lent", T_BOOL, offsetof(Stream, lent), 0, NULL},
    {"in_flight", T_OBJECT, offsetof(Stream, in_flight), 0, NULL},
    {"_line", T_OBJECT, offsetof(Stream, line), 0, NULL},
    {"priority", T_OBJECT, offsetof(Stream, priority), 0, NULL},
    {NULL},
};

static int stream_traverse(PyObject *self, visitproc visit, void *arg) {
    Stream *stream = (Stream *)self;
    Py_VISIT(stream->in_flight);
    Py_VISIT(stream->line);
    Py_VISIT(stream->priority);
    return 0;
}

static int stream_clear(PyObject *self) {
    Stream *stream = (Stream *)self;
    Py_CLEAR(stream->in_flight);
    Py_CLEAR(stream->line);
    Py_CLEAR(stream->priority);
    return 0;
}

static void stream_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    stream_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyTypeObject StreamBase = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tidegate.drivers.cuda._submit.StreamBase",
    .tp_basicsize = sizeof(Stream),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = stream_dealloc,
    .tp_traverse = stream_traverse,
    .tp_clear = stream_clear,
    .tp_members = stream_members,
};

/* As far as is known without asking CUDA. */
static inline uint64_t reached(Stream *stream) {
    uint64_t word = *(volatile uint64_t *)(uintptr_t)stream->word;
    return word > stream->found ? word : stream->found;
}

enum { SPIN_NS = 20000, LEAST_FREE_NS = 50000, MOST_FREE_NS = 2000000, PROBE = 16, CROWDED_NS = 1000000, SHY = 32 };

static uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static int spin(volatile uint64_t *word, uint64_t epoch, uint64_t limit_ns) {
    uint64_t begin = clock_ns();
    while (*word < epoch) {
        for (int i = 0; i < 16 && *word < epoch; ++i) PAUSE();
        if (clock_ns() - begin > limit_ns) return *word >= epoch;
    }
    return 1;
}

/* watch(stream, epoch) -> whether the epoch is over, now or soon.

   First with the GIL, for as long as a short kernel takes; then without it, because to wake a thread that sleeps takes a
   quarter of a millisecond. How long that may be is learnt: half as long after a time in vain, twice what it took after
   one that was not, and now and then as long as ever. Beside a thread that runs Python all the time the GIL does not come
   back before milliseconds have passed: when that was seen, the second part is left out for a while. */
static PyObject *watch(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    static int shy = 0, turns = 0;
    static uint64_t patience = MOST_FREE_NS;
    uint64_t epoch;
    if (wrong_count("watch", count, 2) || !numbers(args + 1, 1, &epoch)) return NULL;
    if (!PyObject_TypeCheck(args[0], &StreamBase)) {
        PyErr_SetString(PyExc_TypeError, "watch takes a stream");
        return NULL;
    }
    Stream *stream = (Stream *)args[0];
    if (!stream->word) Py_RETURN_FALSE;
    volatile uint64_t *word = (volatile uint64_t *)(uintptr_t)stream->word;
    int over = spin(word, epoch, SPIN_NS);
    if (!over && shy > 0) {
        --shy;
    } else if (!over) {
        uint64_t begin, back, limit = ++turns % PROBE ? patience : MOST_FREE_NS;
        ++stream->watchers;
        Py_BEGIN_ALLOW_THREADS
        begin = clock_ns();
        over = spin(word, epoch, limit);
        back = clock_ns();
        Py_END_ALLOW_THREADS
        --stream->watchers;
        if (over && patience < 2 * (back - begin)) patience = 2 * (back - begin);
        if (!over && patience > LEAST_FREE_NS) patience /= 2;
        if (patience > MOST_FREE_NS) patience = MOST_FREE_NS;
        if (clock_ns() - back > CROWDED_NS) shy = SHY;
    }
    return PyBool_FromLong(over);
}

static inline int is_none(PyObject *object) { return object == NULL || object == Py_None; }

/* Kernels ---------------------------------------------------------------------------------------------------------- */

enum { MOST_PARAMETERS = 64, ARGUMENT_BYTES = 4096 };

/* How a function is launched: made once for each, and nothing but numbers. */
typedef struct {
    PyObject_HEAD
    void *function;
    unsigned block[3];
    int parameters, bindings;
    uint32_t offsets[MOST_PARAMETERS], sizes[MOST_PARAMETERS];
} Plan;

static PyTypeObject PlanType;

/* plan(function, bx, by, bz, bindings, ((offset, size), ...)); None if it is too much for the express way. */
static PyObject *make_plan(PyObject *self, PyObject *args) {
    unsigned long long function;
    unsigned block[3];
    int bindings;
    PyObject *parameters;
    if (!PyArg_ParseTuple(args, "KIIIiO!", &function, &block[0], &block[1], &block[2], &bindings, &PyTuple_Type,
                          &parameters))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(parameters);
    if (count > MOST_PARAMETERS || bindings > count) Py_RETURN_NONE;
    Plan *plan = PyObject_New(Plan, &PlanType);
    if (!plan) return NULL;
    plan->function = (void *)(uintptr_t)function;
    memcpy(plan->block, block, sizeof block);
    plan->parameters = (int)count;
    plan->bindings = bindings;
    uint64_t end = 0;
    for (Py_ssize_t i = 0; i < count; ++i) {
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(parameters, i), "II", &plan->offsets[i], &plan->sizes[i])) {
            Py_DECREF(plan);
            return NULL;
        }
        end = (uint64_t)plan->offsets[i] + plan->sizes[i];
        if (end > ARGUMENT_BYTES || (i < bindings && plan->sizes[i] != 8)) {
            Py_DECREF(plan);
            Py_RETURN_NONE;
        }
    }
    return (PyObject *)plan;
}

static PyTypeObject PlanType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tidegate.drivers.cuda._submit.Plan",
    .tp_basicsize = sizeof(Plan),
    .tp_flags = Py_TPFLAGS_DEFAULT,
};

/* The express port of a queue -------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *device, *owned, *acquire, *release, *quiet, *garbage, *points, *streams, *last;
    unsigned long long context;
    long priority;
    long long budget;
    char full; /* whether there are as many streams as there may be */
} Port;

typedef struct {
    Plan *plan; /* borrowed from the function; NULL: nothing but the end of an epoch */
    unsigned grid[3], shared;
    void *params[MOST_PARAMETERS];
    unsigned char bytes[ARGUMENT_BYTES] __attribute__((aligned(16)));
} Prepared;

_Static_assert(sizeof(Prepared) <= EXPRESS_SCRATCH, "what is prepared must fit");

static PyTypeObject *stream_class, *buffer_class, *memory_class, *dispatch_class, *barrier_class;
static struct { Py_ssize_t memory, offset; } of_buffer;
static struct { Py_ssize_t storage; } of_memory;
static struct { Py_ssize_t function, workgroups, bindings, constants, local_memory; } of_dispatch;
static struct { Py_ssize_t event, epoch, places, keep, silent; } of_point;
static struct { Py_ssize_t handle, uses; } of_event;
static PyObject *name_address, *name_plan, *name_doomed, *name_append, *name_popleft;

static int unsigned_of(PyObject *number, unsigned long long *out) {
    if (!number || !PyLong_Check(number)) return 0;
    *out = PyLong_AsUnsignedLongLong(number);
    if (*out == (unsigned long long)-1 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    return 1;
}

static int put_address(PyObject *buffer, unsigned char *at) {
    if (!Py_IS_TYPE(buffer, buffer_class)) return 0;
    PyObject *memory = SLOT(buffer, of_buffer.memory);
    PyObject *storage = memory && Py_IS_TYPE(memory, memory_class) ? SLOT(memory, of_memory.storage) : NULL;
    unsigned long long address, offset;
    if (is_none(storage)) return 0;
    PyObject *base = PyObject_GetAttr(storage, name_address);
    int found = unsigned_of(base, &address) && unsigned_of(SLOT(buffer, of_buffer.offset), &offset);
    Py_XDECREF(base);
    PyErr_Clear();
    if (!found) return 0;
    address += offset;
    memcpy(at, &address, 8);
    return 1;
}

/* A constant that has its bytes, as NumPy's scalars do. */
static int put_constant(PyObject *value, unsigned char *at, uint32_t size) {
    Py_buffer view;
    if (PyLong_CheckExact(value) || PyFloat_CheckExact(value) || PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) < 0) {
        PyErr_Clear();
        return 0;
    }
    int fits = view.len == (Py_ssize_t)size;
    if (fits) memcpy(at, view.buf, size);
    PyBuffer_Release(&view);
    return fits;
}

static int prepare_work(PyObject *work, Prepared *prepared) {
    prepared->plan = NULL;
    if (Py_IS_TYPE(work, barrier_class)) return 1;
    if (!Py_IS_TYPE(work, dispatch_class)) return 0;
    PyObject *groups = SLOT(work, of_dispatch.workgroups), *bindings = SLOT(work, of_dispatch.bindings);
    PyObject *constants = SLOT(work, of_dispatch.constants);
    PyObject *plan = PyObject_GetAttr(SLOT(work, of_dispatch.function), name_plan);
    unsigned long long number;
    if (!plan || !Py_IS_TYPE(plan, &PlanType) || !PyTuple_CheckExact(bindings) || !PyTuple_CheckExact(constants)) {
        Py_XDECREF(plan);
        PyErr_Clear();
        return 0;
    }
    Py_DECREF(plan); /* the function keeps it, the work keeps the function */
    Plan *found = (Plan *)plan;
    if (PyTuple_GET_SIZE(bindings) != found->bindings
        || PyTuple_GET_SIZE(constants) != found->parameters - found->bindings)
        return 0;
    for (int i = 0; i < 3; ++i) {
        if (!unsigned_of(PyTuple_GET_ITEM(groups, i), &number) || number == 0 || number > 0x7fffffff) return 0;
        prepared->grid[i] = (unsigned)number;
    }
    if (!unsigned_of(SLOT(work, of_dispatch.local_memory), &number) || number > 0x7fffffff) return 0;
    prepared->shared = (unsigned)number;
    for (int i = 0; i < found->parameters; ++i) {
        unsigned char *at = prepared->bytes + found->offsets[i];
        prepared->params[i] = at;
        if (i < found->bindings ? !put_address(PyTuple_GET_ITEM(bindings, i), at)
                                : !put_constant(PyTuple_GET_ITEM(constants, i - found->bindings), at, found->sizes[i]))
            return 0;
    }
    prepared->plan = found;
    return 1;
}

static void port_release(PyObject *self) {
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    Py_XDECREF(PyObject_CallNoArgs(((Port *)self)->release));
    PyErr_Restore(type, error, trace);
}

/* The device's lock is tried, too: if this thread has it, or another, the Python way is taken. */
static int port_prepare(PyObject *self, PyObject *work, void *scratch) {
    Port *port = (Port *)self;
    if (!prepare_work(work, scratch)) return 0;
    PyObject *owned = PyObject_CallNoArgs(port->owned), *got = NULL;
    if (owned == Py_False) got = PyObject_CallOneArg(port->acquire, Py_False);
    int taken = got == Py_True;
    Py_XDECREF(owned);
    Py_XDECREF(got);
    PyErr_Clear();
    return taken;
}

/* A stream that nothing independent would have to wait for, as `CudaQueue._choose` finds it in the plain cases. */
static Stream *choose(Port *port, PyObject *after, unsigned long long epoch) {
    if (after) {
        Stream *stream = (Stream *)after;
        if (!Py_IS_TYPE(after, stream_class) || !stream->word) return NULL;
        int over = reached(stream) >= epoch;
        if (stream->issued == epoch && !stream->lent && !is_none(stream->priority)
            && PyLong_AsLong(stream->priority) == port->priority && stream->places < port->budget)
            return stream;
        if (!over) return NULL;
    }
    Stream *last = (Stream *)port->last;
    if (!is_none(port->last) && last->word && reached(last) == last->issued && !last->lent) return last;
    Stream *least = NULL;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(port->streams); ++i) {
        PyObject *each = PyList_GET_ITEM(port->streams, i);
        Stream *stream = (Stream *)each;
        if (!Py_IS_TYPE(each, stream_class) || !stream->word) return NULL;
        uint64_t over = reached(stream);
        if (stream->lent) continue;
        if (over == stream->issued) return stream;
        if (stream->parked_until <= over && stream->places < port->budget
            && (!least || stream->issued - over < least->issued - reached(least)))
            least = stream;
    }
    return port->full ? least : NULL; /* else Python makes one more */
}

/* Take back what is over, a few at a time, as `Stream.collect` does. */
static void collect(Port *port, Stream *stream) {
    for (int most = 8; most && PyObject_Size(stream->line) > 0; --most) {
        PyObject *point = PySequence_GetItem(stream->line, 0);
        unsigned long long epoch, places, uses;
        int over = point && unsigned_of(SLOT(point, of_point.epoch), &epoch) && epoch <= reached(stream)
                   && unsigned_of(SLOT(point, of_point.places), &places)
                   && unsigned_of(SLOT(SLOT(point, of_point.event), of_event.uses), &uses) && uses == 1
                   && SLOT(point, of_point.keep) == Py_None;
        if (over) {
            Py_XDECREF(PyObject_CallMethodNoArgs(stream->line, name_popleft));
            stream->places -= (long long)places;
            PyList_Append(port->points, point);
        }
        Py_XDECREF(point);
        if (!over) break;
    }
    PyErr_Clear();
}

/* The calls. 1: all is on the stream; 0: nothing is; -1: the work is, and the end of its epoch is still missing: if it
   can be put there by `Stream.heal`, all is well, and if not the device is lost. */
static int launch_all(Port *port, Prepared *prepared, Stream *stream, void *event) {
    void *current = NULL, *context = (void *)(uintptr_t)port->context, *handle = (void *)(uintptr_t)stream->handle;
    int pushed = 0, code = 0;
    if (get_current(&current) != 0 || current != context) {
        if (push_context(context) != 0) return 0;
        pushed = 1;
    }
    Plan *plan = prepared->plan;
    if (plan)
        code = launch_kernel(plan->function, prepared->grid[0], prepared->grid[1], prepared->grid[2], plan->block[0],
                             plan->block[1], plan->block[2], prepared->shared, handle, prepared->params, NULL);
    int done = code == 0;
    if (done && (write_value(handle, stream->word, stream->issued + 1, 0) != 0 || record_event(event, handle) != 0))
        done = -1;
    if (pushed) pop_context(&current);
    return done;
}

static int issue_locked(Port *port, Prepared *prepared, Stream *stream) {
    Py_ssize_t count = PyList_GET_SIZE(port->points);
    unsigned long long event;
    if (stream->closed_epoch != stream->issued || !stream->word || count == 0) return 0;
    PyObject *point = PyList_GET_ITEM(port->points, count - 1);
    if (!unsigned_of(SLOT(SLOT(point, of_point.event), of_event.handle), &event) || !event) return 0;
    PyObject *epoch = PyLong_FromUnsignedLongLong(stream->issued + 1);
    PyObject *places = PyLong_FromLong(prepared->plan ? 2 : 1);
    int done = epoch && places ? launch_all(port, prepared, stream, (void *)(uintptr_t)event) : 0;
    if (done) ++stream->issued;
    if (done == 1) { /* else `Stream.heal` ends the epoch */
        Py_INCREF(point);
        slot_set(point, of_point.epoch, epoch);
        slot_set(point, of_point.places, places);
        slot_set(point, of_point.silent, Py_False);
        PyList_SetSlice(port->points, count - 1, count, NULL);
        Py_XDECREF(PyObject_CallMethodOneArg(stream->line, name_append, point));
        Py_DECREF(point);
        stream->places += prepared->plan ? 2 : 1;
        stream->closed_epoch = stream->issued;
    }
    Py_XDECREF(epoch);
    Py_XDECREF(places);
    PyErr_Clear();
    return done != 0;
}

static int port_issue(PyObject *self, void *scratch, PyObject *after, unsigned long long after_epoch,
                      PyObject **timeline, unsigned long long *epoch) {
    Port *port = (Port *)self;
    PyObject *doomed = PyObject_GetAttr(port->device, name_doomed);
    int sound = doomed == Py_None && PySet_GET_SIZE(port->quiet) == 0 && PyObject_Size(port->garbage) == 0;
    Py_XDECREF(doomed);
    PyErr_Clear();
    /* What is empty and waits for nothing passes on the host. */
    int worth = ((Prepared *)scratch)->plan != NULL || after != NULL;
    Stream *stream = sound && worth ? choose(port, after, after_epoch) : NULL;
    if (!stream) return 0;
    collect(port, stream);
    if (!issue_locked(port, scratch, stream)) return 0;
    if (port->last != (PyObject *)stream) Py_XSETREF(port->last, Py_NewRef((PyObject *)stream));
    *timeline = (PyObject *)stream;
    *epoch = stream->issued;
    return 1;
}

static PyObject *port_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *device, *lock, *quiet, *garbage, *points, *streams;
    unsigned long long context;
    long priority;
    long long budget;
    if (!PyArg_ParseTuple(args, "OOO!OO!O!KlL:Port", &device, &lock, &PySet_Type, &quiet, &garbage, &PyList_Type,
                          &points, &PyList_Type, &streams, &context, &priority, &budget))
        return NULL;
    Port *port = (Port *)type->tp_alloc(type, 0);
    if (!port) return NULL;
    port->device = Py_NewRef(device);
    port->quiet = Py_NewRef(quiet);
    port->garbage = Py_NewRef(garbage);
    port->points = Py_NewRef(points);
    port->streams = Py_NewRef(streams);
    port->last = Py_NewRef(Py_None);
    port->context = context;
    port->priority = priority;
    port->budget = budget;
    port->owned = PyObject_GetAttrString(lock, "_is_owned");
    port->acquire = PyObject_GetAttrString(lock, "acquire");
    port->release = PyObject_GetAttrString(lock, "release");
    if (!port->owned || !port->acquire || !port->release) Py_CLEAR(port);
    return (PyObject *)port;
}

static int port_traverse(PyObject *self, visitproc visit, void *arg) {
    Port *port = (Port *)self;
    Py_VISIT(port->device);
    Py_VISIT(port->owned);
    Py_VISIT(port->acquire);
    Py_VISIT(port->release);
    Py_VISIT(port->quiet);
    Py_VISIT(port->garbage);
    Py_VISIT(port->points);
    Py_VISIT(port->streams);
    Py_VISIT(port->last);
    return 0;
}

static int port_clear(PyObject *self) {
    Port *port = (Port *)self;
    Py_CLEAR(port->device);
    Py_CLEAR(port->owned);
    Py_CLEAR(port->acquire);
    Py_CLEAR(port->release);
    Py_CLEAR(port->quiet);
    Py_CLEAR(port->garbage);
    Py_CLEAR(port->points);
    Py_CLEAR(port->streams);
    Py_CLEAR(port->last);
    return 0;
}

static void port_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    port_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef port_members[] = {
    {"last", T_OBJECT, offsetof(Port, last), 0, NULL},
    {"full", T_BOOL, offsetof(Port, full), 0, NULL},
    {NULL},
};

static PyTypeObject PortType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tidegate.drivers.cuda._submit.Port",
    .tp_members = port_members,
    .tp_basicsize = sizeof(Port),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = port_new,
    .tp_dealloc = port_dealloc,
    .tp_traverse = port_traverse,
    .tp_clear = port_clear,
};

static ExpressPort express_port = {&PortType, port_prepare, port_release, port_issue};

static int find(PyObject *type, const char *name, Py_ssize_t *offset) {
    *offset = slot_offset(type, name);
    return *offset >= 0;
}

/* install(Stream, Buffer, Memory, Dispatch, Barrier, NativeTimepoint, Event): once. */
static PyObject *install(PyObject *self, PyObject *args) {
    PyObject *stream, *buffer, *memory, *dispatch, *barrier, *point, *event;
    if (!PyArg_ParseTuple(args, "OOOOOOO:install", &stream, &buffer, &memory, &dispatch, &barrier, &point, &event)
        || !find(buffer, "_memory", &of_buffer.memory) || !find(buffer, "_offset", &of_buffer.offset)
        || !find(memory, "storage", &of_memory.storage) || !find(dispatch, "function", &of_dispatch.function)
        || !find(dispatch, "workgroups", &of_dispatch.workgroups)
        || !find(dispatch, "bindings", &of_dispatch.bindings)
        || !find(dispatch, "constants", &of_dispatch.constants)
        || !find(dispatch, "local_memory", &of_dispatch.local_memory) || !find(point, "event", &of_point.event)
        || !find(point, "epoch", &of_point.epoch) || !find(point, "places", &of_point.places)
        || !find(point, "keep", &of_point.keep) || !find(point, "silent", &of_point.silent) || !find(event, "handle", &of_event.handle)
        || !find(event, "uses", &of_event.uses))
        return NULL;
    stream_class = (PyTypeObject *)Py_NewRef(stream);
    buffer_class = (PyTypeObject *)Py_NewRef(buffer);
    memory_class = (PyTypeObject *)Py_NewRef(memory);
    dispatch_class = (PyTypeObject *)Py_NewRef(dispatch);
    barrier_class = (PyTypeObject *)Py_NewRef(barrier);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"setup", (PyCFunction)(void (*)(void))setup, METH_FASTCALL, "Take the addresses of the driver's functions."},
    {"enter", enter, METH_O, "Make a context current; returns whether it was pushed."},
    {"leave", leave, METH_NOARGS, "Pop the context that was pushed."},
    {"close", (PyCFunction)(void (*)(void))close_epoch, METH_FASTCALL, "Raise the word and record the event."},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, "Waits, a kernel, the word and the event."},
    {"carry", (PyCFunction)(void (*)(void))carry, METH_FASTCALL, "Move data through page-locked slots."},
    {"store", (PyCFunction)(void (*)(void))store, METH_FASTCALL, "Store an address into many words."},
    {"change", (PyCFunction)(void (*)(void))change, METH_FASTCALL, "Change many nodes of a graph instance."},
    {"watch", (PyCFunction)(void (*)(void))watch, METH_FASTCALL, "Spin until an epoch is over, or for a while."},
    {"plan", make_plan, METH_VARARGS, "Describe how a function is launched."},
    {"install", install, METH_VARARGS, "Take the classes of the core and the driver."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_submit", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__submit(void) {
    PyObject *made = PyModule_Create(&module);
    name_address = PyUnicode_InternFromString("address");
    name_plan = PyUnicode_InternFromString("plan");
    name_doomed = PyUnicode_InternFromString("doomed");
    name_append = PyUnicode_InternFromString("append");
    name_popleft = PyUnicode_InternFromString("popleft");
    PyObject *capsule = PyCapsule_New(&express_port, EXPRESS_PORT, NULL);
    if (!made || !capsule || PyType_Ready(&PlanType) < 0 || PyModule_AddIntConstant(made, "FORM", FORM) < 0
        || PyModule_AddType(made, &StreamBase) < 0 || PyModule_AddType(made, &PortType) < 0
        || PyModule_AddObjectRef(made, "EXPRESS", capsule) < 0)
        return NULL;
    Py_DECREF(capsule);
    return made;
}
