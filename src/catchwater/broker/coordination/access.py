"""Who may do what with a group, asked of the gate, and told as Kafka's bit fields (KIP-430)."""

from catchwater.broker.broker import Broker, Call
from catchwater.broker.gate import Operation, Resource, ResourceType

NOT_ASKED = -(2**31)
"""Stands for the operations that nobody asked for."""

_BITS = {Operation.READ: 3, Operation.DELETE: 6, Operation.DESCRIBE: 8}
"""The operations there are on a group, by their codes in Kafka's `AclOperation`."""


def may(broker: Broker, call: Call, operation: Operation, group_id: str) -> bool:
    """Whether the gate lets the caller do this with the group, which need not exist."""
    return broker.gate.may(call.principal, operation, Resource(ResourceType.GROUP, group_id))


def operations(broker: Broker, call: Call, group_id: str) -> int:
    """All that the caller may do with the group."""
    return sum(1 << bit for what, bit in _BITS.items() if may(broker, call, what, group_id))
