"""A gate that denies, in front of a real broker: plan, direct read and Fetch are all denied alike.

What may be read of one topic says nothing of the other, and a client is told which topic it was.
"""

import contextlib
import hashlib
import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from kio.index import KioIndexError, load_request_schema
from tests.conformance.corpus import (
    DEADLINE_S,
    Writer,
    assert_same,
    by_librdkafka,
    by_replay,
    contents,
)
from tests.conftest import until
from tests.samples import control_paths, errors, sample, values

from catchwater.broker.router import APIS
from catchwater.clock import Clock
from catchwater.replay.control import Control
from catchwater.replay.plan import OffsetRange
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client, TopicDenied
from catchwater.wire.connection import Connection, ConnectionLost, ask

OPEN, SECRET = "open", "secret"
RECORDS = 100
START = {0: 0}


class Gated:
    """A broker with two topics, and the file by which its gate is told what to deny."""

    def __init__(
        self, make_broker: Callable[..., object], denied: Path, settings: dict[str, str]
    ) -> None:
        self._denied = denied
        self.deny()
        self.broker = make_broker(settings, start=False)
        script = Path(__file__).with_name("gated_broker.py")
        self.broker.start(sys.executable, str(script), str(denied))
        self.bootstrap = self.broker.bootstrap
        with Client(self.bootstrap) as client:
            client.create_topics({OPEN: 1, SECRET: 1})
        self.writer = Writer(self.bootstrap)
        for topic in (OPEN, SECRET):
            self.writer.send(self.writer.producer(), topic, 0, contents(RECORDS, seed=1))

    def deny(self, *lines: str) -> None:
        self._denied.write_text("\n".join(lines))


@pytest.fixture(scope="module")
def started(make_broker, tmp_path_factory) -> Gated:
    return Gated(make_broker, tmp_path_factory.mktemp("gate") / "denied", {})


@pytest.fixture
def gated(started: Gated) -> Iterator[Gated]:
    started.deny()
    yield started
    started.deny()


def all_of(gated: Gated, topic: str) -> None:
    """The topic is served by plan, from storage, by the leader and to librdkafka."""
    assert Control(gated.broker.control_url).plan([OffsetRange(topic, 0, 0, RECORDS)]).ranges
    expected = gated.writer.rows(topic, committed=False)
    for path in ("direct", "kafka"):
        assert_same(by_replay(gated.bootstrap, topic, START, False, path, 2), expected, path)
    assert_same(by_librdkafka(gated.bootstrap, topic, START, False), expected, "librdkafka")


def error_met_by_librdkafka(gated: Gated) -> int | None:
    client = Consumer({"bootstrap.servers": gated.bootstrap, "group.id": "gate"})
    client.assign([TopicPartition(SECRET, 0, 0)])
    try:
        message = client.poll(DEADLINE_S)
        return message and message.error() and message.error().code()
    finally:
        client.close()


def test_plan_direct_read_and_fetch_are_denied_for_one_topic_alone(gated: Gated) -> None:
    all_of(gated, SECRET)
    gated.deny("READ secret")
    with pytest.raises(TopicDenied, match="may not READ topic secret") as plan:
        Control(gated.broker.control_url).plan([OffsetRange(SECRET, 0, 0, RECORDS)])
    with pytest.raises(TopicDenied, match="may not READ topic secret") as direct:
        by_replay(gated.bootstrap, SECRET, START, False, "direct", 2)
    with pytest.raises(TopicDenied, match="Fetch for secret-0") as fetch:
        by_replay(gated.bootstrap, SECRET, START, False, "kafka", 2)
    for caught in (plan, direct, fetch):
        assert caught.value.topic == SECRET
        assert "allow READ" in (caught.value.hint or "")
    assert error_met_by_librdkafka(gated) == KafkaError.TOPIC_AUTHORIZATION_FAILED
    all_of(gated, OPEN)


def test_what_is_refused_by_http_names_no_object(gated: Gated) -> None:
    gated.deny("READ secret")
    wanted = {"topic": SECRET, "ranges": [{"partition": 0, "start": 0, "end": RECORDS}]}
    request = urllib.request.Request(
        gated.broker.control_url + "/api/v1/plans", json.dumps(wanted).encode(), method="POST"
    )
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request, timeout=DEADLINE_S)
    with caught.value as reply:
        text = reply.read().decode()
    assert caught.value.code == 403
    assert json.loads(text)["error"] == "TOPIC_AUTHORIZATION_FAILED"
    assert "file:" not in text


