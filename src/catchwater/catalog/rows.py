"""The rows of the catalog, and what is read, decided and changed of them.

Offsets are inclusive where they are called last, timestamps milliseconds since the Unix epoch,
topic ids 16 UUID bytes. Rows are what both databases store, so nothing here knows either.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

Buffer = bytes | bytearray | memoryview
PartitionKey = tuple[bytes, int]
"""A topic's id (16 UUID bytes) and a partition's index."""

ObjectKind = Literal["chunk", "segment", "parquet"]
ObjectState = Literal["live", "deleting"]
BrokerState = Literal["live", "draining"]
PinState = Literal["reserved", "extended", "unreserved", "lost"]
"""As PostgreSQL's replication slots: retention would keep what it holds anyway; retention is
held back by it; it holds more than its cap and may lose it at any time; it has lost it."""
TxnState = Literal[
    "empty", "ongoing", "prepare_commit", "prepare_abort", "complete_commit", "complete_abort"
]
"""Kafka's names of a transaction's states (KIP-98)."""


@dataclass(frozen=True, slots=True)
class Topic:
    """A topic; partitions are numbered from 0."""

    id: bytes
    name: str
    partitions: int
    config: Mapping[str, str] = field(default_factory=dict)


class RuleRow(NamedTuple):
    """What a principal may do, or may not; the words are Kafka's."""

    principal: str
    permission: str
    operation: str
    type: str
    name: str
    pattern: str
    host: str


class VerifierRow(NamedTuple):
    """What is kept of a user's password for a mechanism; salt and keys in base64."""

    name: str
    mechanism: str
    salt: str
    iterations: int
    stored_key: str
    server_key: str


class QuotaRow(NamedTuple):
    """What a user, a client id or both may take a second; see `broker.quotas`."""

    user_name: str | None
    """None: any; empty: any that has none by name."""
    client_id: str | None
    key: str
    value: float | None
    """None in a change: there is to be none."""


class AccessRows(NamedTuple):
    """Users and rules; each change of them has a higher version."""

    version: int
    rules: Sequence[RuleRow]
    verifiers: Sequence[VerifierRow]


State = Mapping[str, Sequence[Sequence[Any]]]
"""Rows by table, in the columns of the statements in `STATE` (`base.py`); `log` has one row."""


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
    """A WAL file (`wal/…`), a staged chunk (`staged/…`), a segment (`segments/…`) or a segment's
    records as Parquet (`parquet/…`)."""

    key: str
    kind: ObjectKind
    state: ObjectState
    size_bytes: int
    created_ms: int


class ParquetRow(NamedTuple):
    """The data records of one whole segment, in a Parquet object beside it."""

    segment: str
    """The key of the segment's object."""
    object: str
    records: int
    crc: int
    """CRC-32C of the object's bytes."""
    schema: str
    """What the values were declared to be, if the object has them as columns; else empty."""


class OffsetCommit(NamedTuple):
    """A consumer group's position: the next offset it will read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""
    committed_ms: int = 0


class Session(NamedTuple):
    """One life of a broker in a shared catalog; a later epoch of the same id supersedes it."""

    broker_id: int
    epoch: int


class BrokerRow(NamedTuple):
    """A broker whose session has not ended; `deadline_ms` is by the catalog's own clock."""

    id: int
    epoch: int
    zone: str
    """Empty where none was configured (`broker.rack`)."""
    host: str
    port: int
    control_url: str
    wal: str
    """The kind of its write-ahead log."""
    wal_is_shared: bool
    """Whether the other brokers can read it."""
    state: BrokerState
    deadline_ms: int
    listeners: str = ""
    """Host and port by the name of the listener, as JSON; empty where there is only `host`."""


class TxnRow(NamedTuple):
    """A transactional id: its producer and where its transaction stands (KIP-98, KIP-890)."""

    transactional_id: str
    producer_id: int
    epoch: int
    state: TxnState
    timeout_ms: int
    started_ms: int
    """Time of the chunk or request that began the last transaction, -1 before the first; it only
    grows, so no two transactions of an id have the same."""
    version: int
    """1: partitions are announced (AddPartitionsToTxn); 2: the epoch rises with every end."""
    last_epoch: int
    """The epoch its producer had before it was given this one; -1: a newcomer was given it, or it
    has begun a transaction with it since."""
    updated_ms: int
    """Time of the last change, but for the end's second step."""
    partitions: tuple[tuple[str, int], ...]
    """What version 1 has announced: (topic id as 32 hexadecimal digits, partition)."""


class OpenTxnRow(NamedTuple):
    """A producer's transaction that has records on a partition and no end there yet."""

    topic_id: bytes
    partition: int
    producer_id: int
    first_offset: int


class AbortedRow(NamedTuple):
    """Records of a producer from `first_offset` up to the marker at `last_offset` are void."""

    topic_id: bytes
    partition: int
    producer_id: int
    first_offset: int
    last_offset: int


class EndedTxn(NamedTuple):
    """The end of a transaction: its pending group offsets are kept or dropped with it."""

    producer_id: int
    committed: bool


class GroupRow(NamedTuple):
    """A group as its coordinator last saved it; a claim with a new epoch ends the coordinator's."""

    epoch: int
    """Of the claim to coordinate it; a broker alone claims nothing."""
    generation: int
    """The last generation that was recorded; the next one must be higher."""
    state: str = ""
    """JSON, to be read by the coordinator only; empty: it never had members."""
    emptied_ms: int | None = None
    """When its last member went; None while it has members, and where it never had any."""
    members: Mapping[str, str] = {}
    """JSON by member id."""


