"""One contestant over one topic, measured from outside.

Kafka stamps each alert when it gets it; one event in fifty gives an alert, so alerts tell how far
the contestant is. Rates are taken behind a warm-up, from alert to alert; CPU is that of the whole
process tree over the same time. Then the tree is killed, and a restart is timed to the first alert
that was not there before.
"""

import json
import os
import random
import signal
import subprocess
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition

from benchmarks.functions.peers import Contestant, Job
from benchmarks.load import NOW_MS, Connection, create_topic, frame_of_batch, produce_error
from catchwater.wire.arrow import encode_batch

PARTITIONS = 2
EVENTS_PER_ALERT = 50
PER_BATCH = 5_000
WARM_UP_S = 5.0
FIRST_ALERT_S = 400.0
"""Who is slow has one large micro-batch before its first alert, and one more before the next."""
QUIET_S = 2.0
NOT_LEADER = 6
LEADER_S = 30.0
"""So long may a broker take to lead what it has just made."""
_TICK_S = os.sysconf("SC_CLK_TCK")


@dataclass
class Figures:
    """What one run gave; `restore_s` from the start after kill -9 to the first new alert."""

    events_per_s: float
    cpu_s_per_million: float
    restore_s: float
    alerts: int
    twice: int
    """Alerts that Kafka got more than once, the kill included."""


def fill(bootstrap: str, topic: str, keys: int, events: int) -> None:
    """Payments of random cards in the order of their time, keyed by card, in two partitions.

    Every fiftieth is tiny and the next of the same card is large: that gives an alert.
    """
    create_topic(bootstrap, topic, PARTITIONS)
    draw = random.Random(keys)
    connection = Connection(bootstrap)
    waiting: list[list[tuple[bytes, bytes, int, tuple[()]]]] = [[] for _ in range(PARTITIONS)]
    card = 0
    for n in range(events):
        card = card if n % EVENTS_PER_ALERT == 1 else draw.randrange(keys)
        amount = {0: b"0.5", 1: b"900.0"}.get(n % EVENTS_PER_ALERT, b"20.25")
        key, at = b"card-%07d" % card, NOW_MS + n // 10
        value = b'{"card":"%s","id":"%d","at":%d,"amount":%s}' % (key, n, at, amount)
        # By the card, so that all events of one lie in one partition, as their producer would.
        group = waiting[card % PARTITIONS]
        group.append((key, value, at, ()))
        if len(group) == PER_BATCH:
            send(connection, topic, card % PARTITIONS, group)
            group.clear()
    for partition, group in enumerate(waiting):
        if group:
            send(connection, topic, partition, group)
    connection.close()


def send(connection: Connection, topic: str, partition: int, group: list) -> None:
    frame = frame_of_batch(topic, partition, encode_batch(group))
    deadline = time.monotonic() + LEADER_S
    while error := produce_error(connection.call(frame)):
        if error != NOT_LEADER or time.monotonic() > deadline:
            raise RuntimeError(f"the broker answered error {error} for {topic}-{partition}")
        time.sleep(0.1)


@dataclass
class Watch:
    """The alerts of one topic as they come: when Kafka got each, and its event's id."""

    bootstrap: str
    topic: str
    times_ms: list[int] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        settings = {"bootstrap.servers": self.bootstrap, "group.id": "watch"}
        self._consumer = Consumer({**settings, "isolation.level": "read_committed"})
        self._consumer.assign([TopicPartition(self.topic, 0, 0)])

    def drain(self) -> None:
        """Take all that was on its way when its sender died, open transactions included."""
        quiet_until = time.monotonic() + QUIET_S
        while time.monotonic() < quiet_until:
            before = len(self.ids)
            self.look()
            if len(self.ids) > before:
                quiet_until = time.monotonic() + QUIET_S

    def look(self) -> None:
        """Take what has come."""
        for message in self._consumer.consume(10_000, 0.2):
            if message.error() is None:
                self.times_ms.append(message.timestamp()[1])
                self.ids.append(json.loads(message.value())["id"])

    def close(self) -> None:
        self._consumer.close()


def _log(job: Job) -> Path:
    return job.folder.parent / f"{job.group}.log"


def said(job: Job) -> str:
    """The end of what a contestant has said."""
    return _log(job).read_text(errors="replace")[-3000:]


@contextmanager
def running(contestant: Contestant, job: Job) -> Iterator[list[int]]:
    """The contestant's processes, each the leader of a session; killed at the end."""
    job.folder.mkdir(parents=True, exist_ok=True)
    started = []
    with _log(job).open("ab") as log:
        for command, named in contestant.commands(job):
            environment = {**os.environ, **named}
            started.append(
                subprocess.Popen(
                    command, stdout=log, stderr=log, env=environment, start_new_session=True
                )
            )
    try:
        yield [process.pid for process in started]
    finally:
        for process in started:
            for pid in tree_of([process.pid]):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            process.wait()


