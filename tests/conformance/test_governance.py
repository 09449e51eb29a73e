"""`catchwater governance map` and `prove`, beside a real broker and its audit trail."""

import json
import subprocess
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from tests.conformance.corpus import DEADLINE_S
from tests.conftest import COMMAND, until

from catchwater.audit import lines_of
from catchwater.replay.control import Control
from catchwater.replay.plan import Wanted


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
    create(governed, "nobodys")
    code, places, told = run("map", "--bootstrap", governed.bootstrap)
    found = {each["name"]: each for each in places}
    assert code == 3 and "nobodys" in told and "owned" not in told.split("nobody owns")[0]
    assert found["owned"]["owner"] == "team-a@example.com"
    assert found["owned"]["residency"] == "eu-central-1"
    assert found["owned"]["place"].startswith("file://")
    assert found["owned"]["encrypted"] == "no"


def test_what_was_derived_of_a_topic_is_proved_after_it_is_gone(governed: Any) -> None:
    create(governed, "p", owner="Payments")
    control = Control(governed.control_url)
    pin = {"owner": "nightly", "positions": [{"topic": "p", "partition": 0, "offset": 0}]}
    control.set_pin("savepoint/x", pin)
    control.plan([Wanted("p", 0, 0, 0)])
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
