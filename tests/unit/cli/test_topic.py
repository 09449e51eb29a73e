"""Topics over the Kafka protocol, with a broker that is a dict."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from catchwater.cli import topic
from catchwater.wire.client import EARLIEST, Cluster


class Broker:
    """Topics by name with their number of partitions."""

    def __init__(self) -> None:
        self.topics = {"payments": 2}

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, *error: object) -> None: ...

    def metadata(self, names: Sequence[str] | None = None) -> Cluster:
        wanted = self.topics if names is None else {n: self.topics.get(n, 0) for n in names}
        leaders = {(name, p): 1 for name, count in wanted.items() for p in range(count)}
        return Cluster("c", {1: ("127.0.0.1", 9092)}, leaders)

    def create_topics(self, topics: Mapping[str, int], config: Mapping[str, str]) -> None:
        self.topics.update(topics)

    def delete_topics(self, names: Sequence[str]) -> None:
        for name in names:
            del self.topics[name]

    def list_offsets(self, wanted: Mapping[Any, int]) -> dict[Any, int]:
        return {key: 0 if time == EARLIEST else 10 + key[1] for key, time in wanted.items()}


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(topic, "_client", lambda *told: broker)
    return broker


def test_topics_are_listed(catchwater: Any) -> None:
    assert json.loads(catchwater("topic", "list", "--json").out) == [
        {"topic": "payments", "partitions": 2}
    ]
    assert catchwater("topic", "list").out == "topic     partitions\npayments           2\n"


def test_a_topic_is_created_once(catchwater: Any, broker: Broker) -> None:
    assert catchwater("topic", "create", "alerts", "--partitions", 4).code == 0
    assert "exists already" in catchwater("topic", "create", "alerts", "-p", 9).err
    assert broker.topics["alerts"] == 4


def test_a_dry_run_creates_and_deletes_nothing(catchwater: Any, broker: Broker) -> None:
    catchwater("topic", "create", "alerts", "--dry-run")
    catchwater("topic", "delete", "payments", "--dry-run")
    assert broker.topics == {"payments": 2}


def test_deleting_asks_first(
    catchwater: Any, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *prompt: "n")
    assert catchwater("topic", "delete", "payments").code == 1
    assert broker.topics == {"payments": 2}
    assert catchwater("topic", "delete", "payments", "--yes").code == 0
    assert broker.topics == {}


def test_each_partition_is_described(catchwater: Any) -> None:
    assert json.loads(catchwater("topic", "describe", "payments", "--json").out) == [
        {"partition": 0, "leader": 1, "first_offset": 0, "end_offset": 10},
        {"partition": 1, "leader": 1, "first_offset": 0, "end_offset": 11},
    ]


@pytest.mark.parametrize("verb", ["describe", "delete"])
def test_a_topic_that_does_not_exist_is_named(catchwater: Any, verb: str) -> None:
    answer = catchwater("topic", verb, "nothing")
    assert answer == (1, "", "error: There is no topic nothing.\nhint: catchwater topic list\n")


def test_a_setting_that_is_no_pair_is_a_usage_error(catchwater: Any) -> None:
    assert catchwater("topic", "create", "alerts", "--config", "retention.ms").code == 2
