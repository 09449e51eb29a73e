"""Drills of the log alone: clients write and read through a fault, and the checker judges them."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from catchwater.drill.clients import Acknowledged, Clients
from catchwater.drill.journal import Move
from catchwater.drill.platforms import OwnLog, brokers_of
from catchwater.drill.processes import Child
from catchwater.drill.result import Finding, Workload, at_most
from catchwater.drill.scene import Scene
from catchwater.wire.arrow import Record, encode_batch
from catchwater.wire.client import Client

PARTITIONS = 4
BEFORE_S, AFTER_S = 2.0, 2.0
"""How long clients are at work before a fault, and after it is over."""
OUTAGE_S = 5.0
PATIENCE_S = 240.0
_FLOOR_S = 0.02
"""An acknowledgement below is at once, on any machine: twice nothing is nothing."""
_LEAST_ROUNDS = 20
_FOR_EVER_S = 3600.0
_LEAST_BROKERS = 2
_HISTORY_BYTES = 30 << 20
_READERS = 2
_READ_S = 5.0
"""How long they read at least, again from the beginning where they get to the end before."""

_READ_ALL = """
import json, os, sys, time
from pathlib import Path
from catchwater.drill.rows import ends_of
from catchwater.wire.arrow import place
from catchwater.wire.client import Client

def read_all(client, topic, ends):
    read = 0
    for partition, end in ends.items():
        offset = 0
        while offset < end:
            fetched = client.fetch({(topic, partition): offset})[topic, partition]
            offset = place(fetched.records, partial_tail=True)[-1].next_offset
            read += len(fetched.records)
    return read

bootstrap, topic, begins, least_s = sys.argv[1:]
os.nice(10)
with Client(bootstrap) as client:
    ends = ends_of(client, topic)
    print("ready", flush=True)
    while not Path(begins).exists():
        time.sleep(0.01)
    until_s = time.monotonic() + float(least_s)
    read = [read_all(client, topic, ends)]
    while time.monotonic() < until_s:
        read.append(read_all(client, topic, ends))
