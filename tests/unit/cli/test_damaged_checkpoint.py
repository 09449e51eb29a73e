"""`pipeline status` and `recovery explain` survive a checkpoint with any file damaged or missing.

They name the file and show the rest.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.cli.conftest import offset_at

from catchwater.pipeline.opened import OpenPipeline
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.backfill import Bounds
from catchwater.pipeline.run.versions import Identity
from catchwater.pipeline.supervise import Supervision
from catchwater.recovery import handover
from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.estimate import RestoreSample, add_sample
from catchwater.recovery.ledger import FOLDER, Ledger, write_whole
from catchwater.recovery.savepoint.store import Claim, keep_claim
from catchwater.wire.connection import ConnectionLost

EPOCHS = 3
LASTING = {"metadata", "beginning.json", "pipeline.json", "versions.json"}
"""Of the files there is one of: those that are missed."""


def overwrite(content: bytes | Callable[[bytes], bytes]) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        path.write_bytes(content(path.read_bytes()) if callable(content) else content)

    return damage


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "empty": overwrite(b""),
    "one byte": overwrite(lambda data: data[:1]),
    "the first half": overwrite(lambda data: data[: len(data) // 2]),
    "all but the end": overwrite(lambda data: data.rstrip()[:-1]),
    "garbage": overwrite(bytes(range(128, 256))),
    "zeros": overwrite(bytes(200)),
    "a list": overwrite(b"[]"),
    "lists in a log of Spark's": overwrite(b"v1\n[]\n[]"),
    "null": overwrite(b"null"),
    "a number": overwrite(b"7"),
    "another object": overwrite(b'{"epoch": "x", "to": 5, "history": 6}'),
    "brackets": overwrite(b"[" * 100_000),
    "not UTF-8": overwrite(lambda data: data.replace(b"{", b'{"\xff')),
    "a folder": a_folder,
}


@pytest.fixture
def whole(pipeline_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint that has every kind of file; the file that names it."""
    tails = {("payments", 0): PartitionTail(0, 100, 1_000)}
    monkeypatch.setattr(OpenPipeline, "tails", lambda *_: tails)
    monkeypatch.setattr(OpenPipeline, "sink_epochs", lambda _: {"alerts": EPOCHS - 1})
    folder = pipeline_file.parent / "checkpoint"
    Ledger(folder).begin(offset_at(-1))
    versions.store(folder, versions.Versions())
    Identity("card-risk", ["card-risk"], 1, ["payments"], {}).write(folder)
    add_sample(folder, RestoreSample(0, 1.0, 1, 1.0, 1, 1.0))
    handover.begin_restore(folder, handover.Restore("file:///s/s1", "catchwater savepoint restore"))
    keep_claim(folder, Claim("file:///s", "s1", 0))
    handover.set_pace(folder, 1, 2)
    handover.ask(folder, pipeline_file.parent / "next")
    write_whole(folder / "metadata", b'{"id":"34c7edce-5653-49e1-bfb8-4be5e2d2bba2"}')
    said = {
        "shadow": handover.Shadow("leader", 1),
        "restoring": handover.Rewind(1),
        "home": {"store": "s3://b", "url": "s3://b/c"},
        "supervisor": Supervision(1, "running", 5),
        "backfill": Bounds({}, {}),
    }
    for name, value in said.items():
        write_whole(folder / FOLDER / f"{name}.json", msgspec.json.encode(value))
    return pipeline_file


