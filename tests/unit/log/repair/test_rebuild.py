"""A catalog made again gives every acknowledged record its offset; what it cannot know is named."""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.log.shared import World, append, batch, everything, offsets

from catchwater.broker_config import LogConfig
from catchwater.catalog.memory import MemoryCatalog, MemoryDatabase, call_now
from catchwater.catalog.rows import OffsetCommit, PartitionKey, Pin
from catchwater.clock import ManualClock
from catchwater.config import CatchwaterError
from catchwater.log.directory import locked
from catchwater.log.format.chunk import encode
from catchwater.log.log import Log
from catchwater.log.repair.backup import CatalogOlder
from catchwater.log.repair.files import LogFiles
from catchwater.log.repair.fsck import fsck
from catchwater.log.repair.rebuild import RebuiltCatalog, rebuild
from catchwater.log.repair.replace import replace_catalog
from catchwater.log.write.writer import Appended, Submission
from catchwater.objects.local import LocalStore
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header, split

QUIET = LogConfig(background=False, wal_segment_bytes=2000)
CLOCK = ManualClock()
Open = Callable[[], Awaitable[Log]]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
async def open_log(data: Path) -> AsyncIterator[Open]:
    opened: list[Log] = []

    async def open_again() -> Log:
        opened.append(await Log.open(data, QUIET, CLOCK))
        return opened[-1]

    yield open_again
    for log in opened:
        if not log._core.writer._closing:
            await log.close()


async def produce(log: Log, key: PartitionKey, sequence: int, producer: int = 7) -> Appended:
    records = [(None, b"%d-%d" % (key[1], sequence), 1_000 + sequence, ())] * 2
    batch = encode_batch(
        records, producer_id=producer, producer_epoch=0, base_sequence=2 * sequence
    )
    view = memoryview(batch)
    [answer] = await log.submit([Submission(key, read_header(view), view)])
    return answer


def lose_catalog(data: Path) -> None:
    for file in data.glob("catalog.*"):
        file.unlink()


def mend(data: Path, *, guess: bool = False) -> RebuiltCatalog:
    stored = LogFiles(LocalStore(data / "objects"), data)
    with locked(data):
        rebuilt = rebuild(stored, "new", guess=guess)
        replace_catalog(data, rebuilt, CLOCK)
    return rebuilt


