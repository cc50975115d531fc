/* The plain case of a submission to a device that counts, in one step: taken in, issued, promised; and later retired.

Most submissions are like this: they wait for nothing, or for one thing that is on the same device already, they signal
one timepoint that nobody waits for yet, and their driver has an express port (`_express.h`). In Python that is a dozen
functions, which cost three times what the device's driver does. Everything else goes the way that is written in
`scheduling`, `issuing` and `retirement`, which stays complete and serves alone where this module was not built.

What the code relies on:

- The GIL, and the core's lock, which is only tried: if another thread has it, or this one (in a finalizer), the Python
  way is taken. So nobody sees anything between the first check and the last store, and no interrupt comes between: the
  interpreter looks for signals between instructions of Python code, and none runs here.
- The collector may run wherever an object is made that it knows, and with it finalizers, and with them any thread. So
  all such objects are made before the first check, and what may be the last reference to something is dropped behind
  the last store, with the lock given back.
- The slots of the core's classes are read and written by their offsets, which `install` looks up.
*/

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "_express.h"

#define FORM 1 /* Raised whenever `express` and this file change together: a module built before is not used. */

enum { ISSUED = 2, RETIRED = 4 };
enum { MOST = 2, HOUSEKEEPING = 64 };

static ExpressPort port_table;
static PyTypeObject *timepoint_class, *submission_class, *memory_class, *claim_class;
static PyObject *vanished, *lock_owned, *lock_acquire, *lock_release, *issued_stage, *retired_stage, *nothing;
static PyObject *name_refusal, *name_issued, *name_submitted, *name_retired, *name_poller, *name_timelines;
static PyObject *name_in_flight, *name_append, *name_attention, *name_bindings, *name_constants, *name_convert;
static PyTypeObject *function_class, *buffer_class, *dispatch_class;
static PyObject *freed, *dispatch_kind, *zero;

static struct { Py_ssize_t payload, calm, failure, high, waiters, claims, promises; } of_state;
static struct { Py_ssize_t state, semaphore, value; } of_timepoint;
static struct { Py_ssize_t state, value; } of_claim;
static Py_ssize_t semaphore_state;
static struct { Py_ssize_t uses, last_write, write_error, closed, storage, device, phase; } of_memory;
static struct { Py_ssize_t memory, offset, nbytes, root; } of_buffer;
static struct { Py_ssize_t function, device; } of_function;
static struct { Py_ssize_t function, workgroups, bindings, constants, local_memory; } of_dispatch;
static struct {
    Py_ssize_t again, armed, kind, queue, result, site, unseen, taken, timeline, epoch, stage, doom, error, queued, completion, signals, writes, touches, promised,
        counted, line, pending, ref, device, work, express;
} of_submission;

typedef struct { const char *name; Py_ssize_t *offset; } Slot;

static Slot state_slots[] = {
    {"payload", &of_state.payload}, {"calm", &of_state.calm}, {"failure", &of_state.failure},
    {"high", &of_state.high}, {"waiters", &of_state.waiters}, {"claims", &of_state.claims},
    {"promises", &of_state.promises}, {NULL, NULL},
};
static Slot timepoint_slots[] = {
    {"_state", &of_timepoint.state}, {"semaphore", &of_timepoint.semaphore}, {"value", &of_timepoint.value},
    {NULL, NULL},
};
static Slot claim_slots[] = {{"state", &of_claim.state}, {"value", &of_claim.value}, {NULL, NULL}};
static Slot semaphore_slots[] = {{"_state", &semaphore_state}, {NULL, NULL}};
static Slot memory_slots[] = {
    {"uses", &of_memory.uses}, {"last_write", &of_memory.last_write}, {"write_error", &of_memory.write_error},
    {"closed", &of_memory.closed}, {"storage", &of_memory.storage}, {"device", &of_memory.device},
    {"phase", &of_memory.phase}, {NULL, NULL},
};
static Slot buffer_slots[] = {
    {"_memory", &of_buffer.memory}, {"_offset", &of_buffer.offset}, {"_nbytes", &of_buffer.nbytes},
    {"_root", &of_buffer.root}, {NULL, NULL},
};
static Slot function_slots[] = {{"_function", &of_function.function}, {"device", &of_function.device}, {NULL, NULL}};
static Slot dispatch_slots[] = {
    {"function", &of_dispatch.function}, {"workgroups", &of_dispatch.workgroups},
    {"bindings", &of_dispatch.bindings}, {"constants", &of_dispatch.constants},
    {"local_memory", &of_dispatch.local_memory}, {NULL, NULL},
};
static Slot submission_slots[] = {
    {"_again", &of_submission.again}, {"armed", &of_submission.armed}, {"_kind", &of_submission.kind},
    {"_queue", &of_submission.queue}, {"_result", &of_submission.result}, {"_site", &of_submission.site},
    {"_unseen", &of_submission.unseen},
    {"taken", &of_submission.taken}, {"timeline", &of_submission.timeline}, {"epoch", &of_submission.epoch},
    {"_stage", &of_submission.stage}, {"_doom", &of_submission.doom}, {"_error", &of_submission.error},
    {"_queued", &of_submission.queued}, {"_completion", &of_submission.completion},
    {"_signals", &of_submission.signals}, {"_writes", &of_submission.writes}, {"_touches", &of_submission.touches},
    {"_promised", &of_submission.promised}, {"_counted", &of_submission.counted}, {"_line", &of_submission.line},
    {"_pending", &of_submission.pending}, {"_ref", &of_submission.ref}, {"_device", &of_submission.device},
    {"_work", &of_submission.work}, {"_express", &of_submission.express}, {NULL, NULL},
};

