"""What follows from a consumer group's positions: lag, what is left of them, and what is lost."""

from typing import Any

from catchwater.recovery.group import GroupContract, Observed, judge
from catchwater.wire.client import OpenTransaction

NOW_MS = 10_000_000
HOUR_MS = 3_600_000
KEY = ("t", 0)


def seen(**changes: Any) -> Observed:
    """A group at offset 600 of 100 to 1100, behind a batch that is 60 s old."""
    given: dict[str, Any] = {
        "group": "g",
        "state": "Empty",
        "protocol_type": "consumer",
        "committed": {KEY: 600},
        "starts": {KEY: 100},
        "ends": {KEY: 1100},
        "written_ms": {KEY: NOW_MS - 60_000},
        "sizes": {KEY: 100_000},
        "settings": {"t": {"cleanup.policy": "delete", "retention.ms": str(HOUR_MS)}},
    }
    return Observed(**{**given, **changes})


def verdict(told: GroupContract) -> tuple[str, str]:
    (position,) = told.positions
    return position.verdict, position.why


def test_lag_in_records_seconds_and_bytes_and_what_retention_leaves() -> None:
    told = judge(seen(), NOW_MS)
    assert (told.lag_records, told.lag_s, told.replay_bytes) == (500, 60.0, 50_000)
    assert told.retention_left_s == 3540.0
    assert verdict(told) == ("pass", "kept for 3540 s at least")


def test_what_is_deleted_before_a_restore_ends_warns() -> None:
    assert verdict(judge(seen(), NOW_MS, 3000.0))[0] == "pass"
    assert verdict(judge(seen(), NOW_MS, 3600.0)) == (
        "warn", "deleted in 3540 s, before a restore of 3600 s ends",
    )  # fmt: skip


def test_what_is_older_than_retention_may_go_at_any_moment() -> None:
    old = seen(written_ms={KEY: NOW_MS - 2 * HOUR_MS})
    assert judge(old, NOW_MS).retention_left_s == 0
    assert verdict(judge(old, NOW_MS)) == ("warn", "retention may delete it at any moment")


def test_more_than_retention_by_size_keeps_may_go_at_any_moment() -> None:
    by_size = {"t": {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "49999"}}
    assert verdict(judge(seen(settings=by_size), NOW_MS))[0] == "warn"
    by_size["t"]["retention.bytes"] = "50000"
    assert verdict(judge(seen(settings=by_size), NOW_MS)) == (
        "pass", "retention does not delete it",
    )  # fmt: skip


def test_a_compacted_topic_deletes_nothing_by_age() -> None:
    compacted = {"t": {"cleanup.policy": "compact", "retention.ms": "1"}}
    assert judge(seen(settings=compacted), NOW_MS).retention_left_s is None
    both = {"t": {"cleanup.policy": "compact,delete", "retention.ms": "1"}}
    assert judge(seen(settings=both), NOW_MS).retention_left_s == 0


def test_an_open_transaction_is_shown_and_warns_once_it_hangs() -> None:
    def told(idle_s: int) -> GroupContract:
        found = OpenTransaction("t", 0, 7, 800, NOW_MS - 1000 * idle_s)
        return judge(seen(transactions=[found], producers={7: "tx-7"}, unsettled={KEY}), NOW_MS)

    (lasting,) = told(900).transactions
    assert (lasting.transactional_id, lasting.first_offset, lasting.verdict) == (
        "tx-7",
        800,
        "pass",
    )
    assert told(900).verdicts == ["pass", "pass"] and told(900).positions[0].unsettled
    (hanging,) = told(901).transactions
    assert hanging.verdict == "warn" and hanging.why.startswith("it hangs: nothing came for 901 s")
    assert not judge(seen(), NOW_MS).positions[0].unsettled


def test_lost_input_fails_with_both_offsets() -> None:
    assert verdict(judge(seen(starts={KEY: 650}, written_ms={}), NOW_MS)) == (
        "fail", "lost: the log begins at 650, 50 records are gone",
    )  # fmt: skip
    assert verdict(judge(seen(ends={KEY: 500}, written_ms={}), NOW_MS))[0] == "fail"


def test_of_a_log_that_is_empty_nothing_can_be_read_again() -> None:
    told = judge(seen(starts={KEY: 1100}, written_ms={}), NOW_MS)
    assert (told.lag_records, told.replay_bytes) == (500, 0)
    assert verdict(told) == ("fail", "lost: the log begins at 1100, 500 records are gone")


def test_a_group_that_has_read_everything_has_nothing_to_lose() -> None:
    told = judge(seen(ends={KEY: 600}, written_ms={}), NOW_MS, 1e9)
    assert (told.lag_records, told.lag_s, told.replay_bytes) == (0, 0.0, 0)
    assert told.retention_left_s is None
    assert verdict(told) == ("pass", "everything was read")


def pin(offset: int, state: str = "reserved") -> dict[str, Any]:
    position = {"topic": "t", "partition": 0, "offset": offset}
    return {"id": "group/g", "state": state, "positions": [position]}


def test_a_pin_keeps_what_retention_would_delete() -> None:
    old = {"written_ms": {KEY: NOW_MS - 2 * HOUR_MS}}
    assert verdict(judge(seen(pins=[pin(600)], **old), NOW_MS)) == ("pass", "pinned by group/g")
    for other in (pin(601), pin(600, "lost"), pin(600, "unreserved")):
        assert verdict(judge(seen(pins=[other], **old), NOW_MS))[0] == "warn"


def test_what_no_broker_tells_is_unknown() -> None:
    told = judge(seen(sizes={}, written_ms={}), NOW_MS)
    assert (told.lag_s, told.replay_bytes, told.retention_left_s) == (None, None, None)
    assert told.lag_records == 500


def test_the_whole_is_as_bad_as_its_worst_partition() -> None:
    other = ("t", 1)
    told = judge(
        seen(
            committed={KEY: 600, other: 0},
            starts={KEY: 100, other: 0},
            ends={KEY: 1100, other: 10},
            written_ms={KEY: NOW_MS - 60_000, other: NOW_MS - 90_000},
            sizes={KEY: 100_000, other: 500},
        ),
        NOW_MS,
    )
    assert (told.lag_records, told.lag_s, told.replay_bytes) == (510, 90.0, 50_500)
    assert told.retention_left_s == 3510.0


def test_the_changelogs_of_a_streams_application_are_listed() -> None:
    settings = {
        **seen().settings,
        "g-counts-changelog": {"cleanup.policy": "compact"},
        "another-changelog": {"cleanup.policy": "compact"},
    }
    sizes = {KEY: 1, ("g-counts-changelog", 0): 70, ("g-counts-changelog", 1): 30}
    (found,) = judge(seen(settings=settings, sizes=sizes), NOW_MS).changelogs
    assert (found.topic, found.partitions, found.bytes, found.cleanup_policy) == (
        "g-counts-changelog", 2, 100, "compact",
    )  # fmt: skip
