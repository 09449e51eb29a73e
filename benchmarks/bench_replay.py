"""Replay into Spark: ours straight from storage, beside Spark's own Kafka connector.

The same JSON records lie in our log and in an Apache Kafka. The connector runs in an environment
of its own, with the pyspark release that has one, both with its default and its tuned settings.
Quote against the tuned one.
"""

import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.kafka_jars import CACHE, ROOT, SPARK_PEER_VERSION, jars
from benchmarks.kafka_peer import apache_kafka
from benchmarks.load import NOW_MS, Connection, create_topic, frame_of_batch, produce_error
from benchmarks.measure import Row, publish, row
from benchmarks.our_broker import catchwater_broker
from catchwater.wire.records import encode_batch

RECORDS = 2_000_000
PER_BATCH = 4_000
VALUE_BYTES = 200
PARTITIONS = 2
ROUNDS = 5
TOPIC = "history"
QUERIES = ("all columns", "value only")


def peer_python() -> Path:
    """An environment with the connector's pyspark, made once under `.cache`."""
    folder = CACHE / f"pyspark-{SPARK_PEER_VERSION}"
    python = folder / "bin" / "python"
    if not python.exists():
        uv = Path(sys.executable).with_name("uv")
        subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder], check=True)
        packages = [f"pyspark=={SPARK_PEER_VERSION}", "pandas<3", "pyarrow"]
        subprocess.run([uv, "pip", "install", "-q", "--python", python, *packages], check=True)
    return python


def fill(bootstrap: str) -> None:
    """The same batches into a new topic of either broker."""
    create_topic(bootstrap, TOPIC, PARTITIONS)
    connection = Connection(bootstrap)
    for index in range(RECORDS // PER_BATCH):
        first = index * PER_BATCH
        records = [
            (b"card-%06d" % (n % 100_000), value(n), NOW_MS + n, ())
            for n in range(first, first + PER_BATCH)
        ]
        request = frame_of_batch(TOPIC, index % PARTITIONS, encode_batch(records))
        if error := produce_error(connection.call(request)):
            raise RuntimeError(f"{bootstrap} answered error {error}")
    connection.close()


def value(n: int) -> bytes:
    text = b'{"card":"card-%06d","id":"%09d","at":%d,"amount":%d.25,"note":"' % (
        n % 100_000, n, NOW_MS + n, n % 1000,
    )  # fmt: skip
    return text + b"x" * (VALUE_BYTES - len(text) - 2) + b'"}'


class Child:
    """A Spark session in a process of its own that answers one query at a time."""

    def __init__(self, python: Path, kind: str, bootstrap: str, spark_jars: str) -> None:
        command = [python, ROOT / "benchmarks" / "replay_child.py", kind, bootstrap, TOPIC]
        environment = {**os.environ, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
        self.process = subprocess.Popen(
            [*command, spark_jars], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, env=environment, cwd=ROOT,
        )  # fmt: skip
        self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        raise RuntimeError("the Spark session ended before it answered")

    def ask(self, query: str) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(query + "\n")
        self.process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(60)


def rows_of(query: str, taken: dict[str, list[dict[str, float]]]) -> list[Row]:
    rows = []
    for kind in ("tuned", "default"):
        peer = f"Spark {SPARK_PEER_VERSION} Kafka connector, {kind}"
        for key, unit, better in (("seconds", "M rows/s", "higher"), ("cpu", "CPU s/M", "lower")):
            per = {
                name: [
                    RECORDS / 1e6 / each[key] if key == "seconds" else each[key] / RECORDS * 1e6
                    for each in taken[name]
                ]
                for name in ("ours", kind)
            }
            claim = f"replay {VALUE_BYTES} B JSON, {query}"
            rows.append(row(claim, unit, per["ours"], peer, per[kind], better=better))
    return rows


def main() -> None:
    """Fill both logs, start three sessions, let them take turns."""
    spark_jars = ",".join(str(path) for path in sorted(jars("connector").glob("*.jar")))
    peer = peer_python()
    with ExitStack() as stack:
        ours = stack.enter_context(catchwater_broker())
        kafka, _ = stack.enter_context(apache_kafka())
        fill(ours.bootstrap)
        fill(kafka)
        children = {
            "ours": Child(Path(sys.executable), "ours", ours.bootstrap, ""),
            "tuned": Child(peer, "tuned", kafka, spark_jars),
            "default": Child(peer, "default", kafka, spark_jars),
        }
        for child in children.values():
            stack.callback(child.close)
        rows: list[Row] = []
        for query in QUERIES:
            taken: dict[str, list[dict[str, float]]] = {name: [] for name in children}
            for turn in range(ROUNDS + 1):
                answers = {name: child.ask(query) for name, child in children.items()}
                assert len({each["answer"] for each in answers.values()}) == 1, answers
                for name, each in answers.items():
                    if turn:
                        taken[name].append(each)
            rows += rows_of(query, taken)
    publish("replay", rows)


if __name__ == "__main__":
    main()
