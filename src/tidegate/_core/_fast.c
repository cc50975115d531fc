/* The shortest calls in C: query, signal, a wait for what is reached, and making timepoints.

Python has to make a frame for such a call, which costs more than all that happens in it. So the plain cases stand here
once more. Everything else, be it a waiter, a claim, a failure, a keyword, a wrong type or a value above 2**63, goes to
the Python form of the same method with the same arguments. That form stays complete: it serves alone where this module
was not built, and a forked child puts its own methods over both (see `semaphore`).

What the code relies on:

- The GIL. From the test of `calm` to the store of the payload nothing is called that runs Python code or gives up the
  GIL, so nothing can come between them (M38). A build of Python without the GIL gets an ImportError.
- The members are object slots like those of `__slots__`, not C numbers, because the interpreter reads and writes such
  slots by offset, and the rest of the core does that all the time. An unset one is NULL, and then the Python form says
  what is missing.
- The types are static and what `install` is given is kept for ever, so there can be one copy of the core in a process
  that uses this module. A second one, in another interpreter or after a new import, gets an ImportError too.

`fast_path` turns an ImportError into the Python form.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#define FORM 1 /* Raised whenever `fast_path` and this file change together: a module built before is not used. */

typedef struct {
    PyObject_HEAD
    PyObject *payload;
    PyObject *calm;
} State;

typedef struct {
    PyObject_HEAD
    PyObject *state;
} Semaphore;

typedef struct {
    PyObject_HEAD
    PyObject *semaphore;
    PyObject *value;
    PyObject *state;
} Timepoint;

/* What `install` was given: the classes made from the types below, and the Python form of each method. */
static PyTypeObject *timeline_class, *timepoint_class;
static PyObject *python_query, *python_signal, *python_wait, *python_at;
static PyObject *timeout_name, *state_name;

/* The state of a semaphore, or NULL if it is none that this module knows by heart. */
static inline State *state_of(PyObject *self)
{
    PyObject *state = ((Semaphore *)self)->state;
    return state != NULL && Py_IS_TYPE(state, timeline_class) ? (State *)state : NULL;
}

/* An exact int in 0..2**63-1, or -1 for anything else. Raises nothing and runs no Python code. */
static inline long long small(PyObject *value)
{
    int overflow;
    if (value == NULL || !PyLong_CheckExact(value)) {
        return -1;
    }
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0 && number >= 0 ? number : -1;
}

/* Call the Python form of a method with the arguments as they came. */
static PyObject *in_python(PyObject *function, PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *all[6] = {self};
    Py_ssize_t given = count + (names == NULL ? 0 : PyTuple_GET_SIZE(names));
    if (function == NULL || given > 5) {
        PyErr_SetString(PyExc_TypeError, function == NULL ? "tidegate is not installed here" : "too many arguments");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < given; i++) {
        all[1 + i] = args[i];
    }
    return PyObject_Vectorcall(function, all, (size_t)count + 1, names);
}

static PyObject *semaphore_query(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    State *state = state_of(self);
    if (state != NULL && state->calm == Py_True && state->payload != NULL) {
        return Py_NewRef(state->payload);
    }
    return in_python(python_query, self, NULL, 0, NULL);
}

static PyObject *semaphore_signal(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    State *state = state_of(self);
    if (count == 1 && names == NULL && state != NULL && state->calm == Py_True) {
        PyObject *before = state->payload;
        long long from = small(before);
        if (from >= 0 && small(args[0]) > from) {
            state->payload = Py_NewRef(args[0]);
            Py_DECREF(before); /* an exact int: no finalizer can run */
            Py_RETURN_NONE;
        }
    }
    return in_python(python_signal, self, args, count, names);
}

/* Whether a wait with this timeout may answer from the payload alone: the very short ones let the devices progress. */
static inline int lasting(PyObject *timeout)
{
    if (PyFloat_CheckExact(timeout)) {
        return PyFloat_AS_DOUBLE(timeout) >= 0.001;
    }
    return timeout == Py_None || small(timeout) > 0;
}