/* Small steps ------------------------------------------------------------------------------------------------------ */

/* Take the core's lock if that is possible at once. */
static int lock(void)
{
    PyObject *owned = PyObject_CallNoArgs(lock_owned);
    int taken = 0;
    if (owned == Py_False) {
        PyObject *got = PyObject_CallOneArg(lock_acquire, Py_False);
        taken = got == Py_True;
        Py_XDECREF(got);
    }
    Py_XDECREF(owned);
    PyErr_Clear();
    return taken;
}

static void unlock(void)
{
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    Py_XDECREF(PyObject_CallNoArgs(lock_release));
    PyErr_Restore(type, error, trace);
}

/* An exact int in 0..2**63-1, or -1 for anything else. */
static inline long long small(PyObject *value)
{
    int overflow;
    if (value == NULL || !PyLong_CheckExact(value)) {
        return -1;
    }
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    return overflow == 0 && number >= 0 ? number : -1;
}

/* An attribute of an object with a dict, or NULL without an exception. */
static inline PyObject *attribute(PyObject *object, PyObject *name)
{
    PyObject *found = PyObject_GetAttr(object, name);
    if (found == NULL) {
        PyErr_Clear();
    }
    return found;
}

/* Whether an attribute is this very object. */
static int attribute_is(PyObject *object, PyObject *name, PyObject *wanted)
{
    PyObject *found = attribute(object, name);
    int same = found == wanted;
    Py_XDECREF(found);
    return same;
}

static int count_up(PyObject *device, PyObject *name)
{
    PyObject *before = PyObject_GetAttr(device, name);
    PyObject *after = before == NULL ? NULL : PyLong_FromLongLong(PyLong_AsLongLong(before) + 1);
    int code = after == NULL ? -1 : PyObject_SetAttr(device, name, after);
    Py_XDECREF(before);
    Py_XDECREF(after);
    return code;
}

static inline int is_dict_of(PyObject *state, Py_ssize_t offset)
{
    PyObject *found = SLOT(state, offset);
    return found != NULL && PyDict_CheckExact(found);
}

static inline int has_waiters(PyObject *state) { return PyDict_GET_SIZE(SLOT(state, of_state.waiters)) != 0; }

/* Making ----------------------------------------------------------------------------------------------------------- */

/* What `Submission.__init__` does. */
static PyObject *new_submission(PyObject *queue, PyObject *device, PyObject *work, PyObject *site, PyObject *line)
{
    PyObject *made = submission_class->tp_alloc(submission_class, 0), *empty = PyTuple_GET_ITEM(nothing, 1);
    if (made == NULL) {
        return NULL;
    }
    static Py_ssize_t *const none[] = {
        &of_submission.timeline, &of_submission.pending, &of_submission.completion, &of_submission.doom,
        &of_submission.error, &of_submission.unseen, &of_submission.ref, &of_submission.result,
    };
    static Py_ssize_t *const unset[] = {
        &of_submission.taken, &of_submission.armed, &of_submission.queued, &of_submission.again,
        &of_submission.counted, &of_submission.express,
    };
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        SLOT(made, *none[i]) = Py_NewRef(Py_None);
    }
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++) {
        SLOT(made, *unset[i]) = Py_NewRef(Py_False);
    }
    SLOT(made, of_submission.queue) = Py_NewRef(queue);
    SLOT(made, of_submission.device) = Py_NewRef(device);
    SLOT(made, of_submission.work) = Py_NewRef(work);
    SLOT(made, of_submission.kind) = Py_NewRef(dispatch_kind);
    SLOT(made, of_submission.site) = Py_NewRef(site);
    SLOT(made, of_submission.line) = Py_NewRef(line);
    SLOT(made, of_submission.stage) = Py_NewRef(zero);
    SLOT(made, of_submission.epoch) = Py_NewRef(zero);
    SLOT(made, of_submission.signals) = Py_NewRef(empty);
    SLOT(made, of_submission.promised) = Py_NewRef(empty);
    SLOT(made, of_submission.writes) = Py_NewRef(empty);
    SLOT(made, of_submission.touches) = Py_NewRef(empty);
    return made;
}

/* Three counts that are within the limits of every device, or one; NULL without an exception for anything else. */
static PyObject *plain_counts(PyObject *counts)
{
    if (PyTuple_CheckExact(counts) && PyTuple_GET_SIZE(counts) == 3) {
        for (int i = 0; i < 3; i++) {
            long long count = small(PyTuple_GET_ITEM(counts, i));
            if (count < 0 || count > (i == 0 ? 0x7fffffff : 0xffff)) {
                return NULL;
            }
        }
        return Py_NewRef(counts);
    }
    long long count = small(counts);
    PyObject *one = PyTuple_GET_ITEM(nothing, 0);
    return count < 0 || count > 0x7fffffff ? NULL : PyTuple_Pack(3, counts, one, one);
}

