"""Reading: from memory, from WAL files and from segments, whole, patched and verified."""

import asyncio
import gc
import logging
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from catchwater.broker_config import LogConfig
from catchwater.catalog.errors import CatalogUnavailable
from catchwater.catalog.rows import (
    ObjectRow,
    PartitionKey,
    RunRow,
)
from catchwater.log.keep.pack import Packer
from catchwater.log.read.history import PIECE_BYTES, PLAN_RANGE_BYTES
from catchwater.log.read.reader import Batches, PlanRange, Reader, Tail, Unreadable
from catchwater.log.storage import Storage
from catchwater.objects.base import StoreError
from catchwater.objects.memory import MemoryStore
from catchwater.objects.retry import RetryingStore
from catchwater.objects.urls import read_range
from catchwater.wal.object import ObjectWal
from catchwater.wire.batch import split
from catchwater.wire.errors import ErrorCode

MakeBatch = Callable[..., bytes]
OpenLog = Callable[..., Any]
ALL = 1 << 30


def reader_of(log: Any, tail_bytes: int = 1 << 20, lagging_bytes: int = 1 << 20) -> Reader:
    return Reader(log.catalog, log.storage, tail_bytes=tail_bytes, lagging_bytes=lagging_bytes)


def append(log: Any, reader: Reader, *batches: tuple[PartitionKey, bytes]) -> None:
    position, runs, payload = log.append(*batches)
    reader.appended(runs, position.offset, bytearray(payload))


def pack(log: Any) -> int:
    return Packer(log.catalog, log.storage, log.clock, LogConfig(), log.topic_name).pack()


def offsets(found: Batches) -> list[tuple[int, int]]:
    assert found.error == ErrorCode.NONE
    data = b"".join(found.parts)
    assert len(data) == found.size_bytes
    return [(header.base_offset, header.last_offset) for header, _ in split(memoryview(data))]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


async def read(reader: Reader, key: PartitionKey, offset: int, max_bytes: int = ALL) -> Batches:
    return await reader.read(key, offset, ALL, max_bytes, at_least_one=True)


@pytest.mark.parametrize("place", ["tail", "wal", "segment"])
async def test_any_offset_is_read_from_the_batch_that_holds_it(
    open_log: OpenLog, make_batch: MakeBatch, place: str
) -> None:
    log = open_log()
    key, other = log.create_topic("t", 2)
    reader = reader_of(log, tail_bytes=1 << 20 if place == "tail" else 0)
    batches: list[bytes] = []
    for round_ in range(5):
        mine = [make_batch([b"%d" % round_] * count) for count in (1, 2, 3)]
        noise = make_batch([b"noise"])
        append(log, reader, (other, noise), *((key, batch) for batch in mine))
        batches += mine
    if place == "segment":
        assert pack(log) == 2
    for offset in range(30):
        found = await read(reader, key, offset)
        places = offsets(found)
        assert places[0][0] <= offset <= places[0][1]
        assert places[-1][1] == 29
        served = [bytes(batch) for _, batch in split(memoryview(b"".join(found.parts)))]
        assert [batch[16:] for batch in served] == [batch[16:] for batch in batches[-len(places) :]]
        assert all(struct.unpack_from(">qii", batch)[2] == 0 for batch in served)
    await reader.close()


@pytest.mark.parametrize("tail_bytes", [0, 1 << 20])
async def test_a_read_keeps_to_its_bytes_but_gives_at_least_one_batch(
    open_log: OpenLog, make_batch: MakeBatch, tail_bytes: int
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log, tail_bytes)
    batch = make_batch([b"x" * 100])
    for _ in range(4):
        append(log, reader, (key, batch), (key, batch))
    size = len(batch)
    for max_bytes, count in [(0, 1), (size, 1), (2 * size - 1, 1), (2 * size, 2), (5 * size, 5)]:
        assert len(offsets(await read(reader, key, 0, max_bytes))) == count
    nothing = await reader.read(key, 0, ALL, size - 1, at_least_one=False)
    assert (nothing.parts, nothing.error) == ([], ErrorCode.NONE)
    await reader.close()


async def test_a_read_of_many_small_chunks_ends_before_somebody_waits_too_long(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log, tail_bytes=0)
    for _ in range(40):
        append(log, reader, (key, make_batch([b"x"])))
    reads = [len(offsets(await read(reader, key, 0))) for _ in range(2)]
    assert reads == [32, 40], "what was read before costs nothing"
    await reader.close()


