"""Policies: a topic's own settings win over the broker's."""

from catchwater.catalog.rows import PartitionRow, RunRow, Topic
from catchwater.log.topic_settings import Policy, cleanup_policies


def topic(**config: str) -> Topic:
    return Topic(b"t", "t", 1, {key.replace("_", "."): value for key, value in config.items()})


def test_a_topic_overrides_the_default() -> None:
    assert Policy(100, 200).of(topic(retention_ms="5")) == Policy(5, 200)
    forever = topic(retention_bytes="-1", retention_ms="-1")
    assert Policy(100, 200).of(forever) == Policy(-1, -1)


def test_a_compacted_topic_deletes_only_if_it_says_so() -> None:
    compacted = Policy(100, 200).of(topic(cleanup_policy="compact", retention_ms="5"))
    assert (compacted.retention_ms, compacted.retention_bytes) == (-1, -1)
    assert compacted.compacts
    both = Policy(100, 200).of(topic(cleanup_policy="compact, delete"))
    assert (both.retention_ms, both.retention_bytes, both.compacts) == (100, 200, True)
    assert cleanup_policies(topic()) == {"delete"}


def test_compactions_settings_are_the_topics() -> None:
    own = Policy(1, 1).of(
        topic(
            cleanup_policy="compact",
            delete_retention_ms="7",
            min_compaction_lag_ms="8",
            min_cleanable_dirty_ratio="0.25",
        )
    )
    assert own == Policy(-1, -1, True, 7, 8, 0.25)


def test_a_run_that_compaction_emptied_goes_with_the_old_ones() -> None:
    empty = RunRow(b"t", 0, 0, 9, "segments/x", 0, 61, -1, 0)
    both = Policy(100, -1, compacts=True)
    assert both.deletes(empty, 61, now_ms=0)
    assert not Policy(-1, -1, compacts=True).deletes(empty, 61, now_ms=0)
    assert not both.deletes_nothing(PartitionRow(b"t", 0, 0, 10, 61, -1), now_ms=0)
