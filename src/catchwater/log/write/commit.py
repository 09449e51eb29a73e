"""Appending among many brokers: gather, write ahead, commit in the shared catalog, answer.

Submissions are gathered into chunks, as the write-ahead log asks; several may be on their way into
it at once. Chunks are committed one after the other in the order of submission, each by one
transaction that checks this broker's session, assigns the offsets and makes the chunk visible.
Only then it is acknowledged. There is nothing to recover: what was written and not committed was
never acknowledged.

What goes wrong, and the answer to the producer:

- the write-ahead log is full or did not confirm, the catalog cannot be reached: a retriable error,
  for all that is in hand: of a new producer any batch may be the first, and the ones refused
  before it could then never follow;
- nobody knows whether a commit happened: found out first (`settle`), by a transaction that waits
  for whatever is left of the other;
- the session was superseded: NOT_LEADER_OR_FOLLOWER for everything in hand, then a new session
  with a write-ahead log of its own;
- the write-ahead log is dead, or another process has this broker's id: nothing is taken any more.

Tasks on the event loop only; what blocks runs in an executor, which a simulation replaces.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from catchwater.catalog.errors import CatalogDead, CatalogUncertain, SessionFenced
from catchwater.catalog.rows import Changes, ObjectRow, Seen, Session
from catchwater.config import CatchwaterError
from catchwater.log.cluster import BrokerReplaced, Cluster
from catchwater.log.core import Core, done
from catchwater.log.view import View
from catchwater.log.write.intake import Answer, Gathered, Request, Submission, gather
from catchwater.log.write.producers import Result
from catchwater.log.write.sequence import decide_chunk, scope_of
from catchwater.log.write.settle import settle
from catchwater.wal.base import Position, Wal, WalDead
from catchwater.wire.errors import ErrorCode

_LOG = logging.getLogger(__name__)

_CHUNK_BYTES = 8 * 1024 * 1024
"""What a chunk may hold, unless a single request is larger or the log asks for more."""
_REOPEN_S = 1.0


@dataclass(frozen=True, slots=True)
class Life:
    """A session and its own write-ahead log; both end together."""

    session: Session
    wal: Wal
    ended: asyncio.Future[None]
    """Done once it is known that the session was superseded."""


def new_life(session: Session, wal: Wal) -> Life:
    """The life that begins with this session."""
    return Life(session, wal, asyncio.get_running_loop().create_future())


@dataclass(frozen=True, slots=True)
class _Write:
    """A chunk on its way into the write-ahead log."""

    number: int
    life: Life
    requests: list[Request]
    written: asyncio.Future[tuple[Gathered, Position]]


class Committer:
    """Created and used on the event loop; its tasks end with `close`."""

    def __init__(
        self,
        core: Core,
        view: View,
        cluster: Cluster,
        life: Life,
        open_wal: Callable[[Session], Wal],
    ) -> None:
        """`open_wal` blocks."""
        self._core = core
        self._view = view
        self._cluster = cluster
        self._life: Life | None = life
        self._open_wal = open_wal
        wal = life.wal
        self.sequenced = 0
        """The last frame of the session's WAL that was committed."""
        self.has_failed = False
        """Nothing is taken any more."""
        self._requests: list[Request] = []
        self._gathered_bytes = 0
        self._number = 0
        """Of the last write that was begun."""
        self._refused = 0
        """Writes up to this one are not committed: one before them failed."""
        self._first_s = 0.0
        self._arrived, self._enough = asyncio.Event(), asyncio.Event()
        self._closing = False
        # One chunk more than may be written at once: it is committed meanwhile.
        self._slots = asyncio.Semaphore(wal.max_in_flight + (not wal.in_commit))
        self._writing = asyncio.Semaphore(wal.max_in_flight)
        self._writers = ThreadPoolExecutor(wal.max_in_flight, thread_name_prefix="wal")
        self._writes: asyncio.Queue[_Write | None] = asyncio.Queue()
        self._under_way: set[asyncio.Future[Any]] = set()
        self._renewing: asyncio.Task[None] | None = None
        cluster.on_fenced = self._fenced
        self._tasks = [asyncio.ensure_future(self._gather()), asyncio.ensure_future(self._commit())]

    def submit(self, batches: Sequence[Submission]) -> Answer:
        """Append checked batches; the answers come in the same order, once they are committed."""
        assert not self._closing, "nothing is submitted to a closed log"
        request, fits = self._core.intake.request(batches)
        if self._life is None:
            self._core.intake.refuse([request], ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif not fits or self.has_failed:
            self._core.intake.refuse([request])
        else:
            if not self._requests:
                self._first_s = self._core.clock.monotonic_s()
            self._requests.append(request)
            self._gathered_bytes += request.size_bytes
            self._arrived.set()
            if self._gathered_bytes >= self._life.wal.linger_bytes:
                self._enough.set()
        return request.answer

    def between_chunks(self) -> AbstractAsyncContextManager[None]:
        """Nothing to hold back: the catalog's transactions keep chunks and changes apart."""
        return nullcontext()

    async def close(self) -> None:
        """Write, commit and answer what was submitted, and end the tasks."""
        self._closing = True
        self._arrived.set()
        self._enough.set()
        await asyncio.gather(*self._tasks)
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        self._writers.shutdown()
        if self._life is not None:
            await asyncio.to_thread(self._life.wal.close)

    # --- gathering and writing ---------------------------------------------------------------

    async def _gather(self) -> None:
        while True:
            await self._arrived.wait()
            await self._linger()
            await self._slots.acquire()
            requests = self._take()
            if requests and self._life is not None:
                written = asyncio.ensure_future(self._write(self._life.wal, requests))
                self._under_way.add(written)
                written.add_done_callback(self._arrive)
                self._number += 1
                self._writes.put_nowait(_Write(self._number, self._life, requests, written))
            else:
                self._slots.release()
                if self._closing:
                    self._writes.put_nowait(None)
                    return

    def _arrive(self, written: asyncio.Future[Any]) -> None:
        self._under_way.discard(written)
        if not written.cancelled():
            written.exception()  # of no interest if its session ended meanwhile: nobody asks

    async def _linger(self) -> None:
        """Wait for more, as long and as much as the write-ahead log asks."""
        if self._life is None or self._life.wal.linger_ms == 0:
            return
        until_s = self._first_s + self._life.wal.linger_ms / 1000
        left_s = until_s - self._core.clock.monotonic_s()
        if left_s > 0 and not self._enough.is_set():
            enough = asyncio.ensure_future(self._enough.wait())
            await asyncio.wait([enough], timeout=left_s)
            enough.cancel()

    def _take(self) -> list[Request]:
        """The oldest requests, as many as make up a chunk; at least one if there is any."""
        count = size = 0
        limit = max(_CHUNK_BYTES, self._life.wal.linger_bytes if self._life else 0)
        for request in self._requests:
            if count and size + request.size_bytes > limit:
                break
            count, size = count + 1, size + request.size_bytes
        taken, self._requests = self._requests[:count], self._requests[count:]
        self._gathered_bytes -= size
        if not self._requests and not self._closing:
            self._arrived.clear()
            self._enough.clear()
        return taken

    async def _write(self, wal: Wal, requests: list[Request]) -> tuple[Gathered, Position]:
        def write() -> tuple[Gathered, Position, float]:
            gathered = gather(requests, self._core.clock.now_ms())
            began_s = self._core.clock.monotonic_s()
            position = wal.append([gathered.payload])
            return gathered, position, self._core.clock.monotonic_s() - began_s

        async with self._writing:
            loop = asyncio.get_running_loop()
            gathered, position, took_s = await loop.run_in_executor(self._writers, write)
        self._core.on_wal_append(took_s)
        return gathered, position

    # --- committing, in order ----------------------------------------------------------------

    async def _commit(self) -> None:
        try:
            while (write := await self._writes.get()) is not None:
                await self._commit_one(write)
                self._slots.release()
        finally:
            if not self._closing:  # by a defect; nobody else would answer
                self.has_failed = True

    async def _commit_one(self, write: _Write) -> None:
        refusal = ErrorCode.KAFKA_STORAGE_ERROR
        if write.number <= self._refused:
            self._core.intake.refuse(write.requests, refusal)
            return
        try:
            both = (write.written, write.life.ended)
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not write.life.ended.done():
                await self._sequence(write.life, *write.written.result())
                return
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
        except SessionFenced as error:
            refusal = ErrorCode.NOT_LEADER_OR_FOLLOWER
            _LOG.warning("%s", error)
            self._fenced()
        except (WalDead, CatalogDead) as error:
            _LOG.critical("%s Nothing is acknowledged any more.", error)
            self.has_failed = True
        except CatchwaterError as error:
            _LOG.error("%s", error)
            self._refused = self._number
            self._core.intake.refuse(self._take_all())
        self._core.intake.refuse(write.requests, refusal)

    async def _sequence(self, life: Life, gathered: Gathered, position: Position) -> None:
        keys = {(entry.topic_id, entry.partition) for entry in gathered.chunk.entries}
        with self._view.hold(keys):
            results, changes = await self._transact(life, gathered, position)
            self.sequenced = max(self.sequenced, position.sequence)
            self._core.on_appended(changes, position, gathered.payload)
            self._core.show(changes.partitions)
        self._core.intake.answer(gathered, results, self._core.states)

    async def _transact(
        self, life: Life, gathered: Gathered, position: Position
    ) -> tuple[list[Result], Changes]:
        chunk, end = gathered.chunk, position.offset + position.size
        row = ObjectRow(position.file, "chunk", "live", end, chunk.created_ms)
        decide_rows = decide_chunk(chunk, row, position.offset)
        payloads = [(position.file, gathered.payload)] if life.wal.in_commit else []

        def decide(seen: Seen) -> tuple[Changes, tuple[list[Result], Changes]]:
            changes, sequenced = decide_rows(seen)
            return replace(changes, payloads=payloads), (sequenced.results, changes)

        catalog, scope = self._core.catalog, scope_of(chunk, life.session)
        while True:
            try:
                return await done(catalog.transact(scope, decide))
            except CatalogUncertain as error:
                _LOG.warning("%s", error)
                alone = life.wal.one_frame_files
                settled = await settle(catalog, scope, chunk, position, alone=alone)
                if settled is not None:
                    return settled

    # --- one session after the other ---------------------------------------------------------

    def _fenced(self) -> None:
        """Refuse what is not written yet; what is written, or being so, is refused in its turn."""
        if self._life is None:
            return
        ended, self._life = self._life, None
        ended.ended.set_result(None)
        self._core.intake.refuse(self._take_all(), ErrorCode.NOT_LEADER_OR_FOLLOWER)
        self._renewing = asyncio.ensure_future(self._renew(ended))

    def _take_all(self) -> list[Request]:
        taken, self._requests = self._requests, []
        self._gathered_bytes = 0
        return taken

    async def _renew(self, ended: Life) -> None:
        """Go on with a new session, while what is under way in the old log comes to its end."""
        await asyncio.gather(self._retire(ended.wal, set(self._under_way)), self._begin(ended))

    async def _retire(self, wal: Wal, under_way: set[asyncio.Future[Any]]) -> None:
        if under_way:
            await asyncio.wait(under_way)
        await asyncio.to_thread(wal.close)

    async def _begin(self, ended: Life) -> None:
        while self._life is None and not self.has_failed:
            try:
                session = await self._cluster.rejoin(ended.session)
                wal = await asyncio.to_thread(self._open_wal, session)
            except BrokerReplaced as error:
                _LOG.critical("%s Nothing is acknowledged any more.", error)
                self.has_failed = True
            except CatchwaterError as error:
                _LOG.error("There is no write-ahead log for the new session yet: %s", error)
                await self._core.clock.sleep(_REOPEN_S)
            else:
                self.sequenced = 0
                self._core.storage.wal = wal
                self._life = new_life(session, wal)