/* The spans of buffers, as `checked_target` makes them, and their memories. 0: not plain. */
static int make_spans(PyObject *device, PyObject *bindings, PyObject **spans, PyObject **memories)
{
    int list = PyList_CheckExact(bindings);
    if (!list && !PyTuple_CheckExact(bindings)) {
        return 0;
    }
    Py_ssize_t count = list ? PyList_GET_SIZE(bindings) : PyTuple_GET_SIZE(bindings);
    *spans = PyTuple_New(count);
    *memories = PyTuple_New(count);
    for (Py_ssize_t i = 0; i < count && *spans != NULL && *memories != NULL; i++) {
        if (list && PyList_GET_SIZE(bindings) != count) {
            return 0; /* a finalizer */
        }
        PyObject *buffer = list ? PyList_GET_ITEM(bindings, i) : PyTuple_GET_ITEM(bindings, i);
        if (!Py_IS_TYPE(buffer, buffer_class)) {
            return 0;
        }
        PyObject *memory = SLOT(buffer, of_buffer.memory);
        if (memory == NULL || SLOT(memory, of_memory.device) != device || SLOT(memory, of_memory.closed) != Py_False
            || SLOT(memory, of_memory.phase) == freed) {
            return 0;
        }
        PyTuple_SET_ITEM(*memories, i, Py_NewRef(memory));
        PyObject *offset = Py_NewRef(SLOT(buffer, of_buffer.offset)), *nbytes = Py_NewRef(SLOT(buffer, of_buffer.nbytes));
        PyObject *span = buffer_class->tp_alloc(buffer_class, 0);
        if (span == NULL) {
            Py_DECREF(offset);
            Py_DECREF(nbytes);
            return 0;
        }
        SLOT(span, of_buffer.memory) = Py_NewRef(memory);
        SLOT(span, of_buffer.offset) = offset;
        SLOT(span, of_buffer.nbytes) = nbytes;
        SLOT(span, of_buffer.root) = Py_NewRef(Py_False);
        PyTuple_SET_ITEM(*spans, i, span);
    }
    return *spans != NULL && *memories != NULL;
}

/* The constants as their types; those that a function without any gets need no conversion. */
static PyObject *converted(PyObject *function, PyObject *inner, PyObject *constants)
{
    PyObject *empty = PyTuple_GET_ITEM(nothing, 1);
    if (!PyTuple_CheckExact(constants) && !PyList_CheckExact(constants)) {
        return NULL; /* what can be gone through only once is left to Python */
    }
    PyObject *kinds = constants == empty ? attribute(inner, name_constants) : NULL;
    int none = kinds == empty;
    Py_XDECREF(kinds);
    return none ? Py_NewRef(empty) : PyObject_CallMethodOneArg(function, name_convert, constants);
}

static int takes(PyObject *inner, Py_ssize_t count)
{
    PyObject *needed = attribute(inner, name_bindings);
    int fits = needed == Py_None || small(needed) == count;
    Py_XDECREF(needed);
    return fits;
}

/* dispatch(queue, device, line, site, function, workgroups, bindings, constants, local memory) -> a submission that is
not submitted yet, as `Operations.dispatch` makes it; None: something is not plain, or wrong. */
static PyObject *dispatch(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 9 || port_table.type == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *device = args[1], *function = args[4], *local = args[8];
    if (!Py_IS_TYPE(function, function_class)
        || SLOT(function, of_function.device) != device || small(local) != 0) {
        Py_RETURN_NONE; /* how much local memory a function may have, it knows itself */
    }
    PyObject *inner = SLOT(function, of_function.function);
    PyObject *spans = NULL, *memories = NULL, *constants = NULL, *work = NULL, *made = NULL;
    PyObject *groups = plain_counts(args[5]);
    int plain = groups != NULL && make_spans(device, args[6], &spans, &memories)
        && takes(inner, PyTuple_GET_SIZE(spans)) && (constants = converted(function, inner, args[7])) != NULL
        && (work = dispatch_class->tp_alloc(dispatch_class, 0)) != NULL;
    if (plain) {
        SLOT(work, of_dispatch.function) = Py_NewRef(inner);
        SLOT(work, of_dispatch.workgroups) = Py_NewRef(groups);
        SLOT(work, of_dispatch.bindings) = Py_NewRef(spans);
        SLOT(work, of_dispatch.constants) = Py_NewRef(constants);
        SLOT(work, of_dispatch.local_memory) = Py_NewRef(local);
        made = new_submission(args[0], device, work, args[3], args[2]);
    }
    if (made != NULL) {
        slot_set(made, of_submission.touches, memories);
        slot_set(made, of_submission.writes, memories);
    }
    Py_XDECREF(groups);
    Py_XDECREF(spans);
    Py_XDECREF(memories);
    Py_XDECREF(constants);
    Py_XDECREF(work);
    if (made == NULL) {
        if (!PyErr_Occurred() || (PyErr_ExceptionMatches(PyExc_Exception) && (PyErr_Clear(), 1))) {
            Py_RETURN_NONE; /* Python says what is wrong */
        }
    }
    return made;
}

/* Submitting ------------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject *line;                   /* borrowed: the semaphore of a lane, or NULL */
    PyObject *waits[MOST];            /* borrowed: timelines; NULL where a submission itself is waited for */
    PyObject *values[MOST];           /* borrowed */
    PyObject *waited_for[MOST];       /* borrowed: that submission */
    int wait_count, signal_count;
    PyObject *points, *claims[MOST];  /* made beforehand: a tuple of timepoints, and a claim for each */
    PyObject *promised, *promise, *ref, *waited;
    PyObject *state, *value, *producer; /* borrowed: the one wait that is not over; no producer: there is none */
} Plan;

