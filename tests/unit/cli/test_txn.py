"""Transactions over the Kafka protocol, with a broker that is a dict."""

import json
from typing import Any

import pytest

from catchwater.cli import txn


class Broker:
    """Transactional ids with producer id and state."""

    def __init__(self) -> None:
        self.found = {"b": (2, "Ongoing"), "a": (1, "CompleteCommit")}

    def __enter__(self) -> "Broker":
        return self

    def __exit__(self, *error: object) -> None: ...

    def transactions(self) -> dict[str, tuple[int, str]]:
        return self.found

    def init_producer_id(self, transactional_id: str) -> tuple[int, int]:
        producer_id, _ = self.found[transactional_id]
        self.found[transactional_id] = (producer_id, "Empty")
        return producer_id, 1


@pytest.fixture(autouse=True)
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    broker = Broker()
    monkeypatch.setattr(txn, "_client", lambda *told: broker)
    return broker


def test_transactional_ids_are_listed_all_or_the_open_ones(catchwater: Any) -> None:
    every = json.loads(catchwater("txn", "list", "--json").out)
    assert [row["transactional_id"] for row in every] == ["a", "b"]
    assert json.loads(catchwater("txn", "list", "--open", "--json").out) == [
        {"transactional_id": "b", "producer_id": 2, "state": "Ongoing"}
    ]
    assert "CompleteCommit" in catchwater("txn", "list").out


def test_what_hangs_is_aborted(catchwater: Any, broker: Broker) -> None:
    catchwater("txn", "abort", "b", "--yes")
    assert broker.found["b"] == (2, "Empty")


def test_an_unknown_id_is_named(catchwater: Any) -> None:
    assert "no transactional id x" in catchwater("txn", "abort", "x", "--yes").err
