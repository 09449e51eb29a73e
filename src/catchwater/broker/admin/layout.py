"""What clients are told of brokers and replicas, where in truth any broker serves any partition.

Administration asks for leaders, replicas and a controller. It is told what Metadata tells: each
partition's recommended broker as its leader and only replica (`zones`), and this broker as the
controller, since all of them take any request. A replication factor is how many brokers can serve
a partition, so it may be as high as there are brokers; the data itself is kept by its storage.

Pure, but for asking the broker who is there and what may be done.
"""

from collections.abc import Callable, Iterable, Sequence

from catchwater.broker import zones
from catchwater.broker.broker import Broker, Call
from catchwater.broker.gate import THE_CLUSTER, Operation, Resource, ResourceType
from catchwater.catalog.rows import PartitionKey

MAX_PARTITIONS = 10_000
"""Of one topic; a request for more is taken for a mistake."""

_BITS = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
}
_OF_CLUSTER = _BITS.keys() - {Operation.READ, Operation.WRITE, Operation.DELETE}


def controller_id(broker: Broker) -> int:
    """The broker told as the controller: this one, unless it is about to stop."""
    ids = [row.id for row in zones.candidates(broker.brokers)]
    mine = broker.config.node_id
    return mine if mine in ids else ids[0]


def leaders(broker: Broker, call: Call) -> Callable[[PartitionKey], int]:
    """Which broker this client is told as the leader of a partition, as by Metadata."""
    listed = zones.candidates(broker.brokers)
    near = zones.candidates(listed, zones.zone_of(call.header.client_id))
    return lambda key: zones.leader(near, key).id


def refused_factor(broker: Broker, factor: int) -> str | None:
    """Why a topic cannot have this replication factor; None where it can."""
    brokers = len(broker.brokers)
    if 1 <= factor <= brokers:
        return None
    if brokers == 1:
        return "The replication factor is 1: there is one broker that can serve the topic."
    return f"The replication factor is from 1 to {brokers}, for so many brokers can serve a topic."


def refused_assignments(broker: Broker, assignments: Iterable[Sequence[int]]) -> str | None:
    """Why partitions cannot lie on these brokers, a list for each; None where they do anyway."""
    ids = {row.id for row in broker.brokers}
    for wanted in assignments:
        if not wanted or len(set(wanted)) < len(wanted):
            return "A partition is assigned to at least one broker, and to each of them once."
        missing = set(wanted) - ids
        if missing:
            return f"There is no broker {min(missing)} that a partition could lie on."
    return None


def topic_operations(broker: Broker, principal: str, topic: str) -> int:
    """What the principal may do with a topic, as a set of bits (KIP-430)."""
    resource = Resource(ResourceType.TOPIC, topic)
    return _set(broker, principal, resource, _BITS)


def cluster_operations(broker: Broker, principal: str) -> int:
    """What the principal may do with the cluster, as a set of bits (KIP-430)."""
    return _set(broker, principal, THE_CLUSTER, _OF_CLUSTER)


def _set(
    broker: Broker, principal: str, resource: Resource, operations: Iterable[Operation]
) -> int:
    may = (each for each in operations if broker.gate.may(principal, each, resource))
    return sum(1 << _BITS[each] for each in may)
