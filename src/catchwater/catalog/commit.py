"""How a chunk, a sink's epoch or the end of a transaction becomes part of the log: lock and read,
then write what was decided; and the locks that other changes take.

Every transaction locks rows in one order (session, transactional ids, a group's claim, partitions;
each kind sorted), so that two commits wait for each other at most one way round. Producers'
standing and open transactions are guarded by the lock of their partition. Locks are held until the
transaction ends; in SQLite, where one thread writes, there is nothing to lock.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from catchwater.catalog.db import Db
from catchwater.catalog.errors import CoordinatorMoved, EpochGap, SessionFenced, WriterFenced
from catchwater.catalog.rows import (
    Changes,
    EpochCommit,
    Notice,
    OpenTxnRow,
    PartitionKey,
    PartitionRow,
    Pin,
    ProducerRow,
    Scope,
    ScopeRows,
    Session,
    SinkFence,
    Topic,
    TxnRow,
)

# --- locks -----------------------------------------------------------------------------------


def require_session(session: Session, db: Db) -> None:
    """Keep the session from being superseded. Raises `SessionFenced` if it was."""
    if not db.query("broker_lock", *session):
        raise _fenced(session)


def require_lease(name: str, session: Session, db: Db) -> None:
    """Keep the lease from being taken by others. Raises `SessionFenced` unless it is held."""
    if not db.query("lease_hold", name, *session, db.now_ms()):
        raise SessionFenced(
            f"Session {session.epoch} of broker {session.broker_id} has lost the lease {name!r}."
        )


def require_claim(group: str, claim_epoch: int | None, db: Db) -> None:
    """Keep the group from being claimed by others. Raises `CoordinatorMoved` if it was.

    Without an epoch nothing is required: a broker alone claims no group.
    """
    if claim_epoch is not None and db.query("group_claim_lock", group) != [(claim_epoch,)]:
        raise coordinator_moved(group, claim_epoch)


def lock_partitions(keys: Iterable[PartitionKey], db: Db) -> list[PartitionRow]:
    """The partitions that exist."""
    return [PartitionRow._make(row) for row in db.each("partition_lock", sorted(set(keys)))]


def look(scope: Scope, db: Db) -> ScopeRows:
    """Lock and read the rows of a scope, in one round trip.

    Raises `SessionFenced`, `CoordinatorMoved`.
    """
    names = sorted(set(scope.transactional_ids))
    keys = sorted(set(scope.partitions))
    session, _, by_name, by_producer, claim, partitions, producers, open_txns = db.batch(
        ("broker_lock", [scope.session] if scope.session else []),
        ("name_lock", [(f"txn {name}",) for name in names]),
        ("txn_lock_name", [(name,) for name in names]),
        ("txn_lock_producer", [(number,) for number in sorted(set(scope.transactional))]),
        ("group_claim_lock", [scope.claim[:1]] if scope.claim else []),
        ("partition_lock", keys),
        ("producer_find", sorted(set(scope.producers))),
        ("open_txn_of_partition", keys),
    )
    if scope.session and not session:
        raise _fenced(scope.session)
    if scope.claim and claim != [scope.claim[1:]]:
        raise coordinator_moved(*scope.claim)
    return ScopeRows(
        [PartitionRow._make(row) for row in partitions],
        [producer_row(row) for row in producers],
        [txn_row(row) for row in {row[0]: row for row in by_name + by_producer}.values()],
        [OpenTxnRow._make(row) for row in open_txns],
    )


# --- writes ----------------------------------------------------------------------------------


def write_changes(changes: Changes, db: Db) -> None:
    """Store everything but the epochs. Open transactions are closed before others are opened."""
    with db.in_one_trip():
        db.many("payload_insert", changes.payloads)
        db.many("object_upsert", changes.objects)
        db.add_runs(changes.runs)
        db.many("partition_upsert", changes.partitions)
        db.many(
            "producer_upsert",
            [(*row[:4], json_text(row.batches), row.last_ms) for row in changes.producers],
        )
        db.many("open_txn_close", changes.closed_txns)
        db.many("open_txn_upsert", changes.open_txns)
        db.many("aborted_txn_insert", changes.aborted)
        db.many("txn_upsert", [txn_columns(row) for row in changes.txns])
        committed = [(end.producer_id,) for end in changes.ended if end.committed]
        db.many("txn_offset_keep", committed)
        db.many("txn_offset_delete", [(end.producer_id,) for end in changes.ended])
        db.many("txn_offset_upsert", [(*row[:4], *row[4]) for row in changes.txn_offsets])


def notify_partitions(rows: Sequence[PartitionRow], db: Db) -> None:
    """Send the other brokers where these partitions begin and end now."""
    if rows:
        db.notify(Notice("partitions", [row[:4] for row in rows]))


def record_epoch(pipeline: str, sink: str, commit: EpochCommit, db: Db) -> None:
    """Record a sink's epoch. Raises `EpochGap` if it does not follow the last one."""
    db.query("name_lock", f"sink {pipeline} {sink}")
    last = find_epoch(pipeline, sink, None, db)
    if last is not None and commit.epoch != last.epoch + 1:
        raise EpochGap(
            f"Sink {sink} of pipeline {pipeline} has committed epoch {last.epoch}; epoch "
            f"{commit.epoch} does not follow it.",
            hint=f"Commit epoch {last.epoch + 1} next.",
        )
    spans = [(index, *span) for index, span in sorted(commit.offsets.items())]
    what = (commit.epoch, commit.topic, commit.records, json_text(spans), commit.checksum)
    db.query("sink_epoch_insert", pipeline, sink, *what)


