"""What a small batch costs: from its trigger to its commit, and from an event to its alert.

Ours is a whole pipeline: our log, the card rule with state and timers, alerts written once,
contracts. Beside it Spark's cheapest stateful Python has no place: the peer is Spark without state,
source or sink, a rate source through an empty Python function that the driver collects. What an
event waits for is measured with as many events a second as 60 % of what batches of a thousand
sustain, from the moment it is sent until a consumer has its alert.
"""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.functions.ours import FUNCTION
from benchmarks.kafka_jars import ROOT
from benchmarks.load import Connection, create_topic, frame_of_batch, produce_error
from benchmarks.measure import Row, publish, row
from benchmarks.our_broker import Broker, catchwater_broker
from catchwater.recovery.ledger import Ledger, operator_ms
from catchwater.wire.arrow import decode, encode_batch, place
from catchwater.wire.client import Client

EVENTS = 1_000
KEYS = 100_000
TASKS = 2
PARTITIONS = 2
ROUNDS = int(os.environ.get("ROUNDS", "3"))
SECONDS = 40
LOAD = 0.6
TURN_S = 0.02
PEER = "Spark 4.3 without state: rate source, empty Python function, collect"
PIPELINE = """[pipeline]
name = "{name}"
function = "card_rule:CardRule"
checkpoint = "checkpoint"
local = "local"
tasks = {tasks}
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{topic}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {most}
recordKeyIsFunctionKey = true
[sink.alerts]
topic = "{name}-alerts"
"""


