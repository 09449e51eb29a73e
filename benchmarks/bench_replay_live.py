"""Three full replays beside live traffic: what producers and tail readers feel of them.

A paced producer and a reader at the tail run first alone, then while three Spark jobs read a cold
history from the beginning, each on its own. The same on Apache Kafka with Spark's connector. So
that it is the broker that is measured and not the scheduler, broker, producer and reader have one
processor and the Sparks the other ones, in both experiments and both phases alike. Cold means that
the page cache was told to forget the broker's files before the replays begin.

Bytes out, beyond those of the quiet phase, are set beside the bytes of the values replayed: for us
as our broker counts them, for Apache Kafka as what its process handed to `write` and its like
(`/proc/PID/io`), its log among it, which is the same in both phases. Not the same measure, and p99
swings from round to round with replays as without.
"""

import os
import re
import statistics
import struct
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.kafka_jars import KAFKA_VERSION
from benchmarks.kafka_peer import apache_kafka
from benchmarks.load import Connection, create_topic, fetch_request, produce_error, produce_request
from benchmarks.measure import Row, publish, row
from benchmarks.our_broker import catchwater_broker
from benchmarks.replay.records import Shape, fill
from benchmarks.replay.sessions import Session
from catchwater.wire.codecs import Codec

HISTORY = Shape(1000, Codec.NONE, 1_000_000)
REPLAYS = 3
LIVE = "live"
REQUEST_RECORDS, RECORD_BYTES = 64, 1000
RATE_MB_S = 5.0
QUIET_S = 20.0
ROUNDS = 3
ALLOWED_P99, ALLOWED_BYTES = 1.1, 0.01


@dataclass
class Felt:
    """What live traffic felt in one phase; seconds."""

    acknowledged: list[float] = field(default_factory=list)
    behind: list[float] = field(default_factory=list)
    broker_bytes: int = 0
    seconds: float = 0.0

    def p99(self, times: list[float]) -> float:
        """Milliseconds."""
        return statistics.quantiles(times, n=100)[98] * 1000


class Traffic:
    """A paced producer and a tail reader; `felt` is where they write down what they feel.

    Requests are answered one at a time, so a late answer delays the next request: the time of a
    request is counted from when it was due.
    """

    def __init__(self, bootstrap: str) -> None:
        self.felt = Felt()
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._due: dict[int, float] = {}
        self._pool = ThreadPoolExecutor(2, "traffic")
        self._running = [self._pool.submit(each) for each in (self._produce, self._follow)]

    def _produce(self) -> None:
        connection = Connection(self._bootstrap)
        request = produce_request(LIVE, 0, RECORD_BYTES, REQUEST_RECORDS)
        every_s = len(request) / (RATE_MB_S * 1e6)
        due = time.perf_counter()
        offset = 0
        while not self._stop.is_set():
            due += every_s
            time.sleep(max(due - time.perf_counter(), 0))
            offset += REQUEST_RECORDS
            self._due[offset] = due
            if error := produce_error(connection.call(request)):
                raise RuntimeError(f"{self._bootstrap} answered error {error}")
            self.felt.acknowledged.append(time.perf_counter() - due)
        connection.close()

    def _follow(self) -> None:
        connection = Connection(self._bootstrap)
        offset = 0
        while not self._stop.is_set():
            answer = connection.call(fetch_request(LIVE, 0, offset, 1 << 20))
            now = time.perf_counter()
            end = high_watermark(answer)
            for reached in range(offset + REQUEST_RECORDS, end + 1, REQUEST_RECORDS):
                self.felt.behind.append(now - self._due.pop(reached))
            offset = end
        connection.close()

    def close(self) -> None:
        self._stop.set()
        for each in self._running:
            each.result(30)
        self._pool.shutdown()


def high_watermark(answer: bytes) -> int:
    """Of the only partition in a Fetch v11 answer, which holds all records up to there."""
    at = 4 + 4 + 2 + 4 + 4  # correlation id, throttle, error, session, topics
    (name,) = struct.unpack_from(">h", answer, at)
    at += 2 + name + 4 + 4  # name, partitions, index
    error, watermark = struct.unpack_from(">hq", answer, at)
    if error:
        raise RuntimeError(f"the tail reader was answered error {error}")
    return int(watermark)


def counted_bytes(control_url: str) -> int:
    """Reply bytes that our broker says it has sent."""
    with urllib.request.urlopen(f"{control_url}/metrics") as page:
        found = re.search(rb"^catchwater_bytes_out_total (\S+)", page.read(), re.MULTILINE)
    assert found, "the metric exists from the start"
    return int(float(found[1]))


