"""State is looked at by what somebody types."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.recovery.savepoint.conftest import Made

from catchwater.clock import Clock
from catchwater.recovery.ledger import FOLDER, write_whole
from catchwater.recovery.savepoint import view
from catchwater.recovery.savepoint.create import create
from catchwater.recovery.savepoint.store import Shelf
from catchwater.state.entries import Table
from catchwater.state.keys import encode_key, stored_key
from catchwater.state.records import RecordCodec, new_record

from .conftest import PIPELINE

CODEC: RecordCodec[int] = RecordCodec(int, 1, {})
KEYS = [("Zoë ☂", 1), ("[x]", -2), ("", 3)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Of a pipeline with an epoch for each key; savepoint `1` is of the last one."""
    made = Made(tmp_path / "checkpoint")
    history = [{"function": "count", "schema": {"key": ["str", "int"]}}]
    write_whole(made.folder / FOLDER / "versions.json", msgspec.json.encode({"history": history}))
    for number, key in enumerate(KEYS):
        record = CODEC.encode(new_record(number))
        made.run_entries(Table.RECORD, {stored_key(encode_key(key)): record})
    shelf = Shelf.at((tmp_path / "savepoints").as_uri(), Clock(2))
    for name in ("1", "7"):
        create(made.source, shelf, name)
    path = tmp_path / "pipeline.toml"
    path.write_text(PIPELINE)
    return path


def test_what_diff_shows_get_finds(catchwater: Any, file: Path) -> None:
    found = json.loads(catchwater("state", "diff", file, "0", "2", "--json").out)
    assert {each["key"] for each in found} == {'["[x]", -2]', '["", 3]'}
    for each in found:
        told = json.loads(catchwater("state", "get", file, each["key"], "--json").out)
        assert told == each["after"]


def test_a_savepoint_whose_name_is_a_number_is_found_where_no_checkpoint_is(
    catchwater: Any, file: Path
) -> None:
    # Checkpoint 1 is kept, 7 was never: so 7 is the savepoint.
    assert catchwater("state", "diff", file, "1", "2").err == "1 keys differ\n"
    assert catchwater("state", "diff", file, "7", "2").err == "0 keys differ\n"
    missing = catchwater("state", "diff", file, "8", "2")
    assert (missing.code, "has no checkpoint 8" in missing.err) == (2, True)
    missing = catchwater("state", "diff", file, "²", "2")
    assert missing.code == 2
    assert "cannot be a savepoint's name" in missing.err


def test_two_places_at_once_are_refused(catchwater: Any, file: Path) -> None:
    key = json.dumps(KEYS[0])
    answer = catchwater("state", "get", file, key, "--savepoint", "1", "--checkpoint", "0")
    assert answer.code == 2
    assert "give one" in answer.err


def test_a_key_that_cannot_be_one_is_told_with_how_to_type_it(catchwater: Any, file: Path) -> None:
    answer = catchwater("state", "get", file, "card-17")
    assert answer.code == 2
    assert "hint: Type them as a JSON list" in answer.err
    answer = catchwater("state", "get", file, '["card-17", 1]')
    assert (answer.code, answer.out) == (1, "")
    assert "Nothing is kept for the key" in answer.err


def test_of_a_chain_the_function_is_named(catchwater: Any, file: Path) -> None:
    key = json.dumps(KEYS[0])
    assert "in count, after epoch 2" in catchwater("state", "get", file, key).out
    other = ["--function", "alert", "--json"]
    assert json.loads(catchwater("state", "get", file, key, *other).out)["function"] == "alert"
    answer = catchwater("state", "get", file, key, "--function", "alrt")
    assert (answer.code, "it has count, alert." in answer.err) == (2, True)
    assert "nearest is alert" in answer.err


def test_a_key_that_another_function_of_the_chain_keeps_is_told_so(
    catchwater: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = json.dumps(KEYS[0])
    monkeypatch.setattr(view, "find", lambda view, text, f=None: f if f == "alert" else None)
    answer = catchwater("state", "get", file, key)
    assert (answer.code, "after epoch 2 by 'count'." in answer.err) == (1, True)
    assert "hint: alert of this chain keeps something: --function alert." in answer.err
    monkeypatch.undo()
    answer = catchwater("state", "get", file, '["card-17", 1]')
    assert "The functions of this chain are count, alert" in answer.err
