"""What a caller may do with a group, as Kafka's bit fields (KIP-430)."""

from catchwater.broker.broker import Broker, Call
from catchwater.broker.gate import Operation, Resource, ResourceType

NOT_ASKED = -(2**31)
"""Stands for the operations that nobody asked for."""

_BITS = {Operation.READ: 3, Operation.DELETE: 6, Operation.DESCRIBE: 8}
"""The operations there are on a group, by their codes in Kafka's `AclOperation`."""


def operations(broker: Broker, call: Call, group_id: str) -> int:
    """All that the caller may do with the group."""
    group = Resource(ResourceType.GROUP, group_id)
    asked = ((bit, broker.gate.may(call.principal, what, group)) for what, bit in _BITS.items())
    return sum(1 << bit for bit, may in asked if may)
