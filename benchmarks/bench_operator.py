"""What an event waits for inside the operator, with two gigabytes of state under it.

One process is given the shards of a function as a Spark task would be, without Spark: two million
keys with a kilobyte each are loaded, then epochs change random ones. First as many epochs of a
thousand events as come out, for the rate that one process sustains; then events arrive at 60 % of
that rate, and an epoch takes what has arrived. An event's time is that of its epoch's stage: from
the rows that Spark hands over to the manifest that says that its shard's changes are written.
About five minutes, 8 GB of disk.
"""

import gc
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pyarrow as pa

from benchmarks.measure import publish, row
from catchwater import Context, Keyed, Out, function
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.pack import pack, shard_labels
from catchwater.pipeline.rows import DRIVER, EVENTS, HEAD, Head, Manifest, Row
from catchwater.pipeline.run.artefact import publish as publish_code
from catchwater.pipeline.shard_epoch import Stage, run_stage
from catchwater.state.roll import EMPTY, Position

KEYS = int(os.environ.get("KEYS", "2000000"))
STATE_BYTES = 1_000
LOAD_EVENTS = 50_000
EVENTS_PER_EPOCH = 1_000
SHARDS = 4
SECONDS = 60.0
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
    """A kilobyte of what is known of a customer."""

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
        s.known = s.known or (e.page * (STATE_BYTES // len(e.page) + 1))[:STATE_BYTES]
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
        disk = sum(path.stat().st_size for path in Path(name, "local").rglob("*.mdb"))
        print(f"{KEYS:,} keys, {disk / 1e9:.2f} GB of local state", flush=True)
        for turn in range(ROUNDS):
            sample = [operator.run(operator.some(EVENTS_PER_EPOCH)) for _ in range(50)]
            sustained = EVENTS_PER_EPOCH / statistics.median(sample)
            waited = sorted(operator.at_rate(LOAD * sustained, SECONDS))
            p99.append(waited[int(0.99 * len(waited))])
            p50 = statistics.median(waited)
            print(f"round {turn + 1}: {sustained:,.0f} events/s sustained; at {LOAD:.0%} "
                  f"p50 {p50:.1f} ms, p99 {p99[-1]:.1f} ms", flush=True)  # fmt: skip
    claim = f"event in the operator, p99 at {LOAD:.0%} load, {disk / 1e9:.1f} GB of state"
    targets = [TARGET_MS] * len(p99)
    publish("operator", [row(claim, "ms", p99, "the target", targets, target=1.0, better="lower")])


if __name__ == "__main__":
    main()
