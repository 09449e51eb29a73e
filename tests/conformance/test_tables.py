"""A topic that is a table: every reader of it sees what a consumer is given, record for record.

PyIceberg reads it by its catalog, DuckDB by the files that its snapshot names. A broker that is
killed in between leaves neither gap nor double.
"""

import json
import random
import time
from contextlib import closing

import duckdb
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)
from pyiceberg.catalog import load_catalog
from tests.cluster import Brokers
from tests.conftest import until
from tests.iceberg_rest import TOKEN, rest_catalog
from tests.s3 import CREDENTIALS, moto
from typer.testing import CliRunner

from catchwater.cli import app
from catchwater.replay.control import Control

DEADLINE_S = 60.0
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
TABLE = {"catchwater.table.commit.interval.ms": "200"}
TYPED = {
    "catchwater.history.value.format": "json",
    "catchwater.history.value.schema": "id long, card string",
}
EAGER = {
    "catchwater.pack.interval.ms": "100",
    "catchwater.retention.interval.ms": "100",
    "catchwater.delete.grace.ms": "1",
}


@pytest.fixture(scope="module")
def broker(make_broker):
    return make_broker(EAGER)


def create(broker, name, partitions=1, **config):
    config = {**TABLE, "catchwater.table": f"lake.{name}", **config}
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, partitions, config=config)])[name].result(DEADLINE_S)


def alter(broker, name, **config):
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    entries = [
        ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
        for key, value in config.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
    [altered] = admin.incremental_alter_configs([resource]).values()
    altered.result(DEADLINE_S)


def load(broker, name):
    """The table, as a reader without a broker has it."""
    if properties := getattr(broker, "catalog", None):
        return load_catalog("reader", **properties).load_table(f"lake.{name}")
    data = broker.data_dir.absolute()
    uri, warehouse = f"sqlite:///{data}/tables.db", (data / "tables").as_uri()
    if shared := broker.settings.get("catchwater.catalog"):
        uri = shared.replace("postgresql://", "postgresql+psycopg://")
        warehouse = broker.settings["catchwater.objects"] + "/tables"
    catalog = load_catalog("catchwater", type="sql", uri=uri, warehouse=warehouse)
    with closing(catalog):
        return catalog.load_table(f"lake.{name}")


def status(broker, name):
    return Control(broker.control_url).request("GET", f"/api/v1/topics/{name}/table")


def until_written(broker, name):
    """Wait until the table has all that the topic has."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        found = status(broker, name)
        if found["is_there"] and not any(each["behind"] for each in found["partitions"]):
            return found
        assert time.monotonic() < deadline, (found, broker.log())
        time.sleep(0.05)


def consumed(broker, name):
    """What a consumer of committed records is given of all partitions, by place."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": "g",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(name, DEADLINE_S).topics[name].partitions
    consumer.assign([TopicPartition(name, each, 0) for each in partitions])
    rows, left = {}, set(partitions)
    while left:
        message = consumer.poll(DEADLINE_S)
        assert message is not None
        if message.error():
            assert message.error().code() == KafkaError._PARTITION_EOF
            left.discard(message.partition())
            continue
        headers = message.headers()
        rows[message.partition(), message.offset()] = (
            message.timestamp()[1], message.key(), message.value(),
            headers and [{"key": k, "value": v} for k, v in headers],
        )  # fmt: skip
    consumer.close()
    return dict(sorted(rows.items()))


def by_pyiceberg(broker, name):
    found = load(broker, name).scan().to_arrow().to_pylist()
    rows = {
        (row["partition"], row["offset"]): (
            round(row["timestamp"].timestamp() * 1000), row["key"], row["value"],
            row["headers"] or None,
        )
        for row in found
    }  # fmt: skip
    assert len(rows) == len(found), "nothing is there twice"
    return dict(sorted(rows.items()))


def by_duckdb(broker, name, what):
    files = [task.file.file_path for task in load(broker, name).scan().plan_files()]
    with duckdb.connect() as connection:
        paths = [file.removeprefix("file://") for file in files]
        return connection.execute(
            f"SELECT {what} FROM read_parquet(?, union_by_name = true) ORDER BY ALL", [paths]
        ).fetchall()


def test_every_reader_of_the_table_sees_what_a_consumer_is_given(broker):
    create(broker, "t", 2)
    for codec in CODECS:
        producer = Producer({"bootstrap.servers": broker.bootstrap, "compression.type": codec})
        for n in range(300):
            headers = [("codec", codec.encode()), ("none", None)] if n % 3 else None
            value = None if n % 7 == 0 else b"%s %d" % (codec.encode(), n)
            key = None if n % 5 == 0 else f"k{n}"
            producer.produce("t", value, key, headers=headers, partition=n % 2)
        assert producer.flush(DEADLINE_S) == 0
    for commit in (True, False, True):
        producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "t"})
        producer.init_transactions(DEADLINE_S)
        producer.begin_transaction()
        producer.produce("t", b"in a transaction", b"%d" % commit, partition=0)
        producer.flush(DEADLINE_S)
        if commit:
            producer.commit_transaction(DEADLINE_S)
        else:
            producer.abort_transaction(DEADLINE_S)
    until_written(broker, "t")
    expected = consumed(broker, "t")
    assert len(expected) == len(CODECS) * 300 + 2
    assert by_pyiceberg(broker, "t") == expected
    found = by_duckdb(broker, "t", '"partition", "offset", "key", "value"')
    assert found == [(*place, row[1], row[2]) for place, row in expected.items()]


