"""Drills of a pipeline: it runs under load, is hurt, and has to come back with every row once.

Each of them feeds payments at a rate, which goes on through fault and restore. What a restore took
is measured from the fault until an epoch ends near the log's end by then. In the end all that was
fed has to be in the sink exactly once, by a plain loop over it, and by `catchwater sink verify`.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

import msgspec

from catchwater.drill.feeder import Event, Feed, partition_of
from catchwater.drill.job import FUNCTION, NAME
from catchwater.drill.journal import processes_of
from catchwater.drill.plain_spark import SparkStage
from catchwater.drill.processes import Child
from catchwater.drill.result import Finding, Workload, at_most, foretold
from catchwater.drill.rows import differences, read_rows
from catchwater.drill.scene import Scene
from catchwater.drill.stage import PARTITIONS, Job, Stage
from catchwater.drill.workload import Payment, Recipe, payments, totals
from catchwater.recovery.contract import Contract, load_contract
from catchwater.recovery.folder import holder
from catchwater.recovery.ledger import Ledger

EPOCH_EVENTS = 5_000
_FOR_EVER = 1 << 40
_RETAIN = 10
_LEAST_RESTORABLE = 3
SLOW_S = 20.0
"""How long a sink is slow."""
HELD_S, FREE_S = 1.5, 0.1
"""By turns, its table takes nothing and something."""
PATIENCE_S = 300.0


class Play:
    """A pipeline under load, and the restore of it."""

    def __init__(self, scene: Scene, retain: int = _RETAIN, *, into_table: bool = False) -> None:
        self.scene = scene
        shape = scene.shape
        self.recipe = Recipe(
            _FOR_EVER, shape.seed, EPOCH_EVENTS, cards=shape.cards, skew=shape.skew,
            late=shape.late, each_first=True,
        )  # fmt: skip
        self.keep_bytes = shape.state_bytes // shape.cards
        topics = scene.topic("payments"), scene.topic("totals")
        job = Job(NAME, FUNCTION, *topics, EPOCH_EVENTS, retain, into_table)
        kind = Stage if scene.spark is None else SparkStage
        self.stage = kind(
            job, scene.platform, scene.folder, scene.children, scene.clock, marks=scene.marks
        )
        if isinstance(self.stage, SparkStage) and scene.spark is not None:
            self.stage.place = scene.spark
        else:
            scene.pipeline_file = self.stage.file
        self._feed: Feed | None = None
        self._fault_s = self._down_s = self.took_s = 0.0
        self._promised: Contract | None = None
        self.count = 0
        """How many payments were fed, once no more come."""

    @property
    def checkpoint(self) -> Path:
        """The pipeline's."""
        return self.scene.folder / "checkpoint"

    def begin(self) -> Child:
        """A supervised pipeline that has caught up with its load, has a contract, and is busy."""
        stage, scene = self.stage, self.scene
        stage.write_function(keep_bytes=self.keep_bytes)
        stage.start_log()
        bootstrap, topic = scene.platform.bootstrap, stage.job.topic
        self._feed = Feed(
            bootstrap, topic, PARTITIONS, self._events(), scene.shape.rate, scene.clock
        )
        self._feed.start()
        scene.tell("starting the pipeline")
        pipeline = stage.start_pipeline(supervised=True)
        stage.wait_until_busy(pipeline)
        stage.wait_until_caught_up(pipeline, stage.near_s())
        self.wait_for_checkpoints(pipeline, 1)
        stage.wait_until_busy(pipeline)
        return pipeline

    def _events(self) -> Iterator[Event]:
        encode = msgspec.json.Encoder().encode
        for payment in payments(self.recipe):
            yield Event(payment.card.encode(), encode(payment), payment.at)

    def wait_for_checkpoints(self, pipeline: Child, count: int) -> None:
        """Until so many can be gone back to."""

        def enough() -> bool:
            return self.stage.checkpoints() >= count

        pipeline.wait_until(enough, f"made {count} checkpoints", PATIENCE_S)

    def promise(self, checkpoint: int | None = None) -> None:
        """The fault comes now: what the contract says of it, or of an older one, is what counts."""
        self._promised = self.stage.contract()
        if checkpoint is not None:
            self._promised = load_contract(self.checkpoint, checkpoint)
        self._fault_s = self._down_s = self.scene.clock.monotonic_s()

    def has_stopped(self) -> None:
        """What the contract speaks of begins now: that it ended its work as asked is no failure."""
        self._down_s = self.scene.clock.monotonic_s()

    def catch_up(self, pipeline: Child, what: str = "restore") -> None:
        """Wait for it to be over, and say how long it took since the fault."""
        self.scene.tell("waiting until it has caught up")
        self.stage.wait_until_caught_up(pipeline, self.stage.near_s())
        self.took_s = round(self.scene.clock.monotonic_s() - self._fault_s, 2)
        self.scene.find(at_most(what, self.took_s, self.scene.budget.restore_s, "s"))

    def restored(self, pipeline: Child, estimate: tuple[float, float, float] | None = None) -> None:
        """The same of a restore, which the contract has foretold; of an older one, `estimate`."""
        self.catch_up(pipeline)
        promised = self._promised.restore if self._promised else None
        low, seconds, high = estimate or (
            (promised.low_s, promised.seconds, promised.high_s) if promised else (None, None, None)
        )
        restore_s = round(self.took_s - (self._down_s - self._fault_s), 2)
        self.scene.restore_s, self.scene.estimate_s = restore_s, seconds
        self.scene.find(foretold(restore_s, low, high))

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.checkpoint)

    def estimate_of(self, restore_s: float | None) -> tuple[float, float, float] | None:
        """By the log as it is now, with the error bar of the contract's."""
        estimate = self._promised.restore if self._promised else None
        if restore_s is None or estimate is None or not estimate.seconds or estimate.low_s is None:
            return None
        high = restore_s * (estimate.high_s or 10 * estimate.seconds) / estimate.seconds
        return restore_s * estimate.low_s / estimate.seconds, restore_s, high

    def started_again(self, pipeline: Child) -> Child:
        """By its supervisor; without one, by hand."""
        if self.stage.supervises:
            return pipeline
        self.scene.manual(self.stage.manual_start)
        return self.stage.start_pipeline()

    def acknowledged(self) -> None:
        """The longest that the input had to wait for the log."""
        assert self._feed is not None
        longest_s, most_s = round(self._feed.longest_s, 2), self.scene.budget.unavailable_s
        self.scene.find(at_most("without an acknowledgement", longest_s, most_s, "s"))

    def sink_s(self) -> float:
        """The longest that the sink took over one of the newest epochs."""
        ledger = self._ledger
        entries = [entry for entry in map(ledger.read, ledger.epochs()) if entry]
        return max((ms for e in entries for ms in e.sink_ms.values()), default=0.0) / 1000

    def end_feed(self) -> int:
        """No more comes; how much came."""
        assert self._feed is not None
        return self._feed.end()

    def fed(self, count: int) -> Iterator[Payment]:
        """The payments that were fed, again."""
        return islice(payments(self.recipe), count)

    def judge(self, pipeline: Child) -> None:
        """Let it read to the end, stop it, and compare its sink with what should be in it."""
        scene, stage = self.scene, self.stage
        self.count = count = self.end_feed()
        scene.tell("reading to the end")
        stage.wait_until_reached(pipeline, stage.ends())
        pipeline.stop()
        self.compare(count)
        shape = scene.shape
        scene.workload = Workload(
            count, shape.rate, shape.state_bytes, shape.cards, shape.skew, shape.late,
            self._state_bytes(),
        )  # fmt: skip

    def _state_bytes(self) -> int | None:
        """What a restore reads of the state, by the newest epoch."""
        newest = max(self._ledger.epochs(), default=-1)
        entry = self._ledger.read(newest) if newest >= 0 else None
        return entry.total("state_bytes") if entry else None

    def compare(self, count: int) -> None:
        """The rows of the sink, by a plain loop over the payments, and by the sink itself."""
        scene, budget = self.scene, self.scene.budget
        scene.tell("comparing every row")
        expected = totals(self.fed(count))
        missing, extra = differences(expected, self.stage.rows())
        scene.find(at_most("rows missing", missing, budget.missing, "rows"))
        scene.find(at_most("rows too many", extra, budget.duplicate, "rows"))
        if not expected:
            scene.unseen("rows", "nothing was fed")
        if isinstance(self.stage, SparkStage):
            return
        output = scene.catchwater("sink", "verify", str(self.stage.file), "--json", codes=(0, 4))
        wrong = sum(len(sink["findings"]) + len(sink["epochs_lost"]) for sink in json.loads(output))
        scene.find(at_most("rows that sink verify finds", wrong, 0, "rows"))

    def pin(self) -> None:
        """Whether anything keeps what a restore needs."""
        pin = self._promised.retention.pin if self._promised else ""
        why = f"the log keeps it by the pin {pin}" if pin else "retention alone keeps it: no pins"
        self.scene.find(
            Finding("input that is kept", "pass" if pin else "warn", None, None, "", why)
        )


