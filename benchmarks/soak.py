"""MINUTES of steady load: what a broker holds on to must not grow.

Producers connect, write a megabyte, read it back and go, several times a second; the log is
packed, kept for a short while and deleted all along. Once the first retention has passed, resident
memory, file descriptors, threads, and objects and catalog rows per GiB kept are sampled; each must
be flat: its trend over the rest of the run, as a straight line, less than its limit.

    make soak MINUTES=10
"""

import json
import os
import sqlite3
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.load import (
    Connection,
    create_topic,
    fetch_request,
    frame_of_batch,
    produce_error,
)
from benchmarks.measure import RESULTS, machine
from benchmarks.our_broker import Broker, catchwater_broker
from catchwater.wire.arrow import encode_batch

MINUTES = float(os.environ.get("MINUTES", "10"))
RETENTION_S = 10.0
WARM_UP_S = max(2.5 * RETENTION_S, MINUTES * 60 / 4)
PARTITIONS = 4
BURST_REQUESTS = 16
RECORDS = 64
BURSTS_PER_S = 6.0
SAMPLE_S = 0.5
TOPIC = "soak"
SETTINGS = {
    "log_retention_ms": str(int(RETENTION_S * 1000)),
    "catchwater_retention_interval_ms": "1000",
    "catchwater_delete_grace_ms": "1000",
    "catchwater_pack_interval_ms": "1000",
    "catchwater_pack_min_bytes": "4000000",
    "catchwater_pack_backlog_bytes": "4000000",
    "catchwater_wal_segment_bytes": "8000000",
    "catchwater_cache_bytes": "33554432",
}


@dataclass(frozen=True)
class Limit:
    """What may be left of growth: a share of the mean, or an absolute amount if that is more."""

    name: str
    share: float
    amount: float


LIMITS = (
    Limit("resident memory, MB", 0.10, 8.0),
    Limit("file descriptors", 0.0, 4.0),
    Limit("threads", 0.0, 2.0),
    Limit("objects per GiB kept", 0.20, 0.0),
    Limit("catalog rows per GiB kept", 0.20, 0.0),
)


@dataclass
class Finding:
    """One quantity: its mean, its growth over the measured time, and what was allowed."""

    name: str
    mean: float
    growth: float
    allowed: float

    @property
    def is_flat(self) -> bool:
        return self.growth <= self.allowed


def burst(bootstrap: str, partition: int, written: list[int]) -> None:
    """One client's life: connect, write a megabyte, read its end, disconnect."""
    value = os.urandom(500) + bytes(500)
    now_ms = int(time.time() * 1000)
    batch = encode_batch([(None, value, now_ms, ())] * RECORDS)
    request = frame_of_batch(TOPIC, partition, batch)
    connection = Connection(bootstrap)
    connection.socket.sendall(request * BURST_REQUESTS)
    for _ in range(BURST_REQUESTS):
        error = produce_error(connection.answer())
        if error:
            raise RuntimeError(f"Produce was answered with error {error}.")
        written[partition] += RECORDS
    last = written[partition] - RECORDS
    connection.call(fetch_request(TOPIC, partition, last, 1 << 20))
    connection.close()


def sample(broker: Broker) -> tuple[float, ...]:
    """The broker's figures now, in the order of `LIMITS`."""
    process = Path(f"/proc/{broker.pid}")
    status = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    memory_mb = int(status["VmRSS"].split()[0]) * 1024 / 1e6
    threads = int(status["Threads"])
    descriptors = len(list((process / "fd").iterdir()))
    with sqlite3.connect(f"file:{broker.data}/catalog.db?mode=ro", uri=True) as db:
        kept = db.execute("SELECT coalesce(sum(bytes), 0) FROM partition").fetchone()[0]
        tables = [n for (n,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = sum(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)
        objects = db.execute("SELECT count(*) FROM object").fetchone()[0]
    db.close()
    gib = max(kept, 1) / 2**30
    return memory_mb, float(descriptors), float(threads), objects / gib, rows / gib


def growth(times_s: list[float], values: list[float]) -> float:
    """How much a straight line through the values rises from the first time to the last."""
    slope, _ = statistics.linear_regression(times_s, values)
    return slope * (times_s[-1] - times_s[0])


def soak(broker: Broker) -> list[Finding]:
    """Load the broker for MINUTES; what its figures did after the warm-up."""
    create_topic(broker.bootstrap, TOPIC, PARTITIONS)
    written = [0] * PARTITIONS
    times_s: list[float] = []
    samples: list[tuple[float, ...]] = []
    began_s = time.monotonic()
    bursts = 0
    while (now_s := time.monotonic() - began_s) < WARM_UP_S + MINUTES * 60:
        if now_s < bursts / BURSTS_PER_S:
            time.sleep(bursts / BURSTS_PER_S - now_s)
        burst(broker.bootstrap, bursts % PARTITIONS, written)
        bursts += 1
        if now_s > WARM_UP_S + len(samples) * SAMPLE_S:
            times_s.append(now_s)
            samples.append(sample(broker))
    Console().print(f"{bursts} connections, {sum(written)} records, {len(samples)} samples")
    findings = []
    for limit, values in zip(LIMITS, zip(*samples, strict=True), strict=True):
        mean = statistics.fmean(values)
        allowed = max(limit.share * mean, limit.amount)
        findings.append(Finding(limit.name, mean, growth(times_s, list(values)), allowed))
    return findings


def main() -> None:
    """Soak, print, publish; exit 1 if anything grew."""
    with catchwater_broker(**SETTINGS) as broker:
        findings = soak(broker)
    table = Table(
        "quantity", "mean", "growth", "allowed", "verdict", title=f"soak, {MINUTES:g} min"
    )
    for each in findings:
        table.add_row(
            each.name, f"{each.mean:,.1f}", f"{each.growth:+,.2f}", f"{each.allowed:,.2f}",
            "flat" if each.is_flat else "GROWS",
        )  # fmt: skip
    Console(width=110).print(table)
    result = {"machine": machine(), "minutes": MINUTES, "rows": [asdict(each) for each in findings]}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "soak.json").write_text(json.dumps(result, indent=1) + "\n")
    if not all(each.is_flat for each in findings):
        sys.exit("verdict: something grows")


if __name__ == "__main__":
    main()