static void drop(Plan *plan)
{
    Py_XDECREF(plan->points);
    for (int i = 0; i < MOST; i++) {
        Py_XDECREF(plan->claims[i]);
    }
    Py_XDECREF(plan->promised);
    Py_XDECREF(plan->promise);
    Py_XDECREF(plan->ref);
    Py_XDECREF(plan->waited);
}

/* What a collection of one stands for; NULL for one of several, or of None, which Python refuses. */
static PyObject *only(PyObject *given)
{
    Py_ssize_t count = PyList_CheckExact(given) ? PyList_GET_SIZE(given)
        : PyTuple_CheckExact(given) ? PyTuple_GET_SIZE(given) : -1;
    if (count < 0) {
        return given;
    }
    if (count == 0) {
        return Py_None;
    }
    PyObject *one = PyList_CheckExact(given) ? PyList_GET_ITEM(given, 0) : PyTuple_GET_ITEM(given, 0);
    return count > 1 || one == Py_None ? NULL : one;
}

/* What is waited for, and room for what is signalled. All that the collector knows is made here. 0: not plain, or no
memory, with an exception set. */
static int make(Plan *plan, PyObject *submission, PyObject *wait, PyObject *signal)
{
    memset(plan, 0, sizeof *plan);
    PyObject *line = SLOT(submission, of_submission.line);
    wait = only(wait);
    signal = only(signal);
    if (wait == NULL || signal == NULL) {
        return 0;
    }
    plan->waited = Py_NewRef(wait);
    if (wait != Py_None) {
        if (Py_IS_TYPE(wait, timepoint_class)) {
            plan->waits[0] = SLOT(wait, of_timepoint.state);
            plan->values[0] = SLOT(wait, of_timepoint.value);
            if (plan->waits[0] == NULL) {
                return 0;
            }
        } else if (Py_IS_TYPE(wait, submission_class)) {
            plan->waited_for[0] = wait;
        } else {
            return 0;
        }
        plan->wait_count = 1;
    }
    if (signal != Py_None && !Py_IS_TYPE(signal, timepoint_class)) {
        return 0;
    }
    plan->signal_count = signal != Py_None;
    if (line != Py_None) {
        plan->line = line;
        plan->signal_count++;
    }
    PyObject *points[MOST];
    int count = 0;
    if (signal != Py_None) {
        points[count++] = Py_NewRef(signal);
    }
    if (plan->line != NULL) {
        PyObject *point = timepoint_class->tp_alloc(timepoint_class, 0);
        if (point == NULL) {
            Py_XDECREF(count ? points[0] : NULL);
            return 0;
        }
        SLOT(point, of_timepoint.state) = Py_NewRef(SLOT(line, semaphore_state));
        SLOT(point, of_timepoint.semaphore) = Py_NewRef(line);
        SLOT(point, of_timepoint.value) = NULL; /* comes later */
        points[count++] = point;
    }
    plan->points = PyTuple_New(count);
    for (int i = 0; i < count; i++) {
        if (plan->points == NULL) {
            Py_DECREF(points[i]);
        } else {
            PyTuple_SET_ITEM(plan->points, i, points[i]);
        }
    }
    if (plan->points == NULL) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        plan->claims[i] = PyObject_CallFunctionObjArgs((PyObject *)claim_class, submission, vanished, NULL);
        if (plan->claims[i] == NULL) {
            return 0;
        }
    }
    plan->promised = PyTuple_New(1);
    plan->promise = PyTuple_New(3);
    plan->ref = PyWeakref_NewRef(submission, NULL);
    return plan->promised != NULL && plan->promise != NULL && plan->ref != NULL;
}

/* A lane goes on behind the highest claim on its line, and claims the next value. */
static int follow(Plan *plan)
{
    PyObject *state = SLOT(plan->line, semaphore_state);
    long long high = small(SLOT(state, of_state.high)), payload = small(SLOT(state, of_state.payload));
    if (high < 0 || payload < 0 || high == LLONG_MAX || payload == LLONG_MAX) {
        return 0;
    }
    PyObject *last = SLOT(state, high > payload ? of_state.high : of_state.payload);
    PyObject *next = PyLong_FromLongLong((high > payload ? high : payload) + 1);
    if (next == NULL) {
        PyErr_Clear();
        return 0;
    }
    SLOT(PyTuple_GET_ITEM(plan->points, plan->signal_count - 1), of_timepoint.value) = next;
    plan->waits[plan->wait_count] = state;
    plan->values[plan->wait_count] = last;
    plan->wait_count++;
    return 1;
}

