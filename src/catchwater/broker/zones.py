"""Which broker a client should talk to: one of its own zone where there is one, evenly spread.

No broker leads a partition, so what Metadata calls a leader is a recommendation, made anew for
every client: rendezvous hashing gives each partition a favourite among the candidates, the same on
every broker that knows the same ones, and moves only a lost broker's partitions elsewhere. Groups
and transactional ids have their coordinator by the same rule, whatever the client's zone.

A client names its zone as `zone=NAME` in its client id (`zone=a,app=orders`), or when it fetches
as `client.rack` (KIP-392). Pure: brokers in, a broker out.
"""

import re
from collections.abc import Sequence
from hashlib import blake2b

from catchwater.catalog.rows import BrokerRow, PartitionKey

_ZONE = re.compile(r"(?:^|[,; ])zone=([^,; ]+)")


def zone_of(client_id: str | None) -> str:
    """The zone that a client id names; empty where it names none."""
    found = _ZONE.search(client_id or "")
    return found[1] if found else ""


def candidates(brokers: Sequence[BrokerRow], zone: str = "") -> Sequence[BrokerRow]:
    """The brokers a client of this zone may be sent to: its own zone's, else any that stays.

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
    """The broker to be told as a partition's leader, out of `candidates`."""
    topic_id, index = partition
    return favourite(brokers, topic_id + index.to_bytes(4, "big"))


def coordinator(brokers: Sequence[BrokerRow], name: str) -> BrokerRow:
    """The broker that coordinates a group or a transactional id; there is at least one."""
    return favourite(candidates(brokers), name.encode())


def _score(broker_id: int, key: bytes) -> bytes:
    return blake2b(key, digest_size=8, salt=broker_id.to_bytes(8, "big")).digest()
