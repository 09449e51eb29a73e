"""A pytest plugin that lets kafka-python's integration tests use a broker that is running already.

Loaded into the environment of those tests, which has neither our packages nor this one.
"""

import sys
import types

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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what starts a broker although it was told of one."""
    for item in items:
        if item.path.name == "test_ssl_integration.py":
            item.add_marker(pytest.mark.skip(reason="Starts a broker of its own, for TLS"))
