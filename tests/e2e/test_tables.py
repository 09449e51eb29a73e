"""A topic by its name: from its table as far as that goes, the rest as records, to the offset.

Held against what the source gives, whole and in parts; where the table is not the topic's any more,
or could not be known to be, the source is what is read.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import closing

import pytest
from benchmarks.kafka_jars import CACHE, jars
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog import load_catalog
from pyspark.sql import functions as f
from tests.conftest import until

from catchwater import spark as frames
from catchwater.replay import history
from catchwater.replay.control import Control
from catchwater.replay.offsets import HistoryLost
from catchwater.values.settings import MALFORMED

pytestmark = [pytest.mark.spark, pytest.mark.slow]

DEADLINE_S = 60.0
SCHEMA = "id long, card string"
SETTINGS = {
    "plain": {},
    "typed": {
        "catchwater.history.value.format": "json",
        "catchwater.history.value.schema": SCHEMA,
    },
    "parted": {"catchwater.table.partition.by": "day(timestamp),partition"},
    "newest": {
        "cleanup.policy": "compact",
        "catchwater.table.upsert": "true",
        "catchwater.table.partition.by": "bucket(4,key)",
    },
}
ICEBERG_SPARK, DUCKDB = "4.1.1", "1.5.5"
"""The Spark that Iceberg's runtime is for, and the DuckDB that has its extension as a package."""


