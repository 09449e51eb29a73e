"""What the catalog knows and promises.

The catalog says which runs exist and in which order. It follows the write-ahead log: every
chunk, once sequenced, is handed to `apply`, which returns at once; what was applied can be read
back from that moment on and is durable within a second. Everything else that changes it (a
topic, an offset commit, a pin, a sink epoch, a block of producer ids, packed runs) is a
*barrier*: it returns a future that is done when the change, and every chunk applied before it,
are synced together. So what is on disk is always a prefix of what happened.

A barrier whose future fails has changed nothing. Queries block and may run in any thread; they
see what is durable, and `runs` and `run_for_timestamp` also what was applied just now.
"""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from catchwater.config import CatchwaterError

PartitionKey = tuple[bytes, int]
"""A topic's id (16 UUID bytes) and a partition's index."""

ObjectKind = Literal["chunk", "segment"]
ObjectState = Literal["live", "deleting"]


class CatalogFull(CatchwaterError):
    """No space for the change; it was rolled back and may be tried again."""


class CatalogDead(CatchwaterError):
    """The catalog's storage failed, so nobody knows what it holds: it takes no more changes."""


class CatalogTooNew(CatchwaterError):
    """The catalog was written by a newer release; this one will not touch it."""


class TopicExists(CatchwaterError):
    """A topic of that name is already there."""


class TopicUnknown(CatchwaterError):
    """No topic of that name or id."""


class EpochGap(CatchwaterError):
    """A sink epoch is neither the next one nor one of the recorded ones."""


class RunsChanged(CatchwaterError):
    """The runs to be replaced are no longer what the caller saw; look again."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; partitions are numbered from 0."""

    id: bytes
    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


class PartitionRow(NamedTuple):
    """A partition as the catalog keeps it; see `log.sequence.PartitionState`."""

    topic_id: bytes
    partition: int
    log_start: int
    high_watermark: int
    bytes: int
    earliest_timestamp: int
    """Largest timestamp of the oldest run, ms; -1 when the partition holds nothing."""


class ProducerRow(NamedTuple):
    """An idempotent producer's standing on one partition."""

    topic_id: bytes
    partition: int
    producer_id: int
    epoch: int
    batches: tuple[tuple[int, int, int], ...]
    """The last five batches, oldest first: (base sequence, last sequence, base offset)."""
    last_ms: int


class RunRow(NamedTuple):
    """Batches of one partition, side by side in one object, with consecutive offsets."""

    topic_id: bytes
    partition: int
    base_offset: int
    last_offset: int
    object: str
    byte_offset: int
    byte_size: int
    max_timestamp: int
    record_count: int


class ObjectRow(NamedTuple):
    """A WAL file (`wal/…`), a staged chunk (`staged/…`) or a segment (`segments/…`)."""

    key: str
    kind: ObjectKind
    state: ObjectState
    size_bytes: int
    created_ms: int


class OffsetCommit(NamedTuple):
    """A consumer group's position: the next offset it will read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class Pin:
    """A promise not to delete past these offsets, until it is released or its lease ends."""

    id: str
    owner: str
    positions: Mapping[tuple[str, int], int]
    """(topic name, partition) -> lowest offset that must stay readable."""
    lease_until_ms: int | None
    created_ms: int


@dataclass(frozen=True, slots=True)
class EpochCommit:
    """One epoch of one sink, written once."""

    already: bool
    """The epoch had been committed before; nothing was written by this call."""
    epoch: int
    records: int
    offsets: Mapping[int, tuple[int, int]]
    """Partition -> (first, last) offset this epoch got."""
    checksum: str
    topic: str


@dataclass(frozen=True, slots=True)
class Changes:
    """What one sequenced chunk changes; rows of partitions and producers replace older ones."""

    runs: Sequence[RunRow] = ()
    partitions: Sequence[PartitionRow] = ()
    producers: Sequence[ProducerRow] = ()
    objects: Sequence[ObjectRow] = ()
    """Objects that the runs lie in; one already known only grows."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a log needs to go on: everything but the runs."""

    cluster_id: str
    applied_sequence: int
    """The WAL frame whose changes, and all before it, this catalog holds; 0 = none."""
    topics: Sequence[Topic]
    partitions: Sequence[PartitionRow]
    producers: Sequence[ProducerRow]


