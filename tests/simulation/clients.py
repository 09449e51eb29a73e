"""Clients of the simulated brokers, as Kafka's are: they retry, pipeline, change brokers.

Each writes down what it asked and what it was told. `info` is written only where nobody can know;
an answer that no broker may give ends the simulation.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from tests.simulation.network import Lost, Network, Refused, Server, decode, encode, joined
from tests.simulation.records import Record, build, committed, parse

from catchwater.drill.history import (
    AssignLine,
    Line,
    PollLine,
    SendLine,
    Type,
    WatermarkLine,
)
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import FETCH, Fetched, FetchLimits, encode_fetch, parse_fetch_reply
from catchwater.wire.fields import ApiVersion, encode_header
from catchwater.wire.produce import PRODUCE, encode_produce, parse_produce_reply

Place = tuple[str, int]

RETRIABLE = {
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.CONCURRENT_TRANSACTIONS,
}
WINDOW = 3


class Surroundings(Protocol):
    """What a client needs of the world."""

    network: Network
    is_stopping: bool
    """Begin nothing new; end what is under way."""

    def record(self, line: Line) -> None: ...

    def servers(self) -> list[Server]: ...

    def now_s(self) -> float: ...

    def fail(self, what: str) -> None: ...


class Client:
    """Talks to one broker until that fails, then perhaps to another."""

    repeats = True
    """Its requests may arrive twice, as if it had sent them again."""

    def __init__(self, world: Surroundings, process: int, seed: int) -> None:
        self.world = world
        self.process = process
        self.random = random.Random(f"client {process} of {seed}")
        self.server: Server | None = None

    async def ask(self, request: bytes, timeout_s: float = 3.0) -> bytes:
        """One try. Raises `Lost` or `Refused`."""
        if self.server is None or self.server not in self.world.servers():
            self.server = self.random.choice(self.world.servers())
        try:
            return await self.world.network.ask(
                self, self.server, request, timeout_s, repeats=self.repeats
            )
        except (Lost, Refused):
            self.server = None
            raise

    async def call(self, api_key: int, version: int, fields: dict[str, Any]) -> Any:
        """One try with a message of kio's. Raises `Lost` or `Refused`."""
        return decode(api_key, version, await self.ask(encode(api_key, version, fields)))

    async def insist(self, api_key: int, version: int, fields: dict[str, Any]) -> Any:
        """Until there is an answer, whatever it says."""
        while True:
            try:
                return await self.call(api_key, version, fields)
            except (Lost, Refused):
                await self.rest(0.2)

    async def rest(self, about_s: float) -> None:
        await asyncio.sleep(about_s * self.random.uniform(0.5, 1.5))

    def may_move(self) -> None:
        """After an error: the next request goes to another broker, perhaps."""
        if self.random.random() < 0.7:
            self.server = None

    async def init_producer(self) -> tuple[int, int]:
        """A producer id of one's own, and its epoch."""
        while True:
            fields = {
                "transactional_id": None,
                "transaction_timeout": 60_000,
                "producer_id": -1,
                "producer_epoch": -1,
            }
            reply = await self.insist(22, 4, fields)
            if reply.error_code.value == 0:
                return reply.producer_id, reply.producer_epoch
            await self.rest(0.2)

    def timestamp_ms(self) -> int:
        return 1_700_000_000_000 + int(self.world.now_s() * 1000)

    async def produce(self, place: Place, batch: bytes) -> tuple[ErrorCode | None, int]:
        """One try: (error, base offset); None where there was no answer."""
        body = joined(encode_produce({place: batch}, 3_000))
        try:
            reply = await self.ask(encode_header(ApiVersion(*PRODUCE), 1, "simulated") + body)
        except Lost:
            return None, -1
        except Refused:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER, -1
        _, answers = parse_produce_reply(memoryview(reply))
        return answers[place]

    async def fetch(self, place: Place, offset: int, *, read_committed: bool) -> Fetched | None:
        """One try; None where there was no answer."""
        limits = FetchLimits(100_000, self.random.choice([1, 200, 5_000]), 1, 500, read_committed)
        body = joined(encode_fetch({place: offset}, limits))
        try:
            reply = await self.ask(encode_header(ApiVersion(*FETCH), 1, "simulated") + body)
        except (Lost, Refused):
            return None
        return parse_fetch_reply(memoryview(reply))[1][place]


