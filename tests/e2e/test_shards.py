"""A key's state lies in one shard, whatever becomes of it, and its events go where it lies.

One pipeline, whose function uses every kind of state, timers and ids, is run, replayed, restarted,
and cut into other numbers of shards; its state is read from its log, without the pipeline.
"""

import hashlib
import random
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from tests.e2e.in_session import Pipeline, produce, read
from typer.testing import CliRunner

from catchwater.cli import app
from catchwater.pipeline import shard_epoch
from catchwater.pipeline.run.metrics import PipelineMetrics
from catchwater.recovery import pins, rewind
from catchwater.recovery.savepoint.create import Source
from catchwater.state.entries import DictEntries, Table, key_of
from catchwater.state.keys import shard_of
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

EVENTS, USERS, PARTITIONS, EPOCH_EVENTS = 3_000, 150, 2, 400

FUNCTION = '''"""What is known of each visitor's visits to each page; and who has been told so."""
from dataclasses import dataclass, field
from uuid import UUID
from pyspark import TaskContext
from catchwater import (
    Context, Keyed, ListState, MapState, Out, ValueState, function,
    list_state, map_state, value_state,
)

@dataclass
class Visit:
    user: UUID
    page: int
    id: str
    at: int

@dataclass
class Known:
    count: int = 0
    recent: ListState[int] = list_state(ttl="10m", max=5)
    by_hour: MapState[int, int] = map_state()
    last: ValueState[str] = value_state(ttl="10m")

@dataclass
class Told:
    user: UUID
    page: int
    id: str
    count: int
    task: int

@function(name="visits", key=("user", "page"), event_time="at", watermark="10m", dedup="id",
          dedup_ttl="30d", output_id=("id",))
class Visits(Keyed[Visit, Known, Told]):
    def on_event(self, e: Visit, s: Known, ctx: Context) -> Out[Told]:
        s.count += 1
        s.recent.append(e.at)
        s.by_hour[e.at // 3_600_000] = s.count
        s.last.set(e.id)
        ctx.timer("quiet", e.at + 3_600_000)
        ctx.timer("later", ctx.now + 86_400_000, clock=True)
        task = TaskContext.get()
        return [Told(e.user, e.page, e.id, s.count, task.partitionId() if task else -1)]

    def on_timer(self, name: str, at: int, s: Known, ctx: Context) -> Out[Told]:
        return [Told(*ctx.key, f"{name}@{at}", s.count, -1)]
'''

FILE = """\
[pipeline]
name = "{name}"
function = "visits_{name}:Visits"
checkpoint = "{checkpoint}"
local = "{checkpoint}-local"
trigger = "available-now"
tasks = 2
shards = {shards}
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "visits"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {epoch_events}
[sink.told]
topic = "{name}-told"
[recovery]
retain = 20
"""


def visits() -> list[dict[str, Any]]:
    """Every tenth is there twice."""
    draw, found = random.Random(5), list[dict[str, Any]]()
    for n in range(EVENTS):
        if n % 10 == 9:
            found.append(found[draw.randrange(max(0, n - 30), n)])
        else:
            user = str(UUID(int=draw.randrange(USERS)))
            found.append({"user": user, "page": draw.randrange(3), "id": f"v{n}", "at": n * 5_000})
    return found


def key(visit: dict[str, Any]) -> tuple[str, int]:
    return visit["user"], visit["page"]


@pytest.fixture(scope="module")
def log(make_broker: Callable[..., Any]) -> Any:
    broker = make_broker({"log.retention.ms": "-1"})
    with Client(broker.bootstrap) as client:
        client.create_topics({"visits": PARTITIONS})
    for partition in range(PARTITIONS):
        own = [visit for visit in visits() if UUID(visit["user"]).int % PARTITIONS == partition]
        produce(broker.bootstrap, "visits", partition, *own)
    return broker


