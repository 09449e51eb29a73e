"""A contract is shown as it was written, and checked against what there is now."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from catchwater.pipeline.opened import OpenPipeline
from catchwater.recovery import pins
from catchwater.recovery.contract import (
    LogState,
    PartitionTail,
    load_contracts,
    write_contract,
)
from catchwater.recovery.estimate import Pace, estimate


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
    answer = catchwater("contract", "check", pipeline_file)
    assert answer.code == 3
    assert "next: the next checkpoint makes a pin again" in answer.err


def test_a_contract_whose_input_is_gone_fails_and_names_the_offsets(
    catchwater: Any, pipeline_file: Path, log_holds: Any
) -> None:
    log_holds(PartitionTail(35, 100, 1_000), "card-risk/2")
    answer = catchwater("contract", "check", pipeline_file)
    assert answer.code == 4
    assert "from offset 30 on, and the log begins at offset 35" in answer.out
    assert f"catchwater recovery explain {pipeline_file}\n" in answer.err
    assert answer.err.endswith(f"catchwater recovery reset {pipeline_file} --to earliest\n")


@pytest.mark.parametrize(("changes", "code"), [
    ({}, 0),
    ({"max_restore_s": 25.0}, 3),
    ({"max_restore_s": 5.0}, 4),
    ({"recovery_point_s": 9.0, "max_replay_s": 8.0}, 4),
])  # fmt: skip
def test_a_budget_that_is_breached_shows_in_text_and_exit_code(
    catchwater: Any, pipeline_file: Path, changes: dict[str, Any], code: int
) -> None:
    folder = pipeline_file.parent / "checkpoint"
    newest = load_contracts(folder)[-1]
    write_contract(folder, msgspec.structs.replace(newest, **changes))
    for noun, verb in (("contract", "show"), ("pipeline", "status")):
        for how in ((), ("--json",)):
            assert catchwater(noun, verb, pipeline_file, *how).code == code, (noun, how)
    status = catchwater("pipeline", "status", pipeline_file).out
    assert ("breached)" in status) == (code != 0)
    told = json.loads(catchwater("pipeline", "status", pipeline_file, "--json").out)["restore"]
    assert (told["checkpoint"], told["infrastructure_s"]) == (2, 22.0)


def test_a_restore_that_never_catches_up_is_shown_with_the_headroom_that_is_missing(
    catchwater: Any, pipeline_file: Path
) -> None:
    folder = pipeline_file.parent / "checkpoint"
    newest = load_contracts(folder)[-1]
    overloaded = Pace(input_per_s=500.0, busy_per_s=400.0, saturated=True)
    never = estimate([], state_bytes=0, replay_records=0, pace=overloaded)
    write_contract(folder, msgspec.structs.replace(newest, restore=never, max_restore_s=None))
    answer = catchwater("contract", "show", pipeline_file)
    assert answer.code == 3
    assert "never: 500 records/s come and 400 can be processed, 100 too few" in answer.out
    assert "replay never ends" in answer.out


def test_a_contract_of_an_earlier_version_is_shown(catchwater: Any, pipeline_file: Path) -> None:
    """Format 2 had neither timelines nor a recovery point."""
    path = pipeline_file.parent / "checkpoint" / "catchwater" / "contracts" / "2.json"
    plain = json.loads(path.read_text())
    plain["restore"] = {"seconds": 20.5, "low_s": 8.2, "high_s": 32.8, "samples": 3}
    for name in ("recovery_point_s", "max_replay_s", "format"):
        del plain[name]
    path.write_text(json.dumps(plain))
    answer = catchwater("contract", "show", pipeline_file)
    assert answer.code == 0
    assert "20.5 s (8.2 to 32.8) of 600 s" in answer.out
    assert catchwater("pipeline", "status", pipeline_file).code == 0