def visible(fetched: Fetched, offset: int, *, committed_only: bool) -> tuple[list[Record], int]:
    """The records a consumer hands on, from `offset` on; and where it goes on."""
    batches = parse(fetched.records)
    kept = committed(batches, fetched.aborted) if committed_only else batches
    records = [each for batch in kept for each in batch.records if each.offset >= offset]
    return records, batches[-1].last_offset + 1 if batches else offset


@dataclass
class Sending:
    """A batch that is not acknowledged yet."""

    batch: bytes
    lines: list[tuple[str | None, str]]
    """(key, value) of its records."""
    number: int = 0
    tries: int = 0


@dataclass
class Lane:
    """One producer's way to one partition: batches under way, in the order of their sequences."""

    place: Place
    sequence: int = 0
    begun: int = 0
    under_way: list[Sending] = field(default_factory=list)
    is_known: bool = False
    """Its first batch was acknowledged."""

    def has_room(self) -> bool:
        """Whether the next batch is still among the five that a broker remembers."""
        if self.under_way and not self.is_known:
            # A producer nobody knows may begin with any sequence, so a request that arrives twice
            # must not be able to overtake the first one; clients see to that by their connection.
            return False
        oldest = self.under_way[0].number if self.under_way else self.begun
        return len(self.under_way) < WINDOW and self.begun - oldest < WINDOW


class Producer(Client):
    """Idempotent: several batches under way, every one sent again until it is acknowledged."""

    def __init__(
        self,
        world: Surroundings,
        process: int,
        seed: int,
        places: Iterable[Place],
        *,
        keys: int = 0,
    ) -> None:
        super().__init__(world, process, seed)
        self.places = list(places)
        self.keys = keys
        self.sent = 0

    async def run(self) -> None:
        self.producer_id, self.epoch = await self.init_producer()
        async with asyncio.TaskGroup() as group:
            for place in self.places:
                group.create_task(self._drive(Lane(place)))

    async def _drive(self, lane: Lane) -> None:
        while not self.world.is_stopping or lane.under_way:
            while lane.has_room() and not self.world.is_stopping:
                lane.under_way.append(self._next(lane))
                if self.random.random() < 0.5:
                    break
            tries = [self.produce(lane.place, sending.batch) for sending in lane.under_way]
            answers = await asyncio.gather(*tries)
            kept = []
            for sending, (error, offset) in zip(lane.under_way, answers, strict=True):
                sending.tries += 1
                if error is ErrorCode.NONE:
                    lane.is_known = True
                    self._tell(lane, sending, "ok", offset)
                else:
                    self._judge(lane, sending, error, is_first=not kept)
                    kept.append(sending)
            lane.under_way = kept
            if kept:
                self.may_move()
                await self.rest(0.3)
            await self.rest(0.4)

    def _next(self, lane: Lane) -> Sending:
        lines = self._lines(lane.place)
        batch = build(
            lines,
            timestamp_ms=self.timestamp_ms(),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=lane.sequence,
        )
        lane.sequence += len(lines)
        sending = Sending(batch, lines, lane.begun)
        lane.begun += 1
        self._tell(lane, sending, "invoke", None)
        return sending

    def _lines(self, place: Place) -> list[tuple[str | None, str]]:
        lines = []
        for _ in range(self.random.randrange(1, 4)):
            key = f"k{self.random.randrange(self.keys)}" if self.keys else None
            lines.append((key, f"{self.process}.{self.sent}"))
            self.sent += 1
        return lines

    def _tell(self, lane: Lane, sending: Sending, outcome: Type, offset: int | None) -> None:
        for index, (key, value) in enumerate(sending.lines):
            at = None if offset is None or offset < 0 else offset + index
            told = SendLine(*lane.place, value, key, at, process=self.process, type=outcome)
            self.world.record(told)

    def _judge(
        self, lane: Lane, sending: Sending, error: ErrorCode | None, *, is_first: bool
    ) -> None:
        """Whether an idempotent producer may be answered so."""
        waits = error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not is_first
        if error is not None and error not in RETRIABLE and not waits:
            self.world.fail(
                f"producer {self.process} was answered {error.name} on {lane.place} for "
                f"{sending.lines[0][1]} at try {sending.tries}"
            )