async def test_the_tail_is_bounded_and_what_falls_out_is_read_from_storage(
    open_log: OpenLog, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    batch = make_batch([b"x" * 1000])
    reader = reader_of(log, tail_bytes=5 * (len(batch) + 1000))
    for _ in range(50):
        append(log, reader, (key, batch))
    assert offsets(await read(reader, key, 0))[0] == (0, 0)
    monkeypatch.setattr(log.storage, "read", None)  # the tail needs no storage
    assert offsets(await read(reader, key, 46)) == [(i, i) for i in range(46, 50)]
    await reader.close()


async def test_what_the_tail_keeps_is_nothing_to_look_through_for_the_garbage_collector(
    make_batch: MakeBatch,
) -> None:
    batch = make_batch([b"x"])
    tail, at, runs = Tail(1 << 20), range(1000), []
    for partition in at:
        place = "wal/1", partition * len(batch), len(batch)
        runs.append(RunRow(b"t" * 16, partition, 0, 0, *place, max_timestamp=0, record_count=1))
    gc.collect()
    before = len(gc.get_objects())
    tail.add(runs, 0, bytearray(batch * len(at)))
    for partition in at:
        assert [len(block.data) for block in tail.blocks((b"t" * 16, partition), 0) or ()]
    gc.collect()
    # A queue for each partition; the chunk and its view.
    assert len(gc.get_objects()) - before < len(at) + 20


async def test_a_tail_with_a_hole_leaves_the_hole_to_storage(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log)
    batch = make_batch([b"x"])
    append(log, reader, (key, batch))
    log.append((key, batch))  # as an epoch of a sink: in the log, never in the tail
    append(log, reader, (key, batch))
    assert offsets(await read(reader, key, 0)) == [(0, 0)]
    assert offsets(await read(reader, key, 1)) == [(1, 1), (2, 2)]
    await reader.close()


async def test_a_large_run_of_a_chunk_is_read_from_any_offset(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log(wal_bytes=1 << 26)
    [key] = log.create_topic("t")
    reader = reader_of(log, tail_bytes=0)
    batch = make_batch([b"x" * 50_000] * 2, [1, 2])
    log.append(*[(key, batch)] * 30)
    for offset in range(0, 60, 7):
        found = offsets(await read(reader, key, offset, 3 * len(batch)))
        assert found[0] == (offset // 2 * 2, offset // 2 * 2 + 1)
    assert len(await reader.plan(key, 0, 60)) == 1
    assert await reader.offset_for_timestamp(key, 2) == (1, 2)
    await reader.close()


async def test_a_large_segment_is_read_piece_by_piece(
    open_log: OpenLog, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(wal_bytes=1 << 26)
    [key] = log.create_topic("t")
    reader = reader_of(log, tail_bytes=0, lagging_bytes=4 * PIECE_BYTES)
    batch = make_batch([b"x" * 100_000])
    log.append(*[(key, batch)] * 50)
    pack(log)
    reads = []
    original = log.objects.get_range

    def traced(object_key: str, offset: int, size: int) -> bytes:
        reads.append(size)
        return bytes(original(object_key, offset, size))

    monkeypatch.setattr(log.objects, "get_range", traced)
    for offset in (25, 26, 27):
        assert offsets(await read(reader, key, offset, 3 * len(batch)))[0] == (offset, offset)
    assert sum(reads) < 64 * 1024 + 2 * PIECE_BYTES, "footer and a piece or two, once"
    await reader.close()


@pytest.mark.parametrize("packed", [False, True])
async def test_damage_is_an_error_for_its_offsets_only_and_names_the_bytes(
    open_log: OpenLog, make_batch: MakeBatch, packed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    bad, good = log.create_topic("t", 2)
    reader = reader_of(log, tail_bytes=0)
    batches = [make_batch([b"%03d" % i * 40]) for i in range(100)]
    log.append(*((bad, batch) for batch in batches), (good, batches[0]))
    if packed:
        pack(log)
    run = log.catalog.runs(bad, 0)[0]
    at = run.byte_offset + 10 * len(batches[0])
    folder = log.root / "objects" if packed else log.root
    flip(folder / run.object, at + 70)
    with caplog.at_level(logging.ERROR):
        found = await read(reader, bad, 0)
    assert found.error == ErrorCode.CORRUPT_MESSAGE
    last = at + len(batches[0]) - 1
    assert f"{run.object} is damaged in bytes {at} to {last}" in caplog.text
    assert offsets(await read(reader, good, 0)) == [(0, 0)]
    await reader.close()


async def test_a_segment_in_the_place_of_another_is_damage(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    one, two = log.create_topic("t", 2)
    reader = reader_of(log, tail_bytes=0)
    log.append((one, make_batch([b"one"])), (two, make_batch([b"two"])))
    pack(log)
    mine, other = log.catalog.runs(one, 0)[0], log.catalog.runs(two, 0)[0]
    log.objects.put(mine.object, [log.objects.get(other.object)])
    assert (await read(reader, one, 0)).error == ErrorCode.CORRUPT_MESSAGE
    assert offsets(await read(reader, two, 0)) == [(0, 0)]
    await reader.close()


async def test_a_run_that_holds_less_than_the_catalog_says_is_damage(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log, tail_bytes=0)
    _, [run], _ = log.append((key, make_batch([b"x"] * 3)))
    longer = [run._replace(last_offset=9)]
    log.catalog.replace_runs([run], longer, []).result()
    assert (await read(reader, key, 0)).error == ErrorCode.CORRUPT_MESSAGE
    await reader.close()


async def test_what_lies_before_a_damaged_run_is_served(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log, tail_bytes=0)
    for _ in range(3):
        log.append((key, make_batch([b"x" * 100])))
    run = log.catalog.runs(key, 1)[0]
    flip(log.root / run.object, run.byte_offset + 90)
    assert offsets(await read(reader, key, 0)) == [(0, 0)]
    assert (await read(reader, key, 1)).error == ErrorCode.CORRUPT_MESSAGE
    assert offsets(await read(reader, key, 2)) == [(2, 2)]
    await reader.close()


async def test_a_lost_object_is_named_with_its_bytes(
    open_log: OpenLog, make_batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log, tail_bytes=0)
    log.append((key, make_batch([b"x"])))
    pack(log)
    run = log.catalog.runs(key, 0)[0]
    log.objects.delete(run.object)
    with caplog.at_level(logging.ERROR):
        assert (await read(reader, key, 0)).error == ErrorCode.CORRUPT_MESSAGE
    last = run.byte_offset + run.byte_size - 1
    assert f"{run.object} is damaged in bytes {run.byte_offset} to {last}" in caplog.text
    with pytest.raises(Unreadable) as unreadable:
        await reader.plan(key, 0, 1)
    assert unreadable.value.code == ErrorCode.CORRUPT_MESSAGE
    await reader.close()


@pytest.mark.parametrize("error", [StoreError, CatalogUnavailable])
async def test_a_store_that_does_not_answer_is_a_storage_error(
    open_log: OpenLog,
    make_batch: MakeBatch,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log, tail_bytes=0)
    log.append((key, make_batch([b"x"])))

    def fail(*_: object) -> bytes:
        raise error("It does not answer.")

    monkeypatch.setattr(log.storage, "read", fail)
    assert (await read(reader, key, 0)).error == ErrorCode.KAFKA_STORAGE_ERROR
    await reader.close()


async def test_a_time_that_leads_to_damage_is_an_error_with_a_code(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log)
    log.append((key, make_batch([b"x" * 100], [10])))
    run = log.catalog.runs(key, 0)[0]
    flip(log.root / run.object, run.byte_offset + 90)
    with pytest.raises(Unreadable, match="is damaged in bytes") as unreadable:
        await reader.offset_for_timestamp(key, 10)
    assert unreadable.value.code == ErrorCode.CORRUPT_MESSAGE
    assert await reader.offset_for_timestamp(key, 11) is None
    await reader.close()


async def test_a_run_packed_away_between_look_up_and_read_is_looked_up_again(
    open_log: OpenLog, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log(wal_bytes=1)
    [key] = log.create_topic("t")
    reader = reader_of(log, tail_bytes=0)
    for _ in range(2):
        log.append((key, make_batch([b"x"])))
    stale = log.catalog.runs(key, 0)
    pack(log)
    log.wal.remove(stale[0].object)
    answers = [stale]
    fresh = log.catalog.runs
    monkeypatch.setattr(
        log.catalog, "runs", lambda *a, **k: answers.pop() if answers else fresh(*a, **k)
    )
    assert offsets(await read(reader, key, 0)) == [(0, 0), (1, 1)]
    assert not answers
    await reader.close()


async def test_an_offset_that_retention_took_is_out_of_range(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log, tail_bytes=0)
    assert (await read(reader, key, 0)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    await reader.close()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("codec", [0, 4])
async def test_a_time_leads_to_the_first_record_that_is_not_older(
    open_log: OpenLog, make_batch: MakeBatch, packed: bool, codec: int
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log)
    times = [10, 50, 20, 30, 70, 60, 60, 90, 80, 100]
    for i in range(0, 10, 2):
        append(log, reader, (key, make_batch([b"v" * 50] * 2, times[i : i + 2], codec)))
    if packed:
        pack(log)
    for wanted in range(0, 110, 5):
        index = next((i for i, time in enumerate(times) if time >= wanted), None)
        expected = None if index is None else (index, times[index])
        assert await reader.offset_for_timestamp(key, wanted) == expected
    await reader.close()


@pytest.mark.parametrize("packed", [False, True])
async def test_the_newest_record_is_the_first_with_the_largest_time(
    open_log: OpenLog, make_batch: MakeBatch, packed: bool
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log)
    assert await reader.newest(key) is None
    now_ms, times = 1_700_000_000_000, []
    for later_ms in (-5, -3, -4, 7, 0, 900_000, 2, 900_000):
        times += [now_ms + later_ms, now_ms + later_ms - 1]
        append(log, reader, (key, make_batch([b"v"] * 2, times[-2:], 4)))
        if packed:
            pack(log)
        assert await reader.newest(key) == (times.index(max(times)), max(times))
    log.catalog.trim({key: 12}).result()
    wanted = 10 if packed else 14  # the run that holds the first of the two is gone, if it ended
    assert await reader.newest(key) == (wanted, now_ms + 900_000)
    await reader.close()


async def test_a_plan_covers_what_was_asked_and_at_most_a_piece_more_at_either_end(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log(wal_bytes=1 << 26)
    [key] = log.create_topic("t")
    reader = reader_of(log)
    batch = make_batch([b"x" * 100_000] * 2, [5, 3])
    log.append(*[(key, batch)] * 200)
    pack(log)
    append(log, reader, (key, batch), (key, batch))
    records_a_piece = 2 * (PIECE_BYTES // len(batch))
    for start, end in [(0, 404), (0, 1), (7, 8), (100, 301), (399, 402), (403, 404)]:
        found = covered(await reader.plan(key, start, end))
        assert found == list(range(found[0], found[-1] + 1))
        assert start - records_a_piece < found[0] <= start
        assert end - 1 <= found[-1] < end + records_a_piece
    whole = await reader.plan(key, 0, 404)
    assert whole[-1].kind == "chunk"
    assert max(planned.byte_size for planned in whole) <= PLAN_RANGE_BYTES
    assert len(whole) >= 5, "one large segment is cut so that several tasks can share it"
    assert await reader.plan(key, 5, 5) == await reader.plan(key, 404, 500) == []
    await reader.close()


def covered(ranges: Sequence[PlanRange]) -> list[int]:
    """The offsets found by reading the planned ranges as a task does."""
    found: list[int] = []
    for planned in ranges:
        view = read_range(planned.url, planned.byte_offset, planned.byte_size)
        offset = planned.base_offset
        for header, _ in split(view):
            assert planned.kind == "chunk" or header.base_offset == offset
            assert header.max_timestamp <= planned.max_timestamp
            found += range(offset, offset + header.record_count)
            offset += header.record_count
        assert offset == planned.last_offset + 1
    return found


async def test_a_plan_ends_before_a_hole(open_log: OpenLog, make_batch: MakeBatch) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    reader = reader_of(log)
    for _ in range(3):
        append(log, reader, (key, make_batch([b"x"])))
    middle = log.catalog.runs(key, 1, limit=1)
    log.catalog.replace_runs(middle, [], [ObjectRow("x", "chunk", "live", 0, 0)]).result()
    assert [planned.last_offset for planned in await reader.plan(key, 0, 3)] == [0]
    await reader.close()


@pytest.mark.parametrize("is_packed", [False, True])
async def test_a_chunk_object_is_read_once_for_all_its_partitions(
    open_log: OpenLog, make_batch: MakeBatch, is_packed: bool
) -> None:
    log = open_log()
    store = RetryingStore(MemoryStore(log.clock), log.clock)
    log.wal = ObjectWal(store, log.clock, prefix="1-1/")
    log.storage = Storage(log.wal, log.objects)
    keys = log.create_topic("t", 50)
    for _ in range(3):
        log.append(*((key, make_batch([b"x"] * 4)) for key in keys))
    if is_packed:
        assert pack(log) == 50
    else:
        reader = reader_of(log, lagging_bytes=0)
        for found in await asyncio.gather(*(read(reader, key, 0) for key in keys)):
            assert offsets(found) == [(0, 3), (4, 7), (8, 11)]
    assert store.requests.snapshot() == {("put_if_absent", "ok"): 3, ("get_range", "ok"): 3}


async def test_damage_in_a_chunk_object_is_an_error_for_its_offsets_only(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    store = MemoryStore(log.clock)
    log.wal = ObjectWal(store, log.clock, prefix="1-1/")
    log.storage = Storage(log.wal, log.objects)
    bad, good = log.create_topic("t", 2)
    log.append((bad, make_batch([b"bad"])), (good, make_batch([b"good"])))
    run = log.catalog.runs(bad, 0)[0]
    data = bytearray(store.get(run.object))
    data[run.byte_offset + 30] ^= 1
    store.put(run.object, [data])
    reader = reader_of(log)
    for _ in range(2):
        assert offsets(await read(reader, good, 0)) == [(0, 0)]
        assert (await read(reader, bad, 0)).error == ErrorCode.CORRUPT_MESSAGE
