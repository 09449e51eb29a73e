"""A broken checkpoint is left for the newest whole one, if the log still covers it."""

import logging
from pathlib import Path

import pytest
from tests.unit.recovery.savepoint.conftest import Made

from catchwater.recovery import checkpoint
from catchwater.recovery.checkpoint import Checkpoints
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.ledger import Ledger, LedgerDamaged
from catchwater.recovery.rewind import NothingWhole, fall_back

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


def taken(made: Made) -> int:
    found = fall_back(made.folder, TAILS)
    assert found is not None
    return found.epoch


def test_a_whole_checkpoint_stays(made: Made) -> None:
    assert taken(made) == 3
    assert checkpoint.last_commit(made.folder) == 3
    assert not Ledger(made.folder).replayed.exists()


def test_the_broken_file_and_the_extra_replay_are_told(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    for epoch in (2, 3):
        cut(made.folder / "offsets" / str(epoch))
    with caplog.at_level(logging.WARNING):
        assert taken(made) == 1
    assert [each.epoch for each in checkpoint.read(made.folder).committed] == [0, 1]
    told = [record.getMessage() for record in caplog.records]
    assert f"{made.folder / 'offsets' / '3'} cannot be read" in told[0]
    assert told[-1].startswith("Going on from checkpoint 1, not 3: 2 epochs run, 20 records at")
    # The epochs that run again end where they ended.
    assert Ledger(made.folder).recorded_end(3) == made.offset(3)


def test_a_broken_older_one_is_moved_aside(made: Made) -> None:
    cut(made.folder / "catchwater" / "epochs" / "1.json")
    assert taken(made) == 3
    assert [each.epoch for each in checkpoint.read(made.folder).committed] == [0, 2, 3]
    assert (made.folder / "catchwater" / "broken" / "offsets" / "1").exists()


def test_an_epoch_whose_end_only_the_next_one_tells_ends_there_again(made: Made) -> None:
    ours = made.folder / "catchwater" / "epochs"
    for path in (made.folder / "offsets" / "2", ours / "2.json", made.folder / "commits" / "3"):
        cut(path)
    assert taken(made) == 1
    assert Ledger(made.folder).recorded_end(2) == made.offset(2)
    (made.folder / "catchwater" / "replayed" / "epochs" / "3.json").unlink()
    with pytest.raises(LedgerDamaged, match="offsets/2 is missing or damaged"):
        Ledger(made.folder).recorded_end(2)
    assert Ledger(made.folder).recorded_end(4) is None


@pytest.mark.parametrize("content", [b"", b"v1\n{}\n{}", b"v1"])
@pytest.mark.parametrize("is_written", [True, False])
def test_a_plan_that_cannot_be_read_is_taken_back(
    made: Made, content: bytes, is_written: bool
) -> None:
    """Spark does not sync its files: after a power failure the newest may be empty."""
    (made.folder / "commits" / "3").unlink()
    (made.folder / "offsets" / "3").write_bytes(content)
    if not is_written:
        (made.folder / "catchwater" / "epochs" / "3.json").unlink()
    found = fall_back(made.folder, TAILS)
    assert found is not None and found.epoch == 2
    there = checkpoint.read(made.folder)
    assert (there.last, there.planned) == (found, None)
    assert Ledger(made.folder).recorded_end(3) == (made.offset(3) if is_written else None)


def test_a_first_plan_that_cannot_be_read_is_taken_back(tmp_path: Path) -> None:
    made = Made(tmp_path / "checkpoint")
    made.run(a=b"1")
    for path in (*(made.folder / "commits").iterdir(), *made.folder.rglob("epochs/0.json")):
        path.unlink()
    cut(made.folder / "offsets" / "0")
    assert fall_back(made.folder, TAILS) is None
    assert checkpoint.read(made.folder) == Checkpoints([], None)


def test_what_was_forgotten_is_not_broken(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    """Spark keeps its files of an epoch for longer than the ledger keeps its entry."""
    Ledger(made.folder).forget_before(2)
    assert checkpoint.committed_epochs(made.folder) == [2, 3]
    cut(made.folder / "offsets" / "3")
    fall_back(made.folder, TAILS)
    assert (made.folder / "offsets" / "1").exists()
    assert not (made.folder / "catchwater" / "broken").exists()
    assert not [r for r in caplog.records if "can no longer be restored" in r.getMessage()]


def test_what_the_log_no_longer_covers_is_not_taken(made: Made) -> None:
    cut(made.folder / "commits" / "3")
    begun = {("payments", 0): PartitionTail(35, 1000, 1)}
    with pytest.raises(NothingWhole, match="the log begins at offset 35") as told:
        fall_back(made.folder, begun)
    assert told.value.exit_code == 5
    assert checkpoint.last_commit(made.folder) == 3
