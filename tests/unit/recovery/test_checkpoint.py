"""A Spark checkpoint folder, read without Spark."""

from pathlib import Path

import msgspec
import pytest

from catchwater.clock import Clock
from catchwater.recovery import checkpoint
from catchwater.recovery.ledger import LedgerDamaged, SourceOffset


def plan(folder: Path, epoch: int, *, says: int | None = None) -> None:
    """What Spark writes before batch `epoch`."""
    end = SourceOffset(epoch if says is None else says, {"t": {"0": epoch * 10}}, [0], 0)
    path = folder / "offsets" / str(epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'v1\n{{"batchTimestampMs":{epoch}}}\n{msgspec.json.encode(end).decode()}')


def commit(folder: Path, epoch: int) -> None:
    """What Spark writes after it."""
    path = folder / "commits" / str(epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_a_folder_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    found = checkpoint.read(tmp_path / "absent")
    assert (found.committed, found.planned, found.last) == ([], None, None)
    assert checkpoint.last_commit(tmp_path) == -1


def test_a_batch_with_both_files_is_a_checkpoint_and_one_without_commit_is_planned(
    tmp_path: Path,
) -> None:
    for epoch in range(4):
        plan(tmp_path, epoch)
    for epoch in range(3):
        commit(tmp_path, epoch)
    found = checkpoint.read(tmp_path)
    assert [each.epoch for each in found.committed] == [0, 1, 2]
    assert found.planned is not None and found.planned.epoch == 3
    assert found.last is not None and found.last.end.offsets == {"t": {"0": 20}}
    assert [each.epoch for each in found.retained(2)] == [1, 2]
    assert checkpoint.last_commit(tmp_path) == 2


def test_an_offset_file_of_another_epoch_is_named(tmp_path: Path) -> None:
    plan(tmp_path, 4, says=5)
    commit(tmp_path, 4)
    with pytest.raises(LedgerDamaged, match="ends epoch 5, not 4"):
        checkpoint.read(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"{", b'{"id":7}', b"\xff"])
def test_a_query_whose_id_cannot_be_read_gets_one(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "metadata"
    if content is not None:
        path.write_bytes(content)
    checkpoint.name_query(tmp_path, Clock(1))
    named = checkpoint.read_query(tmp_path)
    assert named is not None and path.read_text() == f'{{"id":"{named.id}"}}'
    checkpoint.name_query(tmp_path, Clock(2))
    assert checkpoint.read_query(tmp_path) == named