/* Whether what is waited for is over, or the one thing that is not is on the device. */
static int waits_are_plain(Plan *plan, PyObject *device)
{
    for (int i = 0; i < plan->wait_count; i++) {
        PyObject *state = plan->waits[i], *value = plan->values[i], *producer = plan->waited_for[i];
        if (producer != NULL) {
            PyObject *completion = SLOT(producer, of_submission.completion);
            long long stage = small(SLOT(producer, of_submission.stage));
            if (stage == RETIRED && SLOT(producer, of_submission.error) == Py_None) {
                continue;
            }
            if (stage != ISSUED) {
                return 0;
            }
            state = completion == Py_None ? NULL : completion;
            value = NULL;
        } else {
            if (small(value) < 0) {
                return 0;
            }
            if (small(SLOT(state, of_state.payload)) >= small(value)) {
                continue;
            }
            if (!is_dict_of(state, of_state.promises)) {
                return 0;
            }
            producer = PyDict_GetItemWithError(SLOT(state, of_state.promises), value);
            if (producer == NULL || !Py_IS_TYPE(producer, submission_class)) {
                PyErr_Clear();
                return 0;
            }
        }
        if (state != NULL && SLOT(state, of_state.failure) != Py_None) {
            return 0;
        }
        if (plan->producer != NULL || SLOT(producer, of_submission.device) != device
            || SLOT(producer, of_submission.timeline) == Py_None || small(SLOT(producer, of_submission.epoch)) < 0) {
            return 0;
        }
        plan->state = state;
        plan->value = value;
        plan->producer = producer;
    }
    return 1;
}

/* Also ends the calm: nobody raises one of them without the lock from now on. */
static int signals_are_plain(Plan *plan)
{
    for (int i = 0; i < plan->signal_count; i++) {
        PyObject *point = PyTuple_GET_ITEM(plan->points, i);
        PyObject *state = SLOT(point, of_timepoint.state), *value = SLOT(point, of_timepoint.value);
        if (state == NULL || SLOT(state, of_state.failure) != Py_None || !is_dict_of(state, of_state.claims)
            || !is_dict_of(state, of_state.promises) || !is_dict_of(state, of_state.waiters)
            || small(SLOT(state, of_state.payload)) < 0 || small(value) <= small(SLOT(state, of_state.payload))
            || small(SLOT(state, of_state.high)) < 0
            || PyDict_Contains(SLOT(state, of_state.claims), value) != 0
            || (i > 0 && state == SLOT(PyTuple_GET_ITEM(plan->points, 0), of_timepoint.state))) {
            PyErr_Clear();
            return 0;
        }
        slot_set(state, of_state.calm, Py_False);
    }
    return 1;
}

/* What `settle_locked` does, for those that were looked at in vain. */
static void settle(Plan *plan)
{
    for (int i = 0; i < plan->signal_count; i++) {
        PyObject *state = SLOT(PyTuple_GET_ITEM(plan->points, i), of_timepoint.state);
        if (state == NULL || !is_dict_of(state, of_state.waiters) || !is_dict_of(state, of_state.claims)) {
            continue;
        }
        int calm = SLOT(state, of_state.failure) == Py_None && PyDict_GET_SIZE(SLOT(state, of_state.waiters)) == 0
            && PyDict_GET_SIZE(SLOT(state, of_state.claims)) == 0;
        slot_set(state, of_state.calm, calm ? Py_True : Py_False);
    }
}

static int memories_are_plain(PyObject *memories)
{
    if (memories == NULL || !PyTuple_CheckExact(memories)) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(memories); i++) {
        PyObject *memory = PyTuple_GET_ITEM(memories, i);
        if (!Py_IS_TYPE(memory, memory_class) || SLOT(memory, of_memory.write_error) != Py_None
            || SLOT(memory, of_memory.closed) != Py_False || SLOT(memory, of_memory.storage) == NULL
            || SLOT(memory, of_memory.storage) == Py_None) {
            return 0;
        }
    }
    return 1;
}

static void add_uses(PyObject *memory, long long change)
{
    PyObject *uses = PyLong_FromLongLong(PyLong_AsLongLong(SLOT(memory, of_memory.uses)) + change);
    if (uses != NULL) {
        PyObject *before = SLOT(memory, of_memory.uses);
        SLOT(memory, of_memory.uses) = uses;
        Py_XDECREF(before);
    }
}

