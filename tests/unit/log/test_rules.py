"""What a topic's settings ask of its batches."""

from catchwater.catalog.rows import Topic
from catchwater.log.topic_settings import EARLIEST_MS, LATEST_MS, Rules, rules_of


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


def test_times_are_taken_within_the_topics_limits() -> None:
    limits = {"message_timestamp_before_max_ms": "6", "message_timestamp_after_max_ms": "5"}
    narrow, stamped = rules(**limits), rules(message_timestamp_type="LogAppendTime", **limits)
    assert [narrow.takes(ms, ms, 100) for ms in (93, 94, 105, 106)] == [False, True, True, False]
    assert stamped.takes(0, 10**9, 100)
    assert rules().takes(-(2**62), 100 + LATEST_MS, 100)
    for ms in (-(2**63) - 1, 2**63, 100 + LATEST_MS + 1):
        assert not rules(message_timestamp_after_max_ms=str(2**63 - 1)).takes(ms, ms, 100) or (
            ms < 2**63
        )


def test_no_producers_clock_is_asked_where_the_brokers_is_told() -> None:
    limits = {"message_timestamp_after_max_ms": "5", "message_timestamp_before_max_ms": "6"}
    assert rules(**limits)[1:4] == (5, 6, False)
    stamped = rules(message_timestamp_type="LogAppendTime", **limits)
    assert stamped[1:4] == (EARLIEST_MS, EARLIEST_MS, True)