def test_a_column_that_is_added_while_records_come_is_there_from_then_on(broker):
    create(broker, "typed", **TYPED)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(50):
        producer.produce("typed", b'{"id": %d, "card": "c", "note": "n"}' % n)
    producer.produce("typed", b"no json")
    assert producer.flush(DEADLINE_S) == 0
    until_written(broker, "typed")
    schema = TYPED["catchwater.history.value.schema"]
    alter(broker, "typed", **{"catchwater.history.value.schema": f"{schema}, note string"})
    for n in range(50, 60):
        producer.produce("typed", b'{"id": %d, "card": "c", "note": "n"}' % n)
    assert producer.flush(DEADLINE_S) == 0
    until_written(broker, "typed")
    rows = load(broker, "typed").scan().to_arrow().sort_by("offset").to_pylist()
    assert [row["id"] for row in rows] == [*range(50), None, *range(50, 60)]
    assert [row["note"] for row in rows] == [None] * 51 + ["n"] * 10
    assert rows[50]["_malformed"] == b"no json"
    found = by_duckdb(broker, "typed", "count(*), count(id), count(note), sum(id)")
    assert found == [(61, 60, 10, sum(range(60)))]
    metrics = Control(broker.control_url).metrics()
    assert 'catchwater_table_malformed_total{topic="typed"} 1.0' in metrics
    assert 'catchwater_table_records_total{topic="typed"} 61.0' in metrics


def test_a_table_is_shown_rewound_and_rebuilt_by_command(broker):
    create(broker, "back")
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(100):
        producer.produce("back", b"%d" % n)
    assert producer.flush(DEADLINE_S) == 0
    until_written(broker, "back")
    run = CliRunner().invoke
    at = ["--bootstrap", broker.bootstrap]
    shown = run(app, ["table", "status", "back", *at, "--json"])
    assert shown.exit_code == 0, shown.output
    found = json.loads(shown.stdout)
    assert (found["table"], found["rows"]) == ("lake.back", 100)
    assert found["partitions"] == [
        {"partition": 0, "next_offset": 100, "log_start": 0, "end": 100, "behind": 0}
    ]
    plan = run(app, ["table", "rewind", "back", "--to", '{"0": 60}', "--dry-run", *at])
    assert "would delete 40 rows" in plan.output and by_pyiceberg(broker, "back").keys() == {
        (0, n) for n in range(100)
    }
    snapshot = load(broker, "back").current_snapshot().snapshot_id
    for arguments in (["rewind", "back", "--to", '{"0": 60}'], ["rebuild", "back"]):
        done = run(app, ["table", *arguments, "--yes", *at])
        assert done.exit_code == 0, done.output
        until_written(broker, "back")
        assert by_pyiceberg(broker, "back") == consumed(broker, "back")
    assert load(broker, "back").current_snapshot().snapshot_id != snapshot
    ahead = run(app, ["table", "rewind", "back", "--to", '{"0": 101}', "--yes", *at])
    assert ahead.exit_code == 1 and "only rewound" in str(ahead.exception.hint)


