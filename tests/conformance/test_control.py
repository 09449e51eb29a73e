"""The control API against a real broker: topics, plans, pins, and where things are."""

import json
import time
import urllib.error
import urllib.request

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from catchwater.clock import SYSTEM
from catchwater.replay import pin as pin_module
from catchwater.replay.control import Control
from catchwater.replay.offsets import HistoryLost
from catchwater.replay.options import parse_options
from catchwater.replay.plan import OffsetRange
from catchwater.replay.read import ReadSettings, read_task
from catchwater.replay.source import BatchReader, StreamReader
from catchwater.replay.subscription import Subscription
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import EARLIEST, Client

PATIENCE_S = 60.0
"""What a busy machine may take for anything that comes to an end."""


def call(broker, method, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(broker.control_url + path, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


@pytest.fixture(scope="module")
def written(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for index in range(1000):
        producer.produce("t", b"%d" % index)
    assert producer.flush(PATIENCE_S) == 0
    return broker


def test_it_is_up_and_ready(broker):
    assert call(broker, "GET", "/healthz") == (200, {"status": "up"})
    assert call(broker, "GET", "/readyz") == (200, {"status": "ready"})


def test_topics_are_listed_and_described(written):
    status, listed = call(written, "GET", "/api/v1/topics")
    assert status == 200
    assert [t["name"] for t in listed["topics"]] == ["t"]
    status, topic = call(written, "GET", "/api/v1/topics/t")
    (partition,) = topic["offsets"]
    assert (partition["log_start"], partition["high_watermark"]) == (0, 1000)
    assert partition["bytes"] > 0


def test_a_plan_covers_exactly_what_was_asked(written):
    wanted = [{"partition": 0, "start": 10, "end": 990}]
    status, plan = call(written, "POST", "/api/v1/plans", {"topic": "t", "ranges": wanted})
    assert status == 200
    assert plan["high_watermark"] == {"0": 1000}
    assert plan["ranges"][0]["base_offset"] <= 10
    assert plan["ranges"][-1]["last_offset"] >= 989
    for piece in plan["ranges"]:
        assert piece["url"].startswith("file:///")
        assert piece["kind"] in ("segment", "chunk")
        assert piece["byte_size"] > 0


def test_a_plan_of_what_is_not_there_names_the_missing_range(written):
    wanted = [{"partition": 0, "start": 0, "end": 5000}]
    status, error = call(written, "POST", "/api/v1/plans", {"topic": "t", "ranges": wanted})
    assert (status, error["error"]) == (416, "OFFSET_OUT_OF_RANGE")
    assert error["missing"] == [{"partition": 0, "start": 1000, "end": 5000}]


def test_a_pin_lives_until_it_is_released(written):
    body = {"owner": "me", "positions": [{"topic": "t", "partition": 0, "offset": 5}]}
    status, pin = call(written, "PUT", "/api/v1/pins/p1", body)
    assert status == 200
    assert call(written, "GET", "/api/v1/pins") == (200, {"pins": [pin]})
    assert pin["positions"] == body["positions"]
    assert call(written, "DELETE", "/api/v1/pins/p1")[0] == 200
    assert call(written, "GET", "/api/v1/pins") == (200, {"pins": []})


def test_a_lease_is_measured_by_the_broker_and_renewed(written):
    body = {"owner": "me", "positions": [{"topic": "t", "partition": 0, "offset": 5}]}
    status, pin = call(written, "PUT", "/api/v1/pins/p2", body | {"lease_ms": 60_000})
    assert (status, pin["lease_until_ms"]) == (200, pin["created_ms"] + 60_000)
    status, renewed = call(written, "PATCH", "/api/v1/pins/p2", {"lease_ms": 120_000})
    assert status == 200
    assert renewed["lease_until_ms"] >= pin["lease_until_ms"] + 60_000
    assert renewed == pin | {"lease_until_ms": renewed["lease_until_ms"]}
    assert call(written, "PATCH", "/api/v1/pins/none", {"lease_ms": 1})[0] == 404
    assert call(written, "PATCH", "/api/v1/pins/p2", {"lease_ms": 0})[0] == 400
    assert call(written, "DELETE", "/api/v1/pins/p2")[0] == 200


def brief_broker(make_broker):
    """Retention of a millisecond, and three segments of a hundred records that a pin holds."""
    broker = make_broker({
        "log.retention.ms": "1",
        "catchwater.pack.interval.ms": "50",
        "catchwater.pack.min.bytes": "1",
        "catchwater.pack.backlog.bytes": "1",
        "catchwater.segment.bytes": "1048576",
        "catchwater.retention.interval.ms": "50",
        "catchwater.delete.grace.ms": "1",
    })  # fmt: skip
    with Client(broker.bootstrap) as client:
        client.create_topics({"brief": 1})
        guard = {"owner": "me", "positions": [{"topic": "brief", "partition": 0, "offset": 0}]}
        assert call(broker, "PUT", "/api/v1/pins/guard", guard)[0] == 200
        for _ in range(3):
            # So large that each batch becomes a segment.
            value, now_ms = b"x" * 8000, SYSTEM.now_ms()
            records = [(None, value, now_ms, [])] * 100
            client.produce([(("brief", 0), encode_batch(records))])
    return broker


@pytest.fixture
def renewing(monkeypatch):
    """Pins are renewed every third of a second, for a lease that no machine sleeps through."""
    for part in ("_FIRST", "_EACH"):
        monkeypatch.setattr(pin_module, part, 0.01)


LEASE = "30s"


def leases(broker):
    """When each pin that is there ends."""
    _, found = call(broker, "GET", "/api/v1/pins")
    return {pin["id"]: pin["lease_until_ms"] for pin in found["pins"]}


def end_leases(broker):
    """As if a lease had passed since the last renewal."""
    for pin in leases(broker):
        Control(broker.control_url).renew_pin(pin, 1)


def test_what_a_batch_query_reads_stays_until_its_pin_has_ended(make_broker, renewing):
    """A task takes its time behind a first batch."""
    broker = brief_broker(make_broker)
    reader = BatchReader(
        parse_options({
            "kafka.bootstrap.servers": broker.bootstrap,
            "subscribe": "brief",
            "startingOffsets": '{"brief": {"0": 100}}',
            "catchwater.pin.lease": LEASE,
            "maxRecordsPerPartition": "50",
        })
    )  # fmt: skip
    until(lambda: kinds(broker, "brief", 300) == ["segment"] * 3)
    first, *others = reader.partitions()
    reading = reader.read(first)
    found = [next(reading)]
    assert call(broker, "DELETE", "/api/v1/pins/guard")[0] == 200
    until(lambda: log_start(broker, "brief") == 100)
    for _ in range(3):  # it is renewed again and again
        [(pin, until_ms)] = leases(broker).items()
        until(lambda pin=pin, until_ms=until_ms: leases(broker)[pin] > until_ms)
        assert log_start(broker, "brief") == 100
    found += [batch for each in others for batch in reader.read(each)]
    found += list(reading)
    offsets = sorted(row["offset"] for batch in found for row in batch.to_pylist())
    assert offsets == list(range(100, 300))
    end_leases(broker)
    until(lambda: log_start(broker, "brief") == 300)
    until(lambda: call(broker, "GET", "/api/v1/pins") == (200, {"pins": []}))


def test_a_stream_that_lags_is_not_overtaken_while_it_has_a_pin(make_broker, renewing):
    broker = brief_broker(make_broker)
    least = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "brief"}
    stream = StreamReader(parse_options({**least, "catchwater.pin.lease": LEASE}))
    bare = StreamReader(parse_options(least))

    def at(offset):
        return {"brief": {"0": offset}}

    def read(start, end):
        """One micro-batch, as Spark plans and reads it."""
        batches = [batch for p in stream.partitions(at(start), at(end)) for batch in stream.read(p)]
        return [row["offset"] for batch in batches for row in batch.to_pylist()]

    until(lambda: kinds(broker, "brief", 300) == ["segment"] * 3)
    assert read(100, 150) == list(range(100, 150))
    assert call(broker, "DELETE", "/api/v1/pins/guard")[0] == 200
    until(lambda: log_start(broker, "brief") == 100)

    def is_renewed(pin, until_ms):
        assert stream.latestOffset(at(150), ReadAllAvailable()) == at(300)
        assert log_start(broker, "brief") == 100
        return leases(broker)[pin] > until_ms

    for _ in range(3):  # by the triggers alone
        [(pin, until_ms)] = leases(broker).items()
        until(lambda pin=pin, until_ms=until_ms: is_renewed(pin, until_ms))
    assert read(150, 210) == list(range(150, 210))
    # Planned again and again, for the pin is not set anew each time that it could move on.
    until(lambda: read(210, 300)[0] == 210 and log_start(broker, "brief") == 200)
    stream.stop()
    end_leases(broker)
    until(lambda: log_start(broker, "brief") == 300)
    with pytest.raises(HistoryLost, match="brief-0 offsets 210 to 299"):
        bare.partitions(at(210), at(300))
    bare.stop()


def kinds(broker, topic, end):
    return [
        each.kind
        for each in Control(broker.control_url).plan([OffsetRange(topic, 0, 0, end)]).ranges
    ]


def log_start(broker, topic):
    _, described = call(broker, "GET", f"/api/v1/topics/{topic}")
    return described["offsets"][0]["log_start"]


def until(reached):
    deadline = time.monotonic() + PATIENCE_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_the_object_store_is_named(written):
    status, storage = call(written, "GET", "/api/v1/storage")
    assert status == 200
    assert storage["objects"].startswith("file:///")


def test_a_broker_alone_is_its_whole_cluster(broker):
    status, cluster = call(broker, "GET", "/api/v1/cluster")
    assert (status, cluster["broker"], cluster["session"]) == (200, 1, None)
    (row,) = cluster["brokers"]
    assert (row["id"], row["state"]) == (1, "live")
    assert (row["kafka"], row["control"]) == (broker.bootstrap, broker.control_url)


def test_metrics_are_prometheus_text(written):
    consumer = Consumer({"bootstrap.servers": written.bootstrap, "group.id": "g"})
    consumer.commit(offsets=[TopicPartition("t", 0, 400)], asynchronous=False)
    consumer.close()
    with urllib.request.urlopen(written.control_url + "/metrics", timeout=PATIENCE_S) as reply:
        page = reply.read().decode()
    assert 'catchwater_request_seconds_count{api="Produce"}' in page
    assert "catchwater_loop_lag_seconds_count" in page
    assert "catchwater_wal_fsync_seconds_count" in page
    assert "catchwater_brokers 1.0" in page
    assert 'catchwater_consumer_lag_records{group="g",partition="0",topic="t"} 600.0' in page
    assert "catchwater_wal_unflushed_bytes 0.0" in page


def test_committed_records_are_read_from_storage_as_from_the_leader(broker):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "planned"})
    producer.init_transactions(PATIENCE_S)
    for round_ in range(6):
        producer.begin_transaction()
        for index in range(50):
            producer.produce("committed", b"%d/%d" % (round_, index))
        producer.flush(PATIENCE_S)
        if round_ == 5:
            break  # stays open
        end = producer.abort_transaction if round_ % 2 else producer.commit_transaction
        end(PATIENCE_S)
    options = {
        "kafka.bootstrap.servers": broker.bootstrap,
        "subscribe": "committed",
        "kafka.isolation.level": "read_committed",
    }
    found = {path: spark_reads(options | {"catchwater.read": path}) for path in ("direct", "kafka")}
    assert found["direct"] == found["kafka"]
    expected = [b"%d/%d" % (round_, index) for round_ in (0, 2, 4) for index in range(50)]
    assert [value for _, value in found["direct"]] == expected
    producer.abort_transaction(PATIENCE_S)
    assert spark_reads(options | {"catchwater.read": "direct"}) == found["direct"]
    everything = spark_reads(options | {"kafka.isolation.level": "read_uncommitted"})
    assert len(everything) == 300


def spark_reads(given):
    """Offsets and values that Spark's tasks would read, without Spark."""
    options = parse_options(given)
    subscription = Subscription(options)
    start, end = subscription.starting(EARLIEST), subscription.ending()
    tasks, control_url = subscription.tasks(start, end, 3), subscription.control_url()
    subscription.close()
    settings = ReadSettings(
        options.bootstrap, ("offset", "value"), control_url, options.read_committed
    )
    batches = [batch for task in tasks for batch in read_task(task, settings)]
    return [(row["offset"], row["value"]) for batch in batches for row in batch.to_pylist()]
