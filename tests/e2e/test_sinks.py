"""One pipeline into tables and an endpoint: each has every row once, and says so itself."""

import json
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.conformance.kv_server import KeyValueServer, key_value_server
from tests.conftest import COMMAND

from catchwater.demo.reference import canonical

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

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
"""


@pytest.fixture
def store() -> Iterator[KeyValueServer]:
    with key_value_server() as server:
        yield server


def counted(rows: list[dict[str, Any]]) -> Counter[bytes]:
    return Counter(canonical(row) for row in rows)


def in_sqlite(path: Path) -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        rows = [dict(row) for row in connection.execute("SELECT * FROM alerts")]
    return [{k: v for k, v in row.items() if not k.startswith("catchwater_")} for row in rows]


def in_postgres(url: str) -> list[dict[str, Any]]:
    with psycopg.connect(url, row_factory=psycopg.rows.dict_row) as connection:
        rows = connection.execute("SELECT * FROM alerts").fetchall()
    return [{k: v for k, v in row.items() if not k.startswith("catchwater_")} for row in rows]


def test_every_sink_has_every_row_once_whenever_the_driver_dies(
    make_pipeline: Callable[[str], Any], postgres_url: str, store: KeyValueServer
) -> None:
    pipeline = make_pipeline("sinks")
    write_file = pipeline.write_file

    def written(trigger: str, **changes: object) -> Path:
        path: Path = write_file(trigger, **changes)
        path.write_text(path.read_text() + SINKS.format(postgres=postgres_url, http=store.url))
        return path

    pipeline.write_file = written

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
    assert counted(in_sqlite(pipeline.folder / "out.db")) == expected
    assert counted(in_sqlite(pipeline.folder / "newest.db")) == expected
    assert counted(in_postgres(postgres_url)) == expected
    assert counted([json.loads(body) for body in store.content.values()]) == expected

    file = written("available-now")
    verify = subprocess.run(
        [COMMAND, "sink", "verify", str(file), "--json"], capture_output=True, text=True, timeout=60
    )
    assert verify.returncode == 0, verify.stdout + verify.stderr
    told = {report["sink"]: report for report in json.loads(verify.stdout)}
    assert set(told) == {"alerts", "rows", "newest", "shop", "store"}
    assert len({report["rows"] for report in told.values()}) == 1
    assert all(not report["findings"] for report in told.values())
