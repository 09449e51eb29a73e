"""A contract is shown as it was written, and checked against what there is now."""

import json
from pathlib import Path
from typing import Any

import pytest

from catchwater.pipeline.opened import OpenPipeline
from catchwater.recovery import pins
from catchwater.recovery.contract import LogState, PartitionTail


@pytest.fixture
def log_holds(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Say what the log is to hold when it is asked."""

    def holds(tail: PartitionTail, *pinned: str, sink_epoch: int = 2) -> None:
        state = LogState(
            {("payments", 0): tail}, dict.fromkeys(pinned, "reserved"), {"alerts": sink_epoch}
        )
        monkeypatch.setattr(OpenPipeline, "control", object())
        monkeypatch.setattr(pins, "read_log_state", lambda *asked: state)
        monkeypatch.setattr("catchwater.cli.sink.last_epochs", lambda file: state.sink_epochs)

    return holds


def test_the_newest_contract_is_shown_unless_another_is_named(
    catchwater: Any, pipeline_file: Path
) -> None:
    newest = json.loads(catchwater("contract", "show", pipeline_file, "--json").out)
    first = json.loads(
        catchwater("contract", "show", pipeline_file, "--checkpoint", 0, "--json").out
    )
    assert (newest["epoch"], newest["replay_records"]) == (2, 70)
    assert (first["epoch"], first["replay_records"]) == (0, 90)


def test_a_contract_for_people_names_what_counts(catchwater: Any, pipeline_file: Path) -> None:
    out = catchwater("contract", "show", pipeline_file).out
    for words in ("card-risk v2", "70 records", "of 600 s", "card-risk/2"):
        assert words in out


def test_a_contract_that_is_not_there_is_refused(catchwater: Any, pipeline_file: Path) -> None:
    answer = catchwater("contract", "show", pipeline_file, "--checkpoint", 9)
    assert answer.code == 1
    assert "there are 0, 1, 2" in answer.err


def test_a_contract_that_holds_exits_0(
    catchwater: Any, pipeline_file: Path, log_holds: Any
) -> None:
    log_holds(PartitionTail(0, 100, 1_000), "card-risk/2")
    assert catchwater("contract", "check", pipeline_file).code == 0


def test_a_contract_without_its_pin_warns(
    catchwater: Any, pipeline_file: Path, log_holds: Any
) -> None:
    log_holds(PartitionTail(0, 100, 1_000))
    assert catchwater("contract", "check", pipeline_file).code == 3


def test_a_contract_whose_input_is_gone_fails_and_names_the_offsets(
    catchwater: Any, pipeline_file: Path, log_holds: Any
) -> None:
    log_holds(PartitionTail(35, 100, 1_000), "card-risk/2")
    answer = catchwater("contract", "check", pipeline_file)
    assert answer.code == 4
    assert "from offset 30 on, and the log begins at offset 35" in answer.out
