"""Going back: what is moved, what is refused, and that an interrupted move is finished."""

import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from catchwater.clock import Clock
from catchwater.recovery import checkpoint, handover, rewind
from catchwater.recovery.checkpoint import NoSuchCheckpoint
from catchwater.recovery.contract import HistoryGone, LogBehind, PartitionTail
from catchwater.recovery.folder import CheckpointInUse, lock
from catchwater.recovery.ledger import EpochEntry, Ledger, SourceOffset, numbered

TAILS = {("t", 0): PartitionTail(0, 1000, 1)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Epochs 0 to 5 planned and in the ledger, 0 to 4 committed."""
    for log in ("offsets", "commits", "catchwater/epochs", "catchwater/contracts"):
        (tmp_path / log).mkdir(parents=True)
    for epoch in range(6):
        end = SourceOffset(epoch, {"t": {"0": epoch * 10}}, [0], 0)
        text = f'v1\n{{"batchTimestampMs":{epoch}}}\n{msgspec.json.encode(end).decode()}'
        (tmp_path / "offsets" / str(epoch)).write_text(text)
        (tmp_path / "offsets" / f".{epoch}.crc").touch()
        (tmp_path / "catchwater" / "epochs" / f"{epoch}.json").touch()
    for epoch in range(5):
        (tmp_path / "commits" / str(epoch)).write_text("v1\n{}")
        (tmp_path / "catchwater" / "contracts" / f"{epoch}.json").touch()
    return tmp_path


def test_what_came_after_is_moved_aside_and_nothing_is_deleted(folder: Path) -> None:
    before = {path.name for path in folder.rglob("*") if path.is_file()} | {"lock"}
    rewind.rewind(folder, 2, TAILS)
    found = checkpoint.read(folder)
    assert [each.epoch for each in found.committed] == [0, 1, 2]
    assert found.planned is None
    ledger = Ledger(folder)
    assert ledger.epochs() == [0, 1, 2]
    assert sorted(numbered(ledger.folder / "contracts", ".json")) == [0, 1, 2]
    assert sorted(numbered(ledger.replayed / "epochs", ".json")) == [3, 4, 5]
    assert ledger.recorded_epochs() == [3, 4, 5]
    recorded = ledger.recorded_end(4)
    assert recorded is not None and recorded.offsets == {"t": {"0": 40}}
    assert {path.name for path in folder.rglob("*") if path.is_file()} == before


def test_a_rewind_that_was_cut_short_at_any_file_is_finished_by_the_next_start(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, left = handover.move, 0

    def move(path: Path, into: Path) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        real(path, into)

    for moves in range(100):
        copy = tmp_path_factory.mktemp("copy") / "checkpoint"
        shutil.copytree(folder, copy)
        with monkeypatch.context() as patch:
            patch.setattr(handover, "move", move)
            left = moves
            try:
                rewind.rewind(copy, 1, TAILS)
            except KeyboardInterrupt:
                assert handover.work_of(copy) is handover.Work.REWINDING
        handover.make_ready(copy, Clock(1))
        assert [each.epoch for each in checkpoint.read(copy).committed] == [0, 1]
        assert Ledger(copy).recorded_epochs() == [2, 3, 4, 5]
        assert handover.work_of(copy) is handover.Work.WHOLE
        if left:
            break
    assert moves == 19, "each file was the first that was not moved, and at last none was"


def test_offsets_that_an_earlier_restore_spelled_otherwise_are_spelled_as_the_source_does(
    folder: Path,
) -> None:
    """And what Spark planned because of it is nothing that there is."""
    path, ahead = folder / "offsets" / "4", folder / "offsets" / "5"
    before, end = path.read_text(), Ledger(folder).start_of(5)
    assert end.to_text() not in before
    checkpoint.respell(folder)
    assert path.read_text().splitlines() == [*before.splitlines()[:2], end.to_text()]
    assert not path.with_name(".4.crc").exists(), "Hadoop would hold it to its checksum"
    assert ahead.exists(), "there is something in it"
    ahead.write_text(path.read_text())
    checkpoint.respell(folder)
    assert not ahead.exists()
    written = path.stat().st_mtime_ns
    checkpoint.respell(folder)
    assert path.stat().st_mtime_ns == written


@pytest.mark.parametrize("content", [b"", b"v1", b"v1\n{}\n[1]", b"v1\n{}\n\xff", None])
def test_a_damaged_offset_is_left_for_the_start_to_name(
    folder: Path, content: bytes | None
) -> None:
    path = folder / "offsets" / "4"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    checkpoint.respell(folder)
    assert (path.read_bytes() if content is not None else None) == content


def test_a_damaged_offset_with_nothing_planned_behind_it_is_left_for_the_start_too(
    folder: Path,
) -> None:
    (folder / "offsets" / "5").unlink()
    path = folder / "offsets" / "4"
    cut = path.read_bytes()[:-3]
    path.write_bytes(cut)
    checkpoint.respell(folder)
    assert path.read_bytes() == cut


def test_a_checkpoint_that_the_log_no_longer_covers_is_refused_with_both_offsets(
    folder: Path,
) -> None:
    with pytest.raises(HistoryGone, match="from offset 20 on, and the log begins at offset 35"):
        rewind.rewind(folder, 2, {("t", 0): PartitionTail(35, 1000, 1)})
    assert checkpoint.last_commit(folder) == 4
    assert HistoryGone.exit_code == 5


def test_a_log_that_is_shorter_or_lacks_the_partition_is_not_gone_on_with(folder: Path) -> None:
    with pytest.raises(LogBehind, match="stands at offset 20 of t-0, and the log ends at offset 5"):
        rewind.rewind(folder, 2, {("t", 0): PartitionTail(0, 5, 1)})
    with pytest.raises(HistoryGone, match="no partition t-0"):
        rewind.rewind(folder, 2, {})


def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(folder: Path) -> None:
    with pytest.raises(NoSuchCheckpoint, match="no checkpoint 9; there are: 0, 1, 2, 3, 4"):
        rewind.rewind(folder, 9, TAILS)


def test_one_that_was_planned_only_is_none(folder: Path) -> None:
    with pytest.raises(NoSuchCheckpoint):
        checkpoint.find(folder, 5)


def test_a_checkpoint_whose_pipeline_runs_is_not_touched(folder: Path) -> None:
    with lock(folder), pytest.raises(CheckpointInUse):
        rewind.rewind(folder, 2, TAILS)
    assert checkpoint.last_commit(folder) == 4


def test_beginning_anew_leaves_one_epoch_and_deletes_nothing_however_often_it_is_cut_short(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewind.rewind(folder, 3, TAILS)  # so that there are recorded epochs, 4 and 5
    place = SourceOffset(3, {"t": {"0": 700}}, [0], 5)
    start = SourceOffset(2, {"t": {"0": 700}}, [0], 5)
    entry = EpochEntry(3, start, place, [], {}, 5)
    before = {path.name for path in folder.rglob("*") if path.is_file()}
    before -= {".2.crc"}  # Hadoop's checksum of what is written over
    real = rewind.move
    for stop_at in range(100):
        copy = tmp_path_factory.mktemp("copy") / "checkpoint"
        shutil.copytree(folder, copy)
        left = iter(range(stop_at, -1, -1))

        def move(path: Path, into: Path, left: Iterator[int] = left) -> None:
            if next(left) == 0:
                raise KeyboardInterrupt
            real(path, into)

        with monkeypatch.context() as patch:
            patch.setattr(rewind, "move", move)
            with suppress(KeyboardInterrupt):
                rewind.begin_anew(copy, entry, Clock(stop_at))
        whole = next(left, None) is not None
        assert checkpoint.last_commit(copy) == 3, "its number is always there"
        rewind.begin_anew(copy, entry, Clock(1000))
        found = checkpoint.read(copy)
        assert [(each.epoch, each.end) for each in found.committed] == [(3, place)]
        assert found.planned is None
        ledger = Ledger(copy)
        assert (ledger.epochs(), ledger.recorded_epochs()) == ([3], [])
        assert ledger.first() == msgspec.structs.replace(place, epoch=-1)
        assert before <= {path.name for path in copy.rglob("*") if path.is_file()}
        if whole:
            break
    assert stop_at > 15
