"""Enough of a Kafka client for replay, sinks, the demo and drills; synchronous, on any Kafka ≥ 2.8.

Every request has one fixed version, chosen so that Kafka 2.8 to 4.x and our broker all serve it.
Cold messages are kio's; Fetch and Produce are written by hand, so that record bytes are neither
copied nor decoded on their way in. A call is repeated with backoff, after looking up leaders anew,
until it succeeds, is refused for good, or `timeout_s` is over.

Promises: an error names topic and partition; a batch that carries a producer id and sequence is
written once however often it is sent. Batches without may be repeated or change places when a
connection breaks. Does not do groups, transactions, TLS or SASL. Not thread-safe.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.wire.codecs import Buffer
from catchwater.wire.errors import ErrorCode

TopicPartition = tuple[str, int]

EARLIEST = -2
LATEST = -1
"""Timestamps that `list_offsets` takes for the two ends of a partition."""


class RequestRefused(CatchwaterError):
    """The broker answered with an error that repeating the request would not change."""

    def __init__(self, message: str, *, code: ErrorCode, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code


class RequestTimedOut(CatchwaterError):
    """The call did not succeed in time; the message says what the last attempt met."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a Metadata reply says: where brokers are, and which of them leads each partition."""

    cluster_id: str | None
    brokers: Mapping[int, tuple[str, int]]
    leaders: Mapping[TopicPartition, int]

    def partitions(self, topic: str) -> list[int]:
        """The topic's partitions in order; empty if it does not exist."""
        return sorted(partition for name, partition in self.leaders if name == topic)

    def topics(self) -> list[str]:
        return sorted({name for name, _ in self.leaders})


@dataclass(frozen=True, slots=True)
class Fetched:
    """One partition's part of a Fetch reply; `records` may end in a batch that is cut short.

    `error` is NONE or OFFSET_OUT_OF_RANGE; `aborted` lists (producer id, first offset).
    """

    records: memoryview
    high_watermark: int
    log_start: int
    error: ErrorCode
    aborted: tuple[tuple[int, int], ...] = ()
class Client(AbstractContextManager["Client"]):
    """A connection to each broker it has needed so far; `bootstrap` is "host:port[,host:port]"."""

    def __init__(
        self,
        bootstrap: str,
        *,
        client_id: str = "catchwater",
        timeout_s: float = 30.0,
        clock: Clock = SYSTEM,
    ) -> None: ...
    def close(self) -> None: ...
    def __exit__(self, *exception: object) -> None: ...
    def metadata(self, topics: Sequence[str] | None = None) -> Cluster:
        """Brokers and leaders, of all topics unless some are named; absent ones are left out."""
    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """The first offset at or after each timestamp (ms), EARLIEST or LATEST; -1 if none."""
    def fetch(
        self,
        wanted: Mapping[TopicPartition, int],
        *,
        max_bytes: int = 64 * 2**20,
        max_partition_bytes: int = 8 * 2**20,
        min_bytes: int = 1,
        max_wait_ms: int = 500,
        read_committed: bool = False,
    ) -> dict[TopicPartition, Fetched]:
        """Raw batches from each partition's offset on, one round; a first batch is always whole."""
    def produce(
        self, batches: Sequence[tuple[TopicPartition, Buffer]], *, acks: int = -1
    ) -> list[int]:
        """Append the batches, several in flight; the base offset each was given, in order."""
    def create_topics(self, topics: Mapping[str, int], config: Mapping[str, str] | None = None) -> None:
        """Create topics with so many partitions; one that exists already is left as it is."""
    def init_producer_id(self) -> tuple[int, int]:
        """A new producer id and its epoch, for batches that must be written once."""
    def broker_config(self) -> dict[str, str]:
        """The configuration of the broker that answers first (DescribeConfigs)."""
