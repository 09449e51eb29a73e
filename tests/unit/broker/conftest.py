"""A broker without sockets: a log in memory, and requests answered as the server would."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from msgspec import structs

from catchwater.broker.broker import Broker, Later
from catchwater.broker.coordination.coordinator import Coordinator
from catchwater.broker.coordination.members import GroupLimits
from catchwater.broker.metrics import Metrics
from catchwater.broker.router import APIS, start
from catchwater.broker_config import BrokerConfig
from catchwater.catalog.base import AlterConfig
from catchwater.catalog.errors import TopicCollides, TopicExists, TopicUnknown
from catchwater.catalog.rows import (
    AbortedRow,
    BrokerRow,
    OffsetCommit,
    PartitionKey,
    Pin,
    ProducerRow,
    QuotaRow,
    Topic,
)
from catchwater.clock import ManualClock
from catchwater.kafka_listeners import Address
from catchwater.log.log import Read
from catchwater.log.write.prepare import Preparation
from catchwater.log.write.sequence import PartitionState
from catchwater.log.write.writer import Answer, Appended, Held, Submission
from catchwater.wire.batch import patched
from catchwater.wire.errors import ErrorCode
from catchwater.wire.frames import ArenaPool, Frame, FrameBuffer, prefixed
from catchwater.wire.messages import decode_reply, encode_request


class MemoryTopics:
    def __init__(self) -> None:
        self.all: dict[str, Topic] = {}

    def get(self, name: str) -> Topic | None:
        return self.all.get(name)

    def find(self, name: str) -> Topic:
        if name not in self.all:
            raise TopicUnknown(f"{name} is not there.")
        return self.all[name]

    def colliding(self, name: str) -> str | None:
        plain = name.replace(".", "_")
        return next((t for t in self.all if t != name and t.replace(".", "_") == plain), None)

    def by_id(self, topic_id: bytes) -> Topic | None:
        return next((t for t in self.all.values() if t.id == topic_id), None)

    def __iter__(self) -> Iterator[Topic]:
        return iter([self.all[name] for name in sorted(self.all)])

    def __len__(self) -> int:
        return len(self.all)


class MemoryKeeping:
    """As much of `catchwater.log.keep.housekeeping.Housekeeping` as handlers use."""

    def __init__(self) -> None:
        self.log_starts: dict[PartitionKey, int] = {}
        self.pins: dict[PartitionKey, Pin] = {}
        self.lost: list[str] = []

    async def lose_pins(self, topic: str) -> None:
        self.lost.append(topic)

    async def delete_records(self, offsets: Mapping[PartitionKey, int]) -> dict[PartitionKey, Pin]:
        held = {key: pin for key, pin in self.pins.items() if key in offsets}
        self.log_starts |= {key: at for key, at in offsets.items() if key not in held}
        return held


@dataclass
class MemoryLog:
    """As much of `catchwater.log.log.Log` as handlers use, each batch kept as bytes."""

    cluster_id: str = "memory"
    topics: MemoryTopics = field(default_factory=MemoryTopics)
    rows: list[BrokerRow] = field(default_factory=list)
    """The brokers of a shared log."""

    def __post_init__(self) -> None:
        self.keeping = MemoryKeeping()
        self.preparation = Preparation(lambda batches, frame: self.submit(batches, frame))
        self.plain_topics: dict[bytes, int] = {}
        self.batches: dict[PartitionKey, list[tuple[int, int, bytes]]] = {}
        self.waiters: list[asyncio.Future[None]] = []
        self.offsets: dict[str, dict[tuple[str, int], OffsetCommit]] = {}
        self.ids = itertools.count(1)
        self.stable: dict[PartitionKey, int] = {}
        self.stored: set[PartitionKey] = set()
        """Partitions that are not in memory."""
        self.aborted: list[AbortedRow] = []
        self.standing: list[ProducerRow] = []
        self.quotas: dict[Any, float] = {}
        self.held: list[asyncio.Future[list[Appended]]] | None = None

    @property
    def is_shared(self) -> bool:
        return bool(self.rows)

    def brokers(self) -> list[BrokerRow]:
        return self.rows

    async def look_up(self, names: Iterable[str]) -> None:
        self.looked_up = list(names)

    async def refresh(self, keys: Iterable[PartitionKey]) -> None:
        """There is nobody else who could have changed anything."""

    async def create_topic(
        self, name: str, partitions: int, config: Mapping[str, str] | None = None
    ) -> Topic:
        if name in self.topics.all:
            raise TopicExists(f"{name} exists.")
        if self.topics.colliding(name):
            raise TopicCollides(f"{name} collides.")
        topic = Topic(next(self.ids).to_bytes(16, "big"), name, partitions, config or {})
        self.topics.all[name] = topic
        self.batches |= {(topic.id, index): [] for index in range(partitions)}
        return topic

    async def alter_topic_config(self, name: str, alter: AlterConfig) -> None:
        topic = self.topics.find(name)
        self.topics.all[name] = replace(topic, config=alter(topic.config))
        self.plain_topics.pop(topic.id, None)

    async def add_partitions(self, name: str, partitions: int) -> None:
        topic = self.topics.find(name)
        self.topics.all[name] = replace(topic, partitions=partitions)
        self.batches |= {(topic.id, i): [] for i in range(topic.partitions, partitions)}

    async def producers(self, key: PartitionKey) -> tuple[list[ProducerRow], dict[int, int]]:
        return self.standing, {row.producer_id: 7 for row in self.standing[:1]}

    async def delete_topic(self, name: str) -> None:
        if name not in self.topics.all:
            raise TopicUnknown(f"{name} is not there.")
        del self.topics.all[name]

    def state(self, key: PartitionKey) -> PartitionState:
        batches = self.batches[key]
        log_start = self.keeping.log_starts.get(key, 0)
        size_bytes = sum(len(data) for _, _, data in batches)
        return PartitionState(log_start, batches[-1][1] + 1 if batches else 0, size_bytes)

    def append(self, batches: Sequence[Submission], answer: Answer, frame: Held | None) -> None:
        done = self.submit(batches, frame)
        done.add_done_callback(lambda done: answer.set_result(done.result()))

    def submit(
        self, batches: Sequence[Submission], frame: Held | None = None
    ) -> asyncio.Future[list[Appended]]:
        answers = []
        for key, header, data in batches:
            base = self.state(key).high_watermark
            head, rest = patched(data, base)
            self.batches[key].append((base, base + header.last_offset_delta, head + bytes(rest)))
            answers.append(Appended(ErrorCode.NONE, base, 0, 0))
        if frame is not None:
            frame.release()
        future: asyncio.Future[list[Appended]] = asyncio.get_running_loop().create_future()
        future.set_result(answers)
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return future

    async def read(self, key: PartitionKey, offset: int, max_bytes: int, **how: bool) -> Read:
        return self._read(key, offset, max_bytes, **how)

    def read_now(self, key: PartitionKey, offset: int, max_bytes: int, **how: bool) -> Read | None:
        return None if key in self.stored else self._read(key, offset, max_bytes, **how)

    def _read(
        self,
        key: PartitionKey,
        offset: int,
        max_bytes: int,
        *,
        at_least_one: bool,
        committed: bool = False,
    ) -> Read:
        high_watermark = self.state(key).high_watermark
        stable = self.stable.get(key, high_watermark)
        nothing = Read((), 0, high_watermark, stable, 0)
        if not 0 <= offset <= high_watermark:
            return structs.replace(nothing, error=ErrorCode.OFFSET_OUT_OF_RANGE)
        parts: list[bytes] = []
        size = 0
        for _, last, data in self.batches[key]:
            if last >= offset and not (committed and last >= stable):
                if size + len(data) > max_bytes and not (at_least_one and not parts):
                    break
                parts.append(data)
                size += len(data)
        aborted = self.aborted if committed else ()
        return structs.replace(nothing, parts=parts, size_bytes=size, aborted=aborted)

    def wait_for(self, keys: Iterable[PartitionKey]) -> asyncio.Future[None]:
        self.waiters.append(asyncio.get_running_loop().create_future())
        return self.waiters[-1]

    async def offset_for_timestamp(self, key: PartitionKey, ms: int) -> tuple[int, int] | None:
        return None

    async def newest(self, key: PartitionKey) -> tuple[int, int] | None:
        return None

    async def client_quotas(self) -> list[QuotaRow]:
        return [QuotaRow(*named, value) for named, value in self.quotas.items()]

    async def change_client_quotas(self, rows: Sequence[QuotaRow]) -> None:
        for row in rows:
            self.quotas.pop(row[:3], None)
            if row.value is not None:
                self.quotas[row[:3]] = row.value

    async def allocate_producer_id(self) -> int:
        return next(self.ids)

    async def commit_offsets(
        self,
        group: str,
        offsets: Mapping[tuple[str, int], OffsetCommit],
        claim_epoch: int | None = None,
    ) -> None:
        self.offsets.setdefault(group, {}).update(offsets)

    async def delete_group(self, group: str, claim_epoch: int | None = None) -> bool:
        return self.offsets.pop(group, None) is not None

    async def delete_offsets(
        self, group: str, keys: Iterable[tuple[str, int]], claim_epoch: int | None = None
    ) -> None:
        for key in keys:
            self.offsets.get(group, {}).pop(key, None)

    async def groups(self) -> list[str]:
        return list(self.offsets)

    async def committed(
        self, group: str, keys: Iterable[tuple[str, int]] | None = None
    ) -> dict[tuple[str, int], OffsetCommit]:
        return dict(self.offsets.get(group, {}))


class Client:
    """Sends requests to the router as the server does, and decodes the replies by kio."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.arenas = ArenaPool()

    @property
    def log(self) -> Any:
        return self.broker.log

    def frame(self, data: bytes) -> Frame:
        buffer = FrameBuffer(100_000_000, self.arenas)
        (whole,) = [b"".join(prefixed([data]))]
        view = buffer.get_buffer(len(whole))
        assert len(view) >= len(whole)
        view[: len(whole)] = whole
        (frame,) = buffer.receive(len(whole))
        return frame

    async def send_bytes(self, data: bytes) -> bytes:
        """One request without its length, to its reply without its length."""
        return await self.reply(start(self.broker, self.frame(data), "10.0.0.1"))

    async def reply(self, later: Later) -> bytes:
        """What comes of a request that was started."""
        done = asyncio.Event()
        later.when_done = done.set
        if not later.is_done:
            await done.wait()
        return b"".join(later.encode())

    async def send(self, message: Any, client_id: str = "test") -> Any:
        """One of kio's requests, to kio's reply in the same version."""
        data = await self.send_bytes(b"".join(encode_request(7, client_id, message)))
        if not data:
            return None
        correlation_id, reply = decode_reply(
            message.__api_key__, message.__version__, memoryview(data)
        )
        assert correlation_id == 7
        return reply


@pytest.fixture
def broker() -> Broker:
    clock = ManualClock()
    config = BrokerConfig(num_partitions=2)
    log: Any = MemoryLog()
    groups = Coordinator(GroupLimits(), clock)
    return Broker(config, log, clock, groups, Metrics(), Address("127.0.0.1", 9092), APIS)


@pytest.fixture
def client(broker: Broker) -> Client:
    return Client(broker)


def encode(count: int = 1, **settings: Any) -> bytes:
    """A batch of so many small records."""
    from catchwater.wire.arrow import encode_batch

    records = [(b"k", b"v%d" % i, 1_700_000_000_000 + i, ()) for i in range(count)]
    return encode_batch(records, **settings)


@pytest.fixture
def batch() -> Any:
    return encode


@pytest.fixture
def is_on_loop(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[bool]]:
    """`is_on_loop((module, "name"), ...)`: of each call of these, whether the loop made it."""
    mine = threading.get_ident()

    def watch(*places: tuple[Any, str]) -> list[bool]:
        seen: list[bool] = []

        def watched(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                seen.append(threading.get_ident() == mine)
                return function(*arguments, **named)

            return call

        for module, name in places:
            monkeypatch.setattr(module, name, watched(getattr(module, name)))
        return seen

    return watch
