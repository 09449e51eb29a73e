"""What `savepoint` says where there is none."""

from pathlib import Path
from typing import Any

import pytest

from catchwater.pipeline.change.around import Around


@pytest.fixture(autouse=True)
def another_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked for pins."""
    monkeypatch.setattr(Around, "of", lambda config: Around(config, None))
    monkeypatch.setattr(Around, "name", "card-risk")


def test_only_a_savepoint_that_is_there_is_deleted(
    catchwater: Any, pipeline_file: Path, tmp_path: Path
) -> None:
    left = tmp_path / "savepoints" / "half"
    left.mkdir(parents=True)
    (left / "object").write_bytes(b"four")
    answer = catchwater("savepoint", "delete", pipeline_file, "halb", "--yes")
    assert (answer.code, answer.out) == (2, "")
    assert "There is no savepoint 'halb'" in answer.err
    assert catchwater("savepoint", "delete", pipeline_file, "half", "--yes").err == (
        "4 bytes deleted\n"
    )
    assert not (left / "object").exists()


def test_a_file_to_import_that_is_not_there_is_no_bug(catchwater: Any, pipeline_file: Path) -> None:
    answer = catchwater("savepoint", "import", pipeline_file, "absent.tar")
    assert answer.code == 1
    assert "No such file or directory (absent.tar)" in answer.err
    assert "bug" not in answer.err
