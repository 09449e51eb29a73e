"""Segments get their records as Parquet: exactly those, once, and for as long as they are there."""

import datetime
import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from catchwater.broker_config import LogConfig
from catchwater.catalog.rows import PartitionKey, RunRow, Topic
from catchwater.log.format.chunk import marker
from catchwater.log.keep import parquet as keep
from catchwater.log.keep.pack import Packer
from catchwater.log.keep.parquet import PARQUET, ParquetWriter, is_settled, wants_parquet
from catchwater.log.keep.sweep import Sweeper
from catchwater.log.read.history import History
from catchwater.objects.base import StoreFull
from catchwater.values.settings import ValueFormat, ValueSettings, identity
from catchwater.wire.arrow import COLUMNS, decode, encode_batch, place

OpenLog = Callable[..., Any]
GRACE_MS = 1_000
ASKING = {"catchwater_history_parquet": "true"}
RECORDS = [
    (b"key", b"value", 1_700_000_000_123, [("trace", b"\x01"), ("trace", None)]),
    (None, None, 0, []),
    (b"", b"", -1, []),
    (b"k" * 70, b"v" * 5000, 1_700_000_000_124, [("ünder", b"")]),
]


class Crash(BaseException):
    """The process ends here."""


def pack(log: Any) -> int:
    return Packer(log.catalog, log.storage, log.clock, LogConfig(), log.topic_name).pack()


def write_all(log: Any, after_ms: int = 0) -> int:
    """Write what is missing of every partition; the number of objects."""
    writer = ParquetWriter(log.core(), LogConfig(parquet_after_ms=after_ms))
    written = 0
    for topic in log.topics.values():
        for partition in range(topic.partitions if wants_parquet(topic) else 0):
            while run := writer.next_segment(topic, partition):
                written += writer.write(run, topic, lambda: True)
    return written


def sweep(log: Any) -> None:
    sweeper = Sweeper(log.core(), grace_ms=GRACE_MS, orphan_grace_ms=GRACE_MS)
    sweeper.sweep()
    for info in log.objects.list(""):  # the store's times are the machine's
        os.utime(log.root / "objects" / info.key, (0, 0))
    log.clock.advance(GRACE_MS)
    sweeper.sweep()
    sweeper.sweep_orphans()


def parquet_keys(log: Any) -> set[str]:
    return {info.key for info in log.objects.list("parquet/")}


def parquet_rows(log: Any, key: PartitionKey) -> list[Any]:
    return log.catalog.parquet(key, 0, 2**62)


def table(log: Any, object_key: str) -> pa.Table:
    return pq.read_table(io.BytesIO(log.objects.get(object_key)))


def expected(log: Any, run: RunRow) -> pa.Table:
    """The data records of a segment, by the decoder that readers use."""
    data = log.storage.read(run.object, run.byte_offset, run.byte_size)
    columns = ["offset", "timestamp", "timestampType", "key", "value", "headers"]
    decoded = pa.Table.from_batches(
        decode(data, place(data), columns=columns),
        pa.schema([(name, COLUMNS[name]) for name in columns]),
    )
    times = decoded.column("timestamp").cast(pa.timestamp("us", "UTC"))
    number = pa.repeat(pa.scalar(run.partition, pa.int32()), len(decoded))
    return (
        decoded.set_column(1, "timestamp", times)
        .add_column(0, "partition", number)
        .add_column(0, "topic", pa.repeat(log.topic_name(run.topic_id), len(decoded)))
    )


@pytest.fixture
def log(open_log: OpenLog) -> Iterator[Any]:
    """Two partitions of a topic that asks, with two segments each."""
    log = open_log()
    keys = log.create_topic("t", 2, **ASKING)
    for step in range(2):
        for key in keys:
            for codec in range(5):
                log.append((key, encode_batch(RECORDS, codec=codec)))
            log.append((key, encode_batch(RECORDS[:1], producer_id=7, transactional=True)))
            log.append((key, bytes(marker(7, 0, committed=False, started_ms=5)[1])))
        assert pack(log) == 2
        if step == 0:
            write_all(log)  # so that the next ones are not packed together with these
    yield log


def keys_of(log: Any) -> list[PartitionKey]:
    return sorted(log.ends)


