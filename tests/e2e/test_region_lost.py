"""A region is lost with all it had, and the other one goes on from its copy of the object store.

Two folders are the stores of two regions. The copy is as old as it is: what came after it is lost
with the region, and no more; the sink, which lies elsewhere, is taken back to what the log has. The
pipeline runs without Spark, whose part is none here.
"""

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import until
from tests.e2e import in_session
from tests.e2e.tally import (
    PARTITIONS,
    TOPIC,
    Tables,
    model,
    newest,
    order,
    produce,
    produced,
    write_file,
)
from typer.testing import CliRunner

from catchwater.cli import app
from catchwater.clock import SYSTEM
from catchwater.log.repair.files import LogFiles
from catchwater.log.repair.rebuild import rebuild
from catchwater.objects.open import open_store
from catchwater.recovery.contract import LogBehind
from catchwater.sinks.base import SinkAhead
from catchwater.wire.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SAVED, COPIED, LOST = 40, 60, 70
"""Orders in each partition at the savepoint, in the copy of the store, and when it happens."""


def settings(region: Path) -> dict[str, str]:
    """Of a broker that packs at once."""
    return {
        "log.dirs": str(region / "data"),
        "catchwater.objects": (region / "objects").as_uri(),
        "log.retention.ms": "-1",
        "catchwater.pack.interval.ms": "100",
        "catchwater.pack.min.bytes": "1",
    }


def packed(objects: Path) -> int:
    """How many orders of each partition a catalog that is made of the store alone would know."""
    made = rebuild(LogFiles(open_store(objects.as_uri(), SYSTEM), None), "unnamed")
    ends = dict.fromkeys(range(PARTITIONS), 0)
    topics = {row[0]: row[1] for row in made.state["topic"]}
    for run in made.runs:
        if TOPIC in (topics.get(run.topic_id), topics.get(run.topic_id.hex())):
            ends[run.partition] = max(ends[run.partition], run.last_offset + 1)
    return min(ends.values())


def command(*words: str) -> Any:
    done = CliRunner().invoke(app, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def lose(broker: Any, east: Path, west: Path, tables: Tables) -> None:
    """One region has it all: log, checkpoint, savepoints. The other has a copy when it is lost.

    The tables have a home of their own, and so has a copy of the checkpoint, `elsewhere`.
    """
    with Client(broker.bootstrap) as client:
        client.create_topics({TOPIC: PARTITIONS})
    file = write_file(east, broker.bootstrap, tables, 20)
    here = in_session.Pipeline(None, east, file)
    produce(broker.bootstrap, 0, SAVED)
    here.run()
    at = (east / "savepoints").as_uri()
    command("savepoint", "create", str(file), "--name", "hourly", "--at", at, "--yes")
    produce(broker.bootstrap, SAVED, COPIED)
    here.run()
    until(lambda: packed(east / "objects") >= COPIED, 120, broker.log)
    for folder in ("objects", "savepoints"):
        shutil.copytree(east / folder, west / folder)
    # What comes now is in no copy.
    produce(broker.bootstrap, COPIED, LOST)
    here.run()
    assert tables.rows("live") == model(0, LOST)
    shutil.copytree(east / "checkpoint", east.parent / "elsewhere")
    broker.kill()
    shutil.rmtree(east)


def test_the_other_region_goes_on_from_its_copy(
    make_broker: Callable[..., Any], tmp_path: Path
) -> None:
    east, west = tmp_path / "east", tmp_path / "west"
    east.mkdir()
    west.mkdir()
    tables = Tables(tmp_path / "rows.db")
    lose(make_broker(settings(east)), east, west, tables)
    # The other region's processes have never seen what lay in the lost one.
    sys.modules.pop("orders_seen")
    sys.path[:] = [each for each in sys.path if each != str(east)]

    # The catalog is made of the copy, and says what it found.
    made = command("log", "rebuild", "--to", str(west / "data"), "--from", str(west / "objects"),
                   "--json")  # fmt: skip
    assert made.exit_code in (0, 3), made.output
    config = west / "broker.properties"
    config.write_text("".join(f"{key}={value}\n" for key, value in settings(west).items()))
    checked = command("log", "fsck", "--config", str(config), "--deep")
    assert checked.exit_code == 0, checked.output
    there = make_broker(settings(west))
    assert produced(there.bootstrap) == COPIED
    found = [json.loads(value) for _, value in in_session.read(there.bootstrap, TOPIC)]
    for partition in range(PARTITIONS):
        own = [each for each in found if each["card"].startswith(f"card-{partition}-")]
        assert own == [order(partition, n) for n in range(COPIED)]

    # A checkpoint that has read more than the log has is refused, and so is a new one: the sink
    # knows of more.
    write_file(west, there.bootstrap, tables, 20)
    file = west / "tally.toml"
    shutil.copytree(tmp_path / "elsewhere", west / "checkpoint")
    anew = in_session.Pipeline(None, west, file)
    with pytest.raises(LogBehind, match=f"the log ends at offset {COPIED}") as behind:
        anew.run()
    assert "savepoint restore" in str(behind.value.hint)
    shutil.rmtree(west / "checkpoint")
    with pytest.raises(SinkAhead):
        anew.run()
    shutil.rmtree(west / "checkpoint")

    # From the savepoint it goes on; what the sink has of the lost records is withdrawn.
    at = (west / "savepoints").as_uri()
    restored = command("savepoint", "restore", str(file), "hourly", "--at", at, "--yes")
    assert restored.exit_code == 0, restored.output
    assert tables.rows("live") == model(0, SAVED)
    anew.run()
    assert tables.rows("live") == model(0, COPIED)
    # Whoever had sent them sends them again.
    produce(there.bootstrap, COPIED, LOST)
    anew.run()
    assert tables.rows("live") == model(0, LOST)
    assert tables.rows("newest") == newest(model(0, LOST))
    assert command("sink", "verify", str(file)).exit_code == 0