def hold_fence(pipeline: str, fence: SinkFence, db: Db) -> None:
    """Keep drivers before this one from writing. Raises `WriterFenced` if it is such a one."""
    db.query("name_lock", f"sink {pipeline} {fence.name}")
    last = find_epoch(pipeline, fence.name, None, db)
    if last is not None and last.epoch > fence.number:
        raise WriterFenced(
            f"Driver {fence.number} of pipeline {pipeline} may not write any more: driver "
            f"{last.epoch} has taken its place.",
            hint="The pipeline goes on there.",
        )
    if last is None or last.epoch < fence.number:
        what = (fence.number, fence.topic, 0, json_text([]), "")
        db.query("sink_epoch_insert", pipeline, fence.name, *what)


def find_epoch(pipeline: str, sink: str, epoch: int | None, db: Db) -> EpochCommit | None:
    """A sink's epoch, or its last one."""
    if epoch is None:
        rows = db.query("sink_epoch_last", pipeline, sink)
    else:
        rows = db.query("sink_epoch_select", pipeline, sink, epoch)
    if not rows:
        return None
    [(number, topic, records, offsets, checksum)] = rows
    spans = msgspec.json.decode(offsets, type=list[tuple[int, int, int]])
    return EpochCommit(
        already=True,
        epoch=number,
        records=records,
        offsets={index: (first, last) for index, first, last in spans},
        checksum=checksum,
        topic=topic,
    )


def coordinator_moved(group: str, epoch: int) -> CoordinatorMoved:
    """The error of a claim that was superseded."""
    return CoordinatorMoved(
        f"The claim with epoch {epoch} on group {group!r} was superseded.",
        hint="Find the group's coordinator again.",
    )


def _fenced(session: Session) -> SessionFenced:
    return SessionFenced(
        f"Session {session.epoch} of broker {session.broker_id} was superseded or has expired.",
        hint="Join again; nothing that was not acknowledged has become part of the log.",
    )


# --- columns that are JSON -----------------------------------------------------------------------


def json_text(value: object) -> str:
    """A value as a JSON column keeps it."""
    return msgspec.json.encode(value).decode()


def topic_row(row: Sequence[Any]) -> Topic:
    """A row of `topic_select`."""
    topic_id, name, partitions, config = row
    return Topic(topic_id, name, partitions, msgspec.json.decode(config, type=dict[str, str]))


def producer_row(row: Sequence[Any]) -> ProducerRow:
    """A row of `producer_select`, `producer_find` or `producer_of_partition`."""
    *standing, batches, last_ms = row
    kept = msgspec.json.decode(str(batches), type=tuple[tuple[int, int, int], ...])
    return ProducerRow._make((*standing, kept, last_ms))


def txn_row(row: Sequence[Any]) -> TxnRow:
    """A row of `txn_select`, `txn_unfinished` or one of the `txn_lock` statements."""
    *standing, partitions = row
    kept = msgspec.json.decode(str(partitions), type=tuple[tuple[str, int], ...])
    return TxnRow._make((*standing, kept))


def txn_columns(row: TxnRow) -> tuple[object, ...]:
    """A row for `txn_upsert`."""
    *standing, partitions = row
    return (*standing, json_text(partitions))


def pin_row(row: Sequence[Any]) -> Pin:
    """A row of `pin_select`."""
    pin_id, owner, positions, *rest = row
    places = msgspec.json.decode(str(positions), type=list[tuple[str, int, int]])
    return Pin(pin_id, owner, {(topic, index): offset for topic, index, offset in places}, *rest)