def written_bytes(pid: int) -> int:
    """Bytes a process has handed to the system to write, to files and sockets."""
    fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
    return int(fields["wchar"])


def forget(folder: Path) -> None:
    """Let the page cache drop the files, so that the next read is one from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fdatasync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def phase(traffic: Traffic, sent: Callable[[], int], run: Callable[[], object]) -> Felt:
    """What is felt while `run` runs."""
    traffic.felt = felt = Felt()
    before, start = sent(), time.perf_counter()
    run()
    felt.seconds = time.perf_counter() - start
    felt.broker_bytes = sent() - before
    return felt


def replay(sessions: list[Session], kind: str, bootstrap: str) -> None:
    """The whole history in each session, all at once."""
    with ThreadPoolExecutor(len(sessions)) as pool:
        asked = [
            pool.submit(session.ask, kind, "all columns", bootstrap, HISTORY.topic)
            for session in sessions
        ]
        answers = {each.result()["answer"] for each in asked}
    if len(answers) != 1:
        raise RuntimeError(f"the replays differ: {answers}")


def measure(
    bootstrap: str, sent: Callable[[], int], data: Path, kind: str, others: str
) -> list[tuple[Felt, Felt]]:
    """(quiet, with replays) for each round, after one that is not counted."""
    create_topic(bootstrap, LIVE, 1)
    with ExitStack() as stack:
        sessions = [
            Session(ours=kind == "ours", processors=others, cores=1) for _ in range(REPLAYS)
        ]
        for session in sessions:
            stack.callback(session.close)
        traffic = Traffic(bootstrap)
        stack.callback(traffic.close)
        rounds = []
        for turn in range(ROUNDS + 1):
            quiet = phase(traffic, sent, partial(time.sleep, QUIET_S))
            forget(data)
            busy = phase(traffic, sent, partial(replay, sessions, kind, bootstrap))
            if turn:
                rounds.append((quiet, busy))
    return rounds


def rows_of(name: str, rounds: list[tuple[Felt, Felt]], *, held: bool) -> list[Row]:
    """A phase with replays beside the quiet one before it; `held` to the targets, or not."""
    target = ALLOWED_P99 if held else None
    rows = []
    for what, times_of in (("produce", "acknowledged"), ("tail lag", "behind")):
        quiet, busy = (
            [f.p99(getattr(f, times_of)) for f in felt] for felt in zip(*rounds, strict=True)
        )
        claim = f"{name}: {what} p99 during {REPLAYS} cold replays"
        rows.append(row(claim, "ms", busy, "the same, quiet", quiet, target=target, better="lower"))
    replayed = HISTORY.records * HISTORY.value_bytes * REPLAYS
    sent = [
        max(busy.broker_bytes - quiet.broker_bytes / quiet.seconds * busy.seconds, 0) / 1e6
        for quiet, busy in rounds
    ]
    claim = f"{name}: bytes the broker sends for them"
    rows.append(
        row(claim, "MB", sent, "values replayed", [replayed / 1e6] * len(rounds),
            target=ALLOWED_BYTES if held else None, better="lower")
    )  # fmt: skip
    return rows


def main() -> None:
    """The experiment on ours, then on Apache Kafka."""
    processors = os.sched_getaffinity(0)
    if len(processors) < 2:
        raise SystemExit("error: this experiment gives brokers and Sparks processors of their own")
    first, *rest = sorted(processors)
    others = ",".join(map(str, rest))
    os.sched_setaffinity(0, {first})  # and whatever is started from here
    rows = []
    with catchwater_broker(catchwater_pack_interval_ms="2000") as broker:
        fill([broker.bootstrap], HISTORY)
        time.sleep(10)  # packed
        sent = partial(counted_bytes, broker.control)
        rows += rows_of(
            "Catchwater", measure(broker.bootstrap, sent, broker.data, "ours", others), held=True
        )
    with apache_kafka() as (bootstrap, pid):
        fill([bootstrap], HISTORY)
        data = _data_of(Path(f"/proc/{pid}/fd"))
        rounds = measure(bootstrap, partial(written_bytes, pid), data, "tuned", others)
        rows += rows_of(f"Apache Kafka {KAFKA_VERSION}, tuned connector", rounds, held=False)
    os.sched_setaffinity(0, processors)
    publish("replay_live", rows)


def _data_of(descriptors: Path) -> Path:
    """The folder above the log segments a broker has open."""
    for link in descriptors.iterdir():
        target = link.resolve()
        if target.suffix == ".log" and HISTORY.topic in target.parent.name:
            return target.parent.parent
    raise RuntimeError("Apache Kafka has no segment of the history open")


if __name__ == "__main__":
    main()
