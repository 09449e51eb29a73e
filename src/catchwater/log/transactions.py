"""Transactions over any partitions and groups: begun, ended whole, aborted when their time is out.

`Transactions` stores what the pure rules of `write/txn.py` decide. An end has two steps, and the
first decides the outcome:

1. *prepare*: the transactional id's row says which end it is; in version 2 its epoch rises. From
   here on no batch can join the transaction, so the catalog knows every partition it is open on.
2. *markers*: one chunk with a control batch for each of them. Sequencing that chunk completes the
   row, closes the transaction on all its partitions and moves its pending group positions: all in
   one commit, or in an embedded log all by one frame of its write-ahead log.

A broker that dies in between leaves a prepared row, and `tick` (of any broker) writes the markers.
Two that do so at once do no harm: the sequencer takes the first chunk and refuses the second.

An embedded log's rows change between two chunks, in the catalog first and then in memory, so that a
replay of the write-ahead log meets them at the same place. A shared log has them in the catalog
only. Errors of a request are raised as `TxnRefused`; a catalog that fails raises its own.
"""

import asyncio
import logging
from asyncio import wrap_future
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from catchwater.catalog.errors import (
    CatalogFailure,
    SessionFenced,
)
from catchwater.catalog.rows import (
    Changes,
    EndedTxn,
    OffsetCommit,
    OpenTxnRow,
    PartitionKey,
    Scope,
    ScopeRows,
    TxnRow,
)
from catchwater.log.core import Core
from catchwater.log.format.chunk import marker
from catchwater.log.write import txn
from catchwater.log.write.txn import LAST_EPOCH, PREPARED, TxnRefused
from catchwater.log.write.writer import Submission
from catchwater.wire.errors import ErrorCode

_LOG = logging.getLogger(__name__)

TICK_S = 1.0
_TRIES = 5


class Producer(NamedTuple):
    """The producer that asks: its id, and the epoch it believes to have."""

    id: int
    epoch: int


