"""A case's conversation with one broker: what it asks is written down, what it prepares is not.

A broker that closes the connection has answered that: "closed" is written down, and the next
request goes through a new connection. Names of topics and groups are the same on both brokers.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from catchwater.clock import Clock
from catchwater.wire.connection import Connection, ConnectionLost, ask
from catchwater.wire.fields import MalformedMessage
from conformance.differ.plain import Names, of_the_case, plain
from conformance.differ.requests import request

TIMEOUT_S = 20.0
CREATE_TOPICS, METADATA, LIST_OFFSETS = 19, 3, 2
NO_TOPIC_ID = UUID("00000000-0000-4000-8000-00000000beef")
"""The id of a topic that does not exist."""


class Topic(NamedTuple):
    """A topic made for a case."""

    name: str
    id: UUID | None


class Broker:
    """One of the two targets: its address, and the versions of each API that both serve."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._address = host, int(port)
        self._connection: Connection | None = None
        self.versions: Mapping[int, Sequence[int]] = {}

    def ask(self, api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
        """The reply, or a word for why there is none."""
        return self.send(request(api_key, version, fields))

    def send(self, message: Any) -> Any:
        """As `ask`, of a whole request."""
        try:
            if self._connection is None:
                self._connection = self._connected()
            return ask(self._connection, "differ", message)
        except ConnectionLost as lost:
            self.close()
            return "silent" if "timed out" in str(lost) else "closed"
        except MalformedMessage as malformed:
            self.close()
            return f"malformed: {malformed}"

    def _connected(self) -> Connection:
        return Connection(*self._address, timeout_s=TIMEOUT_S, clock=Clock())

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Talk:
    """What a case is given: the version to ask in, and ways to ask and to prepare."""

    def __init__(self, broker: Broker, case: str, api_key: int, version: int) -> None:
        self.broker = broker
        self.version = version
        self.heard: list[Any] = []
        self._api_key = api_key
        self._prefix = f"{case}-{api_key}-{version}-"
        self._names = Names(self._prefix)

    def name(self, suffix: str = "x") -> str:
        """A name that no other case, and no other version of this one, has."""
        return f"{self._prefix}{suffix}"

    def ask(self, **fields: Any) -> Any:
        """Ask the API of the case in the version of the talk, and write down the reply."""
        reply = self.broker.ask(self._api_key, self.version, fields)
        self.heard.append(plain(reply, self._names))
        return reply

    def ask_of_mine(self, **fields: Any) -> None:
        """The same; of what is listed only what the case has named is written down."""
        reply = self.broker.ask(self._api_key, self.version, fields)
        self.heard.append(plain(of_the_case(reply, self._prefix), self._names))

    def also(self, api_key: int, **fields: Any) -> Any:
        """Ask another API, in the newest version both serve, and write down the reply."""
        reply = self.prepare(api_key, **fields)
        self.heard.append(plain(reply, self._names))
        return reply

    def prepare(self, api_key: int, **fields: Any) -> Any:
        """Ask another API, in the newest version both serve; its reply is not compared."""
        return self.broker.ask(api_key, self.broker.versions[api_key][-1], fields)

    def prepare_version(self, api_key: int, version: int, **fields: Any) -> Any:
        """Ask another API in this version; its reply is not compared."""
        return self.broker.ask(api_key, version, fields)

    def until(self, is_so: Callable[[], bool], what: str) -> None:
        """Ask again until it is so."""
        deadline = time.monotonic() + TIMEOUT_S
        while not is_so():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self._prefix} {what} did not happen")
            time.sleep(0.01)

    def topic(self, suffix: str = "t", partitions: int = 1, **configs: str) -> Topic:
        """A new topic, and its partitions have leaders."""
        name = self.name(suffix)
        settings = [{"name": k.replace("_", "."), "value": v} for k, v in configs.items()]
        self.prepare(
            CREATE_TOPICS,
            topics=[
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": 1,
                    "configs": settings,
                }
            ],
        )
        shown: Any = None

        def is_led() -> bool:
            nonlocal shown
            found = self.prepare(METADATA, topics=[{"name": name}])
            shown = found.topics[0]
            return len(shown.partitions) == partitions and all(
                p.leader_id >= 0 for p in shown.partitions
            )

        def is_served() -> bool:
            asked = [
                {"partition_index": index, "timestamp": -1, "current_leader_epoch": -1}
                for index in range(partitions)
            ]
            found = self.prepare(LIST_OFFSETS, topics=[{"name": name, "partitions": asked}])
            return all(int(p.error_code) == 0 for p in found.topics[0].partitions)

        self.until(is_led, f"a leader for {name}")
        self.until(is_served, f"an answer of the leader for {name}")
        if shown.topic_id is not None:
            self._names.give("topic", shown.topic_id, f"~{suffix}")
        return Topic(name, shown.topic_id)
