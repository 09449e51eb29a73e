"""What the catalog knows and promises.

The catalog says which runs exist and in which order. There are two kinds.

An *embedded* catalog (SQLite, one broker) follows the write-ahead log: every chunk, once
sequenced in memory, is handed to `apply`, which returns at once; what was applied can be read
back from that moment on and is durable within a second. Everything else that changes it (a topic,
an offset commit, a pin, a sink epoch, packed runs) is a *barrier*: it returns a future that is
done when the change, and every chunk applied before it, are synced together. So what is on disk
is always a prefix of what happened.

A *shared* catalog (PostgreSQL, any number of brokers) is durable itself and the only sequencer:
a chunk is committed by `transact`, which locks the rows it needs in one fixed order, lets the
caller's pure function decide, and writes what it decided, in one transaction that also checks the
broker's session.

A change whose future fails has changed nothing, except `CatalogUncertain`, which says that nobody
knows. Queries block and may run in any thread; they see what is durable, and an embedded
catalog's `runs`, `run_for_timestamp` and `aborted` also what was applied just now.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Protocol, TypeVar

from catchwater.catalog.rows import (
    AbortedRow,
    BrokerRow,
    BrokerState,
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
from catchwater.config import CatchwaterError

T = TypeVar("T")

AlterConfig = Callable[[Mapping[str, str]], Mapping[str, str]]
"""A topic's settings to those it shall have; pure, and may be called again."""


class CatalogFull(CatchwaterError):
    """No space for the change; it was rolled back and may be tried again."""


class CatalogDead(CatchwaterError):
    """The catalog's storage failed, so nobody knows what it holds: it takes no more changes."""


class CatalogTooNew(CatchwaterError):
    """The catalog was written by a newer release; this one will not touch it."""


class CatalogUnavailable(CatchwaterError):
    """The database did not answer, or refused, in all the tries; nothing was changed."""


class CatalogRefused(CatchwaterError):
    """The database cannot hold a value it was given (text with a NUL); nothing was changed."""


class CatalogUncertain(CatchwaterError):
    """The connection was lost while a transaction was committed: it may have happened or not."""


class SessionFenced(CatchwaterError):
    """This broker's session was superseded; nothing it still has in hand may be acknowledged."""


class BrokerRefused(CatchwaterError):
    """The broker may not join: its write-ahead log, or that of one already there, is its own, or
    they are not of one kind.
    """


class CoordinatorMoved(CatchwaterError):
    """Another broker coordinates the group now; nothing was changed."""


class TopicExists(CatchwaterError):
    """A topic of that name is already there."""


class TopicCollides(CatchwaterError):
    """A topic is there whose name differs in `.` and `_` only."""


class TopicUnknown(CatchwaterError):
    """No topic of that name or id."""


class EpochGap(CatchwaterError):
    """A sink epoch is neither the next one nor one of the recorded ones."""


class RunsChanged(CatchwaterError):
    """The runs to be replaced are no longer what the caller saw; look again."""