class Visits(Pipeline):
    """The pipeline of this file."""

    bootstrap: str

    def write(self, shards: int, checkpoint: str = "checkpoint") -> None:
        name = self.folder.name
        (self.folder / f"visits_{name}.py").write_text(FUNCTION)
        self.place = self.folder / checkpoint
        self.file.write_text(
            FILE.format(
                name=name, checkpoint=checkpoint, shards=shards, bootstrap=self.bootstrap,
                epoch_events=EPOCH_EVENTS,
            )
        )  # fmt: skip

    @property
    def checkpoint(self) -> Path:
        return self.place

    def type(self, *words: str) -> str:
        """`catchwater savepoint …`."""
        done = CliRunner().invoke(app, ["savepoint", words[0], str(self.file), *words[1:], "--yes"])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.output

    def lose_local_state(self) -> None:
        """As if the machine was another one; between two epochs, and without Spark."""
        for each in shard_epoch._STORES.values():
            each.store.close()
        shard_epoch._STORES.clear()
        shutil.rmtree(self.checkpoint.with_name(f"{self.checkpoint.name}-local"))

    def shards(self) -> dict[int, DictEntries]:
        """All that each shard holds, from the log of state alone."""
        source, found = Source.at(self.checkpoint), {}
        for shard, at in source.entry(None).positions().items():
            found[shard] = DictEntries()
            for changes in source.log(0, shard).read(at):
                found[shard].apply(changes)
        return found

    def check_placed(self, shards: int) -> int:
        """Every entry lies in its key's one shard, and all kinds are there; gives the keys."""
        found = self.shards()
        assert set(found) == set(range(shards))
        holders: defaultdict[bytes, set[int]] = defaultdict(set)
        for shard, entries in found.items():
            for table in Table:
                for entry in entries.tables[table]:
                    owner = key_of(table, entry)
                    if owner is not None:
                        assert shard_of(owner, shards) == shard
                        holders[owner].add(shard)
        assert all(len(shards_of) == 1 for shards_of in holders.values())
        counts = [len(each.tables[Table.RECORD]) for each in found.values()]
        assert min(counts) > len(holders) / shards / 2, "keys are spread evenly"
        used = {table for table in Table for each in found.values() if each.tables[table]}
        assert used >= {Table.RECORD, Table.TIMER, Table.CLOCK_TIMER, Table.ENTRY, Table.EXPIRY}
        return len(holders)

    def hashes(self) -> dict[int, str]:
        """One of each shard's whole state."""
        return {
            shard: hashlib.sha256(
                repr([sorted(t.items()) for t in each.tables]).encode()
            ).hexdigest()
            for shard, each in self.shards().items()
        }

    def sink_rows(self) -> list[dict[str, Any]]:
        """Every row of the sink."""
        found = read(self.bootstrap, f"{self.folder.name}-told")
        return [msgspec.json.decode(value) for _, value in found]

    def check_sink_rows(self) -> None:
        """Each visit once, with how many its visitor and page have had."""
        seen, counts = set[str](), Counter[tuple[str, int]]()
        for visit in visits():
            if visit["id"] not in seen:
                seen.add(visit["id"])
                counts[key(visit)] += 1
        rows = [row for row in self.sink_rows() if "@" not in row["id"]]
        assert Counter(row["id"] for row in rows) == Counter(seen)
        for each, count in counts.items():
            own = sorted(row["count"] for row in rows if key(row) == each)
            assert own == list(range(1, count + 1))


@pytest.fixture
def build(log: Any, tmp_path: Path) -> Iterator[Callable[..., Visits]]:
    """`build(None, "name", shards=4)`: a pipeline on this session, or on none."""

    def make(spark: Any, name: str, shards: int) -> Visits:
        folder = tmp_path / name
        folder.mkdir()
        made = Visits(spark, folder, folder / "pipeline.toml")
        made.bootstrap = log.bootstrap
        made.write(shards)
        return made

    yield make


def test_a_key_is_in_one_shard_before_and_after_a_restart_and_in_any_number_of_shards(
    build: Callable[..., Visits],
) -> None:
    pipeline = build(None, "placed", shards=4)
    pipeline.run(until=lambda: pipeline.committed >= 1)
    pipeline.check_placed(4)
    pipeline.lose_local_state()
    pipeline.run(until=lambda: pipeline.committed >= 3)
    before = pipeline.check_placed(4)
    for shards, until in ((8, 5), (3, 1_000)):
        pipeline.type("create", "--name", f"to-{shards}")
        pipeline.write(shards, f"in-{shards}")
        pipeline.type("restore", f"to-{shards}")
        assert pipeline.check_placed(shards) == before
        pipeline.run(until=lambda until=until: pipeline.committed >= until)
        before = pipeline.check_placed(shards)
    assert before == len({key(visit) for visit in visits()})
    pipeline.check_sink_rows()


