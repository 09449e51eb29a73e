"""What the catalog promises, and how each promise is kept in SQL.

The catalog says which runs exist and in which order. There are two kinds.

An *embedded* catalog (SQLite, one broker) follows the write-ahead log: every chunk, once
sequenced in memory, is handed to `apply`, which returns at once; what was applied can be read
back from that moment on and is durable within a second. Everything else that changes it (a topic,
an offset commit, a pin, a sink epoch, packed runs) is a *barrier*: it returns a future that is
done when the change, and every chunk applied before it, are synced together. So what is on disk
is always a prefix of what happened.

A *shared* catalog (PostgreSQL, any number of brokers) is durable itself and the only sequencer:
see `shared.py`.

A change whose future fails has changed nothing; with `CatalogUncertain` the outcome is unknown.
Queries block and may run in any thread; they see what is durable, and an embedded catalog's `runs`,
`run_for_timestamp` and `aborted` also what was applied just now.

Every operation is written once, for both databases: its contract, and the body that runs in a
transaction (`@change`) or on a connection to read on (`@query`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar

import msgspec

from catchwater.catalog import commit
from catchwater.catalog.commit import json_text, pin_row, producer_row, topic_row, txn_row
from catchwater.catalog.db import Db, Rows
from catchwater.catalog.errors import (
    RunsChanged,
    TooManyReports,
    TopicCollides,
    TopicExists,
    TopicUnknown,
)
from catchwater.catalog.rows import (
    AbortedRow,
    AccessRows,
    Changes,
    EpochCommit,
    GroupChanges,
    GroupRow,
    Notice,
    ObjectRow,
    ObjectState,
    OffsetCommit,
    OpenTxnRow,
    ParquetRow,
    PartitionKey,
    PartitionRow,
    Pin,
    PinState,
    Position,
    ProducerRow,
    QuotaRow,
    ReportRow,
    RuleRow,
    RunRow,
    Scope,
    ScopeRows,
    Session,
    Snapshot,
    State,
    StorageRow,
    Topic,
    TxnRow,
    VerifierRow,
)
from catchwater.catalog.topics import collision

C = TypeVar("C", bound="Catalog")
P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound=tuple[object, ...])

AlterConfig = Callable[[Mapping[str, str]], Mapping[str, str]]
"""A topic's settings to those it shall have; pure, and may be called again."""

HeldLease = tuple[str, Session]
"""A lease's name and the session that must hold it still; without one nothing is checked."""


