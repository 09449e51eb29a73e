"""kill -9 before every write and sync of a transaction's life, by both versions of the protocol.

A producer with two partitions and a group of its own takes the steps of a script. First strace
counts the calls that each script's last step causes in the write-ahead log, the catalog and the
sockets; then, for each of these calls, a broker is killed right before it, and one more time when
the step is answered. Afterwards the producer either goes on as a client does (asks the same again,
then ends) or is never heard again, until its time is out.

Whatever the point: the records of both partitions and the group's position agree; what was answered
holds; the last stable offset reaches the end in time; an end of the old epoch is refused, or
answered as before where it repeats one that was stored; and a newcomer with the same transactional
id goes on.

`make test` takes those around the writing of the markers and a few others, the slow form all of
them, each in both ways.
"""

import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from conformance.differ.requests import request
from kio.schema.create_topics.v4 import request as create_v4
from tests.conformance.killing import PATIENCE_S, Broker, trace
from tests.conformance.loads import Client
from tests.conformance.transactional import (
    ABORT,
    AGAIN,
    ANNOUNCE,
    BEGUN,
    COMMIT,
    FENCED,
    MOVE,
    SETTLE,
    SWEEP,
    TOPIC,
    WRITE,
    Producer,
    Seen,
    look,
)

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace kills the broker")

PRODUCERS = 2000
PATIENT_MS, TIMEOUT_MS, SWEPT_MS = 600_000, 12_000, 500
"""Timeouts of transactions: of who goes on, of who vanishes, of who is swept before the kill. They
are as the broker counts, which begins anew when it is restarted."""
LATE_S = 60.0
"""How much later than its timeout a transaction may be ended: ticks, and a busy machine."""
CALLS = ("pwrite64", "pwritev2", "fdatasync", "writev")
QUIET = {"catchwater.pack.interval.ms": "3600000", "log.retention.ms": "-1"}
"""Nothing but what requests and the ticks of transactions cause."""

Steps = tuple[str, ...]


class Point(NamedTuple):
    """Kill in a script's last step before the `number`-th call on a file, or (0) when answered."""

    version: int
    steps: Steps
    call: str = ""
    file: str = ""
    number: int = 0
    goes_on: bool = True


def scripts(version: int) -> list[Steps]:
    """Every step of a transaction's life once as the last one.

    Positions bring the catalog up to the log; what follows the log by itself does so without them.
    """
    begun = BEGUN[version]
    written = begun[: begun.index(WRITE) + 1]
    return [
        *(begun[:end] for end in range(1, len(begun) + 1)),
        *((*begun, last) for last in (COMMIT, ABORT, AGAIN, SWEEP)),
        (*written, SETTLE),
        (*written, COMMIT, SETTLE),
    ]


def first(producer: Producer, *, is_there: bool) -> Seen:
    """What is to be seen of a producer's first transaction: all of it or nothing."""
    position = 1 if is_there and MOVE in producer.answered else -1
    return Seen([["1"] if is_there else []] * 2, position, is_at_end=True)


