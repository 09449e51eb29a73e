"""The demo itself: feed, kill the pipeline, kill the broker, start both again, compare.

Broker and pipeline are child processes that know nothing of being watched. The input's second part
is still being fed when the broker dies, so that acknowledgements are lost with it; the pipeline
dies between planning an epoch and committing it. What the sink holds in the end is compared row by
row with what a plain loop over the same input says.
"""

import json
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.demo.feeder import Feeder
from catchwater.demo.processes import Child
from catchwater.demo.reference import canonical
from catchwater.demo.scenarios import Scenario
from catchwater.demo.verdict import Verdict, differences
from catchwater.demo.watch import Watch
from catchwater.recovery.contract import Contract
from catchwater.wire.arrow import decode, place
from catchwater.wire.client import LATEST, Client

PARTITIONS = 4
FED_BEFORE_KILL = 0.6
EPOCHS_BEFORE_KILL = 3
KILLS = 2

READY_S = 180.0
FIRST_EPOCH_S = 600.0
CATCH_UP_S = 900.0
"""Patience with a machine that others keep busy: a quiet one needs a few seconds for each."""

Tell = Callable[[str, float], None]
"""Called with what is going on and the share of the demo that is done, 0 to 1."""


PIPELINE_FILE = """\
[pipeline]
function = "{function}"
checkpoint = "{folder}/checkpoint"
local = "{folder}/local"

[source]
"kafka.bootstrap.servers" = "{bootstrap}"
subscribe = "{topic}"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {epoch_events}
recordKeyIsFunctionKey = true

[sink.alerts]
topic = "{output_topic}"

[recovery]
retain = 100
"""
# The ledger forgets what is not retained. More is kept here than a demo has epochs, so that every
# one is counted however late this process gets its turn to look.


def run(scenario: Scenario, folder: Path, tell: Tell, clock: Clock = SYSTEM) -> Verdict:
    """Run the demo in a folder of its own and judge it.

    Raises `ChildDied` or `ChildStuck` when broker or pipeline do not do their part; their logs are
    in the folder. No process is left behind.
    """
    started_s = clock.monotonic_s()
    with ExitStack() as children:
        demo = _Demo(scenario, folder, tell, clock, children)
        demo.feed_and_kill()
        demo.restore()
        return demo.judge(started_s)


