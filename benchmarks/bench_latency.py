"""What an acknowledgement takes at a steady rate, beside Apache Kafka.

One librdkafka producer, acks=all, linger 5 ms, records of 1 KB in turn to 100 partitions. What is
timed, for each SAMPLE-th record, is from `produce()` to its delivery report. The same rate goes to
all three brokers in turn, at 1, 10 and 50 MB/s. Ours syncs before it acknowledges, as Kafka does
with `log.flush.interval.messages=1` only.
"""

import os
import statistics
import time

from confluent_kafka import KafkaError, Message, Producer

from benchmarks.bench_produce import PEERS
from benchmarks.kafka_peer import apache_kafka
from benchmarks.load import create_topic
from benchmarks.measure import Row, publish, row
from benchmarks.our_broker import catchwater_broker

SECONDS = float(os.environ.get("SECONDS", "10"))
ROUNDS = int(os.environ.get("ROUNDS", "5"))
WARM_UP = 2
PARTITIONS = 100
RECORD_BYTES = 1_000
SAMPLE = 7
"""Of so many records one is timed; prime to the partitions, so that each of them is."""
RATES_MB_S = (1, 10, 50)
TURN_S = 0.005
TARGETS = {"default": 1.5, "flush": 0.5}
TOPIC = "bench"


def latencies(bootstrap: str, rate_mb_s: float, seconds: float) -> list[float]:
    """Milliseconds from `produce()` to the delivery report, of one record in SAMPLE, sorted."""
    taken: list[float] = []
    failed: list[KafkaError] = []

    def timed(sent_s: float, error: KafkaError | None, message: Message) -> None:
        if error:
            failed.append(error)
        taken.append((time.perf_counter() - sent_s) * 1000)

    producer = Producer({
        "bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5,
        "queue.buffering.max.messages": 1_000_000, "queue.buffering.max.kbytes": 1 << 20,
    })  # fmt: skip
    value = os.urandom(RECORD_BYTES)
    began, sent = time.perf_counter(), 0
    while (passed := time.perf_counter() - began) < seconds:
        due = int(passed * rate_mb_s * 1e6 / RECORD_BYTES)
        while sent < due:
            if sent % SAMPLE:
                producer.produce(TOPIC, value, partition=sent % PARTITIONS)
            else:
                at_s = time.perf_counter()
                producer.produce(
                    TOPIC, value, partition=sent % PARTITIONS,
                    on_delivery=lambda error, message, at_s=at_s: timed(at_s, error, message),
                )  # fmt: skip
            sent += 1
        producer.poll(TURN_S)
    if producer.flush(60) or failed:
        raise RuntimeError(f"{bootstrap} did not take every record: {failed[:1]}")
    return sorted(taken)


def main() -> None:
    """Every rate at every broker in turn, publish."""
    with (
        catchwater_broker() as ours,
        apache_kafka() as (default, _),
        apache_kafka(flush_every_message=True) as (flush, _),
    ):
        brokers = {"ours": ours.bootstrap, "default": default, "flush": flush}
        for bootstrap in brokers.values():
            create_topic(bootstrap, TOPIC, PARTITIONS)
        rows: list[Row] = []
        for rate in RATES_MB_S:
            p50: dict[str, list[float]] = {name: [] for name in brokers}
            p99: dict[str, list[float]] = {name: [] for name in brokers}
            for turn in range(WARM_UP + ROUNDS):
                for name, bootstrap in brokers.items():
                    taken = latencies(bootstrap, rate, SECONDS)
                    if turn >= WARM_UP:
                        p50[name].append(statistics.median(taken))
                        p99[name].append(taken[len(taken) * 99 // 100])
            for quantile, found in (("p50", p50), ("p99", p99)):
                print(f"{rate} MB/s, {quantile}: {found}", flush=True)
                rows += [
                    row(
                        f"acknowledgement at {rate} MB/s, 100 partitions, {quantile}", "ms",
                        found["ours"], title, found[name],
                        target=TARGETS[name] if quantile == "p99" else None, better="lower",
                    )
                    for name, title in PEERS.items()
                ]  # fmt: skip
    publish("latency", rows)


if __name__ == "__main__":
    main()
