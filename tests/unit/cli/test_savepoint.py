"""What `savepoint` says where there is none."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.recovery.savepoint.conftest import Made

from catchwater.clock import Clock
from catchwater.pipeline.functions.schema import Kind, StateSchema
from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run.versions import Version, Versions, store
from catchwater.recovery.savepoint.create import create
from catchwater.recovery.savepoint.store import Shelf
from catchwater.wire.connection import ConnectionLost


@pytest.fixture(autouse=True)
def another_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is asked for pins, and no broker answers."""

    def lost(_: OpenPipeline) -> None:
        raise ConnectionLost("No broker at 127.0.0.1:9092.")

    monkeypatch.setattr(OpenPipeline, "tails", lost)
    monkeypatch.setattr(OpenPipeline, "control", None)
    monkeypatch.setattr(OpenPipeline, "name", "card-risk")


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


@pytest.fixture
def shelf(pipeline_file: Path, tmp_path: Path) -> Shelf:
    """With a savepoint that is whole, and one whose own file is cut off."""
    made = Made(tmp_path / "made")
    made.run(a=b"1")
    shelf = Shelf.at((tmp_path / "savepoints").as_uri(), Clock(2))
    for name in ("short", "whole"):
        create(made.source, shelf, name)
    data = shelf.store.get("short/savepoint.json")
    shelf.store.put("short/savepoint.json", [data[:50]])
    return shelf


def test_a_damaged_savepoint_is_listed_told_and_deleted(
    catchwater: Any, pipeline_file: Path, shelf: Shelf
) -> None:
    answer = catchwater("savepoint", "list", pipeline_file, "--json")
    assert [(each["name"], each["epoch"]) for each in json.loads(answer.out)] == [
        ("short", None), ("whole", 0),
    ]  # fmt: skip
    assert "short/savepoint.json cannot be used" in answer.err
    assert "short" in catchwater("savepoint", "list", pipeline_file).out
    answer = catchwater("savepoint", "verify", pipeline_file, "short", "--json")
    assert answer.code == 4
    assert [(each["verdict"], each["subject"]) for each in json.loads(answer.out)] == [
        ("fail", "savepoint.json")
    ]
    assert catchwater("savepoint", "delete", pipeline_file, "short", "--yes").code == 0
    assert shelf.names() == ["whole"]


def test_an_import_says_first_what_it_would_bring(
    catchwater: Any, pipeline_file: Path, shelf: Shelf, tmp_path: Path
) -> None:
    tar = tmp_path / "whole.tar"
    catchwater("savepoint", "export", pipeline_file, "whole", tar)
    catchwater("savepoint", "delete", pipeline_file, "whole", "--yes")
    answer = catchwater("savepoint", "export", pipeline_file, "short", tmp_path / "no" / "x.tar")
    assert answer.code == 1
    assert answer.err.startswith(
        f"error: The operating system says: No such file or directory ({tmp_path}/no)"
    )
    answer = catchwater("savepoint", "import", pipeline_file, tar, "--dry-run")
    assert (answer.code, answer.out) == (0, "")
    assert answer.err == f"would import epoch 0 of cards to {shelf.url('whole')}\n"
    assert shelf.names() == ["short"]
    assert catchwater("savepoint", "import", pipeline_file, tar, "--yes").code == 0
    assert shelf.names() == ["short", "whole"]


def test_a_restore_that_is_cut_short_says_the_whole_command_again(
    catchwater: Any, pipeline_file: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[Any] = []
    monkeypatch.setattr(
        "catchwater.pipeline.change.rollback.check_restore",
        lambda around, want: wanted.append(want),
    )
    catchwater("savepoint", "restore", pipeline_file, "whole", "--into", "other", "--shards", "3",
               "--at", shelf.store.url(), "--claim", "--dry-run")  # fmt: skip
    assert wanted[0].command == (
        f"catchwater savepoint restore {pipeline_file} whole --into other --shards 3 "
        f"--at {shelf.store.url()} --claim"
    )


def test_a_restore_says_what_becomes_of_later_epochs_in_each_sink(
    catchwater: Any, pipeline_file: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "catchwater.pipeline.change.rollback.check_restore", lambda around, want: None
    )
    with pipeline_file.open("a") as file:
        file.write('\n[sink.loose]\ntopic = "loose"\ndelivery = "at-least-once"\n')
    asked = ("savepoint", "restore", pipeline_file, "whole", "--at", shelf.store.url(), "--dry-run")
    assert catchwater(*asked).err.endswith(
        "and withdraw later epochs from alerts; loose keeps what it has of them (at-least-once), "
        "to be deleted by hand\n"
    )


def test_what_a_rollback_needs_is_told_before_it_is_deleted(
    catchwater: Any, pipeline_file: Path, shelf: Shelf, tmp_path: Path
) -> None:
    schema = StateSchema(["str"], Kind("int"), {})
    version = Version("count", 2, "m", "f", "c", schema, 3, 0, savepoint="whole")
    store(tmp_path / "checkpoint", Versions([version]))
    answer = catchwater("savepoint", "delete", pipeline_file, "whole", "--dry-run")
    assert answer.err.endswith("/whole, the way back from version 2 of count\n")
    assert shelf.exists("whole")


def test_a_url_is_no_folder_to_restore_into(
    catchwater: Any, pipeline_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ("savepoint", "restore", pipeline_file, "whole", "--into", "s3://bucket/cards", "--yes")
    refused = catchwater(*asked)
    assert refused.code == 2 and "name it as the checkpoint" in refused.err
    assert not (tmp_path / "s3:").exists()


def test_only_a_signed_savepoint_is_restored_where_there_are_keys(
    catchwater: Any, pipeline_file: Path, shelf: Shelf, tmp_path: Path, monkeypatch: Any
) -> None:
    into = tmp_path / "into"
    answer = catchwater("savepoint", "sign", pipeline_file, "whole", "--yes")
    assert answer.code == 2 and "There is no key here to sign with" in answer.err
    monkeypatch.setenv("OF_THE_TEST", f"ours = {base64.b64encode(bytes(32)).decode()}")
    monkeypatch.setenv("CATCHWATER_ENCRYPTION_KEYS", "env:OF_THE_TEST")
    restore = ("savepoint", "restore", pipeline_file, "whole", "--into", into, "--yes")
    answer = catchwater(*restore)
    assert answer.code == 5 and "is not signed, and there are keys" in answer.err
    assert "catchwater savepoint sign FILE NAME" in answer.err
    assert not into.exists()
    told = json.loads(catchwater("savepoint", "verify", pipeline_file, "whole", "--json").out)
    assert ("fail", "signature") in {(each["verdict"], each["subject"]) for each in told}
    code = next((tmp_path / "savepoints" / "whole" / "code").iterdir())
    before = code.read_bytes()
    code.write_bytes(before + b"#")
    answer = catchwater("savepoint", "sign", pipeline_file, "whole", "--yes")
    assert "cannot be used" in answer.err, "nothing is signed that was not read"
    code.write_bytes(before)
    answer = catchwater("savepoint", "sign", pipeline_file, "whole", "--yes", "--json")
    assert json.loads(answer.out) == {"name": "whole", "key": "ours"}
    told = json.loads(catchwater("savepoint", "verify", pipeline_file, "whole", "--json").out)
    assert ("pass", "signature") in {(each["verdict"], each["subject"]) for each in told}
    answer = catchwater(*restore)
    assert "is not signed" not in answer.err
