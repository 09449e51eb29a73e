"""What nothing to do costs: processors that a pipeline and its broker take while no record comes.

A pipeline is all of its processes: supervisor, driver, JVM, source, Python workers. It has state,
timers and a sink, has run an epoch and waits for the next. Its peer only reads: a stream by Spark's
own Kafka connector from Apache Kafka, into nothing. Beside our source, read into nothing in the
same way, stands what a JVM with a stream costs whatever it reads: a rate source without rows.
Each stands still for a while first, and is then measured for SECONDS (60).
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.bench_microbatch import Feeder, pipeline_file
from benchmarks.kafka_peer import apache_kafka
from benchmarks.load import create_topic
from benchmarks.measure import Row, publish, row
from benchmarks.our_broker import Broker, catchwater_broker
from benchmarks.replay.sessions import PEER, Session
from catchwater.recovery.ledger import Ledger

ROUNDS = int(os.environ.get("ROUNDS", "3"))
SECONDS = float(os.environ.get("SECONDS", "60"))
SETTLE_S = 20
START_S = 180
TARGET = 1.0
"""Percent of a core."""


def percent(*roots: int) -> list[float]:
    """Of a core, each of these processes with all that it has started, while nothing comes.

    Looks each second, so that what a process has used is counted also when it has ended.
    """
    time.sleep(SETTLE_S)
    began, before = time.monotonic(), [used_by(root) for root in roots]
    seen = [dict(used) for used in before]
    while time.monotonic() < began + SECONDS:
        time.sleep(1)
        for used, root in zip(seen, roots, strict=True):
            used |= used_by(root)
    passed = time.monotonic() - began
    return [
        100 * (sum(used.values()) - sum(was.values())) / passed
        for used, was in zip(seen, before, strict=True)
    ]


def used_by(root: int) -> dict[int, float]:
    """CPU seconds of a process and of each that it has started, by process id."""
    used, parents = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    family, more = set[int](), {root}
    while more:
        family |= more
        more = {pid for pid, parent in parents.items() if parent in more}
    return {pid: used[pid] for pid in family if pid in used}


@contextmanager
def idle_pipeline(broker: Broker, scratch: Path, name: str) -> Iterator[int]:
    """One that has run an epoch; yields its supervisor's process."""
    create_topic(broker.bootstrap, name, 2)
    Feeder(broker, name).send(100)
    path = pipeline_file(scratch / name, broker, name, name, 100_000)
    command = [Path(sys.executable).with_name("catchwater"), "pipeline", "run", path]
    with (scratch / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            ledger, deadline = Ledger(scratch / name / "checkpoint"), time.monotonic() + START_S
            while not list(ledger.epochs()):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((scratch / f"{name}.log").read_text()[-2000:])
                time.sleep(0.2)
            yield process.pid
        finally:
            process.terminate()
            process.wait(60)


def idle_stream(kind: str, bootstrap: str, topic: str, *brokers: int) -> list[float]:
    """A query that reads into nothing, and the brokers meanwhile."""
    with closing(Session(ours=kind not in ("default", "tuned"))) as session:
        session.ask(kind, "stream", bootstrap, topic)
        return percent(session.process.pid, *brokers)


def main() -> None:
    """Everything in turn, ROUNDS times."""
    found: dict[str, list[float]] = {}
    with (
        catchwater_broker() as broker,
        apache_kafka() as (kafka, kafka_pid),
        tempfile.TemporaryDirectory() as scratch,
    ):
        for bootstrap in (broker.bootstrap, kafka):
            create_topic(bootstrap, "t", 2)
        for turn in range(ROUNDS):
            with idle_pipeline(broker, Path(scratch), f"p{turn}") as pid:
                figures = dict(zip(("pipeline", "broker"), percent(pid, broker.pid), strict=True))
            theirs = idle_stream("default", kafka, "t", kafka_pid)
            figures |= dict(zip(("connector", "kafka"), theirs, strict=True))
            (figures["stream"],) = idle_stream("direct", broker.bootstrap, "t")
            (figures["nothing"],) = idle_stream("nothing", "", "")
            told = ", ".join(f"{name} {figure:.2f} %" for name, figure in figures.items())
            print(f"round {turn + 1}: {told}", flush=True)
            for name, figure in figures.items():
                found.setdefault(name, []).append(figure)
    publish("idle", rows(found))


def rows(found: dict[str, list[float]]) -> list[Row]:
    """Each beside its peer; what a pipeline and its broker may take, beside that."""
    unit, aims = "% of a core", [TARGET] * len(found["pipeline"])
    pairs = [
        ("an idle pipeline, all its processes", "pipeline", f"{PEER}, reading only", "connector"),
        ("an idle stream by our source", "stream", f"{PEER}, reading only", "connector"),
        ("an idle stream by our source", "stream", "Spark's text source, no files", "nothing"),
        ("the broker of an idle pipeline", "broker", "Apache Kafka 4.3.1", "kafka"),
    ]
    against = [("an idle pipeline, all its processes", "pipeline"),
               ("the broker of an idle pipeline", "broker")]  # fmt: skip
    return [
        *(
            row(what, unit, found[ours], peer, found[theirs], better="lower")
            for what, ours, peer, theirs in pairs
        ),
        *(
            row(what, unit, found[ours], "the target", aims, target=1.0, better="lower")
            for what, ours in against
        ),
    ]


if __name__ == "__main__":
    main()
