"""What every catalog on SQL tables has in common: barriers and queries over a `Db`.

A database adds two things: `_commit`, which runs a body in a transaction and promises its result
once that is durable, and `_query`, which runs one on a connection to read on. Contracts stand in
`base.py`; bodies in `change/`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

import msgspec

from catchwater.catalog.base import AlterConfig
from catchwater.catalog.change import brokers, commit, groups, runs, state, topics
from catchwater.catalog.db import Db, Rows
from catchwater.catalog.rows import (
    AbortedRow,
    BrokerRow,
    BrokerState,
    Changes,
    EpochCommit,
    GroupChanges,
    GroupRow,
    ObjectRow,
    ObjectState,
    OffsetCommit,
    OpenTxnRow,
    ParquetRow,
    PartitionKey,
    PartitionRow,
    Pin,
    PinState,
    ProducerRow,
    RunRow,
    Scope,
    Seen,
    Session,
    Snapshot,
    State,
    StorageRow,
    Topic,
    TxnRow,
)

T = TypeVar("T")


class RelationalCatalog(ABC):
    """The common part of both kinds."""

    @abstractmethod
    def _commit(self, change: Callable[[Db], T]) -> Future[T]: ...

    @abstractmethod
    def _query(self, read: Callable[[Db], T]) -> T: ...

    # --- changes -----------------------------------------------------------------------------

    def flush(self) -> Future[None]:
        """Done when everything that was handed over is durable."""
        return self._commit(lambda db: None)

    def transact(self, scope: Scope, decide: Callable[[Seen], tuple[Changes, T]]) -> Future[T]:
        """Lock and read `scope`, write what `decide` makes of it."""
        return self._commit(lambda db: commit.transact(scope, decide, db))

    def create_topic(self, topic: Topic) -> Future[None]:
        """Fails with `TopicExists` or `TopicCollides`."""
        return self._commit(partial(topics.create_topic, topic))

    def delete_topic(self, topic_id: bytes) -> Future[None]:
        """Fails with `TopicUnknown`."""
        return self._commit(partial(topics.delete_topic, topic_id))

    def alter_topic_config(self, topic_id: bytes, alter: AlterConfig) -> Future[Mapping[str, str]]:
        """Replace a topic's configuration by what `alter` makes of it. Fails as `alter` does, and
        with `TopicUnknown`.
        """
        return self._commit(partial(topics.alter_topic_config, topic_id, alter))

    def add_partitions(self, topic_id: bytes, partitions: int) -> Future[None]:
        """Let a topic have so many partitions. Fails with `TopicUnknown`."""
        return self._commit(partial(topics.add_partitions, topic_id, partitions))

    def allocate_producer_ids(self, count: int) -> Future[int]:
        """The first of `count` new ids."""
        return self._commit(partial(topics.take_producer_ids, count))

    def forget_producers(self, last_ms_below: int) -> Future[None]:
        """Drop the standing of producers that have been silent since."""
        return self._run_each("producer_forget", [(last_ms_below,)])

    def forget_txns(self, updated_ms_below: int) -> Future[set[int]]:
        """Drop transactional ids that have been silent since; their producer ids."""
        return self._commit(
            lambda db: {number for (number,) in db.query("txn_forget", updated_ms_below)}
        )

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], OffsetCommit],
        *,
        claim_epoch: int | None = None,
    ) -> Future[None]:
        """Keep a group's positions, all or none. Fails with `CoordinatorMoved`."""
        return self._commit(partial(groups.commit_offsets, group, dict(offsets), claim_epoch))

    def claim_group(self, group: str, session: Session | None) -> Future[GroupRow]:
        """Become the group's coordinator. Fails with `SessionFenced`."""
        return self._commit(partial(groups.claim_group, group, session))

    def keep_group(
        self, group: str, changes: GroupChanges, *, claim_epoch: int | None = None
    ) -> Future[None]:
        """Keep what has changed of a group. Fails with `CoordinatorMoved`."""
        return self._commit(partial(groups.keep_group, group, changes, claim_epoch))

    def delete_group(self, group: str, *, claim_epoch: int | None = None) -> Future[bool]:
        """Forget a group; whether it had positions. Fails with `CoordinatorMoved`."""
        return self._commit(partial(groups.delete_group, group, claim_epoch))

    def delete_offsets(
        self, group: str, keys: Iterable[tuple[str, int]], *, claim_epoch: int | None = None
    ) -> Future[None]:
        """Forget a group's positions there. Fails with `CoordinatorMoved`."""
        return self._commit(partial(groups.delete_offsets, group, list(keys), claim_epoch))

    def expire_offsets(
        self,
        group: str,
        keys: Iterable[tuple[str, int]],
        committed_until_ms: int,
        *,
        with_group: bool,
        claim_epoch: int | None = None,
    ) -> Future[list[tuple[str, int]]]:
        """Forget those of a group's positions that are so old. Fails with `CoordinatorMoved`."""
        wanted = (list(keys), committed_until_ms, with_group, claim_epoch)
        return self._commit(partial(groups.expire_offsets, group, *wanted))

    def set_pin(self, pin: Pin) -> Future[None]:
        """Create a pin, or replace the one with its id."""
        return self._commit(partial(topics.set_pin, pin))

    def set_pin_states(self, states: Mapping[str, PinState]) -> Future[None]:
        """What retention has found out about pins."""
        return self._commit(partial(topics.set_pin_states, dict(states)))

    def release_pin(self, pin_id: str) -> Future[bool]:
        """Whether there was such a pin."""
        return self._commit(partial(topics.release_pin, pin_id))

    def replace_runs(
        self,
        old: Sequence[RunRow],
        new: Sequence[RunRow],
        objects: Sequence[ObjectRow],
        lease: tuple[str, Session] | None = None,
    ) -> Future[PartitionRow]:
        """Put runs in the place of others. Fails with `RunsChanged` or `SessionFenced`."""
        return self._commit(partial(runs.replace_runs, old, new, objects, lease))

    def add_parquet(self, run: RunRow, parquet: ParquetRow, row: ObjectRow) -> Future[None]:
        """Let a segment have its records as Parquet too. Fails with `RunsChanged`."""
        return self._commit(partial(runs.add_parquet, run, parquet, row))

    def trim(
        self, log_starts: Mapping[PartitionKey, int], lease: tuple[str, Session] | None = None
    ) -> Future[list[PartitionRow]]:
        """Move log starts up and drop the runs that end before them. Fails with `SessionFenced`."""
        return self._commit(partial(runs.trim, dict(log_starts), lease))

    def mark_deleting(self, keys: Iterable[str]) -> Future[list[str]]:
        """Move objects without runs to state `deleting`; returns those that were moved."""
        return self._commit(partial(runs.mark_deleting, list(keys)))

    def forget_objects(self, keys: Iterable[str]) -> Future[None]:
        """Drop the rows of objects in state `deleting`."""
        return self._run_each("object_forget", [(key,) for key in keys])

    def take_backup_number(self) -> Future[int]:
        """A number above those of all earlier backups."""
        return self._commit(state.take_number)

    def take_state(self) -> Future[State]:
        """All but the runs in segments, at one moment."""
        return self._commit(state.take_state)

    def restore(
        self,
        taken: State,
        objects: Sequence[ObjectRow],
        runs: Sequence[RunRow],
        last_backup: int,
    ) -> Future[None]:
        """Fill an empty catalog."""
        return self._commit(partial(state.restore, taken, objects, runs, last_backup))

    def _run_each(self, statement: str, rows: Sequence[Sequence[object]]) -> Future[None]:
        return self._commit(lambda db: db.many(statement, rows))

    # --- queries -----------------------------------------------------------------------------

    def load(self) -> Snapshot:
        """The state to start from."""
        return self._query(self._snapshot)

    def _snapshot(self, db: Db) -> Snapshot:
        [(cluster_id, applied)] = db.query("log_select")
        return Snapshot(
            cluster_id,
            applied,
            [_topic(*row) for row in db.query("topic_select")],
            [PartitionRow._make(row) for row in db.query("partition_select")],
            self._producers(db),
            [commit.txn_row(row) for row in db.query("txn_select")],
            [OpenTxnRow._make(row) for row in db.query("open_txn_select")],
        )

    def _producers(self, db: Db) -> list[ProducerRow]:
        return []

    def runs(
        self, key: PartitionKey, offset: int, *, max_bytes: int | None = None, limit: int = 1000
    ) -> list[RunRow]:
        """Runs in offset order, from the one that holds `offset` or the first one after it."""
        found: list[RunRow] = []
        size_bytes = 0
        # Steps that grow: what is fetched is in proportion to what is returned.
        step = limit if max_bytes is None else min(limit, _FIRST_STEP)
        while step:
            runs = self._select_runs("run_select", *key, offset, step)
            if found and runs and runs[0].base_offset < offset:
                break  # the packer has put a larger run there meanwhile
            for run in runs:
                found.append(run)
                size_bytes += run.byte_size
                if max_bytes is not None and size_bytes >= max_bytes:
                    return found
            if len(runs) < step:
                break
            offset = runs[-1].last_offset + 1
            step = min(2 * step, limit - len(found))
        return found

    def parquet(self, key: PartitionKey, start: int, end: int) -> list[ParquetRow]:
        """The Parquet of segments with offsets in [start, end), by offset."""
        rows = self._select("run_parquet", *key, start, end)
        return [ParquetRow._make(row) for row in rows]

    def without_parquet(
        self, key: PartitionKey, offset: int, limit: int
    ) -> list[tuple[RunRow, int]]:
        """Segments without Parquet, each with the time it was written, by offset."""
        rows = self._select("run_without_parquet", *key, offset, limit)
        return [(RunRow._make(row[:-1]), row[-1]) for row in rows]

    def chunk_runs(self, limit: int) -> list[RunRow]:
        """Runs that lie in chunks, by topic id, partition and offset."""
        return self._select_runs("run_chunks", limit)

    def runs_in(self, object_key: str) -> list[RunRow]:
        """The runs that lie in an object, by byte offset."""
        return self._select_runs("run_in_object", object_key)

    def run_for_timestamp(self, key: PartitionKey, timestamp_ms: int) -> RunRow | None:
        """The first run with a timestamp at or after this one."""
        found = self._select_runs("run_at_timestamp", *key, timestamp_ms)
        return found[0] if found else None

    def committed(self, group: str) -> dict[tuple[str, int], OffsetCommit]:
        """A group's positions."""
        rows = self._select("group_offset_select", group)
        return {(topic, index): OffsetCommit(*position) for topic, index, *position in rows}

    def groups(self) -> list[str]:
        """The groups that have positions."""
        return [group for (group,) in self._select("group_select")]

    def group(self, group: str) -> GroupRow:
        """A group as its coordinator has left it."""
        return self._query(partial(groups.find_group, group))

    def groups_with_members(self) -> list[str]:
        """The groups whose coordinator has left members."""
        return [group for (group,) in self._select("group_member_groups")]

    def groups_to_expire(self, committed_until_ms: int) -> list[str]:
        """The groups with positions that are so old, or with nothing at all."""
        rows = [*self._select("group_offset_old", committed_until_ms)]
        return [group for (group,) in [*rows, *self._select("group_claim_vacant")]]

    def partitions(self, keys: Iterable[PartitionKey]) -> list[PartitionRow]:
        """Partitions as they are durably now."""
        return [PartitionRow._make(row) for row in self._select_each("partition_find", keys)]

    def txns(self) -> list[TxnRow]:
        """All transactional ids."""
        return [commit.txn_row(row) for row in self._select("txn_select")]

    def producers(self, key: PartitionKey) -> list[ProducerRow]:
        """The producers that are known on a partition, by id."""
        return [commit.producer_row(row) for row in self._select("producer_of_partition", *key)]

    def unfinished_txns(self) -> list[TxnRow]:
        """Transactional ids whose transaction is open or being ended."""
        return [commit.txn_row(row) for row in self._select("txn_unfinished")]

    def open_txns(self, producer_id: int) -> list[OpenTxnRow]:
        """The partitions on which a producer's transaction is open."""
        return [OpenTxnRow._make(row) for row in self._select("open_txn_of_producer", producer_id)]

    def open_txns_on(self, key: PartitionKey) -> list[OpenTxnRow]:
        """The transactions that are open on a partition, by first offset."""
        return [OpenTxnRow._make(row) for row in self._select_each("open_txn_of_partition", [key])]

    def txn_offsets(self, producer_id: int) -> dict[tuple[str, str, int], OffsetCommit]:
        """(group, topic, partition) -> position that waits for the transaction's end."""
        rows = self._select("txn_offset_select", producer_id)
        return {(g, topic, index): OffsetCommit(*position) for g, topic, index, *position in rows}

    def unstable(self, group: str) -> set[tuple[str, int]]:
        """(topic, partition) of a group's positions that wait for the end of a transaction."""
        return {(topic, index) for topic, index in self._select("txn_offset_unstable", group)}

    def aborted(self, key: PartitionKey, start: int, end: int) -> list[AbortedRow]:
        """Aborted transactions with records or marker in [start, end), by last offset."""
        rows = self._select("aborted_txn_select", *key, start, end)
        return [AbortedRow._make(row) for row in rows]

    def pins(self) -> list[Pin]:
        """All pins."""
        return [topics.pin_of(row) for row in self._select("pin_select")]

    def epoch(self, pipeline: str, sink: str, epoch: int | None = None) -> EpochCommit | None:
        """A sink's epoch, or its last one."""
        return self._query(lambda db: commit.find_epoch(pipeline, sink, epoch, db))

    def objects(self, state: ObjectState, *, unreferenced: bool = False) -> list[ObjectRow]:
        """Objects in this state; with `unreferenced` only those that no run lies in or names."""
        statement = "object_unreferenced" if unreferenced else "object_select"
        return [ObjectRow._make(row) for row in self._select(statement, state)]

    def known_objects(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that have a row."""
        return {key for (key,) in self._select_each("object_known", ((key,) for key in keys))}

    def last_backup(self) -> int:
        """The number of the newest backup; 0: there was none."""
        [(number,)] = self._select("backup_last")
        return int(number)

    def storage(self, topic_id: bytes) -> list[StorageRow]:
        """Where a topic's bytes lie, by partition."""
        return [StorageRow._make(row) for row in self._select("run_storage", topic_id)]

    def _select(self, statement: str, *parameters: object) -> Rows:
        return self._query(lambda db: db.query(statement, *parameters))

    def _select_each(self, statement: str, keys: Iterable[Sequence[object]]) -> Rows:
        wanted = list(keys)
        return self._query(lambda db: db.each(statement, wanted))

    def _select_runs(self, statement: str, *parameters: object) -> list[RunRow]:
        return [RunRow._make(row) for row in self._select(statement, *parameters)]


class SharedRelationalCatalog(RelationalCatalog):
    """What only a catalog of many brokers has."""

    def load(self) -> Snapshot:
        """The state to start from, all of one moment; without the producers' standing."""

        def at_one_moment(db: Db) -> Snapshot:
            db.query("backup_begin")
            return self._snapshot(db)

        return self._commit(at_one_moment).result()

    def join(self, broker: BrokerRow, ttl_ms: int) -> Future[Session]:
        """Begin a session. Fails with `BrokerRefused`."""
        return self._commit(partial(brokers.join, broker, ttl_ms))

    def heartbeat(
        self, session: Session, state: BrokerState, ttl_ms: int
    ) -> Future[list[BrokerRow]]:
        """Move the session's deadline; who is alive. Fails with `SessionFenced`."""
        return self._commit(partial(brokers.heartbeat, session, state, ttl_ms))

    def leave(self, session: Session) -> Future[None]:
        """End a session."""
        return self._commit(partial(brokers.leave, session))

    def brokers(self) -> list[BrokerRow]:
        """The live brokers, by id."""
        return self._query(brokers.live_brokers)

    def take_lease(self, name: str, session: Session, ttl_ms: int) -> Future[bool]:
        """Take or renew a lease. Fails with `SessionFenced`."""
        return self._commit(partial(brokers.take_lease, name, session, ttl_ms))

    def payload(self, object_key: str, offset: int, size: int) -> bytes | None:
        """Bytes of a chunk that was committed with its payload."""
        rows = self._select("payload_select", offset + 1, size, object_key)
        return bytes(rows[0][0]) if rows else None

    def delete_payloads(self, object_keys: Iterable[str]) -> Future[None]:
        """Drop such bytes."""
        return self._run_each("payload_delete", [(key,) for key in object_keys])


_FIRST_STEP = 16


def _topic(topic_id: bytes, name: str, partitions: int, config: str) -> Topic:
    return Topic(topic_id, name, partitions, msgspec.json.decode(config, type=dict[str, str]))
