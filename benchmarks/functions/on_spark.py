"""The card rule with Spark's own per-key `transformWithState`, two tasks, RocksDB.

Spark's own session. Reads with our source (no JAR), decodes JSON in the JVM, keeps one state per
card; the driver sends the few alerts of a batch to Kafka. Arguments: bootstrap in out group folder.
"""

import os
import sys
from collections.abc import Iterator
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, from_json
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

from benchmarks.functions.peers import PER_EPOCH
from catchwater.pipeline.spark import session
from catchwater.replay.source import register

EVENT = "card string, id string, at long, amount double"
TUNED = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
}
"""Spark's own settings, but for what its documentation advises."""


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
    bootstrap, source, target, group, folder = sys.argv[1:6]
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})

    def send(rows: DataFrame, epoch: int) -> None:
        for row in rows.toJSON().collect():
            producer.produce(target, row.encode())
        producer.flush()

    os.environ |= {"JAVA_HOME": str(session.find_java().home), "PYSPARK_PYTHON": sys.executable}
    builder = SparkSession.builder.appName(group).master("local[2]")
    for key, value in TUNED.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    register(spark)
    events = (
        spark.readStream.format("catchwater")
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", PER_EPOCH)
        .load()
        .select(from_json(col("value").cast("string"), EVENT).alias("e"))
        .select("e.*")
    )
    alerts = events.groupBy("card").transformWithState(
        PerKey(), "card string, id string, rule string", outputMode="append", timeMode="none"
    )
    writer = alerts.writeStream.foreachBatch(send).option("checkpointLocation", folder)
    writer.start().awaitTermination()


if __name__ == "__main__":
    main()
