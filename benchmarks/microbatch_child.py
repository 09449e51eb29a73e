"""A pipeline, or a stateless query of Spark's own, in this process: it prints what batches took.

Ours is what `catchwater pipeline run` runs, put together by hand, because only the process that
holds a query can ask Spark for its progress. One line of JSON a batch: rows and Spark's durations.
"""

import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from catchwater.clock import SYSTEM
from catchwater.pipeline.epochs import EpochWriter
from catchwater.pipeline.run import config, driver, run
from catchwater.pipeline.run.run import prepare, start_query
from catchwater.pipeline.spark import session
from catchwater.recovery.ledger import Ledger

POLL_S = 0.25


def tell(query: Any, seconds: float, each: Callable[[], object] = lambda: None) -> None:
    """Print every batch's progress for so long, doing `each` in between."""
    told, until = -1, time.time() + seconds
    while time.time() < until and query.isActive:
        for progress in query.recentProgress:
            if progress["batchId"] > told and progress["durationMs"].get("addBatch"):
                told = progress["batchId"]
                print(json.dumps([progress["batchId"], progress["durationMs"]]), flush=True)
        each()
        time.sleep(POLL_S)
    if query.exception():
        raise SystemExit(str(query.exception()))


def ours(path: Path, seconds: float) -> None:
    """The pipeline of this file, its upkeep included."""
    settings = config.load(path, {})
    folder = settings.checkpoint
    folder.mkdir(parents=True)
    pipeline = prepare(settings, SYSTEM.monotonic_s(), SYSTEM)
    with (folder.parent / "spark.log").open("ab") as log:
        spark = session.start(
            pipeline.name, tasks=settings.tasks, log=log, conf=driver.settings_of(settings)
        )
        session.start_workers(spark, settings.tasks)
        shards = settings.shard_count * len(pipeline.specs)
        writer = EpochWriter(Ledger(folder), pipeline.sinks, shards, SYSTEM)
        chain = run.stages(pipeline)
        upkeep = run.upkeep_of(pipeline, chain, SYSTEM)
        query = start_query(spark, pipeline, chain, writer)
        tell(query, seconds, upkeep.look)
        query.stop()
        session.stop(spark)


def stateless(rows: int, seconds: float) -> None:
    """Spark's rate source through an empty Python function, collected by the driver."""

    def as_they_are(batches: Iterator[Any]) -> Iterator[Any]:
        return batches

    with tempfile.TemporaryDirectory() as scratch:
        with (Path(scratch) / "spark.log").open("ab") as log:
            spark = session.start("stateless", log=log)
            reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
            source = reader.option("numPartitions", 2).load()
            mapped = source.mapInArrow(as_they_are, source.schema).limit(4)
            query = mapped.writeStream.foreachBatch(lambda found, epoch: found.collect())
            started = query.option("checkpointLocation", f"{scratch}/checkpoint").start()
            tell(started, seconds)
            started.stop()
            session.stop(spark)


if __name__ == "__main__":
    if sys.argv[1] == "stateless":
        stateless(int(sys.argv[2]), float(sys.argv[3]))
    else:
        ours(Path(sys.argv[2]), float(sys.argv[3]))
