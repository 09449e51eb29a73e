"""How the chunks of one broker among many get their offsets, and become visible.

One transaction checks this broker's session, runs the sequencer over the rows it has locked and
makes the chunk visible. There is nothing to recover: what was written and not committed was never
acknowledged. Where it is not known whether a commit happened, that is found out before anything
else (`SharedCommitter._settle`), by a transaction over the same rows, which waits for the end of
the first.
"""

import asyncio
import logging
from asyncio import wrap_future
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

from catchwater.catalog.errors import CatalogUncertain
from catchwater.catalog.rows import (
    Changes,
    GroupRow,
    PartitionKey,
    PartitionRow,
    RunRow,
    Scope,
    ScopeRows,
    Session,
    TxnRow,
)
from catchwater.catalog.shared import SharedCatalog
from catchwater.config import CatchwaterError
from catchwater.log.cluster import BrokerReplaced, Cluster
from catchwater.log.core import Core
from catchwater.log.format.chunk import Chunk, Entry
from catchwater.log.view import View
from catchwater.log.write.sequence import (
    Result,
    refused,
    scope_of,
    sequence,
    states_of,
    take_chunk,
    txns_of,
)
from catchwater.log.write.writer import Committed, OnCommitted, Write
from catchwater.wal.base import Position, Wal
from catchwater.wire.errors import ErrorCode

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

_REOPEN_S = 1.0

OpenWal = Callable[[Session], Wal]


class SharedCommitter:
    """The transactions of one broker among many. Used on the event loop."""

    in_memory = False

    def __init__(
        self, core: Core, catalog: SharedCatalog, view: View, cluster: Cluster, open_wal: OpenWal
    ) -> None:
        """`open_wal` blocks."""
        self._core = core
        self._catalog = catalog
        self._view = view
        self._cluster = cluster
        self._open_wal = open_wal
        self.on_committed: OnCommitted = lambda runs, start, payload: None

    async def commit(self, write: Write) -> Committed:
        """Commit a chunk that is written. Raises what `Catalog.transact` raises."""
        keys = {(entry.topic_id, entry.partition) for entry in write.chunk.entries}
        with self._view.hold(keys):
            results, changes = await self._transact(write)
            self.on_committed(changes.runs, write.place.offset, write.payload)
            self._core.show(changes.partitions)
        return Committed(results)

    async def _transact(self, write: Write) -> tuple[Sequence[Result], Changes]:
        chunk, position, wal = write.chunk, write.place, write.source.wal
        payloads = [(position.file, write.payload)] if wal.in_commit else []

        def decide(seen: ScopeRows) -> tuple[Changes, tuple[list[Result], Changes]]:
            sequenced, changes = take_chunk(chunk, position, states_of(seen), txns_of(seen))
            return replace(changes, payloads=payloads), (sequenced.results, changes)

        scope = scope_of(chunk, write.source.session)
        while True:
            try:
                return await wrap_future(self._catalog.transact(scope, decide))
            except CatalogUncertain as error:
                _LOG.warning("%s", error)
                settled = await self._settle(scope, chunk, position, wal)
                if settled is not None:
                    return settled

    async def _settle(
        self, scope: Scope, chunk: Chunk, position: Position, wal: Wal
    ) -> tuple[list[Result], Changes] | None:
        """The outcome of a chunk whose commit was not answered; None: it was not committed.

        The connection was lost while the transaction committed, and the database may still be
        committing. Another transaction over the same rows waits for the end of that one, and then
        looks whether the runs of the chunk are there. Returns the chunk's results, and its runs and
        partitions as they are now. Raises what `Catalog.transact` raises; then the outcome is still
        unknown.
        """

        def look(seen: ScopeRows) -> tuple[Changes, tuple[list[Result], ScopeRows]]:
            again = sequence(chunk.entries, states_of(seen), txns_of(seen), chunk.created_ms)
            return Changes(), (again.results, seen)

        again, seen = await wrap_future(self._catalog.transact(scope, look))
        runs = await asyncio.to_thread(_runs_of, self._catalog, position)
        if not runs:
            # A chunk that is all its file holds has a row for the file, even if every batch was
            # refused. Elsewhere it was appended nowhere, and may as well be committed again.
            known = await asyncio.to_thread(self._catalog.known_objects, [position.file])
            if not (wal.one_frame_files and known):
                return None
        offsets = dict(_offsets(chunk.entries, runs, position.offset))
        results = [
            Result(ErrorCode.NONE, offsets[entry]) if entry in offsets else _repeated(result)
            for entry, result in zip(chunk.entries, again, strict=True)
        ]
        return results, Changes(runs, seen.partitions)

    async def renew(self, ended: Session) -> tuple[Session, Wal]:
        """The session after one that was superseded, and its own write-ahead log.

        Tries until there is one. Raises `BrokerReplaced`.
        """
        while True:
            try:
                session = await self._cluster.rejoin(ended)
                wal = await asyncio.to_thread(self._open_wal, session)
            except BrokerReplaced:
                raise
            except CatchwaterError as error:
                _LOG.error("There is no write-ahead log for the new session yet: %s", error)
                await self._core.clock.sleep(_REOPEN_S)
            else:
                self._core.storage.wal = wal
                return session, wal

    async def transact(self, scope: Scope, decide: Callable[[ScopeRows], tuple[Changes, T]]) -> T:
        """The catalog's transaction is all there is."""
        scope = replace(scope, session=self._cluster.session)
        return await wrap_future(self._catalog.transact(scope, decide))

    async def txns(self, *, unfinished: bool = False) -> list[TxnRow]:
        """Transactional ids as the catalog has them."""
        find = self._catalog.unfinished_txns if unfinished else self._catalog.txns
        return await asyncio.to_thread(find)

    def partitions(self, keys: Iterable[PartitionKey]) -> list[PartitionRow]:
        """From the catalog, which is ahead of the states."""
        return self._catalog.partitions(list(keys))

    async def take_lease(self, name: str, ttl_ms: int) -> bool:
        """By this broker's session."""
        return await wrap_future(self._catalog.take_lease(name, self._cluster.session, ttl_ms))

    async def take_group(self, group: str) -> GroupRow:
        """Claim it, with an epoch above all earlier ones."""
        return await wrap_future(self._catalog.claim_group(group, self._cluster.session))


def _runs_of(catalog: SharedCatalog, position: Position) -> list[RunRow]:
    end = position.offset + position.size
    runs = catalog.runs_in(position.file)
    return [run for run in runs if position.offset <= run.byte_offset < end]


def _offsets(
    entries: Iterable[Entry], runs: Iterable[RunRow], at: int
) -> Iterator[tuple[Entry, int]]:
    """The offsets of the entries that lie in runs; both are in the order of their bytes."""
    for run in runs:
        offset = run.base_offset
        end = run.byte_offset + run.byte_size
        for entry in entries:
            if run.byte_offset <= at + entry.byte_offset < end:
                yield entry, offset
                offset += entry.last_offset_delta + 1


def _repeated(result: Result) -> Result:
    """An entry without a run was refused, or a duplicate, as sequencing it again has shown.

    Where it would be appended now, it can be sent once more.
    """
    if result.error is ErrorCode.NONE and not result.duplicate:
        return refused(ErrorCode.KAFKA_STORAGE_ERROR)
    return result
