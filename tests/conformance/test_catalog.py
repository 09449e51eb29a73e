"""What every catalog keeps to, whatever database it lives in."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from catchwater.catalog.base import Catalog
from catchwater.catalog.errors import (
    CatalogRefused,
    CoordinatorMoved,
    EpochGap,
    RunsChanged,
    TooManyReports,
    TopicCollides,
    TopicExists,
    TopicUnknown,
    WriterFenced,
)
from catchwater.catalog.memory import MemoryCatalog, MemoryDatabase, call_now
from catchwater.catalog.rows import (
    AbortedRow,
    AccessRows,
    Changes,
    EndedTxn,
    EpochCommit,
    GroupChanges,
    GroupRow,
    ObjectRow,
    OffsetCommit,
    OpenTxnRow,
    ParquetRow,
    PartitionRow,
    Pin,
    ProducerRow,
    QuotaRow,
    ReportRow,
    RuleRow,
    RunRow,
    Scope,
    ScopeRows,
    SinkFence,
    StorageRow,
    Topic,
    TxnRow,
    TxnState,
    VerifierRow,
)
from catchwater.catalog.sqlite import SqliteCatalog
from catchwater.clock import ManualClock
from catchwater.config import CatchwaterError

T1 = b"1" * 16
KEY = (T1, 0)
WAL = "wal/00000000000000000001.wal"
TOPIC = Topic(T1, "payments", 2, {"retention.ms": "1000"})
Open = Callable[[], Catalog]


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def open_catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same catalog again, as after a crash; nothing trails unless a barrier takes it."""
    opened: list[Catalog] = []
    memory = MemoryDatabase(ManualClock(), call_now)
    postgres_url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""

    def open_again() -> Catalog:
        catalog: Catalog
        if request.param == "sqlite":
            path = tmp_path / "catalog.db"
            catalog = SqliteCatalog(path, new_cluster_id=lambda: "c-1", lag_s=3600)
        elif request.param == "memory":
            catalog = MemoryCatalog(memory)
        else:
            from catchwater.catalog.postgres import PostgresCatalog

            catalog = PostgresCatalog(postgres_url, new_cluster_id=lambda: "c-1", connections=4)
        opened.append(catalog)
        return catalog

    yield open_again
    for catalog in opened:
        catalog.close()
    memory.close()


def chunk(first: int, last: int, *, at: int = 0, timestamp: int = -1) -> Changes:
    """One run of one-byte records, the partition behind it, and its producer."""
    size = last - first + 1
    return Changes(
        runs=[RunRow(T1, 0, first, last, WAL, at, size, timestamp, size)],
        partitions=[PartitionRow(T1, 0, 0, last + 1, last + 1, timestamp)],
        producers=[ProducerRow(T1, 0, 9, 1, ((first, last, first),), 1000 + last)],
        objects=[ObjectRow(WAL, "chunk", "live", at + size, 5)],
    )


def put(catalog: Catalog, changes: Changes) -> None:
    """Make changes part of the log, whatever was there."""
    catalog.transact(Scope(), lambda seen: (changes, None)).result(60)


def look(catalog: Catalog, **scope: Any) -> ScopeRows:
    """What a transaction of this scope sees."""
    return catalog.transact(Scope(**scope), lambda seen: (Changes(), seen)).result(60)


def with_topic(open_catalog: Open) -> Catalog:
    catalog = open_catalog()
    catalog.create_topic(TOPIC).result(60)
    return catalog


def test_a_new_catalog_is_empty_and_keeps_its_cluster_id(open_catalog: Open) -> None:
    snapshot = open_catalog().load()
    assert snapshot.cluster_id == open_catalog().load().cluster_id != ""
    assert snapshot.applied_sequence == 0
    assert not snapshot.topics


