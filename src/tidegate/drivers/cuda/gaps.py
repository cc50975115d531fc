"""Ranges of one block of memory, handed out in a circle and given back in any order.

The free space is a sorted list of gaps that never touch. Each change of the list is one store, so that an interrupt
comes before it or after it; whoever uses it has a lock around it all the same.
"""

from __future__ import annotations

from bisect import bisect_left


class Piece:
    """A range that was handed out: bytes `begin` to `end`."""

    __slots__ = ("begin", "end", "given")

    def __init__(self) -> None:
        self.begin = self.end = 0
        self.given = True
        """Whether it was given back, or not handed out yet. Giving it again does nothing."""


class Gaps:
    """The free space of a block of `size` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._gaps: list[tuple[int, int]] = [(0, size)]
        self._next = 0

    @property
    def free(self) -> int:
        """How many bytes are free, perhaps in several pieces."""
        return sum(end - begin for begin, end in self._gaps)

    def take(self, nbytes: int, alignment: int, piece: Piece | None = None) -> Piece | None:
        """Return a range behind the last one that was handed out, else the first that fits; None: no room now.

        Args:
            nbytes: how long it shall be.
            alignment: what its offset shall be a multiple of.
            piece: becomes that range; whoever must not lose it, also by an interrupt, has it beforehand.

        """
        gaps = self._gaps
        count = len(gaps)
        first = max(0, bisect_left(gaps, (self._next, self.size + 1)) - 1)  # the gap it ended in, or the one before
        for turn in range(count):
            index = (first + turn) % count
            begin, end = gaps[index]
            offset = -(-begin // alignment) * alignment
            if offset + nbytes <= end:
                return self._cut(index, offset, offset + nbytes, piece or Piece())
        return None

    def _cut(self, index: int, begin: int, end: int, piece: Piece) -> Piece:
        gaps = self._gaps
        low, high = gaps[index]
        left = [piece for piece in ((low, begin), (end, high)) if piece[0] < piece[1]]
        piece.begin, piece.end = begin, end
        gaps[index : index + 1] = left
        piece.given = False  # with nothing between: from here on it is its holder's
        self._next = end
        return piece

    def give(self, piece: Piece) -> None:
        """Take a range back."""
        if piece.given:
            return
        gaps = self._gaps
        begin, end = piece.begin, piece.end
        low = high = bisect_left(gaps, (begin, end))
        if low > 0 and gaps[low - 1][1] == begin:
            low -= 1
            begin = gaps[low][0]
        if high < len(gaps) and gaps[high][0] == end:
            end = gaps[high][1]
            high += 1
        gaps[low:high] = [(begin, end)]
        piece.given = True  # with nothing between: twice in the list it would be handed out twice
