"""The Kafka sink against a real Apache Kafka, and against ours as if it were another's."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from catchwater.clock import SYSTEM, Clock
from catchwater.config import ConfigError
from catchwater.sinks import kafka_client as client
from catchwater.sinks.base import (
    RETRACTS_HEADER,
    RETRACTS_OFFSET_HEADER,
    ROW_HEADER,
    SINK_HEADER,
    EpochDiffers,
    EpochMissing,
    OutputRecord,
    SinkUnavailable,
    Staged,
    Superseded,
)
from catchwater.sinks.epochs import Archive, Owner, StagedFile
from catchwater.sinks.kafka_client import Brokers
from catchwater.sinks.kinds.kafka import LEDGER_TOPIC, KafkaSink, Terms
from catchwater.sinks.reconcile import repair, verify
from catchwater.wire.client import LATEST, Client

_NUMBERS = itertools.count(1)
PATIENCE_S = 60.0
"""What a busy machine may take for anything that comes to an end."""


ON_BOTH = pytest.mark.parametrize("bootstrap", ["catchwater", "apache"], indirect=True)
"""Also in the short form of the tests; the long form asks an Apache Kafka everything."""


@pytest.fixture(params=["catchwater", pytest.param("apache", marks=pytest.mark.slow)])
def bootstrap(request: pytest.FixtureRequest) -> str:
    if request.param == "apache":
        return str(request.getfixturevalue("apache_kafka"))
    return str(request.getfixturevalue("broker").bootstrap)


class World:
    """One topic, one archive, and drivers that come and go."""

    def __init__(self, root: Path, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.number = next(_NUMBERS)
        self.topic = f"alerts-{self.number}"
        self.pipeline = f"cards-{self.number}"
        self.stager = StagedFile((root / "kept").as_uri(), "staged/alerts")
        self.clock = Clock(7)
        self.opened: list[KafkaSink] = []

    def sink(self, generation: int = 0, **changes: Any) -> KafkaSink:
        options = {"bootstrap.servers": self.bootstrap, **changes.pop("options", {})}
        terms = Terms(Owner(self.pipeline, "alerts", generation), self.topic, 2, **changes)
        sink = KafkaSink(Brokers(options), terms, Archive(self.stager), SYSTEM)
        self.opened.append(sink)
        return sink

    def stage(self, epoch: int, *values: str) -> list[Staged]:
        records = [
            OutputRecord(value[:1].encode(), value.encode(), SYSTEM.now_ms(), (("h", b"x"),))
            for value in values
        ]
        return [self.stager.stage(epoch, s, records[s::2], self.clock) for s in (0, 1)]

    def messages(self, isolation: str = "read_committed") -> list[Any]:
        consumer = Consumer({
            "bootstrap.servers": self.bootstrap, "group.id": "test", "isolation.level": isolation,
            "enable.partition.eof": True, "auto.offset.reset": "earliest",
        })  # fmt: skip
        with Client(self.bootstrap) as client:
            ends = client.list_offsets({(self.topic, p): LATEST for p in (0, 1)})
        # A transaction is over for its writer before all readers may see it.
        deadline = time.monotonic() + PATIENCE_S
        try:
            consumer.assign([TopicPartition(self.topic, p, 0) for p in (0, 1)])
            found, ended = [], set[int]()
            while len(ended) < 2:
                for message in consumer.consume(100, timeout=0.1):
                    partition = message.partition()
                    if not message.error():
                        found.append(message)
                    elif message.offset() >= ends[self.topic, partition]:
                        ended.add(partition)
                assert time.monotonic() < deadline, "a transaction stays open"
            return found
        finally:
            consumer.close()

    def values(self) -> list[str]:
        return sorted(message.value().decode() for message in self.messages())


@pytest.fixture
def world(tmp_path: Path, bootstrap: str) -> Iterator[World]:
    world = World(tmp_path, bootstrap)
    yield world
    for sink in world.opened:
        sink.close()


@ON_BOTH
def test_an_epoch_is_one_transaction_with_a_record_of_it_in_the_ledger(world: World) -> None:
    sink = world.sink()
    done = sink.commit(3, world.stage(3, "a1", "b2", "c3"))
    sink.commit(4, world.stage(4))
    assert (done.topic, done.records, sink.last_epoch()) == (world.topic, 3, 4)
    assert world.values() == ["a1", "b2", "c3"]
    found = {m.value(): dict(m.headers()) for m in world.messages()}
    assert found[b"a1"] == {
        ROW_HEADER: b"3/0/0", SINK_HEADER: f"{world.pipeline}/alerts".encode(), "h": b"x"
    }  # fmt: skip
    spans = [last - first + 1 for first, last in done.offsets.values()]
    assert sum(spans) == 3
    again = world.sink()
    assert again.commit(3, world.stage(3, "a1", "b2", "c3")) == done
    assert world.values() == ["a1", "b2", "c3"]
    with pytest.raises(EpochDiffers):
        again.commit(4, world.stage(4, "d4"))
    with pytest.raises(EpochMissing):
        again.commit(6, world.stage(6, "d4"))
    assert verify(again, 4).findings == ()


def test_a_new_driver_fences_one_that_was_thought_dead(world: World) -> None:
    zombie, driver = world.sink(), world.sink()
    zombie.commit(0, world.stage(0, "a1"))
    driver.commit(0, world.stage(0, "a1"))
    driver.commit(1, world.stage(1, "b2"))
    with pytest.raises(Superseded, match="has fenced this pipeline's transactions"):
        zombie.commit(1, world.stage(1, "b2"))
    driver.commit(2, world.stage(2, "c3"))
    assert world.values() == ["a1", "b2", "c3"]


class Cut(Exception):
    """The driver ends here."""


@pytest.mark.parametrize(
    "place",
    [pytest.param("begin_transaction", marks=pytest.mark.slow), "flush",
     pytest.param("commit_transaction", marks=pytest.mark.slow), "after"],
)  # fmt: skip
def test_an_epoch_cut_off_anywhere_is_written_once_by_the_next_driver(
    world: World, place: str
) -> None:
    first = world.sink()
    first.commit(0, world.stage(0, "a1"))
    writer = first._writer
    assert writer is not None

    class Cutting:
        def __init__(self, producer: Producer) -> None:
            self.producer = producer

        def __getattr__(self, name: str) -> Any:
            if name == place:
                raise Cut
            if place == "after" and name == "commit_transaction":
                self.producer.commit_transaction(PATIENCE_S)
                raise Cut
            return getattr(self.producer, name)

        def close(self) -> None:
            """A killed process closes nothing."""

        def purge(self, **options: bool) -> None:
            """Nor does it forget."""

    writer._producer = Cutting(writer._producer)  # type: ignore[assignment]
    with pytest.raises(Cut):
        first.commit(1, world.stage(1, "b2", "c3"))
    second = world.sink()
    assert second.commit(1, world.stage(1, "b2", "c3")).records == 2
    assert world.values() == ["a1", "b2", "c3"]
    assert verify(second, 1).findings == ()


def test_a_commit_whose_reply_was_lost_is_looked_up_not_guessed(world: World) -> None:
    sink = world.sink()
    sink.commit(0, world.stage(0, "a1"))
    commits: list[bool] = []
    real = client.Writer.write

    def losing(self: Any, messages: Any, then: Any) -> Any:
        offsets = real(self, messages, then)
        commits.append(True)
        if len(commits) == 1:
            self.close()
            raise SinkUnavailable("the reply was lost")
        return offsets

    with mock.patch.object(client.Writer, "write", losing):
        assert sink.commit(1, world.stage(1, "b2")).records == 1
    assert len(commits) == 1
    assert world.values() == ["a1", "b2"]


@pytest.mark.slow
def test_withdrawn_epochs_are_retracted_row_by_row(world: World) -> None:
    old = world.sink()
    for epoch, value in enumerate(["a1", "b2", "c3"]):
        old.commit(epoch, world.stage(epoch, value))
    new = world.sink(generation=1)
    new.withdraw(0)
    assert (new.last_epoch(), new.truth.epochs()) == (0, [0])
    retractions = {
        m.value(): dict(m.headers())[RETRACTS_HEADER]
        for m in world.messages() if RETRACTS_HEADER in dict(m.headers())
    }  # fmt: skip
    assert retractions == {b"b2": b"1/0/0", b"c3": b"2/0/0"}
    with pytest.raises(Superseded):
        old.commit(3, world.stage(3, "d4"))
    new.commit(1, world.stage(1, "b2"))
    new.withdraw(0)
    assert [(row.id.epoch, row.key) for row in new.rows(0, 9)] == [(0, b"a"), (1, b"b")]
    assert verify(new, 1).findings == ()


def test_rows_missing_doubled_altered_and_foreign_are_found_and_mended(world: World) -> None:
    sink = world.sink()
    values = [f"{letter}{n:03}" for n, letter in enumerate(itertools.islice(
        itertools.cycle("abcdefg"), 200))]  # fmt: skip
    sink.commit(0, world.stage(0, *values))
    producer = Producer({"bootstrap.servers": world.bootstrap, "partitioner": "murmur2_random"})
    there = {m.value().decode(): m for m in world.messages()}
    who = f"{world.pipeline}/alerts".encode()

    def write(row: str, value: str) -> None:
        headers = [(ROW_HEADER, row.encode()), (SINK_HEADER, who), ("h", b"x")]
        producer.produce(world.topic, key=value[:1], value=value, headers=headers)  # type: ignore[arg-type]

    def retract(row: str, value: str) -> None:
        gone = there[value]
        headers = [(RETRACTS_HEADER, row.encode()), (SINK_HEADER, who), ("h", b"x")]
        headers += [(RETRACTS_OFFSET_HEADER, str(gone.offset()).encode())]
        producer.produce(world.topic, key=value[:1], value=value, headers=headers,  # type: ignore[arg-type]
                         partition=gone.partition())  # fmt: skip

    write("0/0/1", values[2])  # doubled
    write("0/0/500", "zzz")  # foreign
    retract("0/1/3", values[7])  # now missing
    retract("0/1/4", values[9])  # altered: taken back, and another put there
    write("0/1/4", "y")
    assert producer.flush(PATIENCE_S) == 0
    producer.produce(world.topic, key=b"other", value=b"of others", partition=0)
    assert producer.flush(PATIENCE_S) == 0

    report = verify(sink, 0)
    kinds = sorted((finding.kind, str(finding.id)) for finding in report.findings)
    assert kinds == [
        ("altered", "0/1/4"), ("doubled", "0/0/1"), ("foreign", "0/0/500"), ("missing", "0/1/3"),
    ]  # fmt: skip
    assert repair(sink, report) == []
    assert verify(sink, 0).findings == ()
    sink.commit(1, world.stage(1, "h8"))  # repair has not fenced it


@pytest.mark.slow
def test_at_least_once_writes_a_repeated_epoch_again_under_the_same_names(world: World) -> None:
    sink = world.sink(exactly_once=False)
    sink.commit(0, world.stage(0, "a1", "b2"))
    world.sink(exactly_once=False).commit(0, world.stage(0, "a1", "b2"))
    assert world.values() == ["a1", "a1", "b2", "b2"]
    assert len({dict(m.headers())[ROW_HEADER] for m in world.messages()}) == 2
    assert sink.last_epoch() is None


@pytest.mark.slow
def test_a_large_epoch_is_one_transaction(world: World) -> None:
    sink = world.sink()
    count = 30_000
    values = [f"{n % 7}-{n}" for n in range(count)]
    assert sink.commit(0, world.stage(0, *values)).records == count
    assert len(world.messages()) == count


DRIVER = """
import json, sys, time
from catchwater.clock import SYSTEM
from catchwater.sinks.kafka_client import Brokers, Writer
from catchwater.sinks.kinds.kafka import KafkaSink, Terms
from catchwater.sinks.epochs import Owner
from catchwater.sinks.base import Staged
from catchwater.sinks.epochs import Archive, StagedFile
import msgspec
said = json.loads(sys.argv[1])
archive = Archive(StagedFile(said["kept"], "staged/alerts"))
terms = Terms(Owner(said["pipeline"], "alerts"), said["topic"], 2)
sink = KafkaSink(Brokers({"bootstrap.servers": said["bootstrap"]}), terms, archive, SYSTEM)
sink._open()
send = Writer._send
def slow(self, messages):
    offsets = send(self, messages)
    print("sent", flush=True)
    time.sleep(said["pause"])
    return offsets
