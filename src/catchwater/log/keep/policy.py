"""How long and how much a topic keeps, by its own configuration or the broker's. Pure.

The names are Kafka's: `cleanup.policy` with `delete` (by age and size), `compact` (the last value
of every key) or both.
"""

from dataclasses import dataclass, replace

from catchwater.catalog.rows import PartitionRow, RunRow, Topic

CLEANUP_POLICY = "cleanup.policy"
DELETE = "delete"
COMPACT = "compact"

_NAMES = {
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
        own: dict[str, int] = {f: int(config[key]) for key, f in _NAMES.items() if key in config}
        policies = cleanup_policies(topic)
        if DELETE not in policies:
            own |= {"retention_ms": -1, "retention_bytes": -1}
        ratio = float(config.get("min.cleanable.dirty.ratio", self.min_dirty_ratio))
        return replace(self, compacts=COMPACT in policies, min_dirty_ratio=ratio, **own)

    def deletes_nothing(self, partition: PartitionRow, now_ms: int) -> bool:
        """Whether the partition's totals alone tell that every run stays."""
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
