"""The contract's estimate of a restore, beside the restores themselves, against the moving tail.

One pipeline, started by `catchwater pipeline run` as a user would, whose function takes about
half a millisecond an event, as one that asks something does: so a share of its capacity stays that
share on a busy machine. One calibrating kill comes first. Then, with three sizes of state, its
driver is killed with input idle, at 50 % and at 80 % of the capacity that the contract names, and
this machine's copy of the state is taken away, as if the machine were lost; once more at 50 % it is
left. The clock runs from the kill until an epoch is committed behind which no more is left than
comes in two ordinary epochs (2 s at least). The peer's figure is what the newest contract had said
before the kill. A row's ratio is how many times the one is the other: at most 1.25× is asked of the
median, and 2× of each.
"""

import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks.measure import Row, publish, row
from benchmarks.our_broker import catchwater_broker
from catchwater.drill.feeder import Event, Feeder
from catchwater.pipeline.supervise import read_supervision
from catchwater.recovery import checkpoint
from catchwater.recovery.contract import Contract, load_contract, spelled
from catchwater.recovery.estimate import load_samples, near_s
from catchwater.recovery.ledger import EpochEntry, Ledger
from catchwater.wire.client import LATEST, Client

SIZES_MB = tuple(int(each) for each in os.environ.get("SIZES_MB", "5 30 80").split())
RUNS = (((0.0, False), (0.5, False)), ((0.8, False),), ((0.5, True),))
"""Load, and whether local state is left; the last with the largest state only. A run's pace is that
of its own time, so a load begins in a new run or after a kill of an idle one."""
KEY_BYTES = 1_000
"""What a key's state takes, of bytes that no codec makes smaller."""
STEADY_S = float(os.environ.get("STEADY_S", "10"))
PARTITIONS = 2
TOPIC = "asked"
PATIENCE_S = 400.0
ROUND_S = 0.1
CALIBRATING_PER_S = 2_000
"""Half of what it can do, so that there is something to replay where a start takes no time."""

FUNCTION = '''"""Half a millisecond of waiting an event, and a kilobyte of state a key."""
import time
from dataclasses import dataclass

from catchwater import Context, Keyed, Out, function

@dataclass
class Asked:
    key: str
    at: int
    fill: str = ""

@dataclass
class Held:
    count: int = 0
    data: str = ""

@dataclass
class Rare:
    key: str
    count: int

@function(name="asks", version=1, key="key", event_time="at", watermark="30s")
class Asks(Keyed[Asked, Held, Rare]):
    def on_event(self, e: Asked, s: Held, ctx: Context) -> Out[Rare]:
        time.sleep(0.0004)
        if e.fill:
            s.data = e.fill
            return ()
        s.count += 1
        return [Rare(e.key, s.count)] if s.count % 100 == 0 else ()
'''
PIPELINE = """[pipeline]
name = "asks"
function = "asks:Asks"
checkpoint = "checkpoint"
local = "local"
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "asked"
startingOffsets = "earliest"
recordKeyIsFunctionKey = true
[sink.rare]
topic = "rare"
"""


class Restore(NamedTuple):
    """One kill: what the contract had said, and what it took."""

    size_mb: int
    load: float
    local: bool
    """Whether this machine's copy of the state was left."""
    estimated_s: float
    low_s: float
    high_s: float
    took_s: float

    @property
    def apart(self) -> float:
        """How many times the one is the other, 1 at least."""
        return max(self.estimated_s / self.took_s, self.took_s / self.estimated_s)


