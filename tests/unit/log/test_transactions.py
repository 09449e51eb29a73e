"""Transactions end whole, whatever happens in between, and who is late comes to nothing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from tests.unit.log.shared import crashed

from catchwater.broker_config import LogConfig
from catchwater.catalog.errors import CatalogUnavailable
from catchwater.catalog.memory import MemoryCatalog, MemoryDatabase, call_now
from catchwater.catalog.rows import BrokerRow, OffsetCommit, PartitionKey, Session, TxnRow
from catchwater.clock import Clock, ManualClock
from catchwater.log.format.chunk import ADDS_PARTITION
from catchwater.log.log import Log
from catchwater.log.transactions import Producer
from catchwater.log.write import txn
from catchwater.log.write.txn import LAST_EPOCH, TxnRefused
from catchwater.log.write.writer import Appended, Submission
from catchwater.objects.memory import MemoryStore
from catchwater.wal.base import Wal
from catchwater.wal.open import open_wal, session_prefix
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header, split
from catchwater.wire.errors import ErrorCode

# The catalog trails as far as it can, so that every reopening replays the write-ahead log.
QUIET = LogConfig(background=False, catalog_lag_ms=3_600_000)
MINUTE_MS = 60_000
POSITIONS = {("t", 0): OffsetCommit(17, -1, "m")}
Open = Callable[..., Awaitable[Log]]


@pytest.fixture
async def open_log(tmp_path: Path) -> AsyncIterator[Open]:
    opened: list[Log] = []

    async def open_one(root: Path | None = None, clock: ManualClock | None = None) -> Log:
        log = await Log.open(root or tmp_path / "live", QUIET, clock or ManualClock())
        opened.append(log)
        return log

    yield open_one
    for log in opened:
        await log.close()


@pytest.fixture
async def log(open_log: Open) -> Log:
    log = await open_log()
    await log.create_topic("t", 3)
    return log


def key(log: Log, partition: int = 0) -> PartitionKey:
    return log.topics.find("t").id, partition


async def send(
    log: Log,
    producer: Producer,
    partition: int = 0,
    base: int = 0,
    *,
    version: int = 2,
    transactional: bool = True,
) -> Appended:
    """One record, as Produce hands it to the log."""
    data = memoryview(
        encode_batch(
            [(None, b"%d/%d" % (producer.epoch, base), 1000, ())],
            producer_id=producer.id,
            producer_epoch=producer.epoch,
            base_sequence=base,
            transactional=transactional,
        )
    )
    header = read_header(data)
    if transactional and version == 2:
        header = header._replace(attributes=header.attributes | ADDS_PARTITION)
    (answer,) = await log.submit([Submission(key(log, partition), header, data)])
    return answer


async def begin(log: Log, version: int, name: str = "id") -> Producer:
    """A transaction with a record on two partitions and a group's position."""
    producer = await log.txns.init_producer(name, MINUTE_MS)
    if version == 1:
        await log.txns.add_partitions(name, producer, [key(log, 0), key(log, 1)])
    for partition in (0, 1):
        answer = await send(log, producer, partition, version=version)
        assert answer.error is ErrorCode.NONE
    await log.txns.commit_offsets(name, producer, "g", POSITIONS, implicit=version == 2)
    return producer


async def visible(log: Log) -> list[list[int]]:
    """By partition: the offsets of data that a reader of committed records is left with."""
    found = []
    for partition in range(3):
        offsets, offset = [], 0
        while True:
            read = await log.read(
                key(log, partition), offset, 1 << 20, at_least_one=True, committed=True
            )
            assert read.error is ErrorCode.NONE
            if not read.parts:
                break
            gone = {(row.producer_id, row.first_offset, row.last_offset) for row in read.aborted}
            for header, _ in split(memoryview(b"".join(read.parts))):
                offset = header.last_offset + 1
                is_gone = any(
                    pid == header.producer_id and first <= header.base_offset < last
                    for pid, first, last in gone
                )
                if not header.is_control and not is_gone:
                    offsets.append(header.base_offset)
        assert offset == read.last_stable_offset
        found.append(offsets)
    return found


