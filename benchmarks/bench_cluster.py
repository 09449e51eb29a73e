"""A pipeline on a standalone cluster: what the cluster costs, what it gains, what a loss costs.

Master, workers and drivers are hosts of their own on this machine (`tests.hosts`: root, iproute2);
the checkpoint lies at an S3 server, which is moto. Rates are those of the epochs after the fourth,
by the ledger: no start is in them, and executors' JVMs have compiled what they run. How fast stores
are made anew is bytes of state a second of processor time. About 30 minutes and 10 GB of disk;
PARTS="rates scaling losses worker sizes" chooses, SIZES_GB=1,4,16 takes 30 GB of disk, and ROUNDS=1
is shorter.

Why targets are missed on two cores. A machine of two has no third for driver, broker and store,
and executors wait while the driver commits an epoch and plans the next, and while few read: that
part of an epoch no second executor makes shorter. How many cores both had stands beside it, and
PARTS=scaling measures what two bare processes gain there. After a loss a driver's JVM, three
executors' and their Pythons start on the same two cores. A standby, which has a minute and a half
to get ready and goes on as it is then, still waits for the lease to lapse and plans its first
query. Losses are of a round or two, and say no more than that: other cold starts took longer. An
executor that Spark starts in the place of a lost one takes its share of the others' shards, and
reads it: where a worker is lost, no other has room for one.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count, cycle, islice, pairwise
from pathlib import Path
from statistics import median

from tests.conftest import until
from tests.hosts import Network
from tests.s3 import CREDENTIALS, make_bucket, moto
from tests.spark_cluster import OF_EXECUTORS, Cluster, Driver, newest

from benchmarks.bench_state import apart, rebuild, whole
from benchmarks.measure import Row, chosen_parts, cpu_seconds, publish, row
from benchmarks.our_broker import catchwater_broker
from catchwater.drill.feeder import Event, Feeder
from catchwater.recovery.ledger import EpochEntry, Ledger, folder_of, parts_ms
from catchwater.wire.client import Client

ROUNDS = int(os.environ.get("ROUNDS", "2"))
WARM_EPOCHS = 4
"""Which are not counted."""
SMALL_EPOCHS, SMALL_EVENTS = 1_000, 120_000
KEYS = 20_000
PARTITIONS = 4
SIZES_GB = tuple(map(int, os.environ.get("SIZES_GB", "1,4").split(",")))
PATIENCE_S = 300.0
LEASE_S = 3
CORES = len(os.sched_getaffinity(0))

FUNCTION = '''"""What takes the processor for a while, and keeps something of each key."""
from dataclasses import dataclass
from random import Random

from catchwater import Context, Keyed, Out, function

@dataclass
class Reading:
    key: str
    id: int
    at: int

@dataclass
class Seen:
    count: int = 0
    text: str = ""

@dataclass
class Told:
    key: str
    id: int
    count: int

@function(name="busy", version=1, key="key", event_time="at", watermark="30s")
class Busy(Keyed[Reading, Seen, Told]):
    def on_event(self, e: Reading, s: Seen, ctx: Context) -> Out[Told]:
        total = 0
        for turn in range({turns}):
            total += turn
        s.count += 1
        s.text = Random(total + e.id).randbytes({kept}).hex()
        if s.count % 10 == 0:
            return [Told(e.key, e.id, s.count)]
        return ()
'''
PIPELINE = """[pipeline]
name = "{name}"
function = "busy:Busy"
checkpoint = "{url}"
local = "local"
lease = "{lease}s"
spare = true
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{topic}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {per_epoch}
[sink.told]
topic = "{name}-told"
[recovery]
retain = 1000
"""
LOOP = """
import sys, time
turns, events = map(int, sys.argv[1:])
began_s = time.perf_counter()
for event in range(events):
    total = 0
    for turn in range(turns):
        total += turn