/* Everything that becomes visible. -1: no memory, with the submission on the device and its exception set. */
static int commit(Plan *plan, PyObject *submission, PyObject *device, PyObject *timeline, unsigned long long epoch,
                  PyObject *issued, PyObject *timelines)
{
    PyObject *number = PyLong_FromUnsignedLongLong(epoch), *line = PyObject_GetAttr(timeline, name_in_flight);
    PyObject *done = NULL;
    int waited_for = 0, code = -1;
    slot_set(submission, of_submission.timeline, timeline);
    slot_set(submission, of_submission.taken, Py_True);
    slot_set(submission, of_submission.queued, Py_True);
    slot_set(submission, of_submission.express, Py_True);
    slot_set(submission, of_submission.stage, issued_stage);
    slot_set(submission, of_submission.signals, plan->points);
    if (number == NULL || line == NULL) {
        goto end;
    }
    slot_set(submission, of_submission.epoch, number);
    if (plan->producer != NULL) {
        PyTuple_SET_ITEM(plan->promise, 0, Py_NewRef(plan->state == NULL ? Py_None : plan->state));
        PyTuple_SET_ITEM(plan->promise, 1, plan->value == NULL ? PyLong_FromLong(1) : Py_NewRef(plan->value));
        PyTuple_SET_ITEM(plan->promise, 2, Py_NewRef(plan->producer));
        PyTuple_SET_ITEM(plan->promised, 0, Py_NewRef(plan->promise));
        slot_set(submission, of_submission.promised, plan->promised);
    }
    done = PyObject_CallMethodOneArg(line, name_append, submission);
    if (done == NULL || PyDict_SetItem(issued, submission, Py_None) < 0 || PySet_Add(timelines, timeline) < 0
        || count_up(device, name_submitted) < 0) {
        goto end;
    }
    for (int i = 0; i < plan->signal_count; i++) {
        PyObject *point = PyTuple_GET_ITEM(plan->points, i);
        PyObject *state = SLOT(point, of_timepoint.state), *value = SLOT(point, of_timepoint.value);
        slot_set(plan->claims[i], of_claim.state, state);
        slot_set(plan->claims[i], of_claim.value, value);
        if (small(SLOT(state, of_state.high)) < small(value)) {
            slot_set(state, of_state.high, value);
        }
        if (PyDict_SetItem(SLOT(state, of_state.claims), value, plan->claims[i]) < 0
            || PyDict_SetItem(SLOT(state, of_state.promises), value, submission) < 0) {
            goto end;
        }
        waited_for |= has_waiters(state);
    }
    PyObject *writes = SLOT(submission, of_submission.writes);
    if (PyTuple_GET_SIZE(writes)) {
        slot_set(submission, of_submission.ref, plan->ref);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(writes); i++) {
            slot_set(PyTuple_GET_ITEM(writes, i), of_memory.last_write, plan->ref);
        }
    }
    code = waited_for || epoch % HOUSEKEEPING == 0;
end:
    Py_XDECREF(number);
    Py_XDECREF(line);
    Py_XDECREF(done);
    return code;
}

static void change_uses(PyObject *touches, long long change)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(touches); i++) {
        add_uses(PyTuple_GET_ITEM(touches, i), change);
    }
}

/* 1 or 0: done, and whether somebody may want to know; -1: an exception; -2: not the plain case. */
static int submit_locked(const ExpressPort *table, Plan *plan, PyObject *port, PyObject *submission, void *scratch)
{
    PyObject *device = SLOT(submission, of_submission.device), *timeline = NULL;
    unsigned long long epoch = 0;
    if (!attribute_is(device, name_refusal, Py_None) || (plan->line != NULL && !follow(plan))
        || !memories_are_plain(SLOT(submission, of_submission.touches))
        || !memories_are_plain(SLOT(submission, of_submission.writes)) || !waits_are_plain(plan, device)) {
        return -2;
    }
    if (!signals_are_plain(plan)) {
        settle(plan);
        return -2;
    }
    PyObject *after = plan->producer == NULL ? NULL : SLOT(plan->producer, of_submission.timeline);
    long long after_epoch = plan->producer == NULL ? 0 : small(SLOT(plan->producer, of_submission.epoch));
    PyObject *issued = attribute(device, name_issued), *poller = attribute(device, name_poller);
    PyObject *timelines = poller == NULL ? NULL : attribute(poller, name_timelines);
    PyObject *touches = SLOT(submission, of_submission.touches);
    int code = -2;
    if (issued != NULL && timelines != NULL) {
        change_uses(touches, 1); /* before: the device has what it uses from the first moment on */
        if (table->issue(port, scratch, after, (unsigned long long)after_epoch, &timeline, &epoch)) {
            code = commit(plan, submission, device, timeline, epoch, issued, timelines);
        } else {
            change_uses(touches, -1);
        }
    }
    if (code == -2) {
        settle(plan);
    }
    Py_XDECREF(issued);
    Py_XDECREF(poller);
    Py_XDECREF(timelines);
    return code;
}

/* submit(port, submission, wait, signal) -> None: not the plain case, and nothing has happened; else it is issued, and
True says that somebody may have to be told. */
static PyObject *submit(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    double scratch[EXPRESS_SCRATCH / sizeof(double)];
    Plan plan;
    const ExpressPort table = port_table; /* `serve` may come between, where Python runs */
    if (count != 4 || table.type == NULL || !Py_IS_TYPE(args[0], table.type)
        || !Py_IS_TYPE(args[1], submission_class)) {
        Py_RETURN_NONE;
    }
    int code = -2;
    if (!make(&plan, args[1], args[2], args[3])) {
        PyErr_Clear();
    } else if (table.prepare(args[0], SLOT(args[1], of_submission.work), scratch)) {
        if (lock()) {
            code = submit_locked(&table, &plan, args[0], args[1], scratch);
            unlock();
        }
        table.release(args[0]);
    }
    drop(&plan);
    if (code == -2) {
        Py_RETURN_NONE;
    }
    return code < 0 ? NULL : PyBool_FromLong(code);
}

/* Retiring --------------------------------------------------------------------------------------------------------- */

static int refers_to(PyObject *reference, PyObject *object)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *found = NULL;
    int there = PyWeakref_GetRef(reference, &found) == 1 && found == object;
    Py_XDECREF(found);
    return there;
#else
    return PyWeakref_GetObject(reference) == object;
#endif
}

/* Whether a claimed timepoint can be reached with nobody to tell. */
static int quiet(PyObject *submission, PyObject *state, PyObject *value)
{
    if (SLOT(state, of_state.failure) != Py_None || has_waiters(state) || small(SLOT(state, of_state.payload)) < 0
        || small(value) <= small(SLOT(state, of_state.payload))) {
        return 0;
    }
    PyObject *claim = PyDict_GetItemWithError(SLOT(state, of_state.claims), value);
    return claim != NULL && Py_IS_TYPE(claim, claim_class) && refers_to(claim, submission);
}

