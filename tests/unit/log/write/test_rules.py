"""What a topic's settings ask of its batches."""

from catchwater.catalog.rows import Topic
from catchwater.log.write.rules import EARLIEST_MS, LATEST_MS, Rules, rules_of


def rules(**config: str) -> Rules:
    return rules_of(Topic(b"", "t", 1, {k.replace("_", "."): v for k, v in config.items()}), 100)


def test_a_topic_that_says_nothing_takes_batches_as_they_come() -> None:
    plain = Rules(100, LATEST_MS, EARLIEST_MS, stamps=False, codec=None, needs_keys=False)
    as_by_default = {
        "compression_type": "producer",
        "cleanup_policy": "delete",
        "message_timestamp_type": "CreateTime",
    }
    assert rules() == rules(**as_by_default) == plain
    assert not plain.look_inside


def test_what_lies_inside_is_looked_at_only_where_it_is_asked_for() -> None:
    assert rules(compression_type="uncompressed").codec == 0
    asked = [
        rules(compression_type="uncompressed"),
        rules(cleanup_policy="compact,delete"),
        rules(message_timestamp_before_max_ms="5"),
    ]
    assert all(each.look_inside for each in asked)
    unasked = [
        rules(max_message_bytes="7"),
        rules(message_timestamp_after_max_ms="5"),
        rules(message_timestamp_type="LogAppendTime"),
    ]
    assert not any(each.look_inside for each in unasked)


def test_no_producers_clock_is_asked_where_the_brokers_is_told() -> None:
    limits = {"message_timestamp_after_max_ms": "5", "message_timestamp_before_max_ms": "6"}
    assert rules(**limits)[1:4] == (5, 6, False)
    stamped = rules(message_timestamp_type="LogAppendTime", **limits)
    assert stamped[1:4] == (EARLIEST_MS, EARLIEST_MS, True)
