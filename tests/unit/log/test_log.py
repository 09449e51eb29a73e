"""The log as a whole: what was acknowledged is there after every crash, and nothing else is."""

import asyncio
import errno
import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.log.shared import World, crashed, everything

from catchwater.broker_config import LogConfig
from catchwater.catalog.errors import EpochGap, TopicExists, TopicUnknown
from catchwater.catalog.rows import (
    OffsetCommit,
    PartitionKey,
    Pin,
)
from catchwater.catalog.sqlite import SqliteCatalog
from catchwater.clock import ManualClock
from catchwater.log.core import RangeMissing
from catchwater.log.format import chunk
from catchwater.log.log import Log
from catchwater.log.storage import StagedDamaged
from catchwater.log.write.writer import Appended, Submission
from catchwater.objects.base import StoreFull
from catchwater.wal.base import WalCorrupt
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header
from catchwater.wire.errors import ErrorCode

QUIET = LogConfig(background=False, catalog_lag_ms=3_600_000)
Open = Callable[..., Awaitable[Log]]


@pytest.fixture
async def open_log(tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[Log] = []

    async def open_one(root: Path = tmp_path, config: LogConfig = QUIET) -> Log:
        opened.append(await Log.open(root, config, ManualClock()))
        return opened[-1]

    yield open_one
    for log in opened:
        if log in opened and not log._core.writer._closing:
            await log.close()


@pytest.fixture(params=["alone", "among others"])
async def any_log(request: pytest.FixtureRequest, open_log: Open) -> AsyncIterator[Log]:
    """A log in each of the two modes, where they behave alike."""
    if request.param == "alone":
        yield await open_log()
        return
    world = World()
    await world.log(2)
    yield await world.log(1)
    await world.close()


def batch(
    count: int = 1, *, value: bytes = b"v", producer: tuple[int, int, int] | None = None
) -> bytes:
    records = [(None, value + b"%d" % n, 1000 + n, ()) for n in range(count)]
    pid, epoch, base = producer or (-1, -1, -1)
    return encode_batch(records, producer_id=pid, producer_epoch=epoch, base_sequence=base)


def submission(key: PartitionKey, data: bytes) -> Submission:
    view = memoryview(data)
    return Submission(key, read_header(view), view)


async def append(log: Log, key: PartitionKey, data: bytes) -> Appended:
    (answer,) = await log.submit([submission(key, data)])
    return answer


def applied_sequence(root: Path) -> int:
    """The last WAL frame that the catalog of a data directory holds."""
    catalog = SqliteCatalog(root / "catalog.db", new_cluster_id=lambda: "", lag_s=1.0)
    try:
        return catalog.load().applied_sequence
    finally:
        catalog.close()


# --- crashes (F1, F4, F20) -----------------------------------------------------------------------


async def test_cut_at_any_frame_and_many_bytes_what_was_acknowledged_by_then_has_its_offset(
    open_log: Open, tmp_path: Path
) -> None:
    root = tmp_path / "live"
    log = await open_log(root)
    topic = await log.create_topic("t", 2)
    keys = [(topic.id, 0), (topic.id, 1)]
    acknowledged: list[tuple[int, PartitionKey, int, bytes]] = []
    (wal,) = [root / "wal" / f"{1:020d}.wal"]
    for n in range(8):
        key, data = keys[n % 2], batch(n % 3 + 1, value=b"%d" % n)
        answer = await append(log, key, data)
        acknowledged.append((wal.stat().st_size, key, answer.base_offset, data[16:]))
    left = crashed(root, tmp_path / "left")
    whole = wal.read_bytes()
    ends = {size + near for size, *_ in acknowledged for near in (-9, -8, -7, -1, 0)}
    # Every byte is cut in test_append.py, where a cut costs a thousandth of a second.
    for cut in sorted({*ends, *random.Random(5).sample(range(len(whole)), 30)}):
        root = crashed(left, tmp_path / "cut")
        (root / "wal" / wal.name).write_bytes(whole[:cut])
        again = await open_log(root)
        wanted: dict[PartitionKey, list[tuple[int, bytes]]] = {key: [] for key in keys}
        for size, key, offset, data in acknowledged:
            # The padding behind a frame's payload may be missing.
            if size - 7 <= cut and (size <= cut or _reaches(again, key, offset)):
                wanted[key].append((offset, data))
        assert {key: await everything(again, key) for key in keys} == wanted
        await again.close()


def _reaches(log: Log, key: PartitionKey, offset: int) -> bool:
    return log.state(key).high_watermark > offset


async def test_whatever_the_catalog_had_applied_the_replay_ends_in_the_same_state(
    open_log: Open, tmp_path: Path
) -> None:
    rng = random.Random(3)
    root = tmp_path / "live"
    log = await open_log(root)
    topic = await log.create_topic("t", 3)
    sequences = dict.fromkeys([(p, k) for p in range(3) for k in range(3)], 0)
    catalogs = []
    for n in range(30):
        submissions = []
        for _ in range(rng.randrange(1, 4)):
            place = (rng.randrange(3), rng.randrange(3))
            count = rng.randrange(1, 4)
            base = sequences[place] if rng.random() < 0.8 else rng.randrange(5)
            if base == sequences[place]:
                sequences[place] += count
            data = batch(count, producer=(place[1] + 1, 0, base))
            submissions.append(submission((topic.id, place[0]), data))
        await log.submit(submissions)
        if n % 7 == 3:
            await log.commit_offsets("g", {("t", 0): OffsetCommit(n)})
        if n % 5 == 0:
            catalogs.append(crashed(root, tmp_path / f"catalog-{n}"))
    final = crashed(root, tmp_path / "final")
    expected = {key: log.state(key) for key in [(topic.id, p) for p in range(3)]}
    records = {key: await everything(log, key) for key in expected}
    for number, catalog in enumerate(catalogs):
        mixed = crashed(final, tmp_path / f"mixed-{number}")
        for file in mixed.glob("catalog.*"):
            file.unlink()
        for file in catalog.glob("catalog.*"):
            shutil.copy(file, mixed)
        again = await open_log(mixed)
        assert {key: again.state(key) for key in expected} == expected
        assert {key: await everything(again, key) for key in expected} == records
        await again.close()


async def test_a_producers_retry_after_a_crash_is_answered_with_the_first_offset(
    open_log: Open, tmp_path: Path
) -> None:
    log = await open_log(tmp_path / "live")
    topic = await log.create_topic("t", 1)
    key = (topic.id, 0)
    for n in range(3):
        await append(log, key, batch(2, producer=(5, 1, n * 2)))
    again = await open_log(crashed(tmp_path / "live", tmp_path / "again"))
    assert (await append(again, key, batch(2, producer=(5, 1, 2)))).base_offset == 2
    late = await append(again, key, batch(2, producer=(5, 0, 6)))
    assert late.error == ErrorCode.INVALID_PRODUCER_EPOCH
    gap = await append(again, key, batch(2, producer=(5, 1, 8)))
    assert gap.error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await append(again, key, batch(2, producer=(5, 1, 6)))).base_offset == 6
    assert len(await everything(again, key)) == 4


