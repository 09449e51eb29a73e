"""From kill -9 of a running driver to the first new epoch: a cold restart beside a warm spare.

One pipeline a round, fed all the time, is started by `catchwater pipeline run` as a user would,
left to commit some epochs, and its driver killed; the supervisor does the rest. With `spare = true`
a second driver stands by; its round waits until that one has become idle. The clock stops when
Spark's commit of an epoch is seen that was not there at the kill. Also told: the memory of a spare
(proportional set size of all its processes).
"""

import itertools
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.functions.ours import FUNCTION
from benchmarks.measure import cpu_seconds, publish, row
from benchmarks.our_broker import catchwater_broker
from catchwater.drill.feeder import Event, Feeder
from catchwater.pipeline.supervise import Supervision, read_supervision
from catchwater.recovery import checkpoint
from catchwater.wire.client import Client

ROUNDS = int(os.environ.get("ROUNDS", "5"))
KEYS = 1_000
PARTITIONS = 2
EPOCHS_BEFORE_KILL = 5
PATIENCE_S = 120.0
COLD_S, WARM_S = 9.0, 1.0
"""What they may take."""
IDLE_CPU_S = 0.05
"""A spare that uses less than this in a second is ready."""

PIPELINE = """[pipeline]
name = "{name}"
function = "card_rule:CardRule"
checkpoint = "checkpoint"
local = "local"
spare = {spare}
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{name}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = 2000
recordKeyIsFunctionKey = true
[sink.alerts]
topic = "{name}-alerts"
"""


def events() -> Iterator[Event]:
    """Payments of some cards, at the time they are drawn."""
    for n in itertools.count():
        key, at = b"card-%04d" % (n * 7919 % KEYS), time.time_ns() // 1_000_000
        amount = b"0.5" if n % 50 == 0 else b"900.0"
        yield Event(key, b'{"card":"%s","id":"%d","at":%d,"amount":%s}' % (key, n, at, amount), at)


@contextmanager
def feeding(bootstrap: str, topic: str) -> Iterator[None]:
    """About a thousand events a second into a new topic."""
    done = threading.Event()

    def feed() -> None:
        with Client(bootstrap) as client:
            client.create_topics({topic: PARTITIONS})
            ready.set()
            feeder, source = Feeder(client, topic, PARTITIONS, 100), events()
            while not done.wait(0.1):
                feeder.feed(source, 100)

    ready = threading.Event()
    thread = threading.Thread(target=feed)
    thread.start()
    ready.wait(PATIENCE_S)
    try:
        yield
    finally:
        done.set()
        thread.join()


def restart(bootstrap: str, name: str, *, spare: bool) -> tuple[float, float]:
    """Seconds from the kill to the next committed epoch, and a spare's MB (0 without one)."""
    with tempfile.TemporaryDirectory() as scratch, feeding(bootstrap, name):
        folder = Path(scratch)
        (folder / "card_rule.py").write_text(FUNCTION)
        told = str(spare).lower()
        (folder / "pipeline.toml").write_text(
            PIPELINE.format(name=name, spare=told, bootstrap=bootstrap)
        )
        command = [Path(sys.executable).with_name("catchwater"), "pipeline", "run"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen([*command, folder / "pipeline.toml"], stderr=log)
        try:
            return _killed(folder / "checkpoint", spare=spare)
        except TimeoutError:
            print((folder / "log").read_text()[-3000:])
            raise
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(PATIENCE_S)


def _killed(folder: Path, *, spare: bool) -> tuple[float, float]:
    wait_until(lambda: checkpoint.last_commit(folder) >= EPOCHS_BEFORE_KILL)
    megabytes = 0.0
    if spare:
        wait_until(lambda: supervision(folder).spare is not None)
        pid = supervision(folder).spare
        assert pid is not None
        wait_until(lambda: idle(pid))
        megabytes = memory(pid)
    driver, before = supervision(folder).driver, checkpoint.last_commit(folder)
    assert driver is not None
    began = time.monotonic()
    os.kill(driver, signal.SIGKILL)
    before = max(before, checkpoint.last_commit(folder))
    wait_until(lambda: checkpoint.last_commit(folder) > before)
    return time.monotonic() - began, megabytes


def wait_until(done: object) -> None:
    """Poll it; TimeoutError."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)


def supervision(folder: Path) -> Supervision:
    """What the supervisor says; it has written it before the first epoch."""
    told = read_supervision(folder)
    assert told is not None
    return told


def session(leader: int) -> list[int]:
    """All processes of a driver."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if int((path / "stat").read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(path.name))
    return found


def idle(leader: int) -> bool:
    """Whether a driver, once it has a JVM, uses next to no CPU for a second."""
    pids = session(leader)
    with suppress(OSError):
        before = sum(map(cpu_seconds, pids))
        time.sleep(1)
        return len(pids) > 1 and sum(map(cpu_seconds, session(leader))) - before < IDLE_CPU_S
    return False


def memory(leader: int) -> float:
    """Proportional set size of a driver's processes, MB."""
    total = 0
    for pid in session(leader):
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def main() -> None:
    """Alternate, and publish."""
    warm: list[float] = []
    cold: list[float] = []
    sizes: list[float] = []
    with catchwater_broker() as broker:
        for turn in range(ROUNDS):
            seconds, megabytes = restart(broker.bootstrap, f"warm-{turn}", spare=True)
            warm.append(seconds)
            sizes.append(megabytes)
            cold.append(restart(broker.bootstrap, f"cold-{turn}", spare=False)[0])
            print(f"round {turn + 1}: {warm[-1]:.2f} s with a spare ({megabytes:.0f} MB), "
                  f"{cold[-1]:.2f} s without", flush=True)  # fmt: skip
    told = "kill -9 to the next epoch"
    spare = f"{told}, a spare of {statistics.median(sizes):.0f} MB"
    rows = [row(spare, "s", warm, "the same pipeline without a spare", cold, better="lower")]
    for claim, found, most_s in ((spare, warm, WARM_S), (f"{told}, no spare", cold, COLD_S)):
        rows.append(row(claim, "s", found, "the target", [most_s] * len(found),
                        target=1.0, better="lower"))  # fmt: skip
    publish("restart", rows)


if __name__ == "__main__":
    main()