print(events / (time.perf_counter() - began_s))
"""
_NAMES = count()


@dataclass(frozen=True)
class Work:
    """What a function does of an event, and how many events its epochs have."""

    turns: int
    """Of a loop, so that Python is what takes the time."""
    takes: str
    per_epoch: int
    epochs: int


LIGHT = Work(4_000, "0.2 ms", 15_000, 10)
HEAVY = Work(20_000, "1 ms", 8_000, 9)
"""Its epochs are longer, too: beside them what an epoch takes of a driver is little."""


@dataclass
class Stand:
    """The hosts, the log with its events, and the store of checkpoints."""

    network: Network
    folder: Path
    bootstrap: str
    bucket: str

    def feed(self, count: int) -> str:
        """The name of a topic with so many events."""
        topic = f"readings-{next(_NAMES)}"
        with Client(self.bootstrap) as client:
            client.create_topics({topic: PARTITIONS}, {"retention.ms": "-1"})
            Feeder(client, topic, PARTITIONS, 1_000).feed(events(count), count)
        return topic

    def job(self, topic: str, *, turns: int, per_epoch: int, kept: int = 20) -> "Job":
        """A pipeline that has not run yet; it keeps so many bytes of each key, in twice as many."""
        name = f"job-{next(_NAMES)}"
        folder = self.folder / name
        folder.mkdir()
        (folder / "busy.py").write_text(FUNCTION.format(turns=turns, kept=kept))
        url = self.bucket.replace("?", f"/{name}?")
        file = folder / "pipeline.toml"
        text = PIPELINE.format(
            url=url, lease=LEASE_S, bootstrap=self.bootstrap, topic=topic, per_epoch=per_epoch,
            name=name,
        )  # fmt: skip
        file.write_text(text)
        return Job(file, folder_of(url, folder / "cache"))

    def processor_s(self) -> Counter[str]:
        """Processor time that the processes of each host have had; all others are "here"."""
        hosts = self.network.hosts.items()
        names = {Path("/run/netns", host.name).stat().st_ino: name for name, host in hosts}
        found: Counter[str] = Counter()
        for each in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                name = names.get((each / "ns" / "net").stat().st_ino, "here")
                found[name] += cpu_seconds(int(each.name))  # type: ignore[assignment]
        return found

    @contextmanager
    def cluster(self, job: "Job", workers: Sequence[str], cores: int = 1) -> Iterator[Cluster]:
        """Workers of so many cores that have their copies of the job's shards for themselves."""
        folder = job.file.parent / f"cluster-{next(_NAMES)}"
        folder.mkdir()
        with Cluster(self.network, folder, [job.file.parent], cores=cores) as cluster:
            for each in workers:
                cluster.add(each)
            yield cluster


@dataclass
class Job:
    """One pipeline, looked at from a machine that only reads it."""

    file: Path
    checkpoint: Path

    def entries(self) -> list[EpochEntry]:
        """Its epochs."""
        newest(self.checkpoint)
        ledger = Ledger(self.checkpoint)
        return [entry for each in ledger.epochs() if (entry := ledger.read(each))]

    def wait(self, epoch: int) -> None:
        """Until that one is in the ledger."""
        until(lambda: newest(self.checkpoint) >= epoch, PATIENCE_S)


def settings(master: str, tasks: int) -> dict[str, str]:
    """Of a driver."""
    own = {"CATCHWATER_PIPELINE__TASKS": str(tasks), "CATCHWATER_PIPELINE__SHARDS": "12"}
    if master.startswith("spark://"):
        own |= {**OF_EXECUTORS, "CATCHWATER_SPARK__SPARK_EXECUTOR_CORES": "1"}
    return own | {"CATCHWATER_SPARK__MASTER": master}


@dataclass
class Ran:
    """What a run came to, once it was warm."""

    rate: float
    """Events a second."""
    cores: dict[str, float]
    """How many each host had at work."""

    @property
    def executors(self) -> float:
        """How many cores the workers had."""
        return sum(cores for name, cores in self.cores.items() if name.startswith("w"))


def ran(stand: Stand, job: Job, workers: int, *, local: bool = False) -> Ran:
    """A job from its beginning to its end, on so many cores of a cluster or of this machine."""
    names = [f"w{n}" for n in range(workers)]
    seen = []
    with stand.cluster(job, [] if local else names) as cluster:
        master = f"local[{workers}]" if local else cluster.url
        driver = Driver(cluster.host("dr"), job.file, settings(master, workers))
        driver.start("--available-now")
        while not driver.ended:
            time.sleep(1)
            seen.append((1000 * time.time(), stand.processor_s()))
        assert driver.wait() == 0, driver.log[-3000:]
    entries = job.entries()[WARM_EPOCHS - 1 :]
    spent_ms = entries[-1].finished_ms - entries[0].finished_ms
    began, *_, ended = (
        each for each in seen if entries[0].finished_ms <= each[0] <= entries[-1].finished_ms
    )
    return Ran(
        1000 * sum(each.total("events") for each in entries[1:]) / spent_ms,
        {name: 1000 * (s - began[1][name]) / (ended[0] - began[0]) for name, s in ended[1].items()},
    )


def once(stand: Stand, topic: str, work: Work, workers: int, *, local: bool = False) -> Ran:
    """One run, which says what it came to."""
    job = stand.job(topic, turns=work.turns, per_epoch=work.per_epoch)
    found = ran(stand, job, workers, local=local)
    cores = ", ".join(f"{name} {n:.2f}" for name, n in sorted(found.cores.items()))
    parts = [parts_ms(each) for each in job.entries()[WARM_EPOCHS:]]
    medians = ", ".join(f"{of} {median(each[of] for each in parts):.0f}" for of in parts[0])
    print(f"{'local' if local else 'cluster'} of {workers}: {found.rate:,.0f} events/s; cores: "
          f"{cores}; ms of an epoch: {medians}", flush=True)  # fmt: skip
    return found