async def test_a_commit_is_durable_when_it_returns_and_takes_the_chunks_before_it_along(
    open_log: Open, tmp_path: Path
) -> None:
    log = await open_log(tmp_path / "live")
    topic = await log.create_topic("t", 1)
    await append(log, (topic.id, 0), batch(3))
    await log.commit_offsets("g", {("t", 0): OffsetCommit(3, metadata="m")})
    producer_id = await log.allocate_producer_id()
    left = crashed(tmp_path / "live", tmp_path / "left")
    assert applied_sequence(left) == 1
    again = await open_log(left)
    assert await again.committed("g") == {("t", 0): OffsetCommit(3, metadata="m")}
    assert await again.committed("g", [("t", 1)]) == {}
    assert await again.allocate_producer_id() > producer_id


async def test_a_clean_close_leaves_nothing_to_replay(open_log: Open, tmp_path: Path) -> None:
    log = await open_log()
    topic = await log.create_topic("t", 1)
    for _ in range(5):
        await append(log, (topic.id, 0), batch())
    await log.close()
    assert applied_sequence(tmp_path) == 5
    again = await open_log()
    assert again.state((topic.id, 0)).high_watermark == 5


async def test_batches_for_a_deleted_topic_stay_deleted_after_a_crash(
    open_log: Open, tmp_path: Path
) -> None:
    log = await open_log(tmp_path / "live")
    old = await log.create_topic("t", 1)
    await append(log, (old.id, 0), batch())
    await log.commit_offsets("g", {("t", 0): OffsetCommit(1)})
    await log.delete_topic("t")
    refused = await append(log, (old.id, 0), batch())
    assert refused.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    new = await log.create_topic("t", 1)
    assert (await append(log, (new.id, 0), batch())).base_offset == 0
    again = await open_log(crashed(tmp_path / "live", tmp_path / "left"))
    assert [topic.id for topic in again.topics] == [new.id]
    assert again.state((new.id, 0)).high_watermark == 1
    assert await again.committed("g") == {}
    gone = await again.read((old.id, 0), 0, 100, at_least_one=True)
    assert gone.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    with pytest.raises(TopicUnknown):
        await again.delete_topic("other")
    with pytest.raises(TopicExists):
        await again.create_topic("t", 1)


