"""One pipeline into every kind of sink: each has every row once, and says so itself."""

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import load_catalog
from tests.conformance.kv_server import KeyValueServer, key_value_server
from tests.conftest import COMMAND

from catchwater.clock import SYSTEM
from catchwater.drill.rows import canonical
from catchwater.sinks.kafka_client import Brokers, read

KILLS = int(os.environ.get("KILLS", "4"))
"""Drivers killed; `make e2e` takes twenty."""
SEED = int(os.environ.get("SEED", "10"))
EPOCH_EVENTS = 12_000 // (4 * KILLS)
"""A kill costs an epoch or two; the input has to last for all of them."""

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(3600)]

SINKS = """
[sink.rows]
kind = "sqlite"
path = "out.db"
table = "alerts"

[sink.newest]
kind = "sqlite"
path = "newest.db"
table = "alerts"
mode = "upsert"

[sink.shop]
kind = "postgres"
url = "{postgres}"
table = "alerts"

[sink.store]
kind = "http"
url = "{http}/alerts/{{id}}"

[sink.files]
kind = "parquet"
url = "out"

[sink.table]
kind = "iceberg"
table = "lake.alerts"
warehouse = "warehouse"

[sink.far]
kind = "kafka"
topic = "{far}"
partitions = 2

[sink.foreign]
kind = "kafka"
topic = "{far}"
partitions = 2
kafka.bootstrap.servers = "{foreign}"
"""
NAMES = ("alerts", "rows", "newest", "shop", "store", "files", "table", "far", "foreign")

PLAIN_SPARK = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("rows", spark.read.parquet(sys.argv[1]).count())
"""


@pytest.fixture
def store() -> Iterator[KeyValueServer]:
    with key_value_server() as server:
        yield server


def counted(rows: list[dict[str, Any]]) -> Counter[bytes]:
    ours = [{k: v for k, v in row.items() if not k.startswith("catchwater_")} for row in rows]
    return Counter(canonical(msgspec.to_builtins(row)) for row in ours)


def in_sqlite(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM alerts")]


def in_postgres(url: str) -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        return connection.execute("SELECT * FROM alerts").fetchall()


def in_files(folder: Path) -> list[dict[str, Any]]:
    return list(ds.dataset(folder / "out", format="parquet").to_table().to_pylist())


def in_table(folder: Path) -> list[dict[str, Any]]:
    uri = f"sqlite:///{folder}/warehouse/catalog.db"
    with closing(load_catalog("default", type="sql", uri=uri)) as catalog:
        return list(catalog.load_table("lake.alerts").scan().to_arrow().to_pylist())


def in_kafka(bootstrap: str) -> list[dict[str, Any]]:
    brokers = Brokers({"bootstrap.servers": bootstrap})
    return [json.loads(message.value()) for message in read(brokers, "far-alerts", SYSTEM)]


def test_every_sink_has_every_row_once_whenever_the_driver_dies(
    make_pipeline: Callable[[str], Any],
    postgres_url: str,
    apache_kafka: str,
    store: KeyValueServer,
) -> None:
    pipeline = make_pipeline("sinks")
    write_file = pipeline.write_file
    sinks = SINKS.format(
        far="far-alerts", postgres=postgres_url, http=store.url, foreign=apache_kafka
    )

    def written(trigger: str, **changes: object) -> Path:
        path: Path = write_file(trigger, **changes)
        path.write_text(path.read_text() + sinks)
        return path

    pipeline.write_file = written

    where = pipeline.kill_in_commits(NAMES, KILLS, seed=SEED, epoch_events=EPOCH_EVENTS)
    print(f"{KILLS} drivers killed:", dict(where))
    assert pipeline.committed >= 0
    pipeline.delete_last_commit()
    assert pipeline.run_to_end(epoch_events=3_000) == 0, pipeline.log

    folder = pipeline.folder
    held = {
        "rows": in_sqlite(folder / "out.db"),
        "newest": in_sqlite(folder / "newest.db"),
        "shop": in_postgres(postgres_url),
        "store": [json.loads(body) for body in store.content.values()],
        "files": in_files(folder),
        "table": in_table(folder),
        "far": in_kafka(pipeline.cards.bootstrap),
        "foreign": in_kafka(apache_kafka),
    }
    expected = pipeline.cards.expected
    found = {"alerts": pipeline.rows, **{name: counted(rows) for name, rows in held.items()}}
    missing = {name: (expected - rows).total() for name, rows in found.items()}
    twice = {name: (rows - expected).total() for name, rows in found.items()}
    print("missing:", missing, "twice:", twice)
    assert set(found) == set(NAMES)
    assert not any(missing.values())
    assert not any(twice.values())

    verify = subprocess.run(
        [COMMAND, "sink", "verify", str(written("available-now")), "--json"],
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert verify.returncode == 0, verify.stdout + verify.stderr
    told = {report["sink"]: report for report in json.loads(verify.stdout)}
    assert set(told) == set(NAMES)
    assert len({report["rows"] for report in told.values()}) == 1
    assert all(not report["findings"] for report in told.values())

    # Spark reads the whole folder as it reads any.
    spark = subprocess.run(
        [sys.executable, "-c", PLAIN_SPARK, str(folder / "out")],
        capture_output=True, text=True, timeout=600, check=True,
    )  # fmt: skip
    assert f"rows {expected.total()}" in spark.stdout
