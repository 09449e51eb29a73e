"""A pipeline's life: saved, upgraded, rolled back, carried elsewhere, cut into other shards.

A plain loop says what the sink must hold; every row says which version wrote it. One pipeline goes
through all of it in the order of the tests. Where Spark's part is nothing new its half is played
here (`in_session.HereQuery`), for each start of Spark costs seconds.
"""

import json
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.in_session import HereQuery
from typer.testing import CliRunner

from catchwater.cli import app
from catchwater.clock import SYSTEM
from catchwater.config import CatchwaterError
from catchwater.drill.feeder import Event, Feeder
from catchwater.pipeline.change.warm import NEAR, Comparison, Conductor
from catchwater.pipeline.change.warm import prepare as prepare_warm
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run import config as files
from catchwater.pipeline.run import run
from catchwater.pipeline.run.driver import Stop
from catchwater.pipeline.run.run import prepare
from catchwater.pipeline.spark.failure import Traces
from catchwater.recovery import checkpoint, handover
from catchwater.recovery.folder import hold, lock
from catchwater.recovery.ledger import Ledger
from catchwater.replay.control import Control
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

COMMAND = str(Path(sys.executable).with_name("catchwater"))
PARTITIONS = 2
KEYS = 40
HALF = 600
PATIENCE_S = 400
SLACK_MS = 20_000
"""For a machine that is busy at just that moment."""
LATE = 7
"""Epochs that the old version may do while the new one, on a busy machine, waits for its turn."""

FILE = """\
[pipeline]
name = "tally"
function = "{function}"
checkpoint = "{checkpoint}"
local = "{checkpoint}-local"
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
retain = {retain}
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
    codes: int = 0

    @property
    def file(self) -> Path:
        return self.folder / "tally.toml"

    @property
    def checkpoint(self) -> Path:
        return self.folder / str(self.settings["checkpoint"])

    def write(self, code: dict[str, Any] | None = None, **settings: Any) -> None:
        """The pipeline's file, and the function's module if there is other code."""
        if code is not None:
            self.codes += 1
            name = f"tallied_{id(self)}_{self.codes}"
            (self.folder / f"{name}.py").write_text(CODE.format(**code))
            settings["function"] = f"{name}:Tallied"
        defaults = { "checkpoint": "checkpoint", "shards": 4,
            "trigger": "available-now", "sink": "rows.db", "savepoints": "", "retain": 3,
        }  # fmt: skip
        self.settings = {**defaults, **self.settings, **settings}
        self.file.write_text(FILE.format(bootstrap=self.bootstrap, **self.settings))

    def type(self, *words: str, code: int = 0) -> Any:
        """`catchwater …`; the JSON on stdout if it was asked for, else what was said."""
        done = CliRunner().invoke(app, words)
        error = done.exception if isinstance(done.exception, CatchwaterError) else None
        said = done.output + (f"{error} {error.hint}" if error else "")
        assert (error.exit_code if error else done.exit_code) == code, (said, done.exception)
        return json.loads(done.stdout) if "--json" in words else said

    def spawn(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start `catchwater …` and leave it to run."""
        with (self.folder / "pipeline.log").open("ab") as log:
            return subprocess.Popen(
                [COMMAND, *words],
                cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def run(self, *, spark: bool = False) -> None:
        """Until the input there is now is consumed."""
        if spark:
            process = self.spawn("pipeline", "run", str(self.file), "--quick", "--no-supervise")
            assert process.wait(PATIENCE_S) == 0, (self.folder / "pipeline.log").read_text()[-3000:]
        else:
            drive(files.load(self.file, {}), Stop())

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


@pytest.fixture(scope="module", autouse=True)
def _here() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            run, "start_query", lambda _, pipeline, chain, writer: HereQuery(pipeline, writer)
        )
        # There is no JVM, and no executors.
        patched.setattr(run.session, "collected_ms", lambda _: lambda: 0.0)
        patched.setattr(run.session, "has_executors", lambda _: False)
        yield


