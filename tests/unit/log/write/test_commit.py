"""Appending among many brokers: order, fencing, doubt, and back-pressure."""

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.unit.log.shared import (
    World,
    append,
    batch,
    catalog_of,
    everything,
    offsets,
    settled,
    until,
)

from catchwater.catalog.memory import MemoryCatalog
from catchwater.catalog.rows import PartitionKey, Session
from catchwater.log.log import Log
from catchwater.objects.base import Buffer
from catchwater.wal.base import Position, Wal, WalDead, WalFull, WalUnavailable
from catchwater.wal.file import FileWal
from catchwater.wal.object import ObjectWal
from catchwater.wal.open import session_prefix
from catchwater.wal.postgres import PostgresWal
from catchwater.wire.errors import ErrorCode

STORAGE = ErrorCode.KAFKA_STORAGE_ERROR
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def topic(log: Log, partitions: int = 2) -> list[PartitionKey]:
    made = await log.create_topic("t", partitions)
    return [(made.id, index) for index in range(partitions)]


class GatedWal(ObjectWal):
    """An append waits until its number is let through; a failure is raised instead."""

    def __init__(self, world: World, session: Session) -> None:
        super().__init__(world.store, world.clock, prefix=session_prefix(session), linger_ms=0)
        self.gates: list[threading.Event] = []
        self.is_open = True
        self.failure: Exception | None = None
        self._gate_lock = threading.Lock()

    def append(self, parts: Sequence[Buffer]) -> Position:
        if self.failure is not None:
            raise self.failure
        with self._gate_lock:
            gate = threading.Event()
            self.gates.append(gate)
        if self.is_open:
            gate.set()
        position = super().append(parts)
        assert gate.wait(60)
        return position

    def open(self) -> None:
        self.is_open = True
        for gate in self.gates:
            gate.set()


async def gated(world: World) -> tuple[Log, GatedWal, list[PartitionKey]]:
    log = await world.log(wal=lambda session: GatedWal(world, session))
    wal = world.wals[-1]
    assert isinstance(wal, GatedWal)
    return log, wal, await topic(log)


# --- the order of things -------------------------------------------------------------------------


async def test_two_brokers_append_to_one_partition_and_both_see_it_all(world: World) -> None:
    one, two = await world.log(1), await world.log(2)
    key, other = await topic(one)
    await until(lambda: two.topics.get("t"))
    waiting = two.wait_for([key])
    assert await offsets(one, batch(key, 3), batch(other)) == [0, 0]
    await asyncio.wait_for(waiting, 60)
    assert await offsets(two, batch(key, 2)) == [3]
    assert await offsets(one, batch(key)) == [5]
    await until(lambda: two.state(key).high_watermark == 6)
    assert await everything(one, key) == await everything(two, key)
    assert len(await everything(two, key)) == 3


async def test_writes_that_overtake_each_other_are_committed_in_the_order_of_submission(
    world: World,
) -> None:
    log, wal, (key, _) = await gated(world)
    wal.is_open = False
    answers = []
    for n in range(3):
        answers.append(log.submit([batch(key, producer=(5, 0, n))]))
        await until(lambda n=n: len(wal.gates) == n + 1)
    wal.gates[2].set()
    wal.gates[1].set()
    await settled()
    assert not any(answer.done() for answer in answers)
    wal.gates[0].set()
    done = [await answer for answer in answers]
    assert [answer[0].base_offset for answer in done] == [0, 1, 2]


async def test_what_arrives_while_all_slots_are_taken_becomes_one_chunk(world: World) -> None:
    log, wal, (key, _) = await gated(world)
    wal.is_open = False
    first = []
    for n in range(wal.max_in_flight + 1):
        first.append(log.submit([batch(key)]))
        await until(lambda n=n: len(wal.gates) == min(n + 1, wal.max_in_flight))
        await settled()
    rest = [log.submit([batch(key)]) for _ in range(20)]
    await settled()
    assert len(wal.gates) == wal.max_in_flight
    wal.open()
    await asyncio.gather(*first, *rest)
    assert len(wal.gates) == wal.max_in_flight + 1


async def test_a_wal_that_asks_for_it_is_given_time_until_there_is_enough(world: World) -> None:
    def slow(session: Session) -> Wal:
        wal = world.object_wal(session, linger_ms=3_600_000)
        wal.linger_bytes = 1000
        return wal

    log = await world.log(wal=slow)
    key, _ = await topic(log)
    answers = [log.submit([batch(key)]) for _ in range(3)]
    await settled()
    assert not any(answer.done() for answer in answers)
    answers.append(log.submit([batch(key, 100)]))
    assert [(await answer)[0].base_offset for answer in answers] == [0, 1, 2, 3]
    assert len(list(world.store.list("wal/"))) == 1
    last = log.submit([batch(key)])
    await log.close()
    world.logs.remove(log)
    assert (await last)[0].base_offset == 103


