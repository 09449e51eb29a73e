"""The log sink's driver half: committed once, its gaps and absences told by their own names."""

from pathlib import Path
from typing import Any

import pytest

from catchwater.clock import ManualClock
from catchwater.replay.control import ControlRefused, ControlUnreachable
from catchwater.sinks.base import (
    EpochDiffers,
    EpochMissing,
    NotAdmitted,
    OutputRecord,
    SinkFull,
    SinkUnavailable,
    Superseded,
    TargetDiffers,
)
from catchwater.sinks.config import SinkContext, open_sink, parse
from catchwater.sinks.epochs import Archive, Owner, StagedFile
from catchwater.sinks.kinds.log import LogMarks, LogSink, NotOurLog
from catchwater.sinks.log_stager import LogStager


class FakeControl:
    """Keeps epochs as the catalog does."""

    def __init__(self) -> None:
        self.epochs: dict[tuple[str, int], dict[str, Any]] = {}
        self.failure: Exception | None = None

    def commit_epoch(
        self, pipeline: str, sink: str, epoch: int, *, topic: str, staged: Any, checksum: str
    ) -> dict[str, Any]:
        if self.failure is not None:
            raise self.failure
        answer = {"epoch": epoch, "records": len(list(staged)), "offsets": {"0": [0, 9]},
                  "checksum": checksum, "topic": topic}  # fmt: skip
        return self.epochs.setdefault((sink, epoch), answer)

    def last_epoch(self, pipeline: str, sink: str) -> dict[str, Any] | None:
        found = [epoch for name, epoch in self.epochs if name == sink]
        return self.epochs[sink, max(found)] if found else None


def sink(control: Any, root: Path, topic: str = "alerts") -> LogSink:
    copy = StagedFile((root / "checkpoint").as_uri(), "staged/alerts")
    stager = LogStager((root / "log").as_uri(), "staged/cards/alerts", bytes(16), 3, copy)
    marks = LogMarks(control, Owner("cards", "alerts"))
    return LogSink(control, marks, stager, Archive(copy), topic=topic, clock=ManualClock())


def records(count: int) -> list[OutputRecord]:
    return [OutputRecord(b"k%d" % at, b"value %d" % at, 1000) for at in range(count)]


def stage(target: LogSink, epoch: int, count: int = 3) -> Any:
    return [target.stager().stage(epoch, 1, records(count))]


def test_committing_an_epoch_again_answers_what_the_first_commit_wrote(tmp_path: Path) -> None:
    target = sink(FakeControl(), tmp_path)
    first = target.commit(0, stage(target, 0))
    assert target.commit(0, stage(target, 0)) == first
    assert target.last_epoch() == 0
    assert target.truth.epochs() == [0]


def test_an_epoch_with_other_content_is_refused_and_not_taken_for_the_truth(tmp_path: Path) -> None:
    target = sink(FakeControl(), tmp_path)
    target.commit(0, stage(target, 0))
    with pytest.raises(EpochDiffers, match="epoch 0 of 'cards' with checksum"):
        target.commit(0, stage(target, 0, 4))
    assert len(list(target.truth.rows(0))) == 3


def test_an_epoch_that_went_to_another_topic_is_told(tmp_path: Path) -> None:
    control = FakeControl()
    first = sink(control, tmp_path)
    first.commit(0, stage(first, 0))
    second = sink(control, tmp_path, "others")
    with pytest.raises(TargetDiffers, match="written epoch 0 to the topic alerts, and is now"):
        second.commit(0, stage(second, 0))


def test_a_gap_and_an_absence_have_their_own_names(tmp_path: Path) -> None:
    control = FakeControl()
    target = sink(control, tmp_path)
    gap = {"error": "EPOCH_GAP", "message": "Epoch 5 does not follow.", "hint": "Commit 3."}
    control.failure = ControlRefused(409, gap)
    with pytest.raises(EpochMissing, match="does not follow"):
        target.commit(5, stage(target, 5))
    control.failure = ControlUnreachable("The control API did not answer.")
    with pytest.raises(SinkUnavailable, match="did not answer"):
        target.commit(5, stage(target, 5))
    for code, kind in (
        ("UNKNOWN_TOPIC", TargetDiffers),
        ("STORAGE_FULL", SinkFull),
        ("TOPIC_AUTHORIZATION_FAILED", NotAdmitted),
        ("STAGED_DAMAGED", ControlRefused),
    ):
        control.failure = ControlRefused(404, {"error": code, "message": "It is gone."})
        with pytest.raises(kind, match="is gone"):
            target.commit(5, stage(target, 5))


def test_a_driver_that_was_rolled_back_is_refused(tmp_path: Path) -> None:
    control = FakeControl()
    control.commit_epoch("cards", "alerts@1:withdrawn", 3, topic="alerts", staged=[], checksum="")
    with pytest.raises(Superseded, match="this is generation 0, which was rolled back"):
        sink(control, tmp_path)


def test_another_kafka_has_no_log_to_commit_to(tmp_path: Path) -> None:
    context = SinkContext("cards", tmp_path.as_uri(), tmp_path, "kafka:9092")
    with pytest.raises(NotOurLog, match=r"kafka:9092 name no catchwater\.control\.url") as refused:
        open_sink(parse("alerts", {"topic": "t"}), context)
    assert 'kind = "kafka"' in str(refused.value.hint)


def test_an_epoch_that_failed_may_run_again_with_other_content(tmp_path: Path) -> None:
    control = FakeControl()
    target = sink(control, tmp_path)
    control.failure = ControlUnreachable("The control API did not answer.")
    with pytest.raises(SinkUnavailable):
        target.commit(0, stage(target, 0, 4))
    control.failure = None
    target.commit(0, stage(target, 0, 3))
    assert len(list(target.truth.rows(0))) == 3
