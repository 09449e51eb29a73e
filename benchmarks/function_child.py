"""The card rule with Spark's own per-key `transformWithState`, as the peer of our operator.

Run by `bench_function`: reads the topic with our source, decodes JSON in the JVM, keeps one state
per card, and writes alerts nowhere. Prints one JSON line: events per second of each batch after
the first.
"""

import json
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.functions import col, from_json
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from catchwater.pipeline.spark import session
from catchwater.replay.source import register

EVENT = "card string, id string, at long, amount double"


class PerKey(StatefulProcessor):
    """One Spark state, and one call of this class, per card."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.small_at = handle.getValueState("small_at", "at long")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:
        small_at = self.small_at.get()[0] if self.small_at.exists() else 0
        for row in rows:
            if row.amount > 500 and small_at and row.at - small_at < 60_000:
                yield Row(card=key[0], id=row.id, rule="small-then-large")
            if row.amount < 1:
                small_at = row.at
        self.small_at.update((small_at,))

    def close(self) -> None:
        pass


def main() -> None:
    bootstrap, topic, per_batch = sys.argv[1:4]
    spark = session.start("per-key", tasks=2)
    register(spark)
    events = (
        spark.readStream.format("catchwater")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", per_batch)
        .load()
        .select(from_json(col("value").cast("string"), EVENT).alias("e"))
        .select("e.*")
    )
    alerts = events.groupBy("card").transformWithState(
        PerKey(), "card string, id string, rule string", outputMode="append", timeMode="none"
    )
    with tempfile.TemporaryDirectory() as checkpoint:
        query = (
            alerts.writeStream.foreachBatch(lambda rows, _: rows.count())
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        progress = [each for each in query.recentProgress if each["numInputRows"]]
    rates = [
        each["numInputRows"] / each["durationMs"]["triggerExecution"] * 1000
        for each in progress[1:]
    ]
    print(json.dumps({"rates": rates}))
    spark.stop()


if __name__ == "__main__":
    main()
