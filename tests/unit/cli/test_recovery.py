"""A restore is explained, asked for, refused where history is gone, and deletes nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from catchwater.pipeline.opened import OpenPipeline
from catchwater.recovery import progress
from catchwater.recovery.contract import HistoryGone, PartitionTail, check_covered
from catchwater.recovery.folder import lock
from catchwater.recovery.ledger import SourceOffset
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
    assert {(row["infrastructure_s"], row["application_s"]) for row in rows} == {(22.0, 0.0)}
    assert {row["restore_s"] for row in rows} == {22.0}


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


@pytest.mark.parametrize(
    ("place", "epoch"),
    [("last", 2), ("-0", 2), ("-1", 1), ("1970-01-01T00:00:05Z", 1), ("2030-01-01T00:00Z", 2)],
)
def test_a_checkpoint_is_named_by_its_place(
    catchwater: Any, pipeline_file: Path, place: str, epoch: int
) -> None:
    answer = catchwater("recovery", "restore", pipeline_file, "--to", place, "--dry-run")
    assert (answer.code, f"would restore checkpoint {epoch} " in answer.err) == (0, True), answer


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("-3", "3 are kept, 0 to 2"),
        ("1960-01-01T00:00Z", "the oldest, 0, is of"),
        ("2030-01-01T00:00", "names no time zone"),
        ("friday", "catchwater savepoint restore FILE friday"),
    ],
)
def test_a_place_that_is_none_is_named(
    catchwater: Any, pipeline_file: Path, place: str, said: str
) -> None:
    answer = catchwater("recovery", "restore", pipeline_file, "--to", place, "--yes")
    assert (answer.code, said in answer.err) == (2, True), answer.err
    assert catchwater("recovery", "restore", pipeline_file, "--yes").code == 2


def test_all_that_the_log_lacks_is_named() -> None:
    end = SourceOffset(0, {"a": {"0": 5}, "b": {"0": 7, "1": 3, "2": 9}}, [0], 0)
    tails = {
        ("a", 0): PartitionTail(9, 20, 1), ("b", 1): PartitionTail(0, 20, 1),
        ("b", 2): PartitionTail(0, 4, 1),
    }  # fmt: skip
    with pytest.raises(HistoryGone) as refused:
        check_covered(end, tails)
    assert str(refused.value) == (
        "The checkpoint of epoch 0 needs a-0 from offset 5 on, and the log begins at offset 9: 4 "
        "records are gone; it needs b-0, and the log has no partition b-0 any more; it stands at "
        "offset 9 of b-2, and the log ends at offset 4."
    )