class Drive:
    """One broker, killed again and again, and the producers that met it."""

    def __init__(self, home: Path, producers: int) -> None:
        self.home = home
        self.broker = Broker(home, QUIET)
        self.made = 0
        self.hits: Counter[bool] = Counter()
        self.vanished: list[tuple[Producer, Point]] = []
        with self.life() as client:
            topic = create_v4.CreatableTopic(
                name=TOPIC,
                num_partitions=2 * producers,
                replication_factor=1,
                assignments=(),
                configs=(),
            )
            client.call(create_v4.CreateTopicsRequest(topics=(topic,)))
            self.producer(1).transaction(client, is_new=True)  # the log has a file from now on

    @contextmanager
    def life(self) -> Iterator[Client]:
        """A broker from its start to its kill, and a connection to it."""
        self.broker.start()
        client = Client(self.broker.port)
        try:
            yield client
        finally:
            client.close()
            if self.broker.pid:
                self.broker.kill()

    def producer(self, version: int, timeout_ms: int = PATIENT_MS) -> Producer:
        """A new transactional id, on partitions that nobody else writes to."""
        self.made += 1
        return Producer(self.made - 1, version, timeout_ms)

    def files(self, file: str) -> list[str]:
        """strace's filter for the calls on one of the log's files."""
        data = self.home / "data"
        names = [data / "catalog.db-wal"] if file == "catalog" else sorted(data.glob("wal/*.wal"))
        return [part for name in names for part in ("-P", str(name))] if file != "socket" else []

    def count(self, version: int, steps: Steps) -> list[Point]:
        """The calls of the script's last step."""
        found = self.home / "calls"
        with self.life() as client:
            producer = self.ready(client, Point(version, steps))
            wanted = "trace=" + ",".join(CALLS)
            tracer = trace(self.broker.pid, "-y", "-o", str(found), "-e", wanted)
            producer.take(client, steps[-1])
            tracer.terminate()
            tracer.wait(PATIENCE_S)
            # Nothing is left open that a later sweep would be counted for.
            producer.transaction(client, is_new=True)
        counts: Counter[tuple[str, str]] = Counter()
        for call, name in re.findall(r"^\d+ +(\w+)\(\d+<(.*?)>", found.read_text(), re.MULTILINE):
            kinds = {"catalog.db-wal": "catalog", ".wal": "log", "]": "socket"}
            file = next((kind for end, kind in kinds.items() if name.endswith(end)), None)
            if file is not None and "eventfd" not in name:
                counts[call, file] += 1
        points = [
            Point(version, steps, call, file, number)
            for (call, file), count in sorted(counts.items())
            for number in range(1, count + 1)
        ]
        return [*points, Point(version, steps)]

    def ready(self, client: Client, point: Point) -> Producer:
        """A producer that has taken all steps but the last."""
        left_ms = PATIENT_MS if point.goes_on else TIMEOUT_MS
        producer = self.producer(point.version, SWEPT_MS if point.steps[-1] == SWEEP else left_ms)
        for step in point.steps[:-1]:
            producer.take(client, step)
        return producer

    def meet(self, client: Client, point: Point) -> Producer:
        """Take the script's steps until the broker is dead, or the last one is answered."""
        producer = self.ready(client, point)
        if not point.call:
            producer.take(client, point.steps[-1])
            return producer
        kill = f"inject={point.call}:signal=SIGKILL:when={point.number}"
        out = str(self.home / "strace")
        options = ("-o", out, "-e", f"trace={point.call}", "-e", kill, *self.files(point.file))
        tracer = trace(self.broker.pid, *options)
        try:
            producer.take(client, point.steps[-1])
        except OSError:
            pass
        self.hits[point.steps[-1] not in producer.answered] += 1
        self.broker.kill()
        tracer.wait(PATIENCE_S)
        return producer

    def go_on(self, client: Client, producer: Producer, point: Point) -> None:
        """What was not answered is asked again; then the transaction goes its way."""
        last, begun = point.steps[-1], BEGUN[point.version]
        if last not in producer.answered:
            producer.take(client, last)
        if not producer.answered & {COMMIT, ABORT, AGAIN}:
            taken = sum(step in begun for step in point.steps)
            for step in (*begun[taken:], COMMIT):
                producer.take(client, step)
        outcome = COMMIT in producer.answered
        assert look(client, producer) == first(producer, is_there=outcome), point
        if last == AGAIN:
            assert producer.late_end(client) == FENCED
        producer.sent = 1
        producer.transaction(client, is_new=point.number % 2 == 0 and not outcome)
        values = ["1", "2"] if outcome else ["2"]
        assert look(client, producer) == Seen([values] * 2, 2, is_at_end=True)

    def await_their_ends(self, client: Client) -> float:
        """How long it takes until no transaction is open or prepared any more."""
        begun_s = time.monotonic()
        unfinished = {"state_filters": ["Ongoing", "PrepareCommit", "PrepareAbort"]}
        while client.call(request(66, 0, unfinished)).transaction_states:
            assert time.monotonic() - begun_s < TIMEOUT_MS / 1000 + LATE_S
            time.sleep(0.05)
        return time.monotonic() - begun_s

    def succeed(self, client: Client, producer: Producer, point: Point) -> None:
        """The producer was never heard again: a newcomer takes over when its time was out."""
        last = point.steps[-1]
        seen = look(client, producer)
        outcome = bool(seen.values[0])
        assert seen == first(producer, is_there=outcome), point
        assert outcome or COMMIT not in producer.answered, point
        assert not outcome or COMMIT in point.steps, point
        if producer.id >= 0:
            answer = producer.end(client, committed=True)
            was_open = {ANNOUNCE, WRITE}.intersection(producer.answered)
            if outcome:
                assert answer == "none", "it repeats what was stored"
            elif was_open and last not in (ABORT, AGAIN):
                assert answer == FENCED, "its time was out"
            else:
                assert answer in (FENCED, "invalid_txn_state")
        producer.sent = 1
        producer.transaction(client, is_new=True)
        values = ["1", "2"] if outcome else ["2"]
        assert look(client, producer) == Seen([values] * 2, 2, is_at_end=True)

    def run(self, points: Sequence[Point]) -> float:
        """Every point; how long the transactions of those that vanished stayed open at the end."""
        waiting: tuple[Producer, Point] | None = None
        for point in points:
            with self.life() as client:
                if waiting is not None:
                    self.go_on(client, *waiting)
                met = (self.meet(client, point), point)
            waiting = met if point.goes_on else None
            if not point.goes_on:
                self.vanished.append(met)
        with self.life() as client:
            if waiting is not None:
                self.go_on(client, *waiting)
            took_s = self.await_their_ends(client)
            for producer, point in self.vanished:
                self.succeed(client, producer, point)
        return took_s


