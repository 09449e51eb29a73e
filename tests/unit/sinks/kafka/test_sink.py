"""The Kafka sink's rules over a small model of a Kafka; the real ones are in `conformance`."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from catchwater.clock import Clock, ManualClock
from catchwater.config import CatchwaterError, ConfigError
from catchwater.sinks import kafka_client as client
from catchwater.sinks.base import (
    RETRACTS_OFFSET_HEADER,
    EpochDiffers,
    NotAdmitted,
    OutputRecord,
    RowsUnreadable,
    SinkUnavailable,
    Staged,
    Superseded,
)
from catchwater.sinks.config import SinkContext, parse
from catchwater.sinks.epochs import Archive, Owner, StagedFile
from catchwater.sinks.kafka_client import Brokers, Message, RecordRefused, Writer
from catchwater.sinks.kinds.kafka import KIND, LEDGER_TOPIC, KafkaSink, Terms
from catchwater.sinks.reconcile import repair, verify


class Record:
    """A message as librdkafka gives it."""

    def __init__(self, message: Message, offset: int) -> None:
        self._message, self._offset = message, offset

    def key(self) -> bytes:
        return self._message.key

    def value(self) -> bytes:
        return self._message.value

    def headers(self) -> list[tuple[str, bytes]]:
        return list(self._message.headers)

    def timestamp(self) -> tuple[int, int]:
        return 1, self._message.timestamp_ms

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


class FakeKafka:
    """Committed records by topic, and who may write under a transactional id."""

    def __init__(self) -> None:
        self.logs: dict[str, list[Record]] = {}
        self.current: dict[str, object] = {}
        self.fail: list[str] = []
        """What the next writes do: "before" or "after" they are committed."""
        self.away = False
        self.retained_from = 0
        """Of the rows' topic: what lies before was deleted by retention."""

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        self.logs.setdefault(topic, [])

    def read(self, brokers: Any, topic: str, clock: Clock, **options: Any) -> Iterator[Record]:
        if self.away:
            raise SinkUnavailable("nobody answers")
        start = max((options.get("starts") or {}).get(0, 0), self.retained_from)
        yield from self.logs[topic][start if topic != LEDGER_TOPIC else 0 :]

    def starts_of(self, brokers: Any, topic: str) -> dict[int, int]:
        return {0: self.retained_from}


class FakeWriter:
    def __init__(self, kafka: FakeKafka, name: str | None, options: Mapping[str, str]) -> None:
        self.kafka, self.name = kafka, name
        if name is not None:
            kafka.current[name] = self

    def write(
        self, messages: Iterable[Message], then: Callable[[Any], Message] | None
    ) -> dict[str, tuple[int, int]]:
        rows = list(messages)
        if self.name is not None and self.kafka.current[self.name] is not self:
            raise Superseded("fenced")
        outcome = self.kafka.fail.pop(0) if self.kafka.fail else ""
        if outcome == "before":
            raise SinkUnavailable("lost")
        start = len(self.kafka.logs[rows[0].topic]) if rows else 0
        offsets = {"0": (start, start + len(rows) - 1)} if rows else {}
        for message in [*rows, *([then(offsets)] if then else [])]:
            log = self.kafka.logs[message.topic]
            log.append(Record(message, len(log)))
        if outcome == "after":
            raise SinkUnavailable("lost")
        return offsets

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> FakeKafka:
    made = FakeKafka()
    monkeypatch.setattr(client, "read", made.read)
    monkeypatch.setattr(client, "starts_of", made.starts_of)
    monkeypatch.setattr(client, "Writer", FakeWriter)
    return made


class World:
    def __init__(self, kafka: FakeKafka, root: Path) -> None:
        self.kafka = kafka
        self.stager = StagedFile(root.as_uri(), "staged/alerts")
        self.clock = Clock(7)

    def sink(self, generation: int = 0, **terms: Any) -> KafkaSink:
        said = Terms(Owner("cards", "alerts", generation), "alerts", **terms)
        return KafkaSink(self.kafka, said, Archive(self.stager), ManualClock())  # type: ignore[arg-type]

    def stage(self, epoch: int, *values: bytes) -> list[Staged]:
        records = [OutputRecord(value[:1], value, 1000) for value in values]
        return [self.stager.stage(epoch, 0, records, self.clock)]

    def values(self) -> list[bytes]:
        return [record.value() for record in self.kafka.logs["alerts"]]


@pytest.fixture
def world(kafka: FakeKafka, tmp_path: Path) -> World:
    return World(kafka, tmp_path)


@pytest.mark.parametrize("outcome", ["before", "after"])
def test_a_commit_whose_answer_was_lost_is_looked_up_in_the_ledger(
    world: World, outcome: str
) -> None:
    sink = world.sink()
    sink.commit(0, world.stage(0, b"a"))
    world.kafka.fail = [outcome]
    assert sink.commit(1, world.stage(1, b"b", b"c")).records == 2
    assert world.values() == [b"a", b"b", b"c"]
    assert sink.last_epoch() == 1


