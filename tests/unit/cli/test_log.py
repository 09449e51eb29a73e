"""A WAL is described from its files, without opening it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from catchwater.broker_config import LogConfig
from catchwater.clock import ManualClock
from catchwater.log.log import Log
from catchwater.log.write.writer import Submission
from catchwater.objects.open import open_store
from catchwater.wal.file import FileWal
from catchwater.wal.object import ObjectWal
from catchwater.wal.shared import make_session_folder
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header


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


def a_log(data: Path) -> Path:
    """A closed log with a topic of one partition, two records in a segment and one in a chunk."""

    async def fill() -> None:
        log = await Log.open(data, LogConfig(background=False), ManualClock())
        topic = await log.create_topic("t", 1)
        for value in (b"one", b"two", b"three"):
            batch = memoryview(encode_batch([(None, value, 1_000, ())]))
            await log.submit([Submission((topic.id, 0), read_header(batch), batch)])
            if value == b"two":
                await log.keeping.pack()
        await log.keeping.back_up()
        await log.close()

    asyncio.run(fill())
    return data


def test_fsck_leaves_with_4_and_names_what_is_missing(catchwater: Any, tmp_path: Path) -> None:
    data = a_log(tmp_path / "data")
    answer = catchwater("log", "fsck", "--data", data, "--deep")
    assert (answer.code, answer.out) == (0, ""), answer.err
    assert "nothing damaged" in answer.err
    [segment] = data.glob("objects/segments/**/*.seg")
    segment.unlink()
    answer = catchwater("log", "fsck", "--data", data)
    assert answer.code == 4
    assert "t-0" in answer.out and "0 to 1" in answer.out and segment.name in answer.out
    told = json.loads(catchwater("log", "fsck", "--data", data, "--json").out)
    assert (told["good"], told["damaged"][0]["last_offset"]) == (False, 1)


def test_a_rebuild_asks_before_it_moves_a_catalog_aside(catchwater: Any, tmp_path: Path) -> None:
    data = a_log(tmp_path / "data")
    answer = catchwater("log", "rebuild", "--to", data)
    assert answer.code == 5 and "--yes" in answer.err
    answer = catchwater("log", "rebuild", "--to", data, "--dry-run")
    assert answer.code == 0 and not list(data.glob("catalog-aside-*"))
    answer = catchwater("log", "rebuild", "--to", data, "--yes", "--json")
    assert (answer.code, json.loads(answer.out)["findings"]) == (0, [])
    assert len(list(data.glob("catalog-aside-*/catalog.db"))) == 1
    assert catchwater("log", "fsck", "--data", data, "--deep").code == 0


def test_a_rebuild_that_lacks_something_warns(catchwater: Any, tmp_path: Path) -> None:
    data = a_log(tmp_path / "data")
    for file in [*data.glob("wal/*"), *data.glob("catalog.*")]:
        file.unlink()
    answer = catchwater("log", "rebuild", "--to", data, "--from", data / "objects")
    assert answer.code == 3
    assert "lost" in answer.out and "2 to 2" in answer.out