async def test_more_than_may_wait_is_refused_and_may_come_again(world: World) -> None:
    log, wal, (key, _) = await gated(world)
    log._core.intake._max_pending_bytes = 200
    wal.is_open = False
    first = log.submit([batch(key, 10)])
    assert log.unflushed_bytes > 100
    (refused,) = await append(log, batch(key, 10))
    assert refused.error == STORAGE
    wal.open()
    assert (await first)[0].base_offset == 0
    assert log.unflushed_bytes == 0
    assert await offsets(log, batch(key)) == [10]


async def test_bytes_that_travel_in_the_commit_can_be_read_by_the_other_brokers(
    world: World,
) -> None:
    def in_commit(session: Session) -> Wal:
        return PostgresWal(MemoryCatalog(world.database), prefix=session_prefix(session))

    one, two = await world.log(1, wal=in_commit), await world.log(2, wal=in_commit)
    key, _ = await topic(one)
    await until(lambda: two.topics.get("t"))
    sent = batch(key, 3)
    assert await offsets(one, sent) == [0]
    await until(lambda: two.state(key).high_watermark)
    assert await everything(two, key) == [(0, bytes(sent.data)[16:])]


# --- fenced --------------------------------------------------------------------------------------


async def test_once_superseded_nothing_in_hand_is_acknowledged_and_a_new_session_goes_on(
    world: World,
) -> None:
    log, wal, (key, _) = await gated(world)
    other = await world.log(2)
    assert await offsets(log, batch(key)) == [0]
    wal.is_open = False
    in_flight = [log.submit([batch(key, text="lost")]) for _ in range(2)]
    await until(lambda: wal.gates and not wal.gates[-1].is_set())
    ended = log.session
    assert ended is not None
    await asyncio.wrap_future(catalog_of(other).leave(ended))
    waiting = [log.submit([batch(key, text="lost")]) for _ in range(3)]
    wal.open()
    for answer in [*in_flight, *waiting]:
        assert [a.error for a in await answer] == [NOT_LEADER]
    await until(lambda: log.session != ended and log._core.writer._source is not None)
    assert await offsets(log, batch(key)) == [1]
    assert world.wals[-1].prefix == session_prefix(log.session)  # type: ignore[arg-type]
    assert world.wals[-1].prefix != wal.prefix
    assert log._core.storage.wal is world.wals[-1]


async def test_a_write_that_hangs_in_the_old_session_does_not_hold_up_the_new_one(
    world: World,
) -> None:
    log, wal, (key, _) = await gated(world)
    wal.is_open = False
    hanging = log.submit([batch(key, text="lost")])
    await until(lambda: wal.gates)
    assert log.session is not None
    await asyncio.wrap_future(catalog_of(log).leave(log.session))
    await world.beat()
    assert [answer.error for answer in await asyncio.wait_for(hanging, 60)] == [NOT_LEADER]
    await until(lambda: len(world.wals) == 2 and log._core.writer._source is not None)
    await settled()
    assert await offsets(log, batch(key)) == [0]
    wal.open()


async def test_a_pause_longer_than_the_session_costs_no_acknowledged_record(world: World) -> None:
    paused, other = await world.log(1), await world.log(2)
    key, _ = await topic(paused)
    await until(lambda: other.topics.get("t"))
    assert await offsets(paused, batch(key)) == [0]
    catalog_of(paused).is_cut = True
    for _ in range(5):
        await world.beat()
    assert [row.id for row in other.brokers()] == [2]
    catalog_of(paused).is_cut = False
    (late,) = await append(paused, batch(key, text="late"))
    assert late.error == NOT_LEADER
    await world.beat()
    await until(lambda: paused._core.writer._source is not None)
    assert await offsets(paused, batch(key)) == [1]


async def test_two_processes_with_one_id_do_not_take_turns(world: World) -> None:
    first = await world.log(1)
    key, _ = await topic(first)
    second = await world.log(1, host="elsewhere")
    assert (await append(first, batch(key)))[0].error == NOT_LEADER
    await until(lambda: first.has_failed)
    assert first.cluster is not None and first.cluster.replaced.is_set()
    assert (await append(first, batch(key)))[0].error == NOT_LEADER
    for _ in range(5):
        await world.beat()
    assert await offsets(second, batch(key)) == [0]


