"""A binding that `execute` fills from its table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import OutOfRangeError

if TYPE_CHECKING:
    from ..driver import Span


@dataclass(frozen=True, slots=True)
class SlotSpan:
    """A range of whatever stands in entry `index` of the binding table; without a length, the rest of it."""

    index: int
    offset: int = 0
    length: int | None = None

    def bind(self, table: Sequence[Any]) -> Span:
        """Return the range of the table's entry.

        Raises:
            OutOfRangeError: the entry is missing or too short.

        """
        if self.index >= len(table):
            raise OutOfRangeError(
                f"slot {self.index} has no entry: the binding table has {len(table)}", slot=self.index, table=len(table)
            )
        entry = table[self.index]
        if self.offset == 0 and self.length is None:
            return entry  # type: ignore[no-any-return]
        return entry.subspan(self.offset, entry.nbytes - self.offset if self.length is None else self.length)  # type: ignore[no-any-return]