class StorageRow(NamedTuple):
    """Bytes of one partition that lie in chunks (WAL files, staged) and in segments."""

    partition: int
    chunk_bytes: int
    segment_bytes: int
    runs: int


class Catalog(Protocol):
    """The contract of this chapter; `sqlite.py` keeps it for one broker."""

    # --- following the WAL ---------------------------------------------------------------

    def load(self) -> Snapshot:
        """The state to start from."""
        ...

    def apply(self, sequence: int, changes: Changes) -> None:
        """Take one chunk's changes; chunks come in order. Durable within a second.

        Raises `CatalogDead`.
        """
        ...

    def flush(self) -> Future[None]:
        """Done when every chunk applied so far is durable."""
        ...

    # --- barriers --------------------------------------------------------------------------

    def create_topic(self, topic: Topic) -> Future[None]:
        """Fails with `TopicExists`."""
        ...

    def delete_topic(self, topic_id: bytes) -> Future[None]:
        """Forget a topic, its runs and its committed offsets. Fails with `TopicUnknown`.

        Its segments and staged chunks go to state `deleting`.
        """
        ...

    def allocate_producer_ids(self, count: int) -> Future[int]:
        """The first of `count` producer ids that nobody was ever given."""
        ...

    def commit_offsets(
        self, group: str, offsets: Mapping[tuple[str, int], OffsetCommit]
    ) -> Future[None]:
        """Keep a group's positions, all or none."""
        ...

    def set_pin(self, pin: Pin) -> Future[None]:
        """Create a pin, or replace the one with its id."""
        ...

    def release_pin(self, pin_id: str) -> Future[bool]:
        """Whether there was such a pin."""
        ...

    def commit_epoch(
        self, pipeline: str, sink: str, commit: EpochCommit, changes: Changes
    ) -> Future[None]:
        """Record an epoch and make its staged chunks part of the log, together.

        Fails with `EpochGap` unless it is the first of this sink or follows its last one.
        """
        ...

    def replace_runs(
        self, old: Sequence[RunRow], new: Sequence[RunRow], objects: Sequence[ObjectRow]
    ) -> Future[None]:
        """The packer's commit: take runs out and put others (segments) in their place.

        Both cover the same offsets of one partition. Fails with `RunsChanged` when an old run
        is not there any more (trimmed, or its topic deleted).
        """
        ...

    def trim(self, log_starts: Mapping[PartitionKey, int]) -> Future[list[PartitionRow]]:
        """Retention's commit: move log starts up and drop the runs that end before them.

        Returns the partitions as they are then, without those whose topic is gone. Call it
        through `Log.trim`, which moves the log's own states along.
        """
        ...

    def mark_deleting(self, keys: Iterable[str]) -> Future[list[str]]:
        """Move objects that no run lies in to state `deleting`; returns those that were moved."""
        ...

    def forget_objects(self, keys: Iterable[str]) -> Future[None]:
        """Drop the rows of objects in state `deleting`, once their bytes are gone."""
        ...

    def forget_producers(self, last_ms_below: int) -> Future[None]:
        """Drop the standing of producers that have been silent since."""
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

    def chunk_runs(self, limit: int) -> list[RunRow]:
        """Runs that lie in chunks, not in segments, by topic id, partition and offset."""
        ...

    def run_for_timestamp(self, key: PartitionKey, timestamp_ms: int) -> RunRow | None:
        """The first run with a timestamp at or after this one."""
        ...

    def committed(self, group: str) -> dict[tuple[str, int], OffsetCommit]:
        """A group's positions."""
        ...

    def groups(self) -> list[str]:
        """The groups that have positions."""
        ...

    def pins(self) -> list[Pin]:
        """All pins, also those whose lease has ended."""
        ...

    def epoch(self, pipeline: str, sink: str, epoch: int | None = None) -> EpochCommit | None:
        """A sink's epoch, or its last one; `already` is set."""
        ...

    def objects(self, state: ObjectState, *, unreferenced: bool = False) -> list[ObjectRow]:
        """Objects in this state; with `unreferenced` only those that no run lies in."""
        ...

    def known_objects(self, keys: Iterable[str]) -> set[str]:
        """Those of the keys that have a row, in any state."""
        ...

    def storage(self, topic_id: bytes) -> list[StorageRow]:
        """Where a topic's bytes lie, by partition."""
        ...

    def close(self) -> None:
        """Make everything durable and let go of the files. Raises `CatalogDead`."""
        ...
