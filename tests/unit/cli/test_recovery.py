"""A restore is explained, asked for, refused where history is gone, and deletes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from catchwater.pipeline.opened import OpenPipeline
from catchwater.recovery import progress
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.folder import lock
from catchwater.recovery.progress import CatchingUp, Range


class NoPins:
    """The control API of a log without pins."""

    def pins(self) -> list[Any]:
        return []


@pytest.fixture(autouse=True)
def log_begins_at_15(monkeypatch: pytest.MonkeyPatch) -> None:
    tails = {("payments", 0): PartitionTail(15, 100, 1_000)}
    monkeypatch.setattr(OpenPipeline, "tails", lambda *_: tails)
    monkeypatch.setattr(OpenPipeline, "control", NoPins())
    monkeypatch.setattr(OpenPipeline, "sink_epochs", lambda _: {"alerts": 2})


def test_every_checkpoint_is_explained(catchwater: Any, pipeline_file: Path) -> None:
    rows = json.loads(catchwater("recovery", "explain", pipeline_file, "--json").out)["checkpoints"]
    assert [(row["checkpoint"], row["restorable"], row["replay_records"]) for row in rows] == [
        (0, False, 90), (1, True, 80), (2, True, 70),
    ]  # fmt: skip
    assert "begins at offset 15" in rows[0]["why_not"]
    # Nothing was measured: by the defaults, and with no input known to come.
    assert {(row["infrastructure_s"], row["application_s"]) for row in rows} == {(21.0, 0.0)}
    assert {row["restore_s"] for row in rows} == {21.0}


def test_without_a_checkpoint_that_is_said(
    catchwater: Any, pipeline_file: Path, tmp_path: Path
) -> None:
    text = pipeline_file.read_text().replace('"checkpoint"', '"elsewhere"')
    pipeline_file.write_text(text)
    answer = catchwater("recovery", "explain", pipeline_file)
    told = f"there is no checkpoint in {tmp_path / 'elsewhere'} yet\n"
    assert answer == (0, "", told)
    answer = catchwater("pipeline", "versions", pipeline_file)
    assert answer == (0, "", f"nothing has run on {tmp_path / 'elsewhere'} yet\n")


def test_a_restore_moves_what_came_after_aside(catchwater: Any, pipeline_file: Path) -> None:
    answer = catchwater("recovery", "restore", pipeline_file, "--checkpoint", 1, "--yes")
    folder = pipeline_file.parent / "checkpoint"
    assert answer.code == 0
    assert {path.name for path in (folder / "commits").iterdir()} == {"0", "1"}
    aside = folder / "catchwater" / "replayed"
    assert {path.name for path in (aside / "offsets").iterdir()} == {"2", "3"}


def test_a_dry_run_changes_nothing(catchwater: Any, pipeline_file: Path) -> None:
    answer = catchwater("recovery", "restore", pipeline_file, "--checkpoint", 1, "--dry-run")
    assert answer.code == 0
    assert "80 records" in answer.err
    assert (pipeline_file.parent / "checkpoint" / "commits" / "2").exists()


def test_without_yes_and_without_an_answer_nothing_changes(
    catchwater: Any, pipeline_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *prompt: "n")
    answer = catchwater("recovery", "restore", pipeline_file, "--checkpoint", 1)
    assert answer.code == 1
    assert (pipeline_file.parent / "checkpoint" / "commits" / "2").exists()


def test_a_checkpoint_whose_history_is_gone_is_refused_with_exit_5(
    catchwater: Any, pipeline_file: Path
) -> None:
    answer = catchwater("recovery", "restore", pipeline_file, "--checkpoint", 0, "--yes")
    assert answer.code == 5
    assert "from offset 10 on, and the log begins at offset 15" in answer.err
    assert (pipeline_file.parent / "checkpoint" / "commits" / "2").exists()


def test_a_checkpoint_that_is_not_there_is_a_usage_error(
    catchwater: Any, pipeline_file: Path
) -> None:
    answer = catchwater("recovery", "restore", pipeline_file, "--checkpoint", 9, "--yes")
    assert answer.code == 2
    assert "there are: 0, 1, 2" in answer.err


def test_how_far_a_restore_is_is_shown_while_a_process_works_on_it(
    catchwater: Any, pipeline_file: Path
) -> None:
    folder = pipeline_file.parent / "checkpoint"
    under_way = CatchingUp(500, 3, [Range("payments", 0, 30, 80, 10.0)])
    progress.begin(folder, under_way)
    stopped = json.loads(catchwater("pipeline", "status", pipeline_file, "--json").out)
    assert stopped["catching_up"] is None, "nobody works on it"
    with lock(folder):
        told = json.loads(catchwater("pipeline", "status", pipeline_file, "--json").out)
        page = catchwater("pipeline", "status", pipeline_file).out
    assert told["catching_up"]["partitions"] == [
        {"name": "payments-0", "done": 0, "of": 50, "percent": 0.0, "per_s": None,
         "bytes_per_s": None, "eta_s": None},
    ]  # fmt: skip
    assert "catching up" in page and "session: 0 % of the input" in page
    assert "payments-0" in page
