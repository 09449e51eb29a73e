"""History once more, with Spark: a range beside the pipeline that went over it, a view made anew.

In the long form the driver is killed on its way, and input comes meanwhile; without Spark, at every
step, that is `test_rebuild_steps.py`. A plain loop says what comes out with state that was empty.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.in_session import Pipeline
from tests.e2e.tally import PARTITIONS, TOPIC, Tables, model, newest, produce, write_file

from catchwater.replay.control import Control
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

COMMAND = str(Path(sys.executable).with_name("catchwater"))
RECORDS, MEANWHILE, EPOCH = 200, 50, 100
FIRST, LAST = 20, 180
"""The range, in each partition."""


def kill_driver(folder: Path) -> None:
    """As soon as it has committed two epochs."""
    deadline = time.monotonic() + 400
    while len(list((folder / "commits").glob("[0-9]*"))) < 2:
        assert time.monotonic() < deadline, "the backfill commits nothing"
        time.sleep(0.02)
    told = json.loads((folder / "catchwater" / "supervisor.json").read_text())
    os.kill(told["driver"], signal.SIGKILL)


@pytest.fixture
def broker(make_broker: Callable[..., Any]) -> Any:
    broker = make_broker({"log.retention.ms": "-1"})
    with Client(broker.bootstrap) as client:
        client.create_topics({TOPIC: PARTITIONS})
    produce(broker.bootstrap, 0, RECORDS)
    return broker


@pytest.fixture(params=["sqlite"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Tables:
    is_sqlite = request.param == "sqlite"
    return Tables(tmp_path / "rows.db" if is_sqlite else request.getfixturevalue("postgres_url"))


@pytest.fixture
def live(broker: Any, tmp_path: Path, tables: Tables) -> Pipeline:
    """The pipeline, stopped, with all its input read."""
    live = Pipeline(None, tmp_path, write_file(tmp_path, broker.bootstrap, tables, EPOCH))
    live.run()
    assert tables.rows("live") == model(0, RECORDS)
    return live


@pytest.mark.slow
def test_a_range_is_written_once_and_the_pipeline_does_not_notice(
    broker: Any, live: Pipeline, tmp_path: Path, tables: Tables
) -> None:
    file = live.file
    control = Control(broker.control_url)
    pins = {pin["id"] for pin in control.pins()}
    before = [tables.rows("live"), live.committed]

    named = {"CATCHWATER_SINK__ROWS__TABLE": "june", "CATCHWATER_SINK__NEWEST__TABLE": "junes"}
    environment = {**os.environ, **named}
    ends = [json.dumps({TOPIC: dict.fromkeys("01", at)}) for at in (FIRST, LAST)]
    command = [COMMAND, "pipeline", "backfill", str(file), "--label", "june", "--yes", "--quick",
               "--json", "--from", ends[0], "--to", ends[1]]  # fmt: skip
    refused = subprocess.run(command, capture_output=True, timeout=300)
    assert b"which is the live pipeline's" in refused.stderr
    assert b"__TABLE=" in refused.stderr
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=log) as process,
    ):
        kill_driver(tmp_path / "checkpoint.backfills" / "june")
        out, _ = process.communicate(timeout=600)
    assert process.returncode == 0, (tmp_path / "log").read_text()[-3000:]
    told = json.loads(out)
    assert (told["records"], told["read"], told["done"]) == (
        *[PARTITIONS * (LAST - FIRST)] * 2, True,
    )  # fmt: skip
    kept = tmp_path / "checkpoint.backfills" / "june" / "catchwater" / "supervisor.json"
    assert json.loads(kept.read_text())["restarts"] == 1, "it was killed on its way"
    assert tables.rows("june") == model(FIRST, LAST)
    assert [tables.rows("live"), live.committed] == before
    assert {pin["id"] for pin in control.pins()} == pins, "a backfill that is done holds nothing"

    again = subprocess.run(command, env=environment, capture_output=True, timeout=300, check=True)
    assert json.loads(again.stdout)["done"]
    assert tables.rows("june") == model(FIRST, LAST)


class Reader(threading.Thread):
    """Looks at the table again and again, as anybody may."""

    def __init__(self, tables: Tables) -> None:
        super().__init__()
        self._tables = tables
        self.over = threading.Event()
        # A thread may get its turn late: the first look is before anything is made anew.
        self.seen = {sum(tables.rows("live").values())}
        self.start()

    def run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self.over.wait(0.01)  # and then once more: the exchange may be just behind us
            self.seen.add(sum(self._tables.rows("live").values()))


def rebuild_command(live: Pipeline) -> list[str]:
    return [COMMAND, "pipeline", "rebuild", str(live.file), "--label", "anew", "--yes",
            "--quick", "--json"]  # fmt: skip


def rebuilt(
    live: Pipeline, tables: Tables, end: int, beside: Callable[[], None] = lambda: None
) -> None:
    """Damage the tables and make them anew from so many orders; nobody sees half of it."""
    tables.damage()
    damaged = sum(tables.rows("live").values())
    reader = Reader(tables)
    try:
        with (
            (live.folder / "log").open("wb") as log,
            subprocess.Popen(rebuild_command(live), stdout=subprocess.PIPE, stderr=log) as process,
        ):
            beside()
            out, _ = process.communicate(timeout=600)
    finally:
        reader.over.set()
        reader.join()
    assert process.returncode == 0, (live.folder / "log").read_text()[-3000:]
    whole = PARTITIONS * end
    assert json.loads(out)["rows"] == {"newest": len(newest(model(0, end))), "rows": whole}
    assert tables.rows("live") == model(0, end)
    assert tables.rows("newest") == newest(model(0, end))
    assert reader.seen == {damaged, whole}


def test_a_view_is_made_anew_and_nobody_sees_half_of_it(live: Pipeline, tables: Tables) -> None:
    rebuilt(live, tables, RECORDS)


@pytest.mark.slow
@pytest.mark.parametrize("tables", ["sqlite", "postgres"], indirect=True)
def test_a_view_whose_driver_is_killed_and_whose_input_grows_is_made_anew(
    broker: Any, live: Pipeline, tables: Tables
) -> None:
    def beside() -> None:
        kill_driver(live.folder / "checkpoint.backfills" / "anew")
        produce(broker.bootstrap, RECORDS, RECORDS + MEANWHILE)  # more than it set out to read

    rebuilt(live, tables, RECORDS + MEANWHILE, beside)

    # The pipeline goes on where the rebuild ended, and holds the log for itself.
    produce(broker.bootstrap, RECORDS + MEANWHILE, RECORDS + 2 * MEANWHILE)
    live.run()
    assert tables.rows("live") == model(0, RECORDS + 2 * MEANWHILE)
    verified = subprocess.run([COMMAND, "sink", "verify", str(live.file)], capture_output=True)
    assert verified.returncode == 0, verified.stderr
    control = Control(broker.control_url)
    assert {pin["owner"] for pin in control.pins()} == {"tally"}
    # Cut short at the very end, it would have left its own pins.
    place = {"topic": TOPIC, "partition": 0, "offset": 0}
    control.set_pin("tally.anew/range", {"owner": "tally.anew", "positions": [place]})
    again = subprocess.run(rebuild_command(live), capture_output=True, timeout=300)
    assert {pin["owner"] for pin in control.pins()} == {"tally"}
    assert b"has taken the pipeline's place already" in again.stderr
