"""The broker that replies name as leader, coordinator or controller, though any could serve.

The leader in Metadata is a recommendation for one client: a broker of the client's zone if there
is one, spread evenly. Rendezvous hashing gives each partition a favourite among the candidates. It
is the same on every broker that knows the same candidates, and if a broker is lost only its own
partitions move. The coordinators of groups and transactional ids follow the same rule, regardless
of the client's zone.

A client names its zone as `zone=NAME` in its client id (`zone=a,app=orders`), or in a Fetch as
`client.rack` (KIP-392).

Administrative replies agree with this: the recommended broker is a partition's leader and only
replica, and this broker is the controller, because every broker takes every request. A replication
factor is accepted up to the number of brokers; the storage keeps the data.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING

from catchwater.catalog.rows import BrokerRow, PartitionKey

if TYPE_CHECKING:
    from catchwater.broker.broker import Broker, Call

_ZONE = re.compile(r"(?:^|[,; ])zone=([^,; ]+)")
MAX_PARTITIONS = 10_000
"""Bound of one topic; a request for more is probably a mistake."""


def zone_of(client_id: str | None) -> str:
    """The zone in a client id; empty if there is none."""
    found = _ZONE.search(client_id or "")
    return found[1] if found else ""


def candidates(brokers: Sequence[BrokerRow], zone: str = "") -> Sequence[BrokerRow]:
    """The brokers to recommend to a client of this zone: those of its zone, else all live ones.

    A draining broker is a candidate only if there is no other.
    """
    staying = [broker for broker in brokers if broker.state == "live"] or brokers
    near = [broker for broker in staying if zone and broker.zone == zone]
    return near or staying


def favourite(brokers: Sequence[BrokerRow], key: bytes) -> BrokerRow:
    """The broker with the highest score for this key; there is at least one."""
    if len(brokers) == 1:
        return brokers[0]
    return max(brokers, key=lambda broker: (_score(broker.id, key), broker.id))


def leader(brokers: Sequence[BrokerRow], partition: PartitionKey) -> BrokerRow:
    """The broker to name as a partition's leader, out of `candidates`."""
    topic_id, index = partition
    return favourite(brokers, topic_id + index.to_bytes(4, "big"))


def coordinator(brokers: Sequence[BrokerRow], name: str) -> BrokerRow:
    """The broker that coordinates a group or a transactional id; there is at least one."""
    return favourite(candidates(brokers), name.encode())


def _score(broker_id: int, key: bytes) -> bytes:
    return blake2b(key, digest_size=8, salt=broker_id.to_bytes(8, "big")).digest()


def controller_id(broker: "Broker") -> int:
    """The broker to name as the controller: this one, unless it is draining."""
    ids = [row.id for row in candidates(broker.brokers)]
    mine = broker.config.node_id
    return mine if mine in ids else ids[0]


def leaders(broker: "Broker", call: "Call") -> Callable[[PartitionKey], int]:
    """Partition to the id of the leader that Metadata names to this client."""
    listed = candidates(broker.brokers)
    near = candidates(listed, zone_of(call.header.client_id))
    return lambda key: leader(near, key).id


def refused_factor(broker: "Broker", factor: int) -> str | None:
    """Why a replication factor is refused; None if it is not."""
    brokers = len(broker.brokers)
    if 1 <= factor <= brokers:
        return None
    if brokers == 1:
        return "The replication factor is 1: there is one broker that can serve the topic."
    return f"The replication factor is from 1 to {brokers}, for so many brokers can serve a topic."


def refused_assignments(broker: "Broker", assignments: Iterable[Sequence[int]]) -> str | None:
    """Why manual assignments, a list of brokers each, are refused; None if they are not."""
    ids = {row.id for row in broker.brokers}
    for wanted in assignments:
        if not wanted or len(set(wanted)) < len(wanted):
            return "A partition is assigned to at least one broker, and to each of them once."
        missing = set(wanted) - ids
        if missing:
            return f"There is no broker {min(missing)} that a partition could lie on."
    return None
