"""Consumers far behind: how fast they are served from segments, and what producers feel of them.

A history of batches of 900 KB is packed into segments, and fallen out of the cache of the tail,
which is small here; Apache Kafka has the same batches in its files, so both read from the page
cache. A reader asks for 1 MB at a time, from the first offset on, one request after the other, as
consumers do. For that our quota of all lagging consumers (256 MiB/s) is switched off.

Then, with that quota as it is by default, a paced producer runs alone and beside three such readers
who never stop. Broker and producer have one processor and the readers the other one, so that it is
the broker that is measured and not the scheduler.
"""

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

from benchmarks.bench_replay_live import Felt, Traffic, high_watermark, phase
from benchmarks.kafka_jars import KAFKA_VERSION
from benchmarks.kafka_peer import apache_kafka
from benchmarks.load import Connection, create_topic, fetch_request, produce_request
from benchmarks.measure import Row, cpu_seconds, publish, row
from benchmarks.our_broker import catchwater_broker

ROUNDS = int(os.environ.get("ROUNDS", "5"))
HISTORY, BATCHES, RECORDS = "history", 600, 900
READERS = 3
_SPAWN = multiprocessing.get_context("spawn")  # this process has threads
START_S = 4.0
PHASE_S = 15.0
NO_LIMIT = "-1"
DEFAULT = f"Apache Kafka {KAFKA_VERSION}, default (no sync)"


def fill(bootstrap: str) -> None:
    """Write the history."""
    create_topic(bootstrap, HISTORY, 1)
    connection = Connection(bootstrap)
    request = produce_request(HISTORY, 0, 1000, RECORDS)
    for _ in range(BATCHES):
        connection.call(request)
    connection.close()


def read(connection: Connection, nth: int) -> int:
    """Fetch the nth batch of the history; its size in bytes."""
    answer = connection.call(fetch_request(HISTORY, 0, nth * RECORDS, 1 << 20))
    assert high_watermark(answer) == BATCHES * RECORDS
    assert len(answer) > RECORDS * 1000, "the batch is there"
    return len(answer)


def drained(bootstrap: str, pid: int) -> tuple[float, float]:
    """(MB/s, broker CPU seconds a GB) of a reader who reads all of it once."""
    connection = Connection(bootstrap)
    before, began = cpu_seconds(pid), time.perf_counter()
    size = sum(read(connection, nth) for nth in range(BATCHES))
    took, used = time.perf_counter() - began, cpu_seconds(pid) - before
    connection.close()
    return size / took / 1e6, used / size * 1e9


def _drain(bootstrap: str, processors: set[int]) -> None:
    os.sched_setaffinity(0, processors)
    connection = Connection(bootstrap, 120.0)
    for nth in count():
        read(connection, nth % BATCHES)


@contextmanager
def readers(bootstrap: str, processors: set[int]) -> Iterator[None]:
    """Three who read the history over and over."""
    started = [
        _SPAWN.Process(target=_drain, args=(bootstrap, processors), daemon=True)
        for _ in range(READERS)
    ]
    for each in started:
        each.start()
    try:
        yield
    finally:
        for each in started:
            each.kill()
            each.join()


def felt(bootstrap: str, processors: set[int]) -> tuple[list[float], list[float]]:
    """Milliseconds, p99 of acknowledgements in each round: quiet, and beside the readers."""
    create_topic(bootstrap, "live", 1)
    traffic = Traffic(bootstrap)
    quiet, busy = [], []

    def p99() -> float:
        during: Felt = phase(traffic, lambda: 0, partial(time.sleep, PHASE_S))
        return during.p99(during.acknowledged)

    try:
        for turn in range(ROUNDS + 1):
            alone = p99()
            with readers(bootstrap, processors):
                time.sleep(START_S)
                beside = p99()
            if turn:
                quiet.append(alone)
                busy.append(beside)
    finally:
        traffic.close()
    return quiet, busy


def rates() -> list[Row]:
    """One reader, without our quota, beside Kafka."""
    with (
        catchwater_broker(
            catchwater_lagging_quota_bytes_per_second=NO_LIMIT,
            catchwater_pack_interval_ms="1000",
            catchwater_cache_bytes=str(8 << 20),
        ) as ours,
        apache_kafka() as (theirs, their_pid),
    ):
        taken: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
        brokers = {"ours": (ours.bootstrap, ours.pid), "theirs": (theirs, their_pid)}
        for bootstrap, _ in brokers.values():
            fill(bootstrap)
        time.sleep(10)  # packed
        for turn in range(ROUNDS + 3):
            for name, broker in brokers.items():
                found = drained(*broker)
                if turn >= 3:  # till then the JVM compiles
                    taken[name].append(found)
    claim = "lagging fetch from segments, 1 MB at a time"
    (speed, cpu), (their_speed, their_cpu) = (zip(*taken[name], strict=True) for name in taken)
    return [
        row(claim, "MB/s", list(speed), DEFAULT, list(their_speed), target=1.0),
        row(claim, "CPU s/GB", list(cpu), DEFAULT, list(their_cpu), better="lower"),
    ]


def main() -> None:
    """Rates, then what a producer feels at ours and at Kafka; publish."""
    rows = rates()
    processors = os.sched_getaffinity(0)
    if len(processors) < 2:
        raise SystemExit("error: this experiment gives broker and readers processors of their own")
    first, *rest = sorted(processors)
    claim = f"produce p99 while {READERS} lagging consumers drain"
    os.sched_setaffinity(0, {first})  # and whatever is started from here
    try:
        with catchwater_broker(
            catchwater_pack_interval_ms="1000", catchwater_cache_bytes=str(8 << 20)
        ) as ours:
            fill(ours.bootstrap)
            time.sleep(10)
            quiet, busy = felt(ours.bootstrap, set(rest))
        rows.append(row(f"Catchwater: {claim}", "ms", busy, "the same, quiet", quiet,
                        target=1.2, better="lower"))  # fmt: skip
        with apache_kafka() as (theirs, _):
            fill(theirs)
            quiet, busy = felt(theirs, set(rest))
        rows.append(row(f"{DEFAULT}: {claim}", "ms", busy, "the same, quiet", quiet,
                        better="lower"))  # fmt: skip
    finally:
        os.sched_setaffinity(0, processors)
    publish("lagging", rows)


if __name__ == "__main__":
    main()
