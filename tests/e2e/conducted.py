"""Drills conducted in this process, and what makes their faults worse."""

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from catchwater.drill.catalogue import DRILLS
from catchwater.drill.conduct import DrillRun, conduct, ours, ours_in_zones
from catchwater.drill.platforms import OwnLog
from catchwater.drill.result import Budget, Result
from catchwater.drill.rows import TABLE
from catchwater.drill.scene import Scene, Shape
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

PIPELINE = [drill.name for drill in DRILLS.values() if drill.needs_spark]
LOG = [drill.name for drill in DRILLS.values() if not drill.needs_spark]


def run(
    name: str,
    folder: Path,
    worsen: Callable[[Scene], None] | None = None,
    budget: Budget | None = None,
) -> Result:
    """Conduct a drill on a log of ours; nothing of it is left."""
    said: list[str] = []
    drill = DRILLS[name]
    make = ours_in_zones if drill.needs_zones else ours
    wanted = DrillRun(
        make, Shape(rate=300.0, state_bytes=200_000), said.append, worsen,
        journals=folder / "journals", logs=folder / "logs",
    )  # fmt: skip
    result = conduct(drill, budget or drill.budget, wanted)
    assert not list((folder / "journals").glob("*.undo"))
    assert result.drill == name
    return result


def not_passed(result: Result) -> dict[str, str]:
    return {each.name: each.verdict for each in result.findings if each.verdict != "pass"}


def lose_acknowledged(scene: Scene) -> None:
    """The broker dies, and half of its newest write-ahead log is gone with it."""
    assert isinstance(scene.platform, OwnLog)
    scene.platform.kill()
    newest = max((scene.platform.data / "wal").iterdir(), key=lambda path: path.stat().st_mtime)
    os.truncate(newest, newest.stat().st_size // 2)


def write_into_the_sink(scene: Scene) -> None:
    """Somebody else writes a row into the pipeline's topic, or table, at the first fault."""
    if len(scene.faults) > 1:
        return  # a broker that was killed takes none
    if (database := scene.folder / "rows.db").exists():
        with closing(sqlite3.connect(database, timeout=60)) as table:
            table.execute(f"INSERT INTO {TABLE} SELECT * FROM {TABLE} LIMIT 1")
            table.commit()
        return
    topic = f"catchwater-drill-{scene.journal.run}-totals"
    with Client(scene.platform.bootstrap) as client:
        row = json.dumps({"card": "c00000", "n": 1, "cents": -1}).encode()
        client.produce([((topic, 0), encode_batch([(b"c00000", row, 0, ())]))])
