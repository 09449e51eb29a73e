"""An export on real Spark: the rows that Spark would have written, whatever befell its tasks."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from confluent_kafka import Producer
from py4j.protocol import Py4JJavaError
from pyspark import TaskContext
from pyspark.sql.datasource import InputPartition

from catchwater.clock import SYSTEM
from catchwater.replay.export import run
from catchwater.replay.export.place import SUCCESS, ExportRefused
from catchwater.replay.export.run import export
from catchwater.replay.export.source import ExportPartition, ExportReader, ExportSource, split
from catchwater.replay.options import BadOption
from catchwater.replay.plan import OffsetRange
from catchwater.replay.source import loaded, register
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

pytestmark = pytest.mark.spark

COUNT = 1_500
"""Records of each of the two partitions before the transactions, in batches of every codec."""
DEADLINE_S = 120.0
DDL = "card string, amount decimal(12, 2), at timestamp, tags array<string>, m map<string, int>"


@pytest.fixture(scope="module")
def log(broker: Any) -> Any:
    """Topics `plain`, which ends with an aborted and a committed transaction, and `typed`."""
    now_ms = SYSTEM.now_ms()
    values = [
        {"card": f"c{n}", "amount": n / 4, "at": "2024-01-02T03:04:05.000006Z",
         "tags": [str(n), None], "m": {"x": n}} if n % 5 else {}
        for n in range(300)
    ]  # fmt: skip
    typed = [(None, msgspec.json.encode(each), now_ms, ()) for each in values]
    with Client(broker.bootstrap) as client:
        client.create_topics({"plain": 2, "typed": 1, "empty": 2})
        client.produce([(("typed", 0), encode_batch([*typed, (b"k", None, now_ms, ())]))])
        client.produce([(("plain", p), each) for p in (0, 1) for each in batches(p, now_ms)])
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
    producer.init_transactions(DEADLINE_S)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for n in range(50):
            producer.produce("plain", f"{end.__name__} {n}", partition=0)
        producer.flush(DEADLINE_S)
        end(DEADLINE_S)
    return broker


def batches(partition: int, now_ms: int) -> Iterator[bytes]:
    """Records with and without key, value and headers."""
    for start in range(0, COUNT, 100):
        records = [
            (
                b"k%d" % n if n % 5 else None,
                b"%d:%d" % (partition, n) if n % 7 else None,
                now_ms + n,
                [("n", b"%d" % n), ("none", None)] if n % 3 else [],
            )
            for n in range(start, start + 100)
        ]
        yield encode_batch(records, codec=start // 100 % 5)


@pytest.fixture
def options(log: Any) -> Callable[..., dict[str, str]]:
    """`options(option=value)`: those of the source, for both of its ways to read."""

    def named(**given: str) -> dict[str, str]:
        least = {"kafka.bootstrap.servers": log.bootstrap, "subscribe": "plain"}
        return least | {name.replace("__", "."): value for name, value in given.items()}

    return named


def rows(frame: Any) -> list[Any]:
    return sorted(frame.collect(), key=lambda row: (row.partition, row.offset))


@pytest.mark.parametrize(
    "given",
    [
        {"includeHeaders": "true", "minPartitions": "4"},
        {"kafka__isolation__level": "read_committed", "catchwater__read": "kafka"},
        {
            "startingOffsets": json.dumps({"plain": {"0": 700, "1": 3}}),
            "endingOffsets": json.dumps({"plain": {"0": -1, "1": COUNT - 50}}),
            "columns": "offset,value,partition",
        },
        {"subscribe": "typed", "valueFormat": "json", "valueSchema": DDL, "onMalformed": "null"},
        {"subscribe": "empty"},
    ],
    ids=["headers", "committed from leaders", "bounded", "typed", "empty"],
)
def test_the_files_hold_what_spark_would_have_written(
    spark: Any, options: Callable[..., dict[str, str]], tmp_path: Path, given: dict[str, str]
) -> None:
    register(spark)
    frame = spark.read.format("catchwater").options(**options(**given)).load()
    frame.write.parquet(str(tmp_path / "by spark"))
    found = export(spark, options(**given), str(tmp_path / "by us"))
    ours, theirs = (spark.read.parquet(str(tmp_path / each)) for each in ("by us", "by spark"))
    assert ours.schema == theirs.schema
    assert rows(ours) == rows(theirs)
    assert found.records == theirs.count()
    told = {each.name: each.size_bytes for each in found.files}
    there = {each.name: each.stat().st_size for each in (tmp_path / "by us").iterdir()}
    manifest = json.loads((tmp_path / "by us" / SUCCESS).read_text())
    assert there.pop(SUCCESS) and there == told
    assert manifest["files"] == [msgspec.to_builtins(each) for each in found.files]


def test_it_says_which_offsets_it_holds(
    spark: Any, options: Callable[..., dict[str, str]], tmp_path: Path
) -> None:
    given = options(
        startingOffsets=json.dumps({"plain": {"0": 700, "1": 3}}),
        endingOffsets=json.dumps({"plain": {"0": COUNT, "1": 1000}}),
        minPartitions="5",
    )
    found = export(spark, given, (tmp_path / "out").as_uri(), compression="zstd")
    assert found.ranges == (OffsetRange("plain", 0, 700, COUNT), OffsetRange("plain", 1, 3, 1000))
    assert found.records == COUNT - 700 + 997


class Dying(ExportReader):
    """Of one task the first attempt's process is killed in the middle of its file."""

    always = False

    def read(self, partition: InputPartition) -> Iterator[Any]:
        from catchwater.replay.export import file

        task, whole = TaskContext.get(), file.write
        assert task is not None and isinstance(partition, ExportPartition)

        def half(
            path: Path, schema: pa.Schema, batches: Iterator[pa.RecordBatch], compression: str
        ) -> int:
            whole(path, schema, islice(batches, 1), compression)
            assert path.stat().st_size and path.parent.is_dir()
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("nobody survives that")

        if partition.index == 1 and (self.always or task.attemptNumber() == 0):
            file.write = half
        yield from super().read(partition)


class Doomed(Dying):
    """And so is every other attempt's."""

    always = True


def source_of(reader_type: type[ExportReader]) -> type[ExportSource]:
    class Source(ExportSource):
        def reader(self, schema: object) -> ExportReader:
            given, settings = split(self.options)
            return reader_type(loaded(given), settings)

    return Source


def test_a_killed_task_is_repeated_and_leaves_nothing(
    spark: Any,
    options: Callable[..., dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run, "ExportSource", source_of(Dying))
    found = export(spark, options(minPartitions="4"), str(tmp_path / "out"))
    assert 2 <= len(found.files) <= 4
    register(spark)
    expected = spark.read.format("catchwater").options(**options()).load()
    assert rows(spark.read.parquet(str(tmp_path / "out"))) == rows(expected)
    names = {each.name for each in (tmp_path / "out").iterdir()}
    assert names == {SUCCESS, *(each.name for each in found.files)}
    assert [each.name for each in tmp_path.iterdir()] == ["out"]


def test_a_job_that_fails_leaves_nothing(
    spark: Any,
    options: Callable[..., dict[str, str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BadOption, match="startingoffset"):
        export(spark, options(startingOffset="earliest"), str(tmp_path / "out"))
    with pytest.raises(ExportRefused, match="brotli"):
        export(spark, options(), str(tmp_path / "out"), compression="brotli")
    monkeypatch.setattr(run, "ExportSource", source_of(Doomed))
    with pytest.raises(Py4JJavaError, match="crashed"):
        export(spark, options(minPartitions="4"), str(tmp_path / "out"))
    assert list(tmp_path.iterdir()) == []
