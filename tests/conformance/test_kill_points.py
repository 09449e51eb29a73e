"""kill -9 before every kind of system call: what was acknowledged is there, where it was told.

An idempotent producer writes to two partitions with up to five requests in flight, a group commits
its position, transactions are committed and aborted (`loads.py`). A first run is counted by
strace: how often each thread makes each system call that writes, syncs, names, opens or sends.
Then the broker is killed right before the Nth of them, the Ns spread over all, starting up
included; the rest of the points are plain times. After each restart the producer repeats what was
not answered, with the sequence numbers it had. Packing, WAL rolls and catalog commits run at a pace
that makes the points hit them too. Every tenth restart, and at the end, everything is read.

POINTS (24) says how many points; `make kill-points` takes 300.
"""

import base64
import os
import random
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.conformance.killing import PATIENCE_S, Broker, Tracer, trace
from tests.conformance.loads import Committer, Producer, Transactor, create_topics

POINTS = int(os.environ.get("POINTS", "24"))
AT_A_TIME = 0.25
"""The share of points that are times, not calls."""
VERIFY_EVERY = 10
COUNTED_S, COUNTED = 1.5, 300
LONGEST_RUN_S = 0.12
LONGEST_TRACED_S, LEAST_TRACED = 2.5, 600
"""A traced run ends by its kill, or when it has had the time and done twice what was counted."""
SYSCALLS = (
    *("write", "writev", "pwrite64", "pwritev", "pwritev2", "fdatasync", "fsync", "ftruncate"),
    *("rename", "renameat", "renameat2", "unlink", "unlinkat", "openat", "sendto", "sendmsg"),
)
BUSY = {
    "catchwater.pack.interval.ms": "40",
    "catchwater.pack.min.bytes": "1",
    "catchwater.pack.backlog.bytes": "1",
    "catchwater.wal.segment.bytes": "65536",
    "catchwater.delete.grace.ms": "100",
    "catchwater.retention.interval.ms": "50",
    "log.retention.ms": "-1",
}
"""Packs, rolls and deletes all the time, so that the points hit that too."""


class Point(NamedTuple):
    """Kill before a thread's `number`-th call of `syscall`; no call: at some time."""

    syscall: str = ""
    number: int = 0


def points(counts: Counter[str], wanted: int, noise: random.Random) -> list[Point]:
    """So many points: every kind of call as often as another, over all it was counted."""
    chosen: list[Point] = []
    left = wanted - round(wanted * AT_A_TIME) if counts else 0
    for kinds, (syscall, count) in enumerate(sorted(counts.items(), key=lambda c: c[1])):
        share = min(count, left // (len(counts) - kinds))
        left -= share
        chosen += [Point(syscall, 1 + index * count // share) for index in range(share)]
    chosen += [Point()] * (wanted - len(chosen))
    noise.shuffle(chosen)
    return chosen


def tracing_to(point: Point, home: Path) -> Callable[[int], Tracer]:
    kill = f"inject={point.syscall}:signal=SIGKILL:when={point.number}"
    return lambda pid: trace(
        pid, "-o", str(home / "strace"), "-e", f"trace={point.syscall}", "-e", kill
    )


class Load:
    """What runs against a broker until it is killed, and remembers what it was told."""

    def __init__(self) -> None:
        self.producer = Producer()
        self.all = (self.producer, Committer(), Transactor())

    def run(self, broker: Broker, longest_s: float, least: int = 0) -> bool:
        """Until the broker is gone, or so long and so much more was told; whether it was gone."""
        told = len(self.producer.acknowledged)
        until_s = time.monotonic() + PATIENCE_S
        threads = [threading.Thread(target=load.run, args=(broker.port,)) for load in self.all]
        for thread in threads:
            thread.start()
        threads[0].join(longest_s)
        while threads[0].is_alive() and len(self.producer.acknowledged) - told < least:
            assert time.monotonic() < until_s, "it stands still"
            threads[0].join(0.1)
        is_gone = not threads[0].is_alive()
        broker.kill()
        for thread in threads:
            thread.join()
        return is_gone

    def verify(self, port: int) -> None:
        for load in self.all:
            load.verify(port)


def count_calls(broker: Broker, load: Load, home: Path) -> Counter[str]:
    """How often the busiest thread made each system call, from its start to its kill."""
    file = home / "calls"
    wanted = ",".join(SYSCALLS)
    tracer = broker.start(lambda pid: trace(pid, "-o", str(file), "-e", f"trace={wanted}"))
    load.run(broker, COUNTED_S, COUNTED)
    assert tracer is not None
    tracer.wait(PATIENCE_S)
    by_thread = Counter(re.findall(r"^(\d+) +(\w+)\(", file.read_text(), re.MULTILINE))
    most: Counter[str] = Counter()
    for (_, syscall), count in by_thread.items():
        most[syscall] = max(most[syscall], count)
    return most


@pytest.mark.parametrize("seed", [2026])
def test_what_was_acknowledged_survives_every_kill(tmp_path: Path, seed: int) -> None:
    survives_every_kill(tmp_path, seed, BUSY, POINTS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2027])
def test_what_was_acknowledged_and_sealed_does_too(tmp_path: Path, seed: int) -> None:
    keys = tmp_path / "keys"
    keys.touch(0o600)
    keys.write_text(f"k = {base64.b64encode(os.urandom(32)).decode()}\n")
    settings = BUSY | {"catchwater.encryption.keys": f"file:{keys}"}
    survives_every_kill(tmp_path, seed, settings, max(POINTS // 3, 20))


def survives_every_kill(tmp_path: Path, seed: int, settings: dict[str, str], most: int) -> None:
    noise = random.Random(seed)
    broker = Broker(tmp_path, settings)
    load = Load()
    hits: Counter[bool] = Counter()
    try:
        broker.start()
        create_topics(broker.port)
        broker.kill()
        has_strace = shutil.which("strace") is not None
        counts = count_calls(broker, load, tmp_path) if has_strace else Counter()
        for number, point in enumerate(points(counts, most, noise)):
            tracer = broker.start(tracing_to(point, tmp_path) if point.syscall else None)
            longest_s = LONGEST_TRACED_S if tracer else noise.uniform(0, LONGEST_RUN_S)
            was_hit = load.run(broker, longest_s, LEAST_TRACED if tracer else 0)
            if tracer is not None:
                tracer.wait(PATIENCE_S)
                # A call that never comes (no file was rolled, say) is a kill at that time instead.
                hits[was_hit] += 1
            if number % VERIFY_EVERY == VERIFY_EVERY - 1:
                broker.start()
                load.verify(broker.port)
                broker.kill()
        broker.start()
        load.verify(broker.port)
        assert len(load.producer.acknowledged) > most
        assert hits[True] >= 2 * hits[False], "strace is to kill, not to watch"
    finally:
        broker.close()
    ended = sum(outcome is not None for outcome in load.all[-1].outcomes.values())
    print(f"{len(load.producer.acknowledged)} batches acknowledged, {ended} transactions ended")
    print(f"{most} points, {dict(counts)}; before their call {hits[True]}, at some time the rest")
    assert b"Traceback" not in broker.log_file.read_bytes()
