"""Offsets and idempotence as Apache Kafka gives them, the same at every replay."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.log.format.chunk import Entry
from catchwater.log.write.sequence import (
    PRODUCER_EXPIRY_MS,
    NewRun,
    PartitionState,
    Result,
    sequence,
)
from catchwater.wire.errors import ErrorCode

T1 = b"1" * 16
KEY = (T1, 0)
OK = ErrorCode.NONE
MAX_SEQUENCE = 2**31 - 1


def entry(
    count: int = 1,
    *,
    producer: int = -1,
    epoch: int = 0,
    base: int = 0,
    partition: int = 0,
    at: int = 0,
    size: int = 100,
    timestamp: int = 5,
) -> Entry:
    return Entry(
        T1, partition, at, size, producer, epoch, base, count - 1, count, timestamp, 0
    )  # fmt: skip


class Partition:
    """One partition that batches of a producer are appended to."""

    def __init__(self) -> None:
        self.states = {KEY: PartitionState()}
        self.now_ms = 0

    def append(self, **batch: int) -> Result:
        return sequence([entry(**{"producer": 7, **batch})], self.states, {}, self.now_ms).results[
            0
        ]


# --- offsets and runs ----------------------------------------------------------------------------


def test_offsets_go_on_from_the_high_watermark() -> None:
    states = {KEY: PartitionState(log_start=3, high_watermark=10, bytes=1)}
    done = sequence([entry(4, at=0), entry(2, at=100)], states, {}, 1)
    assert done.results == [Result(OK, 10), Result(OK, 14)]
    assert states[KEY].high_watermark == 16
    assert states[KEY].bytes == 201


def test_batches_of_a_partition_side_by_side_are_one_run() -> None:
    states = {KEY: PartitionState(), (T1, 1): PartitionState()}
    entries = [
        entry(2, at=0, timestamp=9),
        entry(3, at=100, timestamp=4),
        entry(1, at=200, partition=1),
    ]
    first, second = sequence(entries, states, {}, 1).runs
    assert first == NewRun(KEY, 0, 4, 0, 200, 9, 5)
    assert second == NewRun((T1, 1), 0, 0, 200, 100, 5, 1)


def test_a_refused_batch_parts_the_run_it_lies_in() -> None:
    states = {KEY: PartitionState()}
    entries = [entry(2, producer=7), entry(2, producer=7, base=9, at=100), entry(2, at=200)]
    done = sequence(entries, states, {}, 1)
    assert [result.error for result in done.results] == [
        OK,
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        OK,
    ]
    assert [(run.base_offset, run.byte_offset) for run in done.runs] == [(0, 0), (2, 200)]


def test_a_partition_nobody_knows_changes_nothing() -> None:
    done = sequence([entry(partition=4)], {KEY: PartitionState()}, {}, 1)
    assert done.results == [Result(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert not done.runs
    assert not done.changed


def test_the_earliest_timestamp_is_that_of_the_first_batch() -> None:
    states = {KEY: PartitionState()}
    sequence([entry(timestamp=70)], states, {}, 1)
    sequence([entry(timestamp=30)], states, {}, 1)
    assert states[KEY].earliest_timestamp == 70


def test_who_changed_is_told() -> None:
    states = {KEY: PartitionState(), (T1, 1): PartitionState()}
    entries = [entry(), entry(producer=7, at=100), entry(producer=8, partition=1, at=200)]
    assert sequence(entries, states, {}, 1).changed == {KEY: {7}, (T1, 1): {8}}


# --- idempotence (F20, F21) --------------------------------------------------------------------


def test_a_repeated_batch_gets_its_first_offset_and_is_not_appended() -> None:
    partition = Partition()
    assert partition.append(count=3) == Result(OK, 0)
    assert partition.append(count=3) == Result(OK, 0, duplicate=True)
    assert partition.states[KEY].high_watermark == 3


def test_the_last_five_batches_are_remembered_and_the_sixth_is_not() -> None:
    partition = Partition()
    for n in range(6):
        partition.append(base=n)
    assert [partition.append(base=n) for n in range(1, 6)] == [
        Result(OK, n, duplicate=True) for n in range(1, 6)
    ]
    assert partition.append(base=0).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_that_begins_like_an_old_one_but_ends_elsewhere_is_out_of_order() -> None:
    partition = Partition()
    partition.append(count=3)
    assert partition.append(count=2).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


@pytest.mark.parametrize("base", [0, 1, 4, 100])
def test_a_gap_or_an_overlap_is_out_of_order(base: int) -> None:
    partition = Partition()
    partition.append(count=3)
    assert partition.append(base=base).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.states[KEY].high_watermark == 3


def test_after_the_largest_sequence_comes_zero() -> None:
    partition = Partition()
    partition.append(base=MAX_SEQUENCE)
    assert partition.append(base=0) == Result(OK, 1)


def test_a_batch_may_lie_across_the_largest_sequence() -> None:
    partition = Partition()
    partition.append(base=MAX_SEQUENCE - 1, count=4)
    assert partition.append(base=2) == Result(OK, 4)
    assert partition.append(base=MAX_SEQUENCE - 1, count=4) == Result(OK, 0, duplicate=True)


def test_an_older_epoch_is_refused() -> None:
    partition = Partition()
    partition.append(epoch=2)
    assert partition.append(epoch=1, base=1).error == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_newer_epoch_begins_with_sequence_zero() -> None:
    partition = Partition()
    partition.append(epoch=1)
    assert partition.append(epoch=2, base=1).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.append(epoch=2, base=0) == Result(OK, 1)
    assert partition.append(epoch=1, base=1).error == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_batch_of_an_older_epoch_is_no_duplicate() -> None:
    partition = Partition()
    partition.append(epoch=1)
    partition.append(epoch=2)
    assert partition.append(epoch=1).error == ErrorCode.INVALID_PRODUCER_EPOCH
    assert partition.append(epoch=2) == Result(OK, 1, duplicate=True)


def test_a_producer_nothing_is_known_of_may_begin_anywhere() -> None:
    assert Partition().append(base=41) == Result(OK, 0)


def test_a_producer_is_forgotten_after_a_day_of_silence_by_the_chunks_own_time() -> None:
    partition = Partition()
    partition.append(base=0)
    partition.now_ms = PRODUCER_EXPIRY_MS
    assert partition.append(base=9).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    partition.now_ms += 1
    assert partition.append(base=9) == Result(OK, 1)
    assert partition.append(base=0).error == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_without_a_producer_is_always_appended() -> None:
    states = {KEY: PartitionState()}
    for _ in range(3):
        sequence([entry()], states, {}, 1)
    assert states[KEY].high_watermark == 3
    assert not states[KEY].producers


# --- determinism ---------------------------------------------------------------------------------

entries = st.lists(
    st.builds(
        entry,
        st.integers(1, 3),
        producer=st.integers(-1, 2),
        epoch=st.integers(0, 2),
        base=st.sampled_from([0, 1, 2, 3, 4, 5, 6, MAX_SEQUENCE]),
        partition=st.integers(0, 2),
    ),
    max_size=6,
)


def fresh() -> dict[tuple[bytes, int], PartitionState]:
    return {(T1, index): PartitionState() for index in range(2)}


@given(st.lists(entries, max_size=10), st.integers(0, 10))
def test_a_replay_from_any_point_gives_the_same_offsets(
    chunks: list[list[Entry]], stop: int
) -> None:
    states = fresh()
    saved = copy.deepcopy(states)
    done = []
    for index, chunk in enumerate(chunks):
        if index == stop:
            saved = copy.deepcopy(states)
        done.append(sequence(chunk, states, {}, index))
    first = min(stop, len(chunks)) if stop < len(chunks) else 0
    if first == 0:
        saved = fresh()
    replayed = [
        sequence(chunk, saved, {}, n) for n, chunk in enumerate(chunks[first:], start=first)
    ]
    assert replayed == done[first:]
    assert saved == states


@given(st.lists(entries, max_size=10))
def test_accepted_offsets_are_consecutive_and_never_given_twice(chunks: list[list[Entry]]) -> None:
    states = fresh()
    expected = dict.fromkeys(states, 0)
    for index, chunk in enumerate(chunks):
        done = sequence(chunk, states, {}, index)
        for item, result in zip(chunk, done.results, strict=True):
            key = (item.topic_id, item.partition)
            if result.error == OK and not result.duplicate:
                assert result.base_offset == expected[key]
                expected[key] += item.record_count
        assert sum(run.byte_size for run in done.runs) == sum(
            item.size_bytes
            for item, result in zip(chunk, done.results, strict=True)
            if result.error == OK and not result.duplicate
        )
    assert {key: state.high_watermark for key, state in states.items()} == expected
    for state in states.values():
        assert all(1 <= len(producer.batches) <= 5 for producer in state.producers.values())
