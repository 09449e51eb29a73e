"""Getting back, by the number of keys in the state, beside Kafka Streams and Quix Streams.

The card rule of `functions`, over one Apache Kafka. First all of the topic is read; then, one after
the other: a *rewind*, two checkpoints back; a *takeover*, kill -9 of every process and a start at
once, with the state that is on the disk; a *lost machine*, the same without it; a *backfill* of the
whole topic into another one, beside what runs; a *rebuild* of a SQLite table from all of it,
exchanged at once. The clock runs from the fault, or from the command, until the alert of a payment
is there that was sent behind everything else, or until the command is done.

Peers have no way back to an earlier state and no backfill: what one does there is to read the topic
again from its start, under another name and with no state, into another topic; so that figure
stands beside rewind, backfill and rebuild, without the change of its readers to the new topic.
A peer's takeover waits until the group's session of the killed one is over, 45 s unless it is set.
Ours writes each alert once, the peers at least once. A round takes a quarter of an hour and is
published at once. PEERS="streams quix", KEYS, EVENTS and ROUNDS have their defaults below.
"""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.functions.ours import CATCHWATER
from benchmarks.functions.peers import PEERS, Contestant, Job
from benchmarks.functions.race import PARTITIONS, Watch, fill, running, said, send
from benchmarks.kafka_peer import apache_kafka
from benchmarks.load import NOW_MS, Connection, create_topic
from benchmarks.measure import Row, publish, row

KEYS = tuple(map(int, os.environ.get("KEYS", "100000 1000000").split()))
EVENTS = int(os.environ.get("EVENTS", "2000000"))
ROUNDS = int(os.environ.get("ROUNDS", "3"))
PATIENCE_S = 900.0
BACK = 2
"""Checkpoints before the newest, if there are so many."""
_PROBE_MS = 10_000_000
"""Behind all other events; each probe as much later as the rule no longer looks back."""
_PROBE_STEP_MS = 120_000

Seconds = dict[str, float]
AGAIN = {"rewind": "again", "backfill": "again", "rebuild": "again"}
"""What a peer does instead."""
CLAIMS = ("rewind", "takeover", "lost machine", "backfill", "rebuild")


@dataclass
class Probe:
    """Payments behind all others, two of a card in each partition; their alerts say it is done."""

    bootstrap: str
    topic: str
    sent: int = 0

    def send(self) -> str:
        """The next; its name."""
        self.sent += 1
        name, at = f"probe-{self.sent}", NOW_MS + _PROBE_MS + self.sent * _PROBE_STEP_MS
        connection = Connection(self.bootstrap)
        for card in range(PARTITIONS):
            group = []
            for amount in (b"0.5", b"900.0"):
                event = (b"card-%07d" % card, b"%s-%d" % (name.encode(), card), at, amount)
                value = b'{"card":"%s","id":"%s","at":%d,"amount":%s}' % event
                group.append((event[0], value, at, ()))
            send(connection, self.topic, card, group)
        connection.close()
        return name


def until(done: Callable[[], bool], job: Job) -> None:
    """Poll it, or say what the contestant has said."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{job.group} did not get there in {PATIENCE_S:.0f} s: {said(job)}")
        time.sleep(0.02)


def seen(watch: Watch, name: str) -> bool:
    """Whether the alerts of a probe are there, of each partition."""
    watch.look()
    return {f"{name}-{card}" for card in range(PARTITIONS)} <= set(watch.ids)


def lives(contestant: Contestant, job: Job, probe: Probe) -> Seconds:
    """Takeover and lost machine; ours goes back as well, and a peer reads all of it again."""
    create_topic(job.bootstrap, job.target, 1)
    watch, took = Watch(job.bootstrap, job.target), {}
    with running(contestant, job):
        name = probe.send()
        until(lambda: seen(watch, name), job)
    for what in (*(["rewind"] if contestant is CATCHWATER else []), "takeover", "lost machine"):
        began = time.monotonic()
        if what == "lost machine":
            shutil.rmtree(job.folder / "local" if contestant is CATCHWATER else job.folder)
        if what == "rewind":
            file = str(job.folder / "pipeline.toml")
            command("recovery", "restore", file, "--checkpoint", older(file), "--yes")
        name = probe.send()
        with running(contestant, job):
            until(lambda name=name: seen(watch, name), job)
            took[what] = time.monotonic() - began
    watch.close()
    return took


def again(contestant: Contestant, job: Job, probe: Probe) -> Seconds:
    """All of the topic, under another name, into another topic."""
    other = replace(
        job, group=f"{job.group}-again", target=f"{job.target}-again",
        folder=job.folder.with_name(f"{job.folder.name}-again"),
    )  # fmt: skip
    create_topic(other.bootstrap, other.target, 1)
    watch, name = Watch(other.bootstrap, other.target), probe.send()
    began = time.monotonic()
    with running(contestant, other):
        until(lambda: seen(watch, name), other)
    watch.close()
    return {"again": time.monotonic() - began}


def backfill(job: Job, probe: Probe) -> Seconds:
    """The pipeline's own, beside which it runs: it has started and read all there is."""
    target = f"{job.target}-backfill"
    create_topic(job.bootstrap, target, 1)
    watch = Watch(job.bootstrap, job.target)
    with running(CATCHWATER, job):
        name = probe.send()
        until(lambda: seen(watch, name), job)
        watch.close()
        began = time.monotonic()
        command(
            "pipeline", "backfill", str(job.folder / "pipeline.toml"), "--label", "bench", "--yes",
            CATCHWATER_SINK__ALERTS__TOPIC=target,
        )  # fmt: skip
        return {"backfill": time.monotonic() - began}


