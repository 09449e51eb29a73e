"""Many batches, one WAL write, then their offsets and acknowledgements.

The event loop hands batches to one thread. The thread takes whatever has arrived while its last
sync was in flight, writes it as one chunk, and posts one callback to the loop; there the chunk is
sequenced, applied to the catalog, kept for readers and acknowledged. No timer, no queue between.

Promises: nothing is acknowledged that is not synced; chunks are sequenced in the order of the WAL;
when the WAL or the catalog has failed for good, nothing is acknowledged any more. What is refused
(too much waiting, no space, no descriptor) is refused with a retriable error and was not appended.

`between_chunks` stops sequencing, not writing: whoever holds it may commit a change of the
catalog that lies between two chunks, and has the states to itself.
"""

import asyncio
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from catchwater.catalog.base import EmbeddedCatalog
from catchwater.catalog.errors import CatalogDead
from catchwater.catalog.rows import (
    Changes,
    ObjectRow,
)
from catchwater.config import CatchwaterError
from catchwater.log.core import Core, States
from catchwater.log.format.chunk import Chunk, ChunkError, decode_index
from catchwater.log.write.intake import Answer, Gathered, Request, Submission, gather
from catchwater.log.write.sequence import Sequenced, catalog_changes, sequence
from catchwater.log.write.txn import Txns
from catchwater.wal.base import (
    Position,
    RecoverableWal,
    Wal,
    WalDead,
    WalFull,
    WalUnavailable,
)

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Written:
    """A chunk in the WAL."""

    gathered: Gathered
    position: Position
    took_s: float


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

    def __init__(self, core: Core, wal: Wal, catalog: EmbeddedCatalog, *, sequenced: int) -> None:
        """The core's states are what the WAL's frames up to `sequenced` have come to."""
        self._core = core
        self._intake = core.intake
        self._wal = wal
        self._catalog = catalog
        self._loop = asyncio.get_running_loop()
        self.sequenced = sequenced
        """The last WAL frame that was sequenced and handed to the catalog."""
        self.has_failed = False
        """The WAL or the catalog has failed for good: everything is refused from then on."""
        self._held = asyncio.Lock()
        # Written while sequencing was held, in WAL order; empty while it is not.
        self._deferred: deque[_Written] = deque()
        # What the thread takes next; guarded by the condition.
        self._wake = threading.Condition()
        self._requests: list[Request] = []
        self._refusing = False
        """A write has failed: nothing is written before the loop has refused all in hand."""
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="wal", daemon=True)
        self._thread.start()

    # --- on the event loop -----------------------------------------------------------------------

    def submit(self, batches: Sequence[Submission]) -> Answer:
        """Append checked batches; the answers come in the same order, once they are durable."""
        request, fits = self._intake.request(batches)
        if not fits or self.has_failed:
            self._intake.refuse([request])
            return request.answer
        with self._wake:
            assert not self._closing, "nothing is submitted to a closed log"
            self._requests.append(request)
            self._wake.notify()
        return request.answer

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

    def _written(self, written: _Written) -> None:
        self._deferred.append(written)
        if not self._held.locked():
            self._catch_up()

    def _catch_up(self) -> None:
        while self._deferred:
            self._acknowledge(self._deferred.popleft())

    def _acknowledge(self, written: _Written) -> None:
        gathered, position = written.gathered, written.position
        if self.has_failed:
            self._intake.refuse(gathered.requests)
            return
        try:
            done, changes = take_chunk(
                self._core.states, self._core.txns, self._catalog, gathered.chunk, position
            )
        except CatalogDead as error:
            _LOG.critical("%s Nothing is acknowledged any more.", error)
            self.has_failed = True
            self._intake.refuse(gathered.requests)
            return
        self.sequenced = position.sequence
        self._core.on_appended(changes, position, gathered.payload)
        self._intake.answer(gathered, done.results, self._core.states)
        self._core.on_wal_append(written.took_s)
        self._intake.wake(done.changed)

    def _failed(self, requests: list[Request], error: CatchwaterError) -> None:
        _LOG.error("%s", error)
        self.has_failed = self.has_failed or isinstance(error, WalDead)
        # What came behind goes with it: of a new producer any batch may be the first, and the
        # ones refused before it could then never follow.
        with self._wake:
            behind, self._requests = self._requests, []
            self._refusing = False
            self._wake.notify()
        self._intake.refuse([*requests, *behind])

    # --- in the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        clock = self._core.clock
        while True:
            with self._wake:
                self._wake.wait_for(
                    lambda: not self._refusing and (self._requests or self._closing)
                )
                requests, self._requests = self._requests, []
            if not requests:
                return
            gathered = gather(requests, clock.now_ms())
            began_s = clock.monotonic_s()
            try:
                position = self._wal.append([gathered.payload])
            except (WalFull, WalUnavailable, WalDead) as error:
                self._refusing = True
                self._loop.call_soon_threadsafe(self._failed, requests, error)
            else:
                written = _Written(gathered, position, clock.monotonic_s() - began_s)
                self._loop.call_soon_threadsafe(self._written, written)