static PyObject *semaphore_wait(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    State *state = state_of(self);
    int plain = names == NULL
        ? count == 1 || (count == 2 && lasting(args[1]))
        : count == 1 && PyTuple_GET_SIZE(names) == 1 && PyTuple_GET_ITEM(names, 0) == timeout_name && lasting(args[1]);
    if (plain && state != NULL) {
        long long value = small(args[0]);
        if (value >= 0 && value <= small(state->payload)) {
            Py_RETURN_NONE;
        }
    }
    return in_python(python_wait, self, args, count, names);
}

static PyObject *semaphore_at(PyObject *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    PyObject *state = ((Semaphore *)self)->state;
    if (count == 1 && names == NULL && timepoint_class != NULL && state != NULL && small(args[0]) >= 0) {
        Timepoint *point = (Timepoint *)timepoint_class->tp_alloc(timepoint_class, 0);
        if (point != NULL) {
            point->semaphore = Py_NewRef(self);
            point->value = Py_NewRef(args[0]);
            point->state = Py_NewRef(state);
        }
        return (PyObject *)point;
    }
    return in_python(python_at, self, args, count, names);
}

static int timepoint_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"semaphore", "value", NULL};
    Timepoint *point = (Timepoint *)self;
    PyObject *semaphore, *value;
    if (kwargs == NULL && PyTuple_GET_SIZE(args) == 2) {
        semaphore = PyTuple_GET_ITEM(args, 0);
        value = PyTuple_GET_ITEM(args, 1);
    } else if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO:Timepoint", names, &semaphore, &value)) {
        return -1;
    }
    PyObject *state = PyObject_GetAttr(semaphore, state_name);
    if (state == NULL) {
        return -1;
    }
    Py_XSETREF(point->state, state);
    Py_XSETREF(point->semaphore, Py_NewRef(semaphore));
    Py_XSETREF(point->value, Py_NewRef(value));
    return 0;
}

/* Life and death. A state holds an int and a bool here, which no cycle goes through; what its Python class adds is
visited by Python. */

static void state_dealloc(PyObject *self)
{
    Py_CLEAR(((State *)self)->payload);
    Py_CLEAR(((State *)self)->calm);
    Py_TYPE(self)->tp_free(self);
}

static int semaphore_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(((Semaphore *)self)->state);
    return 0;
}

static int semaphore_clear(PyObject *self)
{
    Py_CLEAR(((Semaphore *)self)->state);
    return 0;
}

static int timepoint_traverse(PyObject *self, visitproc visit, void *arg)
{
    Timepoint *point = (Timepoint *)self;
    Py_VISIT(point->semaphore);
    Py_VISIT(point->value);
    Py_VISIT(point->state);
    return 0;
}

static int timepoint_clear(PyObject *self)
{
    Timepoint *point = (Timepoint *)self;
    Py_CLEAR(point->semaphore);
    Py_CLEAR(point->value);
    Py_CLEAR(point->state);
    return 0;
}

static void semaphore_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    semaphore_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static void timepoint_dealloc(PyObject *self)
{
    PyObject_GC_UnTrack(self);
    timepoint_clear(self);
    Py_TYPE(self)->tp_free(self);
}

/* The types. The classes of the core derive from them and add the rest, weak references and finalizers included. */

static PyMemberDef state_members[] = {
    {"payload", T_OBJECT_EX, offsetof(State, payload), 0, NULL},
    {"calm", T_OBJECT_EX, offsetof(State, calm), 0, NULL},
    {NULL},
};

static PyMemberDef semaphore_members[] = {
    {"_state", T_OBJECT_EX, offsetof(Semaphore, state), 0, NULL},
    {NULL},
};

static PyMemberDef timepoint_members[] = {
    {"semaphore", T_OBJECT_EX, offsetof(Timepoint, semaphore), 0, NULL},
    {"value", T_OBJECT_EX, offsetof(Timepoint, value), 0, NULL},
    {"_state", T_OBJECT_EX, offsetof(Timepoint, state), 0, NULL},
    {NULL},
};

/* Each text is the signature alone; `install` adds the docstring of the Python form. */
#define WITH_NAMES(function) (PyCFunction)(void (*)(void))(function), METH_FASTCALL | METH_KEYWORDS
static PyMethodDef semaphore_methods[] = {
    {"query", semaphore_query, METH_NOARGS, "query($self)\n--\n\n"},
    {"signal", WITH_NAMES(semaphore_signal), "signal($self, value)\n--\n\n"},
    {"wait", WITH_NAMES(semaphore_wait), "wait($self, value, timeout=None)\n--\n\n"},
    {"at", WITH_NAMES(semaphore_at), "at($self, value)\n--\n\n"},
    {NULL},
};

