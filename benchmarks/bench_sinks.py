"""What exactly-once costs a sink: the same epochs committed exactly once and at least once.

Each figure is of the driver's commit alone, from what tasks have staged; rows are JSON alerts of
six fields. Latency is of epochs of 100 rows, throughput of one epoch of 100,000. Into our own log
a task that writes at least once appends at once, so there the figures are of staging and commit
together. An endpoint takes 5,000 rows. A file sink has no cheaper mode: it stands beside pyarrow
alone, which decodes the same JSON and writes the same columns, unsynced and without marks.

Then each sink is checked with as many rows (`damaged_sinks`). What is measured is published after
each sink; all of them take about five minutes.
"""

import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, count
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from tests.conformance.foreign_targets import IcebergTarget, KafkaTarget, ParquetTarget
from tests.conformance.sink_targets import LogTarget, PostgresTarget, SqliteTarget
from tests.postgres import PostgresServer

from benchmarks.damaged_sinks import StoreTarget, checked, key_value_store
from benchmarks.kafka_peer import apache_kafka
from benchmarks.measure import Row, alternate, publish, row
from benchmarks.our_broker import catchwater_broker
from catchwater.clock import SYSTEM
from catchwater.replay.control import Control
from catchwater.sinks.base import OutputRecord, Sink
from catchwater.sinks.config import SinkContext, open_sink, parse

ROUNDS = int(os.environ.get("ROUNDS", "3"))
ROWS = int(os.environ.get("ROWS", "100000"))
SMALL_ROWS = 100
SMALL_EPOCHS = 20
SHARDS = 4
_NAMES = count()


@dataclass
class Alert:
    """One output."""

    card: str
    id: str
    rule: str
    amount: float
    at: int
    tags: list[str]


def records(number: int) -> list[OutputRecord]:
    """So many alerts of a thousand cards, of now: a log keeps nothing older than its retention."""
    now_ms = SYSTEM.now_ms()
    return [
        OutputRecord(
            b"card-%d" % (n % 1000),
            json.dumps(
                {"card": f"card-{n % 1000}", "id": str(n), "rule": "small-then-large",
                 "amount": n / 4, "at": 1_700_000_000_000 + n, "tags": ["fast", "night"]}
            ).encode(),
            now_ms,
        )
        for n in range(number)
    ]  # fmt: skip


@dataclass(frozen=True)
class Kind:
    """One kind of sink, and where it finds its target."""

    options: dict[str, str]
    bootstrap: str = ""
    control: Control | None = None
    rows: int = ROWS
    with_staging: bool = False


@contextmanager
def opened(kind: Kind, delivery: str) -> Iterator[Sink]:
    """A sink with a fresh target."""
    name = f"s{next(_NAMES)}"
    with tempfile.TemporaryDirectory(prefix="bench-sinks-") as folder:
        values = {key: value.replace("NAME", name) for key, value in kind.options.items()}
        context = SinkContext(
            "bench",
            (Path(folder) / "kept").as_uri(),
            Path(folder),
            bootstrap=kind.bootstrap,
            control=kind.control,
            output_type=Alert,
        )
        sink = open_sink(parse(name, {**values, "delivery": delivery}), context)
        try:
            yield sink
        finally:
            sink.close()


