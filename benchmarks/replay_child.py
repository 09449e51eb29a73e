"""One Spark session that answers replay queries, so that two Sparks can take turns.

Run by `bench_replay` in its own environment: ours with this repository's pyspark, the peer with
the pyspark that has a Kafka connector. Reads a query's name per line on stdin, answers one JSON
line: seconds, CPU seconds of this process tree, and the query's result.
"""

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

TUNED = {
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.max.poll.records": "5000",
}


def session(kind: str, jars: str) -> SparkSession:
    builder = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )
    if jars:
        builder = builder.config("spark.jars", jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if kind == "ours":
        from catchwater.replay.source import register

        register(spark)
    return spark


def source(spark: SparkSession, kind: str, bootstrap: str, topic: str, columns: str) -> DataFrame:
    reader = spark.read.format("catchwater" if kind == "ours" else "kafka")
    reader = reader.option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    reader = reader.option("startingOffsets", "earliest").option("endingOffsets", "latest")
    if kind == "ours" and columns:
        reader = reader.option("columns", columns)
    if kind == "tuned":
        for name, value in TUNED.items():
            reader = reader.option(name, value)
    return reader.load()


def run(spark: SparkSession, kind: str, query: str, bootstrap: str, topic: str) -> int:
    columns = "value" if query == "value only" else ""
    frame = source(spark, kind, bootstrap, topic, columns)
    if query == "value only":
        return int(frame.selectExpr("sum(length(value)) as n").first()["n"])
    all_columns = (
        "sum(length(value)) + sum(coalesce(length(key), 0)) + sum(length(topic)) + sum(partition)"
        " + sum(offset % 2) + sum(unix_seconds(timestamp) % 2) + sum(timestampType) as n"
    )
    return int(frame.selectExpr(all_columns).first()["n"])


def tree_cpu_seconds() -> float:
    """User and system time of this process and everything it started, ended ones included."""
    parents = {}
    used = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(int(fields[at]) for at in (11, 12, 13, 14))
    total = 0
    for pid, ticks in used.items():
        ancestor = pid
        while ancestor and ancestor != os.getpid():
            ancestor = parents.get(ancestor, 0)
        total += ticks if ancestor else 0
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    kind, bootstrap, topic, jars = sys.argv[1:5]
    spark = session(kind, jars)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        start, used = time.perf_counter(), tree_cpu_seconds()
        answer = run(spark, kind, line.strip(), bootstrap, topic)
        took = time.perf_counter() - start
        cpu = tree_cpu_seconds() - used
        print(json.dumps({"seconds": took, "cpu": cpu, "answer": answer}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
