"""Consumer groups by command, here and at Apache Kafka: what they need, and where they go on."""

import io
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from tests.conftest import BrokerProcess, until

from catchwater.cli import main
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import EARLIEST, Client

RECORDS, READ = 100, 30
HOUR_S = 3600


class Answer(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def contract(verb: str, bootstrap: str, *arguments: str) -> Answer:
    return typed("contract", verb, bootstrap, *arguments)


def typed(noun: str, verb: str, bootstrap: str, *arguments: str) -> Answer:
    """Type `catchwater NOUN VERB`."""
    return typed_alone(noun, verb, "--bootstrap", bootstrap, *arguments)


def typed_alone(*arguments: str) -> Answer:
    """Type `catchwater` with these arguments."""
    # JSON is written as bytes.
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    argv = ["catchwater", *arguments]
    with patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err):
        with pytest.raises(SystemExit) as left:
            main()
    told = (each.detach().getvalue().decode() for each in (out, err))
    return Answer(int(left.value.code or 0), *told)


def shown(bootstrap: str, group: str, *arguments: str) -> tuple[int, dict[str, Any]]:
    answer = contract("show", bootstrap, "--group", group, "--json", *arguments)
    assert answer.stdout, answer.stderr
    return answer.returncode, json.loads(answer.stdout)


def filled(bootstrap: str, topic: str, written_ms: int, **config: str) -> None:
    settings = {name.replace("_", "."): value for name, value in config.items()}
    with Client(bootstrap) as client:
        client.create_topics({topic: 2}, settings)
        until(lambda: len(client.metadata([topic]).leaders) == 2)
        values = [b"%d" % n * 100 for n in range(RECORDS)]
        batches = [encode_batch([(b"", value, written_ms, ())]) for value in values]
        client.produce([((topic, partition), batch) for batch in batches for partition in (0, 1)])


