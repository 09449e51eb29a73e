"""A WAL is described from its files, without opening it."""

import json
from pathlib import Path
from typing import Any

from catchwater.clock import ManualClock
from catchwater.wal.file import FileWal


def test_each_file_is_told_with_its_frames(catchwater: Any, tmp_path: Path) -> None:
    wal = FileWal(tmp_path, ManualClock(), applied=0)
    for payload in (b"one", b"two"):
        wal.append([payload])
    wal.close()
    answer = catchwater("log", "wal", "describe", "--data", tmp_path, "--json")
    told = json.loads(answer.out)
    assert (answer.code, told["kind"]) == (0, "file")
    (file,) = told["files"]
    assert (file["first_frame"], file["last_frame"], file["unreadable_bytes"]) == (1, 2, 0)


def test_a_directory_without_a_log_is_refused(catchwater: Any, tmp_path: Path) -> None:
    answer = catchwater("log", "wal", "describe", "--data", tmp_path)
    assert (answer.code, answer.out) == (1, "")
    assert str(tmp_path) in answer.err
