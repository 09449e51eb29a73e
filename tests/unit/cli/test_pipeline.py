"""A pipeline's status is read from its checkpoint alone."""

import json
from pathlib import Path
from typing import Any


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


def test_an_unknown_key_in_the_file_is_named(catchwater: Any, pipeline_file: Path) -> None:
    pipeline_file.write_text(pipeline_file.read_text().replace("subscribe", "subscribes"))
    answer = catchwater("pipeline", "status", pipeline_file)
    assert answer.code == 2
    assert "subscribes" in answer.err
