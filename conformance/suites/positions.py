"""The committed positions of groups, watched from outside while a suite runs."""

import threading
from collections.abc import Iterable

from catchwater.wire.connection import ConnectionLost
from conformance.differ.talk import Broker

OFFSET_FETCH, VERSION = 9, 7
EVERY_S = 0.2


class NoAnswer(Exception):
    """The broker is down, or not the group's coordinator yet."""


class Positions:
    """Asked for again and again, in a thread, from the start of a `with` to its end."""

    def __init__(self, bootstrap: str, topic: str, groups: Iterable[str]) -> None:
        self.samples: dict[str, list[dict[int, int]]] = {group: [] for group in groups}
        self._bootstrap, self._topic = bootstrap, topic
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Positions":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        broker = Broker(self._bootstrap)
        while not self._stopped.wait(EVERY_S):
            for group, samples in self.samples.items():
                try:
                    samples.append(self._ask(broker, group))
                except NoAnswer:
                    continue
        broker.close()

    def now(self, group: str) -> dict[int, int]:
        """Position by partition, of those that have one. Raises `NoAnswer`."""
        broker = Broker(self._bootstrap)
        try:
            return self._ask(broker, group)
        finally:
            broker.close()

    def _ask(self, broker: Broker, group: str) -> dict[int, int]:
        fields = {"group_id": group, "topics": None, "require_stable": False}
        try:
            reply = broker.ask(OFFSET_FETCH, VERSION, fields)
        except ConnectionLost as lost:
            raise NoAnswer(str(lost)) from lost
        if isinstance(reply, str) or int(reply.error_code):
            raise NoAnswer(str(reply))
        return {
            each.partition_index: each.committed_offset
            for topic in reply.topics
            for each in topic.partitions
            if topic.name == self._topic and each.committed_offset >= 0
        }
