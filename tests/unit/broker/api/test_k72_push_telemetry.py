"""Telemetry of clients: nothing is asked for, nothing is kept, and nobody is told to try."""

from uuid import UUID

import pytest
from kio.schema.api_versions.v2.request import ApiVersionsRequest
from kio.schema.get_telemetry_subscriptions.v0.request import GetTelemetrySubscriptionsRequest
from kio.schema.push_telemetry.v0.request import PushTelemetryRequest

MINE = UUID(int=7)


async def test_a_client_is_given_an_id_and_nothing_to_push(client) -> None:
    new = await client.send(GetTelemetrySubscriptionsRequest(client_instance_id=None))
    known = await client.send(GetTelemetrySubscriptionsRequest(client_instance_id=MINE))
    assert new.client_instance_id not in (None, MINE)
    assert known.client_instance_id == MINE
    for reply in (new, known):
        assert (reply.error_code.name, reply.requested_metrics) == ("none", ())
        assert reply.push_interval.total_seconds() == 300


async def test_neither_api_is_announced(client) -> None:
    keys = {each.api_key for each in (await client.send(ApiVersionsRequest())).api_keys}
    assert keys == set(client.broker.apis) - {71, 72}


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({}, "none"),
        ({"compression_type": 4, "terminating": True}, "none"),
        ({"client_instance_id": None}, "invalid_request"),
        ({"subscription_id": 77}, "unknown_subscription_id"),
        ({"compression_type": 9}, "unsupported_compression_type"),
        ({"metrics": bytes(2**20 + 1)}, "telemetry_too_large"),
    ],
)
async def test_what_is_pushed_is_checked_and_dropped(client, changes, error) -> None:
    told = await client.send(GetTelemetrySubscriptionsRequest(client_instance_id=MINE))
    push = {
        "client_instance_id": MINE,
        "subscription_id": told.subscription_id,
        "terminating": False,
        "compression_type": 0,
        "metrics": b"metrics",
    }
    reply = await client.send(PushTelemetryRequest(**(push | changes)))
    assert reply.error_code.name == error