def commit_s(kind: Kind, sink: Sink, epoch: int, rows: list[OutputRecord]) -> float:
    """Seconds of one commit."""
    size = -(-len(rows) // SHARDS)
    parts = [rows[shard * size : (shard + 1) * size] for shard in range(SHARDS)]
    began = time.perf_counter()
    staged = [sink.stager().stage(epoch, shard, part) for shard, part in enumerate(parts)]
    began = began if kind.with_staging else time.perf_counter()
    sink.commit(epoch, staged)
    return time.perf_counter() - began


def throughput(kind: Kind, delivery: str) -> float:
    """Rows a second of one large epoch, after a small one."""
    with opened(kind, delivery) as sink:
        commit_s(kind, sink, 0, records(SMALL_ROWS))
        return kind.rows / commit_s(kind, sink, 1, records(kind.rows))


def latency_ms(kind: Kind, delivery: str) -> float:
    """The median of small epochs, after a first one."""
    with opened(kind, delivery) as sink:
        rows = records(SMALL_ROWS)
        times = [commit_s(kind, sink, epoch, rows) for epoch in range(SMALL_EPOCHS + 1)]
        return 1000 * statistics.median(times[1:])


def arrow_alone(number: int) -> float:
    """Seconds that pyarrow takes from JSON lines to a file."""
    lines = b"\n".join(record.value for record in records(number))
    with tempfile.TemporaryDirectory(prefix="bench-sinks-") as folder:
        began = time.perf_counter()
        options = pj.ReadOptions(block_size=len(lines) + 1)
        table = pj.read_json(pa.BufferReader(lines), read_options=options)
        pq.write_table(table, Path(folder) / "alone.parquet", compression="zstd")
        return time.perf_counter() - began


def compared(
    kind: str, ours: Callable[[str], Callable[[], float]], peers: dict[str, Callable[[], float]]
) -> list[Row]:
    """Throughput and latency of one kind."""
    told = {"throughput": ("rows/s", "higher"), "latency": ("ms", "lower")}
    rows: list[Row] = []
    for figure, (unit, better) in told.items():
        first, second = alternate(ours(figure), peers[figure], ROUNDS)
        claim = f"{kind}: {figure} of a commit, exactly once"
        peer = "at least once" if "alone" not in peers else "pyarrow alone"
        rows.append(row(claim, unit, first, peer, second, better=better))
    return rows


def both(name: str, kind: Kind) -> list[Row]:
    """Exactly once beside at least once."""
    measures = {"throughput": throughput, "latency": latency_ms}

    def ours(figure: str) -> Callable[[], float]:
        return partial(measures[figure], kind, "exactly-once")

    peers = {
        figure: partial(measure, kind, "at-least-once") for figure, measure in measures.items()
    }
    return compared(name, ours, peers)


def beside_arrow(name: str, kind: Kind) -> list[Row]:
    """A file sink beside the library it writes with."""
    measures = {"throughput": throughput, "latency": latency_ms}
    peers = {
        "throughput": lambda: ROWS / arrow_alone(ROWS),
        "latency": lambda: 1000 * arrow_alone(SMALL_ROWS),
        "alone": lambda: 0.0,
    }
    return compared(name, lambda f: partial(measures[f], kind, "exactly-once"), peers)


def tables() -> Iterator[list[Row]]:
    """The databases."""
    table = {"table": "NAME"}
    yield both("sqlite", Kind({"kind": "sqlite", "path": "out.db", **table}))
    yield checked("sqlite", SqliteTarget, ROWS)
    with closing(PostgresServer(fsync=True)) as postgres:
        url = postgres.new_database()
        yield both("postgres", Kind({"kind": "postgres", "url": url, **table}))
        yield checked("postgres", partial(PostgresTarget, url=postgres.new_database()), ROWS)


def files() -> Iterator[list[Row]]:
    """Parquet and Iceberg, in a local folder."""
    yield beside_arrow("parquet", Kind({"kind": "parquet", "url": "out"}))
    yield checked("parquet", ParquetTarget, ROWS)
    iceberg = {"kind": "iceberg", "table": "lake.alerts", "warehouse": "warehouse"}
    yield beside_arrow("iceberg", Kind(iceberg))
    yield checked("iceberg", IcebergTarget, ROWS)


def endpoint() -> Iterator[list[Row]]:
    """A key-value store over HTTP, in a process of its own."""
    with key_value_store() as store:
        url = f"{store.url}/NAME/{{row}}"
        yield both("http", Kind({"kind": "http", "url": url}, rows=min(5000, ROWS)))
        yield checked("http", partial(StoreTarget, server=store), ROWS)


def logs() -> Iterator[list[Row]]:
    """Another Kafka, and our own log."""
    topic = {"kind": "kafka", "topic": "NAME", "partitions": "2"}
    with apache_kafka() as (bootstrap, _):
        yield both("kafka (Apache Kafka)", Kind(topic, bootstrap))
        far = partial(KafkaTarget, bootstrap=bootstrap, topic="checked")
        yield checked("kafka (Apache Kafka)", far, ROWS)
    with catchwater_broker() as broker:
        yield both("kafka (Catchwater)", Kind(topic, broker.bootstrap))
        own = {**topic, "kind": "log"}
        control = Control(broker.control)
        yield both("log", Kind(own, broker.bootstrap, control, with_staging=True))
        told = SimpleNamespace(bootstrap=broker.bootstrap, control_url=broker.control)
        yield checked("log", partial(LogTarget, broker=told, topic="checked"), ROWS)


def main() -> None:
    """Measure, and publish after each sink."""
    rows: list[Row] = []
    for some in chain(tables(), files(), logs(), endpoint()):
        rows += some
        publish("sinks", rows)


if __name__ == "__main__":
    main()