def test_what_is_replayed_leaves_the_very_state_that_it_left_before(
    build: Callable[..., Visits], log: Any
) -> None:
    pipeline = build(None, "replayed", shards=2)
    pipeline.run()
    before, last = pipeline.hashes(), pipeline.committed
    tails = pins.kafka_tails(log.bootstrap, ["visits"])
    for back in (1, last // 2, last):
        rewind.rewind(pipeline.checkpoint, last - back, tails)
        assert pipeline.hashes() != before
        pipeline.lose_local_state()
        pipeline.run()
        assert (pipeline.committed, pipeline.hashes()) == (last, before)
    (pipeline.checkpoint / "commits" / str(last)).unlink()
    pipeline.run()
    assert pipeline.hashes() == before
    pipeline.check_sink_rows()


def test_on_spark_a_key_meets_one_task_and_every_task_has_as_many_shards(
    build: Callable[..., Visits], spark: Any
) -> None:
    pipeline = build(spark, "shuffled", shards=4)
    pipeline.run()
    pipeline.check_sink_rows()
    assert pipeline.check_placed(4) == len({key(visit) for visit in visits()})
    tasks: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
    for row in pipeline.sink_rows():
        if "@" not in row["id"]:
            tasks[key(row)].add(row["task"])
    assert all(len(of_key) == 1 for of_key in tasks.values())
    by_task = Counter(task for of_key in tasks.values() for task in of_key)
    assert set(by_task) == {0, 1}
    # Two of the four shards each: about half of the keys.
    assert min(by_task.values()) > len(tasks) / 3
    for entry in pipeline.epochs:
        assert Counter((each.stage, each.shard) for each in entry.shards) == Counter(
            (0, shard) for shard in range(4)
        )


def test_what_prometheus_is_told_is_what_happened(build: Callable[..., Visits]) -> None:
    pipeline = build(None, "measured", shards=4)
    pipeline.between = lambda epoch: pipeline.lose_local_state() if epoch == 5 else None
    pipeline.run()
    metrics, after = PipelineMetrics("measured", ["visits"]), []
    for entry in pipeline.epochs:
        metrics.take(entry)
        after.append(samples_of(metrics))
    told = after[-1]
    assert told["catchwater_events_total"] == EVENTS
    assert told["catchwater_duplicates_total"] == EVENTS // 10
    assert told["catchwater_keys"] == len({key(visit) for visit in visits()})
    for each, entry in zip(after, pipeline.epochs, strict=True):
        p50, p99 = (each[f"catchwater_operator_seconds {share}"] for share in (0.5, 0.99))
        assert 0 < p50 <= p99 or not entry.total("events")
    source = Source.at(pipeline.checkpoint)
    positions = source.entry(None).positions().items()
    stored = sum(source.log(0, shard).roll_of(at).size_bytes for shard, at in positions)
    assert told["catchwater_state_bytes"] == stored
    assert 0 < told["catchwater_state_delta_bytes_total"]
    assert (
        told["catchwater_state_delta_bytes_total"] <= told["catchwater_state_written_bytes_total"]
    )
    rebuilt = [entry.total("rebuilt_bytes") > 0 for entry in pipeline.epochs]
    assert rebuilt == [entry.epoch == 6 for entry in pipeline.epochs]
    assert after[rebuilt.index(True)]["catchwater_state_restore_seconds"] > 0


def samples_of(metrics: PipelineMetrics) -> dict[str, float]:
    """The samples by name, and of quantiles by name and quantile."""
    found = {}
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        for sample in family.samples:
            quantile = sample.labels.get("quantile")
            found[f"{sample.name} {quantile}" if quantile else sample.name] = sample.value
    return found
