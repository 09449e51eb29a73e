"""What is missing, cut short or in the wrong place is named; what only looks so is not."""

import sqlite3
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from catchwater.broker_config import LogConfig
from catchwater.clock import ManualClock
from catchwater.log.log import Log
from catchwater.log.repair.fsck import Report, fsck_directory
from catchwater.log.write.writer import Submission
from catchwater.objects.local import LocalStore
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header

CLOCK = ManualClock()
QUIET = LogConfig(background=False, catalog_lag_ms=1)


@pytest.fixture
async def log(tmp_path: Path) -> AsyncIterator[Log]:
    log = await Log.open(tmp_path, QUIET, CLOCK)
    topic = await log.create_topic("t", 2)
    for step in range(8):
        batch = encode_batch([(None, b"%d" % step * 100, 1_000, ())] * 3)
        view = memoryview(batch)
        await log.submit([Submission((topic.id, step % 2), read_header(view), view)])
        if step == 5:
            await log.keeping.pack()
    await log.keeping.back_up()
    yield log
    await log.close()


def check(data: Path, *, deep: bool = False) -> Report:
    seen = []
    report = fsck_directory(
        data, LocalStore(data / "objects"), deep=deep, clock=CLOCK,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert all(done <= total for done, total in seen)
    return report


@pytest.mark.parametrize("deep", [False, True])
async def test_a_running_brokers_log_is_good(log: Log, tmp_path: Path, deep: bool) -> None:
    report = check(tmp_path, deep=deep)
    assert report.is_good, report.damaged
    assert (report.partitions, report.runs, report.objects) == (2, 4, 3)
    assert bool(report.bytes_read) == deep


async def test_a_segment_cut_short_and_one_in_anothers_place_are_named(
    log: Log, tmp_path: Path
) -> None:
    [first] = tmp_path.glob("objects/segments/*/0/*.seg")
    [second] = tmp_path.glob("objects/segments/*/1/*.seg")
    whole = first.read_bytes()
    first.write_bytes(whole[:-40])
    [found] = check(tmp_path).damaged
    assert (found.topic, found.partition, found.first_offset, found.last_offset) == ("t", 0, 0, 8)
    first.write_bytes(second.read_bytes())
    [found] = check(tmp_path).damaged
    assert "t-1" in found.reason
    first.write_bytes(whole)
    assert check(tmp_path).is_good


async def test_a_wal_file_that_is_gone_is_named_with_the_offsets_it_held(
    log: Log, tmp_path: Path
) -> None:
    [wal] = tmp_path.glob("wal/*.wal")
    whole = wal.read_bytes()
    wal.unlink()
    found = check(tmp_path).damaged
    wal.write_bytes(whole)
    assert [(each.partition, each.first_offset, each.last_offset) for each in found] == [
        (0, 9, 11),
        (1, 9, 11),
    ]


async def test_an_object_that_nobody_knows_is_an_orphan_and_no_damage(
    log: Log, tmp_path: Path
) -> None:
    log.objects.put("staged/p/s/1.chunk", [b"left by a crash"])
    report = check(tmp_path)
    assert report.is_good
    assert report.orphans == ["staged/p/s/1.chunk"]


async def test_a_damaged_backup_is_named(log: Log, tmp_path: Path) -> None:
    [backup] = tmp_path.glob("objects/catalog/*.json.zst")
    backup.write_bytes(backup.read_bytes()[:-3])
    [found] = check(tmp_path).damaged
    assert backup.name in found.reason


async def test_a_catalog_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "objects").mkdir()
    [found] = check(tmp_path).damaged
    assert found.object == "catalog.db"


async def test_parquet_that_is_missing_cut_short_or_altered_is_named(tmp_path: Path) -> None:
    log = await Log.open(tmp_path, replace(QUIET, parquet_after_ms=0), CLOCK)
    topic = await log.create_topic("t", 1, {"catchwater.history.parquet": "true"})
    view = memoryview(encode_batch([(None, b"x" * 100, 1_000, ())] * 3))
    await log.submit([Submission((topic.id, 0), read_header(view), view)])
    await log.keeping.pack()
    assert not await log.keeping.write_parquet()
    await log.keeping.back_up()
    await log.close()
    [path] = tmp_path.glob("objects/parquet/*/0/*.parquet")
    whole = path.read_bytes()
    for deep in (False, True):
        assert check(tmp_path, deep=deep).is_good
        assert check(tmp_path, deep=deep).objects == 2

    def named(*, deep: bool = False) -> list[tuple[str, int, int, str]]:
        found = check(tmp_path, deep=deep).damaged
        assert all(each.object.endswith(path.name) and each.topic == "t" for each in found)
        return [(each.object[:8], each.first_offset, each.last_offset, each.reason)
                for each in found]  # fmt: skip

    path.write_bytes(whole[:-1])
    [(place, *offsets, reason)] = named()
    assert (place, offsets) == ("parquet/", [0, 2]) and "cut off" in reason and "too" in reason
    path.write_bytes(whole[:20] + bytes([whole[20] ^ 1]) + whole[21:])
    assert named() == []
    [(*_, reason)] = named(deep=True)
    assert "fails the checksum" in reason
    path.unlink()
    [(*_, reason)] = named()
    assert "There is no object" in reason
    path.write_bytes(whole)
    with sqlite3.connect(tmp_path / "catalog.db") as db:
        db.execute("UPDATE run SET parquet_records = 4")
    db.close()
    (tmp_path / "catalog.sums").unlink()
    [(*_, reason)] = named(deep=True)
    assert "holds 4 records, but its segment 3" in reason
