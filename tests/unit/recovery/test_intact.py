"""Every file a checkpoint needs, cut or gone in turn: it is named, and an older one is taken."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.recovery.savepoint.conftest import Made, state_of

from catchwater.recovery import rewind
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.intact import check_files, newest_intact
from catchwater.recovery.ledger import Ledger, LedgerDamaged

TAILS = {("payments", 0): PartitionTail(0, 1000, 1)}


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Three epochs."""
    made = Made(tmp_path / "checkpoint")
    for value in (b"1", b"2", b"3"):
        made.run(**{key: value for key in "abcdef"})
    return made


def newest_delta(made: Made) -> Path:
    files = (made.folder / "catchwater" / "state").rglob(f"{3:020}-*.delta")
    return sorted(files)[0]


FILES: dict[str, Callable[[Made], Path]] = {
    "offsets": lambda made: made.folder / "offsets" / "2",
    "commits": lambda made: made.folder / "commits" / "2",
    "entry": lambda made: made.folder / "catchwater" / "epochs" / "2.json",
    "state": newest_delta,
}


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-3])


def test_a_whole_checkpoint_is_the_newest_one(made: Made) -> None:
    found, problems = newest_intact(made.folder, TAILS)
    assert found is not None
    assert (found.epoch, problems) == (2, [])


@pytest.mark.parametrize("file", FILES)
def test_one_that_is_damaged_is_named_and_the_one_before_is_taken(made: Made, file: str) -> None:
    path = FILES[file](made)
    cut(path)
    found, problems = newest_intact(made.folder, TAILS)
    assert found is not None and found.epoch == 1
    assert len(problems) == 1
    assert problems[0].startswith("Checkpoint 2: ")
    assert path.name in problems[0]


@pytest.mark.parametrize("file", ["entry", "state"])
def test_one_that_is_gone_is_named_too(made: Made, file: str) -> None:
    path = FILES[file](made)
    path.unlink()
    found, problems = newest_intact(made.folder, TAILS)
    assert found is not None and found.epoch == 1
    assert path.name in problems[0]


def test_it_is_taken_only_if_the_log_still_covers_it(made: Made) -> None:
    cut(FILES["state"](made))
    found, problems = newest_intact(made.folder, {("payments", 0): PartitionTail(25, 1000, 1)})
    assert found is None
    assert "from offset 20 on, and the log begins at offset 25" in problems[1]
    assert [problem[:13] for problem in problems] == [f"Checkpoint {n}:" for n in (2, 1, 0)]


def test_a_restore_goes_back_behind_a_damaged_offset_file_with_the_end_it_had(made: Made) -> None:
    cut(FILES["offsets"](made))
    found, _ = newest_intact(made.folder, TAILS)
    assert found is not None
    rewind.rewind(made.folder, found.epoch, TAILS)
    assert Ledger(made.folder).recorded_end(2) == made.offset(2)
    assert state_of(made.folder) == made.model[1]


def test_an_offset_that_is_whole_and_another_one_is_noticed(made: Made) -> None:
    path = FILES["offsets"](made)
    path.write_text(path.read_text().replace('"0":30', '"0":31'))
    with pytest.raises(LedgerDamaged, match="ends elsewhere than its entry"):
        check_files(made.folder, 2)


def test_files_alone_are_looked_at_at_every_start(made: Made) -> None:
    check_files(made.folder, 2)
    for name in ("offsets", "commits", "entry"):
        path = FILES[name](made)
        before = path.read_bytes()
        cut(path)
        with pytest.raises(LedgerDamaged, match=path.name):
            check_files(made.folder, 2)
        path.write_bytes(before)
