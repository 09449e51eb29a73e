"""Transactional ids change without a frame: a rebuild finds it in what followed, and says so."""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest
from tests.unit.log.repair.test_rebuild import (
    CLOCK,
    QUIET,
    data,
    everything,
    lose_catalog,
    mend,
    open_log,
    produce,
)
from tests.unit.log.test_transactions import begin, key, send, visible

from catchwater.clock import SYSTEM
from catchwater.log.log import Log
from catchwater.log.repair.fsck import fsck_directory
from catchwater.log.repair.rebuild import RebuiltCatalog
from catchwater.log.transactions import Producer
from catchwater.log.write.txn import TxnRefused
from catchwater.objects.local import LocalStore
from catchwater.wire.errors import ErrorCode

__all__ = ["data", "open_log"]

Open = Callable[[], Awaitable[Log]]
SEEDS = int(os.environ.get("SEEDS", "6"))
Truth = dict[int, list[tuple[int, bytes]]]


async def all_of(log: Log) -> Truth:
    return {partition: await everything(log, key(log, partition)) for partition in range(3)}


def is_good(data: Path) -> bool:
    objects = LocalStore(data / "objects")
    report = fsck_directory(
        data, objects, deep=True, progress=lambda done, total: None, clock=SYSTEM
    )
    return report.is_good


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("committed", [True, False])
async def test_a_transaction_wholly_behind_the_backup_is_there_and_named(
    open_log: Open, data: Path, version: int, committed: bool
) -> None:
    log = await open_log()
    await log.create_topic("t", 3)
    await log.keeping.back_up()
    for _ in range(2):
        producer = await begin(log, version)
        await log.txns.end("id", producer, committed=committed, version=version)
    before, seen = await all_of(log), await visible(log)
    await log.close()
    lose_catalog(data)
    findings = mend(data).findings
    assert {(found.kind, found.partition) for found in findings} == {("note", 0), ("note", 1)}
    assert is_good(data)
    log = await open_log()
    assert (await all_of(log), await visible(log)) == (before, seen)


async def test_a_transaction_without_its_end_is_aborted_when_its_time_is_out(
    open_log: Open, data: Path
) -> None:
    log = await open_log()
    await log.create_topic("t", 3)
    await log.keeping.back_up()
    await begin(log, 1)
    await log.close()
    lose_catalog(data)
    mend(data)
    log = await open_log()
    await log.txns.tick()
    CLOCK.advance(61_000)
    await log.txns.tick()
    await log.txns.tick()
    assert log.txns.open_count == 0
    assert await visible(log) == [[], [], []]
    assert log.state(key(log)).last_stable_offset == log.state(key(log)).high_watermark


async def test_what_a_fenced_producer_wrote_is_uncertain_where_the_frames_contradict_it(
    open_log: Open, data: Path
) -> None:
    log = await open_log()
    await log.create_topic("t", 3)
    old = await log.txns.init_producer("id", 60_000)
    await log.keeping.back_up()
    new = await log.txns.init_producer("id", 60_000)
    assert (await send(log, old)).error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert (await send(log, new, 1)).error is ErrorCode.NONE
    assert (await send(log, old, 2)).error is ErrorCode.INVALID_PRODUCER_EPOCH
    await log.txns.end("id", new, committed=True, version=2)
    truth = await all_of(log)
    await log.close()
    lose_catalog(data)
    found = [(each.kind, each.partition) for each in mend(data).findings]
    assert sorted(found) == [("note", 1), ("note", 2), ("uncertain", 0)]
    log = await open_log()
    await log.txns.tick()
    assert (await all_of(log))[1] == truth[1]
    assert await visible(log) == [[], [0], []]


async def test_what_was_written_to_a_topic_that_nothing_names_is_lost_and_said_so(
    open_log: Open, data: Path
) -> None:
    log = await open_log()
    await log.create_topic("t", 3)
    await log.keeping.back_up()
    later = await log.create_topic("later", 2)
    await produce(log, (later.id, 1), 0)
    await log.close()
    lose_catalog(data)
    [found] = mend(data).findings
    assert (found.kind, found.topic, found.partition) == (
        "lost",
        f"with the id {later.id.hex()}",
        1,
    )
    assert "producer 7, epoch 0" in found.what


