"""The writer over a WAL that stops, fills and fails when it is told to, states in memory."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from catchwater.catalog.errors import CatalogDead
from catchwater.catalog.rows import Changes, PartitionRow, Snapshot
from catchwater.clock import ManualClock
from catchwater.log.format.chunk import ChunkError, decode_index
from catchwater.log.write import writer
from catchwater.log.write.writer import Appended, EmbeddedCommitter, Intake, Submission, Writer
from catchwater.objects.base import Buffer
from catchwater.wal.base import Position, WalDead, WalFull
from catchwater.wal.file import FileWal
from catchwater.wire.batch import read_header
from catchwater.wire.errors import ErrorCode

T1 = b"1" * 16
FILE = f"wal/{1:020d}.wal"


def committer(catalog: Any) -> EmbeddedCommitter:
    """Two empty partitions."""
    rows = [PartitionRow(T1, index, 0, 0, 0, -1) for index in range(2)]
    return EmbeddedCommitter(catalog, Snapshot("", 0, [], rows, []))


class MemoryWal:
    """Keeps frames; a cleared `gate` stops the next append, a `failure` is raised by every one."""

    linger_ms = 0
    linger_bytes = 0
    max_in_flight = 1
    in_commit = False

    def __init__(self) -> None:
        self.payloads: list[bytes] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.failure: Exception | None = None

    def append(self, parts: Sequence[Buffer]) -> Position:
        self.entered.set()
        assert self.gate.wait(60)
        if self.failure is not None:
            raise self.failure
        self.payloads.append(b"".join(parts))
        return self._position(len(self.payloads))

    def frames(self, after: int) -> Iterator[tuple[Position, memoryview]]:
        for sequence in range(after + 1, len(self.payloads) + 1):
            yield self._position(sequence), memoryview(self.payloads[sequence - 1])

    def close(self) -> None:
        pass

    def _position(self, sequence: int) -> Position:
        before = sum(map(len, self.payloads[: sequence - 1]))
        return Position(sequence, FILE, before, len(self.payloads[sequence - 1]))


class MemoryCatalog:
    def __init__(self) -> None:
        self.applied: list[tuple[int, Changes]] = []
        self.dead = False

    def apply(self, sequence: int, changes: Changes) -> None:
        if self.dead:
            raise CatalogDead("gone")
        self.applied.append((sequence, changes))


class Frame:
    def __init__(self) -> None:
        self.released = 0

    def release(self) -> None:
        self.released += 1


class Bench:
    """A writer with two partitions over a WAL and a catalog in memory."""

    def __init__(
        self, make_batch: Callable[..., bytes], pending_bytes: int = 1 << 20, wal: Any = None
    ) -> None:
        self.make_batch = make_batch
        self.wal, self.catalog = wal or MemoryWal(), MemoryCatalog()
        by = committer(self.catalog)
        self.states = by.states
        self.seen: list[int] = []
        self.intake = Intake(pending_bytes, self.states)
        by.on_committed = lambda runs, start, payload: self.seen.append(start)
        self.writer = Writer(by, self.intake, ManualClock(now_ms=77), self.wal)

    def batch(self, partition: int, value: bytes) -> Submission:
        data = memoryview(self.make_batch([value]))
        return Submission((T1, partition), read_header(data), data)

    async def stop_at_the_gate(self) -> "asyncio.Future[Any]":
        """One append in the WAL's hands, so that what follows is gathered."""
        self.wal.gate.clear()
        self.wal.entered.clear()
        first = self.writer.submit([self.batch(0, b"first")])
        await asyncio.to_thread(self.wal.entered.wait, 60)
        return first


@pytest.fixture
def bench(make_batch: Callable[..., bytes]) -> Callable[..., Bench]:
    return lambda **options: Bench(make_batch, **options)


