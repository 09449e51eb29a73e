"""A pytest plugin that lets kafka-python's integration tests use a broker that is running already.

Loaded into the environment of those tests, which has neither our packages nor this one. In the
environment `BROKER_ADDRESSES` says where each protocol is spoken, as JSON, and the folder
`BROKER_CERTIFICATES` has the authority's certificate under the name that the tests expect.
"""

import json
import os
import sys
import types
from typing import Any

import pytest


class ExternalService:
    """What the tests hold of a broker that they did not start."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port

    def dump_logs(self) -> None:
        """Its log is with whoever started it."""


class SpawnedService:
    """The tests name it, and would start a Kafka with it; here none can."""


service = types.ModuleType("test.service")
service.ExternalService = ExternalService  # type: ignore[attr-defined]
service.SpawnedService = SpawnedService  # type: ignore[attr-defined]
sys.modules["test.service"] = service


def pytest_configure(config: pytest.Config) -> None:
    """Have the tests find a broker where they would start one."""
    from kafka import KafkaAdminClient
    from test.integration import fixtures

    addresses = json.loads(os.environ["BROKER_ADDRESSES"])

    def running(cls: Any, broker_id: int, **asked: Any) -> Any:
        host, _, port = addresses[asked.get("transport", "PLAINTEXT")].rpartition(":")
        asked.pop("tmp_dir", None)
        fixture = cls(host, int(port), broker_id, external=True, **asked)
        fixture.ssl_dir = os.environ["BROKER_CERTIFICATES"]
        return fixture

    def topic_names(self: Any) -> Any:  # it would start Kafka's own tool
        with KafkaAdminClient(**fixtures.client_params(self)) as admin:
            return admin.list_topics()

    fixtures.KafkaFixture.instance = classmethod(running)
    fixtures.KafkaFixture.get_topic_names = topic_names
