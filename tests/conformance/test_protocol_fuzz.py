"""Any bytes at the Kafka port: the broker lives, answers, stays small, and others do not notice.

Requests of every API and version are drawn from their grammar and damaged (`protocol_inputs`),
then sent to a real broker process beside a client that produces and consumes all the time. What was
unusual once is kept in `corpus_protocol/` and is sent again at every run: one input a file, in
hexadecimal, named by what becomes of it (answered, closed, waits) and its story. FUZZ_SECONDS says
for how long new ones are drawn, FUZZ_SEED which.
"""

import itertools
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from tests.conformance.protocol_inputs import (
    CORRELATION_ID,
    TOPICS,
    VERSIONS,
    Input,
    drawn,
    with_topic_ids,
)
from tests.conftest import BrokerProcess, until

from catchwater.clock import SYSTEM
from catchwater.log.write.prepare import LOAD_AFTER_RECORDS
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client
from catchwater.wire.connection import Connection, ask
from catchwater.wire.fields import MalformedMessage
from catchwater.wire.frames import prefixed
from catchwater.wire.messages import decode_reply, encode_request

CORPUS = Path(__file__).parent / "corpus_protocol"
FUZZ_SECONDS = float(os.environ.get("FUZZ_SECONDS", "10"))
FUZZ_SEED = int(os.environ.get("FUZZ_SEED", "1"))
REQUESTS_A_VERSION = 3
MAX_RSS_GROWTH_BYTES = 64 * 2**20
MAX_BYSTANDER_S = ANSWERED_WITHIN_S = 60.0
"""However slow the machine; a broker that hangs takes for ever."""
IMPATIENT_S = 0.02
PROBE_ID = 99

BYSTANDERS = ("bystander-1", "bystander-2")
PRODUCE, FETCH, JOIN_GROUP, SYNC_GROUP, API_VERSIONS = 0, 1, 11, 14, 18
MAY_WAIT = {PRODUCE, FETCH, JOIN_GROUP, SYNC_GROUP}
"""Requests that may rightly stay unanswered for long: acks=0, long polls, rebalances."""

PROBE = b"".join(prefixed(encode_request(PROBE_ID, "probe", ApiVersionsRequest())))


