"""Compaction over real parts: readers cross the holes, crashes lose no last value, limits hold."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from catchwater.broker_config import LogConfig
from catchwater.catalog.rows import Changes, ObjectRow, OpenTxnRow, PartitionKey, RunRow
from catchwater.log.format.records import open_records
from catchwater.log.format.segment import batches_of, is_cleaned, read_footer
from catchwater.log.keep.compact import Compactor
from catchwater.log.keep.pack import Packer
from catchwater.log.read.history import History
from catchwater.log.topic_settings import Policy
from catchwater.wire.arrow import decode, encode_batch, place
from catchwater.wire.batch import split

OpenLog = Callable[..., Any]
ALWAYS = Policy(-1, -1, compacts=True, min_dirty_ratio=0.0)


def write(log: Any, key: PartitionKey, *changes: tuple[str, str | None], pack: bool = True) -> None:
    """A batch in a segment of its own, or left in its chunk."""
    records = [
        (name.encode(), None if value is None else value.encode(), log.clock.now_ms(), ())
        for name, value in changes
    ]
    log.append((key, encode_batch(records)))
    if pack:
        packing = LogConfig(segment_bytes=1)
        Packer(log.catalog, log.storage, log.clock, packing, log.topic_name).pack()


async def compact(
    log: Any,
    key: PartitionKey,
    policy: Policy = ALWAYS,
    pinned: int | None = None,
    max_keys: int = 1000,
    segment_bytes: int = 1 << 20,
    replace: Any = None,
) -> int:
    async def commit(old: Sequence[RunRow], run: RunRow, row: ObjectRow) -> bool:
        await asyncio.wrap_future(log.catalog.replace_runs(old, [run], [row]))
        return True

    compactor = Compactor(log.core(), LogConfig(segment_bytes=segment_bytes), max_keys)
    return await compactor.compact(log.topics[key[0]], key[1], policy, pinned, replace or commit)


def rows(log: Any, key: PartitionKey, offset: int = 0) -> list[tuple[int, str, str | None]]:
    """The records a lagging reader gets from `offset` on."""
    found = []
    for block in History(log.catalog, log.storage, 0).blocks(key, offset, 1 << 40):
        for batch in decode(block.data, place(block.data), first=offset):
            found += batch.to_pylist()
    return [
        (row["offset"], row["key"].decode(), row["value"] and row["value"].decode())
        for row in found
    ]


def latest(found: list[tuple[int, str, str | None]]) -> dict[str, tuple[int, str | None]]:
    return {key: (offset, value) for offset, key, value in found}


def fill(log: Any, key: PartitionKey, rounds: int = 6) -> None:
    for round_ in range(rounds):
        write(log, key, ("same", f"{round_}"), (f"own{round_}", "x"), ("same", f"{round_}!"))


async def test_the_last_value_of_every_key_stays_where_it_was(open_log: OpenLog) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, key)
    before = rows(log, key)
    assert await compact(log, key) == 1
    assert rows(log, key) == [
        *[(3 * n + 1, f"own{n}", "x") for n in range(6)],
        (17, "same", "5!"),
    ]
    assert latest(rows(log, key)) == latest(before)
    [run] = log.catalog.runs(key, 0)
    assert (run.base_offset, run.last_offset, run.record_count) == (0, 17, 7)
    assert is_cleaned(run.object)


async def test_a_reader_at_any_offset_gets_to_the_end(open_log: OpenLog) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, key)
    write(log, key, ("gone", "x"), ("gone", None))
    log.clock.advance(1)
    policy = Policy(-1, -1, compacts=True, delete_retention_ms=0, min_dirty_ratio=0.0)
    await compact(log, key, policy)
    write(log, key, ("later", "x"))
    await compact(log, key, policy, segment_bytes=300)
    write(log, key, ("end", "x"))
    history = History(log.catalog, log.storage, 0)
    assert "gone" not in latest(rows(log, key))
    for wanted in range(22):
        offset, met = wanted, []
        while offset < 22:
            block = next(iter(history.blocks(key, offset, 1)))
            start, end = block.span(offset, 1, at_least_one=True)
            header, _ = split(block.data[start:end])[0]
            assert header.last_offset >= offset
            met += range(max(header.base_offset, wanted), header.last_offset + 1)
            offset = header.last_offset + 1
        assert met == sorted(set(met))
        assert {o for o, *_ in rows(log, key) if o >= wanted} <= set(met)
        ranges = history.plan(key, wanted, 22)
        assert (ranges[0].base_offset <= wanted, ranges[-1].last_offset) == (True, 21)
        assert [r.last_offset + 1 for r in ranges[:-1]] == [r.base_offset for r in ranges[1:]]


async def test_where_nothing_is_left_an_empty_batch_marks_the_end(open_log: OpenLog) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    write(log, key, ("a", "1"))
    write(log, key, ("a", None))
    policy = Policy(-1, -1, compacts=True, delete_retention_ms=0, min_dirty_ratio=0.0)
    assert await compact(log, key, policy) == 1
    write(log, key, ("b", "1"))
    assert await compact(log, key, policy, segment_bytes=1) == 2
    [first, _] = log.catalog.runs(key, 0)
    assert (first.base_offset, first.last_offset, first.record_count) == (0, 1, 0)
    assert rows(log, key) == [(2, "b", "1")]
    write(log, key, ("c", "1"))
    assert await compact(log, key, policy, segment_bytes=1) == 1, "what is clean is left alone"


async def test_passes_that_hold_few_keys_come_to_the_same(open_log: OpenLog) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, key)
    wanted = latest(rows(log, key))
    passes = 0
    while await compact(log, key, max_keys=1, segment_bytes=200):
        passes += 1
    assert passes == 6
    assert latest(rows(log, key)) == wanted
    assert len(rows(log, key)) == 7


STEPS = [
    ("objects", "put_if_absent", 1),
    ("objects", "put_if_absent", 3),
    ("catalog", "replace_runs", 1),
    ("catalog", "replace_runs", 2),
    ("catalog", "replace_runs", 3),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("part", "method", "nth"), STEPS)
async def test_a_crash_at_any_step_leaves_every_last_value(
    open_log: OpenLog, part: str, method: str, after: bool, nth: int
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, key)
    wanted = latest(rows(log, key))
    seam = getattr(log, part)
    original = getattr(seam, method)
    calls = iter(range(1, 1000))

    class Crash(BaseException):
        """The process ends here."""

    def dying(*args: Any) -> Any:
        if next(calls) != nth:
            return original(*args)
        if after:
            done = original(*args)
            if hasattr(done, "result"):
                done.result()
        raise Crash

    setattr(seam, method, dying)
    with pytest.raises(Crash):
        await compact(log, key, segment_bytes=230)
    log = open_log()
    assert latest(rows(log, key)) == wanted
    while await compact(log, key, segment_bytes=230):
        pass
    assert latest(rows(log, key)) == wanted
    assert len(rows(log, key)) == 7
    referred = {run.object for run in log.catalog.runs(key, 0)}
    assert all(is_cleaned(object_key) for object_key in referred)


async def test_nothing_from_a_pin_on_is_cleaned_nor_superseded_by_what_lies_there(
    open_log: OpenLog,
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, key)
    before = rows(log, key)
    await compact(log, key, pinned=10)
    assert [row for row in rows(log, key) if row[0] >= 9] == before[9:]
    assert [row[0] for row in rows(log, key) if row[0] < 9] == [1, 4, 7, 8]


async def test_a_pin_set_meanwhile_stops_it_and_its_segment_goes(open_log: OpenLog) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, key)
    before, objects = rows(log, key), log.object_keys()

    async def refuse(*args: Any) -> bool:
        return False

    assert await compact(log, key, replace=refuse) == 0
    assert (rows(log, key), log.object_keys()) == (before, objects)


async def test_runs_deleted_meanwhile_leave_no_object(open_log: OpenLog) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, key)
    objects = log.object_keys()

    async def late(old: Sequence[RunRow], run: RunRow, row: ObjectRow) -> bool:
        log.catalog.trim({key: 4}).result()
        await asyncio.wrap_future(log.catalog.replace_runs(old, [run], [row]))
        return True

    assert await compact(log, key, replace=late) == 0
    assert log.object_keys() == objects


async def test_an_open_transaction_ends_what_may_be_cleaned(open_log: OpenLog) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, key)
    log.catalog.apply(99, Changes(open_txns=[OpenTxnRow(*key, 7, 6)]))
    log.catalog.flush().result()
    await compact(log, key)
    assert [row[0] for row in rows(log, key)] == [1, 4, 5, *range(6, 18)]


async def test_what_is_young_or_not_packed_waits(open_log: OpenLog) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, key, 2)
    log.clock.advance(60_000)
    fill(log, key, 1)
    write(log, key, ("same", "unpacked"), pack=False)
    lagging = Policy(-1, -1, compacts=True, min_dirty_ratio=0.0, min_compaction_lag_ms=60_000)
    await compact(log, key, lagging)
    assert [row[0] for row in rows(log, key)] == [1, 4, 5, 6, 7, 8, 9]
    await compact(log, key)
    assert [row[0] for row in rows(log, key)] == [4, 7, 8, 9]


async def test_it_waits_until_enough_is_new(open_log: OpenLog) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    half = Policy(-1, -1, compacts=True, min_dirty_ratio=0.5)
    for n in range(8):
        write(log, key, (f"{n}", "x"))
    assert await compact(log, key, half) == 1
    for n in range(7):
        write(log, key, (f"{n}", "y"))
        assert await compact(log, key, half) == 0
    write(log, key, ("0", "y"), ("1", "y"))
    assert await compact(log, key, half) == 1
    assert await compact(log, key, half) == 0


async def test_a_damaged_segment_is_named_and_left_where_it_is(
    open_log: OpenLog, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, key)
    run = log.catalog.runs(key, 7)[0]
    path = log.root / "objects" / run.object
    data = bytearray(path.read_bytes())
    data[run.byte_offset + 40] ^= 1
    path.write_bytes(data)
    assert await compact(log, key) == 0
    assert f"Partition 0 of t is not compacted: {run.object} is damaged in bytes" in caplog.text
    assert log.catalog.runs(key, 7)[0].object == run.object


async def test_tombstones_get_a_horizon_that_every_client_reads_past(open_log: OpenLog) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    written_ms = log.clock.now_ms()
    write(log, key, ("a", None), ("b", "1"))
    log.clock.advance(5000)
    await compact(log, key, Policy(-1, -1, compacts=True, delete_retention_ms=9, min_dirty_ratio=0))
    [run] = log.catalog.runs(key, 0)
    footer = read_footer(log.objects, run.object)
    data = log.storage.read(run.object, run.byte_offset, run.byte_size)
    [batch] = batches_of(footer, run.object, data)
    assert batch.header.base_timestamp == written_ms + 5009, "KIP-534: the delete horizon"
    times = [
        batch.header.base_timestamp + r.timestamp_delta
        for r in open_records(batch.header, batch.data)
    ]
    assert times == [written_ms, written_ms]
    assert run.max_timestamp == written_ms