# --- in doubt ------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lost", "unanswered"])
async def test_a_commit_in_doubt_is_found_out_and_happens_once(world: World, fault: str) -> None:
    log = await world.log()
    key, other = await topic(log)
    assert await offsets(log, batch(key, 2, producer=(7, 0, 0))) == [0]
    catalog_of(log).faults = [fault]
    sent = [
        batch(key, 2, producer=(7, 0, 0)),  # a duplicate
        batch(other, 3),
        batch(key, 1, producer=(7, 0, 2)),
        batch((b"none" * 4, 0), 1),
        batch(key, 4),
        batch(key, 1, producer=(7, 0, 9)),  # out of order
    ]
    answers = await append(log, *sent)
    assert [(answer.error, answer.base_offset) for answer in answers] == [
        (ErrorCode.NONE, 0),
        (ErrorCode.NONE, 0),
        (ErrorCode.NONE, 2),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1),
        (ErrorCode.NONE, 3),
        (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1),
    ]
    assert (log.state(key).high_watermark, log.state(other).high_watermark) == (7, 3)
    assert await everything(log, other) == [(0, bytes(sent[1].data)[16:])]


async def test_in_a_file_of_many_chunks_each_is_found_for_itself(
    world: World, tmp_path: Path
) -> None:
    def file_wal(session: Session) -> Wal:
        folder = tmp_path / "wal" / session_prefix(session)
        folder.mkdir(parents=True)
        return FileWal(tmp_path, world.clock, applied=0, prefix=session_prefix(session))

    log = await world.log(wal=file_wal)
    key, _ = await topic(log)
    for n, fault in enumerate(["", "lost", "unanswered", "lost", "unanswered", ""]):
        catalog_of(log).faults = [fault] if fault else []
        assert await offsets(log, batch(key)) == [n]
    assert log.state(key).high_watermark == 6


async def test_doubt_that_cannot_be_ended_is_answered_as_such_and_a_retry_is_no_duplicate(
    world: World,
) -> None:
    log = await world.log()
    key, _ = await topic(log)
    catalog_of(log).faults = ["unanswered", "unavailable"]
    sent = batch(key, 2, producer=(7, 0, 0))
    assert [answer.error for answer in await append(log, sent)] == [STORAGE]
    assert await offsets(log, sent) == [0]
    await log.refresh([key])
    assert log.state(key).high_watermark == 2


# --- out of reach --------------------------------------------------------------------------------


async def test_a_catalog_out_of_reach_is_a_retriable_error_and_no_end(world: World) -> None:
    log = await world.log()
    key, _ = await topic(log)
    catalog_of(log).faults = ["unavailable"]
    assert [answer.error for answer in await append(log, batch(key))] == [STORAGE]
    assert not log.has_failed
    assert await offsets(log, batch(key)) == [0]


@pytest.mark.parametrize("error", [WalFull("full"), WalUnavailable("no answer")])
async def test_a_wal_that_does_not_take_it_now_may_take_it_later(
    world: World, error: Exception
) -> None:
    log, wal, (key, _) = await gated(world)
    wal.failure = error
    assert [answer.error for answer in await append(log, batch(key))] == [STORAGE]
    wal.failure = None
    assert await offsets(log, batch(key)) == [0]


async def test_what_is_behind_a_chunk_that_failed_is_refused_with_it(world: World) -> None:
    log, wal, (key, _) = await gated(world)
    wal.is_open = False
    first = asyncio.ensure_future(append(log, batch(key, producer=(7, 0, 0))))
    await until(lambda: len(wal.gates) == 1)
    behind = asyncio.ensure_future(append(log, batch(key, producer=(7, 0, 1))))
    await until(lambda: len(wal.gates) == 2)
    catalog_of(log).faults = ["unavailable"]
    wal.open()
    assert [answer.error for answer in [*await first, *await behind]] == [STORAGE, STORAGE]
    assert await offsets(log, batch(key, producer=(7, 0, 0))) == [0]
    assert await offsets(log, batch(key, producer=(7, 0, 1))) == [1]


async def test_after_the_wal_has_died_nothing_is_taken(world: World) -> None:
    log, wal, (key, _) = await gated(world)
    wal.failure = WalDead("gone")
    assert [answer.error for answer in await append(log, batch(key))] == [STORAGE]
    assert log.has_failed
    assert [answer.error for answer in await append(log, batch(key))] == [STORAGE]


async def test_closing_answers_what_was_submitted_and_leaves(world: World) -> None:
    log, other = await world.log(1), await world.log(2)
    key, _ = await topic(log)
    answers = [log.submit([batch(key)]) for _ in range(5)]
    await log.close()
    world.logs.remove(log)
    assert [(await answer)[0].base_offset for answer in answers] == [0, 1, 2, 3, 4]
    await until(lambda: [row.id for row in other.brokers()] == [2])


async def test_an_idle_broker_that_was_superseded_is_ready_again_before_anybody_asks(
    world: World,
) -> None:
    log = await world.log()
    key, _ = await topic(log)
    ended = log.session
    assert ended is not None
    await asyncio.wrap_future(catalog_of(log).leave(ended))
    await world.beat()
    await until(lambda: len(world.wals) == 2 and log._core.writer._source is not None)
    await settled()
    assert await offsets(log, batch(key)) == [0]
