"""A plain Spark job in place of a pipeline of ours: Spark's own state, connector and checkpoint.

It does what `job` does, as its users would write it: `applyInPandasWithState` over Spark's Kafka
source, its rows into Spark's Kafka sink. It runs in an environment that the drill is told, with a
pyspark and a connector of any release. What it lacks is not made up for: nobody starts it again,
its sink is at least once, and nothing foretells a restore or keeps what one reads.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from shutil import move
from statistics import median
from typing import NamedTuple

from catchwater.config import CatchwaterError
from catchwater.drill.processes import Child
from catchwater.drill.stage import Stage
from catchwater.drill.watch import Watch
from catchwater.drill.workload import WATERMARK_MS
from catchwater.recovery import checkpoint
from catchwater.recovery.contract import Contract
from catchwater.recovery.estimate import LEAST_NEAR_S
from catchwater.recovery.ledger import numbered

_RECENT = 5

_JOB = '''"""Payments of each card, numbered and summed up."""

import json
import signal
import sys
import time
from hashlib import shake_256

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as f
from pyspark.sql.streaming.state import GroupStateTimeout

MOST_IDS = 200  # of a card, against repeats, which come soon


def count(key, frames, state):
    (card,) = key
    n, cents, ids, kept = state.get if state.exists else (0, 0, "[]", b"")
    seen, late = json.loads(ids), state.getCurrentWatermarkMs()
    if len(kept) < {keep_bytes}:
        kept = shake_256(card.encode()).digest({keep_bytes})
    columns = [(x["offset"], x["id"], x["at"], x["amount"]) for x in frames]
    rows, known = [], set(seen)
    for _, name, at, amount in sorted(row for each in columns for row in zip(*each)):
        if at < late or name in known:
            continue
        known.add(name)
        seen.append(name)
        n, cents = n + 1, cents + round(amount * 100)
        rows.append((card, n, cents))
    state.update((n, cents, json.dumps(seen[-MOST_IDS:]), kept))
    yield pd.DataFrame(rows, columns=["card", "n", "cents"])


bootstrap, source, target, folder, jars = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[2,4]")
    .config("spark.jars", jars)
    .config("spark.ui.enabled", "false")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.local.dir", folder + "/local")
    .config("spark.sql.shuffle.partitions", "4")
    .getOrCreate()
)
read = (
    spark.readStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("subscribe", source)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "{epoch_events}")
    .load()
)
FIELDS = "card string, id string, at long, amount double"
payment = f.from_json(f.col("value").cast("string"), FIELDS)
payments = (
    read.select("offset", payment.alias("p"))
    .select("offset", "p.*", f.timestamp_millis("p.at").alias("time"))
    .withWatermark("time", "{watermark_ms} milliseconds")
)
totals = payments.groupBy("card").applyInPandasWithState(
    count, "card string, n long, cents long", "n long, cents long, ids string, kept binary",
    "append", GroupStateTimeout.NoTimeout,
)
row = f.to_json(f.struct("card", "n", "cents"))
query = (
    totals.select(f.col("card").alias("key"), row.alias("value"))
    .writeStream.format("kafka")
    .option("kafka.bootstrap.servers", bootstrap)
    .option("topic", target)
    .option("checkpointLocation", folder + "/checkpoint")
    .start()
)
asked_to_stop = []
signal.signal(signal.SIGTERM, lambda number, frame: asked_to_stop.append(number))
while query.isActive and not asked_to_stop:
    time.sleep(0.1)
error = query.exception()
query.stop()
spark.stop()
if error:
    sys.exit("error: " + str(error)[:500])
'''


class SparkPlace(NamedTuple):
    """Where a plain job runs."""

    python: Path
    """Of an environment with pyspark and pandas."""
    jars: Path
    """The folder of Spark's Kafka connector and of what it needs."""


class NoSpark(CatchwaterError):
    """There is no Spark for a plain job."""

    exit_code = 2