static PyTypeObject StateBase = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tidegate._core._fast.StateBase",
    .tp_basicsize = sizeof(State),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = state_dealloc,
    .tp_members = state_members,
};

static PyTypeObject SemaphoreBase = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tidegate._core._fast.SemaphoreBase",
    .tp_basicsize = sizeof(Semaphore),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = semaphore_dealloc,
    .tp_traverse = semaphore_traverse,
    .tp_clear = semaphore_clear,
    .tp_members = semaphore_members,
    .tp_methods = semaphore_methods,
};

static PyTypeObject TimepointBase = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "tidegate._core._fast.TimepointBase",
    .tp_basicsize = sizeof(Timepoint),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_new = PyType_GenericNew,
    .tp_init = timepoint_init,
    .tp_dealloc = timepoint_dealloc,
    .tp_traverse = timepoint_traverse,
    .tp_clear = timepoint_clear,
    .tp_members = timepoint_members,
};

/* Give the C form of a method the docstring of the Python form. The text must live as long as the table: for ever. */
static int document(PyMethodDef *method, PyObject *function)
{
    PyObject *doc = PyObject_GetAttrString(function, "__doc__");
    PyObject *text = doc == NULL ? NULL : PyUnicode_FromFormat("%s%S", method->ml_doc, doc);
    const char *chars = text == NULL ? NULL : PyUnicode_AsUTF8(text);
    Py_XDECREF(doc);
    if (chars == NULL) {
        Py_XDECREF(text);
        return -1;
    }
    method->ml_doc = chars;
    return 0;
}

/* install(timeline class, timepoint class, query, signal, wait, at): once, before any of the classes is used. */
static PyObject *install(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyTypeObject *timeline, *timepoint;
    PyObject *forms[4];
    if (!PyArg_ParseTuple(args, "O!O!OOOO:install", &PyType_Type, &timeline, &PyType_Type, &timepoint,
                          &forms[0], &forms[1], &forms[2], &forms[3])) {
        return NULL;
    }
    if (timeline_class != NULL || !PyType_IsSubtype(timeline, &StateBase)
        || !PyType_IsSubtype(timepoint, &TimepointBase)) {
        PyErr_SetString(PyExc_TypeError, "install takes classes made from these types, and once only");
        return NULL;
    }
    for (int i = 0; i < 4; i++) {
        if (document(&semaphore_methods[i], forms[i]) < 0) {
            return NULL;
        }
    }
    python_query = Py_NewRef(forms[0]);
    python_signal = Py_NewRef(forms[1]);
    python_wait = Py_NewRef(forms[2]);
    python_at = Py_NewRef(forms[3]);
    timepoint_class = (PyTypeObject *)Py_NewRef(timepoint);
    timeline_class = (PyTypeObject *)Py_NewRef(timeline);
    Py_RETURN_NONE;
}

static int execute(PyObject *module)
{
#ifdef Py_GIL_DISABLED
    PyErr_SetString(PyExc_ImportError, "this form of tidegate's fast path needs the GIL");
    return -1;
#endif
    static int taken = 0;
    if (taken) {
        PyErr_SetString(PyExc_ImportError, "another copy of tidegate uses this module already");
        return -1;
    }
    taken = 1;
    timeout_name = PyUnicode_InternFromString("timeout");
    state_name = PyUnicode_InternFromString("_state");
    if (timeout_name == NULL || state_name == NULL || PyModule_AddIntConstant(module, "FORM", FORM) < 0
        || PyModule_AddType(module, &StateBase) < 0 || PyModule_AddType(module, &SemaphoreBase) < 0
        || PyModule_AddType(module, &TimepointBase) < 0) {
        return -1;
    }
    return 0;
}

static PyMethodDef module_methods[] = {
    {"install", install, METH_VARARGS, NULL},
    {NULL},
};

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* or the refused import would switch the GIL on for everybody */
#endif
    {0, NULL},
};

static PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tidegate._core._fast",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__fast(void)
{
    return PyModuleDef_Init(&module_def);
}