# --- damage (F5) ---------------------------------------------------------------------------------


async def damaged(open_log: Open, root: Path, *, applied: bool) -> tuple[PartitionKey, Path]:
    """Ten appends; a bit of the fourth's batch is flipped after a clean end or after a crash."""
    log = await open_log(root)
    topic = await log.create_topic("t", 1)
    positions = []
    for n in range(10):
        await append(log, (topic.id, 0), batch(value=b"payload %d" % n))
        positions.append((root / "wal" / f"{1:020d}.wal").stat().st_size)
    left = crashed(root, root.parent / "left")
    await log.close()
    if applied:
        left = root
    path = left / "wal" / f"{1:020d}.wal"
    data = bytearray(path.read_bytes())
    data[positions[3] - 20] ^= 4
    path.write_bytes(data)
    return (topic.id, 0), left


async def test_damage_in_the_middle_that_is_not_applied_refuses_to_open(
    open_log: Open, tmp_path: Path
) -> None:
    _, left = await damaged(open_log, tmp_path / "live", applied=False)
    with pytest.raises(WalCorrupt, match=r"wal/0+1\.wal is damaged in bytes \d+ to \d+"):
        await open_log(left)


async def test_damage_that_was_applied_is_answered_and_all_else_is_served(
    open_log: Open, tmp_path: Path
) -> None:
    key, root = await damaged(open_log, tmp_path / "live", applied=True)
    log = await open_log(root)
    for offset in (0, 1, 2, 4, 5, 6, 7, 8, 9):
        read = await log.read(key, offset, 1, at_least_one=True)
        assert read.error == ErrorCode.NONE
    read = await log.read(key, 3, 1, at_least_one=True)
    assert read.error == ErrorCode.CORRUPT_MESSAGE
    assert (await append(log, key, batch())).base_offset == 10


# --- a full disk and a failing one (F6, F7) ------------------------------------------------------


