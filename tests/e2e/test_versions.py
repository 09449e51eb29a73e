"""A pipeline's life: saved, upgraded, rolled back, carried elsewhere, cut into other shards.

A plain loop says what the sink must hold; every row says which version wrote it. One pipeline goes
through all of it in the order of the tests, for each start of Spark costs seconds.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from catchwater.demo.feeder import Event, Feeder
from catchwater.recovery import checkpoint, handover
from catchwater.recovery.ledger import Ledger
from catchwater.replay.control import Control
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

COMMAND = str(Path(sys.executable).with_name("catchwater"))
PARTITIONS = 2
KEYS = 40
HALF = 600
PATIENCE_S = 240

FILE = """\
[pipeline]
name = "tally"
function = "{function}"
checkpoint = "{checkpoint}"
local = "local"
trigger = "{trigger}"
tasks = 2
shards = {shards}

[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "orders"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 150

[sink.rows]
kind = "sqlite"
path = "{sink}"
table = "tally"

[recovery]
retain = 3
{savepoints}
"""

CODE = """\
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Order:
    card: str
    n: int
    at: int

@dataclass
class Tally:
    {state}

@dataclass
class Row:
    card: str
    n: int
    seen: int
    by: int

@function(name="tally", version={version}, key="card", event_time="at", late="process")
class Tallied(Keyed[Order, Tally, Row]):
    def on_event(self, e: Order, s: Tally, ctx: Context) -> Out[Row]:
        s.{seen} += 1
        return [Row(e.card, e.n, {told}, {version})]
    {more}
"""
V1 = {"version": 1, "state": "seen: int = 0", "seen": "seen", "told": "s.seen", "more": ""}
FROM_V1 = """
    @staticmethod
    def from_v1(old: dict) -> Tally:
        return Tally(count=old["seen"])
"""
V2 = V1 | {"version": 2, "state": "count: int = 0", "seen": "count", "told": "s.count"}
V2_MIGRATES = V2 | {"more": FROM_V1}
V2_BAD = V2 | {"told": "100 * s.count", "more": FROM_V1}

Rows = Counter[tuple[str, int, int, int]]


def orders(first: int, last: int) -> Iterator[Event]:
    for n in range(first, last):
        card = f"card-{(n * 7919) % KEYS}"
        value = json.dumps({"card": card, "n": n, "at": 1_700_000_000_000 + n}).encode()
        yield Event(card.encode(), value, 1_700_000_000_000 + n)


def model(last: int, version_of: Callable[[str, int], int]) -> Rows:
    """What the sink must hold after so many orders."""
    seen: Counter[str] = Counter()
    rows: Rows = Counter()
    for event in orders(0, last):
        order = json.loads(event.value)
        seen[order["card"]] += 1
        version = version_of(order["card"], order["n"])
        rows[order["card"], order["n"], seen[order["card"]], version] += 1
    return rows


@dataclass
class Tally:
    """The pipeline's folder, and the commands that are typed in it."""

    bootstrap: str
    control: Control
    folder: Path
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def file(self) -> Path:
        return self.folder / "tally.toml"

    @property
    def checkpoint(self) -> Path:
        return self.folder / str(self.settings["checkpoint"])

    def write(self, code: dict[str, Any] | None = None, **settings: Any) -> None:
        """The pipeline's file, and the function's module if there is other code."""
        defaults = {
            "function": "tallied:Tallied", "checkpoint": "checkpoint", "shards": 4,
            "trigger": "available-now", "sink": "rows.db", "savepoints": "",
        }  # fmt: skip
        self.settings = {**defaults, **self.settings, **settings}
        self.file.write_text(FILE.format(bootstrap=self.bootstrap, **self.settings))
        if code is not None:
            (self.folder / "tallied.py").write_text(CODE.format(**code))

    def type(self, *words: str, code: int = 0) -> Any:
        """Run `catchwater …`; the JSON on stdout if it was asked for, else stderr."""
        done = subprocess.run(
            [COMMAND, *words], cwd=self.folder, capture_output=True, text=True,
            timeout=PATIENCE_S, check=False, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return json.loads(done.stdout) if "--json" in words else done.stderr

    def spawn(self, *words: str, log: Any = subprocess.DEVNULL) -> "subprocess.Popen[bytes]":
        """Start `catchwater …` and leave it to run."""
        return subprocess.Popen(
            [COMMAND, *words], cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        )  # fmt: skip

    def run(self) -> None:
        """Until the input there is now is consumed."""
        self.type("pipeline", "run", str(self.file), "--quick", "--no-supervise")

    def feed(self, first: int, last: int) -> None:
        with Client(self.bootstrap) as client:
            Feeder(client, "orders", PARTITIONS, 200).feed(orders(first, last), last - first)

    def rows(self) -> Rows:
        with sqlite3.connect(self.folder / self.settings["sink"]) as database:
            found = database.execute("SELECT card, n, seen, by FROM tally").fetchall()
        return Counter(found)

    @property
    def last_epoch(self) -> int:
        return checkpoint.last_commit(self.checkpoint)

    def read_to(self) -> dict[str, int]:
        """By partition: how far the last epoch has read."""
        entry = Ledger(self.checkpoint).read(self.last_epoch)
        assert entry is not None
        return entry.end.offsets["orders"]


@pytest.fixture(scope="module")
def tally(make_broker: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Tally:
    broker = make_broker({"log.retention.ms": "-1"})
    with Client(broker.bootstrap) as client:
        client.create_topics({"orders": PARTITIONS})
    made = Tally(broker.bootstrap, Control(broker.control_url), tmp_path_factory.mktemp("tally"))
    made.write(V1)
    made.feed(0, HALF)
    made.run()
    assert made.rows() == model(HALF, lambda card, n: 1)
    return made


def test_a_savepoint_is_taken_checked_carried_and_looked_into(tally: Tally) -> None:
    file = str(tally.file)
    made = tally.type("savepoint", "create", file, "--name", "half", "--yes", "--json")
    assert (made["epoch"], made["shards"]) == (tally.last_epoch, 4)
    assert [each["name"] for each in tally.type("savepoint", "list", file, "--json")] == ["half"]
    assert "savepoint/tally/half" in {pin["id"] for pin in tally.control.pins()}
    found = tally.type("savepoint", "verify", file, "half", "--json")
    assert {each["verdict"] for each in found} == {"pass"}, found
    seen = {card: seen for card, _, seen, _ in sorted(model(HALF, lambda *_: 1))}
    for card in ("card-0", "card-7"):
        state = tally.type("state", "get", file, card, "--savepoint", "half", "--json")
        most = max(s for c, _, s, _ in model(HALF, lambda *_: 1) if c == card)
        assert state["state"] == {"seen": most}, seen
    older = Ledger(tally.checkpoint).epochs()[0]
    differs = tally.type("state", "diff", file, str(older), "half", "--json")
    assert differs
    assert {each["what"] for each in differs} <= {"added", "changed"}
    tally.type("savepoint", "export", file, "half", "half.tar")
    tally.type("savepoint", "delete", file, "half", "--yes")
    assert not [pin for pin in tally.control.pins() if pin["owner"].startswith("savepoint/")]
    tally.type("savepoint", "import", file, "half.tar")
    found = tally.type("savepoint", "verify", file, "half", "--json")
    assert {each["verdict"] for each in found} == {"pass"}, found
    assert [each["name"] for each in tally.type("savepoint", "list", file, "--json")] == ["half"]


def test_what_cannot_take_over_is_refused_and_the_old_version_goes_on(tally: Tally) -> None:
    before = tally.last_epoch
    tally.write(V2)
    told = tally.type("pipeline", "upgrade", str(tally.file), "--to", "2", "--yes", code=5)
    assert "state.seen" in told
    assert "Nothing was changed" in told
    broken = FROM_V1.replace('old["seen"]', '1 // (old["seen"] - 15)')
    tally.write(V2 | {"more": broken})
    told = tally.type("pipeline", "upgrade", str(tally.file), "--to", "2", "--yes", code=5)
    assert "the state of the key 'card-" in told
    assert "ZeroDivisionError" in told
    assert "version was 1 and is now 2" in tally.type(
        "pipeline", "run", str(tally.file), "--no-supervise", code=5
    )
    assert tally.last_epoch == before
    assert [v["version"] for v in versions(tally)] == [1]


def versions(tally: Tally) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = tally.type("pipeline", "versions", str(tally.file), "--json")[
        "versions"
    ]
    return found


def test_a_version_that_turns_out_bad_is_upgraded_to_and_rolled_back(tally: Tally) -> None:
    tally.write(V2_BAD)
    done = tally.type("pipeline", "upgrade", str(tally.file), "--to", "2", "--yes", "--json")
    assert (done["epoch"], done["keys"]) == (tally.last_epoch, KEYS)
    tally.feed(HALF, 2 * HALF)
    tally.run()
    bad = tally.rows()
    assert sum(bad.values()) == 2 * HALF
    assert {row for row in bad if row[1] < HALF} == set(model(HALF, lambda *_: 1))
    assert all(seen % 100 == 0 and by == 2 for _, n, seen, by in bad if n >= HALF)

    done = tally.type("pipeline", "rollback", str(tally.file), "--yes", "--json")
    assert done["versions"] == {"tally": 1}
    assert tally.rows() == model(HALF, lambda *_: 1)
    # The file still names the bad version: the one before runs from the code that was kept.
    tally.run()
    assert tally.rows() == model(2 * HALF, lambda *_: 1)
    assert [v["is"] for v in versions(tally)] == ["runs", "rolled back"]


def test_a_fresh_machine_goes_on_from_a_bucket_in_twice_the_shards(
    tally: Tally, s3_url: str
) -> None:
    file, address = str(tally.file), json.dumps(s3_url)
    tally.write(savepoints=f"savepoints = {address}")
    tally.type("savepoint", "create", file, "--name", "move", "--yes")
    tally.write(V2_MIGRATES)
    tally.type("pipeline", "upgrade", file, "--to", "2", "--yes")
    tally.feed(2 * HALF, 3 * HALF)
    # The machine is lost, and with it all but the bucket and the sink.
    for path in (tally.checkpoint, tally.folder / "local"):
        shutil.rmtree(path)
    tally.write(checkpoint="elsewhere", shards=8)
    told = tally.type("savepoint", "restore", file, "move", "--claim", "--yes", "--json")
    assert told["shards"] == 8
    tally.type("pipeline", "upgrade", file, "--to", "2", "--yes")
    tally.run()
    assert tally.rows() == model(3 * HALF, lambda _, n: 1 if n < 2 * HALF else 2)
    # It was claimed: once the pipeline has gone on, it is gone.
    names = [each["name"] for each in tally.type("savepoint", "list", file, "--json")]
    assert "move" not in names
    assert not [pin for pin in tally.control.pins() if pin["owner"] == "savepoint/move"]


@pytest.mark.slow
def test_three_shards_are_made_of_eight(tally: Tally) -> None:
    file = str(tally.file)
    tally.write(savepoints="")
    tally.type("savepoint", "create", file, "--name", "eight", "--yes")
    tally.write(checkpoint="three", shards=3)
    tally.type("savepoint", "restore", file, "eight", "--yes")
    tally.feed(3 * HALF, 4 * HALF)
    tally.run()
    assert tally.rows() == model(4 * HALF, lambda _, n: 1 if n < 2 * HALF else 2)
    assert len(list((tally.checkpoint / "catchwater" / "state" / "tally").iterdir())) == 3


@pytest.mark.slow
def test_a_warm_version_takes_over_with_no_gap_and_no_duplicate(
    make_broker: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    broker = make_broker({"log.retention.ms": "-1"})
    with Client(broker.bootstrap) as client:
        client.create_topics({"orders": PARTITIONS})
    folder = tmp_path_factory.mktemp("warm")
    tally = Tally(broker.bootstrap, Control(broker.control_url), folder)
    tally.write(V1, trigger="continuous")
    old = tally.spawn("pipeline", "run", str(tally.file), "--quick", "--no-supervise")
    fed = 0
    with Client(broker.bootstrap) as client, (folder / "new.log").open("wb") as log:
        feeder = Feeder(client, "orders", PARTITIONS, 50)
        while not (tally.checkpoint / "commits").exists() or tally.last_epoch < 2:
            feeder.feed(orders(fed, fed + 20), 20)
            fed += 20
            time.sleep(0.3)
        tally.write(V2_MIGRATES)
        new = tally.spawn(
            "pipeline", "upgrade", str(tally.file), "--to", "2", "--warm", "--quick", "--yes",
            log=log,
        )  # fmt: skip
        deadline = time.monotonic() + PATIENCE_S
        while old.poll() is None:
            assert new.poll() is None, (folder / "new.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (folder / "new.log").read_text()[-3000:]
            feeder.feed(orders(fed, fed + 20), 20)
            fed += 20
            time.sleep(0.2)
        leader, shadow = tally.checkpoint, handover.current(tally.checkpoint)
        handed = handover.read_handed(leader)
        assert handed is not None and shadow != leader
        feeder.feed(orders(fed, fed + 100), 100)
        fed += 100
        while sum(tally.rows().values()) < fed:
            assert new.poll() is None, (folder / "new.log").read_text()[-3000:]
            assert time.monotonic() < deadline, (folder / "new.log").read_text()[-3000:]
            time.sleep(0.1)
    new.terminate()
    assert new.wait(PATIENCE_S) == 0
    assert old.wait() == 0
    rows = tally.rows()
    plain = model(fed, lambda *_: 0)
    assert Counter({row[:3]: count for row, count in rows.items()}) == Counter(
        {row[:3]: count for row, count in plain.items()}
    )
    # Version 1 wrote each key up to the fence, version 2 everything behind it.
    for card in {row[0] for row in rows}:
        by = [by for _, _, _, by in sorted(row for row in rows if row[0] == card)]
        assert by == sorted(by)
    assert {by for *_, by in rows} == {1, 2}
    last = Ledger(leader).read(handed.epoch)
    first = Ledger(shadow).read(handed.epoch + 1)
    assert last is not None and first is not None
    pause_ms = first.finished_ms - last.finished_ms
    (folder / "pause.json").write_text(json.dumps({"pause_ms": pause_ms}))
    assert pause_ms < 10_000, "the pause is one epoch, on a loaded machine too"
