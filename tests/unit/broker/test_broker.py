"""What handlers ask of the broker itself."""

import gc
import json
from dataclasses import replace
from typing import Any

import pytest

from catchwater.broker.broker import Broker
from catchwater.broker.control.app import create_app
from catchwater.broker.main import _collect_seldom
from catchwater.broker.quotas import Quota
from catchwater.catalog.rows import BrokerRow
from catchwater.clock import ManualClock


def row(number: int) -> BrokerRow:
    return BrokerRow(number, 0, "", "h", 9092, f"http://h{number}:9644", "", False, "live", 0)


def test_all_brokers_agree_on_who_keeps_an_account_and_only_the_lost_one_s_move(client) -> None:
    accounts = [f"client-id:{n}" for n in range(300)]
    client.log.rows = [row(number) for number in (1, 2, 3)]
    before = {account: client.broker.keeper_url(account) for account in accounts}
    assert min(map(list(before.values()).count, set(before.values()))) > 50
    assert len(set(before.values())) == 3
    client.log.rows = [row(1), row(3)]
    after = {account: client.broker.keeper_url(account) for account in accounts}
    moved = {account for account in accounts if before[account] != after[account]}
    assert moved == {account for account in accounts if before[account] == "http://h2:9644"}


def test_a_broker_alone_keeps_all_accounts(broker: Broker) -> None:
    broker.control_url = "http://me:1"
    assert broker.keeper_url("User:a") == "http://me:1"


def test_the_configured_quotas_are_those_of_the_accounts(broker: Broker) -> None:
    assert broker.replay_quotas.limits.quota("User:a", "") is None
    config = replace(
        broker.config,
        catchwater_replay_quota_bytes_per_second=5,
        catchwater_replay_quota_overrides="client-id:nightly=7",
    )
    limits = replace(broker, config=config).replay_quotas.limits
    assert limits.quota("User:a", "") == Quota("User:a", 5)
    assert limits.quota("User:a", "nightly") == Quota("User:a client-id:nightly", 7)


async def asked(broker: Broker, body: Any) -> tuple[int, Any]:
    """A grant, without sockets."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/api/v1/grants", "query_string": b""}
    await create_app(broker)(scope | {"headers": []}, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


async def test_grants_are_given_and_counted(broker: Broker) -> None:
    assert await asked(broker, {"bytes": 100}) == (200, {"bytes": 100, "throttle_ms": 0})
    config = replace(broker.config, catchwater_replay_quota_bytes_per_second=80)
    limited = replace(broker, config=config)
    assert await asked(limited, {"bytes": 100}) == (200, {"bytes": 20, "throttle_ms": 250})
    page = limited.metrics.page().decode()
    assert "catchwater_replay_granted_bytes_total 120.0" in page
    assert "catchwater_replay_throttled_seconds_total 0.25" in page


@pytest.mark.parametrize("body", [{}, {"bytes": 0}, {"bytes": "x"}])
async def test_a_grant_of_nothing_is_refused(broker: Broker, body: Any) -> None:
    status, answer = await asked(broker, body)
    assert (status, answer["error"]) == (400, "INVALID_BODY")


async def test_nobody_waits_for_a_collection_of_all_that_was_imported() -> None:
    collected, imported = [], list[list[int]]()

    def note(phase: str, told: dict[str, int]) -> None:
        if phase == "start" and told["generation"] == 2:
            collected.append(len(imported))

    class Importing(ManualClock):
        async def sleep(self, seconds: float) -> None:
            imported.extend([number] for number in range(10_000))

    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    try:
        await _collect_seldom(Importing())
        assert collected == [0], "once, and before"
        assert not any(each is imported for each in gc.get_objects()), "it is frozen as well"
    finally:
        gc.callbacks.remove(note)
        gc.unfreeze()
        gc.set_threshold(*thresholds)
