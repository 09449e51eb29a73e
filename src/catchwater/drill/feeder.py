"""Events into a topic, each once, through kills and restarts of the broker.

Relies on the client to send a batch again until it is acknowledged, and on the producer id and
sequence in each batch to make that harmless. A round goes out as one request, so that a reader
never sees one partition far ahead of another.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from threading import Event as ThreadEvent
from threading import Thread
from typing import NamedTuple
from zlib import crc32

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.wire.arrow import Record, encode_batch
from catchwater.wire.client import Client

ROUND_EVENTS = 4_000
"""Most events of a round: below the broker's largest batch even if all have the same key."""


FEED_PATIENCE_S = 300.0
"""How long brokers may be away before a feed gives up."""
_BREATH_S = 0.05


class Event(NamedTuple):
    """What goes into the topic; `at` is the record's timestamp, ms since the Unix epoch."""

    key: bytes
    value: bytes
    at: int


def partition_of(key: bytes, partitions: int) -> int:
    """Where the events of this key go."""
    return crc32(key) % partitions


class Feeder:
    """One idempotent producer for one topic; the same key always goes to the same partition."""

    def __init__(
        self,
        client: Client,
        topic: str,
        partitions: int,
        round_events: int,
        now_ms: Callable[[], int] | None = None,
    ) -> None:
        """With `now_ms` records bear the time at which they are sent, not their events'."""
        self._now_ms = now_ms
        self._client = client
        self._topic = topic
        self._round_events = max(1, min(ROUND_EVENTS, round_events))
        self._producer_id, self._producer_epoch = client.init_producer_id()
        self._sequences = [0] * partitions
        self.acknowledged = 0

    def feed(self, events: Iterator[Event], count: int) -> None:
        """Send the next `count` events and wait until each is acknowledged."""
        chosen = islice(events, count)
        while batch := list(islice(chosen, self._round_events)):
            self._send(batch)
            self.acknowledged += len(batch)

    def _send(self, events: list[Event]) -> None:
        records: list[list[Record]] = [[] for _ in self._sequences]
        sent_ms = None if self._now_ms is None else self._now_ms()
        for event in events:
            partition = partition_of(event.key, len(records))
            at_ms = event.at if sent_ms is None else sent_ms
            records[partition].append((event.key, event.value, at_ms, ()))
        batches = []
        for partition, chosen in enumerate(records):
            if chosen:
                batch = encode_batch(
                    chosen,
                    producer_id=self._producer_id,
                    producer_epoch=self._producer_epoch,
                    base_sequence=self._sequences[partition],
                )
                batches.append(((self._topic, partition), batch))
                self._sequences[partition] += len(chosen)
        self._client.produce(batches)


class Feed(Thread):
    """Feeds events at a rate until it is ended; what an outage kept back comes as soon as it can.

    An error of the client's is kept, and raised by `end`.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        partitions: int,
        events: Iterator[Event],
        rate: float,
        clock: Clock = SYSTEM,
    ) -> None:
        super().__init__(daemon=True, name="feed")
        self._place = bootstrap, topic, partitions
        self._events = events
        self._rate = rate
        self._clock = clock
        self._over = ThreadEvent()
        self._error: CatchwaterError | None = None
        self.acknowledged = 0
        self.longest_s = 0.0
        """In which nothing was acknowledged though something was sent."""

    def run(self) -> None:
        """Until `end`."""
        bootstrap, topic, partitions = self._place
        try:
            with Client(bootstrap, timeout_s=FEED_PATIENCE_S) as client:
                feeder = Feeder(client, topic, partitions, ROUND_EVENTS)
                began_s = self._clock.monotonic_s()
                while not self._over.wait(_BREATH_S):
                    sent_s = self._clock.monotonic_s()
                    due = int((sent_s - began_s) * self._rate)
                    feeder.feed(self._events, due - feeder.acknowledged)
                    self.acknowledged = feeder.acknowledged
                    self.longest_s = max(self.longest_s, self._clock.monotonic_s() - sent_s)
        except CatchwaterError as error:
            self._error = error

    def end(self) -> int:
        """Stop; how many events were fed. Raises what the client did."""
        self._over.set()
        self.join()
        if self._error is not None:
            raise self._error
        return self.acknowledged
