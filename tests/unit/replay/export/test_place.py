"""A folder that is abandoned stays gone, though tasks of the job may still write."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from catchwater.replay.export.place import ExportGone, Folder


def test_attempts_that_write_while_a_folder_is_abandoned_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Folder(tmp_path / "out", "token")
    folder.begin()
    with folder.file("part-1") as path:
        path.write_bytes(b"rows")
    whole = shutil.rmtree

    def meanwhile(path: Path, **options: Any) -> None:
        """Between its look at the folder and the end of the folder, an attempt writes."""
        with pytest.raises(ExportGone), folder.file("part-2") as late:
            late.write_bytes(b"rows")
        whole(path, **options)

    monkeypatch.setattr(shutil, "rmtree", meanwhile)
    folder.abandon()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    folder.abandon()  # what is gone can be abandoned