@pytest.fixture(scope="module")
def broker(make_broker):
    """Three tables of 2,000 records each."""
    broker = make_broker({"catchwater.pack.interval.ms": "100"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for name, config in SETTINGS.items():
        table = {
            "catchwater.table": f"lake.{name}",
            "catchwater.table.commit.interval.ms": "100",
            "retention.ms": "-1",  # the records' times are long ago
        }
        admin.create_topics([NewTopic(name, 2, config=table | config)])[name].result(DEADLINE_S)
        produce(broker, name, 0, 2_000)
        until_written(broker, name, 2_000)
    return broker


def produce(broker, topic, first, stop):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(first, stop):
        value = b'{"id": %d, "card": "c%d"}' % (n, n % 7)
        producer.produce(topic, value, f"k{n}", partition=n % 2, timestamp=1_700_000_000_000 + n)
        producer.poll(0)
    assert producer.flush(DEADLINE_S) == 0


def table_status(broker, topic):
    return Control(broker.control_url).request("GET", f"/api/v1/topics/{topic}/table")


def until_written(broker, topic, count):
    until(lambda: table_status(broker, topic).get("rows", 0) >= count, DEADLINE_S, broker.log)


def by_name(spark, broker, topic, **options):
    """The frame of a topic by its name, and how many files of the table it reads."""
    given = {"kafka.bootstrap.servers": broker.bootstrap, **options}
    frame = frames.read(spark, topic, given)
    return frame, len([each for each in frame.inputFiles() if "/lake/" in each])


def by_source(spark, broker, topic, **options):
    frames.register(spark)
    given = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": topic, **options}
    return spark.read.format("catchwater").options(**given).load()


def asked_of(broker, topic):
    """What the broker says of the table's files."""
    ranges = [{"partition": partition, "start": 0, "end": 1} for partition in (0, 1)]
    path = f"/api/v1/topics/{topic}/table/files"
    return Control(broker.control_url).request("POST", path, {"ranges": ranges})


def rows(frame):
    return sorted(frame.collect(), key=lambda row: (row.partition, row.offset))


def assert_same(spark, broker, topic, *, native=True, **options):
    frame, files = by_name(spark, broker, topic, **options)
    wanted = by_source(spark, broker, topic, **options)
    assert frame.schema == wanted.schema
    assert rows(frame) == rows(wanted)
    assert bool(files) == native, (asked_of(broker, topic), broker.log())
    history.release(frame)


@pytest.mark.parametrize("topic", ["plain", "parted"])
@pytest.mark.parametrize(
    "options",
    [
        {"includeHeaders": "true"},
        {"kafka.isolation.level": "read_committed"},
        {"columns": "partition,offset,key"},
        {"startingOffsets": '{"TOPIC": {"0": 300, "1": 0}}'},
        {"endingOffsets": '{"TOPIC": {"0": 700, "1": 699}}'},
        {"startingTimestamp": "1700000000500"},
    ],
)
def test_a_topic_by_its_name_is_what_the_source_gives(spark, broker, topic, options):
    given = {key: value.replace("TOPIC", topic) for key, value in options.items()}
    assert_same(spark, broker, topic, **given)


def test_declared_values_are_read_as_they_are_asked_for(spark, broker):
    asked = {"valueFormat": "json", "valueSchema": SCHEMA}
    assert_same(spark, broker, "typed", **asked)
    assert_same(spark, broker, "typed", **asked, valueFields="card")
    assert_same(spark, broker, "typed", **asked, onMalformed="null")
    # Of another schema, or as bytes, the table knows nothing.
    other = {"valueFormat": "json", "valueSchema": "id long"}
    assert_same(spark, broker, "typed", native=False, **other)
    assert_same(spark, broker, "typed", native=False)


def test_a_filter_is_pushed_into_the_tables_files(spark, broker):
    frame, _ = by_name(spark, broker, "plain", columns="partition,offset,value")
    found = frame.where((f.col("partition") == 1) & (f.col("offset") == 500))
    plan = found._jdf.queryExecution().executedPlan().toString()
    assert "PushedFilters: [" in plan and "EqualTo(offset,500)" in plan
    [row] = found.collect()
    assert row.value == b'{"id": 1001, "card": "c0"}'


def test_the_tail_comes_through_the_source(spark, broker):
    hold(broker, "plain")
    produce(broker, "plain", 2_000, 2_100)
    assert table_status(broker, "plain")["rows"] == 2_000
    assert_same(spark, broker, "plain")
    frame, files = by_name(spark, broker, "plain")
    produce(broker, "plain", 2_100, 2_110)
    assert files and frame.count() == 2_100, "its end was fixed when it was made"


def hold(broker, topic):
    """Let the table wait from now on."""
    from tests.conformance.test_tables import alter

    alter(broker, topic, **{"catchwater.table.commit.interval.ms": "3600000"})
    time.sleep(1.5)  # a turn that is under way ends


def test_malformed_values_are_read_from_the_log_unless_nulls_are_wanted(spark, broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("typed", b"no json", partition=0)
    assert producer.flush(DEADLINE_S) == 0
    until_written(broker, "typed", 2_001)
    asked = {"valueFormat": "json", "valueSchema": SCHEMA}
    assert_same(spark, broker, "typed", **asked, onMalformed="null")
    frame, files = by_name(spark, broker, "typed", **asked, onMalformed="null")
    assert files and frame.where(f.col(MALFORMED).isNotNull()).count() == 1
    frame, files = by_name(spark, broker, "typed", **asked)
    assert not files
    with pytest.raises(Exception, match="offset 1000 is not json of valueSchema"):
        frame.collect()


def test_a_table_that_somebody_has_deleted_from_is_not_taken_for_the_topic(spark, broker):
    data = broker.data_dir.absolute()
    catalog = load_catalog(
        "catchwater", type="sql", uri=f"sqlite:///{data}/tables.db",
        warehouse=(data / "tables").as_uri(),
    )  # fmt: skip
    with closing(catalog):
        catalog.load_table("lake.parted").delete("offset = 5")
    assert_same(spark, broker, "parted", native=False)


def create(broker, topic, **settings):
    """A topic and its table with 2,000 records."""
    config = {
        "catchwater.table": f"lake.{topic}",
        "catchwater.table.commit.interval.ms": "100",
        "retention.ms": "-1",
    }
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    made = NewTopic(topic, 2, config=config | settings)
    admin.create_topics([made])[topic].result(DEADLINE_S)
    produce(broker, topic, 0, 2_000)
    until_written(broker, topic, 2_000)


def delete(broker, topic, before):
    """Let the log delete what lies before an offset of each partition."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    places = [TopicPartition(topic, partition, before) for partition in (0, 1)]
    for deleted in admin.delete_records(places).values():
        deleted.result(DEADLINE_S)


def test_what_the_log_has_no_more_is_read_from_the_table(spark, broker):
    create(broker, "kept")
    hold(broker, "kept")
    produce(broker, "kept", 2_000, 2_100)
    unpinned = {"catchwater.pin.lease": "0"}
    whole = rows(by_source(spark, broker, "kept", **unpinned))
    assert len(whole) == 2_100
    delete(broker, "kept", 600)

    def held():
        """How many partitions a query holds from where the log begins; others are of the tail."""
        pins = Control(broker.control_url).pins()
        places = [
            each for pin in pins if pin["id"].startswith("read/") for each in pin["positions"]
        ]
        return [each["offset"] for each in places if each["topic"] == "kept"].count(600)

    def found(**options):
        frame, files = by_name(spark, broker, "kept", **options)
        assert files and held() == 2
        content = rows(frame)
        history.release(frame)
        return content

    assert found(startingOffsets="table") == whole
    start, end = {"kept": {"0": 100, "1": 599}}, {"kept": {"0": 300, "1": 1_020}}
    assert found(startingOffsets=json.dumps(start)) == [
        row for row in whole if row.offset >= start["kept"][str(row.partition)]
    ]
    assert found(startingOffsets=json.dumps(start), endingOffsets=json.dumps(end)) == [
        row
        for row in whole
        if start["kept"][str(row.partition)] <= row.offset < end["kept"][str(row.partition)]
    ]
    assert len(found()) == 2_100 - 2 * 600, "it begins as the source does"

    # As Arrow, too; and its bytes decoded, which Spark's reader does not.
    given = {"startingOffsets": json.dumps(start)}
    wanted = [row for row in whole if row.offset >= start["kept"][str(row.partition)]]
    assert rows(by_source(spark, broker, "kept", **given, **unpinned)) == wanted
    assert rows(by_source(spark, broker, "kept", startingOffsets="table")) == whole
    asked = {"subscribe": "kept", "startingOffsets": "table", "maxOffsetsPerTrigger": "500"}
    asked["kafka.bootstrap.servers"] = broker.bootstrap
    stream = spark.readStream.format("catchwater").options(**asked).load()
    query = stream.writeStream.format("memory").queryName("streamed").trigger(availableNow=True)
    query.start().awaitTermination()
    assert rows(spark.table("streamed")) == whole
    typed = {"valueFormat": "json", "valueSchema": SCHEMA}
    frame, files = by_name(spark, broker, "kept", **given, **typed)
    assert not files
    ids = [json.loads(row.value)["id"] for row in wanted]
    assert [row.id for row in rows(frame)] == ids


def test_what_a_table_of_fields_does_not_tell_is_named(spark, broker):
    create(broker, "fields", **SETTINGS["typed"])
    delete(broker, "fields", 600)
    given = {"startingOffsets": '{"fields": {"0": 100, "1": 599}}'}
    lost = "fields-0 offsets 100 to 599; fields-1 offsets 599 to 599"
    with pytest.raises(Exception, match=f"has only as fields: {lost}"):
        by_source(spark, broker, "fields", **given).collect()
    other = {"valueFormat": "json", "valueSchema": "id long"}
    with pytest.raises(HistoryLost, match=f"Neither the log nor, .*: {lost}"):
        by_name(spark, broker, "fields", **given, **other)
    less, _ = by_name(
        spark, broker, "fields", **given, **other, onMalformed="null", failOnDataLoss="false"
    )
    assert less.where(f.col("offset") < 600).count() == 0
    asked = {"valueFormat": "json", "valueSchema": SCHEMA, "onMalformed": "null"}
    frame, files = by_name(spark, broker, "fields", **given, **asked)
    assert files and frame.where(f.col("offset") < 600).count() == 501


# --- other engines, each in an environment of its own ---------------------------------------------


def python_with(name, *packages):
    """An interpreter with these packages, made once."""
    folder = CACHE / name
    python = folder / "bin" / "python"
    if not (folder / "ready").exists():
        uv = os.path.join(os.path.dirname(sys.executable), "uv")
        made = [uv, "venv", "-q", "--clear", "--python", sys.executable, folder]
        subprocess.run(made, check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True)
        (folder / "ready").touch()
    return python


def told(python, script, *arguments):
    """The rows that a script prints as one line of JSON."""
    command = [python, "-c", script, *map(str, arguments)]
    env = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "PYSPARK_PYTHON": str(python)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


COLUMNS = {
    "plain": ("partition", "offset", "key", "value"),
    "typed": ("partition", "offset", "key", "id", "card", "note"),
    "parted": ("partition", "offset", "key", "value"),
    "newest": ("partition", "offset", "key", "value"),
}

BY_SPARK = """
import json, sys
from pyspark.sql import SparkSession
jars, data, columns = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
catalog = "spark.sql.catalog.catchwater"
spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
    .config(f"{catalog}.type", "jdbc")
    .config(f"{catalog}.uri", f"jdbc:sqlite:{data}/tables.db")
    .config(f"{catalog}.warehouse", f"file://{data}/tables")
    .getOrCreate()
)
def plain(cell):
    return bytes(cell).decode() if isinstance(cell, (bytes, bytearray)) else cell
found = {
    name: [
        [plain(cell) for cell in row]
        for row in spark.table(f"catchwater.lake.{name}").select(*wanted)
        .orderBy("partition", "offset").collect()
    ]
    for name, wanted in columns.items()
}
print(json.dumps(found))
"""

BY_DUCKDB = """
import importlib.util, json, sys
import duckdb
files, columns = json.loads(sys.argv[1]), json.loads(sys.argv[2])
connection = duckdb.connect()
for name in ("avro", "iceberg"):
    [folder] = importlib.util.find_spec(f"duckdb_extension_{name}").submodule_search_locations
    connection.execute(f"LOAD '{folder}/extensions/v{duckdb.__version__}/{name}.duckdb_extension'")
def plain(cell):
    return bytes(cell).decode() if isinstance(cell, (bytes, bytearray)) else cell
found = {}
for name, wanted in columns.items():
    names = ", ".join(f'"{each}"' for each in wanted)
    rows = connection.execute(
        f'SELECT {names} FROM iceberg_scan(?) ORDER BY "partition", "offset"', [files[name]]
    ).fetchall()
    found[name] = [[plain(cell) for cell in row] for row in rows]
print(json.dumps(found))
"""


def by_pyiceberg(broker):
    """The same rows by pyiceberg, and where each table's metadata are."""

    def plain(cell):
        return cell.decode() if isinstance(cell, bytes) else cell

    data = broker.data_dir.absolute()
    catalog = load_catalog("catchwater", type="sql", uri=f"sqlite:///{data}/tables.db")
    found, files = {}, {}
    with closing(catalog):
        for name, wanted in COLUMNS.items():
            table = catalog.load_table(f"lake.{name}")
            files[name] = table.metadata_location
            rows = table.scan(selected_fields=wanted).to_arrow().select(wanted).to_pylist()
            rows = sorted(rows, key=lambda row: (row["partition"], row["offset"]))
            found[name] = [[plain(cell) for cell in row.values()] for row in rows]
    return found, files


@pytest.fixture(scope="module")
def changed(make_broker):
    """Tables with a column that was added, rows that gave way, and files that were made one."""
    from tests.conformance.test_tables import alter

    broker = make_broker({"catchwater.pack.interval.ms": "100"})
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for name, config in SETTINGS.items():
        table = {
            "catchwater.table": f"lake.{name}",
            "catchwater.table.commit.interval.ms": "100",
            "retention.ms": "-1",
        }
        admin.create_topics([NewTopic(name, 2, config=table | config)])[name].result(DEADLINE_S)
    for part in range(16):
        if part == 8:
            schema = f"{SCHEMA}, note string"
            alter(broker, "typed", **{"catchwater.history.value.schema": schema})
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        for n in range(part * 100, part * 100 + 100):
            value = b'{"id": %d, "card": "c%d", "note": "n"}' % (n, n % 7)
            for name in SETTINGS:
                key = f"k{n % 50}" if name == "newest" else f"k{n}"
                gone = name == "newest" and n % 13 == 0
                producer.produce(
                    name, None if gone else value, key, partition=n % 2,
                    timestamp=1_700_000_000_000 + n,
                )  # fmt: skip
        assert producer.flush(DEADLINE_S) == 0
        for name in SETTINGS:
            until_settled(broker, name)
    return broker


def until_settled(broker, topic):
    def has_all():
        found = table_status(broker, topic)
        return found["is_there"] and not any(each["behind"] for each in found["partitions"])

    until(has_all, DEADLINE_S, broker.log)


def test_every_engine_reads_the_rows_of_the_topic(changed):
    expected, files = by_pyiceberg(changed)
    places = [[n % 2, n // 2, f"k{n}"] for n in range(1_600)]
    for name in ("plain", "parted", "typed"):
        assert sorted(places) == [row[:3] for row in expected[name]]
    assert [row[5] for row in expected["typed"]].count("n") == 800
    model = {f"k{n % 50}": n for n in range(1_600) if n % 13}
    gone = {f"k{n % 50}" for n in range(1_550, 1_600) if n % 13 == 0}
    assert {row[2] for row in expected["newest"]} == model.keys() - gone
    python = python_with(
        f"duckdb-{DUCKDB}", f"duckdb=={DUCKDB}", *(
            f"duckdb-extension-{name}=={DUCKDB}" for name in ("avro", "iceberg")
        ),
    )  # fmt: skip
    columns = json.dumps(COLUMNS)
    assert told(python, BY_DUCKDB, json.dumps(files), columns) == expected
    found = ",".join(map(str, sorted(jars("iceberg").glob("*.jar"))))  # raises without Maven
    python = python_with(
        f"pyspark-iceberg-{ICEBERG_SPARK}", f"pyspark=={ICEBERG_SPARK}", "pandas<3", "pyarrow"
    )
    data = changed.data_dir.absolute()
    assert told(python, BY_SPARK, found, data, columns) == expected
