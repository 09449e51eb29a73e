"""History once more: a range beside the pipeline that went over it, and a view made anew.

The driver is killed on its way.
A plain loop says what the range gives to functions that begin with empty state.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.in_session import Pipeline

from catchwater.clock import SYSTEM
from catchwater.replay.control import Control
from catchwater.wire.client import Client
from catchwater.wire.records import encode_batch

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]

COMMAND = str(Path(sys.executable).with_name("catchwater"))
PARTITIONS, RECORDS, CARDS = 2, 1_000, 17
FIRST, LAST = 200, 900
"""The range, in each partition."""

FUNCTION = '''"""How often a card was seen."""
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Order:
    card: str
    n: int
    at: int

@dataclass
class Tally:
    seen: int = 0

@dataclass
class Row:
    card: str
    n: int
    seen: int

@function(name="tally", version=1, key="card", event_time="at", late="process")
class Tallied(Keyed[Order, Tally, Row]):
    def on_event(self, e: Order, s: Tally, ctx: Context) -> Out[Row]:
        s.seen += 1
        return [Row(e.card, e.n, s.seen)]
'''
FILE = """\
[pipeline]
function = "orders_seen:Tallied"
checkpoint = "checkpoint"
trigger = "available-now"
shards = 2
[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "orders"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 100
[sink.rows]
kind = "sqlite"
path = "rows.db"
table = "{table}"
"""


def order(partition: int, n: int) -> dict[str, Any]:
    """All orders of a card lie in one partition."""
    card = f"card-{partition}-{n * 31 % CARDS}"
    return {"card": card, "n": n, "at": 1_700_000_000_000 + n}


def model(first: int, last: int) -> Counter[tuple[str, int, int]]:
    seen: Counter[str] = Counter()
    rows: Counter[tuple[str, int, int]] = Counter()
    for partition in range(PARTITIONS):
        for n in range(first, last):
            card = order(partition, n)["card"]
            seen[card] += 1
            rows[card, n, seen[card]] += 1
    return rows


def rows(folder: Path, table: str) -> Counter[tuple[str, int, int]]:
    with sqlite3.connect(folder / "rows.db") as database:
        return Counter(database.execute(f"SELECT card, n, seen FROM {table}").fetchall())


def kill_driver(folder: Path) -> None:
    """As soon as it has committed two epochs."""
    deadline = time.monotonic() + 120
    while len(list((folder / "commits").glob("[0-9]*"))) < 2:
        assert time.monotonic() < deadline, "the backfill commits nothing"
        time.sleep(0.02)
    told = json.loads((folder / "catchwater" / "supervisor.json").read_text())
    os.kill(told["driver"], signal.SIGKILL)


def produce(bootstrap: str, first: int, last: int) -> None:
    with Client(bootstrap) as client:
        for partition in range(PARTITIONS):
            told = [json.dumps(order(partition, n)).encode() for n in range(first, last)]
            batch = encode_batch([(b"", each, SYSTEM.now_ms(), ()) for each in told])
            client.produce([(("orders", partition), batch)])


@pytest.fixture
def broker(make_broker: Callable[..., Any]) -> Any:
    broker = make_broker({"log.retention.ms": "-1"})
    with Client(broker.bootstrap) as client:
        client.create_topics({"orders": PARTITIONS})
    produce(broker.bootstrap, 0, RECORDS)
    return broker


@pytest.fixture
def live(broker: Any, tmp_path: Path) -> Pipeline:
    """The pipeline, stopped, with all its input read."""
    (tmp_path / "orders_seen.py").write_text(FUNCTION)
    file = tmp_path / "tally.toml"
    file.write_text(FILE.format(bootstrap=broker.bootstrap, table="live"))
    live = Pipeline(None, tmp_path, file)
    live.run()
    assert rows(tmp_path, "live") == model(0, RECORDS)
    return live


def test_a_range_is_written_once_and_the_pipeline_does_not_notice(
    broker: Any, live: Pipeline, tmp_path: Path
) -> None:
    file = live.file
    control = Control(broker.control_url)
    pins = {pin["id"] for pin in control.pins()}
    before = [rows(tmp_path, "live"), live.committed]

    environment = {**os.environ, "CATCHWATER_SINK__ROWS__TABLE": "june"}
    ends = [json.dumps({"orders": dict.fromkeys("01", at)}) for at in (FIRST, LAST)]
    command = [COMMAND, "pipeline", "backfill", str(file), "--label", "june", "--yes", "--quick",
               "--json", "--from", ends[0], "--to", ends[1]]  # fmt: skip
    refused = subprocess.run(command, capture_output=True, timeout=60)
    assert b"which is the live pipeline's" in refused.stderr
    assert b"CATCHWATER_SINK__ROWS__TABLE=" in refused.stderr
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        kill_driver(tmp_path / "checkpoint.backfills" / "june")
        out, _ = process.communicate(timeout=200)
    assert process.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    told = json.loads(out)
    assert (told["records"], told["read"], told["done"]) == (1_400, 1_400, True)
    kept = tmp_path / "checkpoint.backfills" / "june" / "catchwater" / "supervisor.json"
    assert json.loads(kept.read_text())["restarts"] == 1, "it was killed on its way"
    assert rows(tmp_path, "june") == model(FIRST, LAST)
    assert [rows(tmp_path, "live"), live.committed] == before
    assert {pin["id"] for pin in control.pins()} == pins, "a backfill that is done holds nothing"

    again = subprocess.run(command, env=environment, capture_output=True, timeout=60, check=True)
    assert json.loads(again.stdout)["done"]
    assert rows(tmp_path, "june") == model(FIRST, LAST)


class Reader(threading.Thread):
    """Looks at the table again and again, as anybody may."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self.over = threading.Event()
        self.seen: set[int] = set()
        self.start()

    def run(self) -> None:
        while not self.over.wait(0.002):
            self.seen.add(sum(rows(self._folder, "live").values()))


def test_a_view_is_made_anew_and_nobody_sees_half_of_it(
    broker: Any, live: Pipeline, tmp_path: Path
) -> None:
    with sqlite3.connect(tmp_path / "rows.db") as database:
        database.execute("DELETE FROM live WHERE n % 3 = 0")
        database.execute("UPDATE live SET seen = 1000 WHERE n % 7 = 1")
    damaged = sum(rows(tmp_path, "live").values())
    command = [COMMAND, "pipeline", "rebuild", str(live.file), "--label", "anew", "--yes",
               "--quick", "--json"]  # fmt: skip
    folder = tmp_path / "checkpoint.backfills" / "anew"
    reader = Reader(tmp_path)
    try:
        with (
            (tmp_path / "log").open("wb") as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as process,
        ):
            kill_driver(folder)
            produce(broker.bootstrap, RECORDS, RECORDS + 50)  # more than it set out to read
            out, _ = process.communicate(timeout=250)
    finally:
        reader.over.set()
        reader.join()
    assert process.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    whole = PARTITIONS * (RECORDS + 50)
    assert json.loads(out)["rows"] == {"rows": whole}
    assert rows(tmp_path, "live") == model(0, RECORDS + 50)
    assert reader.seen == {damaged, whole}

    # The pipeline goes on where the rebuild ended, and holds the log for itself.
    produce(broker.bootstrap, RECORDS + 50, RECORDS + 90)
    live.run()
    assert rows(tmp_path, "live") == model(0, RECORDS + 90)
    verified = subprocess.run([COMMAND, "sink", "verify", str(live.file)], capture_output=True)
    assert verified.returncode == 0, verified.stderr
    control = Control(broker.control_url)
    assert {pin["owner"] for pin in control.pins()} == {"tally"}
    # Cut short at the very end, it would have left its own pins.
    place = {"topic": "orders", "partition": 0, "offset": 0}
    control.set_pin("tally.anew/range", {"owner": "tally.anew", "positions": [place]})
    again = subprocess.run(command, capture_output=True, timeout=60)
    assert {pin["owner"] for pin in control.pins()} == {"tally"}
    assert b"has taken the pipeline's place already" in again.stderr
