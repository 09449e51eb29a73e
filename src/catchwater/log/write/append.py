"""Many batches, one WAL write, then their offsets and acknowledgements.

The event loop hands batches to one thread. The thread takes whatever has arrived while its last
sync was in flight, writes it as one chunk, and posts one callback to the loop; there the chunk is
sequenced, applied to the catalog, kept for readers and acknowledged. No timer, no queue between.

Promises: nothing is acknowledged that is not synced; chunks are sequenced in the order of the WAL;
when the WAL or the catalog has failed for good, nothing is acknowledged any more. What is refused
(too much waiting, no space) is refused with a retriable error and was not appended.

`between_chunks` stops sequencing, not writing: whoever holds it may commit a change of the
catalog that lies between two chunks, and has the states to itself.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from catchwater.catalog.base import CatalogDead, EmbeddedCatalog
from catchwater.catalog.rows import (
    Changes,
    ObjectRow,
    PartitionKey,
)
from catchwater.clock import Clock
from catchwater.log.format.chunk import Chunk, ChunkError, decode_index, encode
from catchwater.log.write.producers import Txns
from catchwater.log.write.sequence import PartitionState, Sequenced, catalog_changes, sequence
from catchwater.wal.base import Position, RecoverableWal, Wal, WalDead, WalFull
from catchwater.wire.batch import BatchHeader
from catchwater.wire.errors import ErrorCode

_LOG = logging.getLogger(__name__)

States = dict[PartitionKey, PartitionState]


class Held(Protocol):
    """What keeps a submission's bytes in place: a `wire.frames.Frame`."""

    def release(self) -> None:
        """The bytes are no longer needed."""


class Submission(NamedTuple):
    """One checked batch for one partition.

    A `frame` is released once, after the write; of several batches in one frame only one bears it.
    """

    partition: PartitionKey
    header: BatchHeader
    data: memoryview
    frame: Held | None


class Appended(NamedTuple):
    """The answer to one submission; the time is milliseconds since the Unix epoch."""

    error: ErrorCode
    base_offset: int
    log_start: int
    append_ms: int


_REFUSED = Appended(ErrorCode.KAFKA_STORAGE_ERROR, -1, -1, -1)

Answer = asyncio.Future[list[Appended]]


class _Request(NamedTuple):
    batches: Sequence[Submission]
    answer: Answer
    size_bytes: int


@dataclass(frozen=True, slots=True)
class _Written:
    """A chunk in the WAL; `order` says which batch of which request each of its entries is."""

    requests: list[_Request]
    order: list[tuple[int, int]]
    chunk: Chunk
    payload: bytearray
    position: Position


def take_chunk(
    states: States, txns: Txns, catalog: EmbeddedCatalog, chunk: Chunk, position: Position
) -> tuple[Sequenced, Changes]:
    """Sequence a chunk of the WAL and hand the outcome to the catalog. Raises `CatalogDead`.

    The same for a chunk just written and for one found after a crash, hence the same offsets.
    """
    done = sequence(chunk.entries, states, txns, chunk.created_ms)
    end = position.offset + position.size
    file = ObjectRow(position.file, "chunk", "live", end, chunk.created_ms)
    changes = catalog_changes(done, states, txns, file, position.offset)
    catalog.apply(position.sequence, changes)
    return done, changes


def replay(
    wal: RecoverableWal, catalog: EmbeddedCatalog, states: States, txns: Txns, applied: int
) -> int:
    """Sequence the chunks that the catalog has not applied yet; returns the last one's number.

    Raises `ChunkError` for a frame that is no chunk of a known format.
    """
    for position, payload in wal.frames(applied):
        try:
            chunk = decode_index(payload)
        except ChunkError as error:
            raise ChunkError(
                f"Frame {position.sequence} at byte {position.offset} of {position.file}: {error}",
                hint=error.hint,
            ) from error
        assert chunk.size_bytes == position.size, "a frame holds one chunk"
        take_chunk(states, txns, catalog, chunk, position)
        applied = position.sequence
    return applied


