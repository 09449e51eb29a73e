"""What every catalog keeps to, whatever database it lives in."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from catchwater.catalog.base import (
    Catalog,
    EpochGap,
    RunsChanged,
    TopicExists,
    TopicUnknown,
)
from catchwater.catalog.rows import (
    Changes,
    EpochCommit,
    ObjectRow,
    OffsetCommit,
    PartitionRow,
    Pin,
    ProducerRow,
    RunRow,
    Scope,
    StorageRow,
    Topic,
)
from catchwater.catalog.sqlite import SqliteCatalog

T1 = b"1" * 16
KEY = (T1, 0)
WAL = "wal/00000000000000000001.wal"
TOPIC = Topic(T1, "payments", 2, {"retention.ms": "1000"})
Open = Callable[[], Catalog]


@pytest.fixture(params=["sqlite"])
def open_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same catalog again, as after a crash; nothing trails unless a barrier takes it."""
    opened: list[Catalog] = []

    def open_again() -> Catalog:
        catalog = SqliteCatalog(tmp_path / "catalog.db", new_cluster_id=lambda: "c-1", lag_s=3600)
        opened.append(catalog)
        return catalog

    yield open_again
    for catalog in opened:
        catalog.close()


def chunk(first: int, last: int, *, at: int = 0, timestamp: int = -1) -> Changes:
    """One run of one-byte records, the partition behind it, and its producer."""
    size = last - first + 1
    return Changes(
        runs=[RunRow(T1, 0, first, last, WAL, at, size, timestamp, size)],
        partitions=[PartitionRow(T1, 0, 0, last + 1, last + 1, timestamp)],
        producers=[ProducerRow(T1, 0, 9, 1, ((first, last, first),), 1000 + last)],
        objects=[ObjectRow(WAL, "chunk", "live", at + size, 5)],
    )


def with_topic(open_catalog: Open) -> Catalog:
    catalog = open_catalog()
    catalog.create_topic(TOPIC).result(5)
    return catalog


def test_a_new_catalog_is_empty_and_keeps_its_cluster_id(open_catalog: Open) -> None:
    snapshot = open_catalog().load()
    assert snapshot.cluster_id == open_catalog().load().cluster_id != ""
    assert snapshot.applied_sequence == 0
    assert not snapshot.topics


def test_what_was_applied_is_read_back_at_once_and_durable_after_a_flush(
    open_catalog: Open,
) -> None:
    catalog = with_topic(open_catalog)
    first, second = chunk(0, 4), chunk(5, 9, at=5)
    catalog.apply(1, first)
    catalog.apply(2, second)
    assert catalog.runs(KEY, 0) == [*first.runs, *second.runs]
    assert not open_catalog().runs(KEY, 0)
    assert open_catalog().load().applied_sequence == 0
    catalog.flush().result(5)
    again = open_catalog()
    assert again.runs(KEY, 0) == catalog.runs(KEY, 0) == [*first.runs, *second.runs]
    snapshot = again.load()
    assert snapshot.applied_sequence == 2
    assert snapshot.partitions[0] == second.partitions[0]
    assert list(snapshot.producers) == list(second.producers)
    assert snapshot.topics == [TOPIC]


