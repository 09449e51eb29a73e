"""One broker with card payments in it, and pipelines as processes of their own over them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.e2e import in_session
from tests.hosts import Network, NoNetwork
from tests.ports import free_port
from tests.s3 import CREDENTIALS, make_bucket, moto

from catchwater.config import CatchwaterError
from catchwater.demo.scenarios import Scenario, card_payments
from catchwater.drill.feeder import Feeder
from catchwater.drill.rows import canonical
from catchwater.recovery import checkpoint
from catchwater.recovery.ledger import Ledger, numbered
from catchwater.replay.control import Control
from catchwater.wire.arrow import decode, place
from catchwater.wire.client import LATEST, Client

EVENTS = 12_000
EPOCH_EVENTS = 800
PARTITIONS = 4
SEGMENTS = 6
PATIENCE_S = 400.0
"""A start of Spark takes ten seconds, on a machine that others keep busy much longer."""
COMMAND = str(Path(sys.executable).with_name("catchwater"))
ZYGOTE = b"catchwater.pipeline.spark.zygote"

FILE = """\
[pipeline]
name = "{name}"
function = "{function}"
checkpoint = "checkpoint"
local = "local"
trigger = "{trigger}"

[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "payments"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {epoch_events}

[sink.alerts]
topic = "{topic}"
partitions = 2

[recovery]
retain = 5
"""


@dataclass
class Cards:
    """The broker, its topic `payments`, and what a plain loop says of it."""

    bootstrap: str
    control: Control
    scenario: Scenario

    @property
    def expected(self) -> Counter[bytes]:
        return self.scenario.expected.rows

    def rows(self, topic: str) -> Counter[bytes]:
        """Every row of a topic, with how often it is there."""
        rows: Counter[bytes] = Counter()
        with Client(self.bootstrap) as client:
            keys = [(topic, partition) for partition in client.metadata([topic]).partitions(topic)]
            for key, end in client.list_offsets(dict.fromkeys(keys, LATEST)).items():
                offset = 0
                while offset < end:
                    fetched = client.fetch({key: offset})[key]
                    batches = place(fetched.records, partial_tail=True)
                    for table in decode(fetched.records, batches, first=offset, columns=["value"]):
                        values = table.column("value").to_pylist()
                        rows.update(canonical(msgspec.json.decode(value)) for value in values)
                    offset = batches[-1].next_offset
        return rows


@dataclass
class Pipeline:
    """One pipeline: its folder, and the process that runs it at the moment."""

    cards: Cards
    folder: Path
    name: str
    process: subprocess.Popen[bytes] | None = field(default=None)
    session: int = field(default=0, init=False)
    """Of the last process, its JVM and its workers."""
    prefix: Sequence[str] = field(default=(), init=False)
    """The command that runs the pipeline's, such as on another host."""

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.checkpoint)

    @property
    def committed(self) -> int:
        return checkpoint.last_commit(self.checkpoint)

    @property
    def log(self) -> str:
        return (self.folder / "pipeline.log").read_text()

    def write_file(self, trigger: str, **changes: object) -> Path:
        path = self.folder / "pipeline.toml"
        values: dict[str, Any] = {
            "name": self.name,
            "function": self.cards.scenario.function,
            "trigger": trigger,
            "bootstrap": self.cards.bootstrap,
            "epoch_events": EPOCH_EVENTS,
            "topic": f"{self.name}-alerts",
        }
        path.write_text(FILE.format(**values | changes))
        return path

    def start(self, trigger: str = "continuous", **changes: object) -> None:
        path = self.write_file(trigger, **changes)
        with (self.folder / "pipeline.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, COMMAND, "pipeline", "run", str(path), "--quick", "--no-supervise"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.session = self.process.pid

    def wait(self) -> int:
        assert self.process is not None
        code = self.process.wait(PATIENCE_S)
        self.process = None
        return code

    def run_to_end(self, **changes: object) -> int:
        """Run until the input there is now was consumed; the exit code."""
        self.start("available-now", **changes)
        return self.wait()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, self.log[-3000:]
            assert time.monotonic() < deadline, self.log[-3000:]
            time.sleep(0.002)

    def is_planned(self, epoch: int) -> bool:
        """Whether it was, or a later one: files of old epochs go, and who looks may be late."""
        return max(numbered(self.checkpoint / "offsets"), default=-1) >= epoch

    def is_written(self, epoch: int) -> bool:
        """Whether it is in the ledger, or a later one is."""
        return max(self.ledger.epochs(), default=-1) >= epoch

    def kill_in_commits(
        self, sinks: Sequence[str], kills: int, *, seed: int, **changes: object
    ) -> Counter[str]:
        """Start and kill -9 the driver so many times; where it was by what it had written.

        Three of four hit the commit of a sink, each sink's in turn, which begins with a note of
        what was staged. The fourth comes between the sinks' commits and Spark's, or soon after.
        """
        draw, where = Random(seed), Counter[str]()
        order = draw.sample(sinks, len(sinks))
        epochs = self.checkpoint / "catchwater" / "staged"
        for kill in range(kills):
            epoch = self.committed + 1
            sink = order[(kill - kill // 4) % len(order)]
            while (epochs / sink / f"{epoch:020d}-index.json").exists():
                epoch += 1
            self.start(**changes)
            if kill % 4 == 3:
                self.wait_until(lambda at=epoch: self.is_written(at))
            else:
                noted = epochs / sink / f"{epoch:020d}-index.json"
                self.wait_until(lambda at=epoch, n=noted: n.exists() or self.committed >= at)
                time.sleep(draw.uniform(0, 0.03))
            self.kill()
            if self.committed >= epoch:
                where["after Spark's commit"] += 1
            else:
                where["after all sinks'" if self.is_written(epoch) else f"in {sink}'s"] += 1
        return where

    def kill(self) -> None:
        """kill -9 of the driver; its JVM goes by itself."""
        assert self.process is not None
        self.process.kill()
        self.wait()

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def python_workers(self) -> list[int]:
        """The processes that run our operator for Spark's tasks."""
        assert self.process is not None
        return python_workers(self.session)

    def lose_local_state(self) -> None:
        """Once a killed driver's workers are gone too, which may be writing there."""
        deadline = time.monotonic() + PATIENCE_S
        while alive := processes(self.session):
            assert time.monotonic() < deadline, alive
            time.sleep(0.02)
        shutil.rmtree(self.folder / "local")

    def delete_last_commit(self) -> None:
        last = self.committed
        (self.checkpoint / "commits" / str(last)).unlink()
        (self.checkpoint / "commits" / f".{last}.crc").unlink(missing_ok=True)

    @property
    def rows(self) -> Counter[bytes]:
        return self.cards.rows(f"{self.name}-alerts")


def processes(session: int) -> dict[int, int]:
    """The live processes of a session, each with its parent; of session 0, which is none, none."""
    found = {}
    for path in Path("/proc").glob("[0-9]*") if session else ():
        with suppress(OSError):
            fields = (path / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] not in "ZX":
                found[int(path.name)] = int(fields[1])
    return found


def python_workers(session: int) -> list[int]:
    """The processes of a session that run our operator for Spark's tasks."""
    # All are forked from the zygote, whose command line they keep: Spark's daemon of workers by
    # it, the workers by the daemon.
    parents = {}
    for pid, parent in processes(session).items():
        with suppress(OSError):
            if ZYGOTE in Path(f"/proc/{pid}/cmdline").read_bytes():
                parents[pid] = parent
    return [pid for pid, parent in parents.items() if parents.get(parent) in parents]


@dataclass
class PipelineHere(Pipeline):
    """One that runs in this process to its end: on a shared session, or without Spark.

    Starting Spark costs more than all else that a small pipeline does.
    """

    spark: Any | None = field(default=None, kw_only=True)

    @classmethod
    def like(cls, other: Pipeline, spark: Any | None) -> "PipelineHere":
        """The same pipeline, run here."""
        return cls(other.cards, other.folder, other.name, spark=spark)

    def run_to_end(self, **changes: object) -> int:
        file = self.write_file("available-now", **changes)
        try:
            in_session.Pipeline(self.spark, self.folder, file).run()
        except CatchwaterError as error:
            with (self.folder / "pipeline.log").open("a") as log:
                log.write(f"error: {error}\n")
            return error.exit_code
        return 0


@pytest.fixture(scope="session")
def cards(make_broker: Callable[..., Any]) -> Cards:
    """For tests that leave the input as it is."""
    return feed_cards(make_broker, lasting=True)


def feed_cards(make_broker: Callable[..., Any], *, lasting: bool = False) -> Cards:
    """A broker that deletes the input as soon as nobody holds it; here, a pin does."""
    broker = make_broker(
        {
            "log.retention.ms": "-1",
            "catchwater.retention.interval.ms": "200",
            "catchwater.pack.interval.ms": "300",
            "catchwater.pack.min.bytes": "10000",
            "catchwater.pack.backlog.bytes": "10000",
            "catchwater.wal.segment.bytes": "65536",
            "catchwater.delete.grace.ms": "200",
        },
        lasting=lasting,
    )
    scenario = card_payments(EVENTS, seed=7)
    control = Control(broker.control_url)
    with Client(broker.bootstrap) as client:
        client.create_topics({"payments": PARTITIONS}, {"retention.ms": "1000"})
        positions = [{"topic": "payments", "partition": p, "offset": 0} for p in range(PARTITIONS)]
        control.set_pin("tests", {"owner": "tests", "positions": positions})
        feeder = Feeder(client, "payments", PARTITIONS, EPOCH_EVENTS // 2)
        events = scenario.events()
        # Retention takes whole segments, so there must be several in each partition.
        for _ in range(SEGMENTS):
            feeder.feed(events, EVENTS // SEGMENTS)
            _wait_until_packed(control)
    return Cards(broker.bootstrap, control, scenario)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A Spark session for all tests that put their pipelines together themselves."""
    from catchwater.pipeline.run.driver import zygote
    from catchwater.pipeline.spark import session

    # Spark waits ten seconds for a Python process, which on a busy machine is less than a start of
    # Python takes; a fork is there at once.
    folder = tmp_path_factory.mktemp("spark")
    with (folder / "spark.log").open("ab") as log, zygote([]) as python:
        spark = session.start("tests", quick=True, log=log, python=python, scratch=folder)
        _wait_for_python(spark)
        yield spark
        session.stop(spark)


def _wait_for_python(spark: Any) -> None:
    """Until a task of Python's gets through: the zygote may still import."""
    from py4j.protocol import Py4JJavaError

    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            spark.range(1).mapInArrow(lambda batches: batches, "id long").count()
        except Py4JJavaError:
            assert time.monotonic() < deadline, "no Python process connects to Spark"
        else:
            return


def _wait_until_packed(control: Control) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while any(
        row["chunk_bytes"] for row in control.request("GET", "/api/v1/topics/payments")["storage"]
    ):
        assert time.monotonic() < deadline, "the packer does not pack"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def make_pipeline(
    cards: Cards, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Pipeline]]:
    """`make_pipeline("name")`: a pipeline with a folder of its own, not yet started."""
    yield from pipelines(cards, tmp_path_factory)


def pipelines(
    cards: Cards, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Pipeline]]:
    """What makes pipelines over these cards; those that still run at a test's end are killed."""

    def make(name: str) -> Pipeline:
        _MADE.append(Pipeline(cards, tmp_path_factory.mktemp(name), name))
        return _MADE[-1]

    yield make


_MADE: list[Pipeline] = []


@pytest.fixture(autouse=True)
def _nothing_runs_on() -> Iterator[None]:
    """What a test that failed has left must not take the next one's time."""
    yield
    for pipeline in _MADE:
        if pipeline.process is not None:
            pipeline.kill()


@dataclass
class Place:
    """A network, and the store that its pipelines keep their checkpoints in."""

    network: Network
    store: str
    """The store's address, which is that of nothing else."""
    url: str


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    try:
        made = Network()
    except NoNetwork as reason:
        pytest.skip(f"no network namespaces here: {reason}")
    yield made
    made.close()


@pytest.fixture(scope="module", name="place")
def _place(network: Network) -> Iterator[Place]:
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            environment.delenv(name)
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        store = network.address(2)
        with moto(store) as endpoint:
            yield Place(network, store, make_bucket(endpoint, "hosts"))


@pytest.fixture(scope="module")
def cards_there(place: Place, make_broker: Callable[..., Any]) -> Iterator[Cards]:
    """Those of a broker in the network, which has its objects in a store of its own."""
    here = place.network.here
    with moto(here) as endpoint:
        own = {
            "listeners": f"PLAINTEXT://{here}:{free_port()}",
            "catchwater.control.listener": f"{here}:{free_port()}",
            "catchwater.insecure": "true",
            "catchwater.objects": make_bucket(endpoint, "log"),
        }
        yield feed_cards(lambda settings, **options: make_broker(settings | own, **options))