async def test_with_backup_segments_and_wal_everything_is_as_it_was(
    open_log: Open, data: Path
) -> None:
    log = await open_log()
    topic = await log.create_topic("t", 2, {"retention.ms": "5000"})
    keys = [(topic.id, 0), (topic.id, 1)]
    for n in range(5):
        await produce(log, keys[n % 2], n // 2)
    await log.keeping.pack()
    await log.commit_offsets("g", {("t", 0): OffsetCommit(3)})
    await log.set_pin(Pin("p", "me", {("t", 1): 1}, None, 5))
    await log.keeping.back_up()
    for n in range(5, 15):
        await produce(log, keys[n % 2], (n + 1) // 2 if n % 2 == 0 else n // 2)
        if n == 9:
            await log.keeping.pack()
    states = {key: replace(log.state(key), earliest_timestamp=0) for key in keys}
    truth = {key: await everything(log, key) for key in keys}
    await log.close()
    lose_catalog(data)
    with pytest.raises(CatchwaterError):
        await Log.open(data, QUIET, CLOCK)
    lose_catalog(data)
    rebuilt = mend(data)
    assert not rebuilt.findings
    log = await open_log()
    assert {key: await everything(log, key) for key in keys} == truth
    after = {key: replace(log.state(key), earliest_timestamp=0) for key in keys}
    assert after == states, "only how finely the oldest run is cut may differ"
    assert (await log.committed("g"))["t", 0].offset == 3
    assert [pin.id for pin in await log.pins()] == ["p"]
    assert log.topics.find("t").config == {"retention.ms": "5000"}
    again = await produce(log, keys[0], 7)
    assert again.base_offset == truth[keys[0]][-1][0], "a retry is known for one"
    await log.keeping.pack()
    assert {key: await everything(log, key) for key in keys} == truth


async def test_transactional_ids_come_back_from_the_backup_whole(
    open_log: Open, data: Path
) -> None:
    log = await open_log()
    before = await log.txns.init_producer("id", 60_000)
    given = await log.txns.init_producer("id", 60_000, before)
    await log.keeping.back_up()
    rows = await log.txns.rows()
    await log.close()
    lose_catalog(data)
    mend(data)
    again = await open_log()
    assert await again.txns.rows() == rows
    assert await again.txns.init_producer("id", 60_000, before) == given


async def test_a_catalog_of_an_earlier_time_is_refused_and_brought_up_to_date(
    open_log: Open, data: Path, tmp_path: Path
) -> None:
    log = await open_log()
    topic = await log.create_topic("t", 1)
    await produce(log, (topic.id, 0), 0)
    await log.close()
    for file in data.glob("catalog.*"):
        shutil.copy(file, tmp_path)
    log = await open_log()
    other = await log.create_topic("later", 1)
    await produce(log, (other.id, 0), 0)
    await log.keeping.back_up()
    await produce(log, (other.id, 0), 1)
    await log.close()
    for file in tmp_path.glob("catalog.*"):
        shutil.copy(file, data)
    with pytest.raises(CatalogOlder, match="earlier time") as refused:
        await Log.open(data, QUIET, CLOCK)
    assert "log rebuild" in (refused.value.hint or "")
    assert not mend(data).findings
    log = await open_log()
    assert [offset for offset, _ in await everything(log, (other.id, 0))] == [0, 2]
    assert [offset for offset, _ in await everything(log, (topic.id, 0))] == [0]
    assert any(data.glob("catalog-aside-*/catalog.db"))


async def test_from_the_bucket_alone_what_was_packed_is_there_and_what_was_not_is_named(
    open_log: Open, data: Path
) -> None:
    log = await open_log()
    topic = await log.create_topic("t", 1)
    key = (topic.id, 0)
    await log.keeping.back_up()
    for n in range(4):
        await produce(log, key, n)
    await log.keeping.pack()
    truth = await everything(log, key)
    await log.keeping.back_up()
    await produce(log, key, 4)
    await log.keeping.back_up()
    await log.close()
    lose_catalog(data)
    shutil.rmtree(data / "wal")
    rebuilt = mend(data)
    [lost] = [found for found in rebuilt.findings if found.kind == "lost"]
    assert (lost.topic, lost.partition, lost.first_offset, lost.last_offset) == ("t", 0, 8, 9)
    log = await open_log()
    assert log.state(key).high_watermark == 10, "an offset is never given out twice"
    read = await log.read(key, 0, 1 << 20, at_least_one=True)
    assert [(h.base_offset, bytes(v[16:])) for h, v in split(memoryview(b"".join(read.parts)))] == (
        truth
    )


async def test_without_any_backup_topics_come_back_from_their_segments(
    open_log: Open, data: Path
) -> None:
    log = await open_log()
    topic = await log.create_topic("t", 3)
    await produce(log, (topic.id, 1), 0)
    await log.keeping.pack()
    await log.close()
    lose_catalog(data)
    shutil.rmtree(data / "wal")
    shutil.rmtree(data / "objects" / "catalog", ignore_errors=True)
    rebuilt = mend(data)
    assert {found.kind for found in rebuilt.findings} == {"lost", "note"}
    log = await open_log()
    assert log.topics.find("t").partitions == 2, "as far as segments tell"
    assert [offset for offset, _ in await everything(log, (topic.id, 1))] == [0]
    retry = await produce(log, (topic.id, 1), 0)
    assert retry.base_offset == 0, "the producer's standing was read from its batches"


async def test_staged_chunks_of_unknown_fate_hold_their_partition_back(
    open_log: Open, data: Path
) -> None:
    log = await open_log()
    topic = await log.create_topic("t", 2)
    keys = [(topic.id, 0), (topic.id, 1)]
    await log.keeping.back_up()
    records = encode_batch([(None, b"of a sink", 1_000, ())])
    parts, _ = encode([(keys[0], read_header(memoryview(records)), records)], CLOCK.now_ms())
    log.objects.put("staged/p/s/1.chunk", parts)
    for key in keys:
        await produce(log, key, 0)
    await log.epochs.commit("p", "s", 1, "t", ["staged/p/s/1.chunk"], "")
    for key in keys:
        await produce(log, key, 1)
    await log.close()
    lose_catalog(data)
    [found] = mend(data).findings
    assert (found.kind, found.topic, found.partition, found.first_offset) == (
        "uncertain",
        "t",
        0,
        0,
    )
    log = await open_log()
    assert [log.state(key).high_watermark for key in keys] == [0, 4]
    await log.close()
    lose_catalog(data)
    guessed = mend(data, guess=True).findings
    assert {found.partition for found in guessed} == {0}
    log = await open_log()
    assert [log.state(key).high_watermark for key in keys] == [5, 4]


# --- many brokers --------------------------------------------------------------------------------


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


def mend_shared(world: World, *, guess: bool = False) -> RebuiltCatalog:
    """An empty database in the place of the lost one; the brokers were closed before."""
    world.logs.clear()
    rebuilt = rebuild(LogFiles(world.store, None), "new", guess=guess)
    world.database.close()
    world.database = MemoryDatabase(world.clock, call_now)
    rebuilt.write(MemoryCatalog(world.database))
    return rebuilt


async def test_many_brokers_catalog_comes_back_from_the_bucket(world: World) -> None:
    log = await world.log()
    topic = await log.create_topic("t", 2)
    keys = [(topic.id, 0), (topic.id, 1)]
    for n in range(6):
        await offsets(log, batch(keys[n % 2], 2, text=f"{n}-"))
        if n == 3:
            await log.keeping.pack()
    await log.keeping.back_up()
    truth = {key: await everything(log, key) for key in keys}
    session = log.session
    await log.close()
    assert session is not None
    rebuilt = mend_shared(world)
    assert not rebuilt.findings
    log = await world.log()
    assert {key: await everything(log, key) for key in keys} == truth
    assert log.session is not None and log.session.epoch > session.epoch, "no prefix comes twice"
    stored = LogFiles(world.store, None)
    catalog = MemoryCatalog(world.database)
    assert fsck(catalog, stored, deep=True, progress=lambda done, total: None).is_good


async def test_parquet_is_lost_with_its_catalog_and_written_again(world: World) -> None:
    log = await world.log(parquet_after_ms=0)
    topic = await log.create_topic("t", 1, {"catchwater.history.parquet": "true"})
    await offsets(log, batch((topic.id, 0), 2))
    await log.keeping.pack()
    await log.keeping.write_parquet()
    [plan] = await log.planner.plan("t", [(0, 0, 2)])
    await log.keeping.back_up()
    await log.close()
    assert not mend_shared(world).findings
    log = await world.log(parquet_after_ms=0)
    [rebuilt] = await log.planner.plan("t", [(0, 0, 2)])
    assert plan.parquet and not rebuilt.parquet
    await log.keeping.write_parquet()
    [again] = await log.planner.plan("t", [(0, 0, 2)])
    assert again.parquet and again.parquet != plan.parquet
    log.keeping._sweeper._orphan_grace_ms = -1  # nobody waits six hours
    await log.keeping.sweep_orphans()
    assert [info.key for info in world.store.list("parquet/")] == [again.parquet[10:]]


async def test_chunks_behind_the_backup_are_named_and_taken_only_as_a_guess(world: World) -> None:
    log = await world.log()
    topic = await log.create_topic("t", 2)
    keys = [(topic.id, 0), (topic.id, 1)]
    for key in keys:
        await offsets(log, batch(key, text="before", producer=(5, 0, 0)))
    await log.keeping.back_up()
    await offsets(log, batch(keys[0], 2, text="packed", producer=(5, 0, 1)))
    await log.keeping.pack()
    world.clock.advance(10)
    await offsets(log, batch(keys[0], 3, text="behind", producer=(5, 0, 3)))
    truth = await everything(log, keys[0])
    await log.close()
    [found] = [each for each in mend_shared(world).findings if each.kind == "uncertain"]
    assert (found.partition, found.first_offset, found.last_offset) == (0, 3, -1)
    log = await world.log()
    assert await everything(log, keys[0]) == truth[:2]
    await log.close()
    guessed = [each for each in mend_shared(world, guess=True).findings if each.kind != "note"]
    assert [(each.first_offset, each.last_offset) for each in guessed] == [(3, 5)]
    log = await world.log()
    assert await everything(log, keys[0]) == truth
    [again] = await append(log, batch(keys[0], 3, text="behind", producer=(5, 0, 3)))
    assert again.base_offset == 3, "a retry is known for one"
