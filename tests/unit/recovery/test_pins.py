"""Pins: one for each retained checkpoint, none beyond."""

from typing import Any

import pytest

from catchwater.recovery.checkpoint import Checkpoint
from catchwater.recovery.contract import HistoryGone, PartitionTail
from catchwater.recovery.ledger import SourceOffset
from catchwater.recovery.pins import hold, read_log_state, refuse_lost, stale
from catchwater.replay.control import ControlRefused


class FakeControl:
    """A log with two partitions that remembers its pins."""

    def __init__(self, *pins: str, log_start: int = 0) -> None:
        self.log_start = log_start
        self.held: dict[str, Any] = {name: {} for name in pins}
        self.states: dict[str, str] = {}

    def pins(self) -> list[dict[str, Any]]:
        return [
            {"positions": [], "state": "reserved"}
            | pin
            | {"id": name, "state": self.states.get(name, "reserved")}
            for name, pin in self.held.items()
        ]

    def set_pin(self, pin_id: str, pin: Any) -> None:
        offset = pin["positions"][0]["offset"]
        if offset < self.log_start:
            gap = {"partition": 0, "start": offset, "end": self.log_start}
            raise ControlRefused(416, {"error": "OFFSET_OUT_OF_RANGE", "missing": [gap]})
        self.held[pin_id] = pin
        self.states[pin_id] = "reserved"

    def release_pin(self, pin_id: str) -> None:
        del self.held[pin_id]

    def last_epoch(self, pipeline: str, sink: str) -> dict[str, Any] | None:
        return {"epoch": 4} if sink == "alerts" else None

    def request(self, method: str, path: str) -> dict[str, Any]:
        assert (method, path) == ("GET", "/api/v1/topics/t")
        return {"offsets": [{"partition": 0, "log_start": 1, "high_watermark": 9, "bytes": 80}]}


def retained(*epochs: int) -> list[Checkpoint]:
    return [Checkpoint(e, SourceOffset(e, {"t": {"0": e * 10}}, [0], 0)) for e in epochs]


def test_retained_checkpoints_are_pinned_at_their_offsets_and_older_ones_released() -> None:
    control = FakeControl("cards/1", "cards/2", "other/1")
    hold(control, "cards", retained(2, 3))  # type: ignore[arg-type]
    assert sorted(control.held) == ["cards/2", "cards/3", "other/1"]
    assert control.held["cards/3"] == {
        "owner": "cards",
        "positions": [{"topic": "t", "partition": 0, "offset": 30}],
    }


def test_after_a_restore_what_the_log_lost_meanwhile_is_not_promised_again() -> None:
    control = FakeControl("cards/3", log_start=25)
    held = hold(control, "cards", retained(1, 2, 3, 4))  # type: ignore[arg-type]
    assert [each.epoch for each in held] == [3, 4]
    assert sorted(control.held) == ["cards/3", "cards/4"]


def test_what_a_backfill_has_in_the_topic_s_table_no_pin_has_to_hold() -> None:
    control = FakeControl(log_start=25)
    tails = {("t", 0): PartitionTail(25, 90, 1, table_from=10)}
    held = hold(control, "cards", retained(1, 2, 3), tails)  # type: ignore[arg-type]
    assert [each.epoch for each in held] == [1, 2, 3]
    places = [pin["positions"][0]["offset"] for pin in control.held.values()]
    assert places == [25, 25, 30]
    refuse_lost(control, retained(1)[0].end, tails)  # type: ignore[arg-type]
    control.states["cards/1"] = "lost"
    with pytest.raises(HistoryGone, match="cards/1 is lost"):
        refuse_lost(control, retained(1)[0].end, tails)  # type: ignore[arg-type]
    before = retained(0, 3)  # of offset 0 the table has nothing
    assert [each.epoch for each in hold(control, "cards", before, tails)] == [3]  # type: ignore[arg-type]


def test_a_log_that_lost_what_the_newest_checkpoint_needs_is_an_error() -> None:
    with pytest.raises(ControlRefused):
        hold(FakeControl(log_start=99), "cards", retained(1, 2))  # type: ignore[arg-type]


def test_pins_of_others_and_pins_set_by_hand_are_left_alone() -> None:
    held = ["cards/1", "cards/keep-for-audit", "cards-2/1", "backfill"]
    assert stale("cards", [], held) == ["cards/1"]


def test_what_a_check_needs_is_asked_of_the_log() -> None:
    state = read_log_state(FakeControl("cards/1"), ["t"], {"alerts": 4})  # type: ignore[arg-type]
    assert state.tails == {("t", 0): PartitionTail(1, 9, 80)}
    assert state.pins == {"cards/1": "reserved"}
    assert state.sink_epochs == {"alerts": 4}


def test_a_pin_the_log_has_lost_is_set_anew_where_the_offsets_are_there() -> None:
    control = FakeControl("cards/3", "cards/4", log_start=35)
    control.states = {"cards/3": "lost", "cards/4": "lost"}
    held = hold(control, "cards", retained(3, 4))  # type: ignore[arg-type]
    assert [each.epoch for each in held] == [4]
    assert (list(control.held), control.states["cards/4"]) == (["cards/4"], "reserved")


def test_a_checkpoint_whose_pin_is_lost_is_refused_with_both_offsets() -> None:
    control = FakeControl()
    hold(control, "cards", retained(3))  # type: ignore[arg-type]
    [third] = retained(3)
    tails = {("t", 0): PartitionTail(12, 90, 80)}
    refuse_lost(control, third.end, tails)  # type: ignore[arg-type]
    control.states["cards/3"] = "lost"
    with pytest.raises(HistoryGone, match=r"t-0 from offset 30 on \(the log begins at 12\)"):
        refuse_lost(control, third.end, tails)  # type: ignore[arg-type]