async def test_on_a_full_disk_reads_go_on_and_appends_come_back_with_space(
    open_log: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log()
    topic = await log.create_topic("t", 1)
    key = (topic.id, 0)
    await append(log, key, batch())
    real = os.pwritev

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwritev", full)
    assert (await append(log, key, batch())).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert len(await everything(log, key)) == 1
    monkeypatch.setattr(os, "pwritev", real)
    assert (await append(log, key, batch())).base_offset == 1


async def test_after_a_failed_sync_a_restart_shows_all_that_was_acknowledged(
    open_log: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await open_log(tmp_path / "live")
    topic = await log.create_topic("t", 1)
    key = (topic.id, 0)
    await append(log, key, batch())

    def failing(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", failing)
        assert not log.has_failed
        assert (await append(log, key, batch())).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.has_failed
    assert (await append(log, key, batch())).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.state(key).high_watermark == 1
    again = await open_log(crashed(tmp_path / "live", tmp_path / "left"))
    assert len(await everything(again, key)) >= 1


# --- sink epochs (F29) ---------------------------------------------------------------------------


def stage(log: Log, key: str, batches: Sequence[tuple[PartitionKey, bytes]]) -> str:
    entries = [(place, read_header(memoryview(data)), data) for place, data in batches]
    parts, _ = chunk.encode(entries, 1000)
    log.objects.put(key, parts)
    return key


async def test_an_epoch_is_appended_once_however_often_it_is_committed(
    open_log: Open, tmp_path: Path
) -> None:
    log = await open_log(tmp_path / "live")
    topic = await log.create_topic("alerts", 2)
    zero, one = (topic.id, 0), (topic.id, 1)
    await append(log, zero, batch(2, value=b"before"))
    first = stage(log, "staged/p/s/a.chunk", [(zero, batch(3)), (one, batch(1))])
    second = stage(log, "staged/p/s/b.chunk", [(zero, batch(2))])
    commit = await log.epochs.commit("p", "s", 0, "alerts", [first, second], "sum")
    assert not commit.already
    assert commit.records == 6
    assert commit.offsets == {0: (2, 6), 1: (0, 0)}
    assert (await append(log, zero, batch(value=b"after"))).base_offset == 7
    other = stage(log, "staged/p/s/c.chunk", [(zero, batch(9))])
    again = await log.epochs.commit("p", "s", 0, "alerts", [other], "sum")
    assert again == replace(commit, already=True)
    assert await log.epochs.last("p", "s") == again
    offsets = [offset for offset, _ in await everything(log, zero)]
    assert offsets == [0, 2, 5, 7]
    restarted = await open_log(crashed(tmp_path / "live", tmp_path / "left"))
    assert await everything(restarted, zero) == await everything(log, zero)
    assert await restarted.epochs.last("p", "s") == again
    assert (await restarted.epochs.commit("p", "s", 0, "alerts", [other], "")).already


async def test_epochs_committed_at_once_are_appended_once(any_log: Log) -> None:
    log = any_log
    topic = await log.create_topic("alerts", 1)
    key = (topic.id, 0)
    staged = [stage(log, f"staged/p/s/{n}.chunk", [(key, batch(2))]) for n in range(4)]
    commits = await asyncio.gather(
        *(log.epochs.commit("p", "s", 5, "alerts", [name], "") for name in staged)
    )
    assert [commit.already for commit in commits].count(False) == 1
    assert log.state(key).high_watermark == 2


async def test_a_caller_who_goes_away_leaves_a_whole_epoch(any_log: Log) -> None:
    log = any_log
    topic = await log.create_topic("alerts", 1)
    staged = stage(log, "staged/p/s/a.chunk", [((topic.id, 0), batch(2))])
    commit = asyncio.ensure_future(log.epochs.commit("p", "s", 0, "alerts", [staged], ""))
    while not log._core.writer.working:
        await asyncio.sleep(0)
    commit.cancel()
    again = await log.epochs.commit("p", "s", 0, "alerts", [staged], "")
    assert again.already
    assert log.state((topic.id, 0)).high_watermark == 2


async def test_an_epoch_out_of_turn_changes_nothing(any_log: Log) -> None:
    log = any_log
    topic = await log.create_topic("alerts", 1)
    key = (topic.id, 0)
    staged = [stage(log, f"staged/p/s/{n}.chunk", [(key, batch())]) for n in range(3)]
    await log.epochs.commit("p", "s", 4, "alerts", staged[:1], "")
    for wrong in (3, 6):
        with pytest.raises(EpochGap, match=f"epoch {wrong} does not follow"):
            await log.epochs.commit("p", "s", wrong, "alerts", staged[1:2], "")
    assert log.state(key).high_watermark == 1
    empty = await log.epochs.commit("p", "s", 5, "alerts", [], "")
    assert (empty.records, empty.offsets) == (0, {})
    assert (await log.epochs.commit("p", "s", 6, "alerts", staged[1:2], "")).offsets == {0: (1, 1)}


async def test_a_staged_chunk_that_is_not_whole_is_refused(any_log: Log) -> None:
    log = any_log
    topic = await log.create_topic("alerts", 1)
    key = (topic.id, 0)
    name = stage(log, "staged/p/s/a.chunk", [(key, batch(3))])
    whole = log.objects.get(name)
    epoch_at = chunk.HEADER_BYTES + chunk.ENTRY_BYTES + 12
    rng = random.Random(1)
    for _ in range(600):
        data = bytearray(whole)
        at = rng.randrange(len(data))
        if epoch_at <= at < epoch_at + 4:
            continue  # the batch's leader epoch, which nobody reads and every reader overwrites
        data[at] ^= 1 << rng.randrange(8)
        log.objects.put(name, [data])
        with pytest.raises(StagedDamaged, match=name):
            await log.epochs.commit("p", "s", 0, "alerts", [name], "")
    for cut in (0, 31, len(whole) // 2, len(whole) - 1):
        log.objects.put(name, [whole[:cut]])
        with pytest.raises(StagedDamaged, match=name):
            await log.epochs.commit("p", "s", 0, "alerts", [name], "")
    elsewhere = stage(log, "staged/p/s/b.chunk", [((topic.id, 1), batch())])
    produced = stage(log, "staged/p/s/c.chunk", [(key, batch(producer=(1, 0, 0)))])
    for bad in (["staged/none"], ["segments/x"], [elsewhere], [produced], [name, name]):
        with pytest.raises(StagedDamaged):
            await log.epochs.commit("p", "s", 0, "alerts", bad, "")
    with pytest.raises(TopicUnknown):
        await log.epochs.commit("p", "s", 0, "other", [], "")
    assert log.state(key).high_watermark == 0
    log.objects.put(name, [whole])
    await log.epochs.commit("p", "s", 0, "alerts", [name], "")
    with pytest.raises(StagedDamaged, match="belongs to the log already"):
        await log.epochs.commit("p", "s", 1, "alerts", [name], "")


# --- reading, plans, pins, retention -------------------------------------------------------------


async def test_reading_knows_its_bounds(any_log: Log) -> None:
    log = any_log
    topic = await log.create_topic("t", 1)
    key = (topic.id, 0)
    await append(log, key, batch(3))
    end = await log.read(key, 3, 100, at_least_one=True)
    assert (end.error, end.size_bytes, end.high_watermark) == (ErrorCode.NONE, 0, 3)
    for outside in (-1, 4):
        read = await log.read(key, outside, 100, at_least_one=True)
        assert read.error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert await log.offset_for_timestamp(key, 1001) == (1, 1001)
    waiter = log.wait_for([key])
    await append(log, key, batch())
    await waiter


async def test_offsets_that_no_run_holds_are_told_as_lost_not_as_out_of_range(
    open_log: Open,
) -> None:
    log = await open_log(config=replace(QUIET, cache_bytes=1))
    topic = await log.create_topic("t", 1)
    key = (topic.id, 0)
    for _ in range(3):
        await append(log, key, batch(5))
    catalog = log._core.catalog
    await asyncio.wrap_future(catalog.flush())
    (lost,) = [run for run in catalog.runs(key, 0) if run.base_offset == 5]
    await asyncio.wrap_future(catalog.replace_runs([lost], [], []))
    read = await log.read(key, 7, 100, at_least_one=True)
    assert read.error == ErrorCode.CORRUPT_MESSAGE
    read = await log.read(key, 10, 100, at_least_one=True)
    assert read.error == ErrorCode.NONE


async def test_a_plan_names_every_offset_it_cannot_give(any_log: Log) -> None:
    log = any_log
    topic = await log.create_topic("t", 2)
    key = (topic.id, 0)
    for _ in range(4):
        await append(log, key, batch(5))
    (whole, *rest) = await log.planner.plan("t", [(0, 0, 20)])
    assert whole.base_offset == 0 and (rest or [whole])[-1].last_offset == 19
    assert await log.planner.plan("t", [(0, 7, 7)]) == []
    await log._core.trim({key: 10})
    with pytest.raises(RangeMissing) as refusal:
        await log.planner.plan("t", [(0, 3, 25), (1, 0, 2)])
    assert refusal.value.missing == [(0, 3, 10), (0, 20, 25), (1, 0, 2)]
    assert "3 to 9 of partition 0" in str(refusal.value)
    with pytest.raises(TopicUnknown):
        await log.planner.plan("other", [])


async def test_a_plan_names_a_hole_in_the_middle_and_no_more(open_log: Open) -> None:
    log = await open_log()
    topic = await log.create_topic("t", 1)
    key = (topic.id, 0)
    for _ in range(5):
        await append(log, key, batch(5))
    catalog = log._core.catalog
    await asyncio.wrap_future(catalog.flush())
    lost = [run for run in catalog.runs(key, 0) if run.base_offset in (5, 15)]
    await asyncio.wrap_future(catalog.replace_runs(lost[:1], [], []))
    await asyncio.wrap_future(catalog.replace_runs(lost[1:], [], []))
    with pytest.raises(RangeMissing) as refusal:
        await log.planner.plan("t", [(0, 2, 24)])
    assert refusal.value.missing == [(0, 5, 10), (0, 15, 20)]
    with pytest.raises(RangeMissing) as refusal:
        await log.planner.plan("t", [(0, 7, 18)])
    assert refusal.value.missing == [(0, 7, 10), (0, 15, 18)]


async def test_trimming_moves_the_start_up_and_never_down(open_log: Open, tmp_path: Path) -> None:
    log = await open_log(tmp_path / "live")
    topic = await log.create_topic("t", 1)
    key = (topic.id, 0)
    for _ in range(4):
        await append(log, key, batch(5))
    whole = log.state(key).bytes
    await log._core.trim({key: 10})
    await log._core.trim({key: 5})
    assert log.state(key).log_start == 10
    assert log.state(key).bytes == whole // 2
    read = await log.read(key, 9, 100, at_least_one=True)
    assert read.error == ErrorCode.OFFSET_OUT_OF_RANGE
    again = await open_log(crashed(tmp_path / "live", tmp_path / "left"))
    assert again.state(key) == log.state(key)


async def test_a_pin_is_kept_and_one_that_comes_too_late_is_refused(
    open_log: Open, tmp_path: Path
) -> None:
    log = await open_log(tmp_path / "live")
    topic = await log.create_topic("t", 1)
    for _ in range(2):
        await append(log, (topic.id, 0), batch(5))
    pin = Pin("cp", "risk", {("t", 0): 5}, None, 1)
    await log.set_pin(pin)
    await log._core.trim({(topic.id, 0): 5})
    with pytest.raises(RangeMissing, match="2 to 4 of partition 0"):
        await log.set_pin(Pin("late", "risk", {("t", 0): 2}, None, 1))
    with pytest.raises(TopicUnknown):
        await log.set_pin(Pin("nowhere", "risk", {("other", 0): 2}, None, 1))
    again = await open_log(crashed(tmp_path / "live", tmp_path / "left"))
    assert await again.pins() == [pin]
    assert await again.release_pin("cp")
    assert not await again.release_pin("cp")


async def test_a_lease_is_renewed_while_the_pin_holds(open_log: Open) -> None:
    log = await open_log()
    topic = await log.create_topic("t", 1)
    await append(log, (topic.id, 0), batch(5))
    now_ms = log._core.clock.now_ms()
    pin = Pin("read", "me", {("t", 0): 2}, now_ms + 1000, now_ms, 77)
    await log.set_pin(pin)
    renewed = replace(pin, lease_until_ms=now_ms + 3000)
    assert await log.renew_pin("read", now_ms + 3000) == renewed
    assert await log.pins() == [renewed]
    assert await log.renew_pin("other", now_ms + 3000) is None
    log._core.clock.advance(3000)  # type: ignore[attr-defined]
    assert await log.renew_pin("read", now_ms + 9000) is None, "what ended may be gone already"
    assert await log.pins() == [renewed]


async def test_packed_retained_and_swept_the_log_reads_the_same(open_log: Open) -> None:
    log = await open_log(
        config=replace(QUIET, wal_segment_bytes=2000, cache_bytes=1, retention_ms=-1)
    )
    topic = await log.create_topic("t", 1)
    key = (topic.id, 0)
    for n in range(40):
        await append(log, key, batch(3, value=b"%d" % n))
    before = await everything(log, key)
    assert await log.keeping.pack() > 0
    (row,) = await log.storage("t")
    assert row.segment_bytes > 0
    await log.keeping.retain()
    log._core.clock.advance(100_000)  # type: ignore[attr-defined]
    await log.keeping.retain()
    assert len(log._core.storage.wal.files()) == 1
    assert await everything(log, key) == before


async def test_left_to_itself_the_log_packs_and_deletes(open_log: Open) -> None:
    busy = replace(QUIET, background=True, retention_ms=-1, wal_segment_bytes=500)
    log = await open_log(config=busy)
    topic = await log.create_topic("t", 1)
    for _ in range(10):
        await append(log, (topic.id, 0), batch(3))
    while len(log._core.storage.wal.files()) > 1:
        await asyncio.sleep(0.001)
    (row,) = await log.storage("t")
    assert row.segment_bytes > 0
    assert len(await everything(log, (topic.id, 0))) == 10


async def test_a_store_that_fails_only_puts_packing_off(
    open_log: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = await open_log(config=replace(QUIET, background=True, retention_ms=-1))
    topic = await log.create_topic("t", 1)
    real = log.objects.put_if_absent

    def full(*_: object) -> int:
        raise StoreFull("no space left")

    monkeypatch.setattr(log.objects, "put_if_absent", full)
    await append(log, (topic.id, 0), batch(3))
    while "no space left" not in caplog.text:
        await asyncio.sleep(0.001)
    monkeypatch.setattr(log.objects, "put_if_absent", real)  # and nothing else is appended
    while not (await log.storage("t"))[0].segment_bytes:
        await asyncio.sleep(0.001)


async def test_producers_silent_for_a_day_are_forgotten(open_log: Open, tmp_path: Path) -> None:
    log = await open_log(tmp_path / "live")
    topic = await log.create_topic("t", 1)
    await append(log, (topic.id, 0), batch(producer=(5, 0, 0)))
    await log.keeping.retain()
    assert 5 in log.state((topic.id, 0)).producers
    log._core.clock.advance(25 * 3_600_000)  # type: ignore[attr-defined]
    await log.keeping.retain()
    assert not log.state((topic.id, 0)).producers
    again = await open_log(crashed(tmp_path / "live", tmp_path / "left"))
    assert not again.state((topic.id, 0)).producers


async def test_producer_ids_are_given_once(any_log: Log) -> None:
    log = any_log
    ids = await asyncio.gather(*(log.allocate_producer_id() for _ in range(2500)))
    assert len(set(ids)) == 2500


async def test_a_topic_is_altered_and_grows(any_log: Log) -> None:
    topic = await any_log.create_topic("t", 1, {"retention.ms": "5"})
    await any_log.alter_topic_config("t", lambda config: {**config, "segment.ms": "7"})
    await any_log.add_partitions("t", 3)
    await any_log.add_partitions("t", 2)
    await append(any_log, (topic.id, 2), batch())
    found = any_log.topics.find("t")
    assert (found.partitions, found.config) == (3, {"retention.ms": "5", "segment.ms": "7"})
    with pytest.raises(TopicUnknown):
        await any_log.alter_topic_config("x", dict)
    with pytest.raises(TopicUnknown):
        await any_log.add_partitions("x", 2)


async def test_a_topic_that_changes_is_no_longer_known_to_be_plain(any_log: Log) -> None:
    topic = await any_log.create_topic("t", 1)
    any_log.plain_topics[topic.id] = 1000
    await any_log.alter_topic_config("t", lambda config: {**config, "max.message.bytes": "7"})
    assert topic.id not in any_log.plain_topics
    any_log.plain_topics[topic.id] = 1000
    await any_log.delete_topic("t")
    assert not any_log.plain_topics


async def test_alterations_and_new_partitions_outlive_a_crash(
    open_log: Open, tmp_path: Path
) -> None:
    log = await open_log(tmp_path / "a")
    topic = await log.create_topic("t", 1)
    await append(log, (topic.id, 0), batch())
    await log.add_partitions("t", 2)
    await log.alter_topic_config("t", lambda _: {"retention.ms": "-1"})
    await append(log, (topic.id, 1), batch(2))
    again = await open_log(crashed(tmp_path / "a", tmp_path / "b"))
    assert again.topics.find("t") == replace(topic, partitions=2, config={"retention.ms": "-1"})
    assert [again.state((topic.id, i)).high_watermark for i in (0, 1)] == [1, 2]


async def test_the_producers_of_a_partition_are_told(any_log: Log) -> None:
    topic = await any_log.create_topic("t", 1)
    await append(any_log, (topic.id, 0), batch(producer=(7, 1, 0)))
    [row], opened = await any_log.producers((topic.id, 0))
    assert (row.producer_id, row.epoch, row.batches, opened) == (7, 1, ((0, 0, 0),), {})


async def test_a_topic_that_was_altered_or_has_grown_is_backed_up_soon(open_log: Open) -> None:
    log = await open_log(config=replace(QUIET, background=True, backup_interval_ms=2**50))

    async def backed_up_beyond(number: int) -> int:
        async with asyncio.timeout(20):
            while (last := log._core.catalog.last_backup()) <= number:
                await asyncio.sleep(0.001)
        return last

    await log.create_topic("t", 1)
    first = await backed_up_beyond(0)
    await log.alter_topic_config("t", lambda _: {"segment.ms": "7"})
    second = await backed_up_beyond(first)
    await log.add_partitions("t", 2)
    await backed_up_beyond(second)