class History:
    """Producers of both versions, late ones among them, and what was acknowledged."""

    def __init__(self, log: Log, random: Random, *, with_late: bool) -> None:
        self.log, self.random, self.with_late = log, random, with_late
        self.version = {"a": 1, "b": 2, "c": random.choice((1, 2))}
        self.now: dict[str, Producer] = {}
        self.is_open: set[str] = set()
        self.known: list[tuple[Producer, int]] = []
        self.next: dict[tuple[Producer, int], int] = {}
        self.plain = 0

    async def init(self, name: str) -> None:
        self.now[name] = await self.log.txns.init_producer(name, 60_000)
        self.is_open.discard(name)

    async def write(self, name: str) -> None:
        producer, version = self.now[name], self.version[name]
        partition = self.random.randrange(2)
        if version == 1:
            await self.log.txns.add_partitions(name, producer, [key(self.log, partition)])
        base = self.next.get((producer, partition), 0)
        answer = await send(self.log, producer, partition, base, version=version)
        assert answer.error is ErrorCode.NONE
        self.next[producer, partition] = base + 1
        self.known.append((producer, version))
        self.is_open.add(name)

    async def end(self, name: str) -> None:
        committed = self.random.random() < 0.6
        self.now[name] = await self.log.txns.end(
            name, self.now[name], committed=committed, version=self.version[name]
        )
        self.is_open.discard(name)

    async def late(self) -> None:
        producer, version = self.random.choice(self.known)
        base, partition = self.random.randrange(3), self.random.randrange(2)
        answer = await send(self.log, producer, partition, base, version=version)
        if answer.error is ErrorCode.NONE and self.next.get((producer, partition), 0) <= base:
            self.next[producer, partition] = base + 1

    async def step(self) -> None:
        name, kind = self.random.choice("abc"), self.random.random()
        if kind < 0.15:
            await produce(self.log, key(self.log, 2), self.plain)
            self.plain += 1
        elif kind < 0.25 and self.known and self.with_late:
            await self.late()
        elif name not in self.now or kind < 0.3:
            await self.init(name)
        elif kind < 0.75 or name not in self.is_open:
            await self.write(name)
        else:
            await self.end(name)


async def lived(log: Log, random: Random, *, with_late: bool) -> None:
    await log.create_topic("t", 3)
    await log.keeping.back_up()
    history = History(log, random, with_late=with_late)
    for _ in range(60):
        try:
            await history.step()
        except TxnRefused:
            assert with_late
        if random.random() < 0.05:
            await log.keeping.back_up()
        if random.random() < 0.03:
            await log.keeping.pack()


def mend_from_some_backup(data: Path, random: Random) -> RebuiltCatalog:
    backups = sorted((data / "objects" / "catalog").iterdir())
    for later in backups[random.randrange(len(backups)) + 1 :]:
        later.unlink()
    lose_catalog(data)
    return mend(data)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_well_behaved_producers_lose_nothing_and_keep_their_offsets(
    open_log: Open, data: Path, seed: int
) -> None:
    random = Random(seed)
    log = await open_log()
    await lived(log, random, with_late=False)
    truth, seen = await all_of(log), await visible(log)
    await log.close()
    rebuilt = mend_from_some_backup(data, random)
    assert {found.kind for found in rebuilt.findings} <= {"note"}
    assert is_good(data)
    log = await Log.open(data, QUIET, CLOCK)
    assert (await all_of(log), await visible(log)) == (truth, seen)
    await log.close()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_whoever_is_late_nothing_differs_in_a_partition_that_no_finding_names(
    open_log: Open, data: Path, seed: int
) -> None:
    random = Random(seed)
    log = await open_log()
    await lived(log, random, with_late=True)
    truth = await all_of(log)
    await log.close()
    rebuilt = mend_from_some_backup(data, random)
    named = {found.partition for found in rebuilt.findings}
    uncertain = {found.partition for found in rebuilt.findings if found.kind == "uncertain"}
    assert is_good(data)
    log = await Log.open(data, QUIET, CLOCK)
    found = await all_of(log)
    await log.close()
    for partition in range(3):
        assert found[partition] == truth[partition] or partition in named
        lost = {value for _, value in truth[partition]} - {value for _, value in found[partition]}
        assert not lost or partition in uncertain
    assert 2 not in named, "a producer without a transactional id is sequenced as it was"
