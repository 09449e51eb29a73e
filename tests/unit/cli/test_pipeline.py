"""A pipeline's status is read from its checkpoint alone."""

import json
import os
from pathlib import Path
from typing import Any

import msgspec

from catchwater.pipeline.supervisor.supervise import Supervision
from catchwater.recovery.lock import SUPERVISOR, lock


def test_the_status_tells_epochs_and_what_they_did(catchwater: Any, pipeline_file: Path) -> None:
    told = json.loads(catchwater("pipeline", "status", pipeline_file, "--json").out)
    assert (told["committed_epoch"], told["planned_epoch"]) == (2, 3)
    assert told["restorable"] == [0, 1, 2]
    assert told["recent_epochs"][-1] == {
        "epoch": 2, "events": 10, "outputs": 2, "late": 0, "duplicates": 1, "poisoned": 0,
        "delta_bytes": 20, "restore_s": 0.5, "finished_ms": 1000,
    }  # fmt: skip
    assert told["operator"] == {
        "keys": 4, "state_bytes": 50, "operator_p50_ms": 12.5, "operator_p99_ms": 12.5,
    }  # fmt: skip
    assert "operator_p99_ms" in catchwater("pipeline", "status", pipeline_file).out


def test_a_pipeline_that_never_ran_has_a_status_too(
    catchwater: Any, pipeline_file: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    pipeline_file.rename(moved / "pipeline.toml")
    answer = catchwater("pipeline", "status", moved / "pipeline.toml", "--json")
    assert json.loads(answer.out)["committed_epoch"] is None


def test_a_file_that_is_not_there_is_told_with_what_to_do(catchwater: Any, tmp_path: Path) -> None:
    answer = catchwater("pipeline", "status", tmp_path / "absent.toml")
    assert answer.code == 2
    told = f"error: There is no pipeline file {tmp_path / 'absent.toml'}.\nhint: Name one"
    assert answer.err.startswith(told)


def test_a_place_that_is_no_folder_is_no_bug(catchwater: Any, pipeline_file: Path) -> None:
    text = pipeline_file.read_text().replace('"checkpoint"', '"pipeline.toml/checkpoint"')
    pipeline_file.write_text(text)
    answer = catchwater("pipeline", "status", pipeline_file)
    assert (answer.code, answer.out) == (1, "")
    assert "Not a directory" in answer.err
    assert "hint: Name a place" in answer.err


def test_an_unknown_key_in_the_file_is_named(catchwater: Any, pipeline_file: Path) -> None:
    pipeline_file.write_text(pipeline_file.read_text().replace("subscribe", "subscribes"))
    answer = catchwater("pipeline", "status", pipeline_file)
    assert answer.code == 2
    assert "subscribes" in answer.err


def test_a_supervisor_that_is_gone_without_a_word_was_killed(
    catchwater: Any, pipeline_file: Path
) -> None:
    told = Supervision(1, "running", 5, driver=2, spare=3, restarts=4, last_cause="No route.")
    path = pipeline_file.parent / "checkpoint" / "catchwater" / "supervisor.json"
    path.write_bytes(msgspec.json.encode(told))
    supervisor = json.loads(catchwater("pipeline", "status", pipeline_file, "--json").out)[
        "supervisor"
    ]
    assert (supervisor["state"], supervisor["driver"], supervisor["restarts"]) == (
        "killed",
        None,
        4,
    )
    with lock(pipeline_file.parent / "checkpoint", name=SUPERVISOR):
        answer = catchwater("pipeline", "status", pipeline_file)
    assert "state=running, since_ms=5, driver=2, spare=3" in answer.out


def test_stopping_what_does_not_run_says_so(catchwater: Any, pipeline_file: Path) -> None:
    answer = catchwater("pipeline", "stop", pipeline_file, "--yes")
    assert (answer.code, answer.err.startswith("Nothing works on ")) == (0, True)


def test_a_dry_run_stops_nothing(catchwater: Any, pipeline_file: Path) -> None:
    with lock(pipeline_file.parent / "checkpoint", name=SUPERVISOR):
        answer = catchwater("pipeline", "stop", pipeline_file, "--dry-run")
    assert answer.err == f"Process {os.getpid()} was left running.\n"
