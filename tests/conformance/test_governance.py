"""`catchwater governance map` and `prove`, beside a real broker and its audit trail."""

import json
import subprocess
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
)
from tests.conformance.corpus import DEADLINE_S
from tests.conftest import COMMAND, until

from catchwater.audit import AUDIT_TOPIC, lines_of
from catchwater.replay.control import Control, ControlRefused
from catchwater.replay.plan import OffsetRange


def run(*arguments: str) -> tuple[int, Any, str]:
    ran = subprocess.run(
        [COMMAND, "governance", *arguments, "--json"], capture_output=True, text=True, timeout=120
    )
    return ran.returncode, json.loads(ran.stdout or "null"), ran.stderr


@pytest.fixture(scope="module")
def governed(make_broker: Any) -> Any:
    broker = make_broker(start=False)
    broker.settings |= {
        "catchwater.audit.dir": str(broker.home / "audit"), "catchwater.location": "eu-central-1"
    }  # fmt: skip
    broker.start()
    return broker


def create(broker: Any, name: str, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    settings = {f"catchwater.{key}": value for key, value in config.items()}
    for done in admin.create_topics([NewTopic(name, 1, config=settings)]).values():
        done.result(DEADLINE_S)


def test_a_place_that_is_forbidden_is_refused(governed: Any) -> None:
    create(governed, "stays", residency="eu-west-1,eu-central-1", owner="Payments")
    with pytest.raises(KafkaException, match="it lies in eu-central-1"):
        create(governed, "leaves", residency="us-east-1")


def test_the_map_lists_every_topic_and_warns_of_one_without_an_owner(governed: Any) -> None:
    create(governed, "owned", owner="team-a@example.com")
    create(governed, "nobodys", fields="card=hash")
    code, places, told = run("map", "--bootstrap", governed.bootstrap)
    found = {each["name"]: each for each in places}
    assert code == 3 and "nobodys" in told and "owned" not in told.split("nobody owns")[0]
    assert found["owned"]["owner"] == "team-a@example.com"
    assert found["owned"]["residency"] == "eu-central-1"
    assert found["owned"]["place"].startswith("file://")
    assert found["owned"]["encrypted"] == "no"
    assert [found[name]["fields"] for name in ("owned", "nobodys")] == ["", "card=hash"]


def failing(done: Any) -> int:
    """The code with which an administrator's request fails."""
    with pytest.raises(KafkaException) as refusal:
        done.result(DEADLINE_S)
    return int(refusal.value.args[0].code())


def test_nobody_writes_deletes_or_shortens_the_trail_s_topic_and_its_head_is_anchored(
    governed: Any,
) -> None:
    create(governed, "noted")
    admin = AdminClient({"bootstrap.servers": governed.bootstrap})
    until(lambda: AUDIT_TOPIC in admin.list_topics(timeout=DEADLINE_S).topics)
    place = TopicPartition(AUDIT_TOPIC, 0)
    resource = ConfigResource(
        ConfigResource.Type.TOPIC, AUDIT_TOPIC,
        incremental_configs=[
            ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
        ],
    )  # fmt: skip
    codes = {
        "delete": failing(admin.delete_topics([AUDIT_TOPIC])[AUDIT_TOPIC]),
        "records": failing(admin.delete_records([TopicPartition(AUDIT_TOPIC, 0, 1)])[place]),
        "configs": failing(admin.incremental_alter_configs([resource])[resource]),
        "partitions": failing(
            admin.create_partitions([NewPartitions(AUDIT_TOPIC, 2)])[AUDIT_TOPIC]
        ),
    }
    errors = []
    for settings in ({}, {"enable.idempotence": True}, {"transactional.id": "x"}):
        producer = Producer({"bootstrap.servers": governed.bootstrap} | settings)
        if "transactional.id" in settings:
            producer.init_transactions(DEADLINE_S)
            producer.begin_transaction()
        producer.produce(AUDIT_TOPIC, b"{}", on_delivery=lambda error, _: errors.append(error))
        producer.flush(DEADLINE_S)
    denied = KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert set(codes.values()) == {denied}, codes
    # What a transaction may not add is thrown away by the client itself.
    assert [error.code() for error in errors] == [denied, denied, KafkaError._PURGE_QUEUE]
    with pytest.raises(ControlRefused) as refusal:
        Control(governed.control_url).commit_epoch(
            "p", "s", 0, topic=AUDIT_TOPIC, staged=[], checksum=""
        )
    assert refusal.value.code == "TOPIC_AUTHORIZATION_FAILED"
    consumer = Consumer({"bootstrap.servers": governed.bootstrap, "group.id": "g"})
    start, _ = consumer.get_watermark_offsets(place, DEADLINE_S)
    consumer.close()
    assert start == 0
    trail, objects = governed.home / "audit", governed.data_dir / "objects"
    until(lambda: lines_of(trail) and any((objects / "audit").rglob("*")))
    verified = run("audit", "verify", str(trail), "--objects", str(objects))
    assert verified[0] == 0, verified


def test_what_was_derived_of_a_topic_is_proved_after_it_is_gone(governed: Any) -> None:
    create(governed, "p", owner="Payments")
    control = Control(governed.control_url)
    pin = {"owner": "nightly", "positions": [{"topic": "p", "partition": 0, "offset": 0}]}
    control.set_pin("savepoint/x", pin)
    control.plan([OffsetRange("p", 0, 0, 0)])
    code, rows, _ = run("prove", "p", "--bootstrap", governed.bootstrap)
    assert code == 0
    assert {(row["state"], row["what"], row["owner"]) for row in rows} == {
        ("now", "topic", "Payments"), ("now", "pin", "nightly")
    }  # fmt: skip
    control.release_pin("savepoint/x")
    admin = AdminClient({"bootstrap.servers": governed.bootstrap})
    admin.delete_topics(["p"])["p"].result(DEADLINE_S)
    trail = governed.home / "audit"
    until(lambda: any(b'"DeleteTopics"' in data for _, data in lines_of(trail)))
    asked = ("prove", "p", "--bootstrap", governed.bootstrap, "--trail", str(trail))
    code, rows, _ = run(*asked)
    assert code == 0
    assert [(row["state"], row["what"], row["name"]) for row in rows] == [
        ("changed", "CreateTopics", "TOPIC p"),
        ("changed", "PUT pin", "PIN savepoint/x"),
        ("read", "POST plan", "TOPIC p"),
        ("gone", "DELETE pin", "PIN savepoint/x"),
        ("gone", "DeleteTopics", "TOPIC p"),
    ]
    assert rows[0]["evidence"].startswith("line ")
    (path,) = trail.glob("audit-*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"PUT pin"', b'"GET pin"'))
    assert run(*asked)[0] == 4
