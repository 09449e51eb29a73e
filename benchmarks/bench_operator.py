"""What an event waits for inside the operator, with two gigabytes of state under it.

One process is given the shards of a function as a Spark task would be, without Spark: two million
keys with a kilobyte each are loaded (twice that on local disk, half in the log of state), then
epochs change random ones; those that make good what the load left owing are not counted. A round
first takes two hundred epochs of a thousand events without a pause: all of them over the time they
took, snapshots included, is the rate that one process sustains. Then events arrive at 60 % of that
rate, and an epoch takes what has arrived. An event's time is that of its
epoch's stage: from the rows that Spark hands over to the manifest that says that its shard's
changes are written. What no position needs is swept between rounds, as the driver does it beside.
About seven minutes, 12 GB of disk; published after every round.
"""

import gc
import hashlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import msgspec
import pyarrow as pa

from benchmarks.measure import publish, row
from catchwater import Context, Keyed, Out, function
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.pack import pack
from catchwater.pipeline.rows import DRIVER, EVENTS, HEAD, Head, Manifest, Row, shard_labels
from catchwater.pipeline.run.versions import publish as publish_code
from catchwater.pipeline.shard_epoch import Stage, run_stage
from catchwater.state.roll import EMPTY, Position

KEYS = int(os.environ.get("KEYS", "2000000"))
STATE_BYTES = 1_000
LOAD_EVENTS = 50_000
EVENTS_PER_EPOCH = 1_000
SHARDS = 4
SECONDS = 60.0
SETTLING_EPOCHS = int(os.environ.get("SETTLING_EPOCHS", "400"))
LOAD = 0.6
ROUNDS = int(os.environ.get("ROUNDS", "3"))
TARGET_MS = 100.0


@dataclass
class Visit:
    """An event."""

    customer: str
    at: int
    page: str


@dataclass
class Profile:
    """A kilobyte of what is known of a customer, which compresses to a half."""

    visits: int = 0
    last: str = ""
    known: str = ""


@function(name="profiles", version=1, key="customer", event_time="at")
class Profiles(Keyed[Visit, Profile, Visit]):
    """Counts, remembers, and puts every hundredth visit out."""

    def on_event(self, e: Visit, s: Profile, ctx: Context) -> Out[Visit]:
        """One visit."""
        s.visits += 1
        s.last = e.page
        s.known = s.known or hashlib.shake_128(e.customer.encode()).hexdigest(STATE_BYTES // 2)
        return [e] if s.visits % 100 == 0 else ()


class Operator:
    """The one stage of a pipeline, and where its shards stand."""

    def __init__(self, folder: Path) -> None:
        self._spec = spec_of(Profiles)
        self._stage = Stage(
            index=0, code=publish_code(self._spec, folder), shards=SHARDS,
            objects=(folder / "home").as_uri(), folder="state/profiles", function="profiles",
            local=str(folder / "local"), stagers={},
        )  # fmt: skip
        self._labels = shard_labels(SHARDS)
        self._stands: dict[int, tuple[Position, int]] = {}
        self._epoch = 0
        self._draw = random.Random(4)
        self.state_bytes = 0

    def events(self, customers: Iterable[int]) -> list[bytes]:
        """A visit each, as JSON."""
        now_ms = round(time.time() * 1000)
        page = b"/%016x" % self._draw.getrandbits(64)
        value = b'{"customer":"customer-%d","at":%d,"page":"%s"}'
        return [value % (customer, now_ms, page) for customer in customers]

    def some(self, count: int) -> list[bytes]:
        """Visits of random customers."""
        return self.events(self._draw.randrange(KEYS) for _ in range(count))

    def run(self, events: list[bytes]) -> float:
        """One epoch; seconds inside the operator."""
        offsets = pa.array(range(len(events)), pa.int64())
        packed = pack(
            self._spec, None, pa.array(events, pa.binary()), offsets, origin="s-0", shards=SHARDS
        )
        now_ms = round(time.time() * 1000)
        rows = [
            Row(label, 0, shard, HEAD, msgspec.msgpack.encode(
                Head(self._epoch, 0, now_ms, *self._stands.get(shard, (EMPTY, 0)))))
            for shard, label in enumerate(self._labels)
        ]  # fmt: skip
        rows += [Row(self._labels[shard], 0, shard, EVENTS, blob) for shard, blob in packed]
        began_s = time.monotonic()
        answers = list(run_stage(self._stage, rows))
        took_s = time.monotonic() - began_s
        told = [msgspec.msgpack.decode(each.blob, type=Manifest).shard for each in answers
                if each.stage == DRIVER]  # fmt: skip
        self._stands = {each.shard: (each.position, each.keys) for each in told}
        self.state_bytes = sum(each.state_bytes for each in told)
        self._epoch += 1
        return took_s

    def load(self) -> None:
        """Every customer once."""
        for start in range(0, KEYS, LOAD_EVENTS):
            self.run(self.events(range(start, min(start + LOAD_EVENTS, KEYS))))

    def settle(self) -> None:
        """Work off what the load has left: snapshots that it owes, pages not written yet."""
        for _ in range(SETTLING_EPOCHS):
            self.run(self.some(EVENTS_PER_EPOCH))
        self.sweep()

    def sweep(self) -> None:
        """Delete what the last epoch does not need, and let the disk come to rest."""
        for shard, (position, _) in self._stands.items():
            while self._stage.log(shard).sweep([position]):
                pass
        os.sync()

    def at_rate(self, rate: float, seconds: float) -> list[float]:
        """Milliseconds inside the operator of each event, arriving at this rate."""
        taken, found = 0, []
        began_s = time.monotonic()
        while (now_s := time.monotonic() - began_s) < seconds:
            arrived = int(now_s * rate) - taken
            if arrived == 0:
                time.sleep(1 / rate)
                continue
            took_s = self.run(self.some(arrived))
            taken += arrived
            found += [1000 * took_s] * arrived
        return found


def main() -> None:
    """Load, find the rate, and feed at a part of it; publish."""
    p99: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-operator-") as name:
        operator = Operator(Path(name))
        gc.freeze()  # as Spark's workers have it (`pipeline/spark/daemon.py`)
        operator.load()
        operator.settle()
        disk = sum(path.stat().st_size for path in Path(name, "local").rglob("*.mdb"))
        print(f"{KEYS:,} keys of {STATE_BYTES:,} bytes, {disk / 1e9:.2f} GB of them on local disk, "
              f"{operator.state_bytes / 1e9:.2f} GB in the log", flush=True)  # fmt: skip
        state_gb = KEYS * STATE_BYTES / 1e9
        claim = f"event in the operator, p99 at {LOAD:.0%} load, {state_gb:.1f} GB of state"
        for turn in range(ROUNDS):
            sample = [operator.run(operator.some(EVENTS_PER_EPOCH)) for _ in range(200)]
            sustained = EVENTS_PER_EPOCH / statistics.mean(sample)
            waited = sorted(operator.at_rate(LOAD * sustained, SECONDS))
            p99.append(waited[int(0.99 * len(waited))])
            p50 = statistics.median(waited)
            print(f"round {turn + 1}: {sustained:,.0f} events/s sustained; at {LOAD:.0%} "
                  f"p50 {p50:.1f} ms, p99 {p99[-1]:.1f} ms", flush=True)  # fmt: skip
            targets = [TARGET_MS] * len(p99)
            told = row(claim, "ms", p99, "the target", targets, target=1.0, better="lower")
            publish("operator", [told])
            operator.sweep()


if __name__ == "__main__":
    # By its name: the function is loaded by its module's, and `__main__` would begin once more.
    import_module("benchmarks.bench_operator").main()