def files_of(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    assert len(found) == 4 + 3 * EPOCHS + 14, "each is damaged below"
    return found


def epoch_of(path: Path) -> int | None:
    return int(path.stem) if path.stem.isdigit() else None


def is_visible(path: Path, how: str) -> bool:
    """Whether the damage can be seen: most files are there only while something is under way."""
    if how == "missing" and path.parent.name == "contracts":
        return epoch_of(path) == 1  # between two that are there
    if how == "missing":
        return path.name in LASTING or epoch_of(path) in range(EPOCHS)
    return (path.name, how) != ("restores.jsonl", "empty")


@pytest.mark.parametrize("how", DAMAGES)
def test_the_damaged_file_is_named_and_the_rest_is_shown(
    catchwater: Any, whole: Path, how: str
) -> None:
    folder = whole.parent / "checkpoint"
    for path in files_of(folder):
        kept = path.read_bytes()
        DAMAGES[how](path)
        status = catchwater("pipeline", "status", whole, "--json")
        explain = catchwater("recovery", "explain", whole, "--json")
        assert (status.code, explain.code) == (0, 0), (path, status.err, explain.err)
        told, rows = json.loads(status.out), json.loads(explain.out)["checkpoints"]
        assert (str(path) in " ".join(told["problems"])) == is_visible(path, how), (
            path,
            status.err,
        )
        if is_visible(path, how):
            assert str(path) in status.err
            assert str(path) in explain.err + explain.out
        broken = epoch_of(path) if path.parent.name != "contracts" else None
        rest = [epoch for epoch in range(EPOCHS) if epoch != broken]
        assert told["restorable"] == rest
        assert [row["checkpoint"] for row in rows if row["restorable"]] == rest
        assert {row["checkpoint"] for row in rows if not row["restorable"]} <= {broken}
        in_ledger = broken if path.parent.name == "epochs" else None
        shown = [each["epoch"] for each in told["recent_epochs"]]
        assert shown == [epoch for epoch in range(EPOCHS) if epoch != in_ledger]
        if broken == EPOCHS - 1:
            assert catchwater("pipeline", "status", whole).code == 0
        if path.is_dir():
            path.rmdir()
        path.write_bytes(kept)
    assert json.loads(catchwater("pipeline", "status", whole, "--json").out)["problems"] == []


@pytest.mark.parametrize("name", ["offsets", "commits", f"{FOLDER}/epochs"])
def test_a_folder_that_is_missing_or_a_file_is_survived(
    catchwater: Any, whole: Path, name: str
) -> None:
    path = whole.parent / "checkpoint" / name
    shutil.rmtree(path)
    for _ in range(2):
        for noun, verb in (("pipeline", "status"), ("recovery", "explain")):
            answer = catchwater(noun, verb, whole, "--json")
            assert (answer.code, str(path) in answer.err + answer.out) == (0, True), answer.err
        path.write_bytes(b"a file")


def test_a_hand_over_that_cannot_be_read_is_named_and_the_checkpoint_before_it_shown(
    catchwater: Any, whole: Path
) -> None:
    path = whole.parent / "checkpoint" / FOLDER / "handed-over.json"
    for content in (b"", b"[]", b'{"to": 5, "epoch": 2}'):
        path.write_bytes(content)
        status = catchwater("pipeline", "status", whole, "--json")
        assert (status.code, json.loads(status.out)["committed_epoch"]) == (0, EPOCHS - 1)
        assert str(path) in status.err
        assert str(path) in catchwater("recovery", "explain", whole).err
        # A start that did not know who leads could write beside the one that does.
        assert str(path) in catchwater("pipeline", "run", whole, "--no-supervise").err


def test_without_a_broker_the_checkpoints_are_shown_and_why_no_more_is_known(
    catchwater: Any, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: object) -> None:
        raise ConnectionLost("No broker at 127.0.0.1:9092.", hint="Start it.")

    monkeypatch.setattr(OpenPipeline, "tails", lost)
    answer = catchwater("recovery", "explain", whole, "--json")
    told = json.loads(answer.out)
    rows = [(row["checkpoint"], row["restorable"]) for row in told["checkpoints"]]
    assert rows == [(epoch, None) for epoch in range(EPOCHS)]
    assert answer.code == 1 and "No broker at 127.0.0.1:9092." in answer.err
    assert told["now"]["epoch"] == EPOCHS - 1
    assert {each["words"] for each in told["now"]["sinks"]} == {
        "unknown: the log could not be asked"
    }