class Appender:
    """Created and used on the event loop; its thread ends with `close`."""

    def __init__(
        self,
        wal: Wal,
        catalog: EmbeddedCatalog,
        states: States,
        txns: Txns,
        clock: Clock,
        *,
        sequenced: int,
        pending_bytes: int,
        on_appended: Callable[[Changes, Position, bytearray], None],
    ) -> None:
        """`on_appended` is called for every chunk before it is acknowledged, and owns its bytes."""
        self._wal = wal
        self._catalog = catalog
        self._states = states
        self._txns = txns
        self._clock = clock
        self._on_appended = on_appended
        self._loop = asyncio.get_running_loop()
        self.sequenced = sequenced
        """The last WAL frame that was sequenced and handed to the catalog."""
        # Submitted and not answered yet.
        self._pending_bytes = 0
        self._max_pending_bytes = pending_bytes
        self.has_failed = False
        """The WAL or the catalog has failed for good: everything is refused from then on."""
        self._held = asyncio.Lock()
        # Written while sequencing was held, in WAL order; empty while it is not.
        self._deferred: deque[_Written] = deque()
        self._waiters: dict[PartitionKey, set[asyncio.Future[None]]] = {}
        # What the thread takes next; guarded by the condition.
        self._wake = threading.Condition()
        self._requests: list[_Request] = []
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="wal", daemon=True)
        self._thread.start()

    # --- on the event loop -----------------------------------------------------------------------

    def submit(self, batches: Sequence[Submission]) -> Answer:
        """Append checked batches; the answers come in the same order, once they are durable."""
        answer: Answer = self._loop.create_future()
        size = sum(len(batch.data) for batch in batches)
        request = _Request(batches, answer, size)
        over_limit = self._pending_bytes and self._pending_bytes + size > self._max_pending_bytes
        self._pending_bytes += size
        if over_limit or self.has_failed:
            self._refuse([request])
            return answer
        with self._wake:
            assert not self._closing, "nothing is submitted to a closed log"
            self._requests.append(request)
            self._wake.notify()
        return answer

    @property
    def pending_bytes(self) -> int:
        """Submitted and not answered yet."""
        return self._pending_bytes

    def wait_for(self, keys: Iterable[PartitionKey]) -> asyncio.Future[None]:
        """Done at the next append to one of the partitions; cancel it when no longer wanted."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        wanted = list(keys)
        for key in wanted:
            self._waiters.setdefault(key, set()).add(waiter)
        waiter.add_done_callback(lambda done: self._forget(wanted, done))
        return waiter

    def wake(self, keys: Iterable[PartitionKey]) -> None:
        """Something was appended to these partitions."""
        for key in keys:
            for waiter in list(self._waiters.get(key, ())):
                if not waiter.done():
                    waiter.set_result(None)

    @asynccontextmanager
    async def between_chunks(self) -> AsyncIterator[None]:
        """Hold back sequencing and acknowledging; what is written meanwhile follows after."""
        async with self._held:
            try:
                yield
            finally:
                self._catch_up()

    async def close(self) -> None:
        """Write and answer what was submitted, and end the thread."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        # The thread's callbacks were posted before its end, so they have run when this returns.
        await asyncio.to_thread(self._thread.join)
        async with self.between_chunks():
            pass

    def _forget(self, keys: Iterable[PartitionKey], waiter: asyncio.Future[None]) -> None:
        for key in keys:
            waiters = self._waiters[key]
            waiters.discard(waiter)
            if not waiters:
                del self._waiters[key]

    def _written(self, written: _Written) -> None:
        self._deferred.append(written)
        if not self._held.locked():
            self._catch_up()

    def _catch_up(self) -> None:
        while self._deferred:
            self._acknowledge(self._deferred.popleft())

    def _acknowledge(self, written: _Written) -> None:
        if self.has_failed:
            self._refuse(written.requests)
            return
        position = written.position
        try:
            done, changes = take_chunk(
                self._states, self._txns, self._catalog, written.chunk, position
            )
        except CatalogDead as error:
            _LOG.critical("%s Nothing is acknowledged any more.", error)
            self.has_failed = True
            self._refuse(written.requests)
            return
        self.sequenced = position.sequence
        self._on_appended(changes, position, written.payload)
        answers = [[_REFUSED] * len(request.batches) for request in written.requests]
        for (request, batch), entry, result in zip(
            written.order, written.chunk.entries, done.results, strict=True
        ):
            state = self._states.get((entry.topic_id, entry.partition))
            log_start = -1 if state is None else state.log_start
            answers[request][batch] = Appended(
                result.error, result.base_offset, log_start, written.chunk.created_ms
            )
        for request_, answer in zip(written.requests, answers, strict=True):
            self._finish(request_, answer)
        self.wake(done.changed)

    def _failed(self, requests: list[_Request], error: WalFull | WalDead) -> None:
        _LOG.error("%s", error)
        self.has_failed = self.has_failed or isinstance(error, WalDead)
        self._refuse(requests)

    def _refuse(self, requests: Iterable[_Request]) -> None:
        for request in requests:
            self._finish(request, [_REFUSED] * len(request.batches))

    def _finish(self, request: _Request, answers: list[Appended]) -> None:
        self._pending_bytes -= request.size_bytes
        for batch in request.batches:
            if batch.frame is not None:
                batch.frame.release()
        if not request.answer.done():
            request.answer.set_result(answers)

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._requests or self._closing)
                requests, self._requests = self._requests, []
            if not requests:
                return
            try:
                written = self._write(requests)
            except (WalFull, WalDead) as error:
                self._loop.call_soon_threadsafe(self._failed, requests, error)
            else:
                self._loop.call_soon_threadsafe(self._written, written)

    def _write(self, requests: list[_Request]) -> _Written:
        """Write everything as one chunk, the batches of a partition side by side."""
        order = [
            (request, batch)
            for request in range(len(requests))
            for batch in range(len(requests[request].batches))
        ]
        order.sort(key=lambda place: requests[place[0]].batches[place[1]].partition)
        submissions = [requests[request].batches[batch] for request, batch in order]
        parts, chunk = encode([batch[:3] for batch in submissions], self._clock.now_ms())
        # One copy, so that readers at the tail have the bytes when the frames are reused.
        payload = bytearray().join(parts)
        return _Written(requests, order, chunk, payload, self._wal.append([payload]))
