"""Three times the load that a pipeline is made for: epochs stay as they are, and the lag goes.

On Spark, `slow`: a pipeline that takes at most 1.5 times the load gets three times as much for a
while. Without Spark: a burst of many epochs at once.
"""

import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.e2e.in_session import Pipeline, read

from catchwater.clock import SYSTEM
from catchwater.drill.feeder import Event, Feeder
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

PARTITIONS, CARDS, PATIENCE_S = 2, 50, 600
"""7919 and the number of cards have no common divisor: each card comes once in so many payments."""
TIMEOUT_S = 60
"""Far beyond what an epoch takes; where others have a timeout of checkpoints, it is longer."""

FUNCTION = '''"""How often each card was seen."""
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Payment:
    card: str
    n: int
    at: int

@dataclass
class Seen:
    count: int = 0

@dataclass
class Told:
    n: int
    count: int

@function(name="seen", key="card", event_time="at", late="process", output_id=("n",))
class Counts(Keyed[Payment, Seen, Told]):
    def on_event(self, e: Payment, s: Seen, ctx: Context) -> Out[Told]:
        s.count += 1
        return [Told(e.n, s.count)]
'''

FILE = """\
[pipeline]
name = "{name}"
function = "peak_{name}:Counts"
checkpoint = "checkpoint"
local = "local"
trigger = "{trigger}"
[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{name}-payments"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {most}
[sink.told]
topic = "{name}-told"
[recovery]
retain = 5
"""


class Feed(threading.Thread):
    """Payments at a rate that may be changed, until it is told to end."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        super().__init__()
        self._log, self._topic = bootstrap, topic
        self.rate = rate
        self.fed = 0
        self._over = threading.Event()

    def run(self) -> None:
        with Client(self._log) as client:
            feeder, source = Feeder(client, self._topic, PARTITIONS, 1_000), payments()
            due, at_s = 0.0, SYSTEM.monotonic_s()
            while not self._over.wait(0.05):
                now_s = SYSTEM.monotonic_s()
                due, at_s = due + self.rate * (now_s - at_s), now_s
                feeder.feed(source, int(due))
                self.fed += int(due)
                due -= int(due)

    def end(self) -> None:
        self._over.set()
        self.join()


def payments() -> Iterator[Event]:
    for n in count():
        card = f"card-{n * 7919 % CARDS}"
        now_ms = SYSTEM.now_ms()
        value = msgspec.json.encode({"card": card, "n": n, "at": now_ms})
        yield Event(card.encode(), value, now_ms)


class Peak:
    """A pipeline that runs in a thread, and what came of its epochs."""

    def __init__(self, spark: Any, folder: Path, bootstrap: str, most: int, trigger: str) -> None:
        name = folder.name
        (folder / f"peak_{name}.py").write_text(FUNCTION)
        file = folder / "pipeline.toml"
        file.write_text(FILE.format(name=name, bootstrap=bootstrap, most=most, trigger=trigger))
        self.pipeline = Pipeline(spark, folder, file)
        self.bootstrap, self.topic = bootstrap, f"{name}-payments"
        with Client(bootstrap) as client:
            client.create_topics({self.topic: PARTITIONS})
        self.failure: BaseException | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.pipeline.run(self._over.is_set)
        except Exception as error:  # noqa: BLE001  (whatever it is, the test is to tell)
            self.failure = error

    @property
    def done(self) -> int:
        """Events of committed epochs."""
        return sum(entry.total("events") for entry in list(self.pipeline.epochs))

    def wait_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self._thread.is_alive(), self.failure
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def check(self, fed: int, most: int) -> None:
        """No epoch was too large, took ages or failed; each payment counts once, in order."""
        assert self.failure is None, self.failure
        epochs = self.pipeline.epochs
        assert max(entry.total("events") for entry in epochs) <= most
        took_ms = [entry.finished_ms - entry.end.clock_ms for entry in epochs]
        print(f"{len(epochs)} epochs, the longest of {max(took_ms)} ms")
        assert max(took_ms) < 1000 * TIMEOUT_S
        told = read(self.bootstrap, f"{self.pipeline.folder.name}-told")
        rows = sorted((row["n"], row["count"]) for row in (msgspec.json.decode(v) for _, v in told))
        assert rows == [(n, n // CARDS + 1) for n in range(fed)]


def test_a_burst_of_many_epochs_is_taken_epoch_by_epoch(
    make_broker: Callable[..., Any], tmp_path: Path
) -> None:
    most, folder = 1_000, tmp_path / "burst"
    folder.mkdir()
    peak = Peak(None, folder, make_broker().bootstrap, most, "continuous")
    try:
        with Client(peak.bootstrap) as client:
            feeder, source = Feeder(client, peak.topic, PARTITIONS, 1_000), payments()
            fed = 0
            for events in (200, 12 * most, 200):
                feeder.feed(source, events)
                fed += events
                peak.wait_until(lambda fed=fed: peak.done == fed)
    finally:
        peak.end()
    peak.check(fed, most)
    assert len(peak.pipeline.epochs) >= 14


@pytest.mark.slow
def test_three_times_the_peak_load_ends_no_epoch_and_the_lag_recovers(
    make_broker: Callable[..., Any], tmp_path: Path, spark: Any
) -> None:
    every_s, load, normal_s, peak_s = 2, 1_000, 20, 30
    most, folder = every_s * load * 3 // 2, tmp_path / "peak"
    folder.mkdir()
    peak = Peak(spark, folder, make_broker().bootstrap, most, f"{every_s}s")
    feed = Feed(peak.bootstrap, peak.topic, load)

    def worst_lag(seconds: float) -> int:
        worst, until = 0, time.monotonic() + seconds
        while time.monotonic() < until:
            assert feed.is_alive() and peak.failure is None
            worst = max(worst, feed.fed - peak.done)
            time.sleep(0.1)
        return worst

    feed.start()
    try:
        peak.wait_until(lambda: peak.done > 2 * most)
        peak.wait_until(lambda: feed.fed - peak.done < 2 * most)
        normal = worst_lag(normal_s)
        feed.rate = 3 * load
        high = worst_lag(peak_s)
        feed.rate = load
        began_s = time.monotonic()
        peak.wait_until(lambda: feed.fed - peak.done <= normal)
        print(f"lag {normal}, at the peak {high}, back after {time.monotonic() - began_s:.0f} s")
        assert high > 3 * normal, "the peak was none"
        feed.end()
        peak.wait_until(lambda: peak.done == feed.fed)
    finally:
        feed.end()
        peak.end()
    peak.check(feed.fed, most)