class _Demo:
    """The acts of one demo, in order; children end when their stack is left."""

    def __init__(
        self, scenario: Scenario, folder: Path, tell: Tell, clock: Clock, children: ExitStack
    ) -> None:
        self._scenario = scenario
        self._folder = folder
        self._tell = tell
        self._clock = clock
        self._children = children
        self._watch = Watch(folder / "checkpoint", scenario.topic)
        self._kafka = self._control = "127.0.0.1:0"
        self._promised: Contract | None = None
        self._restore_s = 0.0

    def feed_and_kill(self) -> None:
        """Feed until both processes are dead and the broker alone is back, with all input in it."""
        scenario = self._scenario
        events = scenario.events()
        count = scenario.expected.events
        before = round(count * FED_BEFORE_KILL)
        self._tell("starting a broker", 0.02)
        broker = self._start_broker()
        pipeline = self._start_pipeline()
        with Client(self._kafka, timeout_s=READY_S) as client:
            feeder = Feeder(client, scenario.topic, PARTITIONS, scenario.epoch_events // 4)
            self._tell("feeding events while Spark starts", 0.05)
            feeder.feed(events, before)
            self._tell("waiting for the first epochs", 0.2)
            self._wait_until_busy(pipeline)
            self._tell("killing the pipeline in mid-batch", 0.4)
            pipeline.kill()
            self._watch.look()
            self._promised = self._watch.contract()
            self._tell("killing the broker while it is being fed", 0.45)
            with ThreadPoolExecutor(1) as background:
                rest = background.submit(feeder.feed, events, count - before)
                broker.wait_until(
                    lambda: feeder.acknowledged > before or rest.done(), "taken more", READY_S
                )
                broker.kill()
                self._start_broker()
                rest.result()

    def restore(self) -> None:
        """Start the pipeline again and let it run to the end of the input."""
        self._tell("restoring the pipeline", 0.5)
        started_s = self._clock.monotonic_s()
        pipeline = self._start_pipeline()
        ends = self._ends(self._scenario.topic)
        promised = self._promised.inputs if self._promised else []
        tail = {position.partition: position.high_watermark for position in promised} or ends
        self._wait_until_reached(pipeline, tail)
        self._restore_s = self._clock.monotonic_s() - started_s
        self._tell("running to the end of the input", 0.8)
        self._wait_until_reached(pipeline, ends)
        self._tell("stopping", 0.95)
        pipeline.stop()

    def judge(self, started_s: float) -> Verdict:
        """Compare the sink with the plain loop."""
        expected = self._scenario.expected
        actual = self._sink_rows()
        missing, duplicate = differences(expected, actual)
        alerts = sum(self._is_alert(row) for row in actual)
        self._tell("comparing", 0.98)
        return Verdict(
            events=expected.events,
            alerts=alerts,
            rows=expected.rows.total(),
            missing=missing,
            duplicate=duplicate,
            duplicates_dropped=self._watch.total("duplicates"),
            duplicates_expected=expected.duplicates,
            late_dropped=self._late_dropped(),
            late_expected=expected.late,
            kills=KILLS,
            restore_s=round(self._restore_s, 2),
            estimate_s=self._promised.restore.seconds if self._promised else None,
            seconds=round(self._clock.monotonic_s() - started_s, 2),
        )

    def _start_broker(self) -> Child:
        """Start a broker on the ports it had before, or on free ones, and create the topics."""
        ready = self._folder / "broker.json"
        ready.unlink(missing_ok=True)
        settings = self._folder / "broker.properties"
        settings.write_text(
            f"listeners=PLAINTEXT://{self._kafka}\n"
            f"catchwater.control.listener={self._control}\n"
            f"catchwater.ready.file={ready}\n"
            f"log.dirs={self._folder / 'data'}\n"
            "log.retention.ms=-1\n"  # the events are older than any retention in days
        )
        broker = self._start("broker", ["broker", "run", "--config", str(settings)])
        broker.wait_until(ready.exists, "opened its ports", READY_S)
        addresses = json.loads(ready.read_text())
        self._kafka = addresses["kafka"]
        self._control = addresses["control"].removeprefix("http://")
        with Client(self._kafka, timeout_s=READY_S) as client:
            client.create_topics(
                {self._scenario.topic: PARTITIONS, self._scenario.output_topic: PARTITIONS}
            )
        return broker

    def _start_pipeline(self) -> Child:
        path = self._folder / "pipeline.toml"
        path.write_text(
            PIPELINE_FILE.format(
                function=self._scenario.function,
                folder=self._folder,
                bootstrap=self._kafka,
                topic=self._scenario.topic,
                output_topic=self._scenario.output_topic,
                epoch_events=self._scenario.epoch_events,
            )
        )
        return self._start("pipeline", ["pipeline", "run", str(path), "--quick", "--no-supervise"])

    def _start(self, name: str, arguments: list[str]) -> Child:
        child = Child(name, arguments, self._folder / f"{name}.log", self._clock)
        return self._children.enter_context(child)

    def _wait_until_busy(self, pipeline: Child) -> None:
        """Wait for some epochs, and then for one that is planned and not yet committed."""
        ends = self._ends(self._scenario.topic)

        def busy() -> bool:
            self._watch.look()
            enough = self._watch.committed + 1 >= EPOCHS_BEFORE_KILL
            return (enough and self._watch.in_flight) or self._watch.reached(ends)

        pipeline.wait_until(busy, "run its first epochs", FIRST_EPOCH_S)

    def _wait_until_reached(self, pipeline: Child, ends: dict[int, int]) -> None:
        def reached() -> bool:
            self._watch.look()
            return self._watch.reached(ends)

        pipeline.wait_until(reached, "reached the end of its input", CATCH_UP_S)

    def _ends(self, topic: str) -> dict[int, int]:
        """Partition to the offset behind its last record."""
        with Client(self._kafka, timeout_s=READY_S) as client:
            keys = [(topic, partition) for partition in range(PARTITIONS)]
            ends = client.list_offsets(dict.fromkeys(keys, LATEST))
        return {partition: end for (_, partition), end in ends.items()}

    def _sink_rows(self) -> Counter[bytes]:
        """Every row of the output topic, with how often it is there."""
        topic = self._scenario.output_topic
        rows: Counter[bytes] = Counter()
        ends = self._ends(topic)
        with Client(self._kafka, timeout_s=READY_S) as client:
            for partition, end in ends.items():
                offset = 0
                while offset < end:
                    fetched = client.fetch({(topic, partition): offset})[topic, partition]
                    batches = place(fetched.records, partial_tail=True)
                    for table in decode(fetched.records, batches, first=offset, columns=["value"]):
                        values = table.column("value").to_pylist()
                        rows.update(canonical(msgspec.json.decode(value)) for value in values)
                    offset = batches[-1].next_offset
        return rows

    def _is_alert(self, row: bytes) -> bool:
        return bool(msgspec.json.decode(row).get("rule") == self._scenario.alert_rule)

    def _late_dropped(self) -> int:
        return self._watch.total("late") if self._scenario.spec.late == "drop" else 0
