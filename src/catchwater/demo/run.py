"""The demo itself: feed, kill the pipeline, kill the broker, start both again, compare.

Broker and pipeline are child processes that know nothing of being watched. The input's second part
is still being fed when the broker dies, so that acknowledgements are lost with it; the pipeline
dies between planning an epoch and committing it. What the sink holds in the end is compared row by
row with what a plain loop over the same input says.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.demo.scenarios import Scenario
from catchwater.demo.verdict import Verdict
from catchwater.drill.feeder import Feeder
from catchwater.drill.platforms import READY_S, OwnLog
from catchwater.drill.rows import differences
from catchwater.drill.stage import PARTITIONS, Job, Stage, Tell
from catchwater.recovery.contract import Contract
from catchwater.wire.client import Client

FED_BEFORE_KILL = 0.6
KILLS = 2


class Onlooker(Protocol):
    """Who watches the demo on the broker's page."""

    def begins(self, url: str) -> None:
        """The page is served there from now on."""

    def ends(self, verdict: Verdict) -> None:
        """All is over; broker and page go when this returns."""


def run(
    scenario: Scenario,
    folder: Path,
    tell: Tell,
    clock: Clock = SYSTEM,
    onlooker: Onlooker | None = None,
) -> Verdict:
    """Run the demo in a folder of its own and judge it.

    Raises `ChildDied` or `ChildStuck` when broker or pipeline do not do their part; their logs are
    in the folder. No process is left behind.
    """
    started_s = clock.monotonic_s()
    with ExitStack() as children:
        demo = _Demo(scenario, folder, tell, clock, children)
        page_url = demo.start_log()
        if onlooker is not None:
            onlooker.begins(page_url)
        demo.feed_and_kill()
        demo.restore()
        verdict = demo.judge(started_s)
        if onlooker is not None:
            onlooker.ends(verdict)
        return verdict


def job_of(scenario: Scenario) -> Job:
    """The pipeline that a scenario is run through."""
    name = scenario.spec.name
    return Job(
        name, scenario.function, scenario.topic, scenario.output_topic, scenario.epoch_events
    )


class _Demo:
    """The acts of one demo, in order; children end when their stack is left."""

    def __init__(
        self, scenario: Scenario, folder: Path, tell: Tell, clock: Clock, children: ExitStack
    ) -> None:
        self._scenario = scenario
        self._tell = tell
        self._clock = clock
        self._log = OwnLog(folder, children, clock)
        self._stage = Stage(job_of(scenario), self._log, folder, children, clock)
        self._promised: Contract | None = None
        self._restore_s = 0.0

    def start_log(self) -> str:
        """Start the broker; the address of its page."""
        self._tell("starting a broker", 0.02)
        self._stage.start_log()
        return self._log.page_url

    def feed_and_kill(self) -> None:
        """Feed until both processes are dead and the broker alone is back, with all input in it."""
        scenario, stage = self._scenario, self._stage
        events = scenario.events()
        count = scenario.expected.events
        before = round(count * FED_BEFORE_KILL)
        broker = self._log.process
        assert broker is not None
        pipeline = stage.start_pipeline()
        with Client(self._log.bootstrap, timeout_s=READY_S) as client:
            feeder = Feeder(
                client, scenario.topic, PARTITIONS, scenario.epoch_events // 4, self._clock.now_ms
            )  # fmt: skip
            self._tell("feeding events while Spark starts", 0.05)
            feeder.feed(events, before)
            self._tell("waiting for the first epochs", 0.2)
            stage.wait_until_busy(pipeline)
            # The first contract is written beside the epochs.
            pipeline.wait_until(lambda: stage.checkpoints() > 0, "made a contract", READY_S)
            stage.wait_until_busy(pipeline)
            self._tell("killing the pipeline in mid-batch", 0.4)
            pipeline.kill()
            stage.watch.look()
            self._promised = stage.contract()
            self._tell("killing the broker while it is being fed", 0.45)
            with ThreadPoolExecutor(1) as background:
                rest = background.submit(feeder.feed, events, count - before)
                broker.wait_until(
                    lambda: feeder.acknowledged > before or rest.done(), "taken more", READY_S
                )
                self._log.kill()
                stage.start_log()
                rest.result()

    def restore(self) -> None:
        """Start the pipeline again and let it run to the end of the input."""
        stage = self._stage
        self._tell("restoring the pipeline", 0.5)
        started_s = self._clock.monotonic_s()
        pipeline = stage.start_pipeline()
        ends = stage.ends()
        promised = self._promised.inputs if self._promised else []
        tail = {position.partition: position.high_watermark for position in promised} or ends
        stage.wait_until_reached(pipeline, tail)
        self._restore_s = self._clock.monotonic_s() - started_s
        self._tell("running to the end of the input", 0.8)
        stage.wait_until_reached(pipeline, ends)
        self._tell("stopping", 0.95)
        pipeline.stop()

    def judge(self, started_s: float) -> Verdict:
        """Compare the sink with the plain loop."""
        expected, watch = self._scenario.expected, self._stage.watch
        actual = self._stage.rows()
        missing, duplicate = differences(expected.rows, actual)
        alerts = sum(self._is_alert(row) for row in actual)
        self._tell("comparing", 0.98)
        return Verdict(
            events=expected.events,
            alerts=alerts,
            rows=expected.rows.total(),
            missing=missing,
            duplicate=duplicate,
            duplicates_dropped=watch.total("duplicates"),
            duplicates_expected=expected.duplicates,
            late_dropped=self._late_dropped(),
            late_expected=expected.late,
            kills=KILLS,
            restore_s=round(self._restore_s, 2),
            estimate_s=self._promised.restore.seconds if self._promised else None,
            seconds=round(self._clock.monotonic_s() - started_s, 2),
        )

    def _is_alert(self, row: bytes) -> bool:
        return bool(msgspec.json.decode(row).get("rule") == self._scenario.alert_rule)

    def _late_dropped(self) -> int:
        return self._stage.watch.total("late") if self._scenario.spec.late == "drop" else 0
