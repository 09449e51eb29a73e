"""The assignors of the coordinator: who is meant to have which partition (KIP-848).

`uniform`, the default, gives every member as many partitions as any other, give or take one, as
far as subscriptions allow, and moves no more of them than that takes. `range` gives every
subscriber of a topic consecutive partitions, so that members with the same subscriptions get the
same indexes of topics with as many partitions.

Pure, deterministic, and for n members and p partitions in about (n + p) log n. Where all have the
same subscriptions one round evens out all there is; with others the search for a better exchange
ends after `MOST_ROUNDS`. Neither looks at racks: any broker here reads any partition.
"""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush
from typing import NamedTuple, Protocol

from catchwater.broker.coordination.consumer.member import NOTHING, Partitions
from catchwater.catalog.rows import PartitionKey


class Subscriber(NamedTuple):
    """What an assignor knows of a member."""

    topics: frozenset[bytes]
    """Ids of topics that exist."""
    current: Partitions = NOTHING
    """What it was meant to have so far."""
    instance_id: str | None = None


MOST_ROUNDS = 16

Subscribers = Mapping[str, Subscriber]
Assignment = dict[str, Partitions]


class Assignor(Protocol):
    """Members and the number of each topic's partitions in, everybody's partitions out."""

    def __call__(self, members: Subscribers, partitions: Mapping[bytes, int]) -> Assignment: ...


def assign_ranges(members: Subscribers, partitions: Mapping[bytes, int]) -> Assignment:
    """Consecutive partitions of each topic, static members first, in the order of their names."""
    given: dict[str, list[PartitionKey]] = {member_id: [] for member_id in members}
    order = sorted(
        members, key=lambda m: (members[m].instance_id is None, members[m].instance_id or m)
    )
    for topic, subscribers in _by_topic(members, order, partitions).items():
        least, more = divmod(partitions[topic], len(subscribers))
        start = 0
        for place, member_id in enumerate(subscribers):
            end = start + least + (place < more)
            given[member_id] += [(topic, index) for index in range(start, end)]
            start = end
    return {member_id: frozenset(keys) for member_id, keys in given.items()}


def assign_uniformly(members: Subscribers, partitions: Mapping[bytes, int]) -> Assignment:
    """As even as subscriptions allow, out of what everybody has with as few moves as possible."""
    balance = _Balance(members, partitions)
    topics = _by_topic(members, sorted(members), partitions)
    # Topics that few may have come first, since what many may have evens out the rest.
    order = sorted(topics, key=lambda topic: (len(topics[topic]), topic))
    for topic in order:
        balance.give_out(topic, topics[topic])
    for _ in range(MOST_ROUNDS):
        if not any([balance.even_out(topic, topics[topic]) for topic in order]):
            break
    return {member_id: frozenset(keys) for member_id, keys in balance.given.items()}


ASSIGNORS: Mapping[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}
"""By the name a member asks for; the first is the default."""


def _by_topic(
    members: Subscribers, order: Iterable[str], partitions: Mapping[bytes, int]
) -> dict[bytes, list[str]]:
    """The subscribers of each topic that has any, in this order."""
    subscribers: dict[bytes, list[str]] = {}
    for member_id in order:
        for topic in members[member_id].topics:
            if partitions.get(topic):
                subscribers.setdefault(topic, []).append(member_id)
    return subscribers


class _Balance:
    """An assignment in the making. No partition has two holders, and who holds it subscribes."""

    def __init__(self, members: Subscribers, partitions: Mapping[bytes, int]) -> None:
        self.given: dict[str, set[PartitionKey]] = {}
        # Of each topic: who has which index.
        self._holders: dict[bytes, dict[int, str]] = {topic: {} for topic in partitions}
        self._partitions = partitions
        for member_id in sorted(members):
            topics, current, _ = members[member_id]
            self.given[member_id] = set()
            for topic, index in sorted(current):
                if topic in topics and index < partitions.get(topic, 0):
                    self._give(member_id, topic, index)

    def _give(self, member_id: str, topic: bytes, index: int) -> None:
        if index not in self._holders[topic]:
            self._holders[topic][index] = member_id
            self.given[member_id].add((topic, index))

    def give_out(self, topic: bytes, subscribers: list[str]) -> None:
        """Whatever nobody has goes to who has least."""
        idle = [(len(self.given[m]), m) for m in subscribers]
        heapify(idle)
        for index in range(self._partitions[topic]):
            if index not in self._holders[topic]:
                load, member_id = heappop(idle)
                self._give(member_id, topic, index)
                heappush(idle, (load + 1, member_id))

    def even_out(self, topic: bytes, subscribers: list[str]) -> bool:
        """Move a topic's partitions from who has most to who has least; whether any moved."""
        indexes: dict[str, list[int]] = {}
        for index, member_id in sorted(self._holders[topic].items()):
            indexes.setdefault(member_id, []).append(index)
        idle = [(len(self.given[m]), m) for m in subscribers]
        busy = [(-len(self.given[m]), m) for m in indexes]
        heapify(idle)
        heapify(busy)
        has_moved = False
        while busy:
            load, donor = busy[0]
            least, taker = idle[0]
            if -load - least < 2:
                break
            heappop(busy)
            # Who has just given is never again among those who have least.
            index = indexes[donor].pop()
            del self._holders[topic][index]
            self.given[donor].remove((topic, index))
            self._give(taker, topic, index)
            heappop(idle)
            heappush(idle, (least + 1, taker))
            if indexes[donor]:
                heappush(busy, (load + 1, donor))
            has_moved = True
        return has_moved
