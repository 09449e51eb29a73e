"""One Spark session that answers replay queries.

Run by `sessions` in an environment of its own: ours with this repository's pyspark, the peer with
the pyspark that has a Kafka connector. Reads [kind, query, bootstrap, topic] per line on stdin,
answers one JSON line: seconds, CPU seconds of this process tree, and the query's result.

Of the query `stream` the answer comes when it runs, and it runs on.

Kinds: `ours` reads storage by plan, `foreign` any Kafka over its protocol, `cut` and `foreign cut`
the same in bundles that Spark cuts, `history` Parquet where there is some, `named` a topic by its
name; with `export` the tasks write the files; `default` and `tuned` are Spark's connector.
"""

import atexit
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from shutil import rmtree

from pyarrow.parquet import read_metadata
from pyspark.sql import DataFrame, SparkSession

TUNED = {
    "kafka.max.partition.fetch.bytes": str(8 << 20),
    "kafka.fetch.max.bytes": str(64 << 20),
    "kafka.max.poll.records": "5000",
}
CONNECTOR = ("default", "tuned")
SCHEMA = "card string, id string, at long, amount double, note string"
ALL_COLUMNS = (
    "sum(length(value)) + sum(coalesce(length(key), 0)) + sum(length(topic)) + sum(partition)"
    " + sum(offset % 2) + sum(unix_seconds(timestamp) % 2) + sum(timestampType) as n"
)
COLUMNS = {"count": "offset", "value only": "value", "JSON to a typed column": "value"}
"""What a query that needs few columns tells our source, which Spark does not tell it."""


def session(cores: str, jars: str) -> SparkSession:
    builder = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "3g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
    )
    if jars:
        builder = builder.config("spark.jars", jars)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    if not jars:
        from catchwater.replay.source import register

        register(spark)
    return spark


def options_of(bootstrap: str, topic: str) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topic,
        "startingOffsets": "earliest",
        "endingOffsets": "latest",
    }


def source(spark: SparkSession, kind: str, query: str, bootstrap: str, topic: str) -> DataFrame:
    options = options_of(bootstrap, topic)
    if kind in CONNECTOR:
        options |= TUNED if kind == "tuned" else {}
        return spark.read.format("kafka").options(**options).load()
    if query in COLUMNS:
        options["columns"] = COLUMNS[query]
    if query == "JSON to a typed column":
        options |= {"valueFormat": "json", "valueSchema": SCHEMA, "valueFields": "amount"}
    if kind == "history":
        from catchwater.replay import history

        return history.read(spark, options)
    if kind == "named":
        from catchwater.spark import read

        del options["subscribe"]
        return read(spark, topic, options)
    options["catchwater.read"] = "kafka" if kind.startswith("foreign") else "direct"
    if kind.endswith("cut"):
        from catchwater.spark import read

        return read(spark, options)
    return spark.read.format("catchwater").options(**options).load()


def run(spark: SparkSession, kind: str, query: str, bootstrap: str, topic: str) -> float:
    """The query's answer; the same for every kind."""
    if query == "stream":
        return run_on(spark, kind, bootstrap, topic)
    if query == "write to Parquet":
        return rows_written(spark, kind, bootstrap, topic)
    frame = source(spark, kind, query, bootstrap, topic)
    if query == "count":
        return int(frame.count())
    if query in ("value only", "sum(length(value))"):
        return int(frame.selectExpr("sum(length(value)) as n").first()["n"])
    if query == "all columns":
        return int(frame.selectExpr(ALL_COLUMNS).first()["n"])
    assert query == "JSON to a typed column", query
    if kind in CONNECTOR:
        frame = frame.selectExpr(f"from_json(cast(value as string), '{SCHEMA}').amount as amount")
    return float(frame.selectExpr("sum(amount) as n").first()["n"])


def run_on(spark: SparkSession, kind: str, bootstrap: str, topic: str) -> int:
    """Begin to read for good what comes; of `nothing`, what never comes."""
    if kind == "nothing":
        empty = tempfile.mkdtemp(prefix="catchwater-bench-")
        atexit.register(rmtree, empty)
        frame = spark.readStream.text(empty)
    else:
        options = options_of(bootstrap, topic)
        del options["endingOffsets"]
        name = "kafka" if kind in CONNECTOR else "catchwater"
        frame = spark.readStream.format(name).options(**options).load()
    query = frame.writeStream.format("noop").start()
    while query.isActive and not query.recentProgress:
        time.sleep(0.1)
    if query.exception() is not None:
        raise RuntimeError(str(query.exception()))
    return 0


def rows_written(spark: SparkSession, kind: str, bootstrap: str, topic: str) -> int:
    """Write everything as Parquet, compressed as Spark does by default; the rows in the files."""
    with tempfile.TemporaryDirectory(prefix="catchwater-bench-") as parent:
        folder = Path(parent, "out")
        if kind == "export":
            from catchwater.replay.export.run import export

            export(spark, options_of(bootstrap, topic), str(folder))
        else:
            source(spark, kind, "write to Parquet", bootstrap, topic).write.parquet(str(folder))
        return sum(read_metadata(each).num_rows for each in folder.glob("*.parquet"))


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
    cores, jars = sys.argv[1:3]
    spark = session(cores, jars)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        start, used = time.perf_counter(), tree_cpu_seconds()
        answer = run(spark, *json.loads(line))
        took = time.perf_counter() - start
        cpu = tree_cpu_seconds() - used
        print(json.dumps({"seconds": took, "cpu": cpu, "answer": answer}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
