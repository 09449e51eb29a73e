"""A broken checkpoint is left for the newest whole one, if the log still covers it."""

import logging
from pathlib import Path

import pytest
from tests.unit.recovery.savepoint.conftest import Made

from catchwater.recovery import checkpoint
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.fallback import NothingWhole, fall_back
from catchwater.recovery.ledger import Ledger

TAILS = {("payments", 0): PartitionTail(0, 1000, 1)}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Four epochs of ten records each."""
    made = Made(tmp_path / "checkpoint")
    for value in (b"1", b"2", b"3", b"4"):
        made.run(**{key: value for key in "abcdef"})
    return made


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def test_a_whole_checkpoint_stays(made: Made) -> None:
    assert fall_back(made.folder, TAILS).epoch == 3
    assert checkpoint.last_commit(made.folder) == 3
    assert not Ledger(made.folder).replayed.exists()


def test_the_broken_file_and_the_extra_replay_are_told(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in (2, 3):
        cut(made.folder / "offsets" / str(epoch))
    with caplog.at_level(logging.WARNING):
        assert fall_back(made.folder, TAILS).epoch == 1
    assert [each.epoch for each in checkpoint.read(made.folder).committed] == [0, 1]
    told = [record.getMessage() for record in caplog.records]
    assert f"{made.folder / 'offsets' / '3'} cannot be read" in told[0]
    assert told[-1].startswith("Going on from checkpoint 1, not 3: 2 epochs run, 20 records at")
    # The epochs that run again end where they ended.
    assert Ledger(made.folder).recorded_end(3) == made.offset(3)


def test_a_broken_older_one_is_moved_aside(made: Made) -> None:
    cut(made.folder / "catchwater" / "epochs" / "1.json")
    assert fall_back(made.folder, TAILS).epoch == 3
    assert [each.epoch for each in checkpoint.read(made.folder).committed] == [0, 2, 3]
    assert (made.folder / "catchwater" / "broken" / "offsets" / "1").exists()


def test_what_the_log_no_longer_covers_is_not_taken(made: Made) -> None:
    cut(made.folder / "commits" / "3")
    begun = {("payments", 0): PartitionTail(35, 1000, 1)}
    with pytest.raises(NothingWhole, match="the log begins at offset 35") as told:
        fall_back(made.folder, begun)
    assert told.value.exit_code == 5
    assert checkpoint.last_commit(made.folder) == 3
