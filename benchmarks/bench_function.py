"""The card rule on our sharded operator, beside Spark's own per-key `transformWithState`.

Both read the same topic of our log with the same source, one Spark release, two cores: JSON in, a
Python function for every event. Ours decodes, deduplicates nothing, keeps state and timers, and
writes its alerts once; the peer only keeps state. Epochs hold the same events for both, since a
small batch pays Spark's fixed cost more often. Rates are those of whole epochs after the first, as
the driver saw them. CPU is not compared: the two runs do not spend the same on starting.
"""

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.kafka_jars import ROOT
from benchmarks.load import NOW_MS, Connection, create_topic, frame_of_batch, produce_error
from benchmarks.measure import ROUNDS, publish, row
from benchmarks.our_broker import catchwater_broker
from catchwater.recovery.ledger import Ledger
from catchwater.wire.records import encode_batch

KEYS = 100_000
PER_EPOCH = 100_000
EPOCHS = 3
PER_BATCH = 5_000
PARTITIONS = 2
TOPIC = "payments"
PEER = "Spark 4.3 transformWithState, a state per key"

FUNCTION = '''"""The card rule, without dedup: what the per-key peer does too."""
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Txn:
    card: str
    id: str
    at: int
    amount: float

@dataclass
class Alert:
    card: str
    id: str
    rule: str

@dataclass
class Risk:
    small_at: int = 0

@function(name="card-rule", version=1, key="card", event_time="at", watermark="30s")
class CardRule(Keyed[Txn, Risk, Alert]):
    def on_event(self, e: Txn, s: Risk, ctx: Context) -> Out[Alert]:
        out = ()
        if e.amount > 500 and s.small_at and e.at - s.small_at < 60_000:
            out = [Alert(e.card, e.id, "small-then-large")]
        if e.amount < 1:
            s.small_at = e.at
        return out
'''
PIPELINE = """[pipeline]
name = "bench-{round}"
function = "card_rule:CardRule"
checkpoint = "checkpoint"
local = "local"
trigger = "available-now"
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{topic}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {per_epoch}
recordKeyIsFunctionKey = true
[sink.alerts]
topic = "alerts-{round}"
[recovery]
retain = 100
"""


def fill(bootstrap: str, topic: str, events: int) -> None:
    """Events of random cards, in the order of their time, keyed by card."""
    create_topic(bootstrap, topic, PARTITIONS)
    draw = random.Random(1)
    connection = Connection(bootstrap)
    for start in range(0, events, PER_BATCH):
        records = []
        for n in range(start, start + PER_BATCH):
            card = b"card-%06d" % draw.randrange(KEYS)
            amount = b"0.5" if n % 50 == 0 else b"900.0" if n % 50 == 1 else b"20.25"
            at = NOW_MS + n
            value = b'{"card":"%s","id":"%d","at":%d,"amount":%s}' % (card, n, at, amount)
            records.append((card, value, at, ()))
        batch = encode_batch(records)
        request = frame_of_batch(topic, (start // PER_BATCH) % PARTITIONS, batch)
        if error := produce_error(connection.call(request)):
            raise RuntimeError(f"{bootstrap} answered error {error}")
    connection.close()


def run_ours(bootstrap: str, turn: int) -> float:
    """Events/s: the median of the epochs after the first."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "card_rule.py").write_text(FUNCTION)
        text = PIPELINE.format(round=turn, bootstrap=bootstrap, topic=TOPIC, per_epoch=PER_EPOCH)
        (folder / "pipeline.toml").write_text(text)
        command = [Path(sys.executable).with_name("catchwater"), "pipeline", "run"]
        subprocess.run([*command, folder / "pipeline.toml"], check=True, capture_output=True)
        ledger = Ledger(folder / "checkpoint")
        entries = [ledger.read(epoch) for epoch in ledger.epochs()]
        rates = [
            entry.total("events") / (entry.finished_ms - previous.finished_ms) * 1000
            for previous, entry in itertools.pairwise(entries)
            if entry.total("events") == PER_EPOCH
        ]
    return statistics.median(rates)


def run_peer(bootstrap: str) -> float:
    """The same of the per-key processor."""
    command = [sys.executable, "-m", "benchmarks.function_child"]
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [*command, bootstrap, TOPIC, str(PER_EPOCH)],
        check=True, capture_output=True, text=True, env=environment, cwd=ROOT,
    )  # fmt: skip
    answer = json.loads(next(line for line in done.stdout.splitlines() if line.startswith("{")))
    return statistics.median(answer["rates"])


def main() -> None:
    """Fill a topic, let both take turns over it, publish."""
    ours: list[float] = []
    theirs: list[float] = []
    with catchwater_broker() as broker:
        fill(broker.bootstrap, TOPIC, PER_EPOCH * EPOCHS)
        for turn in range(ROUNDS):
            ours.append(run_ours(broker.bootstrap, turn))
            theirs.append(run_peer(broker.bootstrap))
            print(f"round {turn + 1}: {ours[-1]:,.0f} and {theirs[-1]:,.0f} events/s", flush=True)
    claim = f"stateful function, {KEYS:,} keys, JSON in, {PER_EPOCH:,} events an epoch"
    publish("function", [row(claim, "events/s", ours, PEER, theirs, target=30.0)])


if __name__ == "__main__":
    main()
