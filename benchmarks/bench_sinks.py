"""What exactly-once costs a sink: the same epochs committed exactly once and at least once.

Each figure is of the driver's commit alone, from what tasks have staged; rows are JSON alerts of
six fields. Latency is of epochs of 100 rows, throughput of one epoch of 100,000. Into our own log
a task that writes at least once appends at once, so there the figures are of staging and commit
together. An endpoint takes 5,000 rows. A file sink has no cheaper mode: it stands beside pyarrow
alone, which decodes the same JSON and writes the same columns, unsynced and without marks.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from tests.postgres import PostgresServer

from benchmarks.kafka_peer import apache_kafka
from benchmarks.measure import Row, alternate, publish, row
from benchmarks.our_broker import catchwater_broker
from catchwater.replay.control import Control
from catchwater.sinks.base import OutputRecord, Sink
from catchwater.sinks.config import parse
from catchwater.sinks.open import open_sink
from catchwater.sinks.surroundings import Surroundings

ROUNDS = int(os.environ.get("ROUNDS", "5"))
ROWS = int(os.environ.get("ROWS", "100000"))
SMALL_ROWS = 100
SMALL_EPOCHS = 20
SHARDS = 4
_NAMES = itertools.count()


@dataclass
class Alert:
    """One output."""

    card: str
    id: str
    rule: str
    amount: float
    at: int
    tags: list[str]


def records(count: int) -> list[OutputRecord]:
    """So many alerts of a thousand cards."""
    return [
        OutputRecord(
            b"card-%d" % (n % 1000),
            json.dumps(
                {"card": f"card-{n % 1000}", "id": str(n), "rule": "small-then-large",
                 "amount": n / 4, "at": 1_700_000_000_000 + n, "tags": ["fast", "night"]}
            ).encode(),
            1_700_000_000_000,
        )
        for n in range(count)
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
        around = Surroundings(
            "bench", (Path(folder) / "kept").as_uri(), Path(folder), kind.bootstrap, kind.control,
            output_type=Alert,
        )  # fmt: skip
        sink = open_sink(parse(name, {**values, "delivery": delivery}), around)
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


def arrow_alone(count: int) -> float:
    """Seconds that pyarrow takes from JSON lines to a file."""
    lines = b"\n".join(record.value for record in records(count))
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


@contextmanager
def key_value_store() -> Iterator[str]:
    """The URL of a store in a process of its own."""
    script = (
        "from tests.conformance.kv_server import KeyValueServer\n"
        "server = KeyValueServer()\nprint(server.url, flush=True)\nserver.serve_forever()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def main() -> None:
    """Measure and publish."""
    table = {"table": "NAME"}
    rows = both("sqlite", Kind({"kind": "sqlite", "path": "out.db", **table}))
    with closing(PostgresServer(fsync=True)) as postgres:
        url = {"url": postgres.new_database()}
        rows += both("postgres", Kind({"kind": "postgres", **url, **table}))
    with key_value_store() as url:
        endpoint = {"kind": "http", "url": f"{url}/NAME/{{row}}"}
        rows += both("http", Kind(endpoint, rows=5000))
    rows += beside_arrow("parquet", Kind({"kind": "parquet", "url": "out"}))
    iceberg = {"kind": "iceberg", "table": "lake.alerts", "warehouse": "warehouse"}
    rows += beside_arrow("iceberg", Kind(iceberg))
    topic = {"kind": "kafka", "topic": "NAME", "partitions": "2"}
    with ExitStack() as stack:
        bootstrap, _ = stack.enter_context(apache_kafka())
        rows += both("kafka (Apache Kafka)", Kind(topic, bootstrap))
    with ExitStack() as stack:
        broker = stack.enter_context(catchwater_broker())
        rows += both("kafka (Catchwater)", Kind(topic, broker.bootstrap))
        own = {**topic, "kind": "log"}
        control = Control(broker.control)
        rows += both("log", Kind(own, broker.bootstrap, control, with_staging=True))
    publish("sinks", rows)


if __name__ == "__main__":
    main()