async def refusal(work: Awaitable[Any]) -> ErrorCode:
    with pytest.raises(TxnRefused) as caught:
        await work
    return caught.value.code


# --- a crash between every two steps (F22) -------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("committed", [True, False])
async def test_a_crash_anywhere_in_an_end_leaves_all_of_it_or_nothing(
    open_log: Open, log: Log, tmp_path: Path, version: int, committed: bool
) -> None:
    producer = await begin(log, version)
    copies: list[Path] = []

    def crash_here() -> None:
        copies.append(tmp_path / f"crash-{len(copies)}")
        crashed(tmp_path / "live", copies[-1])

    core: Any = log._core
    for owner, name in (
        (core.catalog, "transact"),
        (core.catalog, "open_txns"),
        (core.catalog, "flush"),
        (core.writer, "submit"),
        (core.storage.wal, "append"),
        (core.writer, "_acknowledge"),
    ):
        call = getattr(owner, name)

        def wrapped(*arguments: Any, call: Any = call, **named: Any) -> Any:
            crash_here()
            outcome = call(*arguments, **named)
            crash_here()
            return outcome

        setattr(owner, name, wrapped)
    await log.txns.end("id", producer, committed=committed, version=version)
    crash_here()
    outcomes = []
    for root in copies:
        again = await open_log(root)
        await again.txns.tick()
        (row,) = await again.txns.rows()
        if row.state == "ongoing":
            assert await visible(again) == [[], [], []]
            await again.txns.init_producer("id", MINUTE_MS)
            kept = False
        else:
            assert row.state == ("complete_commit" if committed else "complete_abort")
            kept = committed
        assert await visible(again) == ([[0], [0], []] if kept else [[], [], []])
        assert [again.state(key(again, p)).high_watermark for p in range(3)] == [2, 2, 0]
        await asyncio.wrap_future(again._catalog.flush())
        assert await again.committed("g") == (POSITIONS if kept else {})
        outcomes.append((row.state, kept))
    assert len(copies) > 8
    assert outcomes[0][0] == "ongoing"
    assert outcomes[-1][0] != "ongoing"


async def test_the_aborted_list_is_there_after_a_restart(
    open_log: Open, log: Log, tmp_path: Path
) -> None:
    producer = await begin(log, 2)
    producer = await log.txns.end("id", producer, committed=False, version=2)
    await send(log, producer, 0)
    await log.txns.end("id", producer, committed=True, version=2)
    assert await visible(log) == [[2], [], []]
    copy = crashed(tmp_path / "live", tmp_path / "copy")
    again = await open_log(copy)
    assert await visible(again) == [[2], [], []]
    assert await again.txns.rows() == await log.txns.rows()
    for partition in range(3):
        assert again.state(key(again, partition)) == log.state(key(log, partition))


# --- many brokers (F22) --------------------------------------------------------------------------


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[list[Log]]:
    """Two brokers over one catalog and one store."""
    clock, store = Clock(seed=1), MemoryStore()
    database = MemoryDatabase(clock, call_now)
    logs = []
    for number in (1, 2):
        row = BrokerRow(number, 0, "", f"b{number}", 9092, "", "object", True, "live", 0)
        catalog = MemoryCatalog(database)

        def opener(session: Session, catalog: MemoryCatalog = catalog) -> Wal:
            prefix = session_prefix(session)
            return open_wal("object", prefix, clock, catalog=catalog, store=store, linger_ms=0)

        config = replace(QUIET, session_ms=60_000)
        logs.append(await Log.shared(catalog, store, opener, row, config, clock))
    await logs[0].create_topic("t", 3)
    await logs[1].look_up(["t"])
    yield logs
    for log in logs:
        await log.close()
    database.close()


async def seen(log: Log) -> list[list[int]]:
    await log.refresh([key(log, partition) for partition in range(3)])
    return await visible(log)


async def tick(log: Log) -> None:
    """What is still prepared at a second tick is nobody's."""
    await log.txns.tick()
    await log.txns.tick()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("happened", [True, False])
