"""The catalog of one broker, in SQLite.

One thread writes (`writer.py`); queries run in their callers' threads on connections of their
own, which a pool keeps. SQLite runs in WAL mode with every transaction synced.
"""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from catchwater.catalog.base import (
    CatalogDead,
    CatalogTooNew,
    EpochGap,
    RunsChanged,
    TopicExists,
    TopicUnknown,
)
from catchwater.catalog.rows import (
    Changes,
    EpochCommit,
    ObjectRow,
    ObjectState,
    OffsetCommit,
    PartitionKey,
    PartitionRow,
    Pin,
    ProducerRow,
    RunRow,
    Snapshot,
    StorageRow,
    Topic,
)
from catchwater.catalog.statements import migrations, sql
from catchwater.catalog.writer import Writer, write_changes

_LOCK_WAIT_S = 5.0


class SqliteCatalog:
    """`catalog.db` of a data directory; whoever opens it holds the directory's lock."""

    def __init__(
        self, path: Path, *, new_cluster_id: Callable[[], str], lag_s: float = 1.0
    ) -> None:
        """Open or create. Raises `CatalogTooNew` or `CatalogDead` (damaged, unreadable)."""
        self._path = path
        self._idle: deque[sqlite3.Connection] = deque()
        with self._failing():
            db = self._connect()
            try:
                db.execute("PRAGMA journal_mode = WAL")
                db.execute("PRAGMA synchronous = FULL")
                _migrate(db, path, new_cluster_id)
            except (sqlite3.Error, CatalogTooNew):
                db.close()
                raise
        self._db = db
        self._writer = Writer(db, str(path), lag_s)

    # --- following the WAL ---------------------------------------------------------------------

    def load(self) -> Snapshot:
        """The state to start from."""
        with self._reading() as db:
            cluster_id, applied = db.execute(sql("log_select")).fetchone()
            producers = [
                ProducerRow._make((*standing, _batches(batches), last_ms))
                for *standing, batches, last_ms in db.execute(sql("producer_select"))
            ]
            partitions = [PartitionRow._make(row) for row in db.execute(sql("partition_select"))]
            topics = [
                Topic(topic_id, name, count, msgspec.json.decode(config, type=dict[str, str]))
                for topic_id, name, count, config in db.execute(sql("topic_select"))
            ]
        return Snapshot(cluster_id, applied, topics, partitions, producers)

    def apply(self, sequence: int, changes: Changes) -> None:
        """Take one chunk's changes; durable within `lag_s`."""
        self._writer.apply(sequence, changes)

    def flush(self) -> Future[None]:
        """Done when every chunk applied so far is durable."""
        return self._writer.commit(lambda db: None)

    # --- barriers --------------------------------------------------------------------------------

    def create_topic(self, topic: Topic) -> Future[None]:
        """Fails with `TopicExists`."""
        return self._writer.commit(partial(_create_topic, topic))

    def delete_topic(self, topic_id: bytes) -> Future[None]:
        """Fails with `TopicUnknown`."""
        return self._writer.commit(partial(_delete_topic, topic_id))

    def allocate_producer_ids(self, count: int) -> Future[int]:
        """The first of `count` new ids."""

        def take(db: sqlite3.Connection) -> int:
            [(following,)] = db.execute(sql("producer_ids_take"), (count,)).fetchall()
            return int(following) - count

        return self._writer.commit(take)

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], OffsetCommit]
    ) -> Future[None]:
        """Keep a group's positions, all or none."""
        rows = [(group, *key, *commit) for key, commit in offsets.items()]
        return self._executemany("group_offset_upsert", rows)

    def set_pin(self, pin: Pin) -> Future[None]:
        """Create a pin, or replace the one with its id."""
        positions = [(*key, offset) for key, offset in sorted(pin.positions.items())]
        row = (pin.id, pin.owner, _json(positions), pin.lease_until_ms, pin.created_ms)
        return self._executemany("pin_upsert", [row])

    def release_pin(self, pin_id: str) -> Future[bool]:
        """Whether there was such a pin."""
        return self._writer.commit(
            lambda db: bool(db.execute(sql("pin_delete"), (pin_id,)).fetchall())
        )

    def commit_epoch(
        self, pipeline: str, sink: str, commit: EpochCommit, changes: Changes
    ) -> Future[None]:
        """Record an epoch and make its chunks part of the log. Fails with `EpochGap`."""
        return self._writer.commit(partial(_commit_epoch, pipeline, sink, commit, changes))

    def replace_runs(
        self, old: Sequence[RunRow], new: Sequence[RunRow], objects: Sequence[ObjectRow]
    ) -> Future[None]:
        """Take runs out and put others in their place. Fails with `RunsChanged`."""
        return self._writer.commit(partial(_replace_runs, old, Changes(new, objects=objects)))

    def trim(self, log_starts: Mapping[PartitionKey, int]) -> Future[list[PartitionRow]]:
        """Move log starts up and drop the runs that end before them."""
        return self._writer.commit(partial(_trim, dict(log_starts)))

    def mark_deleting(self, keys: Iterable[str]) -> Future[list[str]]:
        """Move objects without runs to state `deleting`; returns those that were moved."""
        wanted = list(keys)
        return self._writer.commit(partial(_mark_deleting, wanted))

    def forget_objects(self, keys: Iterable[str]) -> Future[None]:
        """Drop the rows of objects in state `deleting`."""
        return self._executemany("object_forget", [(key,) for key in keys])

    def forget_producers(self, last_ms_below: int) -> Future[None]:
        """Drop the standing of producers that have been silent since."""
        return self._executemany("producer_forget", [(last_ms_below,)])

    def _executemany(self, statement: str, rows: Sequence[tuple[Any, ...]]) -> Future[None]:
        def change(db: sqlite3.Connection) -> None:
            db.executemany(sql(statement), rows)

        return self._writer.commit(change)

    # --- queries ---------------------------------------------------------------------------------

    def runs(
        self, key: PartitionKey, offset: int, *, max_bytes: int | None = None, limit: int = 1000
    ) -> list[RunRow]:
        """Runs in offset order, from the one that holds `offset` or the first one after it."""
        # First what is not written yet: it can only become visible to the query in between.
        unwritten = self._writer.unwritten_runs(key)
        with self._reading() as db:
            written = db.execute(sql("run_select"), (*key, offset, limit)).fetchall()
        found: list[RunRow] = []
        size_bytes = 0
        for run in [*map(RunRow._make, written), *unwritten]:
            if run.last_offset < offset or (found and run.last_offset <= found[-1].last_offset):
                continue
            found.append(run)
            size_bytes += run.byte_size
            if len(found) == limit or (max_bytes is not None and size_bytes >= max_bytes):
                break
        return found

    def chunk_runs(self, limit: int) -> list[RunRow]:
        """Runs that lie in chunks, by topic id, partition and offset."""
        with self._reading() as db:
            return [RunRow._make(row) for row in db.execute(sql("run_chunks"), (limit,))]

    def run_for_timestamp(self, key: PartitionKey, timestamp_ms: int) -> RunRow | None:
        """The first run with a timestamp at or after this one."""
        unwritten = self._writer.unwritten_runs(key)
        with self._reading() as db:
            row = db.execute(sql("run_at_timestamp"), (*key, timestamp_ms)).fetchone()
        if row is not None:
            return RunRow._make(row)
        return next((run for run in unwritten if run.max_timestamp >= timestamp_ms), None)

    def committed(self, group: str) -> dict[tuple[str, int], OffsetCommit]:
        """A group's positions."""
        with self._reading() as db:
            rows = db.execute(sql("group_offset_select"), (group,)).fetchall()
        return {(topic, index): OffsetCommit(*commit) for topic, index, *commit in rows}

    def groups(self) -> list[str]:
        """The groups that have positions."""
        with self._reading() as db:
            return [group for (group,) in db.execute(sql("group_select"))]

    def pins(self) -> list[Pin]:
        """All pins."""
        with self._reading() as db:
            rows = db.execute(sql("pin_select")).fetchall()
        return [_pin(*row) for row in rows]

    def epoch(self, pipeline: str, sink: str, epoch: int | None = None) -> EpochCommit | None:
        """A sink's epoch, or its last one."""
        with self._reading() as db:
            return _epoch(db, pipeline, sink, epoch)

    def objects(self, state: ObjectState, *, unreferenced: bool = False) -> list[ObjectRow]:
        """Objects in this state; with `unreferenced` only those that no run lies in."""
        statement = "object_unreferenced" if unreferenced else "object_select"
        with self._reading() as db:
            return [ObjectRow._make(row) for row in db.execute(sql(statement), (state,))]

    def known_objects(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that have a row."""
        with self._reading() as db:
            return {key for key in keys if db.execute(sql("object_known"), (key,)).fetchone()}

    def storage(self, topic_id: bytes) -> list[StorageRow]:
        """Where a topic's bytes lie, by partition."""
        with self._reading() as db:
            return [StorageRow._make(row) for row in db.execute(sql("run_storage"), (topic_id,))]

    def close(self) -> None:
        """Make everything durable and let go of the file."""
        try:
            self._writer.close()
        finally:
            self._db.close()
            while self._idle:
                self._idle.pop().close()

    # --- connections -----------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(
            self._path, timeout=_LOCK_WAIT_S, isolation_level=None, check_same_thread=False
        )

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._failing():
            try:
                db = self._idle.pop()
            except IndexError:
                db = self._connect()
            yield db
            self._idle.append(db)

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise CatalogDead(
                f"The catalog {self._path} cannot be read: {error}.",
                hint="Restore it from a copy; the write-ahead log brings a copy up to date as long "
                "as it still has the files written since.",
            ) from error