class Transactions:
    """The transactions of one log, used on its event loop."""

    def __init__(self, core: Core, new_producer_id: Callable[[], Awaitable[int]]) -> None:
        self._core = core
        self._new_producer_id = new_producer_id
        # Ids whose end this broker is writing, which `tick` leaves alone.
        self._ending: set[str] = set()
        # What was prepared at the last tick.
        self._prepared: set[TxnRow] = set()
        # Since when, by a clock that never jumps, we know that a transaction is open.
        self._seen_s: dict[tuple[str, int, int], float] = {}
        self.open_count = 0
        """Transactions that were open or prepared at the last tick."""

    async def init_producer(
        self, transactional_id: str, timeout_ms: int, expected: Producer | None = None
    ) -> Producer:
        """The producer id and a new epoch; fences the earlier ones and aborts what they left open.

        `expected` is what the producer had so far, where it only wants a new epoch (KIP-360).
        """
        fresh_id = await self._new_producer_id()
        for _ in range(_TRIES):
            row = await self._move(
                transactional_id,
                partial(
                    txn.initialised,
                    transactional_id=transactional_id,
                    fresh_id=fresh_id,
                    timeout_ms=timeout_ms,
                    expected=expected,
                ),
            )
            if row.state not in PREPARED:
                return Producer(row.producer_id, row.epoch)
            await self._finish(row)
        raise TxnRefused(
            ErrorCode.CONCURRENT_TRANSACTIONS,
            f"The last transaction of {transactional_id} could not be ended yet.",
        )

    async def add_partitions(
        self, transactional_id: str, producer: Producer, partitions: Iterable[PartitionKey]
    ) -> None:
        """Let version 1 write to these partitions; with none, let it commit positions."""
        named = [(topic_id.hex(), index) for topic_id, index in partitions]
        now_ms = self._core.clock.now_ms()
        await self._move(transactional_id, lambda row: txn.announced(row, producer, named, now_ms))

    async def commit_offsets(
        self,
        transactional_id: str,
        producer: Producer,
        group: str,
        offsets: Mapping[tuple[str, int], OffsetCommit],
        *,
        implicit: bool,
        claim_epoch: int | None = None,
    ) -> None:
        """Keep positions that become the group's when the transaction commits.

        With `implicit` they begin the transaction if need be, as version 2 wants it. Raises
        `CoordinatorMoved` when the group's claim has another epoch than the one given.
        """
        now_ms = self._core.clock.now_ms()
        rows = [(producer.id, group, *key, commit) for key, commit in offsets.items()]

        def decide(row: TxnRow | None) -> tuple[TxnRow, Changes]:
            row = txn.with_offsets(row, producer, implicit=implicit, now_ms=now_ms)
            return row, Changes(txn_offsets=rows)

        claim = None if claim_epoch is None else (group, claim_epoch)
        await self._change(transactional_id, decide, claim)

    async def end(
        self, transactional_id: str, producer: Producer, *, committed: bool, version: int
    ) -> Producer:
        """Commit or abort; durable once this returns. Gives the epoch to go on with.

        Where the markers cannot be written now, `tick` writes them; until then the producer is
        answered CONCURRENT_TRANSACTIONS.
        """
        row = await self._move(
            transactional_id,
            partial(txn.ended, producer=producer, committed=committed, version=version),
        )
        # Not what the row has in the end: that may be a newcomer's.
        given = Producer(row.producer_id, row.epoch)
        if row.state in PREPARED:
            row = await self._finish(row)
        if given.epoch == LAST_EPOCH and row.state not in PREPARED:
            return await self._renew(transactional_id, given)
        return given

    async def rows(self) -> list[TxnRow]:
        """All transactional ids as they are now."""
        return await self._core.committer.txns()

    async def open_on(self, producer_id: int) -> list[OpenTxnRow]:
        """The partitions on which a producer's transaction is open."""
        await wrap_future(self._core.catalog.flush())
        return await asyncio.to_thread(self._core.catalog.open_txns, producer_id)

    async def unstable(self, group: str) -> set[tuple[str, int]]:
        """(topic, partition) of the group's positions that an open transaction may move."""
        return await asyncio.to_thread(self._core.catalog.unstable, group)

    async def run(self) -> None:
        """Finish and abort what is due, at once and then every second, until cancelled."""
        while True:
            try:
                await self.tick()
            except (CatalogFailure, SessionFenced) as error:
                _LOG.error("Ends of transactions have to wait: %s", error)
            await self._core.clock.sleep(TICK_S)

    async def tick(self) -> None:
        """Write the markers of prepared transactions, and abort those whose time is out.

        Among many brokers, what was prepared since the last tick is left to its own broker.
        """
        rows = await self._core.committer.txns(unfinished=True)
        prepared = {row for row in rows if row.state in PREPARED}
        old = prepared if self._core.committer.in_memory else self._prepared
        left = [row for row in rows if row in prepared and row in old]
        self._prepared = prepared
        self.open_count = len(prepared) + sum(row.state == "ongoing" for row in rows)
        for row in left:
            if row.transactional_id not in self._ending:
                await wrap_future(self._core.catalog.flush())
                with suppress(TxnRefused):  # ended by another, and no longer this producer's
                    await self._finish(row)
        for row in self._overdue(rows):
            _LOG.warning(
                "The transaction of %s is aborted: it was open for more than its %d ms.",
                row.transactional_id,
                row.timeout_ms,
            )
            with suppress(TxnRefused):
                await self._abort_overdue(row)

    def _overdue(self, rows: Iterable[TxnRow]) -> list[TxnRow]:
        """The open transactions that were seen here for longer than they may be open.

        Not by when they say to have begun: that was another broker's clock, which may be wrong.
        """
        now_s = self._core.clock.monotonic_s()
        opened = [row for row in rows if row.state == "ongoing"]
        seen = [(row.transactional_id, row.epoch, row.started_ms) for row in opened]
        self._seen_s = {begun: self._seen_s.get(begun, now_s) for begun in seen}
        return [
            row
            for row, begun in zip(opened, seen, strict=True)
            if now_s - self._seen_s[begun] >= row.timeout_ms / 1000
        ]

    async def _abort_overdue(self, overdue: TxnRow) -> None:
        def decide(row: TxnRow | None) -> TxnRow:
            row = txn.known(row, overdue.producer_id)
            is_same = (row.state, row.started_ms) == (overdue.state, overdue.started_ms)
            return txn.aborted_by_us(row) if is_same else row

        row = await self._move(overdue.transactional_id, decide)
        if row.state in PREPARED:
            await self._finish(row)

    async def _finish(self, row: TxnRow) -> TxnRow:
        """Write the markers of a prepared transaction; the row as it is then."""
        self._ending.add(row.transactional_id)
        try:
            return await self._core.writer.to_the_end(self._write_end(row))
        finally:
            self._ending.discard(row.transactional_id)

    async def _write_end(self, row: TxnRow) -> TxnRow:
        core, committed = self._core, row.state == "prepare_commit"
        opened = await asyncio.to_thread(core.catalog.open_txns, row.producer_id)
        header, data = marker(
            row.producer_id, row.epoch, committed=committed, started_ms=row.started_ms
        )
        keys = [(at.topic_id, at.partition) for at in opened]
        markers = [Submission(key, header, data) for key in keys if key in core.states]
        if not markers:
            return await self._end_without_records(row)
        answers = await core.writer.submit(markers)
        if await asyncio.to_thread(core.catalog.txn_offsets, row.producer_id):
            # Positions are read from what is durable, also where another broker wrote their end.
            await wrap_future(core.catalog.flush())
        if all(answer.error is not ErrorCode.NONE for answer in answers):
            # Nothing was written, or another broker was faster.
            _LOG.info("No end of %s was written: %s", row.transactional_id, answers[0].error.name)
            rows = {now.transactional_id: now for now in await self.rows()}
            return txn.known(rows.get(row.transactional_id), row.producer_id)
        return txn.completed(row)

    async def _end_without_records(self, prepared: TxnRow) -> TxnRow:
        """Complete a transaction that is open on no partition: there is nothing to mark."""

        def decide(row: TxnRow | None) -> tuple[TxnRow, Changes]:
            row = txn.known(row, prepared.producer_id)
            if row != prepared:
                return row, Changes()
            end = EndedTxn(row.producer_id, row.state == "prepare_commit")
            return txn.completed(row), Changes(ended=[end])

        return await self._change(prepared.transactional_id, decide)

    async def _renew(self, transactional_id: str, used_up: Producer) -> Producer:
        """Give a transactional id whose epochs are used up a new producer id."""
        fresh_id = await self._new_producer_id()
        row = await self._move(
            transactional_id, lambda row: txn.renewed(txn.known(row, used_up.id), fresh_id)
        )
        return Producer(row.producer_id, row.epoch)

    async def _move(
        self, transactional_id: str, decide: Callable[[TxnRow | None], TxnRow]
    ) -> TxnRow:
        """Change an id's row only; the row as it is then."""
        return await self._change(transactional_id, lambda row: (decide(row), Changes()))

    async def _change(
        self,
        transactional_id: str,
        decide: Callable[[TxnRow | None], tuple[TxnRow, Changes]],
        claim: tuple[str, int] | None = None,
    ) -> TxnRow:
        """Change an id's row, and what goes with it, in one commit; the row as it is then."""
        if "\0" in transactional_id:
            # InitProducerId takes no such id, and PostgreSQL cannot even look for it.
            raise TxnRefused(
                ErrorCode.INVALID_PRODUCER_ID_MAPPING, "No transactional id has the character 0."
            )
        core = self._core
        now_ms = core.clock.now_ms()

        def on_seen(seen: ScopeRows) -> tuple[Changes, TxnRow]:
            before = next((r for r in seen.txns if r.transactional_id == transactional_id), None)
            after, changes = decide(before)
            if after == before:
                return changes, after
            after = after._replace(updated_ms=now_ms)
            return replace(changes, txns=[after]), after

        async def change() -> TxnRow:
            scope = Scope(transactional_ids=[transactional_id], claim=claim)
            return await core.committer.transact(scope, on_seen)

        return await core.writer.between_chunks(change)