def rates(stand: Stand) -> Iterator[Row]:
    """What a cluster costs at equal cores, and what a second one gains."""
    topic = stand.feed(LIGHT.per_epoch * LIGHT.epochs)
    here, one, two = [], [], []
    for _ in range(ROUNDS):
        here.append(once(stand, topic, LIGHT, 1, local=True).rate)
        one.append(once(stand, topic, LIGHT, 1).rate)
        two.append(once(stand, topic, LIGHT, 2))
    yield row(f"one core of a cluster, a function of {LIGHT.takes}", "events/s", one, "local[1]",
              here, target=round(1 / 1.15, 2))  # fmt: skip
    yield from gained(LIGHT, one, two)


def scaling(stand: Stand) -> Iterator[Row]:
    """What a second core gains where there is more to do, and what the machine has to give."""
    topic = stand.feed(HEAVY.per_epoch * HEAVY.epochs)
    one, two, bare, both = [], [], [], []
    for _ in range(ROUNDS):
        bare.append(alone(1))
        both.append(alone(2))
        one.append(once(stand, topic, HEAVY, 1).rate)
        two.append(once(stand, topic, HEAVY, 2))
    yield from gained(HEAVY, one, two)
    yield row("two processes of nothing but that function's loop", "events/s", both, "one", bare)


def gained(work: Work, one: Sequence[float], two: Sequence[Ran]) -> Iterator[Row]:
    """What a second executor gained, and how many cores the two of them had for it."""
    yield row(f"two cores of a cluster, a function of {work.takes}", "events/s",
              [each.rate for each in two], "one core", list(one), target=1.7)  # fmt: skip
    had, all_cores = [each.executors for each in two], [float(CORES) for _ in two]
    yield row(f"the same, what both executors had beside driver, broker and store: {work.takes}",
              "cores", had, "all", all_cores)  # fmt: skip


def alone(count: int) -> float:
    """Events a second of processes that do nothing but the heavy function's loop."""
    command = [sys.executable, "-c", LOOP, str(HEAVY.turns), str(HEAVY.per_epoch)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(count)]
    return sum(float(each.communicate(timeout=PATIENCE_S)[0]) for each in started)


def after(job: Job, lose: Callable[[], None]) -> float:
    """Seconds from a loss to the next epoch in the ledger."""
    epoch = newest(job.checkpoint)
    began_s = time.monotonic()
    lose()
    job.wait(epoch + 1)
    return time.monotonic() - began_s


