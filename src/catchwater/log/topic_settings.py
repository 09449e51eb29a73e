"""The settings of a topic as rules: for appends, for retention, and for Parquet.

The names and their meanings are Kafka's, except for those under `catchwater.`. Everything is pure
except `refused_schema`, which imports the decoders of values.

- `Rules` for appends. A topic without such settings takes batches unchanged, if their records are
  intact. `message.timestamp.type` is written into the header; the other rules need the records
  (`inside`).
- `Policy`: how long and how much is kept. `cleanup.policy` is `delete` (by age and size), `compact`
  (the last value of every key) or both.
- `declared`: what the values are, so that Parquet can have them as columns.
  `catchwater.history.value.format` is `binary`, `json` or `avro`; `catchwater.history.value.schema`
  is the text that the Spark source takes as `valueSchema`: DDL for JSON, a schema for Avro. Tables
  may have it from a schema registry instead (`registry`), for Avro and Protobuf. Each is
  validated by itself, because a topic's settings may be changed one by one; a topic whose schema
  does not fit its format counts as having declared nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import NamedTuple

from catchwater.catalog.rows import PartitionRow, RunRow, Topic
from catchwater.values.settings import BadSchema, ValueFormat, ValueSettings
from catchwater.wire.codecs import Codec

CLEANUP_POLICY = "cleanup.policy"
DELETE = "delete"
COMPACT = "compact"

_KEPT_BY = {
    "retention.ms": "retention_ms",
    "retention.bytes": "retention_bytes",
    "delete.retention.ms": "delete_retention_ms",
    "min.compaction.lag.ms": "min_compaction_lag_ms",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules of retention and compaction; bytes and milliseconds, -1 = without limit."""

    retention_ms: int
    retention_bytes: int
    """Of each partition, as in Kafka."""
    compacts: bool = False
    delete_retention_ms: int = 24 * 60 * 60 * 1000
    """How long a tombstone is kept after its first compaction."""
    min_compaction_lag_ms: int = 0
    """Younger records are not compacted."""
    min_dirty_ratio: float = 0.5
    """The share of compactable bytes that must be new before a pass."""

    def of(self, topic: Topic) -> "Policy":
        """This policy with the topic's own settings."""
        config = topic.config
        own: dict[str, int] = {f: int(config[key]) for key, f in _KEPT_BY.items() if key in config}
        policies = cleanup_policies(topic)
        if DELETE not in policies:
            own |= {"retention_ms": -1, "retention_bytes": -1}
        ratio = float(config.get("min.cleanable.dirty.ratio", self.min_dirty_ratio))
        return replace(self, compacts=COMPACT in policies, min_dirty_ratio=ratio, **own)

    def deletes_nothing(self, partition: PartitionRow, now_ms: int) -> bool:
        """Whether the partition's totals alone show that every run is kept."""
        # Runs that compaction has emptied have no timestamp, and may come first.
        may_be_old = self._too_old(partition.earliest_timestamp, now_ms) or (
            self.compacts and partition.earliest_timestamp < 0 and self.retention_ms >= 0
        )
        return not may_be_old and (
            self.retention_bytes < 0 or partition.bytes <= self.retention_bytes
        )

    def deletes(self, run: RunRow, partition_bytes: int, now_ms: int) -> bool:
        """Whether the oldest run of a partition with so many bytes is deleted.

        By age if its newest record is too old (never without a timestamp, but at once if it has no
        records left); by size as long as the rest is not smaller than the limit.
        """
        too_many = 0 <= self.retention_bytes <= partition_bytes - run.byte_size
        is_empty = run.record_count == 0 and self.retention_ms >= 0
        return too_many or is_empty or self._too_old(run.max_timestamp, now_ms)

    def _too_old(self, timestamp_ms: int, now_ms: int) -> bool:
        return self.retention_ms >= 0 and 0 <= timestamp_ms < now_ms - self.retention_ms


def cleanup_policies(topic: Topic) -> frozenset[str]:
    """`delete`, `compact` or both; the default is `delete`."""
    names = topic.config.get(CLEANUP_POLICY, DELETE).split(",")
    return frozenset(name.strip() for name in names)


# --- appends -------------------------------------------------------------------------------------

COMPRESSION_TYPE = "compression.type"
MAX_MESSAGE_BYTES = "max.message.bytes"
TIMESTAMP_TYPE = "message.timestamp.type"
LONGEST_BEFORE = "message.timestamp.before.max.ms"
LONGEST_AFTER = "message.timestamp.after.max.ms"

CREATE_TIME, LOG_APPEND_TIME = "CreateTime", "LogAppendTime"
AS_PRODUCED = "producer"
CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}

VALIDATION = "catchwater.value.validation"
UNCHECKED = "none"

LATEST_MS = 365 * 24 * 60 * 60 * 1000
"""The default of how far in the future a record may be; beyond, a clock must be wrong."""
EARLIEST_MS = 2**63 - 1
"""The default of how old a record may be: any age."""