def change(body: Callable[Concatenate[C, Db, P], T]) -> Callable[Concatenate[C, P], Future[T]]:
    """An operation whose body runs in one transaction, perhaps more than once, in any thread.

    The future is done when the transaction is durable; what the body raises undoes it and is the
    future's. The caller leaves the arguments as they are until then.
    """

    @wraps(body)
    def run(self: C, /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._commit(lambda db: body(self, db, *args, **kwargs))

    return run


def query(body: Callable[Concatenate[C, Db, P], T]) -> Callable[Concatenate[C, P], T]:
    """An operation whose body reads, at once and in the caller's thread."""

    @wraps(body)
    def run(self: C, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._query(lambda db: body(self, db, *args, **kwargs))

    return run


class Catalog(ABC):
    """What both kinds have in common. A database adds how a transaction runs and how one reads."""

    @abstractmethod
    def _commit(self, body: Callable[[Db], T]) -> Future[T]:
        """Run it in a transaction; done when that is durable."""

    @abstractmethod
    def _query(self, body: Callable[[Db], T]) -> T:
        """Run it on a connection to read on."""

    @abstractmethod
    def close(self) -> None:
        """Make everything durable and let go of the files. Raises `CatalogDead`."""

    # --- sequencing --------------------------------------------------------------------------

    @query
    def load(self, db: Db) -> Snapshot:
        """The state to start from; of a shared catalog without the producers' standing."""
        return snapshot(db, [producer_row(row) for row in db.query("producer_select")])

    @change
    def flush(self, db: Db) -> None:
        """Done when every chunk applied so far is durable; a shared catalog is so at once."""
        return None

    @change
    def transact(self, db: Db, scope: Scope, decide: Callable[[ScopeRows], tuple[Changes, T]]) -> T:
        """Lock and read what `scope` names, write what `decide` makes of it, all or nothing.

        `decide` is pure, for it may be called again when the database asks for another try; what
        it raises (a `CatchwaterError`) undoes everything and is the future's. Fails with
        `SessionFenced`, `CoordinatorMoved`, `EpochGap` (an epoch in the changes that does not
        follow), `WriterFenced`, and as every change of a shared catalog with `CatalogUnavailable`
        or `CatalogUncertain`.
        """
        changes, result = decide(commit.look(scope, db))
        for pipeline, fence in changes.fences:
            commit.hold_fence(pipeline, fence, db)
        for pipeline, sink, epoch in changes.epochs:
            commit.record_epoch(pipeline, sink, epoch, db)
        commit.write_changes(changes, db)
        commit.notify_partitions(changes.partitions, db)
        return result

    @query
    def epoch(
        self, db: Db, pipeline: str, sink: str, epoch: int | None = None
    ) -> EpochCommit | None:
        """A sink's epoch, or its last one; `already` is set."""
        return commit.find_epoch(pipeline, sink, epoch, db)

    # --- topics and partitions ---------------------------------------------------------------

    @change
    def create_topic(self, db: Db, topic: Topic) -> None:
        """Fails with `TopicExists` or `TopicCollides`."""
        # Kafka names metrics after topics, where a dot becomes an underscore: two would be one.
        plain = topic.name.replace(".", "_")
        db.query("name_lock", f"topic {plain}")
        found = [name for (name,) in db.query("topic_collision", plain) if name != topic.name]
        if found:
            raise TopicCollides(
                collision(topic.name, found[0]),
                hint="Use either dots or underscores in the names of topics, not both.",
            )
        row = (topic.id, topic.name, topic.partitions, json_text(dict(topic.config)))
        if not db.query("topic_insert", *row):
            raise TopicExists(f"There is a topic {topic.name} already.")
        _insert_partitions(topic.id, range(topic.partitions), db)

    @change
    def add_partitions(self, db: Db, topic_id: bytes, partitions: int) -> None:
        """Let a topic have so many partitions, never fewer. Fails with `TopicUnknown`."""
        count, _ = _lock_topic(topic_id, db)
        if partitions > count:
            db.query("topic_grow", partitions, topic_id)
            _insert_partitions(topic_id, range(count, partitions), db)

    @change
    def alter_topic_config(self, db: Db, topic_id: bytes, alter: AlterConfig) -> Mapping[str, str]:
        """Replace a topic's configuration by what `alter` makes of it; the new one.

        Two that alter at once do so one after the other. Fails with `TopicUnknown`, and with what
        `alter` raises.
        """
        _, config = _lock_topic(topic_id, db)
        altered = alter(msgspec.json.decode(config, type=dict[str, str]))
        db.query("topic_configure", json_text(dict(altered)), topic_id)
        db.notify(Notice("topics"))
        return altered

    @change
    def delete_topic(self, db: Db, topic_id: bytes) -> None:
        """Forget a topic, its runs and its committed offsets. Fails with `TopicUnknown`.

        Its segments, their Parquet and staged chunks go to state `deleting`.
        """
        count, _ = _lock_topic(topic_id, db)
        commit.lock_partitions([(topic_id, index) for index in range(count)], db)
        [(name,)] = db.query("topic_delete", topic_id)
        keys = [key for (key,) in db.query("run_objects", topic_id)]
        db.query("run_delete", topic_id)
        db.query("partition_delete", topic_id)
        db.query("producer_delete", topic_id)
        db.query("open_txn_delete", topic_id)
        db.query("aborted_txn_delete", topic_id)
        db.query("group_offset_delete_topic", name)
        db.query("txn_offset_delete_topic", name)
        # A WAL file holds chunks of other topics too, and the log knows when it is finished.
        _mark_deleting([key for key in keys if not key.startswith("wal/")], db)
        db.notify(Notice("topics"))

    @query
    def partitions(self, db: Db, keys: Sequence[PartitionKey]) -> list[PartitionRow]:
        """Partitions as they are durably now; those that do not exist are left out."""
        return [PartitionRow._make(row) for row in db.each("partition_find", keys)]

    @query
    def storage(self, db: Db, topic_id: bytes) -> list[StorageRow]:
        """Where a topic's bytes lie, by partition."""
        return [StorageRow._make(row) for row in db.query("run_storage", topic_id)]

    # --- producers and their transactions ----------------------------------------------------

    @change
    def allocate_producer_ids(self, db: Db, count: int) -> int:
        """The first of `count` producer ids that were never given out."""
        [(following,)] = db.query("producer_ids_take", count)
        return int(following) - count

    @change
    def forget_producers(self, db: Db, last_ms_below: int) -> None:
        """Drop the standing of producers that have been silent since."""
        db.many("producer_forget", [(last_ms_below,)])

    @change
    def forget_txns(self, db: Db, updated_ms_below: int) -> set[int]:
        """Drop transactional ids that have been silent since, none with something open.

        Returns their producer ids.
        """
        return {producer_id for (producer_id,) in db.query("txn_forget", updated_ms_below)}

    @query
    def producers(self, db: Db, key: PartitionKey) -> list[ProducerRow]:
        """The producers that are known on a partition, by id."""
        return [producer_row(row) for row in db.query("producer_of_partition", *key)]

    @query
    def txns(self, db: Db) -> list[TxnRow]:
        """All transactional ids."""
        return [txn_row(row) for row in db.query("txn_select")]

    @query
    def unfinished_txns(self, db: Db) -> list[TxnRow]:
        """Transactional ids whose transaction is open or being ended."""
        return [txn_row(row) for row in db.query("txn_unfinished")]

    @query
    def open_txns(self, db: Db, producer_id: int) -> list[OpenTxnRow]:
        """The partitions on which a producer's transaction is open."""
        return [OpenTxnRow._make(row) for row in db.query("open_txn_of_producer", producer_id)]

    @query
    def open_txns_on(self, db: Db, key: PartitionKey) -> list[OpenTxnRow]:
        """The transactions that are open on a partition, by first offset."""
        return [OpenTxnRow._make(row) for row in db.each("open_txn_of_partition", [key])]

    @query
    def aborted(self, db: Db, key: PartitionKey, start: int, end: int) -> list[AbortedRow]:
        """Aborted transactions with records or marker in [start, end), by last offset."""
        return [AbortedRow._make(row) for row in db.query("aborted_txn_select", *key, start, end)]

    @query
    def txn_offsets(self, db: Db, producer_id: int) -> dict[tuple[str, str, int], OffsetCommit]:
        """(group, topic, partition) -> position that waits for the transaction's end."""
        rows = db.query("txn_offset_select", producer_id)
        return {(g, topic, index): OffsetCommit(*position) for g, topic, index, *position in rows}

    @query
    def unstable(self, db: Db, group: str) -> set[tuple[str, int]]:
        """(topic, partition) of a group's positions that wait for the end of a transaction."""
        return {(topic, index) for topic, index in db.query("txn_offset_unstable", group)}

    # --- consumer groups ---------------------------------------------------------------------
    # A change fails with `CoordinatorMoved` when the group's claim has another epoch than the one
    # given.

    @change
    def claim_group(self, db: Db, group: str, session: Session | None) -> GroupRow:
        """Become the group's coordinator, with an epoch above all earlier ones.

        Fails with `SessionFenced`.
        """
        if session is not None:
            commit.require_session(session, db)
        [(epoch,)] = db.query("epoch_take")
        # Every change of the group locks this row, so what is read next is all that was left.
        return _group_row(db.query("group_claim_set", group, epoch), group, db)

    @change
    def keep_group(
        self, db: Db, group: str, changes: GroupChanges, *, claim_epoch: int | None = None
    ) -> None:
        """Keep what has changed of a group: its generation, state and members."""
        if claim_epoch is None:
            [(claim_epoch,)] = db.query("group_claim_find", group)
        if not db.query("group_claim_record", changes.generation, group, claim_epoch):
            raise commit.coordinator_moved(group, claim_epoch)
        now_ms = db.now_ms() if changes.is_empty else 0
        states = [] if changes.state is None else [json_text(changes.state)]
        members = changes.members.items()
        with db.in_one_trip():
            is_empty = changes.is_empty
            db.many("group_claim_keep", [(state, is_empty, now_ms, group) for state in states])
            if changes.is_whole:
                db.many("group_member_delete_all", [(group,)])
            gone = [(group, member_id) for member_id, state in members if state is None]
            db.many("group_member_delete", [] if changes.is_whole else gone)
            there = [(group, m, json_text(state)) for m, state in members if state is not None]
            db.many("group_member_upsert", there)

    @change
    def delete_group(self, db: Db, group: str, *, claim_epoch: int | None = None) -> bool:
        """Forget a group with its claim, members and positions; whether it had positions."""
        commit.require_claim(group, claim_epoch, db)
        # The claim first: a commit of positions locks it before it writes them.
        db.query("group_claim_delete", group)
        db.many("group_member_delete_all", [(group,)])
        db.query("txn_offset_delete_group", group)
        return bool(db.query("group_offset_delete", group))

    @change
    def commit_offsets(
        self,
        db: Db,
        group: str,
        offsets: Mapping[tuple[str, int], OffsetCommit],
        *,
        claim_epoch: int | None = None,
    ) -> None:
        """Keep a group's positions, all or none."""
        commit.require_claim(group, claim_epoch, db)
        rows = [(group, *key, *position) for key, position in sorted(offsets.items())]
        db.many("group_offset_upsert", rows)

    @change
    def delete_offsets(
        self,
        db: Db,
        group: str,
        keys: Collection[tuple[str, int]],
        *,
        claim_epoch: int | None = None,
    ) -> None:
        """Forget a group's positions in these (topic, partition)."""
        commit.require_claim(group, claim_epoch, db)
        db.many("group_offset_forget", [(group, *key) for key in sorted(keys)])

    @change
    def expire_offsets(
        self,
        db: Db,
        group: str,
        keys: Collection[tuple[str, int]],
        committed_until_ms: int,
        *,
        with_group: bool,
        claim_epoch: int | None = None,
    ) -> list[tuple[str, int]]:
        """Forget those of these (topic, partition) that were committed then or before; which.

        `with_group`: and the group, if neither positions nor members are left.
        """
        commit.require_claim(group, claim_epoch, db)
        wanted = [(group, *key, committed_until_ms) for key in sorted(keys)]
        gone = [(topic, index) for topic, index in db.each("group_offset_expire", wanted)]
        if with_group:
            db.many("group_claim_forget", [(group,)])
        return gone

    @query
    def committed(self, db: Db, group: str) -> dict[tuple[str, int], OffsetCommit]:
        """A group's positions."""
        rows = db.query("group_offset_select", group)
        return {(topic, index): OffsetCommit(*position) for topic, index, *position in rows}

    @query
    def groups(self, db: Db) -> list[str]:
        """The groups that have positions."""
        return [group for (group,) in db.query("group_select")]

    @query
    def group(self, db: Db, group: str) -> GroupRow:
        """A group as its coordinator has left it; epoch and generation 0 where there is none."""
        return _group_row(db.query("group_claim_select", group), group, db)

    @query
    def groups_with_members(self, db: Db) -> list[str]:
        """The groups whose coordinator has left members."""
        return [group for (group,) in db.query("group_member_groups")]

    @query
    def groups_to_expire(self, db: Db, committed_until_ms: int) -> list[str]:
        """The groups with a position that was committed then or before, or with nothing at all."""
        rows = db.query("group_offset_old", committed_until_ms) + db.query("group_claim_vacant")
        return [group for (group,) in rows]

    # --- runs, and the objects they lie in ---------------------------------------------------

    @change
    def replace_runs(
        self,
        db: Db,
        old: Sequence[RunRow],
        new: Sequence[RunRow],
        objects: Sequence[ObjectRow],
        lease: HeldLease | None = None,
    ) -> PartitionRow:
        """The packer's commit: take runs out and put others (segments) in their place.

        Both cover the same offsets of one partition. Fails with `RunsChanged` when an old run
        is not there any more (trimmed, packed by another, or its topic deleted). Returns the
        partition with the bytes and the earliest timestamp that it then has. `lease` as in `trim`.
        """
        if lease is not None:
            commit.require_lease(*lease, db)
        assert old, "something is replaced"
        assert len({run[:2] for run in (*old, *new)}) == 1, "runs of one partition are replaced"
        key = old[0][:2]
        commit.lock_partitions([key], db)
        taken = {base for (base,) in db.each("run_take_out", [run[:5] for run in old])}
        for run in old:
            if run.base_offset not in taken:
                raise _gone(run)
        commit.write_changes(Changes(runs=new, objects=objects), db)
        _renew_reach(key, old[0].base_offset, max(run.last_offset for run in (*old, *new)), db)
        grown = sum(run.byte_size for run in new) - sum(run.byte_size for run in old)
        oldest = db.query("run_oldest", *key)
        [row] = db.query("partition_resize", grown, oldest[0][2] if oldest else -1, *key)
        return PartitionRow._make(row)

    @change
    def add_parquet(self, db: Db, run: RunRow, parquet: ParquetRow, row: ObjectRow) -> None:
        """Let the run, a whole segment, have its records in this object too; the run keeps it.

        Fails with `RunsChanged` when the run is not there any more.
        """
        assert (parquet.segment, parquet.object) == (run.object, row.key), "they belong together"
        commit.lock_partitions([run[:2]], db)
        commit.write_changes(Changes(objects=[row]), db)
        if not db.each("run_set_parquet", [(*parquet[1:], *run[:5])]):
            raise _gone(run)

    @change
    def trim(
        self, db: Db, log_starts: Mapping[PartitionKey, int], lease: HeldLease | None = None
    ) -> list[PartitionRow]:
        """Retention's commit: move log starts up and drop the runs that end before them.

        With a `lease` it fails with `SessionFenced` unless the session holds it still: what the
        caller knew of pins is then no longer so.
        Returns the partitions as they are then, without those whose topic is gone. Call it
        through `Log.trim`, which moves the log's own states along.
        """
        if lease is not None:
            commit.require_lease(*lease, db)
        keys = [row[:2] for row in commit.lock_partitions(log_starts, db)]
        dropped = dict.fromkeys(keys, 0)
        starts = [(*key, log_starts[key]) for key in keys]
        for topic_id, partition, byte_size in db.each("run_trim", starts):
            dropped[topic_id, partition] += byte_size
        db.many("aborted_txn_trim", starts)
        earliest = dict.fromkeys(keys, -1)
        for topic_id, partition, timestamp, reach in db.each("run_oldest", keys):
            key = (topic_id, partition)
            earliest[key] = timestamp
            if reach != timestamp:
                _renew_reach(key, log_starts[key], log_starts[key] - 1, db)
        trimmed = [(log_starts[k], log_starts[k], dropped[k], earliest[k], *k) for k in keys]
        rows = [PartitionRow._make(row) for row in db.each("partition_trim", trimmed)]
        commit.notify_partitions(rows, db)
        return rows

    @change
    def mark_deleting(self, db: Db, keys: Sequence[str]) -> list[str]:
        """Move objects that no run lies in, or has as its Parquet, to state `deleting`; returns
        those that were moved.
        """
        return _mark_deleting(keys, db)

    @change
    def forget_objects(self, db: Db, keys: Sequence[str]) -> None:
        """Drop the rows of objects in state `deleting`, once their bytes are gone."""
        db.many("object_forget", [(key,) for key in keys])

    def runs(
        self, key: PartitionKey, offset: int, *, max_bytes: int | None = None, limit: int = 1000
    ) -> list[RunRow]:
        """Runs in offset order, from the one that holds `offset` or the first one after it.

        Stops after `limit` runs, or with the run that reaches `max_bytes`. From the oldest run:
        offset 0.
        """
        found: list[RunRow] = []
        size_bytes = 0
        # Steps that grow: what is fetched is in proportion to what is returned.
        step = limit if max_bytes is None else min(limit, _FIRST_RUNS)
        while step:
            runs = self._next_runs(key, offset, step)
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

    @query
    def _next_runs(self, db: Db, key: PartitionKey, offset: int, limit: int) -> list[RunRow]:
        return _run_rows(db.query("run_select", *key, offset, limit))

    @query
    def run_for_timestamp(self, db: Db, key: PartitionKey, timestamp_ms: int) -> RunRow | None:
        """The first run with a timestamp at or after this one."""
        found = _run_rows(db.query("run_at_timestamp", *key, timestamp_ms))
        return found[0] if found else None

    @query
    def runs_in(self, db: Db, object_key: str) -> list[RunRow]:
        """The runs that lie in an object, by byte offset: did a commit without an answer happen?"""
        return _run_rows(db.query("run_in_object", object_key))

    @query
    def chunk_runs(self, db: Db, limit: int) -> list[RunRow]:
        """Runs that lie in chunks, not in segments, by topic id, partition and offset."""
        return _run_rows(db.query("run_chunks", limit))

    @query
    def parquet(self, db: Db, key: PartitionKey, start: int, end: int) -> list[ParquetRow]:
        """The Parquet of segments with offsets in [start, end), by offset."""
        return [ParquetRow._make(row) for row in db.query("run_parquet", *key, start, end)]

    @query
    def without_parquet(
        self, db: Db, key: PartitionKey, offset: int, limit: int
    ) -> list[tuple[RunRow, int]]:
        """Segments without Parquet from the one with `offset` on, each with the time it was written
        (ms), by offset.
        """
        rows = db.query("run_without_parquet", *key, offset, limit)
        return [(RunRow._make(row[:-1]), row[-1]) for row in rows]

    @query
    def objects(self, db: Db, state: ObjectState, *, unreferenced: bool = False) -> list[ObjectRow]:
        """Objects in this state; with `unreferenced` only those that no run lies in or names."""
        statement = "object_unreferenced" if unreferenced else "object_select"
        return [ObjectRow._make(row) for row in db.query(statement, state)]

    @query
    def oldest_chunk_ms(self, db: Db) -> int | None:
        """When the oldest chunk was made that has something not packed; None: there is none."""
        [(created_ms,)] = db.query("object_oldest_chunk")
        return None if created_ms is None else int(created_ms)

    @query
    def known_objects(self, db: Db, keys: Collection[str]) -> set[str]:
        """The keys that have a row, in any state."""
        return {key for (key,) in db.each("object_known", [(key,) for key in keys])}

    # --- pins --------------------------------------------------------------------------------

    @change
    def set_pin(self, db: Db, pin: Pin) -> None:
        """Create a pin, or replace the one with its id."""
        positions = [(*key, offset) for key, offset in sorted(pin.positions.items())]
        row = (pin.id, pin.owner, json_text(positions), pin.lease_until_ms, pin.created_ms)
        db.query("pin_upsert", *row, pin.max_bytes, pin.state)

    @change
    def set_pin_states(self, db: Db, states: Mapping[str, PinState]) -> None:
        """What retention has found out about pins; one that is gone is skipped."""
        db.many("pin_set_state", [(state, pin_id) for pin_id, state in sorted(states.items())])

    @change
    def release_pin(self, db: Db, pin_id: str) -> bool:
        """Whether there was such a pin."""
        return bool(db.query("pin_delete", pin_id))

    @query
    def pins(self, db: Db) -> list[Pin]:
        """All pins, also those whose lease has ended."""
        return [pin_row(row) for row in db.query("pin_select")]

    # --- looks from time to time -------------------------------------------------------------

    @query
    def positions(self, db: Db, most: int) -> tuple[list[Position], int]:
        """The positions of all groups by group, topic and partition; and how many were left out."""
        rows = [Position._make(row) for row in db.query("group_offset_first", most)]
        if len(rows) < most:
            return rows, 0
        [(count,)] = db.query("group_offset_count")
        return rows, max(0, count - len(rows))

    # --- reports of pipelines ----------------------------------------------------------------

    @change
    def keep_report(self, db: Db, row: ReportRow, forget_before_ms: int, most: int) -> None:
        """Keep a pipeline's report in place of its last one; those that are older go.

        Raises `TooManyReports` where `most` other pipelines have one.
        """
        db.query("report_forget", forget_before_ms)
        [(others,)] = db.query("report_others", row.name)
        if others >= most:
            raise TooManyReports(
                f"{most} pipelines have reported to this log, which is as many as it keeps.",
                hint="A report that is a week old makes room.",
            )
        db.query("report_upsert", *row)

    @query
    def reports(self, db: Db) -> list[ReportRow]:
        """The last report of every pipeline, by name."""
        return [ReportRow._make(row) for row in db.query("report_select")]

    # --- users and rules ---------------------------------------------------------------------

    @query
    def access_version(self, db: Db) -> int:
        """Of users and rules; it grows with every change."""
        [(version,)] = db.query("access_version")
        return int(version)

    @query
    def access(self, db: Db) -> AccessRows:
        """Users and rules of this version, or later."""
        return _access_rows(db)

    @change
    def change_access(self, db: Db, decide: Callable[[AccessRows], AccessRows]) -> AccessRows:
        """Replace users and rules by what `decide` makes of them; those that there are then.

        Two that change at once do so one after the other. Fails with what `decide` raises.
        """
        [(version,)] = db.query("access_version_take")
        before = _access_rows(db)
        after = decide(before)
        gone_rules, new_rules = _differences(before.rules, after.rules)
        gone, new = _differences(before.verifiers, after.verifiers)
        with db.in_one_trip():
            db.many("access_rule_delete", gone_rules)
            db.many("access_rule_insert", new_rules)
            db.many("access_verifier_delete", [row[:2] for row in gone])
            db.many("access_verifier_insert", new)
        return after._replace(version=int(version))

    # --- quotas ------------------------------------------------------------------------------

    @query
    def client_quotas(self, db: Db) -> list[QuotaRow]:
        """What clients may take in a second."""
        return [
            QuotaRow(_quota_name(user), _quota_name(client), key, float(value))
            for user, client, key, value in db.query("client_quota_select")
        ]

    @change
    def change_client_quotas(self, db: Db, rows: Sequence[QuotaRow]) -> None:
        """Set these, and remove those without a value."""
        named = [(*map(_quota_text, row[:2]), row.key, row.value) for row in rows]
        with db.in_one_trip():
            db.many("client_quota_delete", [row[:3] for row in named if row[3] is None])
            db.many("client_quota_upsert", [row for row in named if row[3] is not None])

    # --- backups of the state ----------------------------------------------------------------
    # The state is all but the runs in segments, which say of themselves what they hold. Brokers,
    # leases, reports and the members of groups are left out: those of an earlier time would pass
    # for those of today. So are the payloads of the WAL `postgres`, which are large.

    @query
    def last_backup(self, db: Db) -> int:
        """The number of the newest backup; 0: there was none."""
        [(number,)] = db.query("backup_last")
        return int(number)

    @change
    def take_backup_number(self, db: Db) -> int:
        """A number above those of all earlier backups of the state."""
        [(number,)] = db.query("backup_take")
        return int(number)

    @change
    def take_state(self, db: Db) -> State:
        """All but the runs in segments, at one moment: rows by table."""
        db.query("backup_begin")
        state = {table: db.query(select) for table, (select, _) in STATE.items()}
        return {"log": db.query("log_all"), **state}

    @change
    def restore(
        self,
        db: Db,
        taken: State,
        objects: Sequence[ObjectRow],
        runs: Sequence[RunRow],
        last_backup: int,
    ) -> None:
        """Fill an empty catalog with a state and these objects and runs besides.

        Backups taken from now on have numbers above `last_backup`.
        """
        assert not db.query("topic_select"), "a state is restored into an empty catalog"
        [log] = taken["log"]
        db.query("log_restore", *log, last_backup)
        rows = {table: taken.get(table, ()) for table in STATE}
        rows["object"] = [*rows["object"], *objects]
        rows |= _restored_groups(rows, db.now_ms())
        rows["run"] = sorted([*rows["run"], *runs], key=lambda run: (run[0], run[1], run[2]))
        for table, (_, insert) in STATE.items():
            if table == "topic":
                for topic in rows[table]:
                    db.query(insert, *topic)  # it returns something, as `many` must not
            else:
                db.many(insert, rows[table])


class EmbeddedCatalog(Catalog):
    """The catalog of one broker, which trails its write-ahead log."""

    @abstractmethod
    def apply(self, sequence: int, changes: Changes) -> None:
        """Take one chunk's changes; chunks come in order. Durable within a second.

        Raises `CatalogDead`.
        """


STATE = {
    "topic": ("topic_select", "topic_insert"),
    "partition": ("partition_select", "partition_upsert"),
    "producer": ("producer_select", "producer_upsert"),
    "txn": ("txn_select", "txn_upsert"),
    "open_txn": ("open_txn_select", "open_txn_upsert"),
    "aborted_txn": ("aborted_txn_all", "aborted_txn_insert"),
    "txn_offset": ("txn_offset_all", "txn_offset_upsert"),
    "group_offset": ("group_offset_all", "group_offset_upsert"),
    "group_claim": ("group_claim_all", "group_claim_insert"),
    "pin": ("pin_select", "pin_upsert"),
    "sink_epoch": ("sink_epoch_all", "sink_epoch_insert"),
    "access_rule": ("access_rule_select", "access_rule_insert"),
    "client_quota": ("client_quota_select", "client_quota_upsert"),
    "access_verifier": ("access_verifier_select", "access_verifier_insert"),
    "object": ("object_chunks", "object_upsert"),
    "run": ("run_of_chunks", "run_insert"),
}
"""The tables of a backup, and the statements that read and write each, with the same columns in the
same order."""

BEGIN_WITH_TOPIC_ID = {"topic", "partition", "producer", "open_txn", "aborted_txn", "run"}
"""The tables whose first column is 16 bytes; no other column holds bytes."""

_FIRST_RUNS = 16
_REACH_STEP = 1000


def snapshot(db: Db, producers: Sequence[ProducerRow]) -> Snapshot:
    """What a log starts from, with these producers."""
    [(cluster_id, applied)] = db.query("log_select")
    return Snapshot(
        cluster_id,
        applied,
        [topic_row(row) for row in db.query("topic_select")],
        [PartitionRow._make(row) for row in db.query("partition_select")],
        producers,
        [txn_row(row) for row in db.query("txn_select")],
        [OpenTxnRow._make(row) for row in db.query("open_txn_select")],
    )


def _lock_topic(topic_id: bytes, db: Db) -> tuple[int, str]:
    """A topic's number of partitions and its configuration (JSON). Raises `TopicUnknown`."""
    found = db.query("topic_lock", topic_id)
    if not found:
        raise TopicUnknown(f"There is no topic with the id {topic_id.hex()}.")
    [(count, config)] = found
    return count, config


def _insert_partitions(topic_id: bytes, indexes: range, db: Db) -> None:
    db.many("partition_upsert", [PartitionRow(topic_id, index, 0, 0, 0, -1) for index in indexes])
    db.notify(Notice("topics"))


def _group_row(claims: Rows, group: str, db: Db) -> GroupRow:
    if not claims:
        return GroupRow(0, 0)
    [(epoch, generation, state, emptied_ms)] = claims
    members = {member_id: kept for member_id, kept in db.query("group_member_select", group)}
    return GroupRow(epoch, generation, state, emptied_ms, members)


def _quota_text(name: str | None) -> str:
    return "" if name is None else f"={name}" if name else "*"


def _quota_name(text: str) -> str | None:
    return text[1:] if text else None


def _access_rows(db: Db) -> AccessRows:
    [(version,)] = db.query("access_version")  # first: what is read after it is no older
    rules = [RuleRow._make(row) for row in db.query("access_rule_select")]
    verifiers = [VerifierRow._make(row) for row in db.query("access_verifier_select")]
    return AccessRows(int(version), rules, verifiers)


def _differences(before: Sequence[R], after: Sequence[R]) -> tuple[list[R], list[R]]:
    """The rows that are gone, and those that are new, in order."""
    had, has = set(before), set(after)
    return sorted(had - has), sorted(has - had)


def _run_rows(rows: Rows) -> list[RunRow]:
    return [RunRow._make(row) for row in rows]


def _gone(run: RunRow) -> RunsChanged:
    return RunsChanged(
        f"The run of offsets {run.base_offset} to {run.last_offset} in {run.object} is not in the "
        "catalog any more."
    )


def _renew_reach(key: PartitionKey, first: int, last: int, db: Db) -> None:
    """Make `reach_timestamp` right from `first` to `last`, and behind it as far as it is wrong.

    It is the largest timestamp up to and with a run, so it never falls along the offsets and a
    timestamp is found by one descent. Taking runs out may lower it for those that follow: this
    walks on until it meets one that is right, usually the first.
    """
    before = db.query("run_reach_before", *key, first)
    reach = before[0][0] if before else -1
    while runs := db.query("run_reach", *key, first, _REACH_STEP):
        wrong = []
        is_right = False
        for last_offset, timestamp, stored in runs:
            reach = max(reach, timestamp)
            is_right = reach == stored
            if not is_right:
                wrong.append((reach, *key, last_offset))
            elif last_offset > last:
                break
        db.many("run_set_reach", wrong)
        first = runs[-1][0] + 1
        if is_right and first > last:
            return


def _mark_deleting(keys: Iterable[str], db: Db) -> list[str]:
    return [key for (key,) in db.each("object_mark_deleting", [(key,) for key in keys])]


def _restored_groups(rows: State, now_ms: int) -> State:
    """Of groups: all members have just gone, and no position expires before its time.

    Older releases knew neither when a position was committed nor what a group was.
    """
    claims = [(*row, "", None)[:5] for row in rows["group_claim"]]
    return {
        "group_claim": [
            (*row[:4], now_ms if row[3] and row[4] is None else row[4]) for row in claims
        ],
        "group_offset": [(*row, now_ms)[:7] for row in rows["group_offset"]],
        "txn_offset": [(*row, now_ms)[:8] for row in rows["txn_offset"]],
    }