class Bystander(threading.Thread):
    """A client that behaves, and measures how long each of its records takes to come back."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__()
        self.records = 0
        self.slowest_s = 0.0
        self.errors: list[str] = []
        self._servers = servers
        self._topic = topic
        self._ended = threading.Event()

    def run(self) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 0})
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "bystander"})
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        try:
            while not self._ended.is_set():
                self._send_one(producer, consumer)
        finally:
            consumer.close()

    def _send_one(self, producer: Producer, consumer: Consumer) -> None:
        value = b"%d" % self.records
        began_s = time.monotonic()
        producer.produce(
            self._topic, value, on_delivery=lambda e, _: e and self.errors.append(f"produce: {e}")
        )
        if producer.flush(MAX_BYSTANDER_S):
            self.errors.append(f"record {self.records} was not acknowledged")
        message = consumer.poll(MAX_BYSTANDER_S)
        if message is None or message.error() or message.value() != value:
            self.errors.append(f"record {self.records} was not read back: {message}")
            self._ended.set()
        self.records += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)

    def end(self) -> None:
        self._ended.set()
        self.join()


class Target:
    """A broker under fire: sends inputs and sees at once what they did."""

    def __init__(self, broker: BrokerProcess, ids: dict[str, bytes]) -> None:
        self.broker = broker
        self.answered = self.closed = self.unanswered = 0
        self.bystanders = iter(BYSTANDERS)
        self._ids = ids
        self._socket: socket.socket | None = None
        self._log_at = 0

    def send(self, wanted: Input, story: str, *, patient: bool = False) -> None:
        """Send one input and a probe; check the reply, the log, and that the broker lives."""
        try:
            self._send(wanted, patient)
            self._check_log()
        except (AssertionError, MalformedMessage) as failed:
            kept = self.broker.home / "failed-input.hex"
            kept.write_text(wanted.data.hex() + "\n")
            failed.add_note(f"{story}: {kept}")
            raise

    def _send(self, wanted: Input, patient: bool) -> None:
        if self._socket is None:
            self._socket = socket.create_connection(
                ("127.0.0.1", self.broker.port), timeout=ANSWERED_WITHIN_S
            )
            self._socket.sendall(PROBE)  # before its first good request only little is taken
            self._frame()
        try:
            self._socket.sendall(with_topic_ids(wanted.data, self._ids) + PROBE)
            self._receive(wanted, patient)
        except TimeoutError:
            assert not wanted.is_good or wanted.api_key in MAY_WAIT, "no answer"
            self.unanswered += 1
            self._hang_up()
        except ConnectionError:
            assert not wanted.is_good, f"closed: {self.broker.log().splitlines()[-1]}"
            self.closed += 1
            self._hang_up()

    def _receive(self, wanted: Input, patient: bool) -> None:
        assert self._socket is not None
        patient = patient or (wanted.is_good and wanted.api_key not in MAY_WAIT)
        self._socket.settimeout(ANSWERED_WITHIN_S if patient else IMPATIENT_S)
        while True:
            reply = self._frame()
            correlation_id = struct.unpack_from(">i", reply)[0]
            if correlation_id == PROBE_ID:
                break
            if wanted.is_good:
                assert correlation_id == CORRELATION_ID
                decode_reply(wanted.api_key, wanted.version, memoryview(reply))
        self.answered += 1

    def _frame(self) -> bytes:
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def _exactly(self, size: int) -> bytes:
        assert self._socket is not None
        data = bytearray()
        while len(data) < size:
            piece = self._socket.recv(size - len(data))
            if not piece:
                raise ConnectionResetError("closed")
            data += piece
        return bytes(data)

    def _hang_up(self) -> None:
        assert self._socket is not None
        self._socket.close()
        self._socket = None

    def _check_log(self) -> bytes:
        """Check the new lines; what is begun of the next, which is checked when it is whole."""
        assert self.broker.is_running, self.broker.log()[-3000:]
        with self.broker.stderr_file.open("rb") as log:
            log.seek(self._log_at)
            lines, end, begun = log.read().rpartition(b"\n")
        self._log_at += len(lines + end)
        added = lines.decode()
        assert "Traceback" not in added and "please report" not in added, added
        assert "forged" not in added
        for line in added.splitlines():
            assert line.startswith("20") and line.isprintable(), line
        return begun

    def close(self) -> None:
        """Hang up, and check what the broker wrote since."""
        if self._socket is not None:
            self._hang_up()
        until(lambda: not self._check_log(), said=self.broker.log)


def resident_bytes(broker: BrokerProcess) -> int:
    assert broker.process is not None
    with open(f"/proc/{broker.process.pid}/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_topics(broker: BrokerProcess) -> dict[str, bytes]:
    wanted = tuple(
        CreatableTopic(
            name=name, num_partitions=1, replication_factor=-1, assignments=(), configs=()
        )
        for name in (*TOPICS, *BYSTANDERS)
    )
    connection = Connection("127.0.0.1", broker.port, timeout_s=ANSWERED_WITHIN_S, clock=SYSTEM)
    try:
        reply = ask(connection, "test", CreateTopicsRequest(topics=wanted))
        # The first pattern loads RE2, about 100 MB with what it comes with; that is no growth.
        listed = ListTransactionsRequest(
            state_filters=(), producer_id_filters=(), transactional_id_pattern="x"
        )
        ask(connection, "test", listed)
    finally:
        connection.close()
    return {topic.name: topic.topic_id.bytes for topic in reply.topics if topic.name in TOPICS}


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., BrokerProcess]) -> Iterator[BrokerProcess]:
    """With a small cache: the bystander's own records, up to 256 MB of them, are no growth."""
    process = make_broker({
        "catchwater.cache.bytes": str(4 * 2**20),
        # Most inputs end their connection, and a fast machine sends hundreds a second.
        "max.connection.creation.rate": "100000",
        "catchwater.max.connection.creation.rate.per.ip": "100000",
    })  # fmt: skip
    yield process
    process.kill()


