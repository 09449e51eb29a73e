"""Produce and tail fetch beside Apache Kafka, with its default durability and a sync per batch.

The same pre-encoded requests go to all three. Ours always syncs before it acknowledges, so the
fair peer is Kafka with `log.flush.interval.messages=1`; its default is shown beside it.
"""

from collections.abc import Callable
from functools import partial

from benchmarks.kafka_jars import KAFKA_VERSION
from benchmarks.kafka_peer import apache_kafka
from benchmarks.load import (
    Result,
    create_topic,
    drain,
    fetch_request,
    produce_request,
    pump,
)
from benchmarks.measure import Row, cpu_seconds, publish, row
from benchmarks.our_broker import catchwater_broker

SECONDS = 2.0
ROUNDS = 5
WARM_UP = 3
"""Turns that are not counted: a JVM takes seconds to compile what it runs."""
PEERS = {
    "default": f"Apache Kafka {KAFKA_VERSION}, default (no sync)",
    "flush": f"Apache Kafka {KAFKA_VERSION}, sync per batch",
}
TOPIC = "bench"
TAIL_TOPIC = "bench-tail"
SHAPES = {
    "produce, 100 B requests, 80 in flight": (100, 1, 80),
    "produce, 64 KB requests, 8 in flight": (1000, 64, 8),
    "produce, 900 KB requests, 4 in flight": (1000, 900, 4),
}
FETCH = "fetch from memory, 1 MB, 4 in flight"


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
    for turn in range(WARM_UP + ROUNDS):
        for name, (run, pid) in runs.items():
            measured = figures(run, pid, by_bytes)
            if turn >= WARM_UP:
                taken[name].append(measured)
    unit, cost = ("MB/s", "CPU s/GB") if by_bytes else ("requests/s", "CPU s/M requests")
    rows = []
    for name, title in PEERS.items():
        for column, (label, better) in enumerate(((unit, "higher"), (cost, "lower"))):
            ours = [each[column] for each in taken["ours"]]
            theirs = [each[column] for each in taken[name]]
            rows.append(row(claim, label, ours, title, theirs, better=better))
    return rows


def main() -> None:
    """Start the three brokers, run every shape, publish."""
    with (
        catchwater_broker() as ours,
        apache_kafka() as (default, default_pid),
        apache_kafka(flush_every_message=True) as (flush, flush_pid),
    ):
        brokers = {
            "ours": (ours.bootstrap, ours.pid),
            "default": (default, default_pid),
            "flush": (flush, flush_pid),
        }
        for bootstrap, _ in brokers.values():
            create_topic(bootstrap, TOPIC, 1)
        rows: list[Row] = []
        for claim, (value_bytes, records, in_flight) in SHAPES.items():
            request = produce_request(TOPIC, 0, value_bytes, records)
            runs = {
                name: (partial(pump, bootstrap, request, SECONDS, in_flight), pid)
                for name, (bootstrap, pid) in brokers.items()
            }
            rows += compare(claim, runs, by_bytes=records > 1)
        for bootstrap, _ in brokers.values():
            create_topic(bootstrap, TAIL_TOPIC, 1)
            pump(bootstrap, produce_request(TAIL_TOPIC, 0, 1000, 900), 0.05, 4)
        request = fetch_request(TAIL_TOPIC, 0, 0, 1 << 20)
        runs = {
            name: (partial(drain, bootstrap, request, SECONDS, 4), pid)
            for name, (bootstrap, pid) in brokers.items()
        }
        rows += compare(FETCH, runs, by_bytes=True)
    publish("produce", rows)


if __name__ == "__main__":
    main()