def kill_driver(scene: Scene) -> None:
    """The driver dies in mid-epoch; its supervisor starts another."""
    play = Play(scene)
    pipeline = play.begin()
    driver = holder(play.checkpoint)
    play.promise()
    scene.fault("kill -9 of the driver", lambda: play.stage.kill_driver(pipeline))
    pipeline = play.started_again(pipeline)
    play.restored(pipeline)
    if driver and holder(play.checkpoint) in (driver, None):
        scene.unseen("another driver", "the same process works on, or none does")
    play.judge(pipeline)


def kill_task(scene: Scene) -> None:
    """All Python workers of Spark's tasks die at once."""
    play = Play(scene)
    pipeline = play.begin()
    workers: list[int] = []

    def found() -> bool:
        workers[:] = _workers(scene.journal.run, *play.stage.worker)
        return bool(workers)

    pipeline.wait_until(found, "had any Python worker", PATIENCE_S)
    play.promise()
    scene.fault(f"kill -9 of {len(workers)} Python workers", lambda: _kill(workers))
    play.restored(pipeline)
    play.judge(pipeline)


def lose_machine(scene: Scene) -> None:
    """The driver's machine is gone: every process of the pipeline, and its local state."""
    play = Play(scene)
    pipeline = play.begin()
    play.promise()

    def lose() -> None:
        pipeline.kill()
        _kill(_of_pipeline(scene, pipeline))
        shutil.rmtree(scene.folder / "local", ignore_errors=True)

    scene.fault("kill -9 of all processes of the pipeline; its local state is deleted", lose)
    scene.manual(play.stage.manual_start)
    pipeline = play.stage.start_pipeline(supervised=True)
    play.restored(pipeline)
    play.judge(pipeline)


