"""What `dispatch` takes: an entry point, with what is known of it as C knows it (M16, M26)."""

cdef enum:
    # How a constant is kept: an integer of a size, signed or not, a float, a double; or as an object.
    AS_OBJECT, AS_SIGNED, AS_UNSIGNED, AS_FLOAT, AS_DOUBLE


cdef class BaseFunction:
    """An entry point of an executable. The checks that refuse a call in words are Python's, in `kernel`."""
    cdef readonly object device
    cdef readonly object _function
    cdef readonly tuple kinds
    """The types of its constants; None where the source does not tell."""
    cdef uintptr_t native
    cdef Py_ssize_t binding_count     # -1: any number
    cdef Py_ssize_t constant_count    # how many are kept in numbers; -1: they are kept as objects
    cdef uint32_t constant_sizes[FEW]
    cdef int forms[FEW]
    cdef uint64_t most_groups[3]
    cdef uint64_t most_local

    def __init__(self, device, function):
        self.device = device
        self._function = function
        self.native = function.native
        self.kinds = None if function.constants is None else tuple(function.constants)
        self.binding_count = -1 if function.bindings is None else function.bindings
        limits = function.limits
        for axis in range(3):
            self.most_groups[axis] = min(limits.max_workgroups[axis], 0xFFFFFFFF)
        self.most_local = 0xFFFFFFFF if limits.max_local_memory is None else limits.max_local_memory
        self.constant_count = -1
        if self.kinds is not None and len(self.kinds) <= FEW:
            for index, kind in enumerate(self.kinds):
                self.forms[index] = form_of(kind)
                self.constant_sizes[index] = kind.itemsize
            self.constant_count = len(self.kinds)

    cdef bint accepts_groups(self, object workgroups, uint32_t *groups) except -1:
        """Prepare: whether counts are three plain ints that the device has, or one; any other form is Python's."""
        cdef Py_ssize_t axis, count
        cdef object number
        if type(workgroups) is int:
            workgroups = (workgroups,)
        if type(workgroups) is not tuple:
            return False
        count = len(<tuple>workgroups)
        if not 1 <= count <= 3:
            return False
        for axis in range(3):
            groups[axis] = 1
        for axis in range(count):
            number = (<tuple>workgroups)[axis]
            if type(number) is not int or not 0 <= number <= 0xFFFFFFFF:
                return False
            groups[axis] = number
            if groups[axis] > self.most_groups[axis]:
                return False
        return True

    cdef bint pack(self, object values, uint64_t *packed) except -1:
        """Prepare: keep constants in numbers. False: one of them needs a look."""
        cdef Py_ssize_t index
        if self.constant_count < 0 or type(values) is not tuple and type(values) is not list:
            return False
        if len(values) != self.constant_count:
            return False
        for index in range(self.constant_count):
            if not (
                pack_one(values[index], self.forms[index], self.constant_sizes[index], &packed[index])
                or self.pack_typed(values[index], index, &packed[index])
            ):
                return False
        return True


    cdef bint pack_typed(self, object value, Py_ssize_t index, uint64_t *packed) except -1:
        """Prepare: keep a NumPy scalar of the declared type as a number."""
        cdef Py_buffer view
        if self.forms[index] == AS_OBJECT or type(value) is not self.kinds[index].type:
            return False
        PyObject_GetBuffer(value, &view, PyBUF_SIMPLE)
        memcpy(packed, view.buf, self.constant_sizes[index])
        PyBuffer_Release(&view)
        return True


cdef int form_of(object kind) except -1:
    if kind.isbuiltin != 1 or not kind.isnative or kind.itemsize > 8:
        return AS_OBJECT
    return {"i": AS_SIGNED, "u": AS_UNSIGNED, "f4": AS_FLOAT, "f8": AS_DOUBLE}.get(
        kind.kind if kind.kind in "iu" else f"{kind.kind}{kind.itemsize}", AS_OBJECT
    )


cdef bint pack_one(object value, int form, uint32_t size, uint64_t *packed) except -1:
    """Prepare: keep a plain int or float as a number of a size, in the byte order of the machine, if it fits."""
    cdef int overflow = 0
    cdef long long signed_value
    cdef unsigned long long unsigned_value
    cdef float single
    cdef double number
    packed[0] = 0
    if form == AS_SIGNED or form == AS_UNSIGNED:
        if type(value) is not int:
            return False
        signed_value = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow:
            return False             # also what only an unsigned integer of 64 bits can hold
        if form == AS_UNSIGNED:
            if signed_value < 0 or (size < 8 and signed_value >> (8 * size)):
                return False
        elif size < 8 and not -(<long long>1 << (8 * size - 1)) <= signed_value < (<long long>1 << (8 * size - 1)):
            return False
        memcpy(packed, &signed_value, size)      # the low bytes come first on every machine that we know
        return True
    if form == AS_DOUBLE and type(value) is float:
        number = value
        memcpy(packed, &number, 8)
        return True
    if form == AS_FLOAT and type(value) is float:
        number = value
        single = <float>number
        if single - single != 0:
            return False             # too large for it, or not finite: that needs a look
        memcpy(packed, &single, 4)
        return True
    return False