class Catalog(Protocol):
    """What both kinds have in common; the contract of this chapter."""

    def load(self) -> Snapshot:
        """The state to start from; of a shared catalog without the producers' standing."""
        ...

    def flush(self) -> Future[None]:
        """Done when every chunk applied so far is durable; a shared catalog is so at once."""
        ...

    def transact(self, scope: Scope, decide: Callable[[Seen], tuple[Changes, T]]) -> Future[T]:
        """Lock and read what `scope` names, write what `decide` makes of it, all or nothing.

        `decide` is pure, for it may be called again when the database asks for another try; what
        it raises (a `CatchwaterError`) undoes everything and is the future's. Fails with
        `SessionFenced`, `CoordinatorMoved`, `EpochGap` (an epoch in the changes that does not
        follow), and as every change of a shared catalog with `CatalogUnavailable` or
        `CatalogUncertain`.
        """
        ...

    # --- barriers --------------------------------------------------------------------------

    def create_topic(self, topic: Topic) -> Future[None]:
        """Fails with `TopicExists` or `TopicCollides`."""
        ...

    def delete_topic(self, topic_id: bytes) -> Future[None]:
        """Forget a topic, its runs and its committed offsets. Fails with `TopicUnknown`.

        Its segments, their Parquet and staged chunks go to state `deleting`.
        """
        ...

    def allocate_producer_ids(self, count: int) -> Future[int]:
        """The first of `count` producer ids that nobody was ever given."""
        ...

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], OffsetCommit],
        *,
        claim_epoch: int | None = None,
    ) -> Future[None]:
        """Keep a group's positions, all or none.

        Fails with `CoordinatorMoved` when the group's claim has another epoch than the one given.
        """
        ...

    def claim_group(self, group: str, session: Session | None) -> Future[GroupRow]:
        """Become the group's coordinator, with an epoch above all earlier ones.

        Fails with `SessionFenced`.
        """
        ...

    def keep_group(
        self, group: str, changes: GroupChanges, *, claim_epoch: int | None = None
    ) -> Future[None]:
        """Keep what has changed of a group: its generation, state and members.

        Fails with `CoordinatorMoved` as `commit_offsets` does.
        """
        ...

    def delete_group(self, group: str, *, claim_epoch: int | None = None) -> Future[bool]:
        """Forget a group with its claim, members and positions; whether it had positions.

        Fails with `CoordinatorMoved` as `commit_offsets` does.
        """
        ...

    def delete_offsets(
        self, group: str, keys: Iterable[tuple[str, int]], *, claim_epoch: int | None = None
    ) -> Future[None]:
        """Forget a group's positions in these (topic, partition).

        Fails with `CoordinatorMoved` as `commit_offsets` does.
        """
        ...

    def expire_offsets(
        self,
        group: str,
        keys: Iterable[tuple[str, int]],
        committed_until_ms: int,
        *,
        with_group: bool,
        claim_epoch: int | None = None,
    ) -> Future[list[tuple[str, int]]]:
        """Forget those of these (topic, partition) that were committed then or before; which.

        `with_group`: and the group, if neither positions nor members are left. Fails with
        `CoordinatorMoved` as `commit_offsets` does.
        """
        ...

    def set_pin(self, pin: Pin) -> Future[None]:
        """Create a pin, or replace the one with its id."""
        ...

    def set_pin_states(self, states: Mapping[str, PinState]) -> Future[None]:
        """What retention has found out about pins; one that is gone is skipped."""
        ...

    def release_pin(self, pin_id: str) -> Future[bool]:
        """Whether there was such a pin."""
        ...

    def replace_runs(
        self,
        old: Sequence[RunRow],
        new: Sequence[RunRow],
        objects: Sequence[ObjectRow],
        lease: tuple[str, Session] | None = None,
    ) -> Future[PartitionRow]:
        """The packer's commit: take runs out and put others (segments) in their place.

        Both cover the same offsets of one partition. Fails with `RunsChanged` when an old run
        is not there any more (trimmed, packed by another, or its topic deleted). Returns the
        partition with the bytes and the earliest timestamp that it then has. `lease` as in `trim`.
        """
        ...

    def add_parquet(self, run: RunRow, parquet: ParquetRow, row: ObjectRow) -> Future[None]:
        """Let the run, a whole segment, have its records in this object too; the run keeps it.

        Fails with `RunsChanged` when the run is not there any more.
        """
        ...

    def alter_topic_config(self, topic_id: bytes, alter: AlterConfig) -> Future[Mapping[str, str]]:
        """Replace a topic's configuration by what `alter` makes of it; the new one.

        Two that alter at once do so one after the other. Fails with `TopicUnknown`, and with what
        `alter` raises.
        """
        ...

    def add_partitions(self, topic_id: bytes, partitions: int) -> Future[None]:
        """Let a topic have so many partitions, never fewer. Fails with `TopicUnknown`."""
        ...

    def trim(
        self, log_starts: Mapping[PartitionKey, int], lease: tuple[str, Session] | None = None
    ) -> Future[list[PartitionRow]]:
        """Retention's commit: move log starts up and drop the runs that end before them.

        With a `lease` it fails with `SessionFenced` unless the session holds it still: what the
        caller knew of pins is then no longer so.
        Returns the partitions as they are then, without those whose topic is gone. Call it
        through `Log.trim`, which moves the log's own states along.
        """
        ...

    def mark_deleting(self, keys: Iterable[str]) -> Future[list[str]]:
        """Move objects that no run lies in, or has as its Parquet, to state `deleting`; returns
        those that were moved.
        """
        ...

    def forget_objects(self, keys: Iterable[str]) -> Future[None]:
        """Drop the rows of objects in state `deleting`, once their bytes are gone."""
        ...

    def forget_producers(self, last_ms_below: int) -> Future[None]:
        """Drop the standing of producers that have been silent since."""
        ...

    def forget_txns(self, updated_ms_below: int) -> Future[set[int]]:
        """Drop transactional ids that have been silent since, none with something open.

        Returns their producer ids.
        """
        ...

    def take_backup_number(self) -> Future[int]:
        """A number above those of all earlier backups of the state."""
        ...

    def take_state(self) -> Future[State]:
        """All but the runs in segments, at one moment: rows by table."""
        ...

    def restore(
        self,
        taken: State,
        objects: Sequence[ObjectRow],
        runs: Sequence[RunRow],
        last_backup: int,
    ) -> Future[None]:
        """Fill an empty catalog with a state and these objects and runs besides."""
        ...

    # --- queries ---------------------------------------------------------------------------

    def runs(
        self, key: PartitionKey, offset: int, *, max_bytes: int | None = None, limit: int = 1000
    ) -> list[RunRow]:
        """Runs in offset order, from the one that holds `offset` or the first one after it.

        Stops after `limit` runs, or with the run that reaches `max_bytes`. From the oldest run:
        offset 0.
        """
        ...

    def parquet(self, key: PartitionKey, start: int, end: int) -> list[ParquetRow]:
        """The Parquet of segments with offsets in [start, end), by offset."""
        ...

    def without_parquet(
        self, key: PartitionKey, offset: int, limit: int
    ) -> list[tuple[RunRow, int]]:
        """Segments without Parquet from the one with `offset` on, each with the time it was written
        (ms), by offset.
        """
        ...

    def chunk_runs(self, limit: int) -> list[RunRow]:
        """Runs that lie in chunks, not in segments, by topic id, partition and offset."""
        ...

    def runs_in(self, object_key: str) -> list[RunRow]:
        """The runs that lie in an object, by byte offset; what a lost commit came to."""
        ...

    def run_for_timestamp(self, key: PartitionKey, timestamp_ms: int) -> RunRow | None:
        """The first run with a timestamp at or after this one."""
        ...

    def committed(self, group: str) -> dict[tuple[str, int], OffsetCommit]:
        """A group's positions."""
        ...

    def partitions(self, keys: Iterable[PartitionKey]) -> list[PartitionRow]:
        """Partitions as they are durably now; those that do not exist are left out."""
        ...

    def txns(self) -> list[TxnRow]:
        """All transactional ids."""
        ...

    def producers(self, key: PartitionKey) -> list[ProducerRow]:
        """The producers that are known on a partition, by id."""
        ...

    def unfinished_txns(self) -> list[TxnRow]:
        """Those whose transaction is open or being ended."""
        ...

    def open_txns(self, producer_id: int) -> list[OpenTxnRow]:
        """The partitions on which a producer's transaction is open."""
        ...

    def txn_offsets(self, producer_id: int) -> dict[tuple[str, str, int], OffsetCommit]:
        """(group, topic, partition) -> position that waits for the transaction's end."""
        ...

    def open_txns_on(self, key: PartitionKey) -> list[OpenTxnRow]:
        """The transactions that are open on a partition, by first offset."""
        ...

    def unstable(self, group: str) -> set[tuple[str, int]]:
        """(topic, partition) of a group's positions that wait for the end of a transaction."""
        ...

    def aborted(self, key: PartitionKey, start: int, end: int) -> list[AbortedRow]:
        """Aborted transactions with records or marker in [start, end), by last offset."""
        ...

    def groups(self) -> list[str]:
        """The groups that have positions."""
        ...

    def group(self, group: str) -> GroupRow:
        """A group as its coordinator has left it; epoch and generation 0 where there is none."""
        ...

    def groups_with_members(self) -> list[str]:
        """The groups whose coordinator has left members."""
        ...

    def groups_to_expire(self, committed_until_ms: int) -> list[str]:
        """The groups with a position that was committed then or before, or with nothing at all."""
        ...

    def pins(self) -> list[Pin]:
        """All pins, also those whose lease has ended."""
        ...

    def epoch(self, pipeline: str, sink: str, epoch: int | None = None) -> EpochCommit | None:
        """A sink's epoch, or its last one; `already` is set."""
        ...

    def objects(self, state: ObjectState, *, unreferenced: bool = False) -> list[ObjectRow]:
        """Objects in this state; with `unreferenced` only those that no run lies in or names."""
        ...

    def known_objects(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that have a row, in any state."""
        ...

    def last_backup(self) -> int:
        """The number of the newest backup; 0: there was none."""
        ...

    def storage(self, topic_id: bytes) -> list[StorageRow]:
        """Where a topic's bytes lie, by partition."""
        ...

    def close(self) -> None:
        """Make everything durable and let go of the files. Raises `CatalogDead`."""
        ...


class EmbeddedCatalog(Catalog, Protocol):
    """The catalog of one broker, which trails its write-ahead log."""

    def apply(self, sequence: int, changes: Changes) -> None:
        """Take one chunk's changes; chunks come in order. Durable within a second.

        Raises `CatalogDead`.
        """
        ...


class SharedCatalog(Catalog, Protocol):
    """The catalog of many brokers: who they are, who may still write, who does what."""

    def join(self, broker: BrokerRow, ttl_ms: int) -> Future[Session]:
        """Begin a session; an earlier one of the same id is superseded. Epoch and deadline given
        are ignored. Fails with `BrokerRefused`.
        """
        ...

    def heartbeat(
        self, session: Session, state: BrokerState, ttl_ms: int
    ) -> Future[list[BrokerRow]]:
        """Move the session's deadline and supersede those whose deadline has passed; who is alive.

        Fails with `SessionFenced`.
        """
        ...

    def leave(self, session: Session) -> Future[None]:
        """End a session; one that was superseded is no error."""
        ...

    def brokers(self) -> list[BrokerRow]:
        """The brokers whose session has not ended and not passed its deadline, by id."""
        ...

    def take_lease(self, name: str, session: Session, ttl_ms: int) -> Future[bool]:
        """Take or renew a lease; False while another live session holds it.

        Fails with `SessionFenced`.
        """
        ...

    def payload(self, object_key: str, offset: int, size: int) -> bytes | None:
        """Bytes of a chunk that was committed with its payload; None if it is not there."""
        ...

    def delete_payloads(self, object_keys: Iterable[str]) -> Future[None]:
        """Drop such bytes; keys that are not there are no error."""
        ...

    def listen(self, notify: Callable[[Notice], None]) -> None:
        """Call back, from a thread of the catalog's, for every change by any broker.

        Never silent for long about a lost connection: after one, `resync` is told.
        """
        ...