async def test_another_broker_finishes_what_one_that_lost_the_catalog_has_prepared(
    two: list[Log], version: int, committed: bool, step: int, happened: bool
) -> None:
    first, second = two
    producer = await begin(first, version)
    core: Any = first._core
    transact, steps = core.catalog.transact, 0

    def loses(*arguments: Any) -> Future[Any]:
        nonlocal steps
        steps += 1
        if steps < step:
            return transact(*arguments)
        if steps == step and happened:
            transact(*arguments).result()
        lost: Future[Any] = Future()
        lost.set_exception(CatalogUnavailable("The connection is gone."))
        return lost

    core.catalog.transact = loses
    with suppress(CatalogUnavailable):
        await first.txns.end("id", producer, committed=committed, version=version)
    core.catalog.transact = transact
    await tick(second)
    (row,) = await second.txns.rows()
    is_decided = step == 2 or happened
    assert (row.state == "ongoing") is not is_decided
    if not is_decided:
        await second.txns.init_producer("id", MINUTE_MS)
    kept = is_decided and committed
    assert await seen(second) == ([[0], [0], []] if kept else [[], [], []])
    assert await seen(first) == await seen(second)
    assert await second.committed("g") == (POSITIONS if kept else {})


async def test_what_is_due_is_found_without_a_look_at_idle_ids(two: list[Log]) -> None:
    first, second = two
    producer = await begin(first, 2)
    await second.txns.init_producer("idle", MINUTE_MS)
    catalog: Any = second._core.catalog
    catalog.txns = Mock(side_effect=AssertionError("all of them"))
    await second.txns.tick()
    assert second.txns.open_count == 1
    await first.txns.end("id", producer, committed=True, version=2)
    await second.txns.tick()
    assert second.txns.open_count == 0


async def test_two_brokers_that_end_one_transaction_at_once_end_it_once(two: list[Log]) -> None:
    first, second = two
    producer = await begin(first, 2)
    row = await first.txns._move(
        "id", lambda row: txn.ended(row, producer, committed=True, version=2)
    )
    await asyncio.gather(first.txns._finish(row), second.txns._finish(row))
    assert await seen(first) == await seen(second) == [[0], [0], []]
    assert first.state(key(first)).high_watermark == 2
    assert [row.state for row in await first.txns.rows()] == ["complete_commit"]


async def test_an_end_that_was_held_up_does_not_end_the_next_transaction(two: list[Log]) -> None:
    first, second = two
    producer = await begin(first, 1)

    def end(row: TxnRow | None) -> TxnRow:
        return txn.ended(row, producer, committed=True, version=1)

    held_up = await first.txns._move("id", end)
    await tick(second)
    # Version 1: the next transaction has the same producer id and epoch.
    await second.txns.add_partitions("id", producer, [key(second, 0), key(second, 1)])
    for partition in (0, 1):
        assert (await send(second, producer, partition, 1, version=1)).base_offset == 2
    prepared = await second.txns._move("id", end)
    alike = {name: getattr(held_up, name) for name in ("started_ms", "updated_ms", "partitions")}
    assert prepared._replace(**alike) == held_up
    await first.txns._finish(held_up)
    assert await first.txns.rows() == [prepared]
    assert await seen(second) == [[0], [0], []]
    await tick(second)
    assert await seen(first) == [[0, 2], [0, 2], []]


async def test_every_broker_stops_its_committed_readers_at_the_same_offset(two: list[Log]) -> None:
    first, second = two
    for round_ in range(4):
        producer = await first.txns.init_producer("id", MINUTE_MS)
        await send(first, producer)
        await second.refresh([key(second)])
        assert second.state(key(second)).high_watermark == 2 * round_ + 1
        assert await second.stability.last_stable_offset(key(second)) == 2 * round_
        await second.txns.end("id", producer, committed=round_ % 2 == 0, version=2)
        assert await seen(first) == await seen(second)
    assert await seen(first) == [[0, 4], [], []]


