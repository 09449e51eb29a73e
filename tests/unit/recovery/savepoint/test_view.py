"""State is read, and compared, without the class that wrote it."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from catchwater.clock import Clock
from catchwater.recovery.folder import held
from catchwater.recovery.handover import Restore
from catchwater.recovery.ledger import FOLDER, write_whole
from catchwater.recovery.savepoint.create import Source, create
from catchwater.recovery.savepoint.format import SavepointDamaged
from catchwater.recovery.savepoint.restore import restore
from catchwater.recovery.savepoint.store import Shelf
from catchwater.recovery.savepoint.view import NoSuchFunction, View, diff, find, get
from catchwater.state.entries import Table, pack_time, prefix_of
from catchwater.state.keys import encode_key, stored_key
from catchwater.state.records import RecordCodec, new_record

from .conftest import Made


class Spent(msgspec.Struct):
    total: float = 0.0
    cards: list[str] = []


CODEC: RecordCodec[Spent] = RecordCodec(Spent, 3, {})


def spent(total: float, *cards: str) -> bytes:
    record = new_record(Spent(total, list(cards)))
    record.written = 77
    record.timers["forget"] = 99
    return CODEC.encode(record)


@pytest.fixture
def looked(tmp_path: Path) -> Made:
    made = Made(tmp_path / "checkpoint")
    made.run(a=spent(1.5, "x"), b=spent(2.0), c=spent(3.0))
    made.run(a=spent(2.5, "x", "y"), b=spent(2.0), d=spent(4.0))
    return made


def test_a_key_is_shown_as_plain_values(looked: Made) -> None:
    found = get(View.of_checkpoint(looked.source, None), b"a")
    assert found is not None
    assert (found.version, found.written_ms) == (3, 77)
    assert found.state == {"total": 2.5, "cards": ["x", "y"]}
    assert found.timers == {"forget": 99}
    assert get(View.of_checkpoint(looked.source, None), b"nobody") is None


def test_an_older_checkpoint_and_another_function_can_be_asked(looked: Made) -> None:
    found = get(View.of_checkpoint(looked.source, 0), b"a", "alert")
    assert found is not None
    assert found.state == {"total": 1.5, "cards": ["x"]}
    with pytest.raises(NoSuchFunction, match="it has count, alert"):
        get(View.of_checkpoint(looked.source, 0), b"a", "other")


def test_entries_kept_one_by_one_belong_to_their_key(looked: Made) -> None:
    key, near = stored_key(encode_key("a")), stored_key(encode_key("b"))

    def entry(of: bytes, field: str, at: object, value: object) -> tuple[bytes, bytes]:
        tail = b"" if at is None else msgspec.msgpack.encode(at)
        return (
            prefix_of(of) + field.encode() + b"\0" + tail,
            pack_time(5) + msgspec.msgpack.encode(value),
        )

    looked.run_entries(
        Table.ENTRY,
        dict(
            [
                entry(key, "by_day", None, 2),
                entry(key, "by_day", 1, 0.5),
                entry(key, "by_day", 2, 0.75),
                entry(key, "last", None, "z"),
                entry(near, "last", None, "other"),
            ]
        ),
    )
    found = get(View.of_checkpoint(looked.source, None), b"a")
    assert found is not None
    assert found.entries == {"by_day": [(1, 0.5), (2, 0.75)], "last": [(None, "z")]}


def test_what_was_added_removed_and_changed_is_told_with_its_values(
    looked: Made, shelf: Shelf
) -> None:
    before = View.of_checkpoint(looked.source, 0)
    savepoint = create(looked.source, shelf, "now")
    after = View.of_savepoint(shelf.store, savepoint)
    assert {each.key: each.what for each in diff(before, after)} == {"a": "changed", "d": "added"}
    (added,) = [each for each in diff(before, after) if each.what == "added"]
    assert added.after is not None
    assert added.after.state["total"] == 4.0
    assert {each.key: each.what for each in diff(after, before)} == {"a": "changed", "d": "removed"}
    assert not list(diff(after, after))


@pytest.mark.parametrize("shards", [1, 3, 4])
def test_states_of_any_number_of_shards_are_compared(
    looked: Made, shelf: Shelf, tmp_path: Path, shards: int
) -> None:
    savepoint = create(looked.source, shelf, "now")
    restore(shelf.store, savepoint, tmp_path / "other", Restore("", ""), shards=shards)
    other = View.of_checkpoint(Source.at(tmp_path / "other"), None)
    assert not list(diff(View.of_checkpoint(looked.source, None), other))
    assert {each.key for each in diff(View.of_checkpoint(looked.source, 0), other)} == {"a", "d"}


def test_a_key_is_typed_as_it_is_shown(looked: Made, shelf: Shelf) -> None:
    history = [{"function": "count", "schema": {"key": ["str", "int"]}}]
    write_whole(looked.folder / FOLDER / "versions.json", msgspec.json.encode({"history": history}))
    before = View.of_checkpoint(looked.source, 1)
    key = stored_key(encode_key(("Zoë", -5)))
    looked.run_entries(Table.RECORD, {key: spent(9.0)})
    after = View.of_savepoint(shelf.store, create(looked.source, shelf, "now"))
    (added,) = diff(before, after)
    assert (added.key, added.what) == ('["Zoë", -5]', "added")
    found = find(after, added.key)
    assert found is not None
    assert found.state["total"] == 9.0
    assert find(after, '["Zoë", 5]') is None
    # Of the other function nobody says what its keys are.
    assert find(before, "a", "alert") is not None


def test_an_epoch_is_held_as_long_as_it_is_looked_at(looked: Made) -> None:
    with View.held(looked.folder, 0, Clock(1)) as view:
        assert held(looked.folder) == [0]
        assert view.entry.epoch == 0
    assert held(looked.folder) == []


def test_a_damaged_savepoint_is_told_as_one(looked: Made, shelf: Shelf) -> None:
    savepoint = create(looked.source, shelf, "now")
    for each in savepoint.objects:
        if each.key.endswith(".delta"):
            shelf.store.delete(f"now/{each.key}")
    with pytest.raises(SavepointDamaged) as error:
        get(View.of_savepoint(shelf.store, savepoint), b"a")
    assert error.value.exit_code == 5
    assert "savepoint verify" in str(error.value.hint)


def test_whatever_keys_a_stored_dict_has_it_can_be_told_as_json(looked: Made) -> None:
    odd = {("a", 1): {None: 1, True: 2}, 3: [{(): 4}], "b": b"x"}
    record = RecordCodec(dict[Any, Any], 3, {}).encode(new_record(odd))
    looked.run_entries(Table.RECORD, {stored_key(encode_key("a")): record})
    found = get(View.of_checkpoint(looked.source, None), b"a")
    assert found is not None
    told = msgspec.json.decode(msgspec.json.encode(found))
    assert told["state"] == {
        '["a",1]': {"null": 1, "true": 2}, "3": [{"[]": 4}], "b": "eA==",
    }  # fmt: skip