Writer._send = slow
sink.commit(said["epoch"], msgspec.convert(said["staged"], list[Staged]))
print("done", flush=True)
time.sleep(60)
"""


PAUSES_S = {"sent": 30, "sent sent": 0.5, "sent sent done": 0}
"""What the process says until it is killed, and how long it waits whenever it has sent."""


@ON_BOTH
@pytest.mark.parametrize(
    "kill_after",
    [
        "sent sent",
        *(pytest.param(said, marks=pytest.mark.slow) for said in ("sent", "sent sent done")),
    ],
)
def test_a_killed_process_leaves_an_epoch_that_its_successor_writes_once(
    world: World, kill_after: str
) -> None:
    """Killed with rows sent, with the ledger's record sent, and after the commit."""
    world.sink().commit(0, world.stage(0, "a1"))
    said = {
        "kept": world.stager.objects, "pipeline": world.pipeline, "topic": world.topic,
        "bootstrap": world.bootstrap, "epoch": 1, "pause": PAUSES_S[kill_after],
        "staged": msgspec.to_builtins(world.stage(1, "b2", "c3")),
    }  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, json.dumps(said)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for said_so_far in kill_after.split():
        assert process.stdout.readline().strip() == said_so_far
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    began = time.monotonic()
    after = world.sink()
    assert after.commit(1, world.stage(1, "b2", "c3")).records == 2
    assert time.monotonic() - began < 50, "the transaction it left ends by itself after 60 s"
    assert world.values() == ["a1", "b2", "c3"]


