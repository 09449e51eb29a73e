"""What a topic's settings ask: of the batches appended to it, of retention, of its Parquet.

The names are Kafka's, and so is their meaning, but for those under `catchwater.`. Everything is
pure, but for `refused_schema`, which loads what decodes values.

- `Rules`, of an append. A topic that sets none of these takes batches as they come, if their
  records are sound. `message.timestamp.type` is written into the header; what else is asked for
  lies `inside` of a batch.
- `Policy`: how long and how much is kept. `cleanup.policy` is `delete` (by age and size), `compact`
  (the last value of every key) or both.
- `declared`: what the values are, so that Parquet can have them as columns.
  `catchwater.history.value.format` is `binary`, `json` or `avro`;
  `catchwater.history.value.schema` is the text that the Spark source takes as `valueSchema`: DDL
  for JSON, a schema for Avro. The two are judged each by itself, for a topic's settings may be
  changed one by one; a topic whose schema is not of its format has declared nothing.
"""

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
    """Bytes and milliseconds; -1 = without limit."""

    retention_ms: int
    retention_bytes: int
    """Of each partition, as in Kafka."""
    compacts: bool = False
    delete_retention_ms: int = 24 * 60 * 60 * 1000
    """How long a tombstone stays once it was cleaned for the first time."""
    min_compaction_lag_ms: int = 0
    """Younger records are not compacted."""
    min_dirty_ratio: float = 0.5
    """Of the bytes that could be compacted, how many must be new for it to be worth it."""

    def of(self, topic: Topic) -> "Policy":
        """This policy with what the topic's own configuration says."""
        config = topic.config
        own: dict[str, int] = {f: int(config[key]) for key, f in _KEPT_BY.items() if key in config}
        policies = cleanup_policies(topic)
        if DELETE not in policies:
            own |= {"retention_ms": -1, "retention_bytes": -1}
        ratio = float(config.get("min.cleanable.dirty.ratio", self.min_dirty_ratio))
        return replace(self, compacts=COMPACT in policies, min_dirty_ratio=ratio, **own)

    def deletes_nothing(self, partition: PartitionRow, now_ms: int) -> bool:
        """Whether the partition's totals alone say that every run stays."""
        # What compaction has emptied bears no time, and may lie in front.
        may_be_old = self._too_old(partition.earliest_timestamp, now_ms) or (
            self.compacts and partition.earliest_timestamp < 0 and self.retention_ms >= 0
        )
        return not may_be_old and (
            self.retention_bytes < 0 or partition.bytes <= self.retention_bytes
        )

    def deletes(self, run: RunRow, partition_bytes: int, now_ms: int) -> bool:
        """Whether the oldest run goes from a partition that holds so many bytes with it.

        By age once its newest record is too old (never, if it bears no time, but at once, if no
        record is left in it); by size as long as what stays is not less than the limit.
        """
        too_many = 0 <= self.retention_bytes <= partition_bytes - run.byte_size
        is_empty = run.record_count == 0 and self.retention_ms >= 0
        return too_many or is_empty or self._too_old(run.max_timestamp, now_ms)

    def _too_old(self, timestamp_ms: int, now_ms: int) -> bool:
        return self.retention_ms >= 0 and 0 <= timestamp_ms < now_ms - self.retention_ms


def cleanup_policies(topic: Topic) -> frozenset[str]:
    """`delete`, `compact` or both; a topic that says nothing deletes."""
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

LATEST_MS = 365 * 24 * 60 * 60 * 1000
"""How far in the future a record may lie unless the topic says it; a clock is wrong beyond."""
EARLIEST_MS = 2**63 - 1
"""How old a record may be unless the topic says it: as old as it likes."""


_OF_APPENDS = frozenset(
    (
        COMPRESSION_TYPE,
        MAX_MESSAGE_BYTES,
        TIMESTAMP_TYPE,
        LONGEST_BEFORE,
        LONGEST_AFTER,
        CLEANUP_POLICY,
    )
)


class Rules(NamedTuple):
    """What one topic asks for."""

    max_bytes: int
    """Of one batch, as it comes and as it is stored."""
    after_ms: int = LATEST_MS
    """How far in the future a record's time may lie, seen from the append; ms."""
    before_ms: int = EARLIEST_MS
    """How far in the past; ms."""
    stamps: bool = False
    """Records bear the time of the append, not the one the producer gave them."""
    codec: int | None = None
    """How batches are stored; None: as the producer compressed them."""
    needs_keys: bool = False

    @property
    def are_plain(self) -> bool:
        """Whether they ask for nothing but a size."""
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

    `max_message_bytes` counts where the topic does not say.
    """
    config = topic.config
    if _OF_APPENDS.isdisjoint(config):  # most topics, and this is asked for every request
        return Rules(max_message_bytes)
    stamps = config.get(TIMESTAMP_TYPE) == LOG_APPEND_TIME
    return Rules(
        int(config.get(MAX_MESSAGE_BYTES, max_message_bytes)),
        # Nobody's clock is asked where the broker's is written over it.
        EARLIEST_MS if stamps else int(config.get(LONGEST_AFTER, LATEST_MS)),
        EARLIEST_MS if stamps else int(config.get(LONGEST_BEFORE, EARLIEST_MS)),
        stamps,
        CODECS.get(config.get(COMPRESSION_TYPE, AS_PRODUCED)),
        COMPACT in cleanup_policies(topic),
    )


# --- values --------------------------------------------------------------------------------------

VALUE_FORMAT = "catchwater.history.value.format"
VALUE_SCHEMA = "catchwater.history.value.schema"
FORMATS = (ValueFormat.BINARY, ValueFormat.JSON, ValueFormat.AVRO)
"""Protobuf's descriptors are bytes, which a setting cannot hold."""

_DECODED_BY = {ValueFormat.JSON: ("pyspark", "pandas"), ValueFormat.AVRO: ("pyspark", "fastavro")}


def declared(topic: Topic) -> ValueSettings | None:
    """How the topic's values are to be decoded; None where it does not say."""
    kind = ValueFormat(topic.config.get(VALUE_FORMAT, ValueFormat.BINARY.value))
    text = topic.config.get(VALUE_SCHEMA, "").strip()
    if not text or kind is not _format_of(text):
        return None
    return ValueSettings(kind, text)


def refused_schema(text: str) -> str | None:
    """Why this cannot be a topic's schema, as a sentence; None where it can."""
    if not text.strip():
        return None
    kind = _format_of(text)
    missing = [name for name in _DECODED_BY[kind] if find_spec(name) is None]
    if missing:
        return (
            f"A schema for {kind.value} needs {' and '.join(missing)} on every broker "
            "(pip install 'catchwater[spark,avro]')."
        )
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