def _migrate(db: sqlite3.Connection, path: Path, new_cluster_id: Callable[[], str]) -> None:
    """Bring a database of any older version, or an empty one, to the newest."""
    scripts = migrations()
    is_new = not db.execute("SELECT 1 FROM sqlite_master").fetchone()
    version = 0 if is_new else db.execute("SELECT max(version) FROM schema_version").fetchone()[0]
    if version > len(scripts):
        raise CatalogTooNew(
            f"The catalog {path} has schema version {version}; this release knows up to "
            f"{len(scripts)}.",
            hint="Start the release that wrote it, or a newer one.",
        )
    for script in scripts[version:]:
        # One transaction, so that a crash leaves the old version or the new one.
        insert = sql("log_insert").replace("?", f"'{new_cluster_id()}'") if is_new else ""
        db.executescript(f"BEGIN IMMEDIATE;\n{script}\n{insert}\nCOMMIT;")
        is_new = False


def _create_topic(topic: Topic, db: sqlite3.Connection) -> None:
    if db.execute(sql("topic_exists"), (topic.name,)).fetchone():
        raise TopicExists(f"There is a topic {topic.name} already.")
    db.execute(
        sql("topic_insert"), (topic.id, topic.name, topic.partitions, _json(dict(topic.config)))
    )
    rows = [PartitionRow(topic.id, index, 0, 0, 0, -1) for index in range(topic.partitions)]
    db.executemany(sql("partition_upsert"), rows)