def test_a_fenced_driver_does_not_try_again(world: World) -> None:
    zombie, driver = world.sink(), world.sink()
    zombie.commit(0, world.stage(0, b"a"))
    driver.commit(1, world.stage(1, b"b"))
    with pytest.raises(Superseded):
        zombie.commit(1, world.stage(1, b"b"))
    assert world.values() == [b"a", b"b"]


def test_the_ledger_tells_a_new_driver_what_is_there(world: World) -> None:
    first = world.sink().commit(0, world.stage(0, b"a"))
    again = world.sink()
    assert again.commit(0, world.stage(0, b"a")) == first
    with pytest.raises(EpochDiffers):
        again.commit(0, world.stage(0, b"b"))
    assert len(world.kafka.logs[LEDGER_TOPIC]) == 1


def test_a_retraction_tells_the_offset_of_what_it_takes_back(world: World) -> None:
    old = world.sink()
    for epoch, value in enumerate((b"a", b"b")):
        old.commit(epoch, world.stage(epoch, value))
    new = world.sink(generation=1)
    new.withdraw(0)
    assert world.values() == [b"a", b"b", b"b"]
    assert dict(world.kafka.logs["alerts"][2].headers())[RETRACTS_OFFSET_HEADER] == b"1"
    new.withdraw(0)
    assert len(world.values()) == 3


def test_repair_does_not_fence_the_pipeline(world: World) -> None:
    sink = world.sink()
    sink.commit(0, world.stage(0, b"a", b"b"))
    del world.kafka.logs["alerts"][1]
    assert repair(sink, verify(sink, 0)) == []
    assert verify(sink, 0).findings == ()
    sink.commit(1, world.stage(1, b"c"))


def test_what_retention_has_taken_is_not_called_missing(world: World) -> None:
    sink = world.sink()
    sink.commit(0, world.stage(0, b"a", b"b"))
    sink.commit(1, world.stage(1, b"c", b"d"))
    world.kafka.retained_from = 1
    assert verify(sink, 1).findings == ()
    world.kafka.logs["alerts"].pop()
    assert [(f.kind, f.key) for f in verify(sink, 1).findings] == [("missing", b"d")]


def test_a_topic_that_cannot_be_read_is_not_called_empty(world: World) -> None:
    sink = world.sink()
    world.kafka.away = True
    with pytest.raises(RowsUnreadable, match="nobody answers"):
        list(sink.rows(0, 1))


def test_brokers_that_stay_away_fail_the_epoch(world: World) -> None:
    sink = world.sink(retry_ms=5_000)
    world.kafka.fail = ["before"] * 100
    with pytest.raises(SinkUnavailable, match=r"lost Given up after \d+ tries"):
        sink.commit(0, world.stage(0, b"a"))


@pytest.mark.parametrize("name", ["acks", "transactional.id", "enable.idempotence"])
def test_what_the_promises_rest_on_cannot_be_set(name: str) -> None:
    with pytest.raises(ConfigError, match=f"kafka.{name} cannot be set"):
        Brokers({name: "1"})


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("kafka.fetch.min.bytes", "Invalid value .*fetch.min.bytes"),
        ("kafka.no.such.thing", "No such configuration property"),
    ],
)
def test_what_the_client_refuses_is_told_before_the_start(
    tmp_path: Path, option: str, message: str
) -> None:
    config = parse("far", {"kind": "kafka", "topic": "t", option: "x"})
    context = SinkContext("cards", tmp_path.as_uri(), tmp_path, bootstrap="127.0.0.1:1")
    with pytest.raises(ConfigError, match=message):
        KIND.open(config, context, Archive(StagedFile(tmp_path.as_uri(), "staged/far")))


@pytest.mark.parametrize(
    ("code", "kind", "hint"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, RecordRefused, "kafka.message.max.bytes"),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotAdmitted, "write, describe and read"),
    ],
)
def test_what_would_only_be_met_again_is_not_tried_again(
    code: int, kind: type[CatchwaterError], hint: str
) -> None:
    brokers = Brokers({"bootstrap.servers": "h:1"})
    with pytest.raises(kind, match="The Kafka at h:1 does not") as refused, brokers.named():
        raise KafkaException(KafkaError(code))
    assert hint in str(refused.value.hint)


def test_a_producer_that_cannot_even_be_closed_hides_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Producing:
        def __init__(self, options: Any) -> None: ...
        def init_transactions(self, wait_s: float) -> None:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

        def purge(self, blocking: bool) -> None: ...
        def close(self) -> None:
            raise KafkaException(KafkaError(KafkaError.INVALID_TXN_STATE))

    monkeypatch.setattr(client, "Producer", Producing)
    with pytest.raises(SinkUnavailable, match=r"did not do what was asked: .*Timed out"):
        Writer(Brokers({"bootstrap.servers": "h:1"}), "id", {})
