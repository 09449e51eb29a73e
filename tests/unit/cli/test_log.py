"""A WAL is described from its files, without opening it."""

import json
from pathlib import Path
from typing import Any

import pytest

from catchwater.clock import ManualClock
from catchwater.objects.open import open_store
from catchwater.wal.file import FileWal
from catchwater.wal.object import ObjectWal
from catchwater.wal.shared import make_session_folder


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


@pytest.mark.parametrize("kind", ["file", "object", "postgres"])
def test_the_logs_of_many_brokers_are_told_by_session(
    catchwater: Any, tmp_path: Path, kind: str
) -> None:
    objects, clock = (tmp_path / "objects").as_uri(), ManualClock()
    settings = ["catchwater.catalog=postgresql://host/db", f"catchwater.objects={objects}"]
    settings.append(f"catchwater.wal={kind}")
    if kind == "file":
        settings.append(f"catchwater.wal.dir={tmp_path}")
        for prefix in ("1-1/", "2-7/"):
            make_session_folder(tmp_path, prefix, clock, cluster_id="c")
            wal = FileWal(tmp_path, clock, applied=0, prefix=prefix)
            wal.append([b"one"])
            wal.close()
    elif kind == "object":
        for prefix in ("1-1/", "2-7/"):
            ObjectWal(open_store(objects, clock), clock, prefix=prefix).append([b"one"])
    file = tmp_path / "broker.properties"
    file.write_text("\n".join(settings))
    answer = catchwater("log", "wal", "describe", "--config", file, "--json")
    assert answer.code == 0, answer.err
    told = json.loads(answer.out)
    assert (told["kind"], told["is_shared"]) == (kind, True)
    assert told["failure_domain"] and told["latency_class"] and told["readers"]
    sessions = [] if kind == "postgres" else ["1-1", "2-7"]
    assert [file["session"] for file in told["files"]] == sessions
    assert all(file["files"] == 1 for file in told["files"])