def test_the_object_holds_the_segments_records_and_nothing_else(log: Any) -> None:
    assert write_all(log) == 2
    for key in keys_of(log):
        runs = log.catalog.runs(key, 0)
        assert [row.segment for row in parquet_rows(log, key)] == [run.object for run in runs]
        for run, row in zip(runs, parquet_rows(log, key), strict=True):
            found = table(log, row.object)
            assert found.to_pylist() == expected(log, run).to_pylist()
            assert found.num_rows == row.records == run.record_count - 1, "but for the marker"
            offsets = found.column("offset").to_pylist()
            assert offsets == list(range(run.base_offset, run.last_offset))
    assert write_all(log) == 0


def test_its_columns_are_those_of_sparks_kafka_source(log: Any) -> None:
    [row, *_] = parquet_rows(log, keys_of(log)[0])
    assert [(field.name, str(field.type)) for field in table(log, row.object).schema] == [
        ("topic", "string"),
        ("partition", "int32"),
        ("offset", "int64"),
        ("timestamp", "timestamp[us, tz=UTC]"),
        ("timestampType", "int32"),
        ("key", "binary"),
        ("value", "binary"),
        ("headers", "list<element: struct<key: string, value: binary>>"),
    ]
    group = pq.ParquetFile(io.BytesIO(log.objects.get(row.object))).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    assert [c.path_in_schema for c in columns if c.is_stats_set] == ["topic", "partition", "offset"]
    assert {c.compression for c in columns} == {"ZSTD"}