/* What was waited for is over, and well: if it was not, or cannot be told here, the Python way finds out. */
static int came_well(PyObject *promised)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(promised); i++) {
        PyObject *promise = PyTuple_GET_ITEM(promised, i), *state = PyTuple_GET_ITEM(promise, 0);
        PyObject *producer = PyTuple_GET_ITEM(promise, 2);
        if (state == Py_None) {
            if (small(SLOT(producer, of_submission.stage)) != RETIRED
                || SLOT(producer, of_submission.error) != Py_None) {
                return 0;
            }
        } else if (small(SLOT(state, of_state.payload)) < small(PyTuple_GET_ITEM(promise, 1))) {
            return 0;
        }
    }
    return 1;
}

static int may_retire(PyObject *submission)
{
    PyObject *completion = SLOT(submission, of_submission.completion);
    PyObject *points = SLOT(submission, of_submission.signals), *device = SLOT(submission, of_submission.device);
    if (SLOT(submission, of_submission.express) != Py_True || small(SLOT(submission, of_submission.stage)) != ISSUED
        || SLOT(submission, of_submission.doom) != Py_None || SLOT(submission, of_submission.pending) != Py_None
        || !attribute_is(device, name_attention, Py_False) || !came_well(SLOT(submission, of_submission.promised))) {
        return 0;
    }
    if (completion != Py_None && !quiet(submission, completion, PyTuple_GET_ITEM(nothing, 0))) {
        return 0;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(points); i++) {
        PyObject *point = PyTuple_GET_ITEM(points, i);
        if (!quiet(submission, SLOT(point, of_timepoint.state), SLOT(point, of_timepoint.value))) {
            return 0;
        }
    }
    return 1;
}

static int reach(PyObject *state, PyObject *value)
{
    PyObject *claims = SLOT(state, of_state.claims), *promises = SLOT(state, of_state.promises);
    slot_set(state, of_state.payload, value);
    for (int i = 0; i < 2; i++) {
        if (PyDict_DelItem(i == 0 ? promises : claims, value) < 0) {
            if (!PyErr_ExceptionMatches(PyExc_KeyError)) {
                return -1;
            }
            PyErr_Clear();
        }
    }
    slot_set(state, of_state.calm, PyDict_GET_SIZE(claims) ? Py_False : Py_True);
    return 0;
}

/* Empty a slot, keeping what was there for later. */
static inline PyObject *take(PyObject *object, Py_ssize_t offset, PyObject *instead)
{
    PyObject *before = SLOT(object, offset);
    SLOT(object, offset) = Py_NewRef(instead);
    return before;
}

static int retire_locked(PyObject *submission, PyObject **left)
{
    PyObject *device = SLOT(submission, of_submission.device), *empty = PyTuple_GET_ITEM(nothing, 1);
    PyObject *points = SLOT(submission, of_submission.signals), *completion = SLOT(submission, of_submission.completion);
    PyObject *writes = SLOT(submission, of_submission.writes);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(points); i++) {
        PyObject *point = PyTuple_GET_ITEM(points, i);
        if (reach(SLOT(point, of_timepoint.state), SLOT(point, of_timepoint.value)) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(writes); i++) {
        PyObject *memory = PyTuple_GET_ITEM(writes, i);
        if (SLOT(memory, of_memory.last_write) == SLOT(submission, of_submission.ref)) {
            slot_set(memory, of_memory.last_write, Py_None);
        }
    }
    if (completion != Py_None && reach(completion, PyTuple_GET_ITEM(nothing, 0)) < 0) {
        return -1;
    }
    PyObject *issued = attribute(device, name_issued);
    if (issued == NULL || (PyDict_DelItem(issued, submission) < 0 && !PyErr_ExceptionMatches(PyExc_KeyError))
        || (PyErr_Clear(), count_up(device, name_retired)) < 0) {
        Py_XDECREF(issued);
        return -1;
    }
    Py_DECREF(issued);
    slot_set(submission, of_submission.counted, Py_True);
    slot_set(submission, of_submission.stage, retired_stage);
    left[0] = take(submission, of_submission.work, Py_None);
    left[1] = take(submission, of_submission.signals, empty);
    left[2] = take(submission, of_submission.writes, empty);
    left[3] = take(submission, of_submission.promised, empty);
    left[4] = take(submission, of_submission.touches, empty);
    return 0;
}

/* What `Memory.end_use` does. The tuple keeps the memories. */
static void end_uses(PyObject *touches)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(touches); i++) {
        PyObject *memory = PyTuple_GET_ITEM(touches, i);
        add_uses(memory, -1);
        if (SLOT(memory, of_memory.closed) == Py_True && small(SLOT(memory, of_memory.uses)) == 0) {
            slot_set(memory, of_memory.storage, Py_None);
        }
    }
}