async def test_what_arrives_during_a_sync_is_the_next_chunk(bench: Callable[..., Bench]) -> None:
    log = bench()
    first = await log.stop_at_the_gate()
    rest = [log.writer.submit([log.batch(n % 2, b"%d" % n)]) for n in range(50)]
    assert not first.done()
    log.wal.gate.set()
    await asyncio.wait_for(asyncio.gather(first, *rest), 60)
    assert len(log.wal.payloads) == 2
    assert len(log.seen) == 2
    await log.writer.close()


async def test_answers_come_in_the_order_of_the_batches_whatever_the_chunks_order(
    bench: Callable[..., Bench],
) -> None:
    log = bench()
    first = await log.stop_at_the_gate()
    mixed = [log.batch(1, b"a"), log.batch(0, b"b"), log.batch(1, b"c"), log.batch(0, b"d")]
    one, two = log.writer.submit(mixed), log.writer.submit(mixed[:2])
    log.wal.gate.set()
    await first
    assert [answer.base_offset for answer in await one] == [0, 1, 1, 2]
    assert [answer.base_offset for answer in await two] == [2, 3]
    assert (await one)[0] == Appended(ErrorCode.NONE, 0, 0, 77)
    entries = decode_index(log.wal.payloads[1]).entries
    assert [entry.partition for entry in entries] == [0, 0, 0, 1, 1, 1]
    assert len(log.catalog.applied[1][1].runs) == 2
    await log.writer.close()


async def test_nothing_is_acknowledged_before_it_is_synced(bench: Callable[..., Bench]) -> None:
    log = bench()
    answer = await log.stop_at_the_gate()
    await asyncio.sleep(0)
    assert not answer.done()
    assert log.states[T1, 0].high_watermark == 0
    log.wal.gate.set()
    await answer
    assert log.catalog.applied[0][0] == 1
    await log.writer.close()


async def test_a_frame_is_released_once_and_not_before_the_write(
    bench: Callable[..., Bench],
) -> None:
    log = bench()
    first = await log.stop_at_the_gate()
    frame = Frame()
    answer = log.writer.submit([log.batch(0, b"a"), log.batch(1, b"b")], frame)
    answer.cancel()
    assert frame.released == 0
    log.wal.gate.set()
    await first
    await log.writer.close()
    assert frame.released == 1
    assert log.states[T1, 1].high_watermark == 1


async def test_too_much_waiting_is_refused_and_taken_again_later(
    bench: Callable[..., Bench],
) -> None:
    log = bench(pending_bytes=400)
    first = await log.stop_at_the_gate()
    frame = Frame()
    second = log.writer.submit([log.batch(0, b"x" * 200)])
    (refused,) = await log.writer.submit([log.batch(0, b"y" * 200)], frame)
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert frame.released == 1
    log.wal.gate.set()
    await asyncio.gather(first, second)
    (taken,) = await log.writer.submit([log.batch(0, b"z" * 900)])
    assert taken.base_offset == 2
    await log.writer.close()


async def test_while_one_is_refused_for_too_much_waiting_no_smaller_one_passes_it(
    bench: Callable[..., Bench],
) -> None:
    log = bench(pending_bytes=500)
    first = await log.stop_at_the_gate()
    answers = [log.writer.submit([log.batch(0, b"x" * size)]) for size in (900, 1, 1)]
    for answer in answers:
        assert [each.error for each in await answer] == [ErrorCode.KAFKA_STORAGE_ERROR]
    log.wal.gate.set()
    await first
    (taken,) = await log.writer.submit([log.batch(0, b"x" * 900)])
    assert (taken.error, taken.base_offset) == (ErrorCode.NONE, 1)
    await log.writer.close()


def numbered(log: Bench, sequence: int, *, epoch: int = 0, size: int = 1) -> Submission:
    """A batch of an idempotent producer that the partition knows nothing of."""
    plain = log.batch(0, b"x" * size)
    header = plain.header._replace(producer_id=9, producer_epoch=epoch, base_sequence=sequence)
    return plain._replace(header=header)