def test_a_barrier_is_never_durable_without_the_chunks_before_it(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    catalog.apply(1, chunk(0, 4))
    catalog.commit_offsets("g", {("payments", 0): OffsetCommit(5)}).result(5)
    again = open_catalog()
    assert again.committed("g") == {("payments", 0): OffsetCommit(5)}
    assert again.load().applied_sequence == 1
    assert len(again.runs(KEY, 0)) == 1


def test_a_refused_barrier_leaves_the_others_in_its_transaction_alone(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    catalog.apply(1, chunk(0, 4))
    futures = [catalog.set_pin(Pin(f"p{n}", "me", {}, None, n)) for n in range(5)]
    refused = catalog.create_topic(Topic(b"2" * 16, "payments", 1))
    more = [catalog.set_pin(Pin(f"q{n}", "me", {}, None, n)) for n in range(5)]
    with pytest.raises(TopicExists, match="payments"):
        refused.result(5)
    for future in futures + more:
        future.result(5)
    assert len(open_catalog().pins()) == 10
    assert open_catalog().load().applied_sequence == 1


def test_runs_are_found_by_offset_bytes_and_number(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    runs = []
    for n in range(20):
        changes = chunk(n * 10, n * 10 + 9, at=n * 10)
        catalog.apply(n + 1, changes)
        runs += changes.runs
        if n == 12:
            catalog.flush().result(5)
    for offset in (0, 9, 10, 115, 135, 199):
        assert catalog.runs(KEY, offset) == runs[offset // 10 :]
    assert catalog.runs(KEY, 200) == []
    assert catalog.runs(KEY, 115, limit=4) == runs[11:15]
    assert catalog.runs(KEY, 115, max_bytes=21) == runs[11:14]
    assert catalog.runs((T1, 1), 0) == []


@pytest.mark.parametrize("flushed", [False, True])
def test_a_timestamp_finds_the_first_run_not_older(open_catalog: Open, flushed: bool) -> None:
    catalog = with_topic(open_catalog)
    for n, timestamp in enumerate((100, 50, 300, 200)):
        catalog.apply(n + 1, chunk(n, n, at=n, timestamp=timestamp))
    if flushed:
        catalog.flush().result(5)
    found = [catalog.run_for_timestamp(KEY, at) for at in (60, 101, 250, 301)]
    assert [run and run.base_offset for run in found] == [0, 2, 2, None]


def test_a_topic_is_created_once_and_deleted_with_all_it_had(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    catalog.apply(1, chunk(0, 4))
    segment = ObjectRow("segments/a.seg", "segment", "live", 9, 1)
    old = catalog.runs(KEY, 0)
    packed = [old[0]._replace(object=segment.key, byte_offset=0)]
    catalog.replace_runs(old, packed, [segment]).result(5)
    catalog.commit_offsets("g", {("payments", 0): OffsetCommit(5)}).result(5)
    catalog.delete_topic(T1).result(5)
    with pytest.raises(TopicUnknown):
        catalog.delete_topic(T1).result(5)
    again = open_catalog()
    snapshot = again.load()
    assert not snapshot.topics and not snapshot.partitions and not snapshot.producers
    assert again.runs(KEY, 0) == []
    assert again.committed("g") == {}
    assert again.groups() == []
    assert [row.key for row in again.objects("deleting")] == [segment.key]
    assert [row.key for row in again.objects("live", unreferenced=True)] == [WAL]


def test_producer_ids_are_never_given_twice(open_catalog: Open) -> None:
    firsts = [open_catalog().allocate_producer_ids(100).result(5) for _ in range(3)]
    assert firsts == [1, 101, 201]


def test_a_groups_positions_are_replaced(open_catalog: Open) -> None:
    catalog = open_catalog()
    old, new = OffsetCommit(1), OffsetCommit(2, 7, "with metadata")
    catalog.commit_offsets("g", {("t", 0): old, ("t", 1): old}).result(5)
    catalog.commit_offsets("g", {("t", 1): new}).result(5)
    catalog.commit_offsets("other", {("t", 1): old}).result(5)
    assert catalog.committed("g") == {("t", 0): old, ("t", 1): new}
    assert catalog.committed("nobody") == {}
    assert catalog.groups() == ["g", "other"]


def test_pins_are_set_replaced_and_released(open_catalog: Open) -> None:
    catalog = open_catalog()
    pin = Pin("cp-1", "risk", {("payments", 0): 7, ("payments", 1): 0}, None, 1)
    renewed = Pin("cp-1", "risk", {("payments", 0): 9}, 5000, 2)
    catalog.set_pin(pin).result(5)
    assert open_catalog().pins() == [pin]
    catalog.set_pin(renewed).result(5)
    assert catalog.pins() == [renewed]
    assert catalog.release_pin("cp-1").result(5)
    assert not catalog.release_pin("cp-1").result(5)
    assert catalog.pins() == []


def test_an_epoch_is_recorded_with_its_runs_or_not_at_all(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)

    def commit(epoch: int) -> EpochCommit:
        return EpochCommit(False, epoch, 5, {0: (0, 4)}, "sum", "payments")

    def record(epoch: int, changes: Changes) -> None:
        after = replace(changes, epochs=[("p", "s", commit(epoch))])
        catalog.transact(Scope(), lambda seen: (after, None)).result(5)

    assert catalog.epoch("p", "s") is None
    record(3, chunk(0, 4))
    for wrong in (2, 3, 5):
        with pytest.raises(EpochGap, match="epoch 3"):
            record(wrong, chunk(5, 9))
    record(4, Changes())
    again = open_catalog()
    assert len(again.runs(KEY, 0)) == 1
    recorded = again.epoch("p", "s", 3)
    assert recorded == EpochCommit(True, 3, 5, {0: (0, 4)}, "sum", "payments")
    last = again.epoch("p", "s")
    assert last is not None and last.epoch == 4
    assert again.epoch("p", "s", 9) is None
    assert again.epoch("p", "other") is None


def test_runs_are_replaced_only_when_all_of_them_are_still_there(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    for n in range(3):
        catalog.apply(n + 1, chunk(n * 5, n * 5 + 4, at=n * 5))
    old = catalog.runs(KEY, 0)
    segment = ObjectRow("segments/a.seg", "segment", "live", 20, 1)
    new = [RunRow(T1, 0, 0, 14, segment.key, 0, 15, -1, 15)]
    gone = old[2]._replace(object="wal/elsewhere")
    with pytest.raises(RunsChanged, match="offsets 10 to 14"):
        catalog.replace_runs([*old[:2], gone], new, [segment]).result(5)
    assert catalog.runs(KEY, 0) == old
    assert catalog.known_objects([segment.key, WAL]) == {WAL}
    catalog.replace_runs(old, new, [segment]).result(5)
    assert catalog.runs(KEY, 0) == new
    assert catalog.known_objects([segment.key, WAL]) == {segment.key, WAL}
    assert catalog.storage(T1) == [StorageRow(0, 0, 15, 1)]


def test_trimming_moves_the_log_start_and_drops_runs_that_end_before_it(
    open_catalog: Open,
) -> None:
    catalog = with_topic(open_catalog)
    for n in range(3):
        catalog.apply(n + 1, chunk(n * 5, n * 5 + 4, at=n * 5, timestamp=100 + n))
    expected = PartitionRow(T1, 0, 7, 15, 15 - 5, 101)
    # The chunks' own rows say bytes = high watermark here, so the last one counts all 15.
    assert catalog.trim({KEY: 7, (b"gone" * 4, 0): 3}).result(5) == [expected]
    assert [run.base_offset for run in catalog.runs(KEY, 0)] == [5, 10]
    assert open_catalog().load().partitions[0] == expected
    assert catalog.trim({KEY: 15}).result(5) == [PartitionRow(T1, 0, 15, 15, 0, -1)]
    assert catalog.runs(KEY, 0) == []


def test_an_object_is_given_up_only_when_no_run_lies_in_it(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    catalog.apply(1, chunk(0, 4))
    assert catalog.mark_deleting([WAL, "unknown"]).result(5) == []
    catalog.forget_objects([WAL]).result(5)
    assert [row.key for row in catalog.objects("live")] == [WAL]
    catalog.trim({KEY: 5}).result(5)
    assert [row.key for row in catalog.objects("live", unreferenced=True)] == [WAL]
    assert catalog.mark_deleting([WAL]).result(5) == [WAL]
    assert [row.key for row in catalog.objects("deleting")] == [WAL]
    catalog.forget_objects([WAL]).result(5)
    assert catalog.objects("deleting") == []


def test_silent_producers_are_forgotten(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    catalog.apply(1, chunk(0, 4))
    catalog.forget_producers(1004).result(5)
    assert len(open_catalog().load().producers) == 1
    catalog.forget_producers(1005).result(5)
    assert not open_catalog().load().producers