class PlainProducer(Producer):
    """Without a producer id: what was not answered is not sent again."""

    repeats = False

    async def run(self) -> None:
        self.producer_id = self.epoch = -1
        while not self.world.is_stopping:
            lane = Lane(self.random.choice(self.places), -1)
            sending = self._next(lane)
            error, offset = await self.produce(lane.place, sending.batch)
            match error:
                case ErrorCode.NONE:
                    self._tell(lane, sending, "ok", offset)
                case _:
                    self._tell(lane, sending, "info", None)
                    self.may_move()
            await self.rest(0.5)

    def _next(self, lane: Lane) -> Sending:
        lines = self._lines(lane.place)
        sending = Sending(build(lines, timestamp_ms=self.timestamp_ms()), lines)
        self._tell(lane, sending, "invoke", None)
        return sending


class Reader(Client):
    """Follows partitions from their beginning, or from where it stops again at random."""

    def __init__(
        self,
        world: Surroundings,
        process: int,
        seed: int,
        places: Iterable[Place],
        *,
        read_committed: bool,
    ) -> None:
        super().__init__(world, process, seed)
        self.positions = dict.fromkeys(places, 0)
        self.read_committed = read_committed
        self.seen: dict[Place, dict[int, str | None]] = {}
        """What it has read since it began anew for its final polls."""

    async def run(self) -> None:
        while not self.world.is_stopping:
            for place in self.positions:
                await self.poll(place)
            await self.rest(0.3)
            if self.random.random() < 0.02:
                self._start_over()

    async def read_to_the_end(self) -> None:
        """The final polls: once everything was sent, every partition up to its watermark."""
        self.positions = dict.fromkeys(self.positions, 0)
        self.seen.clear()
        self._assigned()
        for place in self.positions:
            while not await self.poll(place, final=True):
                pass

    def _start_over(self) -> None:
        for place in self.positions:
            self.positions[place] = self.random.choice([0, self.positions[place]])
        self._assigned()

    def _assigned(self) -> None:
        self.world.record(AssignLine(process=self.process, type="ok"))

    async def poll(self, place: Place, *, final: bool = False) -> bool:
        """One fetch; whether it has reached the end."""
        offset = self.positions[place]
        fetched = await self.fetch(place, offset, read_committed=self.read_committed)
        if fetched is None or fetched.error in RETRIABLE:
            self.may_move()
            await self.rest(0.2)
            return False
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE and offset < fetched.log_start:
            self.positions[place] = fetched.log_start
            return False
        if fetched.error is not ErrorCode.NONE:
            self.world.fail(
                f"reader {self.process} was answered {fetched.error.name} at offset {offset} of "
                f"{place}; the log is told to be {fetched.log_start} to {fetched.high_watermark}"
            )
            await self.rest(1)
            return False
        records, self.positions[place] = visible(
            fetched, offset, committed_only=self.read_committed
        )
        told = [(record.offset, record.value) for record in records]
        self.seen.setdefault(place, {}).update(told)
        at_end = self.positions[place] >= fetched.high_watermark
        if told or final or self.random.random() < 0.3:
            head = fetched.high_watermark
            line = PollLine(*place, told, head, self.read_committed, final,
                            process=self.process, type="ok")  # fmt: skip
            self.world.record(line)
        return at_end


class WatermarkWatcher(Client):
    """Asks any broker where partitions end."""

    def __init__(
        self, world: Surroundings, process: int, seed: int, places: Iterable[Place]
    ) -> None:
        super().__init__(world, process, seed)
        self.places = list(places)

    async def run(self) -> None:
        while not self.world.is_stopping:
            topic, partition = self.random.choice(self.places)
            self.server = None
            asked = {"process": self.process, "topic": topic, "partition": partition}
            self.world.record(WatermarkLine(type="invoke", **asked))
            error, offset = await self.end_of((topic, partition))
            if error is ErrorCode.NONE:
                self.world.record(WatermarkLine(type="ok", offset=offset, **asked))
            else:
                self.world.record(WatermarkLine(type="fail", **asked))
            await self.rest(0.4)

    async def end_of(self, place: Place) -> tuple[ErrorCode | None, int]:
        partition = {"partition_index": place[1], "current_leader_epoch": -1, "timestamp": -1}
        fields = {
            "replica_id": -1,
            "isolation_level": 0,
            "topics": [{"name": place[0], "partitions": [partition]}],
        }
        try:
            reply = await self.call(2, 5, fields)
        except (Lost, Refused):
            return None, -1
        (answer,) = reply.topics[0].partitions
        return ErrorCode(answer.error_code.value), answer.offset
