"""What a consumer that reads committed records only may see (KIP-98).

Below the last stable offset of a partition every transaction has ended, and a client drops the
records of the aborted ones by the list that comes with them. An embedded log has what is open in
its states; a shared one asks the catalog, once for every high watermark, for nothing opens or ends
without moving that. Aborted ranges are read from the catalog once and then remembered: they never
change, and new ones only follow.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from catchwater.catalog.base import Catalog
from catchwater.catalog.rows import AbortedRow, PartitionKey
from catchwater.log.write.sequence import PartitionState

_END = 2**63 - 1


@dataclass(slots=True)
class _Stable:
    """What is known of one partition."""

    high_watermark: int = -1
    """As of the last look at the catalog; -1 before the first."""
    last_stable_offset: int = -1
    upto: int = 0
    """All aborted transactions with a marker before this offset are in `aborted`."""
    aborted: list[AbortedRow] = field(default_factory=list)


class Stability:
    """The last stable offsets and aborted transactions of one log, used on its event loop."""

    def __init__(
        self,
        catalog: Catalog,
        states: Mapping[PartitionKey, PartitionState],
        *,
        others_write: bool,
    ) -> None:
        self._catalog = catalog
        self._states = states
        self._others_write = others_write
        self._known: dict[PartitionKey, _Stable] = {}

    async def last_stable_offset(self, key: PartitionKey) -> int:
        """The first offset that is not stable; never above the high watermark; -1: no partition."""
        offset = self.last_stable_offset_now(key)
        if offset is None:
            state = self._states[key]
            known = await self._look(key, state)
            offset = min(known.last_stable_offset, state.high_watermark)
        return offset

    def last_stable_offset_now(self, key: PartitionKey) -> int | None:
        """The same; None if the catalog must be asked."""
        state = self._states.get(key)
        if state is None:
            return -1
        if not self._others_write:
            return state.last_stable_offset
        known = self._up_to_date(key, state)
        return min(known.last_stable_offset, state.high_watermark) if known else None

    async def aborted(self, key: PartitionKey, start: int, end: int) -> Sequence[AbortedRow]:
        """Aborted transactions with records or marker in [start, end), by first offset.

        `end` is not above the last stable offset.
        """
        found = self.aborted_now(key, start, end)
        if found is None:
            found = _among((await self._look(key, self._states[key])).aborted, start, end)
        return found

    def aborted_now(self, key: PartitionKey, start: int, end: int) -> Sequence[AbortedRow] | None:
        """The same; None if the catalog must be asked."""
        state = self._states.get(key)
        if state is None:
            return []
        known = self._up_to_date(key, state)
        return _among(known.aborted, start, end) if known else None

    def _up_to_date(self, key: PartitionKey, state: PartitionState) -> _Stable | None:
        """What is known of the partition, if nothing has changed since the catalog was asked."""
        known = self._known.get(key)
        if known is None or known.high_watermark < 0:
            return None
        if self._others_write:
            return known if known.high_watermark == state.high_watermark else None
        return known if state.last_aborted < known.upto else None

    async def _look(self, key: PartitionKey, state: PartitionState) -> _Stable:
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _Stable(upto=state.log_start)
        high_watermark, start = state.high_watermark, known.upto

        def look() -> tuple[int, list[AbortedRow]]:
            # What is open first: what has ended by then is among the aborted, if it was.
            opened = self._catalog.open_txns_on(key) if self._others_write else []
            stable = min((row.first_offset for row in opened), default=high_watermark)
            return stable, self._catalog.aborted(key, start, _END)

        stable, rows = await asyncio.to_thread(look)
        # Others may have looked meanwhile.
        new = [row for row in rows if row.last_offset >= known.upto]
        if high_watermark >= known.high_watermark:
            known.high_watermark, known.last_stable_offset = high_watermark, stable
        known.aborted += new
        known.upto = max(known.upto, high_watermark, *(row.last_offset + 1 for row in new))
        gone = bisect_left(known.aborted, state.log_start, key=lambda row: row.last_offset)
        del known.aborted[:gone]
        for gone_key in self._known.keys() - self._states.keys():
            del self._known[gone_key]
        return known


def _among(rows: Sequence[AbortedRow], start: int, end: int) -> list[AbortedRow]:
    """The rows that reach into [start, end); the rows are ordered by their ends."""
    first = bisect_left(rows, start, key=lambda row: row.last_offset)
    return sorted(
        (row for row in rows[first:] if row.first_offset < end), key=lambda row: row.first_offset
    )
