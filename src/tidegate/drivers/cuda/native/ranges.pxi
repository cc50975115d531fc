"""Ranges of one block of memory, handed out in a circle and given back in any order.

The free space is a sorted array of gaps that never touch. Each change is made in one go.
"""


@cython.final
cdef class Piece:
    """A range that was handed out: bytes `begin` to `end`."""
    cdef readonly uint64_t begin
    cdef readonly uint64_t end
    cdef readonly bint given
    """Whether it was given back, or not handed out yet. Giving it again does nothing."""

    def __cinit__(self):
        self.given = True


cdef struct Gap:
    uint64_t begin
    uint64_t end


@cython.final
cdef class Gaps:
    """The free space of a block of `size` bytes."""
    cdef Gap *gaps
    cdef Py_ssize_t count, capacity
    cdef Py_ssize_t pieces        # how many are handed out: so many gaps more there may be
    cdef uint64_t following       # where the last one that was handed out ended
    cdef readonly uint64_t size

    def __init__(self, uint64_t size):
        self.size = size
        if not self.has_room_for_one():
            raise MemoryError
        self.gaps[0] = Gap(0, size)
        self.count = 1

    def __dealloc__(self):
        free(self.gaps)

    @property
    def free(self):
        """How many bytes are free, perhaps in several pieces."""
        cdef Py_ssize_t index
        cdef uint64_t found = 0
        for index in range(self.count):
            found += self.gaps[index].end - self.gaps[index].begin
        return found

    def take(self, uint64_t nbytes, uint64_t alignment, Piece piece=None):
        """Return a range behind the last one that was handed out, else the first that fits; None: no room now.

        Args:
            nbytes: how long it shall be.
            alignment: what its offset shall be a multiple of.
            piece: becomes that range; whoever must not lose it, also by an interrupt, has it beforehand.

        """
        cdef uint64_t begin
        cdef Piece made = Piece() if piece is None else piece
        if not self.cut(nbytes, alignment, &begin):
            return None
        made.begin = begin
        made.end = begin + nbytes
        made.given = False
        return made

    def give(self, Piece piece not None):
        """Take a range back."""
        if not piece.given:
            piece.given = True
            self.put_back(piece.begin, piece.end)

    cdef bint has_room_for_one(self) noexcept:
        """Step: have room for all the gaps that there may be with one more piece handed out."""
        cdef Py_ssize_t needed = self.count + self.pieces + 3
        cdef Gap *gaps
        if needed > self.capacity:
            gaps = <Gap *>realloc(self.gaps, 2 * needed * sizeof(Gap))
            if gaps == NULL:
                return False
            self.gaps = gaps
            self.capacity = 2 * needed
        return True

    cdef bint cut(self, uint64_t nbytes, uint64_t alignment, uint64_t *found) noexcept:
        """Step: hand a range out. False: no room now."""
        cdef Py_ssize_t turn, index, first
        cdef uint64_t begin, end
        cdef bint fits = False
        SMALL_LOCK()
        if self.has_room_for_one():
            first = self.index_at(self.following)
            for turn in range(self.count):
                index = (first + turn) % self.count
                begin = (self.gaps[index].begin + alignment - 1) // alignment * alignment
                end = begin + nbytes
                if end <= self.gaps[index].end:
                    self.split(index, begin, end)
                    found[0] = begin
                    fits = True
                    break
        SMALL_UNLOCK()
        return fits

    cdef Py_ssize_t index_at(self, uint64_t place) noexcept:
        """Step: the last gap that begins at a place or before it, or the first."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if self.gaps[middle].begin <= place:
                low = middle + 1
            else:
                high = middle
        return low - 1 if low > 0 else 0

    cdef void split(self, Py_ssize_t index, uint64_t begin, uint64_t end) noexcept:
        """Step: take a range out of a gap."""
        cdef Gap gap = self.gaps[index]
        cdef bint before = gap.begin < begin
        cdef bint behind = end < gap.end
        self.move(index + 1, index + before + behind)
        if before:
            self.gaps[index] = Gap(gap.begin, begin)
        if behind:
            self.gaps[index + before] = Gap(end, gap.end)
        self.pieces += 1
        self.following = end

    cdef void move(self, Py_ssize_t index, Py_ssize_t to) noexcept:
        """Step: move the gaps from an index on to another."""
        memmove(&self.gaps[to], &self.gaps[index], (self.count - index) * sizeof(Gap))
        self.count += to - index

    cdef void put_back(self, uint64_t begin, uint64_t end) noexcept:
        """Step: take a range back."""
        cdef Py_ssize_t low, high
        SMALL_LOCK()
        low = high = self.index_behind(begin)
        if low > 0 and self.gaps[low - 1].end == begin:
            low -= 1
            begin = self.gaps[low].begin
        if high < self.count and self.gaps[high].begin == end:
            end = self.gaps[high].end
            high += 1
        self.move(high, low + 1)
        self.gaps[low] = Gap(begin, end)
        self.pieces -= 1
        SMALL_UNLOCK()

    cdef Py_ssize_t index_behind(self, uint64_t place) noexcept:
        """Step: the first gap that begins behind a place."""
        cdef Py_ssize_t index = self.index_at(place)
        return index + 1 if index < self.count and self.gaps[index].begin <= place else index
