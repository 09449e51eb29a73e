"""A savepoint is complete or invisible, of a pipeline that stands still or goes on."""

from pathlib import Path

import pytest

from catchwater.config import CatchwaterError
from catchwater.objects.base import StoreFull
from catchwater.recovery.checkpoint import NoSuchCheckpoint
from catchwater.recovery.folder import held
from catchwater.recovery.ledger import LedgerDamaged, SourceOffset
from catchwater.recovery.savepoint import create as module
from catchwater.recovery.savepoint.create import NothingToSave, SavepointExists, Source, create
from catchwater.recovery.savepoint.store import Shelf
from catchwater.recovery.savepoint.verify import verify
from catchwater.state.parts import ShardDamaged

from .conftest import FUNCTIONS, Made


def test_the_last_committed_epoch_is_copied_whole(made: Made, shelf: Shelf) -> None:
    savepoint = create(made.source, shelf, "first")
    assert shelf.read("first") == savepoint
    assert (savepoint.epoch, savepoint.pipeline, savepoint.functions) == (2, "cards", FUNCTIONS)
    assert savepoint.versions["generation"] == 3
    assert [f.verdict for f in verify(shelf.store, savepoint, None, None)] == [
        "pass", "pass", "pass", "unknown",
    ]  # fmt: skip
    assert any(each.key == "code/abc.py" for each in savepoint.objects)


def test_an_older_epoch_can_be_named_and_one_that_is_not_there_is_refused(
    made: Made, shelf: Shelf
) -> None:
    assert create(made.source, shelf, "older", epoch=0).epoch == 0
    with pytest.raises(NoSuchCheckpoint, match="there are: 0, 1, 2"):
        create(made.source, shelf, "none", epoch=7)


def test_a_name_is_given_once(made: Made, shelf: Shelf) -> None:
    create(made.source, shelf, "first")
    with pytest.raises(SavepointExists):
        create(made.source, shelf, "first")


def test_a_folder_that_no_pipeline_has_used_has_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(NothingToSave):
        Source.at(tmp_path)
    with pytest.raises(NothingToSave, match="no committed epoch"):
        Made(tmp_path / "new").source.entry(None)


def test_the_epoch_is_held_and_the_log_pinned_before_anything_is_copied(
    made: Made, shelf: Shelf
) -> None:
    told: list[tuple[str, SourceOffset, list[int], int]] = []

    def pin(name: str, end: SourceOffset) -> str:
        copied = len(list(shelf.store.list("")))
        told.append((name, end, held(made.folder), copied))
        return f"savepoint/{name}"

    assert create(made.source, shelf, "first", pin=pin).pin == "savepoint/first"
    assert told == [("first", made.offset(2), [2], 0)]
    assert held(made.folder) == []


def test_what_is_cut_short_is_not_seen_and_can_be_made_again(
    made: Made, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(CatchwaterError):
        """The process is gone."""

    def stop(*_: object) -> None:
        raise Stopped("here")

    with monkeypatch.context() as patched, pytest.raises(Stopped):
        patched.setattr(module, "encode", stop)
        create(made.source, shelf, "first")
    assert shelf.names() == []
    assert list(shelf.store.list("first/"))
    create(made.source, shelf, "first")
    assert shelf.names() == ["first"]


def test_an_epoch_swept_before_it_was_held_gives_way_to_a_newer_one(
    made: Made, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = module._copy
    swept: list[int] = []

    def swept_once(*args: object) -> object:
        if not swept:
            swept.append(made.run(f=b"4").epoch)
            raise ShardDamaged("state/x", 3, "it is missing")
        return copy(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_copy", swept_once)
    assert create(made.source, shelf, "first").epoch == 3


def test_a_damaged_object_fails_it_and_is_named(made: Made, shelf: Shelf) -> None:
    key = next(iter(module.state_keys(made.source, made.source.entry(None))))
    (made.folder / "catchwater" / key).unlink()
    with pytest.raises(CatchwaterError, match=key.rpartition("/")[2].replace(".", r"\.")):
        create(made.source, shelf, "first")
    assert shelf.names() == []


class Pins:
    """The log's, by savepoint."""

    def __init__(self) -> None:
        self.held: dict[str, SourceOffset] = {}

    def pin(self, name: str, end: SourceOffset) -> str:
        """Set or move one."""
        self.held[name] = end
        return name

    def release(self, pin: str) -> None:
        """Take one away."""
        del self.held[pin]


def test_what_fails_does_not_leave_the_log_pinned(
    made: Made, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins = Pins()

    def full(*_: object) -> object:
        assert pins.held
        raise StoreFull("No space left.")

    monkeypatch.setattr(module, "_copy", full)
    with pytest.raises(StoreFull):
        create(made.source, shelf, "first", pin=pins.pin, unpin=pins.release)
    assert not pins.held


def test_who_is_second_leaves_the_first_ones_pin_where_it_was(
    made: Made, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    pins, copy = Pins(), module._copy

    def overtaken(*args: object) -> object:
        monkeypatch.setattr(module, "_copy", copy)
        create(made.source, shelf, "first", epoch=0, pin=pins.pin, unpin=pins.release)
        return copy(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_copy", overtaken)
    with pytest.raises(SavepointExists, match="meanwhile"):
        create(made.source, shelf, "first", pin=pins.pin, unpin=pins.release)
    assert pins.held == {"first": made.offset(0)}
    assert shelf.read("first").epoch == 0


def test_a_damaged_version_ledger_is_named(made: Made, shelf: Shelf) -> None:
    (made.folder / "catchwater" / "versions.json").write_bytes(b"{")
    with pytest.raises(LedgerDamaged, match=r"versions\.json is damaged"):
        create(made.source, shelf, "first")