# --- who is late (F21, F23) ----------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 2])
async def test_a_newcomer_fences_the_one_before_and_drops_what_it_left(
    log: Log, version: int
) -> None:
    old = await begin(log, version)
    new = await log.txns.init_producer("id", MINUTE_MS)
    assert new.id == old.id
    assert new.epoch > old.epoch
    assert await visible(log) == [[], [], []]
    high_watermark = log.state(key(log)).high_watermark
    late = await send(log, old, 0, 1, version=version)
    assert late.error is ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.state(key(log)).high_watermark == high_watermark
    ending = log.txns.end("id", old, committed=True, version=version)
    assert await refusal(ending) is ErrorCode.PRODUCER_FENCED
    adding = log.txns.commit_offsets("id", old, "g", POSITIONS, implicit=True)
    assert await refusal(adding) is ErrorCode.PRODUCER_FENCED
    assert await log.committed("g") == {}


async def test_what_is_delayed_into_the_next_transaction_is_no_part_of_it(log: Log) -> None:
    first = await begin(log, 2)
    second = await log.txns.end("id", first, committed=True, version=2)
    await send(log, second, 2)
    assert (await send(log, first, 2, 1)).error is ErrorCode.INVALID_PRODUCER_EPOCH
    ending = log.txns.end("id", first, committed=False, version=2)
    assert await refusal(ending) is ErrorCode.PRODUCER_FENCED
    third = await log.txns.end("id", second, committed=True, version=2)
    assert third == (first.id, first.epoch + 2)
    assert await visible(log) == [[0], [0], [0]]


async def test_an_end_whose_reply_was_lost_is_answered_again(log: Log) -> None:
    producer = await begin(log, 2)
    given = await log.txns.end("id", producer, committed=True, version=2)
    assert await log.txns.end("id", producer, committed=True, version=2) == given
    aborting = log.txns.end("id", producer, committed=False, version=2)
    assert await refusal(aborting) is ErrorCode.INVALID_TXN_STATE
    assert log.state(key(log)).high_watermark == 2, "one marker, not two"


@pytest.mark.parametrize("version", [1, 2])
async def test_an_end_asked_for_again_while_it_is_written_is_answered_when_all_of_it_is_there(
    log: Log, version: int
) -> None:
    """Found by kills before every call: a broker that comes back ends what was prepared, too."""
    producer = await begin(log, version)

    async def end() -> None:
        await log.txns.end("id", producer, committed=True, version=version)
        assert await log.committed("g") == POSITIONS

    await asyncio.gather(end(), end(), log.txns.tick(), end())


async def test_a_new_epoch_whose_reply_was_lost_is_given_again(log: Log) -> None:
    producer = await begin(log, 2)
    given = await log.txns.init_producer("id", MINUTE_MS, producer)
    assert await log.txns.init_producer("id", MINUTE_MS, producer) == given
    assert await visible(log) == [[], [], []], "what it had open is aborted"
    assert (await send(log, given)).error is ErrorCode.NONE
    asking = log.txns.init_producer("id", MINUTE_MS, producer)
    assert await refusal(asking) is ErrorCode.PRODUCER_FENCED
    await log.txns.end("id", given, committed=True, version=2)
    assert await visible(log) == [[2], [], []]


async def test_a_batch_of_version_1_needs_its_partition_announced(log: Log) -> None:
    producer = await begin(log, 1)
    answer = await send(log, producer, 2, version=1)
    assert answer.error is ErrorCode.INVALID_TXN_STATE
    assert log.state(key(log, 2)).high_watermark == 0


async def test_a_batch_outside_of_transactions_is_refused_to_a_transactional_id(log: Log) -> None:
    producer = await begin(log, 2)
    answer = await send(log, producer, 2, transactional=False)
    assert answer.error is ErrorCode.INVALID_TXN_STATE
    nobody = Producer(await log.allocate_producer_id(), 0)
    assert (await send(log, nobody)).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (await send(log, nobody, transactional=False)).error is ErrorCode.NONE


async def test_a_first_batch_that_overtook_another_is_refused(log: Log) -> None:
    producer = await log.txns.init_producer("id", MINUTE_MS)
    answer = await send(log, producer, 0, base=1)
    assert answer.error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert (await send(log, producer, 0, base=0)).error is ErrorCode.NONE


