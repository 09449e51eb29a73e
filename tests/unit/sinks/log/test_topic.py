"""Which row a record of a topic is: by its place, its headers, or its content."""

from catchwater.sinks.base import (
    RETRACTS_HEADER,
    ROW_HEADER,
    SINK_HEADER,
    OutputRecord,
    RowId,
    SinkRow,
    StagedRow,
    record_digest,
)
from catchwater.sinks.kinds.log import PlacedRecord, Reading, Span
from catchwater.sinks.log_stager import partition_of, row_headers

LABEL = "cards/alerts"
PARTITIONS = 3


def record(name: str, headers: tuple[tuple[str, bytes], ...] = ()) -> OutputRecord:
    return OutputRecord(b"k", name.encode(), 0, headers)


PARTITION = partition_of(b"k", PARTITIONS)
ROWS = [StagedRow(RowId(4, shard, row), record(f"{shard}-{row}"))
        for shard in (0, 2) for row in range(2)]  # fmt: skip


def reading(*spans: Span) -> Reading:
    return Reading(LABEL, {PARTITION: sorted(spans)}, ROWS, PARTITIONS)


def at(offset: int, name: str, *headers: tuple[str, bytes]) -> PlacedRecord:
    return PlacedRecord(PARTITION, offset, record(name, headers))


def found(id: RowId, name: str) -> SinkRow:
    return SinkRow(id, b"k", record_digest(record(name)))


def test_a_record_of_an_epoch_is_known_by_its_place() -> None:
    read = reading(Span(10, 13, 4, True))
    assert read.row(at(10, "0-0")) == found(RowId(4, 0, 0), "0-0")
    assert read.row(at(12, "2-0")) == found(RowId(4, 2, 0), "2-0")
    altered = read.row(at(13, "other"))
    assert altered == found(RowId(4, 2, 1), "other")


def test_a_record_of_an_epoch_behind_all_that_was_staged_is_nobodys() -> None:
    assert reading(Span(10, 15, 4, True)).row(at(15, "x")) == found(RowId(4, -1, 5), "x")


def test_a_record_of_an_epoch_that_was_taken_back_is_not_looked_at() -> None:
    assert reading(Span(10, 13, 4, False)).row(at(11, "0-1")) is None


def test_a_record_between_epochs_is_known_by_its_headers_or_its_content() -> None:
    read = reading(Span(10, 13, 4, True))
    repaired = row_headers(LABEL, RowId(4, 2, 1))
    assert read.row(at(20, "2-1", *repaired)) == found(RowId(4, 2, 1), "2-1")
    assert read.row(at(21, "0-1")) == found(RowId(4, 0, 1), "0-1")
    assert read.row(at(22, "another writer's")) is None


def test_a_header_of_another_sink_means_nothing_to_us() -> None:
    read = reading()
    foreign = ((ROW_HEADER, b"4/0/0"), (SINK_HEADER, b"others/alerts"))
    assert read.row(at(5, "unknown", *foreign)) is None


def test_a_retraction_is_no_row() -> None:
    retraction = ((RETRACTS_HEADER, b"4/0/0"), (SINK_HEADER, LABEL.encode()))
    assert reading(Span(10, 13, 4, True)).row(at(30, "0-0", *retraction)) is None


def test_rows_before_the_log_start_count_as_held() -> None:
    read = reading(Span(10, 13, 4, True))
    expired = list(read.expired({PARTITION: 12}))
    assert expired == [SinkRow(RowId(4, 0, at), b"", None) for at in range(2)]
    assert list(read.expired({PARTITION: 5})) == []
    assert len(list(read.expired({PARTITION: 99}))) == 4


def test_rows_are_known_by_their_place_though_the_topic_has_more_partitions_since() -> None:
    keys = [b"key-%d" % n for n in range(40)]
    rows = [StagedRow(RowId(4, 0, at), OutputRecord(key, b"v%d" % at, 0))
            for at, key in enumerate(keys)]  # fmt: skip
    placed: dict[int, list[StagedRow]] = {}
    for each in rows:
        placed.setdefault(partition_of(each.record.key, 3), []).append(each)
    spans = {p: [Span(10, 9 + len(of), 4, True)] for p, of in placed.items()}
    for partitions in (3, 4, 7):
        read = Reading(LABEL, spans, rows, partitions)
        for p, of in placed.items():
            for offset, each in enumerate(of, start=10):
                found = read.row(PlacedRecord(p, offset, each.record))
                assert found == SinkRow(each.id, each.record.key, record_digest(each.record))