/* retire(submission) -> whether it was the plain case: an epoch that is over, well, and nobody to tell. */
static PyObject *retire(PyObject *Py_UNUSED(module), PyObject *submission)
{
    PyObject *left[5] = {NULL};
    if (port_table.type == NULL || !Py_IS_TYPE(submission, submission_class)
        || SLOT(submission, of_submission.express) != Py_True || !lock()) {
        Py_RETURN_FALSE;
    }
    int code = may_retire(submission);
    if (code == 1 && retire_locked(submission, left) < 0) {
        code = -1;
    }
    unlock();
    if (left[4] != NULL) {
        end_uses(left[4]);
    }
    for (int i = 0; i < 5; i++) {
        Py_XDECREF(left[i]);
    }
    return code < 0 ? NULL : PyBool_FromLong(code);
}

/* Setting up ------------------------------------------------------------------------------------------------------- */

static int find(PyObject *type, Slot *slots)
{
    for (; slots->name != NULL; slots++) {
        *slots->offset = slot_offset(type, slots->name);
        if (*slots->offset < 0) {
            return -1;
        }
    }
    return 0;
}

/* install(core lock, timeline, semaphore, timepoint, submission, memory and claim classes, what is called for a claim
whose submission vanished; function, buffer and dispatch classes, the phase of memory that was freed): once. */
static PyObject *install(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *core_lock, *timeline, *semaphore, *timepoint, *submission, *memory, *claim, *gone;
    PyObject *function, *buffer, *work, *phase;
    if (!PyArg_ParseTuple(args, "OOOOOOOOOOOO:install", &core_lock, &timeline, &semaphore, &timepoint, &submission,
                          &memory, &claim, &gone, &function, &buffer, &work, &phase)
        || find(function, function_slots) < 0 || find(buffer, buffer_slots) < 0 || find(work, dispatch_slots) < 0
        || find(timeline, state_slots) < 0 || find(semaphore, semaphore_slots) < 0
        || find(timepoint, timepoint_slots) < 0 || find(submission, submission_slots) < 0
        || find(memory, memory_slots) < 0 || find(claim, claim_slots) < 0) {
        return NULL;
    }
    lock_owned = PyObject_GetAttrString(core_lock, "_is_owned");
    lock_acquire = PyObject_GetAttrString(core_lock, "acquire");
    lock_release = PyObject_GetAttrString(core_lock, "release");
    if (lock_owned == NULL || lock_acquire == NULL || lock_release == NULL) {
        return NULL;
    }
    timepoint_class = (PyTypeObject *)Py_NewRef(timepoint);
    submission_class = (PyTypeObject *)Py_NewRef(submission);
    memory_class = (PyTypeObject *)Py_NewRef(memory);
    claim_class = (PyTypeObject *)Py_NewRef(claim);
    vanished = Py_NewRef(gone);
    function_class = (PyTypeObject *)Py_NewRef(function);
    buffer_class = (PyTypeObject *)Py_NewRef(buffer);
    dispatch_class = (PyTypeObject *)Py_NewRef(work);
    freed = Py_NewRef(phase);
    Py_RETURN_NONE;
}

/* serve(capsule): let the ports of a driver be used; serve(None): those of none. */
static PyObject *serve(PyObject *Py_UNUSED(module), PyObject *capsule)
{
    memset(&port_table, 0, sizeof port_table);
    if (capsule != Py_None) {
        ExpressPort *table = PyCapsule_GetPointer(capsule, EXPRESS_PORT);
        if (table == NULL) {
            return NULL;
        }
        port_table = *table;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"install", install, METH_VARARGS, NULL},
    {"serve", serve, METH_O, NULL},
    {"dispatch", (PyCFunction)(void (*)(void))dispatch, METH_FASTCALL, NULL},
    {"submit", (PyCFunction)(void (*)(void))submit, METH_FASTCALL, NULL},
    {"retire", retire, METH_O, NULL},
    {NULL},
};

static int execute(PyObject *module)
{
#ifdef Py_GIL_DISABLED
    PyErr_SetString(PyExc_ImportError, "the express way of tidegate needs the GIL");
    return -1;
#endif
    static int taken = 0;
    if (taken) {
        PyErr_SetString(PyExc_ImportError, "another copy of tidegate uses this module already");
        return -1;
    }
    taken = 1;
    issued_stage = PyLong_FromLong(ISSUED);
    retired_stage = PyLong_FromLong(RETIRED);
    nothing = Py_BuildValue("(i())", 1);
    name_refusal = PyUnicode_InternFromString("_refusal");
    name_issued = PyUnicode_InternFromString("_issued");
    name_submitted = PyUnicode_InternFromString("_submitted");
    name_retired = PyUnicode_InternFromString("_retired");
    name_poller = PyUnicode_InternFromString("_poller");
    name_timelines = PyUnicode_InternFromString("timelines");
    name_in_flight = PyUnicode_InternFromString("in_flight");
    name_append = PyUnicode_InternFromString("append");
    name_attention = PyUnicode_InternFromString("_attention");
    name_bindings = PyUnicode_InternFromString("bindings");
    name_constants = PyUnicode_InternFromString("constants");
    name_convert = PyUnicode_InternFromString("convert_constants");
    dispatch_kind = PyUnicode_InternFromString("dispatch");
    zero = PyLong_FromLong(0);
    if (PyErr_Occurred() || PyModule_AddIntConstant(module, "FORM", FORM) < 0) {
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, execute},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* or the refused import would switch the GIL on for everybody */
#endif
    {0, NULL},
};

static PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "tidegate._core._express",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__express(void)
{
    return PyModuleDef_Init(&module_def);
}
