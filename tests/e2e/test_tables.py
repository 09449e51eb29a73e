"""A topic by its name: from its table as far as that goes, the rest as records, to the offset.

Held against what the source gives, whole and in parts; where the table is not the topic's any more,
or could not be known to be, the source is what is read.
"""

import time
from contextlib import closing

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyiceberg.catalog import load_catalog
from pyspark.sql import functions as f

from catchwater import spark as frames
from catchwater.replay import history
from catchwater.replay.control import Control
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
}


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
    deadline = time.monotonic() + DEADLINE_S
    while (found := table_status(broker, topic)).get("rows", 0) < count:
        assert time.monotonic() < deadline, (found, broker.log())
        time.sleep(0.05)


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