@contextmanager
def driving(home: Path, producers: int) -> Iterator[Drive]:
    """A drive with room for so many producers; its broker must not fail in a way of its own."""
    drive = Drive(home, producers)
    try:
        yield drive
    finally:
        drive.broker.close()
    assert b"Traceback" not in drive.broker.log_file.read_bytes()


def test_a_transaction_is_whole_around_its_decision(tmp_path: Path) -> None:
    noise = random.Random(2026)
    points: list[Point] = []
    with driving(tmp_path, 24) as drive:
        for version in BEGUN:
            for last in (COMMIT, AGAIN):
                found = drive.count(version, (*BEGUN[version], last))
                decided = next(point for point in found if point.call == "pwritev2")
                marked = next(p for p in found if (p.call, p.file) == ("fdatasync", "log"))
                anywhere = noise.choice(found)._replace(goes_on=noise.random() < 0.5)
                points += [decided._replace(goes_on=False), marked, anywhere]
        noise.shuffle(points)
        drive.run(points)
    assert drive.hits[True] > drive.hits[False], "strace is to kill, not to watch"


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_transaction_is_whole_before_every_call(tmp_path: Path) -> None:
    with driving(tmp_path, PRODUCERS) as drive:
        found = [
            point
            for version in BEGUN
            for steps in scripts(version)
            for point in drive.count(version, steps)
        ]
        points = [
            point._replace(goes_on=goes_on)
            for goes_on in (True, False)
            for point in found
            if point.steps[-1] != SWEEP or not goes_on
        ]
        took_s = drive.run(points)
    by_step = Counter(point.steps[-1] for point in points)
    print(f"{len(points)} points, {dict(by_step)}, before their call {dict(drive.hits)}")
    print(f"{len(drive.vanished)} that vanished were ended after {took_s:.1f} s")
    assert drive.hits[True] > 20 * drive.hits[False], "strace is to kill, not to watch"