def commit(bootstrap: str, group: str, topic: str) -> None:
    """As a job does that has read something of partition 0 and all of partition 1."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    at = [TopicPartition(topic, 0, READ), TopicPartition(topic, 1, RECORDS)]
    consumer.commit(offsets=at, asynchronous=False)
    consumer.close()


def check_group(bootstrap: str) -> None:
    """What holds at any Kafka."""
    written_ms = round(time.time() * 1000) - 60_000
    filled(bootstrap, "read-in-part", written_ms, retention_ms=str(HOUR_S * 1000))
    commit(bootstrap, "job", "read-in-part")
    code, told = shown(bootstrap, "job")
    assert code == 0
    assert (told["group"], told["state"]) == ("job", "Empty")
    assert told["lag_records"] == RECORDS - READ
    assert 60 <= told["lag_s"] < 600
    assert told["replay_bytes"] > (RECORDS - READ) * 100
    assert HOUR_S - 600 < told["retention_left_s"] <= HOUR_S - 60
    behind, done = told["positions"]
    assert (behind["offset"], behind["log_end"], done["lag_records"]) == (READ, RECORDS, 0)
    assert done["retention_left_s"] is None
    # A restore that takes longer than retention leaves.
    code, told = shown(bootstrap, "job", "--max-restore", "1h")
    assert (code, told["positions"][0]["verdict"]) == (3, "warn")
    # For people.
    page = contract("show", bootstrap, "--group", "job")
    assert page.returncode == 0
    assert "group job" in page.stdout and "70 records" in page.stdout
    check_transactions(bootstrap)
    # Its input goes.
    with Client(bootstrap) as client:
        delete_before(bootstrap, "read-in-part", READ + 5)
        assert client.list_offsets({("read-in-part", 0): EARLIEST}) == {
            ("read-in-part", 0): READ + 5
        }
    code, told = shown(bootstrap, "job")
    assert (code, told["positions"][0]["why"]) == (
        4,
        "lost: the log begins at 35, 5 records are gone",
    )
    # Nobody knows of the other.
    unknown = contract("show", bootstrap, "--group", "nobody")
    assert unknown.returncode == 1 and "no committed position" in unknown.stderr


def check_transactions(bootstrap: str) -> None:
    """What is open on the input is listed until it ends, and what becomes of the positions."""
    place = {"group.id": "job", "bootstrap.servers": bootstrap, "log_level": 0}
    reader = Consumer(place)
    del place["group.id"]
    writer = Producer({**place, "transactional.id": "job-tx", "transaction.timeout.ms": 600_000})
    writer.init_transactions(60)
    writer.begin_transaction()
    writer.produce("read-in-part", b"x", partition=1)
    writer.flush(60)
    at = [TopicPartition("read-in-part", 0, READ + 1)]
    writer.send_offsets_to_transaction(at, reader.consumer_group_metadata(), 60)
    code, told = shown(bootstrap, "job")
    (found,) = told["transactions"]
    assert (code, found["verdict"], found["transactional_id"]) == (0, "pass", "job-tx")
    assert (found["topic"], found["partition"], found["first_offset"]) == (
        "read-in-part", 1, RECORDS,
    )  # fmt: skip
    assert [each["unsettled"] for each in told["positions"]] == [True, False]
    assert told["positions"][0]["offset"] == READ
    page = contract("show", bootstrap, "--group", "job").stdout
    assert "job-tx" in page and "is open, with newer positions in read-in-part-0" in page
    writer.abort_transaction(60)
    reader.close()
    until(lambda: not shown(bootstrap, "job")[1]["transactions"])
    assert not any(each["unsettled"] for each in shown(bootstrap, "job")[1]["positions"])


def delete_before(bootstrap: str, topic: str, offset: int) -> None:
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        done.result(60)


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., BrokerProcess]) -> BrokerProcess:
    return make_broker({"catchwater.retention.interval.ms": "100"})


def test_a_group_here(broker: BrokerProcess) -> None:
    check_group(broker.bootstrap)


def check_reset(bootstrap: str, protocol: str) -> None:
    """Where a group goes on, at any Kafka: with members it is left alone."""
    topic = group = f"reset-{protocol}"
    filled(bootstrap, topic, 1_000_000, retention_ms="-1")
    commit(bootstrap, group, topic)
    assert typed("group", "reset", bootstrap, group, "--to", "earliest", "--yes").returncode == 0
    assert positions(bootstrap, group) == [0, 0]
    # A dry run says what would be, and changes nothing.
    dry = typed("group", "reset", bootstrap, group, "--to", "40", "--dry-run", "--json")
    assert [(row["position"], row["to"], row["again"]) for row in json.loads(dry.stdout)] == [
        (0, 40, -40),
        (0, 40, -40),
    ]
    assert "would reset 2 partitions" in dry.stderr
    shown_only = typed("group", "reset", bootstrap, group, "--to-offset", "40")
    assert shown_only.returncode == 0 and "--execute does it" in shown_only.stderr
    assert positions(bootstrap, group) == [0, 0]
    # By time: all is of 1970, so an hour ago is the end, and the epoch the beginning.
    for where, there in (("1h ago", RECORDS), ("1970-01-01T00:00:00Z", 0), ("latest", RECORDS)):
        done = typed("group", "reset", bootstrap, group, "--to", where, "--yes")
        assert (done.returncode, positions(bootstrap, group)) == (0, [there, there])
    again = typed("group", "reset", bootstrap, group, "--to", "latest", "--yes")
    assert again.returncode == 0 and "stands there already" in again.stderr
    beyond = typed("group", "reset", bootstrap, group, "--to", "101", "--yes")
    assert beyond.returncode == 5
    assert f"{topic}-0 holds 0 to 100, and not 101; {topic}-1 holds" in beyond.stderr
    assert positions(bootstrap, group) == [RECORDS, RECORDS]
    # A group that nobody knows is begun where it is asked to.
    fresh = f"fresh-{protocol}"
    nowhere = typed("group", "reset", bootstrap, fresh, "--to", "7", "--yes")
    assert nowhere.returncode == 1 and "no committed position" in nowhere.stderr
    begun = typed("group", "reset", bootstrap, fresh, "--to", "7", "--topic", topic, "--yes")
    assert (begun.returncode, positions(bootstrap, fresh)) == (0, [7, 7])
    absent = typed("group", "reset", bootstrap, fresh, "--to", "7", "--topic", "absent", "--yes")
    assert absent.returncode == 1 and "There is no topic absent" in absent.stderr
    # One that is read now.
    assert typed("group", "reset", bootstrap, group, "--to", "10", "--yes").returncode == 0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "client.id": "reader",
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    try:
        first = None
        while first is None:
            first = consumer.poll(1)
        assert first.offset() == 10
        code, described = shown_group(bootstrap, group)
        assert (code, described["state"]) == (0, "Stable")
        assert [row["member"].partition("@")[0] for row in described["positions"]] == ["reader"] * 2
        refused = typed("group", "reset", bootstrap, group, "--to", "latest", "--yes")
        assert refused.returncode == 1
        assert "has 1 members" in refused.stderr and "reader at " in refused.stderr
        assert positions(bootstrap, group) == [10, 10]
    finally:
        consumer.close()
    listed = json.loads(typed("group", "list", bootstrap, "--json").stdout)
    assert {each["group"]: each["state"] for each in listed}[fresh] == "Empty"


def shown_group(bootstrap: str, group: str) -> tuple[int, dict[str, Any]]:
    answer = typed("group", "describe", bootstrap, group, "--json")
    assert answer.stdout, answer.stderr
    return answer.returncode, json.loads(answer.stdout)


def positions(bootstrap: str, group: str) -> list[int]:
    return [row["position"] for row in shown_group(bootstrap, group)[1]["positions"]]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_reset_here(broker: BrokerProcess, protocol: str) -> None:
    check_reset(broker.bootstrap, protocol)


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_reset_at_apache_kafka(apache_kafka: str, protocol: str) -> None:
    check_reset(apache_kafka, protocol)


@pytest.mark.slow
def test_a_group_at_apache_kafka_which_has_no_pins(apache_kafka: str) -> None:
    check_group(apache_kafka)
    refused = contract("pin", apache_kafka, "--group", "job", "--yes")
    assert refused.returncode == 1
    assert "another Kafka: it has no pins" in refused.stderr


def test_a_pin_keeps_a_groups_input_until_it_is_released(broker: BrokerProcess) -> None:
    bootstrap, topic = broker.bootstrap, "pinned"
    filled(bootstrap, topic, 1_000, retention_ms="-1")
    commit(bootstrap, "kept", topic)
    dry = contract("pin", bootstrap, "--group", "kept", "--dry-run")
    assert dry.returncode == 0 and "would pin 2 partitions" in dry.stderr
    assert shown(bootstrap, "kept")[1]["positions"][0]["pin"] == ""
    assert contract("pin", bootstrap, "--group", "kept", "--yes").returncode == 0
    # Retention of a second, for records of 1970: everything would go.
    retain_for(bootstrap, topic, 1_000)
    with Client(bootstrap) as client:
        until(lambda: client.list_offsets({(topic, 1): EARLIEST})[topic, 1] == RECORDS)
    code, told = shown(bootstrap, "kept")
    assert (code, told["positions"][0]["why"]) == (0, "pinned by group/kept")
    assert told["positions"][0]["log_start"] <= READ
    assert contract("unpin", bootstrap, "--group", "kept", "--yes").returncode == 0
    with Client(bootstrap) as client:
        until(lambda: client.list_offsets({(topic, 0): EARLIEST})[topic, 0] == RECORDS)
    assert shown(bootstrap, "kept")[0] == 4
    gone = contract("pin", bootstrap, "--group", "kept", "--yes")
    assert gone.returncode == 5 and "70 records are gone" in gone.stderr
    again = contract("unpin", bootstrap, "--group", "kept", "--yes")
    assert again.returncode == 0 and "nothing is pinned" in again.stderr


def retain_for(bootstrap: str, topic: str, retention_ms: int) -> None:
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource

    entry = ConfigEntry(
        "retention.ms", str(retention_ms), incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(60)


KAFKAS_TOOL = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"


@pytest.fixture(scope="module")
def kafkas_tool() -> Callable[..., list[list[str]]]:
    """Kafka's own command for groups: the words of each line that it prints."""
    from benchmarks.kafka_jars import MavenMissing, jars

    if shutil.which("java") is None:
        pytest.skip("Java is not installed")
    try:
        libraries = jars("kafka")
    except MavenMissing as missing:
        pytest.skip(str(missing))

    def run(bootstrap: str, *arguments: str) -> list[list[str]]:
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]
        command = ["java", *options, "-cp", f"{libraries}/*", KAFKAS_TOOL]
        done = subprocess.run(
            [*command, "--bootstrap-server", bootstrap, *arguments],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return [line.replace(",", " ").split() for line in done.stdout.splitlines()]

    return run


def check_beside_kafkas_tool(bootstrap: str, tool: Callable[..., list[list[str]]]) -> None:
    """Both tools say the same of a group, and would reset it to the same places."""
    topic = group = "beside"
    filled(bootstrap, topic, 0, retention_ms="-1")
    hour_ms = 3_600_000
    now_ms = round(time.time() * 1000)
    with Client(bootstrap) as client:
        for hours in (5, 3, 1):
            batch = encode_batch([(b"", b"x", now_ms - hours * hour_ms, ())])
            client.produce([((topic, 0), batch)])
    commit(bootstrap, group, topic)
    _, ours = shown_group(bootstrap, group)
    said = {
        int(row[2]): row[3:6]
        for row in tool(bootstrap, "--describe", "--group", group)
        if row[:2] == [group, topic]
    }
    assert said == {
        each["partition"]: [str(each[name]) for name in ("position", "log_end", "lag")]
        for each in ours["positions"]
    }
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime((now_ms - 4 * hour_ms) / 1000))
    ways = [
        (["--to-earliest"], ["--to", "earliest"]),
        (["--to-latest"], ["--to", "latest"]),
        (["--to-current"], ["--to", "current"]),
        (["--to-offset", "42"], ["--to-offset", "42"]),
        (["--to-datetime", f"{at}.000Z"], ["--to-time", f"{at}Z"]),
        (["--by-duration", "PT2H"], ["--by-duration", "PT2H"]),
    ]
    for theirs, mine in ways:
        kafkas = tool(
            bootstrap, "--reset-offsets", "--group", group, "--topic", f"{topic}:0,1",
            "--dry-run", "--export", *theirs,
        )  # fmt: skip
        answer = typed(
            "group", "reset", bootstrap, group, "--topic", f"{topic}:0,1", *mine, "--json"
        )
        found = [(row["topic"], row["partition"], row["to"]) for row in json.loads(answer.stdout)]
        wanted = sorted(
            (row[0].strip('"'), int(row[1].strip('"')), int(row[2].strip('"')))
            for row in kafkas
            if row and row[0].strip('"') == topic
        )
        assert found == wanted, (theirs, kafkas)
    assert positions(bootstrap, group) == [READ, RECORDS]


@pytest.mark.slow
def test_here_both_tools_say_the_same_of_a_group(
    broker: BrokerProcess, kafkas_tool: Callable[..., list[list[str]]]
) -> None:
    check_beside_kafkas_tool(broker.bootstrap, kafkas_tool)


@pytest.mark.slow
def test_at_apache_kafka_both_tools_say_the_same_of_a_group(
    apache_kafka: str, kafkas_tool: Callable[..., list[list[str]]]
) -> None:
    check_beside_kafkas_tool(apache_kafka, kafkas_tool)


def test_a_group_that_has_committed_nothing_shows_what_it_reads(broker: BrokerProcess) -> None:
    bootstrap, topic = broker.bootstrap, "uncommitted"
    filled(bootstrap, topic, 1_000, retention_ms="-1")
    nobody = typed("group", "describe", bootstrap, "uncommitted")
    assert nobody.returncode == 1 and "no committed position" in nobody.stderr
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "uncommitted",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.subscribe([topic])
    try:
        while consumer.poll(1) is None:
            pass
        _, described = shown_group(bootstrap, "uncommitted")
        assert [
            (row["position"], row["lag"], row["log_end"]) for row in described["positions"]
        ] == [(None, None, RECORDS)] * 2
    finally:
        consumer.close()