def test_every_range_of_a_segment_in_a_plan_names_its_parquet(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catchwater.log.read.history.PLAN_RANGE_BYTES", 1)
    monkeypatch.setattr("catchwater.log.read.history.PIECE_BYTES", 1)
    monkeypatch.setattr("catchwater.log.format.segment.INDEX_STRIDE_BYTES", 1)
    [key] = log.create_topic("large", 1, **ASKING)
    for _ in range(3):
        log.append((key, encode_batch(RECORDS)))
    pack(log)
    write_all(log)
    log.append((key, encode_batch(RECORDS)))
    ranges = History(log.catalog, log.storage, 0).plan(key, 0, 16)
    [row] = parquet_rows(log, key)
    assert [each.kind for each in ranges] == ["segment", "segment", "segment", "chunk"]
    assert [each.parquet for each in ranges] == [log.storage.url(row.object)] * 3 + [""]
    assert {each.parquet_schema for each in ranges} == {""}
    assert {(each.parquet_first, each.parquet_stop) for each in ranges[:3]} == {(0, 12)}
    assert (log.root / "objects" / row.object).as_uri() == ranges[0].parquet


def run_of(size: int, name: str = "segments/t/0/1-2.seg") -> RunRow:
    return RunRow(b"t" * 16, 0, 0, 9, name, 8, size, 0, 10)


def test_a_segment_is_settled_when_nothing_will_join_or_compact_it() -> None:
    config = LogConfig(segment_bytes=100, parquet_after_ms=60)
    plain = Topic(b"t" * 16, "t", 1)
    compacted = Topic(b"t" * 16, "t", 1, {"cleanup.policy": "compact,delete"})
    cleaned = run_of(1, "segments/t/0/1-2.cleaned.seg")

    def settled(run: RunRow, topic: Topic, age_ms: int = 0) -> bool:
        return is_settled(run, 1000, topic, 1000 + age_ms, config)

    assert settled(run_of(51), plain) and not settled(run_of(50), plain)
    assert settled(run_of(1), plain, 60) and not settled(run_of(1), plain, 59)
    assert settled(cleaned, compacted)
    assert not settled(run_of(99), compacted, 600)


def test_only_a_topic_that_says_so_asks() -> None:
    assert wants_parquet(Topic(b"", "t", 1, {PARQUET: "true"}))
    assert not wants_parquet(Topic(b"", "t", 1, {PARQUET: "false"}))
    assert not wants_parquet(Topic(b"", "t", 1))


def test_a_small_segment_waits_to_be_joined_and_stays_as_it_is_once_it_has_parquet(
    open_log: OpenLog,
) -> None:
    log = open_log()
    [key] = log.create_topic("t", 1, **ASKING)
    for joined in (1, 1, 2):
        log.append((key, encode_batch(RECORDS)))
        log.append((key, encode_batch(RECORDS)))
        pack(log)
        assert write_all(log, after_ms=1000) == 0
        if joined == 1 and log.ends[key] > 8:
            log.clock.advance(1000)
            assert write_all(log, after_ms=1000) == 1
    runs = log.catalog.runs(key, 0)
    assert [(run.base_offset, run.last_offset) for run in runs] == [(0, 15), (16, 23)]
    assert [row.segment for row in parquet_rows(log, key)] == [runs[0].object]


STEPS = [("objects", "put_if_absent"), ("catalog", "add_parquet")]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize(("part", "method"), STEPS)
def test_a_crash_at_any_step_leaves_only_what_is_swept(
    open_log: OpenLog, log: Any, part: str, method: str, nth: int, after: bool
) -> None:
    seam = getattr(log, part)
    original = getattr(seam, method)
    calls = iter(range(1, 1000))

    def dying(*args: Any) -> Any:
        if next(calls) != nth:
            return original(*args)
        if after:
            done = original(*args)
            if hasattr(done, "result"):
                done.result()
        raise Crash

    setattr(seam, method, dying)
    with pytest.raises(Crash):
        write_all(log)
    log = open_log()
    sweep(log)
    named = {row.object for key in keys_of(log) for row in parquet_rows(log, key)}
    assert parquet_keys(log) == named
    write_all(log)
    named = {row.object for key in keys_of(log) for row in parquet_rows(log, key)}
    assert parquet_keys(log) == named and len(named) == 4
    for key in keys_of(log):
        for run, row in zip(log.catalog.runs(key, 0), parquet_rows(log, key), strict=True):
            assert table(log, row.object).to_pylist() == expected(log, run).to_pylist()


def test_a_damaged_segment_gets_none_and_the_others_theirs(
    log: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = keys_of(log)
    damaged = log.catalog.runs(bad, 0)[1]
    path = log.root / "objects" / damaged.object
    data = bytearray(path.read_bytes())
    data[damaged.byte_offset + 70] ^= 1
    path.write_bytes(data)
    assert write_all(log) == 1
    assert [len(parquet_rows(log, key)) for key in (bad, good)] == [1, 2]
    assert "get no Parquet" in caplog.text and damaged.object in caplog.text
    assert len(parquet_keys(log)) == 3


def test_a_time_that_microseconds_cannot_hold_keeps_a_segment_without(
    log: Any, caplog: pytest.LogCaptureFixture
) -> None:
    [key] = log.create_topic("far", 1, **ASKING)
    log.append((key, encode_batch([(None, b"v", 2**62, [])])))
    pack(log)
    write_all(log)
    assert parquet_rows(log, key) == []
    assert "does not fit into microseconds" in caplog.text


def test_what_is_given_up_takes_its_parquet_along(log: Any) -> None:
    write_all(log)
    kept, trimmed = keys_of(log)
    second = log.catalog.runs(trimmed, 0)[1]
    log.catalog.trim({trimmed: second.base_offset}).result()
    sweep(log)
    assert len(parquet_keys(log)) == 3
    assert [row.segment for row in parquet_rows(log, trimmed)] == [second.object]
    log.catalog.delete_topic(kept[0]).result()
    sweep(log)
    sweep(log)
    assert parquet_keys(log) == set()


def test_a_segment_that_goes_while_it_is_written_leaves_no_object(log: Any) -> None:
    key = keys_of(log)[0]
    writer = ParquetWriter(log.core(), LogConfig(parquet_after_ms=0))
    run = writer.next_segment(log.topics[key[0]], 0)
    assert run is not None
    before = parquet_keys(log)
    log.catalog.trim({key: run.last_offset + 1}).result()
    assert not writer.write(run, log.topics[key[0]], lambda: True)
    assert parquet_keys(log) == before


def test_a_full_store_is_told_and_it_is_written_later(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise StoreFull("no space")

    with monkeypatch.context() as patched:
        patched.setattr(log.objects, "put_if_absent", full)
        with pytest.raises(StoreFull):
            write_all(log)
    assert write_all(log) == 2


def test_it_rests_as_long_as_it_works_and_stops_when_told(
    log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = keys_of(log)[0]
    writer = ParquetWriter(log.core(), LogConfig(parquet_after_ms=0))
    run = writer.next_segment(log.topics[key[0]], 0)
    assert run is not None
    rests: list[float] = []
    times = iter(range(1000))
    monkeypatch.setattr(log.clock, "monotonic_s", lambda: float(next(times)))
    monkeypatch.setattr(log.clock, "pause", rests.append)
    before = parquet_keys(log)
    assert not writer.write(run, log.topics[key[0]], lambda: False)
    assert (parquet_keys(log), rests) == (before, [])
    assert writer.write(run, log.topics[key[0]], lambda: True)
    assert rests and set(rests) == {1.0}


def test_a_broker_without_the_packages_says_so_once(
    log: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writer = ParquetWriter(log.core(), LogConfig(parquet_after_ms=0))
    assert writer.can_write()
    monkeypatch.setattr(keep, "find_spec", lambda name: None if name == "numba" else object())
    assert not writer.can_write() and not writer.can_write()
    assert caplog.text.count("numba not installed") == 1


def test_groups_of_rows_are_of_a_size_that_spark_can_split(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catchwater.log.format.parquet.ROW_GROUP_BYTES", 50_000)
    monkeypatch.setattr("catchwater.log.format.parquet._PIECE_BYTES", 20_000)
    log = open_log()
    [key] = log.create_topic("t", 1, **ASKING)
    for _ in range(40):
        log.append((key, encode_batch(RECORDS)))
    pack(log)
    write_all(log)
    [row] = parquet_rows(log, key)
    file = pq.ParquetFile(io.BytesIO(log.objects.get(row.object)))
    assert file.num_row_groups == 4
    assert file.read().column("offset").to_pylist() == list(range(160))


DDL = "id long, place struct<city string, `at` array<double>>, tags map<string, int>, day date"
DECLARED = ASKING | {
    "catchwater_history_value_format": "json",
    "catchwater_history_value_schema": DDL,
}
GOOD = (
    b'{"id": 7, "place": {"city": "Ulm", "at": [48.4, null]}, "tags": {"a": 1}, '
    b'"day": "2024-02-29"}'
)
ROW = {
    "id": 7,
    "place": {"city": "Ulm", "at": [48.4, None]},
    "tags": [("a", 1)],
    "day": datetime.date(2024, 2, 29),
}


def declaring(open_log: OpenLog, *values: bytes | None, **config: str) -> tuple[Any, PartitionKey]:
    log = open_log()
    [key] = log.create_topic("typed", 1, **config)
    log.append((key, encode_batch([(None, value, 5, []) for value in values])))
    pack(log)
    write_all(log)
    return log, key


def test_declared_values_are_columns_too(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catchwater.log.format.parquet._FIELDS_ROWS", 2)
    log, key = declaring(open_log, GOOD, None, b'{"id": 8}', GOOD, b"{}", **DECLARED)
    [row] = parquet_rows(log, key)
    found = table(log, row.object)
    empty = dict.fromkeys(ROW)
    assert found.column("fields").to_pylist() == [ROW, empty, empty | {"id": 8}, ROW, empty]
    assert found.column("value").to_pylist()[:2] == [GOOD, None]
    assert row.schema == identity(ValueSettings(ValueFormat.JSON, DDL))
    assert {each.parquet_schema for each in plan_of(log, key)} == {row.schema}
    group = pq.ParquetFile(io.BytesIO(log.objects.get(row.object))).metadata.row_group(0)
    columns = [group.column(index) for index in range(group.num_columns)]
    assert [c.path_in_schema for c in columns if c.has_dictionary_page] == [
        "topic",
        "partition",
        "timestampType",
        "fields.id",
        "fields.place.city",
        "fields.place.at.list.element",
        "fields.tags.key_value.key",
        "fields.tags.key_value.value",
        "fields.day",
    ]


def plan_of(log: Any, key: PartitionKey) -> list[Any]:
    return History(log.catalog, log.storage, 0).plan(key, 0, log.ends[key])


def test_one_value_that_is_not_as_declared_leaves_its_segment_without_columns(
    open_log: OpenLog, caplog: pytest.LogCaptureFixture
) -> None:
    log, key = declaring(open_log, GOOD, b'{"id": "seven"}', GOOD, **DECLARED)
    [row] = parquet_rows(log, key)
    assert row.schema == "" and row.records == 3
    assert "fields" not in table(log, row.object).column_names
    assert "offsets 0 to 2 of partition 0 of typed has no typed columns" in caplog.text


def test_avro_values_are_columns_too(open_log: OpenLog) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "card", "type": "string"}]}
    config = ASKING | {
        "catchwater_history_value_format": "avro",
        "catchwater_history_value_schema": json.dumps(schema),
    }
    log, key = declaring(open_log, b"\x06abc", b"\x00", **config)
    [row] = parquet_rows(log, key)
    fields = table(log, row.object).column("fields").to_pylist()
    assert fields == [{"card": "abc"}, {"card": ""}]


def test_what_decodes_may_be_missing(
    open_log: OpenLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "catchwater.values.typed", None)
    log, key = declaring(open_log, GOOD, **DECLARED)
    assert [row.schema for row in parquet_rows(log, key)] == [""]
    assert "has no typed columns" in caplog.text
