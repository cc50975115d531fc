"""Large data between ordinary host memory and the device, piece by piece through page-locked slots."""

cdef enum:
    MOST_SLOTS = 8

cdef struct Transfer:
    bint upload
    unsigned char *host
    uint64_t address
    uint64_t nbytes
    uint64_t piece
    void *stream
    uint64_t count
    void *slots[MOST_SLOTS]
    void *events[MOST_SLOTS]


def carry(DeviceState device not None, bint upload, uintptr_t host, uint64_t address, uint64_t nbytes, uint64_t piece,
          slots, uintptr_t stream):
    """Copy between ordinary host memory and the device; blocks, and gives the GIL away once.

    While one piece is on the link the next one is copied on the host. When it returns or raises, none is: the slots
    serve the next transfer.

    Args:
        device: the device.
        upload: which way.
        host: the address in host memory.
        address: the address in the device's memory.
        nbytes: how much.
        piece: how much at a time.
        slots: page-locked memory of at least that size, each with an event.
        stream: the CUstream.

    """
    cdef Transfer given
    cdef int call = 0, code
    cdef uint64_t index
    given.upload, given.host, given.address, given.nbytes = upload, <unsigned char *>host, address, nbytes
    given.piece, given.stream, given.count = piece, <void *>stream, 0
    for slot, event in slots[:MOST_SLOTS]:
        given.slots[given.count] = <void *><uintptr_t>slot
        given.events[given.count] = <void *><uintptr_t>event
        given.count += 1
    with nogil:
        code = carry_pieces(device, &given, &call)
        if code:
            for index in range(given.count):
                device.synchronize(given.events[index])
    if code:
        device.refuse(call, code)


cdef int carry_pieces(DeviceState device, const Transfer *given, int *call) noexcept nogil:
    """The pieces. Returns CUDA's code; others may still be on the link then."""
    cdef uint64_t pieces = (given.nbytes + given.piece - 1) // given.piece
    cdef uint64_t turn, begin, size
    cdef void *slot
    cdef void *event
    cdef int code
    for turn in range(pieces + given.count):   # each turn begins a piece, and ends the one of `count` turns before
        slot = given.slots[turn % given.count]
        event = given.events[turn % given.count]
        if turn >= given.count and turn - given.count < pieces:
            begin = (turn - given.count) * given.piece
            size = min(given.piece, given.nbytes - begin)
            call[0] = IN_SYNCHRONIZE
            code = device.synchronize(event)
            if code:
                return code
            if not given.upload:
                memcpy(given.host + begin, slot, size)
        if turn < pieces:
            begin = turn * given.piece
            size = min(given.piece, given.nbytes - begin)
            call[0] = IN_COPY
            if given.upload:
                memcpy(slot, given.host + begin, size)
                code = device.copy(given.address + begin, <uint64_t><uintptr_t>slot, size, given.stream)
            else:
                code = device.copy(<uint64_t><uintptr_t>slot, given.address + begin, size, given.stream)
            if code:
                return code
            call[0] = IN_RECORD
            code = device.record(event, given.stream)
            if code:
                return code
    return 0
