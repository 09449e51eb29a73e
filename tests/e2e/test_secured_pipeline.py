"""A whole pipeline on a foreign Kafka that asks for TLS and a login: nothing else is different."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from benchmarks.kafka_jars import MavenMissing
from tests.secured_kafka import PASSWORD, USERS, Kafka, SecuredKafkaMissing, secured_kafka

from catchwater.clock import SYSTEM
from catchwater.demo.scenarios import card_payments
from catchwater.drill.feeder import Feeder
from catchwater.drill.rows import canonical
from catchwater.recovery import checkpoint
from catchwater.sinks.kafka_client import Brokers, read
from catchwater.sinks.kinds.kafka import LEDGER_TOPIC
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

EVENTS = 4_000
EPOCH_EVENTS = 400
PARTITIONS = 2
PATIENCE_S = 400.0
COMMAND = str(Path(sys.executable).with_name("catchwater"))
POISON = [b"no payment", b'{"card": 1}']

FILE = """\
[pipeline]
function = "{function}"
checkpoint = "checkpoint"
local = "local"
poison = "dead-letter"

[source]
kafka.bootstrap.servers = "{bootstrap}"
kafka.security.protocol = "SASL_SSL"
kafka.sasl.mechanism = "SCRAM-SHA-512"
kafka.sasl.username = "{user}"
kafka.sasl.password = "${{file:secrets.properties:password}}"
kafka.ssl.ca.location = "ca.crt"
subscribe = "payments"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {epoch_events}

[sink.alerts]
kind = "kafka"
topic = "alerts"
partitions = 2

[dead_letter]
kind = "kafka"
topic = "not-understood"

[spark]
"spark.eventLog.enabled" = "true"
"spark.eventLog.dir" = "{events}"
"spark.eventLog.compress" = "false"
"""


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(secured_kafka(tmp_path_factory.mktemp("secured")))
        except (MavenMissing, SecuredKafkaMissing) as reason:
            pytest.skip(str(reason))


class Pipeline:
    """The pipeline's folder, and `catchwater` with its file."""

    def __init__(self, kafka: Kafka, folder: Path, function: str) -> None:
        self.kafka, self.folder = kafka, folder
        self.file, self.events = folder / "pipeline.toml", folder / "events"
        self.events.mkdir()
        self.file.write_text(
            FILE.format(
                function=function,
                bootstrap=kafka.address("LOGIN"),
                user=USERS["SCRAM-SHA-512"],
                epoch_events=EPOCH_EVENTS,
                events=self.events.as_uri(),
            )
        )
        (folder / "secrets.properties").write_text(f"password = {PASSWORD}\n")
        (folder / "ca.crt").write_bytes(Path(kafka.file("ca.crt")).read_bytes())
        self.said = ""

    def catchwater(self, *arguments: str, code: int = 0) -> str:
        """What it prints, of itself and to the person."""
        noun, verb, *more = arguments
        ended = subprocess.run(
            [COMMAND, noun, verb, str(self.file), *more],
            capture_output=True, text=True, timeout=PATIENCE_S, cwd="/",
        )  # fmt: skip
        self.said += ended.stdout + ended.stderr
        assert ended.returncode == code, ended.stderr[-3000:]
        return ended.stdout

    def start(self, *flags: str) -> subprocess.Popen[bytes]:
        with (self.folder / "pipeline.log").open("ab") as log:
            command = [COMMAND, "pipeline", "run", str(self.file), "--quick", "--no-supervise"]
            return subprocess.Popen(
                [*command, *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, cwd="/", env={**os.environ, "CATCHWATER_DEBUG": "1"},
            )  # fmt: skip

    def killed_after(self, epoch: int) -> None:
        """Run it until so many epochs are committed, and kill it."""
        with self.start() as process:
            deadline = time.monotonic() + PATIENCE_S
            while checkpoint.last_commit(self.folder / "checkpoint") < epoch:
                assert process.poll() is None and time.monotonic() < deadline, self.log[-3000:]
                time.sleep(0.02)
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    self.said += path.read_text(errors="replace")
            process.kill()

    @property
    def log(self) -> str:
        return (self.folder / "pipeline.log").read_text()

    def values(self, topic: str) -> list[bytes]:
        """What readers of committed records see, whoever they are."""
        brokers = Brokers({"bootstrap.servers": self.kafka.address("INTERNAL")})
        return [message.value() or b"" for message in read(brokers, topic, SYSTEM, hidden_s=30)]


def test_a_pipeline_on_a_secured_kafka_is_killed_and_writes_every_row_once(
    kafka: Kafka, tmp_path: Path
) -> None:
    scenario = card_payments(EVENTS, seed=7)
    with Client(kafka.address("INTERNAL")) as client:
        client.create_topics({"payments": PARTITIONS})
        Feeder(client, "payments", PARTITIONS, EPOCH_EVENTS).feed(scenario.events(), EVENTS)
        now_ms = time.time_ns() // 1_000_000
        batch = encode_batch([(b"k", value, now_ms, ()) for value in POISON])
        client.produce([(("payments", 0), batch)])
    pipeline = Pipeline(kafka, tmp_path, scenario.function)

    plan = json.loads(pipeline.catchwater("pipeline", "plan", "--json"))
    assert plan["source"].endswith("SASL_SSL by SCRAM-SHA-512 as 'second'")
    pipeline.killed_after(2)
    with pipeline.start("--available-now") as process:
        assert process.wait(PATIENCE_S) == 0, pipeline.log[-3000:]

    rows = Counter(canonical(msgspec.json.decode(row)) for row in pipeline.values("alerts"))
    assert rows == scenario.expected.rows
    assert sorted(pipeline.values("not-understood")) == sorted(POISON)
    assert len(pipeline.values(LEDGER_TOPIC)) > 0

    verified = json.loads(pipeline.catchwater("sink", "verify", "--json"))
    assert [(each["sink"], each["findings"]) for each in verified] == [
        ("alerts", []), ("dead-letter", []),
    ]  # fmt: skip
    told = json.loads(pipeline.catchwater("recovery", "explain", "--json"))
    assert told["now"]["in_flight"] is None and told["now"]["epoch"] is not None
    explained = told["checkpoints"]
    assert explained and all(each["restorable"] for each in explained)
    findings = json.loads(pipeline.catchwater("contract", "check", "--json"))
    (kept,) = [each["message"] for each in findings if each["subject"] == "pin"]
    assert "retention.ms keeps the log for longer" in kept and "there are no pins" in kept
    back = str(explained[-2]["checkpoint"])
    pipeline.catchwater("recovery", "restore", "--checkpoint", back, "--yes")
    pipeline.catchwater("pipeline", "status")
    pipeline.catchwater("savepoint", "create", "--name", "kept", "--yes")
    with pipeline.start("--available-now") as process:
        assert process.wait(PATIENCE_S) == 0, pipeline.log[-3000:]
    assert len(pipeline.values("alerts")) == scenario.expected.rows.total()

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    kept = [path for path in files if PASSWORD.encode() in path.read_bytes()]
    assert kept == [tmp_path / "secrets.properties"]
    assert str(pipeline.file) in pipeline.said, "its own command line is among them"
    assert PASSWORD not in pipeline.said
    told = "".join(path.read_text() for path in pipeline.events.rglob("*") if path.is_file())
    assert "SparkListenerJobEnd" in told, "Spark's event log"
    for value in POISON:
        assert value.decode() not in told + pipeline.log