def _delete_topic(topic_id: bytes, db: sqlite3.Connection) -> None:
    deleted = db.execute(sql("topic_delete"), (topic_id,)).fetchall()
    if not deleted:
        raise TopicUnknown(f"There is no topic with the id {topic_id.hex()}.")
    [(name,)] = deleted
    keys = [key for (key,) in db.execute(sql("run_objects"), (topic_id,))]
    for statement in ("run_delete", "partition_delete", "producer_delete"):
        db.execute(sql(statement), (topic_id,))
    db.execute(sql("group_offset_delete"), (name,))
    _mark_deleting([key for key in keys if not key.startswith("wal/")], db)


def _commit_epoch(
    pipeline: str, sink: str, commit: EpochCommit, changes: Changes, db: sqlite3.Connection
) -> None:
    last = _epoch(db, pipeline, sink, None)
    if last is not None and commit.epoch != last.epoch + 1:
        raise EpochGap(
            f"Sink {sink} of pipeline {pipeline} has committed epoch {last.epoch}; epoch "
            f"{commit.epoch} does not follow it.",
            hint=f"Commit epoch {last.epoch + 1} next.",
        )
    write_changes(db, changes)
    offsets = [(index, *span) for index, span in sorted(commit.offsets.items())]
    db.execute(
        sql("sink_epoch_insert"),
        (
            *(pipeline, sink, commit.epoch, commit.topic),
            *(commit.records, _json(offsets), commit.checksum),
        ),
    )


def _replace_runs(old: Sequence[RunRow], new: Changes, db: sqlite3.Connection) -> None:
    for run in old:
        if db.execute(sql("run_take_out"), run[:5]).rowcount != 1:
            raise RunsChanged(
                f"The run of offsets {run.base_offset} to {run.last_offset} in {run.object} is "
                "not in the catalog any more."
            )
    write_changes(db, new)


def _trim(log_starts: Mapping[PartitionKey, int], db: sqlite3.Connection) -> list[PartitionRow]:
    rows = []
    for key, log_start in log_starts.items():
        dropped = sum(size for (size,) in db.execute(sql("run_trim"), (*key, log_start)).fetchall())
        oldest = db.execute(sql("run_select"), (*key, log_start, 1)).fetchone()
        timestamp = RunRow._make(oldest).max_timestamp if oldest else -1
        trimmed = db.execute(sql("partition_trim"), (log_start, dropped, timestamp, *key))
        rows += [PartitionRow._make(row) for row in trimmed.fetchall()]
    return rows


def _mark_deleting(keys: Sequence[str], db: sqlite3.Connection) -> list[str]:
    rows = [db.execute(sql("object_mark_deleting"), (key,)).fetchall() for key in keys]
    return [key for row in rows for (key,) in row]


def _epoch(
    db: sqlite3.Connection, pipeline: str, sink: str, epoch: int | None
) -> EpochCommit | None:
    if epoch is None:
        row = db.execute(sql("sink_epoch_last"), (pipeline, sink)).fetchone()
    else:
        row = db.execute(sql("sink_epoch_select"), (pipeline, sink, epoch)).fetchone()
    if row is None:
        return None
    number, topic, records, offsets, checksum = row
    spans = msgspec.json.decode(offsets, type=list[tuple[int, int, int]])
    return EpochCommit(
        already=True,
        epoch=number,
        records=records,
        offsets={index: (first, last) for index, first, last in spans},
        checksum=checksum,
        topic=topic,
    )


def _pin(
    pin_id: str, owner: str, positions: str, lease_until_ms: int | None, created_ms: int
) -> Pin:
    rows = msgspec.json.decode(positions, type=list[tuple[str, int, int]])
    kept = {(topic, index): offset for topic, index, offset in rows}
    return Pin(pin_id, owner, kept, lease_until_ms, created_ms)


def _batches(text: str) -> tuple[tuple[int, int, int], ...]:
    return msgspec.json.decode(text, type=tuple[tuple[int, int, int], ...])


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