def rebuild(job: Job, probe: Probe) -> Seconds:
    """Of a table that a pipeline of its own has written."""
    other = replace(
        job, group=f"{job.group}-table", folder=job.folder.with_name(f"{job.folder.name}-table")
    )
    with_table = Contestant("Catchwater", lambda job: into_table(job))
    with running(with_table, other):
        name = probe.send()
        until(lambda: in_table(other, name), other)
        began = time.monotonic()
        command("pipeline", "rebuild", str(other.folder / "pipeline.toml"), "--label", "bench",
                "--yes")  # fmt: skip
        took = time.monotonic() - began
    assert in_table(other, name), "the table has all of it"
    return {"rebuild": took}


def into_table(job: Job) -> list[tuple[list[str], dict[str, str]]]:
    """The same pipeline, whose sink is a table."""
    commands = CATCHWATER.commands(job)
    file = job.folder / "pipeline.toml"
    head, _, tail = file.read_text().partition("[sink.alerts]\n")
    retention = tail[tail.index("[recovery]") :]
    sink = 'kind = "sqlite"\npath = "rows.db"\ntable = "alerts"\n'
    file.write_text(f"{head}[sink.alerts]\n{sink}{retention}")
    return commands


def in_table(job: Job, name: str) -> bool:
    """Whether the table has a probe's alerts."""
    try:
        with sqlite3.connect(job.folder / "rows.db", timeout=60) as table:
            found = table.execute("SELECT count(*) FROM alerts WHERE id LIKE ?", (f"{name}-%",))
            return bool(found.fetchone()[0] == PARTITIONS)
    except sqlite3.OperationalError:
        return False  # not there yet


def older(file: str) -> str:
    """The checkpoint that a rewind goes back to."""
    told = json.loads(command("recovery", "explain", file, "--json"))["checkpoints"]
    there = [each["checkpoint"] for each in told if each["restorable"]]
    return str(there[-1 - min(BACK, len(there) - 1)])


def command(*arguments: str, **named: str) -> str:
    """One of ours, to its end; what it has put out."""
    words = [str(Path(sys.executable).with_name("catchwater")), *arguments]
    done = subprocess.run(
        words, env={**os.environ, **named}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stdout


def one(name: str, job: Job, probe: Probe) -> Seconds:
    """All that is measured of one contestant in one round."""
    if name == "ours":
        took = lives(CATCHWATER, job, probe) | backfill(job, probe) | rebuild(job, probe)
    else:
        took = lives(PEERS[name], job, probe) | again(PEERS[name], job, probe)
    told = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in took.items())
    print(f"{job.group}: {told}", flush=True)
    return took


def rows_of(peer: str, keys: int, found: dict[str, list[Seconds]]) -> list[Row]:
    """Each way back, beside what one does at the peer."""
    rows = []
    for what in CLAIMS:
        instead = AGAIN.get(what, what)
        named = PEERS[peer].name + (", all of it again" if instead != what else "")
        ours, theirs = ([each[key] for each in found[side]]
                        for side, key in (("ours", what), (peer, instead)))  # fmt: skip
        rows.append(row(f"{what}, {keys:,} keys", "s", ours, named, theirs, better="lower"))
    return rows


def main() -> None:
    """Fill the topics, let all take turns, publish."""
    chosen = os.environ.get("PEERS", "streams quix").split()
    with (
        apache_kafka(stamp_on_append=True) as (bootstrap, _),
        tempfile.TemporaryDirectory() as scratch,
    ):
        for keys in KEYS:
            source = f"payments-{keys}"
            fill(bootstrap, source, keys, EVENTS)
            probe = Probe(bootstrap, source)
            found: dict[str, list[Seconds]] = {name: [] for name in ["ours", *chosen]}
            for turn in range(ROUNDS):
                for name in found:
                    label = f"{name}-{keys}-{turn}"
                    folder = Path(scratch) / label
                    job = Job(bootstrap, source, f"alerts-{label}", label, folder)
                    found[name].append(one(name, job, probe))
                rows = [each for peer in chosen for each in rows_of(peer, keys, found)]
                publish("recovery", rows, is_whole=False)


if __name__ == "__main__":
    main()
