"""A log without its broker: what its catalog holds, and what only its write-ahead log does."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from tests.unit.log.shared import crashed

from catchwater.broker_config import LogConfig
from catchwater.catalog.rows import PartitionKey
from catchwater.clock import ManualClock
from catchwater.log.core import RangeMissing
from catchwater.log.log import Log
from catchwater.log.read.offline import NoCatalog, OfflineLog, opened
from catchwater.log.write.writer import Submission
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header

QUIET = LogConfig(background=False, catalog_lag_ms=3_600_000)
T = TypeVar("T")


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    log = await Log.open(tmp_path / "live", QUIET, ManualClock())
    yield log
    await log.close()


async def append(log: Log, key: PartitionKey, count: int, base_sequence: int) -> None:
    records = [(None, b"v", 1000 + base_sequence + n, ()) for n in range(count)]
    batch = encode_batch(records, producer_id=7, producer_epoch=0, base_sequence=base_sequence)
    view = memoryview(batch)
    await log.submit([Submission(key, read_header(view), view)])


async def look(tmp_path: Path, what: Callable[[OfflineLog], T]) -> T:
    """Ask a copy of the data directory, as a crash would leave it now."""
    target = crashed(tmp_path / "live", tmp_path / "crashed")

    def ask() -> T:
        with opened(str(target), "", ManualClock()) as log:
            return what(log)

    return await asyncio.to_thread(ask)


async def test_what_the_catalog_does_not_hold_yet_is_known_and_missing(
    log: Log, tmp_path: Path
) -> None:
    topic = await log.create_topic("t", 2)
    first, second = (topic.id, 0), (topic.id, 1)
    await append(log, first, 5, 0)
    await log.keeping.pack()
    await append(log, first, 5, 5)
    await asyncio.wrap_future(log._core.catalog.flush())
    await append(log, first, 3, 10)
    await append(log, first, 3, 10)  # again: a duplicate is no record
    await append(log, second, 4, 0)

    def ask(log: OfflineLog) -> None:
        assert log.partitions() == [("t", 0), ("t", 1)]
        spans = [log.span("t", partition, read_committed=False) for partition in (0, 1)]
        assert spans == [(0, 13), (0, 4)]
        segment, chunk = log.plan("t", [(0, 0, 10), (1, 0, 0)])
        assert (segment.kind, segment.base_offset, segment.last_offset) == ("segment", 0, 4)
        assert (chunk.kind, chunk.base_offset, chunk.last_offset) == ("chunk", 5, 9)
        for plan in (log.plan, log.plan_committed):
            with pytest.raises(RangeMissing) as refusal:
                plan("t", [(0, 2, 13), (1, 1, 4)])
            assert refusal.value.missing == [(0, 10, 13), (1, 1, 4)]
        assert log.first_at("t", 0, 1007) == 7
        assert log.first_at("t", 0, 5000) is None

    await look(tmp_path, ask)


async def test_a_chunk_whose_file_is_not_there_is_missing(log: Log, tmp_path: Path) -> None:
    topic = await log.create_topic("t", 1)
    await append(log, (topic.id, 0), 5, 0)
    await log.keeping.pack()
    await append(log, (topic.id, 0), 5, 5)
    await asyncio.wrap_future(log._core.catalog.flush())
    for file in (tmp_path / "live" / "wal").iterdir():
        file.rename(tmp_path / file.name)

    def ask(log: OfflineLog) -> None:
        assert len(log.plan("t", [(0, 0, 5)])) == 1
        for plan in (log.plan, log.plan_committed):
            with pytest.raises(RangeMissing) as refusal:
                plan("t", [(0, 2, 8)])
            assert refusal.value.missing == [(0, 5, 8)]

    await look(tmp_path, ask)


def test_a_place_without_a_catalog_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(NoCatalog, match=r"no catalog\.db in .*/nowhere"),
        opened((tmp_path / "nowhere").as_uri(), "", ManualClock()),
    ):
        pass
    (tmp_path / "catalog.db").touch()
    with (
        pytest.raises(NoCatalog, match="no objects in"),
        opened(str(tmp_path / "catalog.db"), "", ManualClock()),
    ):
        pass
    assert [each.name for each in tmp_path.iterdir()] == ["catalog.db"]