_OF_APPENDS = frozenset(
    (
        COMPRESSION_TYPE,
        MAX_MESSAGE_BYTES,
        TIMESTAMP_TYPE,
        LONGEST_BEFORE,
        LONGEST_AFTER,
        CLEANUP_POLICY,
        VALIDATION,
    )
)


class Rules(NamedTuple):
    """The rules of one topic for appends."""

    max_bytes: int
    """Bound of a batch, as received and as stored."""
    after_ms: int = LATEST_MS
    """How far after the append a record's timestamp may be; ms."""
    before_ms: int = EARLIEST_MS
    """How far before the append; ms."""
    stamps: bool = False
    """Whether records get the time of the append in place of the producer's."""
    codec: int | None = None
    """How batches are stored; None: as the producer compressed them."""
    needs_keys: bool = False
    validation: str = UNCHECKED
    """How values are held against a schema."""
    fit: Callable[[bytes], str | None] | None = None
    """Why a value is refused, by that validation; None: values are not looked at."""

    @property
    def are_plain(self) -> bool:
        """Whether there is no rule but the size."""
        return self[1:] == _PLAIN

    def takes(self, oldest_ms: int, newest_ms: int, now_ms: int) -> bool:
        """Whether records of these times may be appended now, milliseconds since 1970."""
        return self.stamps or (
            now_ms - self.before_ms <= oldest_ms
            and newest_ms <= min(now_ms + self.after_ms, EARLIEST_MS)
        )


_PLAIN = Rules(0)[1:]


def rules_of(topic: Topic, max_message_bytes: int) -> Rules:
    """The rules of a topic, whose settings were checked when they were made.

    `max_message_bytes` applies to topics without a setting of their own.
    """
    config = topic.config
    if _OF_APPENDS.isdisjoint(config):  # most topics, and this runs for every request
        return Rules(max_message_bytes)
    stamps = config.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME
    return Rules(
        int(config.get(MAX_MESSAGE_BYTES, max_message_bytes)),
        # Producers' timestamps are not checked where the broker's replace them.
        EARLIEST_MS if stamps else int(config.get(LONGEST_AFTER, LATEST_MS)),
        EARLIEST_MS if stamps else int(config.get(LONGEST_BEFORE, EARLIEST_MS)),
        stamps,
        CODECS.get(config.get(COMPRESSION_TYPE, AS_PRODUCED)),
        COMPACT in cleanup_policies(topic),
        config.get(VALIDATION, UNCHECKED),
    )


# --- values --------------------------------------------------------------------------------------

VALUE_FORMAT = "catchwater.history.value.format"
VALUE_SCHEMA = "catchwater.history.value.schema"
FROM_REGISTRY = "registry"
"""In place of a schema: values begin with the id of one, the newest gives the columns."""
FORMATS = (ValueFormat.BINARY, ValueFormat.JSON, ValueFormat.AVRO, ValueFormat.PROTOBUF)
"""Protobuf's descriptors are bytes, which a setting cannot hold: they come from a registry only."""
REGISTERED = (ValueFormat.AVRO, ValueFormat.PROTOBUF)

_DECODED_BY = {ValueFormat.JSON: ("pyspark", "pandas"), ValueFormat.AVRO: ("pyspark", "fastavro")}


def declared(topic: Topic) -> ValueSettings | None:
    """How the topic's values are to be decoded; None where the topic alone does not say."""
    kind = ValueFormat(topic.config.get(VALUE_FORMAT, ValueFormat.BINARY.value))
    text = topic.config.get(VALUE_SCHEMA, "").strip()
    if not text or text == FROM_REGISTRY or kind is not _format_of(text):
        return None
    return ValueSettings(kind, text)


def registered(topic: Topic) -> ValueFormat | None:
    """The format of values whose schemas a registry has; None where the topic says otherwise."""
    kind = ValueFormat(topic.config.get(VALUE_FORMAT, ValueFormat.BINARY.value))
    is_there = topic.config.get(VALUE_SCHEMA, "").strip() == FROM_REGISTRY
    return kind if is_there and kind in REGISTERED else None


def refused_schema(text: str) -> str | None:
    """Why this cannot be a topic's schema, as a sentence; None where it can."""
    if not text.strip():
        return None
    is_registered = text.strip() == FROM_REGISTRY
    kind = ValueFormat.AVRO if is_registered else _format_of(text)
    missing = [name for name in _DECODED_BY[kind] if find_spec(name) is None]
    if missing:
        return (
            f"A schema for {kind.value} needs {' and '.join(missing)} on every broker "
            "(pip install 'catchwater[spark,avro]')."
        )
    if is_registered:
        return None
    # Loads Spark's Python package: only brokers whose topics declare something pay for that.
    from catchwater.values.typed import open_decoder

    try:
        open_decoder(ValueSettings(kind, text.strip()))
    except BadSchema as error:
        return str(error)
    return None


def _format_of(schema: str) -> ValueFormat:
    """An Avro schema with fields is a JSON object; DDL never begins like one."""
    return ValueFormat.AVRO if schema.lstrip().startswith("{") else ValueFormat.JSON
