"""State survives what happens to tasks, workers, disks and files: held to a plain model.

Each test is a pipeline of its own over one input of 6,000 events with duplicates and late ones, on
one Spark session, and but for what needs tasks of Spark's also without it (`here`).
"""

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.e2e.in_session import Pipeline, read

from catchwater.config import CatchwaterError
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.pack import pack
from catchwater.pipeline.rows import DRIVER, EVENTS, HEAD, Head, Manifest, Row
from catchwater.pipeline.run.versions import find_function, publish
from catchwater.pipeline.shard_epoch import Stage, run_stage
from catchwater.recovery import checkpoint, pins, rewind
from catchwater.recovery.intact import newest_intact
from catchwater.recovery.ledger import ShardEpoch
from catchwater.recovery.savepoint.create import Source
from catchwater.state.entries import Table
from catchwater.state.keys import HASH_BYTES
from catchwater.state.roll import EMPTY
from catchwater.state.store import ShardStoreFailed
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

INPUT, KEYS, PARTITIONS, EPOCH_EVENTS = 6_000, 300, 2, 600
MINUTE = 60_000

FUNCTION = '''"""The running total of each account; what goes wrong is told by files beside it."""
import os, signal
from dataclasses import dataclass
from pathlib import Path
from catchwater import Context, Keyed, Out, function

HERE = Path({here!r})

@dataclass
class Entry:
    account: str
    id: int
    at: int
    amount: int

@dataclass
class Total:
    count: int = 0
    sum: int = 0

@dataclass
class Told:
    id: int
    count: int
    sum: int

def once(name: str, id: int) -> bool:
    """Whether the file tells to fail at this event; it is used up."""
    path = HERE / name
    if path.exists() and path.read_text() == str(id):
        path.unlink()
        return True
    return False

@function(name="totals", version=1, key="account", event_time="at", watermark="10m",
          dedup="id", dedup_ttl="30d", output_id=("id",))
class Totals(Keyed[Entry, Total, Told]):
    def on_event(self, e: Entry, s: Total, ctx: Context) -> Out[Told]:
        s.count += 1
        s.sum += e.amount
        if e.id % 100 == 77:
            if once("raise", e.id):
                raise RuntimeError("told to")
            if once("die", e.id):
                os.kill(os.getpid(), signal.SIGKILL)
        return [Told(e.id, s.count, s.sum)]
'''

FILE = """\
[pipeline]
name = "{name}"
function = "{module}:Totals"
checkpoint = "checkpoint"
local = "{local}"
trigger = "available-now"
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "ledger"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {epoch_events}
[sink.totals]
topic = "{name}-totals"
[recovery]
retain = 20
"""


