"""The topics there are, kept in memory by name and by id."""

from collections.abc import Callable, Iterable, Iterator

from catchwater.catalog.errors import TopicUnknown
from catchwater.catalog.rows import Topic


def collision(name: str, other: str) -> str:
    """Why there cannot be a topic of this name beside that of the other."""
    return f"Topic {name} collides with {other}: their names differ in '.' and '_' only."


class Topics:
    """Iterates in name order; changed only by the log, after the catalog has been."""

    def __init__(self, topics: Iterable[Topic] = ()) -> None:
        self._by_name = {topic.name: topic for topic in topics}
        self._by_id = {topic.id: topic for topic in self._by_name.values()}
        # Asked for every partition of every request, so there is no function of ours between.
        self.get: Callable[[str], Topic | None] = self._by_name.get
        """The topic of this name, if there is one."""
        self.by_id: Callable[[bytes], Topic | None] = self._by_id.get
        """The topic with this id, if there is one."""

    def colliding(self, name: str) -> str | None:
        """Another topic's name that differs from this one in `.` and `_` only, if there is one."""
        plain = name.replace(".", "_")
        others = (other for other in self._by_name if other.replace(".", "_") == plain)
        return next((other for other in others if other != name), None)

    def name_of(self, topic_id: bytes) -> str | None:
        """The name of the topic with this id, if there is one."""
        topic = self._by_id.get(topic_id)
        return topic.name if topic else None

    def find(self, name: str) -> Topic:
        """The topic of this name. Raises `TopicUnknown`."""
        topic = self._by_name.get(name)
        if topic is None:
            raise TopicUnknown(f"There is no topic {name}.")
        return topic

    def add(self, topic: Topic) -> None:
        """A topic was created."""
        self._by_name[topic.name] = self._by_id[topic.id] = topic

    def remove(self, topic: Topic) -> None:
        """A topic was deleted."""
        del self._by_name[topic.name]
        del self._by_id[topic.id]

    def __iter__(self) -> Iterator[Topic]:
        return iter(sorted(self._by_name.values(), key=lambda topic: topic.name))

    def __len__(self) -> int:
        return len(self._by_name)
