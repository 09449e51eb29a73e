"""One pipeline into files, an Iceberg table and another Kafka: each gets every row once."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import load_catalog

from catchwater.clock import SYSTEM
from catchwater.demo.reference import canonical
from catchwater.sinks.kafka.client import Brokers, read

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

SINKS = """
[sink.files]
kind = "parquet"
url = "out"

[sink.table]
kind = "iceberg"
table = "lake.alerts"
warehouse = "warehouse"

[sink.far]
kind = "kafka"
topic = "far-alerts"
partitions = 2
kafka.bootstrap.servers = "{bootstrap}"
"""

PLAIN_SPARK = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print("rows", spark.read.parquet(sys.argv[1]).count())
"""


def with_sinks(pipeline: Any) -> None:
    """Let the pipeline's file name three more sinks, whenever it is written."""
    write_file = pipeline.write_file

    def written(trigger: str, **changes: object) -> Path:
        path: Path = write_file(trigger, **changes)
        path.write_text(path.read_text() + SINKS.format(bootstrap=pipeline.cards.bootstrap))
        return path

    pipeline.write_file = written


def files(folder: Path) -> list[dict[str, Any]]:
    return list(ds.dataset(folder / "out", format="parquet").to_table().to_pylist())


def table(folder: Path) -> list[dict[str, Any]]:
    uri = f"sqlite:///{folder}/warehouse/catalog.db"
    with closing(load_catalog("default", type="sql", uri=uri)) as catalog:
        return list(catalog.load_table("lake.alerts").scan().to_arrow().to_pylist())


def far(bootstrap: str) -> list[dict[str, Any]]:
    brokers = Brokers({"bootstrap.servers": bootstrap})
    return [json.loads(message.value()) for message in read(brokers, "far-alerts", SYSTEM)]


def counted(rows: list[dict[str, Any]]) -> Counter[bytes]:
    ours = [{k: v for k, v in row.items() if not k.startswith("catchwater_")} for row in rows]
    return Counter(canonical(msgspec.to_builtins(row)) for row in ours)


def test_every_sink_has_every_row_once_whenever_the_driver_dies(
    make_pipeline: Callable[[str], Any],
) -> None:
    pipeline = make_pipeline("foreign")
    with_sinks(pipeline)

    # Between the sinks' commits and Spark's, and again before an epoch's end is known.
    pipeline.start()
    pipeline.wait_until(lambda: pipeline.is_written(3))
    pipeline.kill()
    pipeline.start()
    pipeline.wait_until(lambda: pipeline.is_planned(7))
    pipeline.kill()
    if pipeline.committed >= 0:
        pipeline.delete_last_commit()
    assert pipeline.run_to_end() == 0, pipeline.log

    expected = pipeline.cards.expected
    assert pipeline.rows == expected
    assert counted(files(pipeline.folder)) == expected
    assert counted(table(pipeline.folder)) == expected
    assert counted(far(pipeline.cards.bootstrap)) == expected

    # Spark reads the whole folder as it reads any.
    spark = subprocess.run(
        [sys.executable, "-c", PLAIN_SPARK, str(pipeline.folder / "out")],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert f"rows {expected.total()}" in spark.stdout