@dataclass
class Model:
    """The input as a plain loop sees it."""

    events: list[dict[str, Any]] = field(default_factory=list)
    told: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    totals: dict[str, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        draw = random.Random(3)
        seen: set[int] = set()
        for n in range(INPUT):
            if n % 10 == 9:
                event = self.events[draw.randrange(max(0, n - 50), n)]
            else:
                late = n > INPUT // 2 and n % 20 == 4
                at = (n - INPUT // 3 if late else n) * MINUTE
                account = f"a{draw.randrange(KEYS)}"
                event = {"account": account, "id": n, "at": at, "amount": draw.randrange(9)}
            self.events.append(event)
            is_late = event["at"] < (n - INPUT // 4) * MINUTE
            if not is_late and event["id"] not in seen:
                seen.add(event["id"])
                count, total = self.totals.get(event["account"], (0, 0))
                self.totals[event["account"]] = count + 1, total + event["amount"]
                self.told[event["id"], count + 1, total + event["amount"]] += 1


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def log(make_broker: Callable[..., Any], model: Model) -> Any:
    """A broker that holds the input; an account's events lie in one partition."""
    broker = make_broker({"log.retention.ms": "-1"})
    with Client(broker.bootstrap) as client:
        client.create_topics({"ledger": PARTITIONS})
        for first in range(0, INPUT, 100):
            for partition in range(PARTITIONS):
                records = [
                    (event["account"].encode(), msgspec.json.encode(event), 1_700_000_000_000, ())
                    for event in model.events[first : first + 100]
                    if int(event["account"][1:]) % PARTITIONS == partition
                ]
                client.produce([(("ledger", partition), encode_batch(records))])
    return broker


class Totals(Pipeline):
    """The pipeline of this file."""

    local: Path
    model: Model
    bootstrap: str

    def sink_rows(self) -> Counter[tuple[int, int, int]]:
        """Every row of the sink."""
        rows = (msgspec.json.decode(value) for _, value in read(self.bootstrap, self.topic))
        return Counter((row["id"], row["count"], row["sum"]) for row in rows)

    @property
    def topic(self) -> str:
        return f"{self.folder.name}-totals"

    def totals(self) -> dict[str, tuple[int, int]]:
        """The final state, read from the state log alone."""
        source = Source.at(self.checkpoint)
        spec = find_function(f"totals_{self.folder.name}:Totals", self.folder)
        found: dict[bytes, bytes | None] = {}
        for shard, at in source.entry(None).positions().items():
            for changes in source.log(0, shard).read(at):
                found.update(changes[Table.RECORD])
        totals = {}
        for key, data in found.items():
            if data is not None:
                state = spec.record_codec.decode(data).state
                totals[key[HASH_BYTES:].decode()] = state.count, state.sum
        return totals

    def check(self) -> None:
        """Sink and state are the model's."""
        assert self.sink_rows() == self.model.told
        assert self.totals() == self.model.totals


Make = Callable[..., Totals]


@pytest.fixture
def build(log: Any, model: Model, tmp_path: Path) -> Make:
    """`build(spark, "name")`: a pipeline on this session, or on none."""

    def build(spark: Any, name: str, local: Path | None = None) -> Totals:
        folder = tmp_path / name
        folder.mkdir()
        module = f"totals_{name}"
        (folder / f"{module}.py").write_text(FUNCTION.format(here=str(folder)))
        local = local or folder / "local"
        text = FILE.format(
            name=name, module=module, local=local, bootstrap=log.bootstrap,
            epoch_events=EPOCH_EVENTS,
        )  # fmt: skip
        (folder / "pipeline.toml").write_text(text)
        pipeline = Totals(spark, folder, folder / "pipeline.toml")
        pipeline.local, pipeline.model, pipeline.bootstrap = local, model, log.bootstrap
        return pipeline

    return build


@pytest.fixture(params=["here", "spark"])
def make(build: Make, request: pytest.FixtureRequest) -> Make:
    """`make("name")`: a pipeline, once on Spark and once without."""
    on = request.param
    spark = request.getfixturevalue("spark") if on == "spark" else None
    return lambda name, **changes: build(spark, f"{name}_{on}", **changes)


def test_a_task_that_fails_and_a_worker_that_dies_in_mid_epoch(build: Make, spark: Any) -> None:
    pipeline = build(spark, "task")
    (pipeline.folder / "raise").write_text("1177")
    (pipeline.folder / "die").write_text("3377")
    pipeline.run()
    assert not (pipeline.folder / "raise").exists() and not (pipeline.folder / "die").exists()
    pipeline.check()


def test_a_local_store_that_is_wiped_between_epochs(make: Make) -> None:
    pipeline = make("wiped")

    def wipe(epoch: int) -> None:
        if epoch in (2, 3, 7):
            shutil.rmtree(pipeline.local)

    pipeline.between = wipe
    pipeline.run()
    pipeline.check()


def test_a_commit_file_that_is_lost_again_and_again(make: Make) -> None:
    pipeline = make("commits")
    pipeline.run()
    for _ in range(2):
        (pipeline.checkpoint / "commits" / str(pipeline.committed)).unlink()
        pipeline.run()
        pipeline.check()


@pytest.mark.parametrize("back", [1, 10])
def test_an_older_checkpoint_is_gone_back_to(make: Make, back: int) -> None:
    pipeline = make(f"back{back}")
    pipeline.run()
    tails = pins.kafka_tails(pipeline.bootstrap, ["ledger"])
    committed = checkpoint.committed_epochs(pipeline.checkpoint)
    chosen = max(committed[-1] - back, committed[0])
    rewind.rewind(pipeline.checkpoint, chosen, tails)
    shutil.rmtree(pipeline.local)
    pipeline.run()
    pipeline.check()
    assert pipeline.committed == committed[-1]


def test_a_damaged_state_object_is_named_and_the_checkpoint_before_it_is_taken(
    make: Make,
) -> None:
    pipeline = make("damaged")
    pipeline.run()
    newest = pipeline.objects()[-1]
    newest.write_bytes(newest.read_bytes()[:-5])
    tails = pins.kafka_tails(pipeline.bootstrap, ["ledger"])
    found, problems = newest_intact(pipeline.checkpoint, tails)
    assert found is not None and found.epoch == pipeline.committed - 1
    assert newest.name in problems[0]
    rewind.rewind(pipeline.checkpoint, found.epoch, tails)
    pipeline.run()
    pipeline.check()


def test_a_local_disk_that_is_full(make: Make) -> None:
    with small_disk() as disk:
        pipeline = make("full", local=disk / "local")
        (disk / "ballast").write_bytes(bytes(disk_free(disk) - 64 * 1024))
        with pytest.raises(CatchwaterError) as failed:
            pipeline.run()
        assert "shard store" in str(failed.value)
        last = pipeline.committed
        (disk / "ballast").unlink()
        pipeline.run()
        assert pipeline.committed > last
        pipeline.check()


OPEN_ON_A_FULL_DISK = """
import os, shutil, sys
from pathlib import Path
import lmdb
from catchwater.state.local import LocalEntries

disk, refused = Path(sys.argv[1]), 0
for free_bytes in range(0, 96 * 1024, 4096):
    directory = disk / str(free_bytes)
    directory.mkdir()
    os.truncate(disk / "ballast", 0)
    (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - free_bytes))
    try:
        LocalEntries(directory)
    except (lmdb.Error, OSError):
        refused += 1
    shutil.rmtree(directory)
print(refused)
"""


def test_no_page_that_is_missing_ends_the_process() -> None:
    """Whichever write of opening a store is the one that finds the disk full, it is an error."""
    with small_disk() as disk:
        (disk / "ballast").touch()
        ended = subprocess.run(
            [sys.executable, "-c", OPEN_ON_A_FULL_DISK, str(disk)],
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert ended.returncode == 0, (ended.returncode, ended.stderr)
    assert 2 <= int(ended.stdout) < 24


def disk_free(folder: Path) -> int:
    return shutil.disk_usage(folder).free


@contextmanager
def small_disk() -> Iterator[Path]:
    """A file system of 24 MB."""
    import tempfile

    folder = Path(tempfile.mkdtemp())
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        folder.rmdir()
        pytest.skip("mounting a tmpfs is not permitted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        with suppress(OSError):
            folder.rmdir()


@pytest.mark.slow
def test_an_executor_of_a_cluster_that_is_lost(build: Make) -> None:
    pipeline = build(None, "executor")
    ended = subprocess.run(
        [sys.executable, "-m", "tests.e2e.lost_executor", str(pipeline.folder)],
        capture_output=True, text=True, timeout=1200, start_new_session=True,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert ended.stdout.split() == ["1"]
    pipeline.check()


def test_two_attempts_at_every_shard_at_once(tmp_path: Path, model: Model) -> None:
    """What speculation does on a cluster; of each epoch either attempt may be the one that counts.

    Spark speculates on another host only, and there is one here, so two processes do without it.
    """
    module = tmp_path / "totals_twice.py"
    module.write_text(FUNCTION.format(here=str(tmp_path)))
    spec = find_function("totals_twice:Totals", tmp_path)
    stage = Stage(
        index=0, code=publish(spec, tmp_path), shards=2, objects=(tmp_path / "home").as_uri(),
        folder="state/totals", function="totals", local=str(tmp_path / "local"), stagers={},
    )  # fmt: skip
    draw = random.Random(8)
    base: dict[int, ShardEpoch] = {}
    # Without what is late, so that the model need not know of watermarks.
    events = [event for event in model.events if event["at"] >= 0]
    with ProcessPoolExecutor(2, get_context("spawn")) as processes:
        for epoch, first in enumerate(range(0, 2_000, 100)):
            rows = attempt_rows(spec, base, epoch, events[first : first + 100], first)
            attempts = [processes.submit(attempt, stage, rows) for _ in range(2)]
            answers = [each.result(300) for each in attempts]
            base = {shard: draw.choice(answers)[shard] for shard in range(2)}
    counted = sum(each.keys for each in base.values())
    assert counted == len({event["account"] for event in events[:2_000]})
    for shard, told in base.items():
        records: dict[bytes, bytes | None] = {}
        for changes in stage.log(shard).read(told.position):
            records.update(changes[Table.RECORD])
        for key, data in records.items():
            own = [e for e in events[:2_000] if e["account"] == key[HASH_BYTES:].decode()]
            ids = {e["id"]: e["amount"] for e in own}
            assert data is not None
            state = spec.record_codec.decode(data).state
            assert (state.count, state.sum) == (len(ids), sum(ids.values()))


def attempt(stage: Stage, rows: list[Row]) -> dict[int, ShardEpoch]:
    """In another process: the shards' answers; an attempt that another one disturbs is repeated."""
    for _ in range(20):
        with suppress(ShardStoreFailed):
            out = [row for row in run_stage(stage, rows) if row.stage == DRIVER]
            told = [msgspec.msgpack.decode(row.blob, type=Manifest).shard for row in out]
            return {each.shard: each for each in told}
    raise AssertionError("twenty attempts failed")


def attempt_rows(
    spec: FunctionSpec, base: dict[int, ShardEpoch], epoch: int, events: list[Any], first: int
) -> list[Row]:
    """An epoch's rows, as the source makes them."""
    values = pa.array([msgspec.json.encode(event) for event in events], pa.binary())
    offsets = pa.array(range(first, first + len(events)), pa.int64())
    packed = pack(spec, None, values, offsets, origin="ledger-0", shards=2)
    rows = [Row(shard, 0, shard, EVENTS, blob) for shard, blob in packed]
    for shard in range(2):
        stood = base.get(shard)
        head = Head(epoch, 0, 1_000, stood.position if stood else EMPTY, stood.keys if stood else 0)
        rows.append(Row(shard, 0, shard, HEAD, msgspec.msgpack.encode(head)))
    return rows
