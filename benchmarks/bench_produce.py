"""Produce and tail fetch beside Apache Kafka, with its default durability and a sync per batch.

The same pre-encoded requests go to all three. Ours always syncs before it acknowledges, so the
fair peer is Kafka with `log.flush.interval.messages=1`; its default is shown beside it. A JVM
compiles what it runs for up to a minute: rounds count only once no broker's CPU per request falls
any more, or after SETTLE_S. SHAPES="100 B,1 MB" chooses some of the rows.

Instructions are of user code, counted by valgrind for `request_cost`: log, connection and client in
one process, 40 requests at once, records validated and metrics on.
"""

import os
import shutil
import time
from collections.abc import Callable
from functools import partial

from benchmarks.kafka_jars import KAFKA_VERSION
from benchmarks.kafka_peer import apache_kafka
from benchmarks.load import (
    Result,
    create_topic,
    delete_topic,
    drain,
    fetch_request,
    produce_request,
    pump,
)
from benchmarks.measure import Row, cpu_seconds, full_page_cache, publish, row
from benchmarks.our_broker import catchwater_broker
from benchmarks.request_cost import instructions

SECONDS = 2.0
ROUNDS = int(os.environ.get("ROUNDS", "5"))
WARM_UP = 3
"""Turns that are not counted, at the least."""
SETTLE_S = 90.0
SETTLED = 1.05
"""A turn's cost that is at most this much below the one before it: the code is compiled."""
PEERS = {
    "default": f"Apache Kafka {KAFKA_VERSION}, default (no sync)",
    "flush": f"Apache Kafka {KAFKA_VERSION}, sync per batch",
}
DELETING = {"log.segment.delete.delay.ms": "1000"}
"""What a shape has written, tens of GB, goes before the next."""
TOPIC = "bench"
TAIL_TOPIC = "bench-tail"
SHAPES = {
    "produce, 100 B requests, 80 in flight": (100, 1, 80),
    "produce, 64 KB requests, 8 in flight": (1000, 64, 8),
    "produce, 900 KB requests, 4 in flight": (1000, 900, 4),
}
CHOSEN = os.environ.get("SHAPES", "")
FETCH = "fetch from memory, 1 MB, 4 in flight"
TARGETS = {
    ("100 B", "requests/s"): (1.3, 5.0),
    ("100 B", "CPU s/M requests"): (0.7, 0.7),
    ("64 KB", "MB/s"): (1.1, 2.5),
    ("900 KB", "MB/s"): (1.0, 2.0),
    ("1 MB", "MB/s"): (1.2, 1.2),
    ("1 MB", "CPU s/GB"): (0.8, 0.8),
}
"""Against Kafka's default, and against its sync per batch."""
COUNTED = "produce, 100 B"
MOST_INSTRUCTIONS = 140_000


def figures(run: Callable[[], Result], pid: int, by_bytes: bool) -> tuple[float, float]:
    """(MB/s or requests/s, broker CPU seconds per GB or per million requests)."""
    before = cpu_seconds(pid)
    result = run()
    used = cpu_seconds(pid) - before
    if by_bytes:
        return result.bytes / result.seconds / 1e6, used / result.bytes * 1e9
    return result.requests / result.seconds, used / result.requests * 1e6


def compare(
    claim: str, runs: dict[str, tuple[Callable[[], Result], int]], by_bytes: bool
) -> list[Row]:
    """Alternate over all brokers; a row of throughput and a row of CPU for each peer."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    with full_page_cache():  # what the last shape wrote is deleted, and its pages are gone
        settle(runs, by_bytes)
        for _ in range(ROUNDS):
            for name, (run, pid) in runs.items():
                taken[name].append(figures(run, pid, by_bytes))
    unit, cost = ("MB/s", "CPU s/GB") if by_bytes else ("requests/s", "CPU s/M requests")
    rows = []
    for number, (name, title) in enumerate(PEERS.items()):
        for column, (label, better) in enumerate(((unit, "higher"), (cost, "lower"))):
            ours = [each[column] for each in taken["ours"]]
            theirs = [each[column] for each in taken[name]]
            aims = next((aims for (shape, of), aims in TARGETS.items()
                         if shape in claim and of == label), None)  # fmt: skip
            rows.append(row(claim, label, ours, title, theirs,
                            target=aims and aims[number], better=better))  # fmt: skip
    return rows


def settle(runs: dict[str, tuple[Callable[[], Result], int]], by_bytes: bool) -> None:
    """Run in turn until no broker's cost falls any more."""
    began = time.monotonic()
    costs: dict[str, list[float]] = {name: [] for name in runs}
    while time.monotonic() < began + SETTLE_S:
        for name, (run, pid) in runs.items():
            costs[name].append(figures(run, pid, by_bytes)[1])
        turns = len(costs["ours"])
        if turns > WARM_UP and all(each[-2] <= each[-1] * SETTLED for each in costs.values()):
            return


def is_chosen(claim: str) -> bool:
    """Whether this claim is to be measured now."""
    return not CHOSEN or any(each.strip() in claim for each in CHOSEN.split(","))


def counted() -> list[Row]:
    """The instructions of a small request, where there is a valgrind."""
    if not is_chosen(COUNTED) or shutil.which("valgrind") is None:
        return []
    found = [instructions(COUNTED)]
    return [row(f"{COUNTED} requests", "instructions", found, "the target", [MOST_INSTRUCTIONS],
                target=1.0, better="lower")]  # fmt: skip


def main() -> None:
    """Start the three brokers, run every shape, publish."""
    rows = counted()
    with (
        catchwater_broker(catchwater_delete_grace_ms="1000") as ours,
        apache_kafka(DELETING) as (default, default_pid),
        apache_kafka(DELETING, flush_every_message=True) as (flush, flush_pid),
    ):
        brokers = {
            "ours": (ours.bootstrap, ours.pid),
            "default": (default, default_pid),
            "flush": (flush, flush_pid),
        }
        for number, (claim, (value_bytes, records, in_flight)) in enumerate(SHAPES.items()):
            if not is_chosen(claim):
                continue
            topic = f"{TOPIC}-{number}"
            for bootstrap, _ in brokers.values():
                create_topic(bootstrap, topic, 1)
            request = produce_request(topic, 0, value_bytes, records)
            runs = {
                name: (partial(pump, bootstrap, request, SECONDS, in_flight), pid)
                for name, (bootstrap, pid) in brokers.items()
            }
            rows += compare(claim, runs, by_bytes=records > 1)
            for bootstrap, _ in brokers.values():
                delete_topic(bootstrap, topic)
        if is_chosen(FETCH):
            rows += fetched(brokers)
    publish("produce", rows, is_whole=not CHOSEN)


def fetched(brokers: dict[str, tuple[str, int]]) -> list[Row]:
    """What was just written, read from memory."""
    for bootstrap, _ in brokers.values():
        create_topic(bootstrap, TAIL_TOPIC, 1)
        pump(bootstrap, produce_request(TAIL_TOPIC, 0, 1000, 900), 0.05, 4)
    request = fetch_request(TAIL_TOPIC, 0, 0, 1 << 20)
    runs = {
        name: (partial(drain, bootstrap, request, SECONDS, 4), pid)
        for name, (bootstrap, pid) in brokers.items()
    }
    return compare(FETCH, runs, by_bytes=True)


if __name__ == "__main__":
    main()