def test_runs_are_found_by_offset_bytes_and_number(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    runs = []
    for n in range(20):
        changes = chunk(n * 10, n * 10 + 9, at=n * 10)
        put(catalog, changes)
        runs += changes.runs
    for offset in (0, 9, 10, 115, 135, 199):
        assert catalog.runs(KEY, offset) == runs[offset // 10 :]
    assert catalog.runs(KEY, 200) == []
    assert catalog.runs(KEY, 115, limit=4) == runs[11:15]
    assert catalog.runs(KEY, 115, max_bytes=21) == runs[11:14]
    assert catalog.runs((T1, 1), 0) == []


def test_a_timestamp_finds_the_first_run_not_older(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    for n, timestamp in enumerate((100, 50, 300, 200, 250)):
        put(catalog, chunk(n, n, at=n, timestamp=timestamp))

    def found(*wanted: int) -> list[int | None]:
        runs = [catalog.run_for_timestamp(KEY, at) for at in wanted]
        return [run and run.base_offset for run in runs]

    assert found(60, 101, 250, 301) == [0, 2, 2, None]
    catalog.trim({KEY: 3}).result(60)
    assert found(60, 101, 201, 250, 251) == [3, 3, 4, 4, None]
    put(catalog, chunk(5, 5, at=5, timestamp=240))
    assert found(201, 241, 251) == [4, 4, None]
    old = catalog.runs(KEY, 3)[:2]
    merged = RunRow(T1, 0, 3, 4, WAL, 3, 1, 200, 1)
    catalog.replace_runs(old, [merged], []).result(60)
    assert found(200, 201, 241) == [3, 5, None]


def test_a_timestamp_is_found_among_runs_that_came_together(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    put(catalog, chunk(0, 0, timestamp=70))
    chunks = [chunk(n, n, at=n, timestamp=t) for n, t in ((1, 50), (2, 300), (3, 100), (4, 400))]
    other = chunks[0].runs[0]._replace(partition=1, max_timestamp=999)
    runs = [run for each in chunks for run in each.runs]
    put(catalog, replace(chunks[-1], runs=[other, *runs]))
    found = [catalog.run_for_timestamp(KEY, at) for at in (70, 71, 301, 401)]
    assert [run and run.base_offset for run in found] == [0, 2, 4, None]


def test_a_topic_is_created_once_and_deleted_with_all_it_had(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    put(catalog, chunk(0, 4))
    segment = ObjectRow("segments/a.seg", "segment", "live", 9, 1)
    old = catalog.runs(KEY, 0)
    packed = [old[0]._replace(object=segment.key, byte_offset=0)]
    catalog.replace_runs(old, packed, [segment]).result(60)
    catalog.commit_offsets("g", {("payments", 0): OffsetCommit(5)}).result(60)
    catalog.delete_topic(T1).result(60)
    with pytest.raises(TopicUnknown):
        catalog.delete_topic(T1).result(60)
    again = open_catalog()
    snapshot = again.load()
    assert not snapshot.topics and not snapshot.partitions and not snapshot.producers
    assert again.runs(KEY, 0) == []
    assert again.committed("g") == {}
    assert again.groups() == []
    assert [row.key for row in again.objects("deleting")] == [segment.key]
    assert [row.key for row in again.objects("live", unreferenced=True)] == [WAL]


def test_producer_ids_are_never_given_twice(open_catalog: Open) -> None:
    firsts = [open_catalog().allocate_producer_ids(100).result(60) for _ in range(3)]
    assert firsts == [1, 101, 201]


def test_a_groups_positions_are_replaced(open_catalog: Open) -> None:
    catalog = open_catalog()
    old, new = OffsetCommit(1), OffsetCommit(2, 7, "with metadata")
    catalog.commit_offsets("g", {("t", 0): old, ("t", 1): old}).result(60)
    catalog.commit_offsets("g", {("t", 1): new}).result(60)
    catalog.commit_offsets("other", {("t", 1): old}).result(60)
    assert catalog.committed("g") == {("t", 0): old, ("t", 1): new}
    assert catalog.committed("nobody") == {}
    assert catalog.groups() == ["g", "other"]


def test_users_and_rules_are_changed_one_after_the_other(open_catalog: Open) -> None:
    catalog = open_catalog()
    rules = [RuleRow("User:a", "ALLOW", "READ", "TOPIC", name, "LITERAL", "*") for name in "tu"]
    kept = VerifierRow("a", "SCRAM-SHA-256", "c2FsdA==", 4096, "a2V5", "a2V5")
    first = catalog.change_access(lambda now: now._replace(rules=rules, verifiers=[kept])).result(
        60
    )
    assert first.version == catalog.access_version() > 0
    renewed = kept._replace(iterations=8192)
    catalog.change_access(
        lambda now: now._replace(rules=now.rules[1:], verifiers=[renewed])
    ).result(60)
    assert (catalog.access().rules, catalog.access().verifiers) == ([rules[1]], [renewed])
    assert catalog.access_version() > first.version

    def refuse(now: AccessRows) -> AccessRows:
        raise CatchwaterError("not this")

    with pytest.raises(CatchwaterError, match="not this"):
        catalog.change_access(refuse).result(60)
    assert open_catalog().access() == catalog.access()


def test_quotas_are_set_replaced_and_removed(open_catalog: Open) -> None:
    catalog = open_catalog()
    rows = [
        QuotaRow("alice", None, "producer_byte_rate", 1.5),
        QuotaRow("", "*", "producer_byte_rate", 2.0),
        QuotaRow(None, "=c", "consumer_byte_rate", 3.0),
        QuotaRow(None, "", "consumer_byte_rate", 4.0),
    ]
    catalog.change_client_quotas(rows).result(60)
    assert sorted(catalog.client_quotas(), key=repr) == sorted(rows, key=repr)
    gone, other = rows[0]._replace(value=None), rows[1]._replace(value=9.0)
    catalog.change_client_quotas([gone, other]).result(60)
    assert sorted(open_catalog().client_quotas(), key=repr) == sorted([other, *rows[2:]], key=repr)


def test_pins_are_set_replaced_and_released(open_catalog: Open) -> None:
    catalog = open_catalog()
    pin = Pin("cp-1", "risk", {("payments", 0): 7, ("payments", 1): 0}, None, 1)
    renewed = Pin("cp-1", "risk", {("payments", 0): 9}, 5000, 2)
    catalog.set_pin(pin).result(60)
    assert open_catalog().pins() == [pin]
    catalog.set_pin(renewed).result(60)
    assert catalog.pins() == [renewed]
    assert catalog.release_pin("cp-1").result(60)
    assert not catalog.release_pin("cp-1").result(60)
    assert catalog.pins() == []


def test_the_last_report_of_each_pipeline_is_kept(open_catalog: Open) -> None:
    catalog = open_catalog()
    for row in (ReportRow("cards", 1, "{}"), ReportRow("cards", 2, '{"a":1}')):
        catalog.keep_report(row, 0, 2).result(60)
    assert open_catalog().reports() == [ReportRow("cards", 2, '{"a":1}')]
    catalog.keep_report(ReportRow("trips", 3, "{}"), 0, 2).result(60)
    with pytest.raises(TooManyReports):
        catalog.keep_report(ReportRow("visits", 4, "{}"), 2, 2).result(60)
    catalog.keep_report(ReportRow("visits", 4, "{}"), 3, 2).result(60)
    assert [row.name for row in catalog.reports()] == ["trips", "visits"]


def test_an_epoch_is_recorded_with_its_runs_or_not_at_all(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)

    def commit(epoch: int) -> EpochCommit:
        return EpochCommit(False, epoch, 5, {0: (0, 4)}, "sum", "payments")

    def record(epoch: int, changes: Changes) -> None:
        after = replace(changes, epochs=[("p", "s", commit(epoch))])
        catalog.transact(Scope(), lambda seen: (after, None)).result(60)

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


def test_an_epoch_of_a_driver_in_whose_place_another_writes_is_refused(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)

    def record(epoch: int | None, driver: int, changes: Changes, counted: str = "f") -> None:
        epochs = [] if epoch is None else [
            ("p", "s", EpochCommit(False, epoch, 5, {0: (0, 4)}, "sum", "payments"))
        ]  # fmt: skip
        fence = SinkFence(f"s:driver:{counted}", driver, "payments")
        after = replace(changes, epochs=epochs, fences=[("p", fence)])
        catalog.transact(Scope(), lambda seen: (after, None)).result(60)

    record(0, 3, Changes())
    record(None, 5, Changes())
    for epoch in (1, None):
        with pytest.raises(WriterFenced, match="driver 5 has taken its place"):
            record(epoch, 3, chunk(0, 4))
    record(None, 1, Changes(), "of another checkpoint")
    again = open_catalog()
    assert again.runs(KEY, 0) == []
    record(1, 5, Changes())
    last = catalog.epoch("p", "s")
    assert last is not None and last.epoch == 1


def test_runs_are_replaced_only_when_all_of_them_are_still_there(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    for n in range(3):
        put(catalog, chunk(n * 5, n * 5 + 4, at=n * 5))
    old = catalog.runs(KEY, 0)
    segment = ObjectRow("segments/a.seg", "segment", "live", 20, 1)
    new = [RunRow(T1, 0, 0, 14, segment.key, 0, 15, -1, 15)]
    gone = old[2]._replace(object="wal/elsewhere")
    with pytest.raises(RunsChanged, match="offsets 10 to 14"):
        catalog.replace_runs([*old[:2], gone], new, [segment]).result(60)
    assert catalog.runs(KEY, 0) == old
    assert catalog.known_objects([segment.key, WAL]) == {WAL}
    catalog.replace_runs(old, new, [segment]).result(60)
    assert catalog.runs(KEY, 0) == new
    assert catalog.known_objects([segment.key, WAL]) == {segment.key, WAL}
    assert catalog.storage(T1) == [StorageRow(0, 0, 15, 1)]


def test_the_oldest_chunk_is_one_in_which_something_is_not_packed(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    assert catalog.oldest_chunk_ms() is None
    put(catalog, chunk(0, 4))
    later = ObjectRow("wal/00000000000000000002.wal", "chunk", "live", 5, 9)
    run = RunRow(T1, 0, 5, 9, later.key, 0, 5, -1, 5)
    put(catalog, replace(chunk(5, 9), runs=[run], objects=[later]))
    assert catalog.oldest_chunk_ms() == 5
    segment = ObjectRow("segments/a.seg", "segment", "live", 20, 1)
    packed = RunRow(T1, 0, 0, 4, segment.key, 0, 5, -1, 5)
    catalog.replace_runs(catalog.runs(KEY, 0)[:1], [packed], [segment]).result(60)
    assert catalog.oldest_chunk_ms() == 9


def test_replaced_runs_that_are_smaller_shrink_their_partition(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    for n in range(3):
        put(catalog, chunk(n * 5, n * 5 + 4, at=n * 5, timestamp=100 + n))
    segment = ObjectRow("segments/a.seg", "segment", "live", 4, 1)
    new = [RunRow(T1, 0, 0, 9, segment.key, 0, 4, 101, 3)]
    row = catalog.replace_runs(catalog.runs(KEY, 0)[:2], new, [segment]).result(60)
    assert row == PartitionRow(T1, 0, 0, 15, 15 - 10 + 4, 101)
    assert catalog.partitions([KEY]) == [row]


def test_trimming_moves_the_log_start_and_drops_runs_that_end_before_it(
    open_catalog: Open,
) -> None:
    catalog = with_topic(open_catalog)
    for n in range(3):
        put(catalog, chunk(n * 5, n * 5 + 4, at=n * 5, timestamp=100 + n))
    expected = PartitionRow(T1, 0, 7, 15, 15 - 5, 101)
    # The chunks' own rows say bytes = high watermark here, so the last one counts all 15.
    assert catalog.trim({KEY: 7, (b"gone" * 4, 0): 3}).result(60) == [expected]
    assert [run.base_offset for run in catalog.runs(KEY, 0)] == [5, 10]
    assert open_catalog().load().partitions[0] == expected
    assert catalog.trim({KEY: 15}).result(60) == [PartitionRow(T1, 0, 15, 15, 0, -1)]
    assert catalog.runs(KEY, 0) == []


def test_an_object_is_given_up_only_when_no_run_lies_in_it(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    put(catalog, chunk(0, 4))
    assert catalog.mark_deleting([WAL, "unknown"]).result(60) == []
    catalog.forget_objects([WAL]).result(60)
    assert [row.key for row in catalog.objects("live")] == [WAL]
    catalog.trim({KEY: 5}).result(60)
    assert [row.key for row in catalog.objects("live", unreferenced=True)] == [WAL]
    assert catalog.mark_deleting([WAL]).result(60) == [WAL]
    assert [row.key for row in catalog.objects("deleting")] == [WAL]
    catalog.forget_objects([WAL]).result(60)
    assert catalog.objects("deleting") == []


def with_parquet(catalog: Catalog) -> tuple[RunRow, ParquetRow]:
    """A partition of two segments, of which the first has Parquet."""
    for n in range(2):
        put(catalog, chunk(n * 5, n * 5 + 4, at=n * 5, timestamp=100 + n))
        segment = ObjectRow(f"segments/{n}.seg", "segment", "live", 20, 40 + n)
        run = RunRow(T1, 0, n * 5, n * 5 + 4, segment.key, 8, 5, 100 + n, 5)
        catalog.replace_runs(catalog.runs(KEY, n * 5), [run], [segment]).result(60)
    first = catalog.runs(KEY, 0)[0]
    parquet = ParquetRow(first.object, "parquet/0.parquet", 4, 2**32 - 1, "card string")
    catalog.add_parquet(first, parquet, PARQUET).result(60)
    return first, parquet


PARQUET = ObjectRow("parquet/0.parquet", "parquet", "live", 30, 50)


def test_a_segment_has_parquet_as_long_as_it_is_there(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    first, parquet = with_parquet(catalog)
    catalog = open_catalog()
    assert catalog.parquet(KEY, 4, 10) == [parquet]
    assert catalog.parquet(KEY, 5, 10) == catalog.parquet((T1, 1), 0, 10) == []
    second = catalog.runs(KEY, 5)[0]
    assert catalog.without_parquet(KEY, 0, 10) == [(second, 41)]
    assert catalog.without_parquet(KEY, 10, 10) == []
    assert catalog.mark_deleting([PARQUET.key]).result(60) == []
    assert [row.key for row in catalog.objects("live", unreferenced=True)] == [WAL]
    assert catalog.storage(T1) == [StorageRow(0, 0, 10, 2)]
    catalog.trim({KEY: 5}).result(60)
    assert catalog.parquet(KEY, 0, 10) == []
    given_up = {row.key for row in catalog.objects("live", unreferenced=True)}
    assert given_up == {WAL, first.object, PARQUET.key}
    assert catalog.mark_deleting([PARQUET.key]).result(60) == [PARQUET.key]


def test_parquet_goes_with_the_run_that_is_replaced_and_with_its_topic(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    first, _parquet = with_parquet(catalog)
    joined = ObjectRow("segments/joined.seg", "segment", "live", 20, 60)
    run = RunRow(T1, 0, 0, 9, joined.key, 8, 10, 101, 10)
    catalog.replace_runs(catalog.runs(KEY, 0), [run], [joined]).result(60)
    assert catalog.parquet(KEY, 0, 10) == []
    for gone, why in ((first, "offsets 0 to 4"), (run._replace(object="segments/x"), "0 to 9")):
        late = ParquetRow(gone.object, "parquet/late.parquet", 4, 1, "")
        with pytest.raises(RunsChanged, match=why):
            catalog.add_parquet(gone, late, PARQUET._replace(key=late.object)).result(60)
    assert catalog.known_objects([late.object, PARQUET.key]) == {PARQUET.key}
    again = ParquetRow(run.object, "parquet/again.parquet", 9, 1, "")
    catalog.add_parquet(run, again, PARQUET._replace(key=again.object)).result(60)
    catalog.delete_topic(T1).result(60)
    deleting = {row.key for row in catalog.objects("deleting")}
    assert deleting == {joined.key, again.object}


def test_silent_producers_are_forgotten(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    put(catalog, chunk(0, 4))
    catalog.forget_producers(1004).result(60)
    assert look(catalog, producers=[(T1, 0, 9)]).producers == chunk(0, 4).producers
    catalog.forget_producers(1005).result(60)
    assert not look(open_catalog(), producers=[(T1, 0, 9)]).producers


def test_silent_transactional_ids_are_forgotten_unless_something_is_open(
    open_catalog: Open,
) -> None:
    catalog = open_catalog()
    states: list[TxnState] = ["empty", "ongoing", "prepare_commit", "prepare_abort"]
    states += ["complete_commit", "complete_abort"]
    silent = [TxnRow(f"a{at}", at, 0, state, 9, 5, 1, -1, 5, ()) for at, state in enumerate(states)]
    heard = [row._replace(transactional_id="b", producer_id=9, updated_ms=6) for row in silent[:1]]
    put(catalog, Changes(txns=silent + heard))
    assert catalog.unfinished_txns() == silent[1:4]
    assert catalog.forget_txns(5).result(60) == set()
    assert catalog.forget_txns(6).result(60) == {0, 4, 5}
    assert open_catalog().txns() == silent[1:4] + heard


def test_a_transaction_sees_what_it_asked_for_and_writes_all_it_decides(
    open_catalog: Open,
) -> None:
    catalog = with_topic(open_catalog)
    put(catalog, chunk(0, 4))
    txn = TxnRow("tx", 9, 1, "ongoing", 60_000, 17, 1, 3, 18, ((T1.hex(), 0), (T1.hex(), 1)))
    opened = [OpenTxnRow(T1, 0, 9, 0), OpenTxnRow(T1, 1, 9, 7)]
    put(catalog, Changes(txns=[txn], open_txns=opened))
    seen = look(
        open_catalog(),
        transactional=[9, 10],
        transactional_ids=["tx", "unknown"],
        partitions=[KEY, (T1, 0), (b"gone" * 4, 3)],
        producers=[(T1, 0, 9), (T1, 1, 9)],
    )
    assert seen == ScopeRows(chunk(0, 4).partitions, chunk(0, 4).producers, [txn], opened[:1])
    assert catalog.txns() == [txn]
    assert catalog.open_txns(9) == opened
    assert catalog.open_txns_on((T1, 1)) == opened[1:]
    assert catalog.load().open_txns == opened


def test_what_decide_raises_undoes_everything(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)

    class Refused(CatchwaterError):
        """What a caller may raise."""

    def decide(seen: ScopeRows) -> tuple[Changes, None]:
        raise Refused("No.")

    with pytest.raises(Refused):
        catalog.transact(Scope(partitions=[KEY]), decide).result(60)
    gap = [("p", "s", EpochCommit(False, n, 0, {}, "", "payments")) for n in (1, 3)]
    with pytest.raises(EpochGap):
        put(catalog, replace(chunk(0, 4), epochs=gap))
    assert catalog.runs(KEY, 0) == []
    assert catalog.epoch("p", "s") is None
    assert catalog.known_objects([WAL]) == set()


def test_the_runs_of_an_object_tell_what_became_of_a_chunk(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    changes = [chunk(0, 4), chunk(5, 9, at=5)]
    put(catalog, changes[0])
    put(catalog, changes[1])
    assert catalog.runs_in(WAL) == [*changes[0].runs, *changes[1].runs]
    assert catalog.runs_in("wal/never-committed") == []
    assert catalog.chunk_runs(1) == changes[0].runs


def test_the_end_of_a_transaction_moves_its_positions_and_leaves_its_mark(
    open_catalog: Open,
) -> None:
    catalog = with_topic(open_catalog)
    first, second = OffsetCommit(5, 1, "m"), OffsetCommit(6)
    waiting = [(9, "g", "payments", 0, first), (8, "g", "payments", 1, second)]
    put(catalog, Changes(txn_offsets=waiting, open_txns=[OpenTxnRow(T1, 0, 9, 0)]))
    assert catalog.committed("g") == {}
    assert catalog.txn_offsets(9) == {("g", "payments", 0): first}
    assert catalog.unstable("g") == {("payments", 0), ("payments", 1)}
    aborted = [AbortedRow(T1, 0, 9, 0, 4), AbortedRow(T1, 0, 8, 3, 6)]
    ends = [EndedTxn(9, True), EndedTxn(8, False)]
    put(catalog, Changes(ended=ends, aborted=aborted, closed_txns=[(T1, 0, 9)]))
    again = open_catalog()
    assert again.committed("g") == {("payments", 0): first}
    assert again.unstable("g") == set()
    assert again.open_txns(9) == []
    assert again.aborted(KEY, 0, 1) == aborted[:1]
    assert again.aborted(KEY, 4, 7) == aborted
    assert again.aborted(KEY, 5, 99) == aborted[1:]
    catalog.trim({KEY: 5}).result(60)
    assert catalog.aborted(KEY, 0, 99) == aborted[1:]


def test_a_transaction_that_ends_and_one_that_begins_may_share_a_chunk(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    put(catalog, Changes(open_txns=[OpenTxnRow(T1, 0, 9, 0)]))
    both = Changes(closed_txns=[(T1, 0, 9)], open_txns=[OpenTxnRow(T1, 0, 9, 6)])
    put(catalog, both)
    assert catalog.open_txns(9) == both.open_txns


def test_a_superseded_coordinator_changes_nothing(open_catalog: Open) -> None:
    catalog = open_catalog()
    first = catalog.claim_group("g", None).result(60)
    assert first.generation == 0
    catalog.keep_group("g", GroupChanges(7), claim_epoch=first.epoch).result(60)
    position = {("payments", 0): OffsetCommit(1)}
    catalog.commit_offsets("g", position, claim_epoch=first.epoch).result(60)
    second = open_catalog().claim_group("g", None).result(60)
    assert second.epoch > first.epoch
    assert second.generation == 7
    moved = {("payments", 0): OffsetCommit(2)}
    waiting = Changes(txn_offsets=[(9, "g", "payments", 0, OffsetCommit(3))])
    with pytest.raises(CoordinatorMoved):
        scope = Scope(claim=("g", first.epoch))
        catalog.transact(scope, lambda seen: (waiting, None)).result(60)
    assert catalog.unstable("g") == set()
    catalog.transact(Scope(claim=("g", second.epoch)), lambda seen: (waiting, None)).result(60)
    assert catalog.unstable("g") == {("payments", 0)}
    with pytest.raises(CoordinatorMoved):
        catalog.commit_offsets("g", moved, claim_epoch=first.epoch).result(60)
    with pytest.raises(CoordinatorMoved):
        catalog.keep_group("g", GroupChanges(8), claim_epoch=first.epoch).result(60)
    assert catalog.committed("g") == position
    with pytest.raises(CoordinatorMoved):
        catalog.delete_offsets("g", position, claim_epoch=first.epoch).result(60)
    with pytest.raises(CoordinatorMoved):
        catalog.delete_group("g", claim_epoch=first.epoch).result(60)
    assert catalog.committed("g") == position
    assert catalog.delete_group("g", claim_epoch=second.epoch).result(60)
    assert not catalog.delete_group("g").result(60)
    with pytest.raises(CoordinatorMoved):
        catalog.commit_offsets("g", moved, claim_epoch=second.epoch).result(60)
    assert catalog.committed("g") == {}
    assert catalog.claim_group("g", None).result(60).epoch > second.epoch


def test_topics_do_not_differ_in_dots_and_underscores_alone(open_catalog: Open) -> None:
    catalog = open_catalog()
    catalog.create_topic(Topic(b"1" * 16, "q_1.x", 1)).result(60)
    for name in ("q.1.x", "q_1_x", "q.1_x"):
        with pytest.raises(TopicCollides, match=rf"{name} collides with q_1\.x"):
            catalog.create_topic(Topic(b"2" * 16, name, 1)).result(60)
    with pytest.raises(TopicExists):
        catalog.create_topic(Topic(b"2" * 16, "q_1.x", 1)).result(60)
    catalog.create_topic(Topic(b"2" * 16, "q-1-x", 1)).result(60)
    catalog.delete_topic(b"1" * 16).result(60)
    catalog.create_topic(Topic(b"3" * 16, "q.1.x", 1)).result(60)


def test_a_group_is_as_its_coordinator_left_it(open_catalog: Open) -> None:
    catalog = open_catalog()
    assert catalog.group("g") == GroupRow(0, 0)
    whole = GroupChanges(3, {"protocol": "range"}, {"m1": ["t"], "m2": ["t", "\0"]}, True)
    catalog.keep_group("g", whole).result(60)
    catalog.keep_group("h", GroupChanges(1, "h", {"m1": 1}, True)).result(60)
    members = {"m1": '["t"]', "m2": '["t","\\u0000"]'}
    left = GroupRow(0, 3, '{"protocol":"range"}', None, members)
    assert open_catalog().group("g") == left
    assert catalog.groups_with_members() == ["g", "h"]
    catalog.keep_group("g", GroupChanges(4, None, {"m1": None, "m3": 7})).result(60)
    left = left._replace(generation=4, members={"m2": members["m2"], "m3": "7"})
    assert catalog.group("g") == left
    catalog.keep_group("g", GroupChanges(5, "none", {}, True, True)).result(60)
    emptied = open_catalog().group("g")
    assert emptied.emptied_ms is not None
    assert emptied == GroupRow(0, 5, '"none"', emptied.emptied_ms)
    catalog.keep_group("g", GroupChanges(6, "still", {}, False, True)).result(60)
    assert catalog.group("g").emptied_ms == emptied.emptied_ms
    assert catalog.groups_with_members() == ["h"]
    assert not catalog.delete_group("h").result(60)
    assert catalog.group("h") == GroupRow(0, 0)


def test_a_claim_brings_what_the_last_coordinator_left(open_catalog: Open) -> None:
    catalog = open_catalog()
    first = catalog.claim_group("g", None).result(60)
    kept = GroupChanges(2, "state", {"m": 1}, True)
    catalog.keep_group("g", kept, claim_epoch=first.epoch).result(60)
    second = catalog.claim_group("g", None).result(60)
    assert second == GroupRow(second.epoch, 2, '"state"', None, {"m": "1"})
    late = GroupChanges(3, "late", {"m": None}, True)
    with pytest.raises(CoordinatorMoved):
        catalog.keep_group("g", late, claim_epoch=first.epoch).result(60)
    assert catalog.group("g") == second


def test_old_positions_expire_unless_they_were_committed_again(open_catalog: Open) -> None:
    catalog = open_catalog()
    keys = [("payments", index) for index in range(3)]
    for index, key in enumerate(keys):
        catalog.commit_offsets("g", {key: OffsetCommit(1, -1, "", 100 * index)}).result(60)
    catalog.commit_offsets("young", {keys[0]: OffsetCommit(1, -1, "", 900)}).result(60)
    catalog.keep_group("vacant", GroupChanges(1)).result(60)
    catalog.keep_group("lively", GroupChanges(1, "s", {"m": 1}, True)).result(60)
    assert catalog.groups_to_expire(100) == ["g", "vacant"]
    assert catalog.groups_to_expire(-1) == ["vacant"]
    assert catalog.expire_offsets("g", keys[1:], 100, with_group=True).result(60) == [keys[1]]
    for name in ("vacant", "lively"):
        assert catalog.expire_offsets(name, [], 100, with_group=True).result(60) == []
    assert catalog.group("vacant") == GroupRow(0, 0)
    assert catalog.group("lively").generation == 1
    assert open_catalog().committed("g").keys() == {keys[0], keys[2]}


def test_single_positions_of_a_group_are_forgotten(open_catalog: Open) -> None:
    catalog = open_catalog()
    places = [("payments", 0), ("payments", 1), ("orders", 0)]
    catalog.commit_offsets("g", dict.fromkeys(places, OffsetCommit(1))).result(60)
    catalog.commit_offsets("other", dict.fromkeys(places, OffsetCommit(1))).result(60)
    catalog.delete_offsets("g", [("payments", 0), ("orders", 9)]).result(60)
    assert catalog.committed("g") == dict.fromkeys(places[1:], OffsetCommit(1))
    assert catalog.committed("other") == dict.fromkeys(places, OffsetCommit(1))


def test_a_topic_grows_and_is_configured(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    catalog.add_partitions(T1, 4).result(60)
    catalog.add_partitions(T1, 3).result(60)
    catalog.alter_topic_config(T1, lambda _: {"cleanup.policy": "compact"}).result(60)
    snapshot = open_catalog().load()
    assert snapshot.topics == [Topic(T1, "payments", 4, {"cleanup.policy": "compact"})]
    assert [row.partition for row in snapshot.partitions] == [0, 1, 2, 3]
    for change in (
        catalog.add_partitions(b"?" * 16, 2),
        catalog.alter_topic_config(b"?" * 16, dict),
    ):
        with pytest.raises(TopicUnknown):
            change.result(60)


def test_settings_are_altered_one_change_after_the_other(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    catalog.alter_topic_config(T1, lambda _: {}).result(60)

    def add(name: str) -> Callable[[Mapping[str, str]], Mapping[str, str]]:
        return lambda config: {**config, name: "1"}

    altered = [catalog.alter_topic_config(T1, add(f"s{i}")) for i in range(5)]
    assert max(len(change.result(60)) for change in altered) == 5
    [topic] = open_catalog().load().topics
    assert topic.config == {f"s{i}": "1" for i in range(5)}

    def refuse(config: Mapping[str, str]) -> Mapping[str, str]:
        raise CatalogRefused("no")

    with pytest.raises(CatalogRefused):
        catalog.alter_topic_config(T1, refuse).result(60)
    assert open_catalog().load().topics == [topic]


def test_the_producers_of_one_partition_are_told(open_catalog: Open) -> None:
    catalog = with_topic(open_catalog)
    rows = [ProducerRow(T1, p, i, 3, ((0, 4, 7),), 5) for p in (0, 1) for i in (9, 8)]
    put(catalog, Changes(producers=rows))
    assert catalog.producers(KEY) == [rows[1], rows[0]]
    assert catalog.producers((T1, 7)) == []


def test_retention_tells_the_state_of_pins(open_catalog: Open) -> None:
    catalog = open_catalog()
    pin = Pin("cp-1", "risk", {("payments", 0): 7}, None, 1, max_bytes=1000)
    catalog.set_pin(pin).result(60)
    catalog.set_pin_states({"cp-1": "lost", "gone": "lost"}).result(60)
    assert open_catalog().pins() == [replace(pin, state="lost")]
    catalog.set_pin(pin).result(60)
    assert catalog.pins() == [pin]


def test_a_state_taken_from_one_catalog_fills_an_empty_one_of_any_kind(
    open_catalog: Open,
) -> None:
    source = MemoryCatalog(MemoryDatabase(ManualClock(), call_now))
    source.create_topic(TOPIC).result(60)
    put(source, chunk(0, 9, timestamp=7))
    source.commit_offsets("g", {("payments", 0): OffsetCommit(4, -1, "m")}).result(60)
    source.set_pin(Pin("p", "me", {("payments", 0): 3}, None, 1, 100, "extended")).result(60)
    rule = RuleRow("User:a", "ALLOW", "READ", "TOPIC", "t", "LITERAL", "*")
    kept = VerifierRow("a", "SCRAM-SHA-256", "c2FsdA==", 4096, "a2V5", "a2V5")
    source.change_access(lambda now: now._replace(rules=[rule], verifiers=[kept])).result(60)
    source.change_client_quotas([QuotaRow("a", None, "producer_byte_rate", 1.5)]).result(60)
    epoch = source.claim_group("g", None).result(60).epoch
    empty = GroupChanges(1, "gone", {}, True, True)
    source.keep_group("g", empty, claim_epoch=epoch).result(60)
    commit = EpochCommit(False, 1, 1, {0: (0, 9)}, "c", "payments")
    txn = TxnRow("tx", 9, 1, "ongoing", 1000, 5, 2, -1, 6, ())
    put(
        source,
        Changes(
            epochs=[("pipeline", "sink", commit)],
            txns=[txn],
            open_txns=[OpenTxnRow(T1, 0, 9, 4)],
            aborted=[AbortedRow(T1, 0, 9, 0, 3)],
            txn_offsets=[(9, "g", "payments", 1, OffsetCommit(5))],
        ),
    )
    state = source.take_state().result(60)
    assert all(state.values()), "every table has a row"
    segment = ObjectRow("segments/s.seg", "segment", "live", 40, 6)
    run = RunRow(T1, 1, 0, 3, segment.key, 8, 20, 9, 4)
    target = open_catalog()
    target.restore(state, [segment], [run], 12).result(60)
    assert target.runs((T1, 1), 0) == [run]
    assert target.last_backup() == 12
    assert target.take_backup_number().result(60) == 13
    again = target.take_state().result(60)
    assert {table: [tuple(row) for row in rows] for table, rows in again.items()} == state
