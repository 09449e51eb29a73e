"""What one partition owes, and to whom."""

import pytest

from catchwater.drill.partition import NO_TXN, Gap, Partition, Sent


def judged(partition: Partition) -> list[tuple[str, tuple[int, ...]]]:
    told: list[tuple[str, tuple[int, ...]]] = []
    partition.judge(lambda anomaly, what, lines: told.append((anomaly, lines)))
    return told


@pytest.fixture
def partition() -> Partition:
    """Three acknowledged records of one key at 0, 1 and 2; nothing polled."""
    partition = Partition("t-0")
    for offset in range(3):
        partition.sends[f"v{offset}"] = Sent(1, NO_TXN, "k", offset + 1, "ok", offset)
        partition.offsets[f"v{offset}"] = offset
    return partition


def test_a_tail_that_nobody_could_poll_is_owed_only_after_final_polls(partition: Partition) -> None:
    assert judged(partition) == []
    partition.final_line = 9
    assert judged(partition) == [("unseen", (line, 9)) for line in (1, 2, 3)]


def test_what_was_trimmed_is_owed_no_more(partition: Partition) -> None:
    partition.final_line, partition.trimmed = 9, 2
    assert judged(partition) == [("unseen", (3, 9))]


def test_a_compacted_topic_owes_the_last_value_of_a_key(partition: Partition) -> None:
    partition.final_line, partition.is_compacted = 9, True
    assert judged(partition) == [("unseen", (3, 9))]


def test_a_tombstone_of_unknown_place_may_have_taken_every_value(partition: Partition) -> None:
    partition.final_line, partition.is_compacted = 9, True
    partition.tombstones.append(("k", None))
    assert judged(partition) == []


def test_a_jump_over_nothing_is_no_skip(partition: Partition) -> None:
    partition.polled = dict.fromkeys(partition.sends, 5)
    partition.gaps = [Gap("poll-skip", 7, 2, 6), Gap("poll-skip", 8, 0, 2)]
    assert judged(partition) == [("poll-skip", (8,))]
