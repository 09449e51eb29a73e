"""Waiting for records at a real broker: what it is asked meanwhile, and what ends the wait."""

import re
import threading
import time
import urllib.request

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from catchwater.clock import SYSTEM
from catchwater.replay.options import parse_options
from catchwater.replay.source import StreamReader
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import LATEST, Client
from catchwater.wire.connection import Connection, Connections, Watch

FOR_EVER_S = 600.0
"""No test takes so long: what waits so was not woken."""
KEY = ("t", 0)


@pytest.fixture(scope="module")
def started(make_broker):
    """A broker that knows nothing of others, and leads a topic of one partition."""

    def start():
        broker = make_broker()
        with Client(broker.bootstrap) as client:
            client.create_topics({"t": 1})
        return broker

    return start


@pytest.fixture(scope="module")
def two(started):
    return [started(), started()]


def place(broker):
    return ("127.0.0.1", broker.port)


def produce(broker):
    with Client(broker.bootstrap) as client:
        client.produce([(KEY, encode_batch([(None, b"x", 0, ())]))])


def end_of(broker):
    with Client(broker.bootstrap) as client:
        return client.list_offsets({KEY: LATEST})


def asked(broker):
    """How many requests of each kind the broker has answered."""
    with urllib.request.urlopen(broker.control_url + "/metrics", timeout=60) as reply:
        text = reply.read().decode()
    found = re.findall(r'^catchwater_request_seconds_count\{api="(\w+)"\} (\S+)$', text, re.M)
    return {api: float(count) for api, count in found}


def watch(broker):
    connections = Connections(broker.bootstrap, client_id="w", timeout_s=30, clock=SYSTEM)
    return Watch(connections, "w", SYSTEM)


def later(what, *arguments):
    """Do something when a wait has begun, if the machine is not slow."""
    timer = threading.Timer(0.1, what, arguments)
    timer.start()
    return timer


def test_a_record_at_any_broker_ends_the_wait_and_what_is_open_elsewhere_stays_open(
    two, monkeypatch
):
    # What is open is answered in the end: not before a slow machine has come so far.
    monkeypatch.setattr("catchwater.wire.connection.OPEN_S", 60.0)
    waiting = watch(two[0])
    ends = {place(broker): end_of(broker) for broker in two}
    for turn in (0, 1, 1, 0):
        timer = later(produce, two[turn])
        assert waiting.wait(ends, FOR_EVER_S)
        timer.join()
        now = {place(broker): end_of(broker) for broker in two}
        assert now != ends
        ends = now
    assert not waiting.wait(ends, 0.01)
    monkeypatch.setattr(Connection, "send", lambda *_: pytest.fail("the open ones are waited for"))
    for _ in range(20):
        assert not waiting.wait(ends, 0.001)
    waiting.close()


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_broker_that_goes_away_ends_the_wait(two, started, how):
    going = started()
    waiting = watch(going)
    ends = {place(broker): end_of(broker) for broker in (two[0], going)}
    assert not waiting.wait(ends, 0.01)
    timer = later(getattr(going, how))
    assert waiting.wait(ends, FOR_EVER_S)
    timer.join()
    assert waiting.wait(ends, FOR_EVER_S), "that nobody is there is worth a question, too"
    waiting.close()


def test_a_partition_that_cannot_be_fetched_is_no_reason_to_ask_without_end(two):
    waiting = watch(two[0])
    beyond = {place(two[0]): {KEY: 1000}}
    before, began_s = asked(two[0]), time.monotonic()
    for _ in range(20):
        assert waiting.wait(beyond, FOR_EVER_S)
    fetches = asked(two[0])["Fetch"] - before.get("Fetch", 0)
    assert fetches == 20 and time.monotonic() - began_s >= 20 * 0.05
    waiting.close()


def test_an_idle_stream_asks_little_and_sees_a_record_at_once(two):
    broker = two[0]
    produce(broker)
    options = {"kafka.bootstrap.servers": broker.bootstrap, "subscribe": "t"}
    reader = StreamReader(parse_options({**options, "catchwater.wait": "50ms"}))
    at = reader.initialOffset()
    assert reader.latestOffset(at, ReadAllAvailable()) == at
    before, began_s = asked(broker), time.monotonic()
    for _ in range(60):
        assert reader.latestOffset(at, ReadAllAvailable()) == at
    elapsed_s, now = time.monotonic() - began_s, asked(broker)
    for api in ("Metadata", "ListOffsets", "Fetch"):
        # However slow the machine is: the rate is bound by time, not by how often Spark asks.
        assert now[api] - before.get(api, 0) <= elapsed_s + 2, api
    end = at
    timer = later(produce, broker)
    while end == at:
        end = reader.latestOffset(at, ReadAllAvailable())
    timer.join()
    assert end["t"]["0"] == at["t"]["0"] + 1
    reader.stop()


def test_a_reader_of_committed_records_is_woken_by_the_end_of_a_transaction(two):
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": two[0].bootstrap, "transactional.id": "w"})
    producer.init_transactions(60)
    producer.begin_transaction()
    producer.produce("t", b"x")
    producer.flush(60)
    with Client(two[0].bootstrap) as client:
        ends = client.list_offsets({KEY: LATEST}, read_committed=True)
        assert ends != client.list_offsets({KEY: LATEST})
        assert not client.wait(ends, 0.2, read_committed=True), "it is open"
        timer = later(producer.commit_transaction, 60)
        assert client.wait(ends, FOR_EVER_S, read_committed=True)
        timer.join()