def load_the_walk(broker: BrokerProcess) -> None:
    """Have the compiled walk of records loaded, 75 MB that are no growth either."""
    batch = encode_batch([(b"k", b"v", 0, ())] * LOAD_AFTER_RECORDS)
    with Client(broker.bootstrap) as client:
        client.create_topics({"walked": 1})
        client.produce([(("walked", 0), batch)])
    deadline = time.monotonic() + ANSWERED_WITHIN_S
    size = 0
    while size != (size := resident_bytes(broker)) or not is_mapped(broker, "llvmlite"):
        assert time.monotonic() < deadline, "the compiled walk is not loaded"
        time.sleep(0.5)


def is_mapped(broker: BrokerProcess, library: str) -> bool:
    assert broker.process is not None
    return library in Path(f"/proc/{broker.process.pid}/maps").read_text()


def load_the_messages(target: Target) -> None:
    """Have every version of every API asked for once: its messages are no growth either."""
    for api_key, version in VERSIONS:
        target.send(drawn(FUZZ_SEED, api_key, version, 1)[0], f"API {api_key} v{version}, first")


@pytest.fixture(scope="module")
def target(broker: BrokerProcess) -> Iterator[Target]:
    load_the_walk(broker)
    target = Target(broker, make_topics(broker))
    load_the_messages(target)
    yield target
    target.close()


@pytest.fixture
def bystander(target: Target) -> Iterator[Bystander]:
    """Runs beside the test; fails it if it noticed anything, or if the broker grew."""
    client = Bystander(target.broker.bootstrap, next(target.bystanders))
    client.start()
    while client.records < 20 and client.is_alive():
        time.sleep(0.01)
    before_bytes = resident_bytes(target.broker)
    try:
        yield client
    finally:
        client.end()
    assert not client.errors
    assert client.records > 20
    assert client.slowest_s < MAX_BYSTANDER_S
    assert resident_bytes(target.broker) - before_bytes < MAX_RSS_GROWTH_BYTES


def rounds(number: int) -> Iterator[Input]:
    """Inputs of all versions without end, from one seed to the next; the same for the same seed."""
    while True:
        order = random.Random(number).sample(VERSIONS, len(VERSIONS))
        for api_key, version in order:
            yield from drawn(number, api_key, version, REQUESTS_A_VERSION)
        number += 1


def test_the_same_seed_gives_the_same_bytes() -> None:
    def some(number: int) -> list[Input]:
        return list(itertools.islice(rounds(number), 200))

    assert some(FUZZ_SEED) == some(FUZZ_SEED)
    assert some(FUZZ_SEED) != some(FUZZ_SEED + 1)


def test_what_was_unusual_once_is_stood_again(target: Target, bystander: Bystander) -> None:
    stories = sorted(CORPUS.glob("*.hex"))
    assert stories
    for story in stories:
        data = bytes.fromhex(story.read_text())
        is_good = story.name.startswith("answered-")
        key, version = struct.unpack_from(">hh", data, 4) if is_good else (-1, -1)
        before = target.closed
        waits = story.name.startswith("waits-")
        target.send(Input(key, version, is_good, data), story.name, patient=not waits)
        assert (target.closed > before) is story.name.startswith("closed-"), story.name


def test_whatever_the_grammar_gives_is_stood(target: Target, bystander: Bystander) -> None:
    until_s = time.monotonic() + FUZZ_SECONDS
    sent = 0
    for one in rounds(FUZZ_SEED):
        target.send(one, f"API {one.api_key} v{one.version}, seed {FUZZ_SEED}, input {sent}")
        sent += 1
        if time.monotonic() > until_s:
            break
    assert target.answered and target.closed
    print(f"{sent} inputs: {target.answered} answered, {target.closed} closed")
