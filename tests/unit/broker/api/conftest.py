"""What tests of handlers share: a gate that denies what a test names."""

from collections.abc import Callable

import pytest

from catchwater.broker.gate import AllowAll, Operation, Resource

Denied = tuple[str, str]
"""An operation and the name of a resource."""


class Deny(AllowAll):
    """Denies these, to everybody."""

    def __init__(self, denied: frozenset[Denied]) -> None:
        self.denied = denied

    def may(self, principal: str, operation: Operation, resource: Resource) -> bool:
        return (operation.value, resource.name) not in self.denied


@pytest.fixture
def deny(client) -> Callable[..., None]:
    def deny(*denied: Denied) -> None:
        client.broker.gate = Deny(frozenset(denied))

    return deny


@pytest.fixture
def deny_cluster(deny) -> None:
    deny(*((operation.value, "kafka-cluster") for operation in Operation))
