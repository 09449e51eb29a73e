"""A running pipeline reports from threads of its own; nothing of it ever fails the pipeline."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from catchwater.clock import SYSTEM
from catchwater.pipeline.run import background
from catchwater.pipeline.run.background import Reporter, compare
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.status import LogAnswer
from catchwater.replay.control import ControlRefused
from catchwater.sinks.base import RowId, SinkUnavailable
from catchwater.sinks.config import SinkContext
from catchwater.sinks.reconcile import Finding, Report
from catchwater.verdicts import Lag, PipelineStatus

PATIENCE_S = 60.0


class Broker:
    """A control API that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[dict[str, Any]] = []
        self.refuses: ControlRefused | None = None

    def report(self, pipeline: str, status: dict[str, Any]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.told.append(status)


class LogWatch:
    control: Any = None

    def __init__(self, config: PipelineConfig, clock: Any) -> None:
        self.closed = False

    def look(self, read: Any, contract: Any) -> LogAnswer:
        return LogAnswer(Lag(0, 0.0))

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(background, "LogWatch", LogWatch)
    monkeypatch.setattr(background, "SOONEST_S", 0.01)
    monkeypatch.setattr(background, "REPORT_S", 0.02)
    config = PipelineConfig(
        functions=("m:F",), checkpoint=tmp_path / "checkpoint", sinks={}, source={},
        name="cards", file="/x/cards.toml",
    )  # fmt: skip
    return SimpleNamespace(config=config)


def until(condition: Callable[[], bool]) -> None:
    limit_s = SYSTEM.monotonic_s() + PATIENCE_S
    while not condition():
        assert SYSTEM.monotonic_s() < limit_s
        SYSTEM.pause(0.01)


def test_it_is_reported_again_and_again_while_nothing_commits(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, seen = Broker(), list[PipelineStatus]()
    monkeypatch.setattr(LogWatch, "control", broker)
    reporter = Reporter(pipeline, SYSTEM, seen.append)
    reporter.start()
    until(lambda: len(broker.told) > 3)
    reporter.last_state = "stopped"
    reporter.stop()
    assert broker.told[0]["name"] == "cards"
    assert [each["state"] for each in (broker.told[0], broker.told[-1])] == [
        "never started", "stopped",
    ]  # fmt: skip
    assert len(seen) == len(broker.told)
    assert not [t for t in threading.enumerate() if t.name in ("report", "compare")]


def test_another_kafka_is_not_reported_to(pipeline: Any) -> None:
    seen = list[PipelineStatus]()
    reporter = Reporter(pipeline, SYSTEM, seen.append)
    reporter.start()
    until(lambda: len(seen) > 3)
    reporter.stop()


def test_a_driver_that_only_follows_another_is_silent(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker, seen = Broker(), list[PipelineStatus]()
    monkeypatch.setattr(LogWatch, "control", broker)
    monkeypatch.setattr("catchwater.recovery.handover.is_shadow", lambda folder, epoch: True)
    reporter = Reporter(pipeline, SYSTEM, seen.append)
    reporter.start()
    until(lambda: len(seen) > 3)
    reporter.stop()
    assert broker.told == []


def test_a_broker_that_refuses_is_left_alone_for_a_while_and_that_is_said_once(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker, seen = Broker(), list[PipelineStatus]()
    broker.refuses = ControlRefused(403, {"message": "alice may not WRITE as cards."})
    monkeypatch.setattr(LogWatch, "control", broker)
    reporter = Reporter(pipeline, SYSTEM, seen.append)
    with caplog.at_level(logging.WARNING, "catchwater.pipeline"):
        reporter.start()
        until(lambda: len(seen) > 3)
        reporter.stop()
    assert [record.message for record in caplog.records] == [
        "The pipeline's status is not reported: alice may not WRITE as cards."
    ]
    assert broker.told == []


def sink(*reports: Any) -> tuple[Callable[[], Any], Any]:
    """Opens a sink of which comparisons find this, one after the other; and its settings."""
    left = list(reports)

    def verify(sink: Any, committed: int, *, most_rows: int) -> Report:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return cast(Report, found)

    return cast(Any, verify), SimpleNamespace(exactly_once=True)


ROW, OTHER = (Finding("missing", RowId(3, 0, row), b"k") for row in (1, 2))


@pytest.mark.parametrize(
    ("reports", "missing"),
    [
        ([Report(0, 5, 10, ())], 0),
        ([Report(0, 5, 10, (ROW, OTHER)), Report(0, 6, 12, (OTHER,))], 1),
        ([Report(0, 5, 10, (ROW,)), Report(0, 6, 12, ())], 0),
    ],
)
def test_what_differs_differs_twice(
    reports: Any, missing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An epoch that replaces a row between two looks makes it look as if it were missing."""
    verify, config = sink(*reports)
    monkeypatch.setattr("catchwater.sinks.reconcile.verify", verify)
    found = compare("alerts", lambda: cast(Any, None), config, 5, SYSTEM)
    assert (found.missing, found.wrong, found.rows, found.problem) == (missing, missing, 10, None)


def test_the_sink_that_is_compared_claims_nothing(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second claim of this driver's would shut the query's own writer out."""
    opened, claim = list[SinkContext](), cast(Any, object())
    context = SinkContext("cards", "memory:", Path("/x"), claim=claim)
    rows = SimpleNamespace(declared=SimpleNamespace(reads_many=True), exactly_once=True)

    def open_sink(config: Any, given: SinkContext) -> Any:
        opened.append(given)
        return SimpleNamespace(close=lambda: None)

    verify, _ = sink(Report(0, 5, 10, ()))
    monkeypatch.setattr("catchwater.sinks.reconcile.verify", verify)
    monkeypatch.setattr(background, "open_sink", open_sink)
    config = SimpleNamespace(every_sink={"rows": rows})
    made = SimpleNamespace(config=config, context_of=lambda config: context)
    reporter = Reporter(pipeline, SYSTEM)
    reporter._pipeline = cast(Any, made)
    (found,) = reporter._compared(5)
    assert (found.sink, found.rows, [each.claim for each in opened]) == ("rows", 10, [None])


def test_a_sink_that_cannot_be_read_is_not_taken_for_right(monkeypatch: pytest.MonkeyPatch) -> None:
    verify, config = sink(SinkUnavailable("No route."))
    monkeypatch.setattr("catchwater.sinks.reconcile.verify", verify)
    assert compare("alerts", lambda: cast(Any, None), config, 5, SYSTEM).problem == "No route."