def redeploy_at_peak(scene: Scene) -> None:
    """The pipeline is stopped and started again while input goes on."""
    play = Play(scene)
    pipeline = play.begin()
    play.promise()
    scene.fault("SIGTERM to the pipeline, and a new start", pipeline.stop)
    play.has_stopped()
    pipeline = play.stage.start_pipeline(supervised=True)
    play.restored(pipeline)
    play.judge(pipeline)


def older_checkpoint(scene: Scene) -> None:
    """Go back to the oldest checkpoint that is retained, and replay from there."""
    play = Play(scene)
    if gone_back := _go_back(play, play.begin()):
        pipeline, restore_s = gone_back
        play.restored(pipeline, play.estimate_of(restore_s))
        play.judge(pipeline)


def replace_broker_in_restore(scene: Scene) -> None:
    """Go back to the oldest checkpoint, and lose the broker while the replay is under way."""
    play = Play(scene)
    if gone_back := _go_back(play, play.begin()):
        pipeline, _ = gone_back
        play.stage.wait_until_replaying(pipeline)
        scene.kill_broker("kill -9 of the broker, while the pipeline replays")
        scene.start_broker()
        play.catch_up(pipeline, "restored and caught up")
        play.judge(pipeline)


def _go_back(play: Play, pipeline: Child) -> tuple[Child, float | None] | None:
    """The pipeline started from its oldest checkpoint, and what that was to take; None: none is."""
    scene, stage = play.scene, play.stage
    play.wait_for_checkpoints(pipeline, _LEAST_RESTORABLE)
    if isinstance(stage, SparkStage):
        scene.manual("stop the job")
        pipeline.stop()
        play.promise()
        play.pin()
        scene.fault("back to an older batch", lambda: scene.tell(stage.go_back(_RETAIN)))
        scene.manual("move what is newer out of its checkpoint's folders offsets and commits")
        scene.manual("start the job")
        return stage.start_pipeline(), None
    scene.manual("catchwater pipeline stop FILE")
    pipeline.stop()
    file = str(play.stage.file)
    explained = json.loads(scene.catchwater("recovery", "explain", file, "--json"))
    checkpoints = explained["checkpoints"]
    oldest = next((row for row in checkpoints if row["restorable"]), None)
    if oldest is None:
        scene.unseen("an older checkpoint", "none can be restored")
        return None
    play.promise(oldest["checkpoint"])
    play.pin()
    number = str(oldest["checkpoint"])

    def restore() -> None:
        scene.catchwater("recovery", "restore", file, "--checkpoint", number, "--yes")

    replayed = f"{oldest['replay_records']} records to replay"
    scene.fault(
        f"back to checkpoint {number} of {checkpoints[-1]['checkpoint']}: {replayed}", restore
    )
    scene.manual(f"catchwater recovery restore FILE --checkpoint {number} --yes")
    scene.manual("catchwater pipeline run FILE")
    return play.stage.start_pipeline(supervised=True), oldest["restore_s"]


