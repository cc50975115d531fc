/* What `_express.c` and the C module of a driver share: how work reaches a device without a Python function in between.

A driver makes objects of one type, an *express port* for each of its queues (`DriverQueue.express`), and hands a capsule
named EXPRESS_PORT with this table to `express.serve`. */

#ifndef TIDEGATE_EXPRESS_H
#define TIDEGATE_EXPRESS_H

#include <Python.h>
#include <structmember.h>

#define EXPRESS_PORT "tidegate.express_port"
#define EXPRESS_SCRATCH 8192

typedef struct {
    /* The ports' type. Kept for ever by whoever fills this in. */
    PyTypeObject *type;
    /* Get work ready in `scratch`, and take what lock the driver has; nothing is waited for. May allocate. 1: done, and
    `release` must follow; 0: this is none for the express way. No exception is set. */
    int (*prepare)(PyObject *port, PyObject *work, void *scratch);
    void (*release)(PyObject *port);
    /* Issue what was got ready, behind epoch `after_epoch` of `after` (NULL: behind nothing). 1: `*timeline` (borrowed)
    has taken it as `*epoch`, which is still to be counted as in flight there; 0: nothing has happened. Keeps the GIL,
    runs no Python code, allocates nothing that the collector knows, and sets no exception. */
    int (*issue)(PyObject *port, void *scratch, PyObject *after, unsigned long long after_epoch, PyObject **timeline,
                 unsigned long long *epoch);
} ExpressPort;

/* The value of a slot that a Python class declared, by its offset; NULL if it is not set. */
#define SLOT(object, offset) (*(PyObject **)((char *)(object) + (offset)))

/* Where a slot lies, or -1 with an exception set. */
static inline Py_ssize_t slot_offset(PyObject *type, const char *name)
{
    PyObject *found = PyObject_GetAttrString(type, name);
    if (found == NULL) {
        return -1;
    }
    if (!Py_IS_TYPE(found, &PyMemberDescr_Type)) {
        PyErr_Format(PyExc_TypeError, "%R has no slot %s", type, name);
        Py_DECREF(found);
        return -1;
    }
    Py_ssize_t offset = ((PyMemberDescrObject *)found)->d_member->offset;
    Py_DECREF(found);
    return offset;
}

static inline void slot_set(PyObject *object, Py_ssize_t offset, PyObject *value)
{
    PyObject *before = SLOT(object, offset);
    SLOT(object, offset) = Py_NewRef(value);
    Py_XDECREF(before);
}

#endif