@pytest.mark.parametrize("path", ["direct", "kafka"])
def test_a_topic_that_may_not_be_described_fails_a_query_by_name(gated: Gated, path: str) -> None:
    gated.deny("DESCRIBE secret")
    with pytest.raises(TopicDenied, match="secret") as caught:
        by_replay(gated.bootstrap, SECRET, START, False, path, 2)
    assert "DESCRIBE" in (caught.value.hint or "")
    with Client(gated.bootstrap) as client:
        assert client.metadata().topics() == [OPEN]


def test_nothing_is_written_where_that_is_denied(gated: Gated) -> None:
    gated.deny("WRITE secret")
    errors = []
    producer = Producer({"bootstrap.servers": gated.bootstrap})
    for topic in (SECRET, OPEN):
        producer.produce(topic, b"x", on_delivery=lambda error, _: errors.append(error))
        assert producer.flush(DEADLINE_S) == 0
    refused, written = errors
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert written is None


def asked(gated: Gated, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """One request to the control API: its status and its JSON."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(gated.broker.control_url + path, data, method=method)
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as reply:
            return reply.status, json.load(reply)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def pin_of(*topics: str) -> dict[str, object]:
    positions = [{"topic": topic, "partition": 0, "offset": 0} for topic in topics]
    return {"owner": "me", "positions": positions, "lease_ms": 60_000}


def pinned(gated: Gated) -> dict[str, list[str]]:
    """The topics of each pin that is shown."""
    _, answer = asked(gated, "GET", "/api/v1/pins")
    return {pin["id"]: [each["topic"] for each in pin["positions"]] for pin in answer["pins"]}


def test_a_pin_is_for_who_may_read_all_that_it_holds(gated: Gated) -> None:
    both = "/api/v1/pins/both"
    gated.deny("READ secret")
    status, answer = asked(gated, "PUT", both, pin_of(OPEN, SECRET))
    assert (status, answer["error"]) == (403, "TOPIC_AUTHORIZATION_FAILED")
    assert answer["message"] == "User:ANONYMOUS may not READ topic secret."
    assert asked(gated, "PUT", "/api/v1/pins/own", pin_of(OPEN))[0] == 200
    assert pinned(gated) == {"own": [OPEN]}
    gated.deny()
    assert asked(gated, "PUT", both, pin_of(OPEN, SECRET))[0] == 200
    gated.deny("READ secret")
    for method, body in (("PATCH", {"lease_ms": 1}), ("DELETE", None), ("PUT", pin_of(OPEN))):
        status, answer = asked(gated, method, both, body)
        assert (status, answer["error"]) == (403, "TOPIC_AUTHORIZATION_FAILED"), method
        assert "secret" not in answer["message"], "what it holds is not told"
    assert pinned(gated) == {"both": [OPEN, SECRET], "own": [OPEN]}
    assert asked(gated, "DELETE", "/api/v1/pins/own")[0] == 200
    gated.deny()
    assert asked(gated, "PATCH", both, {"lease_ms": 60_000})[0] == 200
    assert asked(gated, "DELETE", both)[0] == 200


def test_pins_are_listed_for_who_may_describe_what_they_hold(gated: Gated) -> None:
    assert asked(gated, "PUT", "/api/v1/pins/both", pin_of(OPEN, SECRET))[0] == 200
    assert asked(gated, "PUT", "/api/v1/pins/own", pin_of(OPEN))[0] == 200
    gated.deny("DESCRIBE secret")
    assert pinned(gated) == {"own": [OPEN]}
    gated.deny()
    for name in ("both", "own"):
        assert asked(gated, "DELETE", f"/api/v1/pins/{name}")[0] == 200


def test_where_the_storage_lies_is_for_who_may_describe_the_cluster(gated: Gated) -> None:
    gated.deny("DESCRIBE kafka-cluster")
    status, answer = asked(gated, "GET", "/api/v1/storage")
    assert (status, answer["error"]) == (403, "CLUSTER_AUTHORIZATION_FAILED")
    assert "file:" not in json.dumps(answer)
    gated.deny()
    status, answer = asked(gated, "GET", "/api/v1/storage")
    assert status == 200 and answer["objects"].startswith("file:")


def test_a_sink_s_epochs_are_shown_to_who_may_describe_its_topic(gated: Gated) -> None:
    epoch = "/api/v1/sinks/p/s/epochs/0"
    assert asked(gated, "PUT", epoch, {"topic": SECRET, "staged": []})[0] == 200
    for path in ("/api/v1/sinks/p/s", epoch):
        gated.deny("DESCRIBE secret")
        status, answer = asked(gated, "GET", path)
        assert (status, answer["error"]) == (403, "TOPIC_AUTHORIZATION_FAILED")
        gated.deny()
        assert asked(gated, "GET", path)[0] == 200


def bytes_kept(gated: Gated) -> dict[str, str]:
    """Checksums of all files of catalog, WAL and store, but for SQLite's memory of its readers.

    The page's history is none of them: the broker goes on with it by itself.
    """
    return {
        str(path.relative_to(gated.broker.data_dir)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(gated.broker.data_dir.rglob("*"))
        if path.is_file() and not path.name.endswith("-shm") and "history.db" not in path.name
    }


def requests_of_all(topic_id: UUID) -> Iterator[tuple[str, Any]]:
    """A request of every API and version that is served, with something in every field."""
    data = encode_batch([(b"k", b"v", 1_700_000_000_000, ())])
    said = values(topic_id.bytes, 4_000, 0, data, topic=SECRET)
    for key, api in APIS.items():
        for version in api.versions:
            try:
                schema = load_request_schema(key, version)
            except KioIndexError:
                continue
            yield f"{api.name} v{version}", sample(api.name, schema, said)


VERDICT = {"state": "ok", "reason": "r", "next": "n"}
BODIES = [
    {}, pin_of(SECRET), {"lease_ms": 1}, {"topic": SECRET, "staged": [], "offsets": {}},
    {"topic": SECRET, "ranges": [{"partition": 0, "start": 0, "end": 1}]},
    {"topic": SECRET, "fence": {"name": "f", "number": 1}},
    {"name": SECRET, "correct": VERDICT, "recoverable": VERDICT, "fresh": VERDICT},
    {"moves": [{"topic": SECRET, "partition": 0, "from": None, "to": 1}]},
    {"offsets": {"0": 0}, "dry_run": False}, {"bytes": 1, "client_id": "c"},
]  # fmt: skip
METHODS = ("GET", "PUT", "POST", "PATCH", "DELETE")
ACTS = {
    ("PUT", "/api/v1/pins/secret"), ("PATCH", "/api/v1/pins/secret"),
    ("DELETE", "/api/v1/pins/secret"), ("PUT", "/api/v1/sinks/secret/secret/fence"),
    ("PUT", "/api/v1/sinks/secret/secret/epochs/1"), ("POST", "/api/v1/groups/secret/reset"),
    ("PUT", "/api/v1/pipelines/secret/report"), ("POST", "/api/v1/plans"),
    ("POST", "/api/v1/traces"),
}  # fmt: skip
"""What the walk does where everything is allowed; the topic is no table."""


def walked(gated: Gated) -> set[tuple[str, str]]:
    """Every path by every method, with every body: method and path of what was not refused."""
    done = set()
    for path, method in product(control_paths(SECRET), METHODS):
        for body in [None] if method in ("GET", "DELETE") else BODIES:
            data = None if body is None else json.dumps(body).encode()
            request = urllib.request.Request(
                gated.broker.control_url + path, data, {"Content-Type": "application/json"},
                method=method,
            )  # fmt: skip
            with contextlib.suppress(urllib.error.HTTPError):
                urllib.request.urlopen(request, timeout=DEADLINE_S).close()
                done.add((method, path))
    return done


@pytest.mark.slow
def test_a_walk_of_all_requests_and_paths_changes_no_byte(make_broker, tmp_path: Path) -> None:
    """B24, behind a gate that denies everything: catalog, WAL and store stay as they are."""
    jobs = ("catchwater.pack.interval.ms", "catchwater.retention.interval.ms")
    hour = dict.fromkeys(jobs, "3600000")
    gated = Gated(make_broker, tmp_path / "denied", hour)
    assert asked(gated, "PUT", "/api/v1/pins/mine", pin_of(SECRET))[0] == 200
    topic_id = UUID(asked(gated, "GET", f"/api/v1/topics/{SECRET}")[1]["id"])
    gated.deny("*")
    before: dict[str, str] = {}

    def is_still() -> bool:
        nonlocal before
        last, before = before, bytes_kept(gated)
        time.sleep(1.2)  # the catalog trails the WAL by a second
        return last == before

    until(is_still)
    assert {".wal", ".db"} <= {Path(name).suffix for name in before}
    host, _, port = gated.bootstrap.partition(":")
    connection: Connection | None = None
    for what, message in requests_of_all(topic_id):
        connection = connection or Connection(host, int(port), timeout_s=DEADLINE_S, clock=Clock())
        try:
            found = set(errors(ask(connection, "walk", message)))
        except ConnectionLost:
            connection.close()
            connection = None
            found = set()
        assert "unknown_server_error" not in found, what
    if connection is not None:
        connection.close()
    changed = {each for each in walked(gated) if each[0] != "GET"}
    assert changed == {("POST", "/api/v1/grants")}, "that spends what is the caller's own"
    until(is_still)
    assert bytes_kept(gated) == before
    gated.deny()
    assert {each for each in walked(gated) if each[0] != "GET"} - changed == ACTS