@dataclass(frozen=True, slots=True)
class GroupChanges:
    """What a coordinator saves of a group; a state is any value that JSON can hold."""

    generation: int
    state: Any = None
    """None: as it was."""
    members: Mapping[str, Any] = field(default_factory=dict)
    """By member id; None for one that is gone."""
    is_whole: bool = False
    """Whether there are no members but these."""
    is_empty: bool = False
    """Whether no member is left; said with a state only."""

    def followed_by(self, newer: "GroupChanges") -> "GroupChanges":
        """Both, one after the other."""
        if newer.state is None:
            newer = replace(newer, state=self.state, is_empty=self.is_empty)
        if newer.is_whole:
            return newer
        members = {**self.members, **newer.members}
        return replace(newer, members=members, is_whole=self.is_whole)


@dataclass(frozen=True, slots=True)
class Pin:
    """A promise not to delete past these offsets, until it is released or its lease ends."""

    id: str
    owner: str
    positions: Mapping[tuple[str, int], int]
    """(topic name, partition) -> lowest offset that must stay readable."""
    lease_until_ms: int | None
    created_ms: int
    max_bytes: int | None = None
    """Beyond so many bytes held back from retention the promise ends; None: without limit."""
    state: PinState = "reserved"
    """Set by retention; a pin that is `lost` stays so until it is replaced or released."""


class Position(NamedTuple):
    """Where a consumer group stands in one partition."""

    group: str
    topic: str
    partition: int
    offset: int


class ReportRow(NamedTuple):
    """What a pipeline has last reported of itself."""

    name: str
    received_ms: int
    """By the clock of the broker that took it."""
    report: str
    """JSON."""


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


class SinkFence(NamedTuple):
    """Which of a pipeline's drivers writes to a sink; kept as an epoch without records."""

    name: str
    """Of the sink and of what counts its drivers."""
    number: int
    topic: str


@dataclass(
    slots=True
)  # not frozen: one is made for every chunk, and that would take 5 times as long
class Changes:
    """What one sequenced chunk changes; rows of partitions and producers replace older ones."""

    runs: Sequence[RunRow] = ()
    partitions: Sequence[PartitionRow] = ()
    producers: Sequence[ProducerRow] = ()
    objects: Sequence[ObjectRow] = ()
    """Objects that the runs lie in; one already known only grows."""
    txns: Sequence[TxnRow] = ()
    open_txns: Sequence[OpenTxnRow] = ()
    closed_txns: Sequence[tuple[bytes, int, int]] = ()
    """(topic id, partition, producer id) of open transactions that end."""
    aborted: Sequence[AbortedRow] = ()
    ended: Sequence[EndedTxn] = ()
    txn_offsets: Sequence[tuple[int, str, str, int, OffsetCommit]] = ()
    """(producer id, group, topic, partition, position) to become the group's if and when the
    producer's transaction commits; stored after `ended` was dealt with."""
    epochs: Sequence[tuple[str, str, "EpochCommit"]] = ()
    """(pipeline, sink, epoch) to be recorded together with the chunks of that epoch."""
    fences: Sequence[tuple[str, "SinkFence"]] = ()
    """(pipeline, fence) that must not be behind the newest of that name, and is it afterwards."""
    payloads: Sequence[tuple[str, Buffer]] = ()
    """(object key, bytes) of chunks that travel in the commit itself (the WAL `postgres`)."""


@dataclass(frozen=True, slots=True)
class Scope:
    """What a transaction looks at; rows are locked in this order, each kind sorted."""

    session: Session | None = None
    """Fails with `SessionFenced` unless this is the broker's session; None: embedded."""
    transactional: Sequence[int] = ()
    """Producer ids whose transactional id is wanted, if they have one."""
    transactional_ids: Sequence[str] = ()
    """Transactional ids that are wanted by name; locked also where there is no row yet."""
    claim: tuple[str, int] | None = None
    """(group, epoch): fails with `CoordinatorMoved` unless this is the group's claim."""
    partitions: Sequence[PartitionKey] = ()
    producers: Sequence[tuple[bytes, int, int]] = ()
    """(topic id, partition, producer id) whose standing is wanted."""


@dataclass(frozen=True, slots=True)
class ScopeRows:
    """The rows of a `Scope` that exist; of the partitions also all open transactions."""

    partitions: Sequence[PartitionRow] = ()
    producers: Sequence[ProducerRow] = ()
    txns: Sequence[TxnRow] = ()
    open_txns: Sequence[OpenTxnRow] = ()


class Notice(NamedTuple):
    """What some broker, perhaps this one, has changed in a shared catalog."""

    kind: Literal["partitions", "topics", "brokers", "resync"]
    """`resync`: notices may have been missed; read everything again."""
    partitions: Sequence[tuple[bytes, int, int, int]] = ()
    """(topic id, partition, log start, high watermark)"""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a log needs to go on: everything but the runs."""

    cluster_id: str
    applied_sequence: int
    """The WAL frame whose changes, and all before it, this catalog holds; 0 = none."""
    topics: Sequence[Topic]
    partitions: Sequence[PartitionRow]
    producers: Sequence[ProducerRow]
    txns: Sequence[TxnRow] = ()
    open_txns: Sequence[OpenTxnRow] = ()


class StorageRow(NamedTuple):
    """Bytes of one partition that lie in chunks (WAL files, staged) and in segments."""

    partition: int
    chunk_bytes: int
    segment_bytes: int
    runs: int