async def test_a_repeated_batch_has_the_offset_it_got(log: Log) -> None:
    producer = await begin(log, 2)
    assert (await send(log, producer)).base_offset == 0
    assert log.state(key(log)).high_watermark == 1


# --- time, and what cannot be written now (F24) --------------------------------------------------


async def test_a_transaction_nobody_ends_is_aborted_when_its_time_is_out(open_log: Open) -> None:
    clock = ManualClock()
    log = await open_log(clock=clock)
    await log.create_topic("t", 3)
    producer = await begin(log, 2)
    await log.txns.tick()
    assert log.state(key(log)).last_stable_offset == 0
    assert log.txns.open_count == 1
    clock.advance(MINUTE_MS)
    await log.txns.tick()
    assert log.state(key(log)).last_stable_offset == 2
    assert await visible(log) == [[], [], []]
    for committed in (True, False):
        ending = log.txns.end("id", producer, committed=committed, version=2)
        assert await refusal(ending) is ErrorCode.PRODUCER_FENCED
    await log.txns.tick()
    assert log.txns.open_count == 0


class WrongClock(ManualClock):
    """A wall clock that may be wrong, beside one that never is."""

    wrong_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.wrong_ms


@pytest.mark.parametrize("wrong_ms", [60 * MINUTE_MS, -60 * MINUTE_MS])
async def test_the_time_of_a_transaction_is_not_that_of_the_clock_it_began_by(
    open_log: Open, wrong_ms: int
) -> None:
    clock = WrongClock()
    log = await open_log(clock=clock)
    await log.create_topic("t", 3)
    clock.wrong_ms = wrong_ms
    await begin(log, 2)
    clock.wrong_ms = 0
    await log.txns.tick()
    await clock.sleep(MINUTE_MS / 1000 - 1)
    await log.txns.tick()
    assert log.txns.open_count == 1
    await clock.sleep(1)
    await log.txns.tick()
    assert log.state(key(log)).last_stable_offset == 2


async def test_an_id_that_is_silent_is_forgotten_but_not_with_something_open(
    open_log: Open, tmp_path: Path
) -> None:
    clock = ManualClock()
    log = await open_log(clock=clock)
    await log.create_topic("t", 3)
    ended = await begin(log, 2)
    ended = await log.txns.end("id", ended, committed=True, version=2)
    opened = await log.txns.init_producer("open", MINUTE_MS)
    await send(log, opened, 2)
    clock.advance(QUIET.transactional_id_expiry_ms)
    await log.keeping.retain()
    assert {row.transactional_id for row in await log.txns.rows()} == {"id", "open"}
    clock.advance(1)
    await log.keeping.retain()
    for again in (log, await open_log(crashed(tmp_path / "live", tmp_path / "copy"))):
        assert [row.transactional_id for row in await again.txns.rows()] == ["open"]
        assert (await send(again, ended)).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        asking = again.txns.end("id", ended, committed=True, version=2)
        assert await refusal(asking) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert (await again.txns.init_producer("id", MINUTE_MS)).id > opened.id
        await again.txns.end("open", opened, committed=True, version=2)


async def test_an_id_forgotten_while_its_end_is_taken_care_of_stops_nobody(two: list[Log]) -> None:
    first, second = two
    producer = await begin(first, 2)
    (ongoing,) = await second.txns.rows()
    prepared = await first.txns._move(
        "id", lambda row: txn.ended(row, producer, committed=True, version=2)
    )
    await first.txns._finish(prepared)
    await first._core.forget_txns(2**60)
    late: Any = second.txns
    for stale in (ongoing._replace(timeout_ms=0), prepared):
        late._unfinished = AsyncMock(return_value=[stale])
        await tick(second)
    assert await first.txns.rows() == []


