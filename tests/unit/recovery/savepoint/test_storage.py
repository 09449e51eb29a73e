"""Savepoints are found, read and deleted by name."""

import pytest

from catchwater.recovery.savepoint.create import create
from catchwater.recovery.savepoint.storage import NoSuchSavepoint, Shelf

from .conftest import Made


def test_a_shelf_lists_what_is_complete(made: Made, shelf: Shelf) -> None:
    assert shelf.names() == []
    create(made.source, shelf, "b")
    create(made.source, shelf, "a")
    shelf.store.put("half/state/count/00000/x.delta", [b"x"])
    assert shelf.names() == ["a", "b"]
    assert shelf.exists("a") and not shelf.exists("half")
    assert shelf.url("a").endswith("/savepoints/a")


def test_a_missing_one_is_told_with_those_there_are(made: Made, shelf: Shelf) -> None:
    create(made.source, shelf, "a")
    with pytest.raises(NoSuchSavepoint, match="there are: a"):
        shelf.read("b")


def test_deleting_leaves_nothing_and_may_be_repeated(made: Made, shelf: Shelf) -> None:
    create(made.source, shelf, "a")
    kept = create(made.source, shelf, "a.b")
    assert shelf.delete("a") >= kept.size_bytes
    assert shelf.delete("a") == 0
    assert shelf.names() == ["a.b"]
    assert not list(shelf.store.list("a/"))
    assert shelf.read("a.b") == kept