def drive(
    config: files.PipelineConfig, stop: Stop, beside: Callable[[], None] | None = None
) -> None:
    """What `run_pipeline` does, with Spark's part played here."""
    with lock(config.checkpoint):
        pipeline = prepare(config, SYSTEM.monotonic_s(), SYSTEM)
        with closing(pipeline):
            run.run_query(None, pipeline, stop, Traces(config.folder / "x.log"), beside, SYSTEM)  # type: ignore[arg-type]


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
    file, tar = str(tally.file), str(tally.folder / "half.tar")
    made = tally.type("savepoint", "create", file, "--name", "half", "--yes", "--json")
    assert (made["epoch"], made["shards"]) == (tally.last_epoch, 4)
    assert [each["name"] for each in tally.type("savepoint", "list", file, "--json")] == ["half"]
    assert "savepoint/tally/half" in {pin["id"] for pin in tally.control.pins()}
    found = tally.type("savepoint", "verify", file, "half", "--json")
    assert {each["verdict"] for each in found} == {"pass"}, found
    for card in ("card-0", "card-7"):
        state = tally.type("state", "get", file, card, "--savepoint", "half", "--json")
        most = max(s for c, _, s, _ in model(HALF, lambda *_: 1) if c == card)
        assert state["state"] == {"seen": most}
    older = Ledger(tally.checkpoint).epochs()[0]
    differs = tally.type("state", "diff", file, str(older), "half", "--json")
    assert differs
    assert {each["what"] for each in differs} <= {"added", "changed"}
    tally.type("savepoint", "export", file, "half", tar)
    tally.type("savepoint", "delete", file, "half", "--yes")
    assert not [pin for pin in tally.control.pins() if pin["owner"].startswith("savepoint/")]
    tally.type("savepoint", "import", file, tar, "--yes")
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
    tally.run(spark=True)
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
    for path in (tally.checkpoint, tally.folder / "checkpoint-local"):
        shutil.rmtree(path)
    tally.write(checkpoint="elsewhere", shards=8)
    told = tally.type("savepoint", "restore", file, "move", "--claim", "--yes", "--json")
    assert told["shards"] == 8
    tally.type("pipeline", "upgrade", file, "--to", "2", "--yes")
    tally.run(spark=True)
    assert tally.rows() == model(3 * HALF, lambda _, n: 1 if n < 2 * HALF else 2)
    # It was claimed: once the pipeline has gone on, it is gone.
    names = [each["name"] for each in tally.type("savepoint", "list", file, "--json")]
    assert "move" not in names
    assert not [pin for pin in tally.control.pins() if pin["owner"] == "savepoint/move"]


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


class Driver(threading.Thread):
    """One version that runs, in a thread."""

    def __init__(self, config: files.PipelineConfig, beside: Callable[[], None] | None) -> None:
        super().__init__()
        self.stop = Stop()
        self._config, self._beside = config, beside
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            drive(self._config, self.stop, self._beside)
        except CatchwaterError as error:
            self.failure = error

    def end(self) -> None:
        self.stop.requested = True
        self.join(PATIENCE_S)
        assert self.failure is None, self.failure


@dataclass
class Feed:
    """Orders that go on and on."""

    tally: Tally
    client: Client
    fed: int = 0

    def __post_init__(self) -> None:
        self._feeder = Feeder(self.client, "orders", PARTITIONS, 50)

    def until(self, condition: Callable[[], bool], count: int = 10) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            self._feeder.feed(orders(self.fed, self.fed + count), count)
            self.fed += count
            time.sleep(0.1)
            assert time.monotonic() < deadline

    def rest(self, alive: Callable[[], bool]) -> None:
        """Wait until the sink has a row for each order."""
        deadline = time.monotonic() + PATIENCE_S
        while sum(self.tally.rows().values()) < self.fed:
            assert alive() and time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture
def warm(make_broker: Callable[..., Any], tmp_path: Path) -> Iterator[Feed]:
    broker = make_broker({"log.retention.ms": "-1"})
    with Client(broker.bootstrap) as client:
        client.create_topics({"orders": PARTITIONS})
        tally = Tally(broker.bootstrap, Control(broker.control_url), tmp_path)
        tally.write(V1, trigger="continuous", retain=500)
        yield Feed(tally, client)