def find_spark(python: Path | None, jars: Path | None) -> SparkPlace:
    """Raises `NoSpark`."""
    if python is None or not python.is_file() or jars is None or not any(jars.glob("*kafka*.jar")):
        raise NoSpark(
            "A plain Spark job needs an environment of its own.",
            hint="Name with --spark-python a Python that has pyspark and pandas, and with "
            "--spark-jars the folder of spark-sql-kafka and the jars it needs.",
        )
    return SparkPlace(python, jars)


class SparkWatch(Watch):
    """What its batches have done, by Spark's own files."""

    def __init__(self, folder: Path, topic: str) -> None:
        super().__init__(folder, topic)
        self._place = folder, topic

    def look(self) -> None:
        """Which batch was the last that was committed."""
        self.committed = checkpoint.last_commit(self._place[0])

    def reached(self, ends: Mapping[int, int]) -> bool:
        """Whether the input was consumed up to these offsets (partition to offset)."""
        folder, topic = self._place
        position: dict[str, int] = {}
        with suppress(FileNotFoundError):
            for line in (folder / "offsets" / str(self.committed)).read_text().splitlines():
                with suppress(json.JSONDecodeError):
                    offsets = json.loads(line)
                    if isinstance(offsets, dict):
                        position = offsets.get(topic, position)
        return bool(position) and all(position.get(str(p), 0) >= end for p, end in ends.items())

    def contract(self) -> Contract | None:
        """It has none."""
        return None


class SparkStage(Stage):
    """A log, and a plain Spark job over it."""

    worker = b"pyspark.daemon", 1
    supervises = False
    manual_start = "start the job again, which nothing does by itself"
    place: SparkPlace

    def watching(self) -> Watch:
        """By Spark's files."""
        return SparkWatch(self.checkpoint, self.job.topic)

    def write_function(self, *, version: int = 1, keep_bytes: int = 0) -> None:
        """The job's program."""
        assert version == 1, "a plain job has no versions"
        text = _JOB
        for name, value in {
            "keep_bytes": keep_bytes, "epoch_events": self.job.epoch_events,
            "watermark_ms": WATERMARK_MS,
        }.items():  # fmt: skip
            text = text.replace(f"{{{name}}}", str(value))
        (self.folder / "job.py").write_text(text)

    def start_pipeline(self, *, supervised: bool = False) -> Child:
        """The driver; nobody starts another."""
        (self.folder / "local").mkdir(exist_ok=True)
        jars = ",".join(str(path.resolve()) for path in sorted(self.place.jars.glob("*.jar")))
        job = self.job
        topics = job.topic, job.output_topic
        python = str(self.place.python.absolute())
        marks = {**(self._marks or {}), "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1"}
        child = Child(
            "Spark job", [self.platform.bootstrap, *topics, str(self.folder), jars],
            self.folder / "pipeline.log", self._clock,
            program=[python, str(self.folder / "job.py")], marks=marks,
        )  # fmt: skip
        return self._children.enter_context(child)

    def checkpoints(self) -> int:
        """How many Spark keeps."""
        return sum(1 for _ in numbered(self.checkpoint / "commits"))

    def kill_driver(self, pipeline: Child) -> None:
        """Python and its JVM."""
        pipeline.kill()

    def near_s(self) -> float:
        """Twice what a batch takes."""
        took = []
        for number in sorted(numbered(self.checkpoint / "commits"))[-_RECENT:]:
            with suppress(FileNotFoundError):
                began, ended = (
                    (self.checkpoint / of / str(number)).stat().st_mtime
                    for of in ("offsets", "commits")
                )
                took.append(ended - began)
        return max(LEAST_NEAR_S, 2 * median(took) if took else 0.0)

    def go_back(self, retained: int) -> str:
        """Move its newest batches out of the checkpoint, as people do it; what was done."""
        numbers = sorted(numbered(self.checkpoint / "commits"))
        oldest, newest = numbers[-retained:][0], numbers[-1]
        aside = self.folder / "aside"
        for of in ("offsets", "commits"):
            for number in numbered(self.checkpoint / of):
                if number > oldest:
                    (aside / of).mkdir(parents=True, exist_ok=True)
                    move(self.checkpoint / of / str(number), aside / of)
                    (self.checkpoint / of / f".{number}.crc").unlink(missing_ok=True)
        return f"back to batch {oldest} of {newest}, by moving files out of the checkpoint"