def test_the_log_keeps_what_is_not_in_the_table_yet(broker):
    create(broker, "kept", **{"retention.bytes": "1"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    producer.produce("kept", b"first")
    assert producer.flush(DEADLINE_S) == 0
    until_written(broker, "kept")

    def pin():
        pins = Control(broker.control_url).pins()
        return next(each for each in pins if each["id"] == "table/kept")

    assert pin()["owner"] == "the table of kept"
    moved = [{"topic": "kept", "partition": 0, "offset": 1}]
    until(lambda: pin()["positions"] == moved, DEADLINE_S, broker.log)


def test_a_topic_that_is_no_table_any_more_is_kept_for_nobody(broker):
    create(broker, "left")
    control = Control(broker.control_url)
    deadline = time.monotonic() + DEADLINE_S
    while "table/left" not in {each["id"] for each in control.pins()}:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    alter(broker, "left", **{"catchwater.table": ""})
    while "table/left" in {each["id"] for each in control.pins()}:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"catchwater.table": "payments"}, "with its namespace"),
        ({"catchwater.table.partition.by": "week(timestamp)"}, "year, month, day"),
        ({"catchwater.table.commit.interval.ms": "1"}, "from 100 to"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(broker, config, why):
    with pytest.raises(KafkaException, match=why):
        create(broker, "never", **config)


def kill_again_and_again(make_broker, kills, records):
    broker = make_broker(EAGER)
    create(broker, "t", 2)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
    chance = random.Random(kills)
    for kill in range(kills):
        for n in range(records):
            producer.produce("t", b"%d %d" % (kill, n), partition=n % 2)
            producer.poll(0)
        time.sleep(chance.uniform(0, 0.6))
        broker.kill()
        broker.start()
    assert producer.flush(DEADLINE_S) == 0
    until_written(broker, "t")
    expected = consumed(broker, "t")
    assert len(expected) == kills * records
    assert by_pyiceberg(broker, "t") == expected


def test_a_broker_that_is_killed_leaves_neither_gap_nor_double(make_broker):
    kill_again_and_again(make_broker, 1, 200)


@pytest.mark.slow
def test_a_broker_that_is_killed_at_fifty_points_leaves_neither_gap_nor_double(make_broker):
    kill_again_and_again(make_broker, 50, 200)


@pytest.mark.slow
def test_brokers_over_one_database_keep_one_table_whoever_of_them_is_killed(tmp_path, postgres_url):
    brokers = Brokers(tmp_path, postgres_url, EAGER, ("a", "b"))
    try:
        brokers.start()
        one, two = brokers.all.values()
        create(one, "t", 4)
        producer = Producer({"bootstrap.servers": brokers.bootstrap, "enable.idempotence": True})
        for kill in range(8):
            for n in range(200):
                producer.produce("t", b"%d %d" % (kill, n), partition=n % 4)
                producer.poll(0)
            time.sleep(0.1 * kill)
            victim = (one, two)[kill % 2]
            victim.kill()
            victim.start()
        assert producer.flush(DEADLINE_S) == 0
        until_written(one, "t")
        expected = consumed(one, "t")
        assert len(expected) == 8 * 200
        assert by_pyiceberg(one, "t") == expected == by_pyiceberg(two, "t")
    finally:
        brokers.close()


# --- newest values -------------------------------------------------------------------------------


@pytest.mark.slow
def test_of_a_compacted_topic_the_table_has_the_newest_row_of_each_key(broker):
    create(broker, "newest", 2, **{"cleanup.policy": "compact", "catchwater.table.upsert": "true"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    model = {}
    for n in range(1_500):
        key, value = f"k{n % 97}", None if n % 11 == 0 else b"%d" % n
        producer.produce("newest", value, key, partition=n % 97 % 2)
        model.pop(key.encode(), None)
        model |= {} if value is None else {key.encode(): value}
        if n % 300 == 0:
            producer.flush(DEADLINE_S)
            until_written(broker, "newest")
    assert producer.flush(DEADLINE_S) == 0
    until_written(broker, "newest")
    table = load(broker, "newest")
    assert int(table.current_snapshot().summary["total-delete-files"]) > 0
    found = table.scan().to_arrow().to_pylist()
    assert len(found) == len(model)
    assert {row["key"]: row["value"] for row in found} == model


# --- other catalogs ------------------------------------------------------------------------------


def through_the_life_of_a_table(broker, name):
    """Make it, write it, add a column, rewind it, and read it by its catalog."""
    create(broker, name, 2, **TYPED)
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in range(100):
        producer.produce(name, b'{"id": %d, "card": "c", "note": "n"}' % n, partition=n % 2)
    assert producer.flush(DEADLINE_S) == 0
    until_written(broker, name)
    wider = f"{TYPED['catchwater.history.value.schema']}, note string"
    alter(broker, name, **{"catchwater.history.value.schema": wider})
    done = CliRunner().invoke(
        app,
        ["table", "rewind", name, "--to", '{"1": 20}', "--yes", "--bootstrap", broker.bootstrap],
    )
    assert done.exit_code == 0, done.output
    until_written(broker, name)
    rows = load(broker, name).scan().to_arrow().to_pylist()
    assert sorted(row["id"] for row in rows) == [*range(100)]
    assert {row["id"]: row["note"] for row in rows} == {
        n: "n" if n % 2 and n // 2 >= 20 else None for n in range(100)
    }


def with_catalog(make_broker, tmp_path, properties):
    named = {f"catchwater.tables.catalog.{key}": value for key, value in properties.items()}
    warehouse = (tmp_path / "lake").as_uri()
    broker = make_broker(EAGER | named | {"catchwater.tables.warehouse": warehouse})
    broker.catalog = {**properties, "warehouse": warehouse}
    return broker


@pytest.mark.slow
def test_a_table_lives_in_a_rest_catalog(make_broker, tmp_path):
    with rest_catalog(tmp_path) as rest:
        broker = with_catalog(make_broker, tmp_path, rest.properties)
        through_the_life_of_a_table(broker, "rested")


@pytest.mark.slow
def test_a_catalog_that_is_away_or_refuses_us_is_named_and_nothing_is_lost(make_broker, tmp_path):
    with rest_catalog(tmp_path) as rest:
        rest.is_away = True
        broker = with_catalog(make_broker, tmp_path, rest.properties)
        create(broker, "waiting")
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce("waiting", b"first")
        assert producer.flush(DEADLINE_S) == 0
        run, at = CliRunner().invoke, ["--bootstrap", broker.bootstrap]

        def until_said(why):
            def is_said():
                shown = run(app, ["table", "status", "waiting", *at])
                words = ("it waits", why)
                return shown.exit_code == 3 and all(each in shown.output for each in words)

            until(is_said, DEADLINE_S, broker.log)

        until_said("away")
        vars(rest).update(is_away=False, token="another")
        until_said("NotAuthorizedException")
        vars(rest).update(token=TOKEN)
        until_written(broker, "waiting")
        assert by_pyiceberg(broker, "waiting") == consumed(broker, "waiting")
        rest.is_away = True
        producer.produce("waiting", b"second")
        assert producer.flush(DEADLINE_S) == 0
        until_said("away")
        rest.is_away = False
        until_written(broker, "waiting")
        assert by_pyiceberg(broker, "waiting") == consumed(broker, "waiting")


@pytest.mark.slow
def test_a_table_lives_in_glue_by_configuration(make_broker, tmp_path, monkeypatch):
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    with moto() as endpoint:
        properties = {
            "type": "glue",
            "glue.endpoint": endpoint,
            "glue.region": "us-east-1",
            "glue.access-key-id": "catchwater-test",
            "glue.secret-access-key": "catchwater-test-secret",
        }
        broker = with_catalog(make_broker, tmp_path, properties)
        through_the_life_of_a_table(broker, "glued")