def check_taken_over(feed: Feed) -> None:
    """Version 1 wrote each key up to the fence, version 2 all behind it, each row once."""
    tally, leader = feed.tally, feed.tally.checkpoint
    rows, plain = tally.rows(), model(feed.fed, lambda *_: 0)
    assert sorted(row[:3] for row in rows.elements()) == sorted(r[:3] for r in plain.elements())
    for card in {row[0] for row in rows}:
        by = [by for _, _, _, by in sorted(row for row in rows if row[0] == card)]
        assert by == sorted(by)
    assert {by for *_, by in rows} == {1, 2}
    handed, shadow = handover.successor_of(leader), handover.current(leader)
    assert handed is not None and shadow != leader
    last, first = Ledger(leader).read(handed.epoch), Ledger(shadow).read(handed.epoch + 1)
    assert last is not None and first is not None
    behind = [
        epoch for epoch in range(handed.epoch + 1)
        if (entry := Ledger(shadow).read(epoch)) and entry.finished_ms > last.finished_ms
    ]  # fmt: skip
    pause_ms, longest_ms = first.finished_ms - last.finished_ms, longest_epoch_ms(leader, shadow)
    print(f"pause {pause_ms} ms, {len(behind)} epochs repeated in it, of {longest_ms} ms at most")
    assert len(behind) <= NEAR + 2 + LATE, "one that was being read, and one that was being planned"
    # Those epochs, that of the new version, and the end of the old one's query.
    assert pause_ms <= (len(behind) + 2) * longest_ms + SLACK_MS


def longest_epoch_ms(*folders: Path) -> int:
    """The longest time from one epoch's end to the next one's, the pause itself left out."""
    found = [0]
    for folder in folders:
        ledger = Ledger(folder)
        entries = [entry for n in ledger.epochs() if (entry := ledger.read(n))]
        found += [after.finished_ms - before.finished_ms for before, after in pairwise(entries)]
    return max(found)


def test_a_warm_version_takes_over_with_no_gap_and_no_duplicate(warm: Feed) -> None:
    tally = warm.tally
    old = Driver(files.load(tally.file, {}), None)
    warm.until(lambda: old.failure is not None or tally.last_epoch >= 2)
    tally.write(V2_MIGRATES)
    pipeline = OpenPipeline(files.load(tally.file, {}))
    told: list[Comparison] = []
    with hold(tally.checkpoint, tally.last_epoch, SYSTEM):
        config = prepare_warm(pipeline, 2)
        new = Driver(config, Conductor(pipeline, config.checkpoint, told.append))
        warm.until(lambda: not old.is_alive() or not new.is_alive())
        old.end()
        warm.until(lambda: bool(told), count=5)
        warm.rest(new.is_alive)
        new.end()
    (comparison,) = told
    # Every row says who wrote it; but for that they are the same.
    assert comparison.only_old == comparison.only_new > 0
    check_taken_over(warm)
    assert [v["version"] for v in versions(tally)] == [1, 2]


@pytest.mark.slow
def test_a_warm_version_takes_over_from_one_on_spark(warm: Feed) -> None:
    tally = warm.tally
    old = tally.spawn("pipeline", "run", str(tally.file), "--quick", "--no-supervise")
    warm.until(lambda: tally.last_epoch >= 2)
    tally.write(V2_MIGRATES)
    new = tally.spawn(
        "pipeline", "upgrade", str(tally.file), "--to", "2", "--warm", "--quick", "--yes"
    )
    warm.until(lambda: old.poll() is not None or new.poll() is not None)
    assert new.poll() is None, (tally.folder / "pipeline.log").read_text()[-3000:]
    warm.until(lambda: any(by == 2 for *_, by in tally.rows()))
    warm.rest(lambda: new.poll() is None)
    new.terminate()
    assert (old.wait(), new.wait(PATIENCE_S)) == (0, 0)
    check_taken_over(warm)
