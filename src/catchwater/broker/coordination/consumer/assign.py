"""The coordinator's assignors: they compute which member gets which partition (KIP-848).

`uniform`, the default, gives members equal numbers of partitions, plus or minus one, as far as
subscriptions allow, and moves as few as that takes. `range` gives every subscriber of a topic
consecutive partitions, so that members with the same subscriptions get the same indexes of topics
with as many partitions.

Pure and deterministic; about (n + p) log n for n members and p partitions. If all members have the
same subscriptions one round is enough; otherwise the search ends after `MOST_ROUNDS`. Racks do not
count: any broker here reads any partition.
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
    """Its partitions in the previous target."""
    instance_id: str | None = None


MOST_ROUNDS = 16

Subscribers = Mapping[str, Subscriber]
Assignment = dict[str, Partitions]


class Assignor(Protocol):
    """Computes every member's partitions from subscriptions and each topic's partition count."""

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
    """As even as subscriptions allow, with as few moves from the previous target as possible."""
    balance = _Balance(members, partitions)
    topics = _by_topic(members, sorted(members), partitions)
    # Topics with few subscribers come first: those with many can even out the rest.
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
    """An assignment under construction. Each partition has at most one holder, a subscriber."""

    def __init__(self, members: Subscribers, partitions: Mapping[bytes, int]) -> None:
        self.given: dict[str, set[PartitionKey]] = {}
        # Topic -> index -> the member that has it.
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
        """Give each unassigned partition to the member with the fewest."""
        idle = [(len(self.given[m]), m) for m in subscribers]
        heapify(idle)
        for index in range(self._partitions[topic]):
            if index not in self._holders[topic]:
                load, member_id = heappop(idle)
                self._give(member_id, topic, index)
                heappush(idle, (load + 1, member_id))

    def even_out(self, topic: bytes, subscribers: list[str]) -> bool:
        """Move a topic's partitions from the fullest members to the emptiest; whether any moved."""
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
            # A donor keeps at least as many as the taker gets, so it never becomes a taker.
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
