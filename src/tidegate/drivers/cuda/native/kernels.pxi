"""How a function is launched: made once for each, and nothing but numbers."""

cdef enum:
    PARAMETERS = 64

MOST_PARAMETERS = PARAMETERS
"""A function with more takes the way in Python."""


@cython.final
cdef class Kernel:
    """A function on the GPU, for the compiled way.

    Args:
        function: the CUfunction.
        workgroup: threads in a block.
        sizes: the size of each parameter.
        arguments: for each parameter the argument it takes, bindings counted first.
        bindings: how many of the arguments are buffers; -1: as many as come.

    """
    cdef void *function
    cdef unsigned block[3]
    cdef uint32_t sizes[PARAMETERS]
    cdef uint32_t arguments[PARAMETERS]
    cdef int bindings
    cdef uint32_t count

    def __init__(self, uintptr_t function, tuple workgroup not None, sizes, arguments, int bindings):
        cdef uint32_t index
        if len(sizes) > PARAMETERS:
            raise ValueError(f"{len(sizes)} parameters are too many")
        self.function = <void *>function
        for index in range(3):
            self.block[index] = workgroup[index]
        self.count = len(sizes)
        for index in range(self.count):
            self.sizes[index] = sizes[index]
            self.arguments[index] = arguments[index]
        self.bindings = bindings

    @property
    def native(self):
        """What the core knows it by."""
        return <uintptr_t><PyObject *>self


cdef union Number:
    int64_t integer
    double real
    float single


cdef bint set_parameters(Kernel kernel, const TidegateWork *work, void **parameters, Number *numbers) noexcept:
    """Step: point to all arguments. False: they do not fit, and the way in Python says what is wrong."""
    cdef uint32_t index, argument, bindings = work.binding_count
    if bindings + work.constant_count != kernel.count or (kernel.bindings >= 0 and <uint32_t>kernel.bindings != bindings):
        return False
    for index in range(kernel.count):
        argument = kernel.arguments[index]
        if argument < bindings:
            if kernel.sizes[index] != 8:
                return False
            parameters[index] = <void *>&work.bindings[argument]
        else:
            argument -= bindings
            parameters[index] = constant_at(
                work.constants[argument], work.constant_sizes[argument], kernel.sizes[index], &numbers[argument]
            )
            if parameters[index] == NULL:
                return False
    return True


cdef void *constant_at(const void *given, uint32_t given_size, uint32_t size, Number *number) noexcept:
    """Step: where a constant lies as a parameter of some size; NULL: it does not fit. A plain number is stored as wide."""
    cdef int64_t integer
    if given_size == size:
        return <void *>given
    if given_size == TIDEGATE_INTEGER:
        integer = (<const int64_t *>given)[0]
        if size == 8 or ((size == 4 or size == 2 or size == 1) and fits(integer, 8 * size)):
            number.integer = integer      # the least significant byte comes first
            return number
    elif given_size == TIDEGATE_FLOAT:
        if size == 8:
            return <void *>given
        if size == 4:
            number.single = <float>(<const double *>given)[0]
            return number
    return NULL


cdef inline bint fits(int64_t integer, uint32_t bits) noexcept:
    """Step: whether a number fits so many bits, signed if it is negative."""
    return integer < (<int64_t>1 << bits) and integer >= -(<int64_t>1 << (bits - 1))