def test_an_open_transaction_of_another_does_not_hide_our_marks(world: World) -> None:
    sink = world.sink()
    sink.commit(0, world.stage(0, "a1"))
    other = Producer({
        "bootstrap.servers": world.bootstrap, "transactional.id": f"other-{world.number}",
        "transaction.timeout.ms": 600_000,
    })  # fmt: skip
    other.init_transactions(PATIENCE_S)
    other.begin_transaction()
    other.produce(LEDGER_TOPIC, key=b"other/sink", value=b"{}")
    assert other.flush(PATIENCE_S) == 0
    sink.commit(1, world.stage(1, "b2"))
    sink.close()
    hidden = world.sink(retry_ms=0)
    with (
        mock.patch("catchwater.sinks.kinds.kafka._HIDDEN_S", 1.0),
        pytest.raises(SinkUnavailable, match="cannot be read to its end"),
    ):
        hidden.commit(1, world.stage(1, "b2"))
    other.abort_transaction(PATIENCE_S)
    other.close()
    assert world.sink().commit(1, world.stage(1, "b2")).records == 1
    assert world.values() == ["a1", "b2"]


def test_options_that_are_ours_or_unknown_are_refused(world: World) -> None:
    with pytest.raises(ConfigError, match=r"kafka\.acks cannot be set"):
        world.sink(options={"acks": "1"})
    with pytest.raises(ConfigError, match="refuses an option"):
        world.sink(options={"security.protocol": "NONSENSE"})


def test_brokers_that_are_away_fail_the_epoch_by_name(world: World) -> None:
    with (
        mock.patch.object(client, "REQUEST_S", 1.0),
        pytest.raises(SinkUnavailable, match=r"The Kafka at 127.0.0.1:1 did not do"),
    ):
        world.sink(options={"bootstrap.servers": "127.0.0.1:1"}, retry_ms=0)