class Feeder:
    """Sends events of random cards; the ids of those that raise an alert tell when they were sent.

    Every fifth pair is a small payment and the large one after it, on a card of its own.
    """

    def __init__(self, broker: Broker, topic: str) -> None:
        self._connection = Connection(broker.bootstrap)
        self._topic = topic
        self._draw = random.Random(2)
        self._sent = 0

    def send(self, events: int) -> None:
        """One batch, of a partition in turn."""
        now_ms = round(time.time() * 1000)
        records = []
        for _ in range(events // 2):
            self._sent += 2
            alerts = self._sent % 10 == 0
            card = b"card-%07d" % (KEYS + self._sent if alerts else self._draw.randrange(KEYS))
            for number, amount in enumerate((b"0.5", b"900.0") if alerts else (b"20", b"30")):
                event_id = b"%.6f" % time.time() if alerts and number else b"%d" % self._sent
                value = b'{"card":"%s","id":"%s","at":%d,"amount":%s}'
                records.append((card, value % (card, event_id, now_ms, amount), now_ms, ()))
        partition = self._sent // 2 % PARTITIONS
        request = frame_of_batch(self._topic, partition, encode_batch(records))
        if error := produce_error(self._connection.call(request)):
            raise RuntimeError(f"the broker answered error {error}")


def pipeline_file(folder: Path, broker: Broker, name: str, topic: str, most: int) -> Path:
    """A folder with the function and the pipeline's file."""
    folder.mkdir()
    (folder / "card_rule.py").write_text(FUNCTION)
    path = folder / "pipeline.toml"
    path.write_text(
        PIPELINE.format(name=name, bootstrap=broker.bootstrap, topic=topic, most=most, tasks=TASKS)
    )
    return path


def child(*arguments: object) -> list[dict[str, int]]:
    """The durations of a child's batches, but for those of its start."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.microbatch_child", *map(str, arguments)],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    found = [json.loads(line)[1] for line in done.stdout.splitlines() if line.startswith("[")]
    return found[len(found) // 3 :]


def batches(broker: Broker, scratch: Path, turn: int) -> tuple[float, float, float]:
    """Medians, ms: our batch from trigger to commit, the peer's, and p99 in our operator."""
    folder = scratch / f"batches-{turn}"
    path = pipeline_file(folder, broker, f"batches-{turn}", "backlog", EVENTS)
    ours = statistics.median(each["triggerExecution"] for each in child("ours", path, SECONDS))
    ledger = Ledger(folder / "checkpoint")
    entries = [entry for epoch in ledger.epochs() if (entry := ledger.read(epoch))]
    (p99,) = operator_ms([shard for entry in entries for shard in entry.shards], 0.99)
    peer = child("stateless", EVENTS, SECONDS)
    return ours, statistics.median(each["triggerExecution"] for each in peer), p99


def latencies(broker: Broker, scratch: Path, rate: float, turn: int) -> list[float]:
    """Milliseconds from sending an event to having its alert, at so many events a second."""
    topic, name = f"live-{turn}", f"live-{turn}"
    create_topic(broker.bootstrap, topic, PARTITIONS)
    path = pipeline_file(scratch / name, broker, name, topic, 100_000)
    command = [Path(sys.executable).with_name("catchwater"), "pipeline", "run", path]
    log = (scratch / f"{name}.log").open("wb")
    process = subprocess.Popen([*command, "--no-supervise"], stdout=log, stderr=log)
    feeder, stop = Feeder(broker, topic), threading.Event()
    waited: list[float] = []

    def feed() -> None:
        due = time.monotonic()
        while not stop.is_set():
            feeder.send(max(2, round(rate * TURN_S / 2) * 2))
            due += TURN_S
            time.sleep(max(0.0, due - time.monotonic()))

    feeding = threading.Thread(target=feed)
    feeding.start()
    try:
        ledger = Ledger(scratch / name / "checkpoint")
        deadline = time.monotonic() + 120
        while max(ledger.epochs(), default=-1) < 40:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((scratch / f"{name}.log").read_text()[-2000:])
            time.sleep(0.2)
        waited = watch_alerts(broker, f"{name}-alerts", SECONDS)
    finally:
        stop.set()
        feeding.join()
        process.terminate()
        process.wait(60)
        log.close()
    return waited


def watch_alerts(broker: Broker, topic: str, seconds: float) -> list[float]:
    """How long each alert that comes within so many seconds took, ms."""
    waited = []
    with Client(broker.bootstrap) as client:
        keys = [(topic, partition) for partition in client.metadata([topic]).partitions(topic)]
        positions = client.list_offsets(dict.fromkeys(keys, -1))
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for key, fetched in client.fetch(dict(positions), max_wait_ms=500).items():
                placed = place(fetched.records, partial_tail=True)
                for rows in decode(
                    fetched.records, placed, first=positions[key], columns=["value"]
                ):
                    now = time.time()
                    for value in rows.column("value").to_pylist():
                        waited.append(1000 * (now - float(json.loads(value)["id"])))
                if placed:
                    positions[key] = placed[-1].next_offset
    return waited


def main() -> None:
    """Fill a backlog, take turns over it, then feed at a part of that rate; publish."""
    ours: list[float] = []
    theirs: list[float] = []
    in_operator: list[float] = []
    p99: list[float] = []
    with catchwater_broker() as broker, tempfile.TemporaryDirectory() as name:
        create_topic(broker.bootstrap, "backlog", PARTITIONS)
        feeder = Feeder(broker, "backlog")
        for _ in range(400):
            feeder.send(EVENTS)
        for turn in range(ROUNDS):
            batch_ms, peer_ms, operator_p99 = batches(broker, Path(name), turn)
            rate = LOAD * EVENTS / batch_ms * 1000
            waited = sorted(latencies(broker, Path(name), rate, turn))
            ours.append(batch_ms)
            theirs.append(peer_ms)
            in_operator.append(operator_p99)
            p99.append(waited[int(0.99 * len(waited))])
            told = f"batch {batch_ms:.0f} ms, peer {peer_ms:.0f} ms, operator {operator_p99:.0f} ms"
            print(f"round {turn + 1}: {told}; {rate:.0f} events/s: p50 "
                  f"{statistics.median(waited):.0f} p99 {p99[-1]:.0f} ms", flush=True)  # fmt: skip
    publish("microbatch", rows(ours, theirs, in_operator, p99))


def rows(
    ours: list[float], theirs: list[float], in_operator: list[float], p99: list[float]
) -> list[Row]:
    """One row a claim; what is no ratio to a peer is one to its target."""
    claim = f"{EVENTS:,} events a batch, {TASKS} tasks, trigger to commit"
    targets = {"trigger to commit, against the target": (ours, 200.0),
               "event to visible alert, p99 at 60 % load": (p99, 700.0),
               "event in the operator, p99": (in_operator, 100.0)}  # fmt: skip
    return [
        row(claim, "ms", ours, PEER, theirs, better="lower"),
        *(
            row(what, "ms", found, "the target", [most] * len(found), target=1.0, better="lower")
            for what, (found, most) in targets.items()
        ),
    ]


if __name__ == "__main__":
    main()
