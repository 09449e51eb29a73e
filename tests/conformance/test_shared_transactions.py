"""Transactions of two brokers over one PostgreSQL: one producer an id, every end whole."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from catchwater.broker_config import LogConfig
from catchwater.catalog.postgres import PostgresCatalog
from catchwater.catalog.rows import (
    BrokerRow,
    Changes,
    OffsetCommit,
    PartitionKey,
    Scope,
    ScopeRows,
    Session,
)
from catchwater.clock import Clock
from catchwater.log.format.chunk import ADDS_PARTITION
from catchwater.log.log import Log
from catchwater.log.transactions import Producer
from catchwater.log.write.txn import TxnRefused
from catchwater.log.write.writer import Submission
from catchwater.objects.memory import MemoryStore
from catchwater.wal.base import Wal
from catchwater.wal.open import open_wal, session_prefix
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header, split
from catchwater.wire.errors import ErrorCode

MINUTE_MS = 60_000


@pytest.fixture
async def two(postgres_url: str) -> AsyncIterator[list[Log]]:
    clock, store, logs = Clock(), MemoryStore(), []
    config = LogConfig(background=False, session_ms=60_000)
    for number in (1, 2):
        catalog = PostgresCatalog(postgres_url, new_cluster_id=lambda: "c", clock=clock)

        def opener(session: Session, catalog: PostgresCatalog = catalog) -> Wal:
            prefix = session_prefix(session)
            return open_wal("object", prefix, clock, catalog=catalog, store=store, linger_ms=5)

        row = BrokerRow(number, 0, "", f"b{number}", 9092, "", "object", True, "live", 0)
        logs.append(await Log.shared(catalog, store, opener, row, config, clock))
    await logs[0].create_topic("t", 2)
    await logs[1].look_up(["t"])
    yield logs
    for log in logs:
        await log.close()


async def send(log: Log, producer: Producer, partition: int) -> ErrorCode:
    data = memoryview(
        encode_batch(
            [(None, b"v", 1000, ())],
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=0,
            transactional=True,
        )
    )
    header = read_header(data)
    header = header._replace(attributes=header.attributes | ADDS_PARTITION)
    key = (log.topics.find("t").id, partition)
    (answer,) = await log.submit([Submission(key, header, data)])
    return answer.error


async def committed(log: Log, partition: int) -> list[tuple[int, int]]:
    """(producer id, epoch) of the records that a reader of committed records is left with."""
    key: PartitionKey = (log.topics.find("t").id, partition)
    await log.refresh([key])
    found, offset = [], 0
    while True:
        read = await log.read(key, offset, 1 << 20, at_least_one=True, committed=True)
        assert read.error is ErrorCode.NONE
        if not read.parts:
            assert offset == read.last_stable_offset == read.high_watermark
            return found
        for header, _ in split(memoryview(b"".join(read.parts))):
            offset = header.last_offset + 1
            is_aborted = any(
                row.producer_id == header.producer_id
                and row.first_offset <= header.base_offset < row.last_offset
                for row in read.aborted
            )
            if not header.is_control and not is_aborted:
                found.append((header.producer_id, header.producer_epoch))


async def test_an_id_introduced_by_both_at_once_has_one_producer(two: list[Log]) -> None:
    for number in range(4):
        name = f"id-{number}"
        given = await asyncio.gather(*(log.txns.init_producer(name, MINUTE_MS) for log in two))
        assert given[0].id == given[1].id
        assert sorted(producer.epoch for producer in given) == [0, 1]
        newer, older = sorted(given, key=lambda producer: -producer.epoch)
        assert await send(two[0], older, 0) is ErrorCode.INVALID_PRODUCER_EPOCH
        assert await send(two[1], newer, 0) is ErrorCode.NONE


async def test_an_id_that_postgresql_cannot_look_for_is_refused_as_an_unknown_one(
    two: list[Log],
) -> None:
    txns, producer = two[0].txns, Producer(0, 0)
    positions = {("t", 0): OffsetCommit(1, -1, "")}
    for asking in (
        txns.end("i\0d", producer, committed=True, version=2),
        txns.add_partitions("i\0d", producer, ()),
        txns.commit_offsets("i\0d", producer, "g", positions, implicit=True),
    ):
        with pytest.raises(TxnRefused) as refused:
            await asking
        assert refused.value.code is ErrorCode.INVALID_PRODUCER_ID_MAPPING


async def test_an_id_that_is_just_being_used_is_not_forgotten(two: list[Log]) -> None:
    first, second = two
    given = await first.txns.init_producer("id", MINUTE_MS)

    def forget_meanwhile(_: ScopeRows) -> tuple[Changes, set[int]]:
        return Changes(), second._core.catalog.forget_txns(2**60).result(60)

    scope = Scope(transactional_ids=["id"])
    transact = first._core.catalog.transact(scope, forget_meanwhile)
    assert await asyncio.wrap_future(transact) == set()
    assert await send(first, given, 0) is ErrorCode.NONE
    await second._core.forget_txns(2**60)
    given = await second.txns.end("id", given, committed=True, version=2)
    await first._core.forget_txns(2**60)
    assert await send(second, given, 0) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (await second.txns.init_producer("id", MINUTE_MS)).id > given.id


async def test_every_end_is_whole_whoever_writes_and_whoever_ends(two: list[Log]) -> None:
    kept: set[tuple[int, int]] = set()
    claim = await two[0].take_group("g")

    async def live(number: int) -> None:
        name = f"id-{number}"
        producer = await two[number % 2].txns.init_producer(name, MINUTE_MS)
        for round_ in range(8):
            writing, ending = two[(number + round_) % 2], two[round_ // 2 % 2]
            for partition in (0, 1):
                assert await send(writing, producer, partition) is ErrorCode.NONE
            positions = {("t", number): OffsetCommit(round_)}
            await ending.txns.commit_offsets(
                name, producer, "g", positions, implicit=True, claim_epoch=claim.epoch
            )
            commits = (number + round_) % 3 != 0
            if commits:
                kept.add(producer)
            producer = await ending.txns.end(name, producer, committed=commits, version=2)

    await asyncio.gather(*(live(number) for number in range(4)))
    for log in two:
        for partition in (0, 1):
            assert sorted(await committed(log, partition)) == sorted(kept)
    last = {n: max(r for r in range(8) if (n + r) % 3 != 0) for n in range(4)}
    positions = await two[0].committed("g")
    assert {key[1]: commit.offset for key, commit in positions.items()} == last