def tree_of(leaders: list[int]) -> dict[int, list[str]]:
    """These processes and all that they have started, with the fields of proc(5)."""
    stats = dict(_stats())
    found = {pid: stats[pid] for pid in leaders if pid in stats}
    while more := {
        pid: stat for pid, stat in stats.items() if int(stat[1]) in found and pid not in found
    }:
        found |= more
    return found


def ended(leaders: list[int]) -> bool:
    """Whether one of these has died."""
    found = tree_of(leaders)
    return any(pid not in found or found[pid][0] == "Z" for pid in leaders)


def _stats() -> Iterator[tuple[int, list[str]]]:
    """(pid, the fields behind the name) of every process; see proc(5)."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue
            yield int(entry.name), text[text.rindex(")") + 2 :].split()


def cpu_s(leaders: list[int]) -> float:
    """CPU seconds of these processes and their children, those that have ended as well."""
    ticks = [sum(map(int, stat[11:15])) for stat in tree_of(leaders).values()]
    return sum(ticks) / _TICK_S


def run(
    contestant: Contestant, job: Job, events: int, most_s: float, *, is_restarted: bool = True
) -> Figures:
    """Race to the end of the topic, or for so long, then die and, if asked for, come back."""
    create_topic(job.bootstrap, job.target, 1)
    watch = Watch(job.bootstrap, job.target)
    with running(contestant, job) as leaders:
        cpu = _race(watch, job, leaders, events // EVENTS_PER_ALERT, most_s)
    rate, per_million = _figures(watch, cpu)
    watch.drain()
    known = set(watch.ids)
    restore_s = 0.0
    if is_restarted:
        began = time.monotonic()
        _more(job)
        with running(contestant, job):
            while known.issuperset(watch.ids) and time.monotonic() - began < FIRST_ALERT_S:
                watch.look()
            restore_s = time.monotonic() - began
    watch.close()
    return Figures(
        rate, per_million, restore_s, len(set(watch.ids)), len(watch.ids) - len(set(watch.ids))
    )


def _race(
    watch: Watch, job: Job, leaders: list[int], alerts: int, most_s: float
) -> list[tuple[float, float]]:
    """Watch until all alerts are there or the time is over; CPU by wall time on the way."""
    cpu: list[tuple[float, float]] = []
    over = threading.Event()

    def sample() -> None:
        while not over.wait(0.2):
            cpu.append((time.time() * 1000, cpu_s(leaders)))

    sampler = threading.Thread(target=sample)
    sampler.start()
    began = time.monotonic()
    first: float | None = None
    try:
        while len(watch.ids) < alerts:
            watch.look()
            now = time.monotonic()
            first = first or (now if watch.ids else None)
            # Who sends its alerts in bursts is given the time for a second and a third.
            bursts = len({at // 1000 for at in watch.times_ms}) > 3 or now - began > FIRST_ALERT_S
            if now - (first or began) > (most_s if first and bursts else FIRST_ALERT_S):
                break
            if ended(leaders):
                break
    finally:
        over.set()
        sampler.join()
    if not watch.ids:
        raise RuntimeError(f"no alert in {watch.topic} within {FIRST_ALERT_S:.0f} s: {said(job)}")
    return cpu


def _figures(watch: Watch, cpu: list[tuple[float, float]]) -> tuple[float, float]:
    """(events/s, CPU seconds per million events) behind the warm-up."""
    times = sorted(watch.times_ms)
    warm = times[0] + min(WARM_UP_S * 1000, (times[-1] - times[0]) / 3)
    cut = bisect_left(times, warm)
    start, end = times[max(cut - 1, 0)], times[-1]
    counted = (len(times) - max(cut, 1)) * EVENTS_PER_ALERT
    spent = _at(cpu, end) - _at(cpu, start)
    return counted / (end - start) * 1000, spent / counted * 1e6


def _at(cpu: list[tuple[float, float]], ms: float) -> float:
    return cpu[min(bisect_left(cpu, (ms, 0.0)), len(cpu) - 1)][1]


def _more(job: Job) -> None:
    """A few more alerts, so that one who had finished has something new to say."""
    connection = Connection(job.bootstrap)
    at = NOW_MS + 10_000_000
    group = []
    for n in range(20):
        for amount in (b"0.5", b"900.0"):
            event = (b"card-%07d" % n, b"again-%s-%d" % (job.group.encode(), n), at, amount)
            value = b'{"card":"%s","id":"%s","at":%d,"amount":%s}' % event
            group.append((event[0], value, at, ()))
    send(connection, job.source, 0, group)
    connection.close()
