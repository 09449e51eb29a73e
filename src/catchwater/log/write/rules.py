"""What a topic's settings ask of the batches that are appended to it. Pure.

A topic that sets none of these takes batches as they come, if their records are sound. `message.
timestamp.type` is written into the header; what else is asked for lies `inside` of a batch.
The names and their meaning are Kafka's.
"""

from typing import NamedTuple

from catchwater.catalog.rows import Topic
from catchwater.log.keep.policy import CLEANUP_POLICY, COMPACT, cleanup_policies
from catchwater.wire.codecs import Codec

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


_NAMES = frozenset(
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
    """How far behind the time of the append a record may lie, by its producer's clock."""
    before_ms: int = EARLIEST_MS
    """How far before it."""
    stamps: bool = False
    """Records bear the time of the append, whatever the producer gave them."""
    codec: int | None = None
    """How batches are stored; None: as the producer compressed them."""
    needs_keys: bool = False

    def takes(self, oldest_ms: int, newest_ms: int, now_ms: int) -> bool:
        """Whether records of these times may be appended now, milliseconds since 1970."""
        return self.stamps or (
            now_ms - self.before_ms <= oldest_ms
            and newest_ms <= min(now_ms + self.after_ms, EARLIEST_MS)
        )


def rules_of(topic: Topic, max_message_bytes: int) -> Rules:
    """The rules of a topic, whose settings were checked when they were made.

    `max_message_bytes` counts where the topic does not say.
    """
    config = topic.config
    if _NAMES.isdisjoint(config):  # most topics, and this is asked for every request
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
