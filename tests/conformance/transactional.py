"""A transactional producer of raw requests, one step at a time, and a reader of what it committed.

Every step can be repeated word by word, as a client does that was not answered; ending does not
change what the producer believes its epoch to be, so that an end can be late, too.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from conformance.differ.requests import request
from tests.conformance.loads import PATIENCE_S, Client
from tests.simulation.records import build, committed, parse

TOPIC = "t"
INIT, ANNOUNCE, WRITE, JOIN, MOVE = "init", "announce", "write", "join", "move"
COMMIT, ABORT, AGAIN, SETTLE, SWEEP = "commit", "abort", "again", "settle", "sweep"
BEGUN = {1: (INIT, ANNOUNCE, WRITE, JOIN, MOVE), 2: (INIT, WRITE, MOVE)}
"""The steps of an open transaction, by the version of the protocol (KIP-98, KIP-890)."""
FENCED = "producer_fenced"
SETTLE_S, SWEEP_S = 1.5, 3.0
"""The catalog follows the log within a second; who overstays is found within two ticks."""


class Producer:
    """One transactional id, which repeats any of its steps word by word."""

    def __init__(self, number: int, version: int, timeout_ms: int) -> None:
        self.name = f"x{number}"
        self.partitions = (2 * number, 2 * number + 1)
        self.version = version
        self.timeout_ms = timeout_ms
        self.id = self.epoch = -1
        self.given: tuple[int, int] | None = None
        """What to go on with, told by the last end."""
        self.sent = 0
        self.sequence = 0
        self.answered: set[str] = set()

    def take(self, client: Client, step: str) -> None:
        """One step, until it is answered with no error; `OSError` when the broker is gone."""
        if step in (SETTLE, SWEEP):
            self.wait(client, SWEEP_S if step == SWEEP else SETTLE_S)
        elif step in (INIT, AGAIN):
            self.begin(client, expected=self.version == 2 and step == AGAIN)
        else:
            ask = {ANNOUNCE: self.announce, WRITE: self.write, JOIN: self.join, MOVE: self.move}
            asked = ask.get(step) or (lambda client: self.end(client, committed=step == COMMIT))
            assert until_possible(lambda: asked(client)) == "none", (self.name, step)
        self.answered.add(step)

    @staticmethod
    def wait(client: Client, longest_s: float) -> None:
        client.socket.settimeout(longest_s)
        try:
            if client.socket.recv(1) == b"":
                raise ConnectionResetError
        except TimeoutError:
            client.socket.settimeout(PATIENCE_S)

    def begin(self, client: Client, *, expected: bool = False) -> None:
        """Be a newcomer, or (KIP-360) the same producer that wants a new epoch."""
        had = {"producer_id": self.id, "producer_epoch": self.epoch} if expected else {}
        asked = {
            "transactional_id": self.name,
            "transaction_timeout": self.timeout_ms,
            **(had or {"producer_id": -1, "producer_epoch": -1}),
        }
        replies = []

        def ask() -> str:
            replies.append(client.call(request(22, 4, asked)))
            return replies[-1].error_code.name

        assert until_possible(ask) == "none", self.name
        self.id, self.epoch, self.sequence = replies[-1].producer_id, replies[-1].producer_epoch, 0
        self.given = None

    def who(self) -> dict[str, Any]:
        return {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
        }

    def announce(self, client: Client) -> str:
        topics = [{"name": TOPIC, "partitions": list(self.partitions)}]
        asked = {f"v3_and_below_{name}": value for name, value in self.who().items()}
        reply = client.call(request(24, 3, asked | {"v3_and_below_topics": topics}))
        found = reply.results_by_topic_v3_and_below[0].results_by_partition
        return same(each.partition_error_code.name for each in found)

    def write(self, client: Client) -> str:
        batch = build(
            [(None, str(self.sent + 1))],
            timestamp_ms=round(time.time() * 1000),
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=True,
        )
        data = [{"index": partition, "records": batch} for partition in self.partitions]
        asked = {
            "transactional_id": self.name,
            "acks": -1,
            "topic_data": [{"name": TOPIC, "partition_data": data}],
        }
        reply = client.call(request(0, 12 if self.version == 2 else 11, asked))
        return same(each.error_code.name for each in reply.responses[0].partition_responses)

    def join(self, client: Client) -> str:
        return client.call(request(25, 3, self.who() | {"group_id": self.name})).error_code.name

    def move(self, client: Client) -> str:
        position = {"partition_index": 0, "committed_offset": self.sent + 1}
        topics = [{"name": TOPIC, "partitions": [position | {"committed_metadata": ""}]}]
        member = {"group_id": self.name, "generation_id": -1, "member_id": ""}
        version = 5 if self.version == 2 else 3
        reply = client.call(request(28, version, self.who() | member | {"topics": topics}))
        return reply.topics[0].partitions[0].error_code.name

    def end(self, client: Client, *, committed: bool) -> str:
        """EndTxn; the epoch goes on only in `transaction`, so that it may be asked for again."""
        version = 5 if self.version == 2 else 3
        reply = client.call(request(26, version, self.who() | {"committed": committed}))
        if reply.error_code.name == "none":
            self.given = (
                (reply.producer_id, reply.producer_epoch) if version == 5 else (self.id, self.epoch)
            )
        return reply.error_code.name

    def late_end(self, client: Client) -> str:
        """An EndTxn that this producer sent before its last epoch, and that arrives only now."""
        version = 5 if self.version == 2 else 3
        asked = self.who() | {"producer_epoch": self.epoch - 1, "committed": True}
        return client.call(request(26, version, asked)).error_code.name

    def transaction(self, client: Client, *, is_new: bool) -> None:
        """A whole transaction, as a newcomer or going on; nothing of an older epoch touches it."""
        begun = self.epoch
        if is_new:
            self.begin(client)
        elif self.given is not None:
            self.id, self.epoch = self.given
            self.sequence = 0 if self.version == 2 else self.sequence + 1
        for step in BEGUN[self.version][1:]:
            self.take(client, step)
        if self.epoch > begun >= 0:
            assert self.late_end(client) == FENCED
        self.take(client, COMMIT)


def same(names: Iterable[str]) -> str:
    (name,) = set(names)
    return name


def until_possible(ask: Callable[[], str]) -> str:
    """Again while the transaction before is still being ended."""
    deadline = time.monotonic() + PATIENCE_S
    while (answer := ask()) == "concurrent_transactions" and time.monotonic() < deadline:
        time.sleep(0.005)
    return answer


class Seen(NamedTuple):
    """What a reader of committed records finds of one producer."""

    values: list[list[str]]
    """Of each partition."""
    position: int
    is_at_end: bool
    """Nothing is open: the last stable offset is the high watermark, on both."""


def look(client: Client, producer: Producer) -> Seen:
    """Read both partitions and the group's position."""
    wanted = [
        {"partition": partition, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
        for partition in producer.partitions
    ]
    asked = {
        "max_wait": 0,
        "min_bytes": 0,
        "isolation_level": 1,
        "topics": [{"topic": TOPIC, "partitions": wanted}],
        "forgotten_topics_data": [],
    }
    values, is_at_end = [], True
    for answer in client.call(request(1, 11, asked)).responses[0].partitions:
        assert answer.error_code.name == "none"
        aborted = [
            (each.producer_id, each.first_offset) for each in answer.aborted_transactions or ()
        ]
        batches = committed(parse(answer.records or b""), aborted)
        values.append([record.value or "" for batch in batches for record in batch.records])
        is_at_end &= answer.last_stable_offset == answer.high_watermark
    asked = {"group_id": producer.name, "topics": [{"name": TOPIC, "partition_indexes": [0]}]}
    reply = client.call(request(9, 5, asked))
    return Seen(values, reply.topics[0].partitions[0].committed_offset, is_at_end)