@pytest.mark.parametrize("reason", ["too much waiting", "no space"])
async def test_a_later_batch_of_a_producer_waits_for_the_one_that_was_refused(
    bench: Callable[..., Bench], reason: str
) -> None:
    log = bench(pending_bytes=500)
    if reason == "no space":
        log.wal.failure = WalFull("no space")
        (refused,) = await log.writer.submit([numbered(log, 0)])
        log.wal.failure = None
    else:
        first = await log.stop_at_the_gate()
        (refused,) = await log.writer.submit([numbered(log, 0, size=900)])
        log.wal.gate.set()
        await first
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR

    async def errors(*batches: Submission) -> list[ErrorCode]:
        answers = [log.writer.submit([batch]) for batch in batches]
        return [answer.error for each in answers for answer in await each]

    # They were on their way before the producer heard of it: any may be its first here.
    late = [numbered(log, sequence) for sequence in (1, 2)]
    assert await errors(*late) == [ErrorCode.KAFKA_STORAGE_ERROR] * 2
    assert await errors(log.batch(0, b"of nobody")) == [ErrorCode.NONE]
    assert await errors(numbered(log, 0), *late) == [ErrorCode.NONE] * 3
    await log.writer.close()


@pytest.mark.parametrize("way", ["a new epoch", "time"])
async def test_a_producer_that_gave_its_batch_up_goes_on(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    log = bench()
    log.wal.failure = WalFull("no space")
    await log.writer.submit([numbered(log, 5)])
    log.wal.failure = None
    if way == "time":
        loop = asyncio.get_running_loop()
        later_s = loop.time() + writer.RESEND_S + 1
        monkeypatch.setattr(loop, "time", lambda: later_s)
        (taken,) = await log.writer.submit([numbered(log, 6)])
    else:
        (taken,) = await log.writer.submit([numbered(log, 6, epoch=1)])
    assert taken.error == ErrorCode.NONE
    await log.writer.close()


async def test_a_full_disk_refuses_and_the_next_append_works(bench: Callable[..., Bench]) -> None:
    log = bench()
    log.wal.failure = WalFull("no space")
    frame = Frame()
    (refused,) = await log.writer.submit([log.batch(0, b"a")], frame)
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert frame.released == 1
    log.wal.failure = None
    (taken,) = await log.writer.submit([log.batch(0, b"a")])
    assert (taken.error, taken.base_offset) == (ErrorCode.NONE, 0)
    await log.writer.close()


async def test_what_came_behind_a_refused_chunk_is_refused_with_it(
    bench: Callable[..., Bench],
) -> None:
    log = bench()
    first = await log.stop_at_the_gate()
    log.wal.failure = WalFull("no space")
    waiting = [log.writer.submit([log.batch(0, b"a")]) for _ in range(3)]
    log.wal.gate.set()
    assert [answer.error for answer in await first] == [ErrorCode.KAFKA_STORAGE_ERROR]
    for answer in waiting:
        assert [each.error for each in await answer] == [ErrorCode.KAFKA_STORAGE_ERROR]
    log.wal.failure = None
    (taken,) = await log.writer.submit([log.batch(0, b"a")])
    assert taken.base_offset == 0
    await log.writer.close()


async def test_after_a_failed_sync_nothing_is_acknowledged(bench: Callable[..., Bench]) -> None:
    log = bench()
    log.wal.failure = WalDead("sync failed")
    for _ in range(2):
        (refused,) = await log.writer.submit([log.batch(0, b"a")])
        assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    log.wal.failure = None
    (refused,) = await log.writer.submit([log.batch(0, b"a")])
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.wal.payloads
    await log.writer.close()


async def test_without_a_catalog_nothing_is_acknowledged(bench: Callable[..., Bench]) -> None:
    log = bench()
    log.catalog.dead = True
    (refused,) = await log.writer.submit([log.batch(0, b"a")])
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    log.catalog.dead = False
    (refused,) = await log.writer.submit([log.batch(0, b"b")])
    assert refused.error == ErrorCode.KAFKA_STORAGE_ERROR
    assert not log.catalog.applied
    await log.writer.close()


async def test_between_chunks_nothing_is_sequenced_and_after_it_all_in_order(
    bench: Callable[..., Bench],
) -> None:
    log = bench()
    answers = []

    async def change() -> None:
        for n in range(3):
            log.wal.entered.clear()
            answers.append(log.writer.submit([log.batch(0, b"%d" % n)]))
            await asyncio.to_thread(log.wal.entered.wait, 60)
        await asyncio.to_thread(lambda: None)
        assert log.states[T1, 0].high_watermark == 0
        assert not any(answer.done() for answer in answers)
        raise KeyError

    with pytest.raises(KeyError):
        await log.writer.between_chunks(change)
    offsets = [(await answer)[0].base_offset for answer in answers]
    assert offsets == [0, 1, 2]
    await log.writer.close()


async def test_a_waiter_wakes_at_an_append_to_one_of_its_partitions(
    bench: Callable[..., Bench],
) -> None:
    log = bench()
    both = log.intake.wait_for([(T1, 0), (T1, 1)])
    other = log.intake.wait_for([(T1, 1)])
    await log.writer.submit([log.batch(0, b"a")])
    await both
    assert not other.done()
    other.cancel()
    await asyncio.sleep(0)
    assert not log.intake._waiters
    await log.writer.close()


async def test_closing_answers_what_was_submitted(bench: Callable[..., Bench]) -> None:
    log = bench()
    first = await log.stop_at_the_gate()
    second = log.writer.submit([log.batch(0, b"a")])
    closing = asyncio.ensure_future(log.writer.close())
    log.wal.gate.set()
    await closing
    assert first.done() and second.done()


async def test_a_replay_gives_the_catalog_what_it_was_given_before(
    bench: Callable[..., Bench],
) -> None:
    log = bench()
    for n in range(5):
        await log.writer.submit([log.batch(n % 2, b"%d" % n), log.batch(0, b"x")])
    await log.writer.close()
    again = MemoryCatalog()
    by = committer(again)
    assert by.catch_up(log.wal.frames(0)) == 5
    assert again.applied == log.catalog.applied
    assert by.states == log.states


async def test_a_frame_that_is_no_chunk_is_named(bench: Callable[..., Bench]) -> None:
    log = bench()
    await log.writer.close()
    log.wal.payloads = [b"x" * 100]
    with pytest.raises(ChunkError, match=f"Frame 1 at byte 0 of {FILE}"):
        committer(log.catalog).catch_up(log.wal.frames(0))


async def test_cut_at_every_byte_the_replay_gives_a_prefix_with_the_same_offsets(
    make_batch: Callable[..., bytes], tmp_path: Path
) -> None:
    bench = Bench(make_batch, wal=FileWal(tmp_path, ManualClock(), applied=0))
    path = tmp_path / "wal" / f"{1:020d}.wal"
    acknowledged = []
    for n in range(7):
        submissions = [bench.batch(n % 2, b"%d" % n), bench.batch(0, b"x" * n)]
        offsets = [answer.base_offset for answer in await bench.writer.submit(submissions)]
        acknowledged.append((path.stat().st_size, offsets))
    await bench.writer.close()
    whole = path.read_bytes()
    for cut in range(len(whole), -1, -1):
        path.write_bytes(whole[:cut])
        again = FileWal(tmp_path, ManualClock(), applied=0)
        catalog = MemoryCatalog()
        committer(catalog).catch_up(again.frames(0))
        again.close()
        applied = catalog.applied
        assert applied == bench.catalog.applied[: len(applied)]
        assert len(applied) >= sum(size <= cut for size, _ in acknowledged)
