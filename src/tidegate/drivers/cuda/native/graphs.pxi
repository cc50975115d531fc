"""Graphs as far as a launch needs them: which instance is bound to which table, and runs where; and binding anew.

A thousand nodes to change are a thousand calls of CUDA, 0.5 us each; in Python what is around each costs as much again.
"""


cdef struct Bound:
    uint64_t address
    uint64_t nbytes
    uint64_t visible      # whether it is host memory


@cython.final
cdef class InstanceState:
    """What a graph instance is bound to, and where it was last launched.

    Args:
        handle: the CUgraphExec.

    """
    cdef void *at
    cdef readonly object holder
    """The timeline on which it was last launched, or what stands for one; None: on none yet."""
    cdef StreamState stream       # of that
    cdef readonly uint64_t epoch
    """And the epoch there."""
    cdef Bound *table             # what is bound to each slot that is used; NULL: nobody knows
    cdef Py_ssize_t count

    def __init__(self, uintptr_t handle):
        self.at = <void *>handle

    def __dealloc__(self):
        free(self.table)

    @property
    def handle(self):
        """The CUgraphExec."""
        return <uintptr_t>self.at

    @property
    def idle(self):
        """Whether every launch of it is over."""
        return self.holder is None or self.holder.reached >= self.epoch

    def forget(self):
        """Nobody knows what it is bound to."""
        free(self.table)
        self.table = NULL

    def is_bound(self, list table not None):
        """It is bound to these: an address, a length, and whether it is host memory, for each slot that is used."""
        cdef Py_ssize_t index
        self.forget()
        self.table = <Bound *>realloc(NULL, (len(table) + 1) * sizeof(Bound))
        if self.table == NULL:
            raise MemoryError
        self.count = len(table)
        for index in range(self.count):
            address, nbytes, visible = table[index]   # a `graph_node.Bound`
            self.table[index] = Bound(address, nbytes, visible)

    def launched(self, holder, StreamState stream, uint64_t epoch):
        """It was launched on a timeline; `stream` is the compiled side of that, if it has one."""
        self.holder = holder
        self.stream = stream
        self.epoch = epoch


@cython.final
cdef class GraphState:
    """The instances of a command buffer.

    Args:
        most: how many instances are kept: when there are more, the way in Python sees to that.

    """
    cdef uint32_t *used
    cdef uint32_t count
    cdef Py_ssize_t most
    cdef readonly list instances

    def __init__(self, Py_ssize_t most):
        self.most = most
        self.instances = []

    def use(self, tuple used not None):
        """It uses these slots, in order. Once, before there are instances."""
        cdef uint32_t index
        self.used = <uint32_t *>realloc(NULL, (len(used) + 1) * sizeof(uint32_t))
        if self.used == NULL:
            raise MemoryError
        self.count = len(used)
        for index in range(self.count):
            self.used[index] = used[index]

    def __dealloc__(self):
        free(self.used)

    @property
    def native(self):
        """What the core knows it by."""
        return <uintptr_t><PyObject *>self


cdef PyObject *ready_instance(GraphState graph, const TidegateWork *work, StreamState stream) noexcept:
    """Step: find an instance that is bound to the table and free on a stream; NULL: the way in Python makes one so."""
    cdef Py_ssize_t index
    cdef InstanceState instance
    if PyList_GET_SIZE(graph.instances) > graph.most:
        return NULL
    for index in range(PyList_GET_SIZE(graph.instances)):
        instance = <InstanceState>PyList_GET_ITEM(graph.instances, index)
        if instance.table != NULL and is_bound_to(instance, graph, work) and is_free(instance, stream):
            return <PyObject *>instance
    return NULL


cdef bint is_free(InstanceState instance, StreamState stream) noexcept:
    """Step: whether it does not run, or runs on a stream where it would wait for itself anyway."""
    if instance.stream is None:
        return instance.holder is None
    return instance.stream is stream or reached_now(instance.stream) >= instance.epoch


cdef bint is_bound_to(InstanceState instance, GraphState graph, const TidegateWork *work) noexcept:
    """Step: whether all slots that are used are bound to what the table has."""
    cdef uint32_t index, slot
    for index in range(graph.count):
        slot = graph.used[index]
        if (
            slot >= work.binding_count
            or instance.table[index].address != work.bindings[slot]
            or instance.table[index].nbytes != work.binding_sizes[slot]
            or instance.table[index].visible != work.binding_visible[slot]
        ):
            return False
    return True


@cython.final
cdef class Words:
    """Words inside of structures, each to be stored an offset behind an address.

    Args:
        words: the address of each word, and its offset.

    """
    cdef uint64_t *pairs
    cdef Py_ssize_t count

    def __init__(self, list words not None):
        self.pairs = pairs_of(words)
        self.count = len(words)

    def __dealloc__(self):
        free(self.pairs)

    def __len__(self):
        return self.count

    def store(self, uint64_t address):
        """Store an address into all words."""
        cdef Py_ssize_t index
        for index in range(self.count):
            (<uint64_t *><uintptr_t>self.pairs[2 * index])[0] = address + self.pairs[2 * index + 1]


ctypedef int (*change_kernel_t)(void *, void *, void *) noexcept nogil
ctypedef int (*change_other_t)(void *, void *, void *, void *) noexcept nogil


@cython.final
cdef class Nodes:
    """Nodes of one kind, and the structures that are handed over to change them.

    Args:
        device: the device.
        call: the name of the function that changes such a node.
        takes_context: whether it takes a context behind the rest.
        nodes: the handle of each node, and the address of its structure.

    """
    cdef DeviceState device
    cdef object call
    cdef void *change
    cdef bint takes_context
    cdef uint64_t *pairs
    cdef Py_ssize_t count

    def __init__(self, DeviceState device not None, call, bint takes_context, list nodes not None):
        self.device = device
        self.call = call
        self.change = <void *><uintptr_t>device.native.address(call)
        self.takes_context = takes_context
        self.pairs = pairs_of(nodes)
        self.count = len(nodes)

    def __dealloc__(self):
        free(self.pairs)

    def hand_over(self, uintptr_t instance):
        """Hand the structures over, for launches to come."""
        cdef int code
        if self.device.releases:
            with nogil:
                code = self.change_all(<void *>instance)
        else:
            code = self.change_all(<void *>instance)
        if code:
            raise self.device.native.error(self.call, code)

    cdef int change_all(self, void *instance) noexcept nogil:
        cdef Py_ssize_t index
        cdef void *node
        cdef void *structure
        cdef int code = 0
        for index in range(self.count):
            node = <void *><uintptr_t>self.pairs[2 * index]
            structure = <void *><uintptr_t>self.pairs[2 * index + 1]
            if self.takes_context:
                code = (<change_other_t>self.change)(instance, node, structure, self.device.current)
            else:
                code = (<change_kernel_t>self.change)(instance, node, structure)
            if code:
                break
        return code


cdef uint64_t *pairs_of(list given) except NULL:
    """Return numbers in pairs; the caller frees them."""
    cdef Py_ssize_t index = 0
    cdef uint64_t *pairs = <uint64_t *>realloc(NULL, (2 * len(given) + 1) * sizeof(uint64_t))
    if pairs == NULL:
        raise MemoryError
    for one, other in given:
        pairs[2 * index] = one
        pairs[2 * index + 1] = other
        index += 1
    return pairs