def backfill_live(scene: Scene) -> None:
    """A backfill reads all of the history beside the live pipeline, into a topic of its own."""
    play = Play(scene)
    pipeline = play.begin()
    topic = scene.topic("totals-again")
    ends = play.stage.ends()
    variables = {"CATCHWATER_SINK__ALERTS__TOPIC": topic}

    def backfill() -> None:
        scene.catchwater(
            "pipeline", "backfill", str(play.stage.file), "--label", "drill", "--quick", "--yes",
            variables=variables,
        )  # fmt: skip

    scene.fault(f"a backfill of {sum(ends.values())} records or more", backfill)
    play.promise()
    play.catch_up(pipeline, "caught up beside the backfill")
    play.judge(pipeline)
    with play.stage.client() as client:
        rows = read_rows(client, topic)
    # It ends where the log did when it began: behind these ends, in each partition elsewhere.
    least = totals(_before(play, ends))
    most = totals(play.fed(play.count))
    scene.find(at_most("rows the backfill lacks", (least - rows).total(), 0, "rows"))
    scene.find(at_most("rows of the backfill too many", (rows - most).total(), 0, "rows"))


def slow_sink(scene: Scene) -> None:
    """A sink is slow for a while: somebody else holds its table most of the time."""
    play = Play(scene, into_table=True)
    pipeline = play.begin()
    driver, before_s = holder(play.checkpoint), play.sink_s()
    locked: list[Child] = []

    def slow() -> None:
        locked.append(scene.hold_database(play.stage.database, HELD_S, FREE_S))

    scene.fault(f"the sink takes something for {FREE_S} s in {HELD_S + FREE_S} s", slow)
    scene.clock.pause(SLOW_S)
    slow_s = play.sink_s()
    locked[0].kill()
    play.promise()
    play.catch_up(pipeline, "caught up behind it")
    if slow_s < HELD_S / 2:
        why = f"it took {slow_s:.2f} s over an epoch, and {before_s:.2f} s before"
        scene.unseen("a slow sink", why)
    if holder(play.checkpoint) != driver:
        why = "another driver had to begin, which read the state again"
        scene.find(Finding("waited for the sink", "warn", None, None, "", why))
    play.acknowledged()
    play.judge(pipeline)


def rollback_version(scene: Scene) -> None:
    """A bad version goes live, writes, and is rolled back with its state and its rows."""
    play = Play(scene)
    pipeline = play.begin()
    file = str(play.stage.file)
    pipeline.stop()
    play.stage.write_function(version=2, keep_bytes=play.keep_bytes)
    scene.catchwater("pipeline", "upgrade", file, "--to", "2", "--yes")
    play.stage.watch.look()
    before = play.stage.watch.committed

    def run_bad_version() -> None:
        bad = play.stage.start_pipeline(supervised=True)

        def written() -> bool:
            play.stage.watch.look()
            return play.stage.watch.committed > before + 1

        bad.wait_until(written, "written anything", PATIENCE_S)
        bad.stop()
        fed = play.fed(sum(play.stage.ends().values()))
        if not differences(totals(fed), play.stage.rows())[1]:
            scene.unseen("a bad version", "none of its rows was wrong")

    scene.fault("version 2 counts a cent too many, and writes", run_bad_version)
    play.promise()
    scene.manual("catchwater pipeline rollback FILE --yes")
    scene.catchwater("pipeline", "rollback", file, "--yes")
    play.stage.write_function(version=1, keep_bytes=play.keep_bytes)
    scene.manual("catchwater pipeline run FILE, with the code of version 1")
    pipeline = play.stage.start_pipeline(supervised=True)
    play.catch_up(pipeline, "rolled back and caught up")
    play.judge(pipeline)


def _before(play: Play, ends: Mapping[int, int]) -> Iterator[Payment]:
    """The payments that lie before these ends of their partitions."""
    counts = dict.fromkeys(ends, 0)
    for payment in play.fed(play.count):
        partition = partition_of(payment.card.encode(), len(ends))
        counts[partition] += 1
        if counts[partition] <= ends[partition]:
            yield payment


def _workers(run: str, command: bytes, forks: int) -> list[int]:
    """The processes of a run in which Spark's tasks call the function."""
    parents = {}
    for pid in processes_of(run):
        with suppress(OSError, ValueError):
            if command in Path(f"/proc/{pid}/cmdline").read_bytes():
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                parents[pid] = int(stat[1])
    # The first is forked from nobody of them; of ours Spark's daemon is, and the workers from that.
    generation = [pid for pid, parent in parents.items() if parent not in parents]
    for _ in range(forks):
        generation = [pid for pid, parent in parents.items() if parent in generation]
    return generation


def _of_pipeline(scene: Scene, pipeline: Child) -> list[int]:
    """What is left of the run but for the platform's processes."""
    groups = {child.pid for child in scene.platform.processes}
    left = []
    for pid in processes_of(scene.journal.run):
        with suppress(ProcessLookupError):
            if os.getpgid(pid) not in groups:
                left.append(pid)
    return left


def _kill(pids: list[int]) -> None:
    for pid in filter(None, pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