class Pipeline:
    """The pipeline as a user runs it, and a feeder beside it."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        self.folder = folder
        self.checkpoint = folder / "checkpoint"
        (folder / "asks.py").write_text(FUNCTION)
        (folder / "pipeline.toml").write_text(PIPELINE.format(bootstrap=bootstrap))
        self.client = Client(bootstrap)
        self.client.create_topics({TOPIC: PARTITIONS})
        self.feeder = Feeder(self.client, TOPIC, PARTITIONS, 4_000)
        self.keys = 0
        self._draw = random.Random(1)
        self._asking = Client(bootstrap)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Meanwhile; ready when it has read all there is."""
        command = [Path(sys.executable).with_name("catchwater"), "pipeline", "run"]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen([*command, self.folder / "pipeline.toml"], stderr=log)
        try:
            self.feed(10)
            self.wait(lambda: self.left() == 0)
            yield
        except TimeoutError:
            print((self.folder / "log").read_text()[-3000:])
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)

    def wait(self, done: Callable[[], bool]) -> None:
        """Poll it; TimeoutError."""
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            if time.monotonic() > deadline:
                raise TimeoutError
            time.sleep(0.05)

    def grow(self, size_mb: int) -> None:
        """Give it keys until its state has this size."""
        wanted = size_mb * 1_000_000 // KEY_BYTES
        while self.keys < wanted:
            count = min(1_000, wanted - self.keys)
            first, self.keys = self.keys, self.keys + count
            self.feeder.feed(map(self._filled, range(first, self.keys)), count)
        self.wait(lambda: self.left() == 0)

    def _filled(self, key: int) -> Event:
        fill = self._draw.randbytes(KEY_BYTES * 3 // 4).hex()[:KEY_BYTES]
        at = time.time_ns() // 1_000_000
        return Event(b"%09d" % key, b'{"key":"%09d","at":%d,"fill":"%s"}'
                     % (key, at, fill.encode()), at)  # fmt: skip

    def feed(self, count: int) -> None:
        """So many events of keys that there are."""
        self.feeder.feed(iter([self._event() for _ in range(count)]), count)

    def _event(self) -> Event:
        key, at = self._draw.randrange(max(1, self.keys)), time.time_ns() // 1_000_000
        return Event(b"%09d" % key, b'{"key":"%09d","at":%d}' % (key, at), at)

    @contextmanager
    def fed(self, per_s: float) -> Iterator[None]:
        """At this rate meanwhile."""
        done = threading.Event()

        def feed() -> None:
            began, sent = time.monotonic(), 0
            while not done.wait(ROUND_S):
                due = int((time.monotonic() - began) * per_s)
                self.feed(due - sent)
                sent = due

        thread = threading.Thread(target=feed)
        if per_s:
            thread.start()
        try:
            yield
        finally:
            done.set()
            if per_s:
                thread.join()

    def left(self) -> int:
        """Records behind the last committed epoch."""
        return self.end() - self.read()

    def end(self) -> int:
        """How many records the topic has."""
        asked = dict.fromkeys(((TOPIC, number) for number in range(PARTITIONS)), LATEST)
        return sum(self._asking.list_offsets(asked).values())

    def read(self) -> int:
        """How many of them committed epochs have read."""
        entry = self.last()
        return sum(entry.end.offsets.get(TOPIC, {}).values()) if entry else 0

    def last(self) -> EpochEntry | None:
        """Spark's last commit, as the ledger has it."""
        return Ledger(self.checkpoint).read(checkpoint.last_commit(self.checkpoint))

    @property
    def contract(self) -> Contract:
        """The newest one."""
        return load_contract(self.checkpoint)

    def kill(self, load: float, per_s: float, size_mb: int, *, local: bool) -> Restore:
        """Kill the driver in the middle of it all, and wait until it is useful again."""
        with self.fed(per_s):
            if not per_s:
                self.feed(10)
            time.sleep(STEADY_S)
            said = self.contract.restore
            ledger = Ledger(self.checkpoint)
            recent = [e for n in ledger.epochs()[-5:] if (e := ledger.read(n))]
            near = max(per_s * near_s(recent), 0)
            told = read_supervision(self.checkpoint)
            assert told is not None and told.driver is not None
            began = time.monotonic()
            os.kill(told.driver, signal.SIGKILL)
            if not local:
                self.lose_local()
            if not per_s:
                self.feed(10)
            # Spark may still commit what it had begun when its driver was killed, but no more.
            come = self.end()
            self.wait(lambda: self.read() >= come and self.left() <= near)
            took_s = time.monotonic() - began
            done = checkpoint.last_commit(self.checkpoint)
        self.wait(lambda: self.contract.epoch >= done)
        seconds = said.with_local_s if local else said.seconds
        print(f"{size_mb} MB, {load:.0%}, {per_s:.0f}/s: {spelled(said)} "
              f"with local {said.with_local_s}, assumed {said.assumed}, "
              f"{said.infrastructure} {said.application} capacity {said.capacity_per_s} "
              f"({said.capacity}), input {said.input_per_s}, took {took_s:.1f} s; "
              f"{load_samples(self.checkpoint)[-1:]}", flush=True)  # fmt: skip
        never = PATIENCE_S
        return Restore(size_mb, load, local, seconds or never, said.low_s or never,
                       said.high_s or never, took_s)  # fmt: skip

    def lose_local(self) -> None:
        """Take this machine's copy of the state away, as a new machine has none."""
        aside = self.folder / f"lost-{time.monotonic_ns()}"
        (self.folder / "local").rename(aside)


def restores(pipeline: Pipeline) -> list[Restore]:
    """Of every size at every load, after one to calibrate by; and one with local state."""
    found = []
    with pipeline.running():
        pipeline.grow(SIZES_MB[0])
    with pipeline.running():
        pipeline.kill(0, CALIBRATING_PER_S, SIZES_MB[0], local=False)
    for size_mb in SIZES_MB:
        with (
            pipeline.running()
        ):  # of its own: what it is fed is no input that a load is measured by
            pipeline.grow(size_mb)
        for together in RUNS if size_mb == SIZES_MB[-1] else RUNS[:-1]:
            with pipeline.running():
                capacity_per_s = pipeline.contract.restore.capacity_per_s
                for load, local in together:
                    found.append(pipeline.kill(load, load * capacity_per_s, size_mb, local=local))
    return found


def claims(found: list[Restore]) -> list[Row]:
    """A row a restore, and one of them all."""
    peer = "the contract's estimate before the kill"
    rows = []
    for each in found:
        state = "" if each.local else ", no local state"
        within = each.low_s <= each.took_s <= each.high_s
        bar = "" if within or each.local else ", outside its error bar"
        claim = f"restore, {each.size_mb} MB, input {each.load:.0%} of capacity{state}{bar}"
        one = row(claim, "s", [each.took_s], peer, [each.estimated_s], target=2, better="lower")
        one.ratio = one.low = one.high = each.apart
        rows.append(one)
    apart = [each.apart for each in found]
    middle = statistics.median(apart)
    took, said = (statistics.median(each) for each in zip(
        *((e.took_s, e.estimated_s) for e in found), strict=True))  # fmt: skip
    claim = f"median of {len(found)} restores"
    whole = row(claim, "s", [took], peer, [said], target=1.25, better="lower")
    whole.ratio, whole.low, whole.high, whole.rounds = middle, min(apart), max(apart), len(found)
    return [whole, *rows]


def main() -> None:
    """Measure and publish."""
    with catchwater_broker() as broker, tempfile.TemporaryDirectory() as scratch:
        pipeline = Pipeline(Path(scratch), broker.bootstrap)
        publish("estimate", claims(restores(pipeline)))


if __name__ == "__main__":
    main()