def small(stand: Stand) -> Job:
    """A pipeline of many small epochs, which keeps two kilobytes of each key."""
    topic = stand.feed(SMALL_EVENTS)
    return stand.job(topic, turns=1, per_epoch=SMALL_EVENTS // SMALL_EPOCHS, kept=2_000)


def paced(url: str) -> dict[str, str]:
    """Of a driver whose epochs leave the JVMs of others on this machine some time."""
    own = {"CATCHWATER_PIPELINE__TRIGGER": "2s", "CATCHWATER_SPARK__SPARK_CORES_MAX": "3"}
    return settings(url, 3) | own


def losses(stand: Stand) -> Iterator[Row]:
    """A driver's machine is lost, with a standby and without."""
    job = small(stand)
    cold_s, warm_s = [], []
    with stand.cluster(job, ["w0", "w1", "w2"], cores=2) as cluster:
        # Two drivers at a time, each with an executor on every worker.
        own = paced(cluster.url)
        drivers = []
        try:
            drivers.append(Driver(cluster.host("da"), job.file, own))
            drivers[-1].start()
            job.wait(5)
            for name in islice(cycle(("db", "da")), ROUNDS):
                following = Driver(cluster.host(name), job.file, own)
                cold_s.append(after(job, lambda: (drivers[-1].kill(), following.start())))  # type: ignore[func-returns-value]  # noqa: B023
                drivers.append(following)
                print(f"cold {cold_s[-1]:.1f} s", flush=True)
                job.wait(newest(job.checkpoint) + 3)
            for name in islice(cycle(("dc", "dd")), ROUNDS):
                following = Driver(cluster.host(name), job.file, own)
                following.get_ready()
                warm_s.append(after(job, drivers[-1].kill))
                drivers.append(following)
                print(f"with a standby {warm_s[-1]:.1f} s", flush=True)
        except AssertionError:
            print("\n".join(each.log[-2000:] for each in drivers))
            raise
        finally:
            for each in drivers:
                each.kill()
    yield row("a driver's machine is lost: to the next epoch", "s", cold_s, "the target",
              [60.0] * len(cold_s), target=1.0, better="lower")  # fmt: skip
    yield row(f"the same with a standby on another, by a lease of {LEASE_S} s", "s", warm_s,
              "the target", [10.0] * len(warm_s), target=1.0, better="lower")  # fmt: skip


def worker(stand: Stand) -> Iterator[Row]:
    """A worker's machine is lost, and no other has room for one executor more."""
    job = small(stand)
    with stand.cluster(job, ["w0", "w1", "w2"]) as cluster:
        driver = Driver(cluster.host("da"), job.file, paced(cluster.url))
        driver.start()
        try:
            job.wait(30)
            lost, lost_at = cluster.workers["w1"].name, newest(job.checkpoint)
            worker_s = after(job, lambda: cluster.lose("w1"))
            job.wait(newest(job.checkpoint) + 6)
        except AssertionError:
            print(driver.log[-2000:])
            raise
        finally:
            driver.kill()
    entries = {each.epoch: each for each in job.entries()}
    yield row("a worker of three is lost: to the next epoch", "s", [worker_s], "the target", [60.0],
              target=1.0, better="lower")  # fmt: skip
    yield from _after_the_worker(entries, lost, lost_at)


def _after_the_worker(entries: Mapping[int, EpochEntry], lost: str, lost_at: int) -> Iterator[Row]:
    steady = [entries[each] for each in range(lost_at - 10, lost_at + 1)]
    shards = [shard for each in steady[1:] for shard in each.shards]
    current = sum(shard.rebuilt_bytes == 0 for shard in shards)
    yield row("shard epochs that find their local store current", "%",
              [100 * current / len(shards)], "the target", [99.0], target=1.0)  # fmt: skip
    moves = [
        sum(a.host != b.host for a, b in zip(before.shards, after.shards, strict=True))
        for before, after in pairwise(steady)
    ]
    print(f"shards moved in ten epochs: {sum(moves)}", flush=True)
    held = [shard for shard in steady[-1].shards if shard.host == lost]
    read = [
        shard.rebuilt_bytes
        for epoch, entry in entries.items()
        if epoch > lost_at
        for shard in entry.shards
    ]
    yield row("bytes read when a worker of three is lost", "MB", [sum(read) / 1e6],
              "the state of its shards", [sum(each.state_bytes for each in held) / 1e6],
              target=1.05, better="lower")  # fmt: skip


def events(number: int) -> Iterator[Event]:
    """So many readings of some keys."""
    for n in range(number):
        key = b"key-%06d" % (n * 7919 % KEYS)
        yield Event(key, b'{"key":"%s","id":%d,"at":%d}' % (key, n, n), 1_700_000_000_000)


def sizes(stand: Stand) -> Iterator[Row]:
    """How fast a shard's store is made anew, by how much state it has: the line to larger ones."""
    for gigabytes in SIZES_GB:
        with tempfile.TemporaryDirectory(prefix="bench-state-", dir=stand.folder) as name:
            made = apart(whole, Path(name), gigabytes)
            found = [
                apart(rebuild, Path(name), "whole", made["at"], made["count"])
                for _ in range(ROUNDS)
            ]
        print(f"{gigabytes} GB: {found}", flush=True)
        yield row(f"rebuild a shard of {gigabytes} GB, entries of 1 kB", "MB/s a core",
                  [1000 * gigabytes / each["work_s"] for each in found], "the target",
                  [150.0 for _ in found], target=1.0)  # fmt: skip


PARTS: Mapping[str, Callable[[Stand], Iterator[Row]]] = {
    "rates": rates,
    "scaling": scaling,
    "losses": losses,
    "worker": worker,
    "sizes": sizes,
}


def main() -> None:
    """All claims, or those of PARTS."""
    os.environ |= CREDENTIALS
    parts = chosen_parts(PARTS)
    network = Network()
    here = network.here
    try:
        with (
            tempfile.TemporaryDirectory(prefix="bench-cluster-") as name,
            moto(here) as endpoint,
            catchwater_broker(
                listeners=f"PLAINTEXT://{here}:0", catchwater_control_listener=f"{here}:0",
                catchwater_insecure="true",
                catchwater_objects=make_bucket(endpoint, "log"),
            ) as broker,
        ):  # fmt: skip
            stand = Stand(network, Path(name), broker.bootstrap, make_bucket(endpoint, "jobs"))
            for part in parts.values():  # each by itself: one that fails takes nothing from others
                publish("cluster", list(part(stand)), is_whole=False)
    finally:
        network.close()


if __name__ == "__main__":
    main()
