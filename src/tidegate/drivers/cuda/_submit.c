/* The submit path of the CUDA driver in as few calls as can be: waits, launch, epoch word, event, all in one.

   Optional. It does what `submit.py` does in Python, and nothing else; the conformance suite runs with both. It needs no
   header and no library of CUDA: the addresses of the driver's functions come from Python. Written against the stable
   ABI, so that one build serves every Python from 3.11 on.

   The GIL is kept: the calls return at once, and giving it away would cost a busy process milliseconds to get it back. */

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>

typedef int (*get_current_t)(void **);
typedef int (*push_t)(void *);
typedef int (*pop_t)(void **);
typedef int (*wait_t)(void *, void *, unsigned);
typedef int (*launch_t)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                        void **);
typedef int (*write_t)(void *, uint64_t, uint64_t, unsigned);
typedef int (*record_t)(void *, void *);
typedef int (*change_kernel_t)(void *, void *, void *);
typedef int (*change_t)(void *, void *, void *, void *);

static get_current_t get_current;
static push_t push_context;
static pop_t pop_context;
static wait_t wait_event;
static launch_t launch_kernel;
static write_t write_value;
static record_t record_event;

/* Which call failed, above the code that CUDA gave. */
enum { IN_WAIT = 1, IN_LAUNCH = 2, IN_WRITE = 3, IN_RECORD = 4 };

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
    uint64_t at[7];
    if (wrong_count("setup", count, 7) || !numbers(args, 7, at)) return NULL;
    get_current = (get_current_t)(uintptr_t)at[0];
    push_context = (push_t)(uintptr_t)at[1];
    pop_context = (pop_t)(uintptr_t)at[2];
    wait_event = (wait_t)(uintptr_t)at[3];
    launch_kernel = (launch_t)(uintptr_t)at[4];
    write_value = (write_t)(uintptr_t)at[5];
    record_event = (record_t)(uintptr_t)at[6];
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

static PyMethodDef methods[] = {
    {"setup", (PyCFunction)(void (*)(void))setup, METH_FASTCALL, "Take the addresses of the driver's functions."},
    {"enter", enter, METH_O, "Make a context current; returns whether it was pushed."},
    {"leave", leave, METH_NOARGS, "Pop the context that was pushed."},
    {"close", (PyCFunction)(void (*)(void))close_epoch, METH_FASTCALL, "Raise the word and record the event."},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL, "Waits, a kernel, the word and the event."},
    {"store", (PyCFunction)(void (*)(void))store, METH_FASTCALL, "Store an address into many words."},
    {"change", (PyCFunction)(void (*)(void))change, METH_FASTCALL, "Change many nodes of a graph instance."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_submit", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__submit(void) { return PyModule_Create(&module); }