print(json.dumps(min(read)))
"""


def replace_broker(scene: Scene) -> None:
    """The broker dies under load and begins again."""
    with _under_load(scene) as clients:
        scene.kill_broker()
        scene.start_broker()
        _acknowledged_again(scene, clients)
    _judge(scene, clients)


def replace_broker_at_rest(scene: Scene) -> None:
    """The broker dies while nobody writes; all that lies in the log has to come back with it."""
    with _under_load(scene) as clients:
        clients.rest()
        scene.clock.pause(BEFORE_S)
        scene.kill_broker("kill -9 of the broker, while nobody writes")
        scene.start_broker()
        clients.go_on()
        _acknowledged_again(scene, clients)
    _judge(scene, clients)


def zone_loss(scene: Scene) -> None:
    """All there is in a zone ends, and what it acknowledged is read while it is away."""
    with _under_load(scene) as clients:
        if len(brokers_of(scene.platform.bootstrap)) < _LEAST_BROKERS:
            scene.unseen("a zone", "there is one broker: nobody is left who could take over")
            return
        scene.kill_broker("kill -9 of all brokers of a zone")
        _acknowledged_again(scene, clients)
        scene.clock.pause(OUTAGE_S)
    _judge(scene, clients)
    scene.tell("starting the zone again")
    began_s = scene.clock.monotonic_s()
    scene.start_broker()
    took_s = round(scene.clock.monotonic_s() - began_s, 2)
    scene.find(at_most("the zone is back", took_s, scene.budget.restore_s, "s"))


def object_store_outage(scene: Scene) -> None:
    """The object store is away: whatever is asked of it fails."""
    log = _own(scene)
    home, away = log.data / "objects", log.data / "objects.away"

    def take_away() -> None:
        home.replace(away)
        home.write_text("no directory, so that every request fails\n")

    with _under_load(scene) as clients:
        before = len(clients.rounds)
        undo = Move(str(away), str(home))
        scene.fault(f"the object store is away for {OUTAGE_S:.0f} s", take_away, undo)
        scene.clock.pause(OUTAGE_S)
        meanwhile = len(clients.rounds) - before
        home.unlink(missing_ok=True)
        away.replace(home)
        _acknowledged_again(scene, clients)
    went_on = "records were acknowledged meanwhile" if meanwhile else "no record was acknowledged"
    scene.find(Finding("acknowledged during the outage", "pass" if meanwhile else "warn",
                       meanwhile * PARTITIONS, None, "batches", went_on))  # fmt: skip
    _judge(scene, clients)


def catalog_restart(scene: Scene) -> None:
    """Somebody else holds the catalog: nothing can be written to it."""
    log = _own(scene)
    with _under_load(scene) as clients:
        started: list[Child] = []

        def hold() -> None:
            started.append(scene.hold_database(log.data / "catalog.db", _FOR_EVER_S))

        scene.fault(f"the catalog is locked for {OUTAGE_S:.0f} s", hold)
        scene.clock.pause(OUTAGE_S)
        started[0].kill()
        scene.platform.kill()  # and what it had not told the catalog is told by the log's files
        scene.faults.append("kill -9 of the broker")
        scene.start_broker()
        _acknowledged_again(scene, clients)
    _judge(scene, clients)


def cold_replay(scene: Scene) -> None:
    """Readers start from the beginning of a long history, while others write at the tail."""
    with _under_load(scene) as clients:
        _fill(scene)
        begins = scene.folder / "readers-begin"
        readers = [_reader(scene, number, begins) for number in range(_READERS)]
        scene.clock.pause(BEFORE_S)
        quiet = _took_since(scene, clients, scene.clock.monotonic_s() - BEFORE_S)
        began_s = scene.clock.monotonic_s()
        scene.fault(f"{_READERS} readers read all of the history", begins.touch)
        for reader in readers:
            reader.wait(PATIENCE_S)
        busy = _took_since(scene, clients, began_s)
    read = sum(json.loads(reader.said()[-1]) for reader in readers)
    short = _READERS * _HISTORY_BYTES - read
    scene.find(at_most("history that was not read", max(0, short), 0, "bytes"))
    if quiet is None or busy is None:
        scene.unseen("acknowledgements beside the replay", "too few records were acknowledged")
    else:
        ratio = max(busy, _FLOOR_S) / max(quiet, _FLOOR_S)
        latencies = f"p99 {1000 * quiet:.1f} ms before, {1000 * busy:.1f} ms beside the replay"
        scene.find(at_most("acknowledgements beside the replay", round(ratio, 2),
                           scene.budget.slower, "times", latencies))  # fmt: skip
    _judge(scene, clients)


def _reader(scene: Scene, number: int, begins: Path) -> Child:
    """A reader of the history, ready to begin once that file is there.

    It stands for another machine: its start, which would take more of a small one than the reading
    does, is over by then, and where it runs beside the log it leaves the processor to that.
    """
    child = Child(
        f"reader-{number}",
        [scene.platform.bootstrap, _history(scene), str(begins), str(_READ_S)],
        scene.folder / f"reader-{number}.log",
        scene.clock,
        program=[sys.executable, "-c", _READ_ALL],
        marks=scene.marks,
    )
    scene.children.enter_context(child)
    child.wait_until(lambda: "ready" in child.said(), "become ready", PATIENCE_S)
    return child


def _fill(scene: Scene) -> None:
    """A history of some size in a topic of its own."""
    topic = _history(scene)
    value = scene.clock.random.randbytes(1 << 16)
    with Client(scene.platform.bootstrap, timeout_s=PATIENCE_S) as client:
        client.create_topics({topic: PARTITIONS})
        records: list[Record] = [(None, value, scene.clock.now_ms(), ())] * 8
        batch = encode_batch(records)
        for _ in range(-(-_HISTORY_BYTES // (len(batch) * PARTITIONS))):
            client.produce([((topic, partition), batch) for partition in range(PARTITIONS)])


def _history(scene: Scene) -> str:
    return scene.topic("history")


@contextmanager
def _under_load(scene: Scene) -> Iterator[Clients]:
    """The platform runs, and clients write and read until the block is left."""
    scene.platform.start()
    topic = scene.topic("records")
    with Client(scene.platform.bootstrap, timeout_s=PATIENCE_S) as client:
        client.create_topics({topic: PARTITIONS})
    clients = Clients(scene.platform.bootstrap, topic, PARTITIONS, scene.clock)
    clients.start()
    _wait(scene, lambda: len(clients.rounds) > 10, "acknowledged the first records")
    scene.clock.pause(BEFORE_S)
    try:
        yield clients
        clients.end()
    finally:
        clients.give_up()


def _acknowledged_again(scene: Scene, clients: Clients) -> None:
    before = len(clients.rounds)
    _wait(scene, lambda: len(clients.rounds) > before + 10, "acknowledged anything again")
    scene.clock.pause(AFTER_S)


def _wait(scene: Scene, done: Callable[[], bool], what: str) -> None:
    """Until it is so; a log that does not come back is for the findings to say."""
    deadline_s = scene.clock.monotonic_s() + PATIENCE_S
    while not done() and scene.clock.monotonic_s() < deadline_s:
        scene.clock.pause(0.02)
    if not done():
        scene.find(Finding("came back", "fail", None, PATIENCE_S, "s", f"has not {what}"))


def _judge(scene: Scene, clients: Clients) -> None:
    report = clients.judge()
    wrong = [found for found in report.findings if found.count and not found.allowed]
    names = "; ".join(found.told for found in wrong)
    counted = sum(found.count for found in wrong)
    scene.find(at_most("anomalies", counted, scene.budget.anomalies, "anomalies", names))
    if report.verdict == "unknown" or not report.records:
        scene.unseen("history", f"{report.unjudged} partitions could not be judged")
    longest = _longest_gap_s(clients.rounds, clients.rests)
    scene.find(at_most("without an acknowledgement", longest, scene.budget.unavailable_s, "s"))
    scene.workload = Workload(clients.records, 0.0)


def _longest_gap_s(rounds: Sequence[Acknowledged], rests: Sequence[tuple[float, float]]) -> float:
    ends = {end_s for _, end_s in rests}
    times = sorted([*(each.at_s for each in rounds), *ends])
    gaps = (after - before for before, after in pairwise(times) if after not in ends)
    return round(max(gaps, default=0.0), 2)


def _took_since(scene: Scene, clients: Clients, since_s: float) -> float | None:
    """What a request took that came at any moment, seconds, at the 99th percentile of the moments.

    One that takes long counts for as long as it took: who came meanwhile would have waited, too.
    None: there were too few.
    """
    took = sorted(each.took_s for each in clients.rounds if each.at_s >= since_s)
    if len(took) < _LEAST_ROUNDS:
        return None
    left = 0.01 * sum(took)
    while took and (left := left - took[-1]) > 0:
        took.pop()
    return took[-1]


def _own(scene: Scene) -> OwnLog:
    assert isinstance(scene.platform, OwnLog), "a drill that says it needs a log of ours"
    return scene.platform
