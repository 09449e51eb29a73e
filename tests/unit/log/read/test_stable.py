"""Committed readers ask the catalog only where something may have changed, and miss nothing."""

from typing import Any

import pytest

from catchwater.catalog.rows import AbortedRow, OpenTxnRow, PartitionKey
from catchwater.log.read.stable import Stability
from catchwater.log.write.sequence import PartitionState

KEY = (b"1" * 16, 0)


class Catalog:
    """What is open and aborted, and how often somebody asked."""

    def __init__(self) -> None:
        self.opened: list[OpenTxnRow] = []
        self.rows: list[AbortedRow] = []
        self.asked = 0

    def open_txns_on(self, key: PartitionKey) -> list[OpenTxnRow]:
        return list(self.opened)

    def aborted(self, key: PartitionKey, start: int, end: int) -> list[AbortedRow]:
        self.asked += 1
        return [row for row in self.rows if row.last_offset >= start]


@pytest.fixture
def catalog() -> Any:
    return Catalog()


async def test_an_embedded_log_asks_once_and_again_after_an_abort(catalog: Any) -> None:
    state = PartitionState(high_watermark=10)
    catalog.rows = [AbortedRow(*KEY, 7, 2, 5)]
    stability = Stability(catalog, {KEY: state}, others_write=False)
    for _ in range(3):
        assert await stability.aborted(KEY, 0, 10) == catalog.rows
        assert await stability.aborted(KEY, 6, 10) == []
        state.high_watermark += 1
    assert catalog.asked == 1
    catalog.rows.append(AbortedRow(*KEY, 8, 11, 13))
    state.high_watermark, state.last_aborted = 14, 13
    assert await stability.aborted(KEY, 0, 14) == catalog.rows
    assert await stability.aborted(KEY, 0, 11) == catalog.rows[:1]
    assert catalog.asked == 2


async def test_aborted_transactions_come_by_their_first_offset(catalog: Any) -> None:
    catalog.rows = [AbortedRow(*KEY, 7, 4, 5), AbortedRow(*KEY, 8, 1, 9)]
    stability = Stability(catalog, {KEY: PartitionState(high_watermark=10)}, others_write=False)
    assert await stability.aborted(KEY, 0, 10) == catalog.rows[::-1]


async def test_a_shared_log_asks_again_when_the_high_watermark_has_moved(catalog: Any) -> None:
    state = PartitionState(high_watermark=10)
    stability = Stability(catalog, {KEY: state}, others_write=True)
    catalog.opened = [OpenTxnRow(*KEY, 7, 6)]
    assert [await stability.last_stable_offset(KEY) for _ in range(3)] == [6, 6, 6]
    assert catalog.asked == 1
    # Its end, at offset 10, may be in the catalog before this broker has heard of it.
    catalog.opened, catalog.rows = [], [AbortedRow(*KEY, 7, 6, 10)]
    state.high_watermark = 11
    assert await stability.last_stable_offset(KEY) == 11
    assert await stability.aborted(KEY, 0, 11) == catalog.rows
    assert catalog.asked == 2


async def test_an_end_ahead_of_the_view_is_told_with_the_records_it_voids(catalog: Any) -> None:
    state = PartitionState(high_watermark=10)
    stability = Stability(catalog, {KEY: state}, others_write=True)
    catalog.rows = [AbortedRow(*KEY, 7, 6, 12)]
    assert await stability.last_stable_offset(KEY) == 10
    assert await stability.aborted(KEY, 6, 10) == catalog.rows
    catalog.rows.append(AbortedRow(*KEY, 7, 13, 14))
    state.high_watermark = 15
    assert await stability.aborted(KEY, 6, 15) == catalog.rows


async def test_what_retention_has_taken_is_forgotten_and_so_is_a_deleted_partition(
    catalog: Any,
) -> None:
    state, other = PartitionState(high_watermark=10), (b"2" * 16, 0)
    states = {KEY: state, other: PartitionState(high_watermark=1)}
    catalog.rows = [AbortedRow(*KEY, 7, 2, 5)]
    stability = Stability(catalog, states, others_write=False)
    assert await stability.aborted(KEY, 0, 10)
    assert not await stability.aborted(other, 0, 1)
    del states[other]
    catalog.rows = [AbortedRow(*KEY, 7, 8, 10)]
    state.log_start, state.high_watermark, state.last_aborted = 6, 11, 10
    assert await stability.aborted(KEY, 0, 11) == catalog.rows
    assert list(stability._known) == [KEY]
    assert await stability.last_stable_offset(other) == -1
    assert await stability.aborted(other, 0, 1) == []