async def test_an_end_that_a_newcomer_overtook_is_not_answered_with_its_epoch(
    two: list[Log],
) -> None:
    first, second = two
    producer = await begin(first, 2)
    held_up: Any = first.txns
    finish, given = held_up._finish, []

    async def late(row: TxnRow) -> TxnRow:
        await tick(second)
        given.append(await second.txns.init_producer("id", MINUTE_MS))
        return await finish(row)

    held_up._finish = late
    ended = await first.txns.end("id", producer, committed=True, version=2)
    assert ended == (producer.id, producer.epoch + 1)
    assert given == [(producer.id, producer.epoch + 2)]
    assert await seen(first) == [[0], [0], []]


async def test_markers_that_cannot_be_written_are_written_later(log: Log) -> None:
    producer = await begin(log, 2)
    core: Any = log._core
    submit = core.writer.submit

    def refuse(batches: list[Submission]) -> Any:
        answer = asyncio.get_running_loop().create_future()
        answer.set_result([Appended(ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, -1)] * len(batches))
        return answer

    core.writer.submit = refuse
    given = await log.txns.end("id", producer, committed=True, version=2)
    assert given == (producer.id, producer.epoch + 1)
    assert await visible(log) == [[], [], []]
    core.writer.submit = submit
    assert (await send(log, given, 2)).error is ErrorCode.CONCURRENT_TRANSACTIONS
    await log.txns.tick()
    assert await visible(log) == [[0], [0], []]
    assert await log.committed("g") == POSITIONS
    assert (await send(log, given, 2)).error is ErrorCode.NONE


async def test_a_topic_deleted_meanwhile_takes_its_part_with_it(log: Log) -> None:
    producer = await begin(log, 2)
    await log.delete_topic("t")
    producer = await log.txns.end("id", producer, committed=True, version=2)
    await log.create_topic("t", 3)
    assert (await send(log, producer)).error is ErrorCode.NONE
    await log.txns.end("id", producer, committed=True, version=2)
    assert await visible(log) == [[0], [], []]


async def test_positions_alone_are_a_transaction(log: Log) -> None:
    producer = await log.txns.init_producer("id", MINUTE_MS)
    await log.txns.commit_offsets("id", producer, "g", POSITIONS, implicit=True)
    assert await log.committed("g") == {}
    producer = await log.txns.end("id", producer, committed=True, version=2)
    assert await log.committed("g") == POSITIONS
    await log.txns.commit_offsets("id", producer, "g", {("t", 0): OffsetCommit(99)}, implicit=True)
    await log.txns.end("id", producer, committed=False, version=2)
    assert await log.committed("g") == POSITIONS


async def test_when_the_epochs_are_used_up_the_producer_gets_a_new_id(log: Log) -> None:
    producer = await begin(log, 2)
    row = log._core.txns[producer.id]
    almost = row._replace(epoch=LAST_EPOCH - 1)
    await log.txns._move("id", lambda _: almost)
    last = Producer(producer.id, LAST_EPOCH - 1)
    new = await log.txns.end("id", last, committed=True, version=2)
    assert new.id != producer.id
    assert new.epoch == 0
    assert await visible(log) == [[0], [0], []]
    assert (await send(log, last, 0, 5)).error is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert (await send(log, new)).error is ErrorCode.NONE


async def test_a_reader_of_committed_records_is_told_exactly_what_lies_in_its_answer(
    log: Log,
) -> None:
    names = ["a", "b", "c"]
    for name in names:
        producer = await log.txns.init_producer(name, MINUTE_MS)
        await send(log, producer)
        await log.txns.end(name, producer, committed=name == "b", version=2)
    # Offsets: a 0, its end 1, b 2, its end 3, c 4, its end 5.

    async def aborted_in(offset: int, max_bytes: int) -> list[tuple[int, int]]:
        read = await log.read(key(log), offset, max_bytes, at_least_one=True, committed=True)
        return [(row.first_offset, row.last_offset) for row in read.aborted]

    assert await aborted_in(0, 1) == [(0, 1)]
    assert await aborted_in(1, 1) == [(0, 1)]
    assert await aborted_in(2, 1) == []
    assert await aborted_in(3, 1 << 20) == [(4, 5)]
    assert await aborted_in(0, 1 << 20) == [(0, 1), (4, 5)]
    everything = await log.read(key(log), 0, 1 << 20, at_least_one=True)
    assert everything.aborted == ()
