"""A log that lives through many crashes, decided by one seed.

Each life opens the data directory, appends as idempotent producers do, commits group offsets, and
ends in a crash: the catalog is left where it was some appends ago, the last write-ahead log file
keeps every acknowledged frame and a torn piece of garbage behind it. The next life must show every
acknowledged batch at its acknowledged offset, answer a repeated batch with its old offset, and
remember every committed group offset. The same seed twice gives the same history.

`make sim SEEDS=500` runs more seeds; a failing one is a test of its own by its number.
"""

import asyncio
import base64
import os
import random
import shutil
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from catchwater.broker_config import LogConfig
from catchwater.catalog.rows import (
    OffsetCommit,
)
from catchwater.clock import Clock
from catchwater.log.log import Log
from catchwater.log.write.writer import Submission
from catchwater.objects.open import KEYS
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header
from catchwater.wire.errors import ErrorCode

SEEDS = int(os.environ.get("SEEDS", "20"))
LIVES = 4
TOPIC = "t"
PARTITIONS = 3
PRODUCERS = 3


@dataclass
class World:
    """What was acknowledged: the truth that every life is held against."""

    random: random.Random
    producer_ids: list[int] = field(default_factory=list)
    acknowledged: dict[tuple[int, int], bytes] = field(default_factory=dict)
    """(partition, base offset) -> the value its records carry."""
    next_sequence: dict[tuple[int, int], int] = field(default_factory=dict)
    last_batch: dict[tuple[int, int], tuple[bytes, int]] = field(default_factory=dict)
    """(producer, partition) -> its last acknowledged batch and the offset it got."""
    group: dict[tuple[str, int], OffsetCommit] = field(default_factory=dict)
    history: list[tuple[object, ...]] = field(default_factory=list)


def a_batch(world: World, producer: int, partition: int) -> tuple[bytes, bytes]:
    value = world.random.randbytes(world.random.randrange(1, 300))
    count = world.random.randrange(1, 5)
    sequence = world.next_sequence.get((producer, partition), 0)
    batch = encode_batch(
        [(None, value, 1_700_000_000_000, ())] * count,
        producer_id=world.producer_ids[producer],
        producer_epoch=0,
        base_sequence=sequence,
    )
    return batch, value


async def append(log: Log, partition: int, batch: bytes) -> tuple[ErrorCode, int]:
    topic = log.topics.get(TOPIC)
    assert topic is not None
    view = memoryview(batch)
    submission = Submission((topic.id, partition), read_header(view), view)
    (answer,) = await log.submit([submission])
    return answer.error, answer.base_offset


async def produce(log: Log, world: World) -> None:
    """Some batches at once, some of them sent again."""
    wanted = world.random.sample(
        [(p, q) for p in range(PRODUCERS) for q in range(PARTITIONS)], world.random.randrange(1, 5)
    )
    batches = [(*pair, *a_batch(world, *pair)) for pair in wanted]
    answers = await asyncio.gather(*(append(log, q, batch) for _, q, batch, _ in batches))
    for (producer, partition, batch, value), (error, offset) in zip(batches, answers, strict=True):
        assert error is ErrorCode.NONE
        assert (partition, offset) not in world.acknowledged
        world.acknowledged[partition, offset] = value
        header = read_header(memoryview(batch))
        world.next_sequence[producer, partition] = header.base_sequence + header.record_count
        world.last_batch[producer, partition] = (batch, offset)
    world.history.append(("append", sorted((q, offset) for q, offset in world.acknowledged)[-3:]))


async def repeat(log: Log, world: World) -> None:
    """A producer that missed its answer sends the batch once more."""
    if world.last_batch:
        pair = world.random.choice(sorted(world.last_batch))
        batch, offset = world.last_batch[pair]
        error, again = await append(log, pair[1], batch)
        assert error in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER)
        assert again == offset
        world.history.append(("repeat", pair, offset))


async def commit(log: Log, world: World) -> None:
    """A consumer group moves on."""
    key = (TOPIC, world.random.randrange(PARTITIONS))
    world.group[key] = OffsetCommit(world.random.randrange(1000), -1, "")
    await log.commit_offsets("g", {key: world.group[key]})
    world.history.append(("commit", key, world.group[key].offset))


async def verify(log: Log, world: World) -> None:
    topic = log.topics.get(TOPIC)
    assert topic is not None
    for (partition, offset), value in world.acknowledged.items():
        read = await log.read((topic.id, partition), offset, 1, at_least_one=True)
        assert read.error is ErrorCode.NONE
        stored = b"".join(bytes(part) for part in read.parts)
        assert read_header(memoryview(stored)).base_offset == offset
        assert value in stored
    assert await log.committed("g") == world.group


def crash(data: Path, catalog: Path, after: Path, world: World) -> None:
    """What a power loss leaves: an older catalog, every synced frame, a torn one behind them."""
    after.mkdir()
    shutil.copytree(data / "wal", after / "wal")
    shutil.copytree(data / "objects", after / "objects", ignore=shutil.ignore_patterns(".*"))
    shutil.copy(data / "format", after / "format")
    shutil.copy(catalog, after / "catalog.db")
    last = max((after / "wal").glob("*.wal"))
    with last.open("ab") as file:
        file.write(world.random.randbytes(world.random.randrange(200)))


def copy_catalog(data: Path, to: Path) -> None:
    source, target = sqlite3.connect(data / "catalog.db"), sqlite3.connect(to)
    source.backup(target)
    source.close()
    target.close()


async def live(data: Path, after: Path, world: World) -> None:
    config = LogConfig(wal_segment_bytes=4096, pack_min_bytes=2048, pack_interval_ms=50)
    log = await Log.open(data, config, Clock(seed=world.random.randrange(1 << 30)))
    try:
        if log.topics.get(TOPIC) is None:
            await log.create_topic(TOPIC, PARTITIONS)
            world.producer_ids = [await log.allocate_producer_id() for _ in range(PRODUCERS)]
        await verify(log, world)
        for _ in range(world.random.randrange(5, 30)):
            step = world.random.choice([produce, produce, produce, repeat, commit])
            await step(log, world)
        catalog = after.with_suffix(".catalog")
        copy_catalog(data, catalog)
        for _ in range(world.random.randrange(0, 10)):
            await produce(log, world)
        crash(data, catalog, after, world)
    finally:
        await log.close()


def history_of(seed: int, folder: Path) -> list[tuple[object, ...]]:
    world = World(random.Random(seed))
    data = folder / "life-0"
    data.mkdir(parents=True)
    for life in range(LIVES):
        after = folder / f"life-{life + 1}"
        asyncio.run(live(data, after, world))
        shutil.rmtree(data)
        data = after
    return world.history


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_log_keeps_what_it_acknowledged_through_every_crash(seed: int, tmp_path: Path) -> None:
    assert history_of(seed, tmp_path)


@pytest.mark.parametrize("seed", range(0, SEEDS, 2))
def test_a_sealed_log_does_too_and_shows_nothing_of_it(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_LOG", f"k = {base64.b64encode(bytes(32)).decode()}")
    monkeypatch.setenv(KEYS, "env:OF_THE_LOG")
    assert history_of(seed, tmp_path) == history_of(seed, tmp_path / "again")
    sealed = [path for path in tmp_path.rglob("*.wal") if path.stat().st_size]
    assert sealed and all(path.read_bytes()[4:6] == b"\0\2" for path in sealed)


def test_the_same_seed_gives_the_same_history(tmp_path: Path) -> None:
    assert history_of(7, tmp_path / "a") == history_of(7, tmp_path / "b")
