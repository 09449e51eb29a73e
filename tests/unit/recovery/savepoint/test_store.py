"""Savepoints are found, read and deleted by name."""

import pytest

from catchwater.clock import Clock
from catchwater.objects.base import Part
from catchwater.objects.memory import MemoryStore
from catchwater.recovery.savepoint.create import create
from catchwater.recovery.savepoint.format import SavepointDamaged
from catchwater.recovery.savepoint.store import NoSuchSavepoint, Shelf

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


class Signing(MemoryStore):
    """Its URLs of objects grant access, and are others every time, as those of a bucket are."""

    signed = 0

    def url(self, key: str = "", part: Part | None = None) -> str:
        """Signed, but for the root's."""
        self.signed += bool(key)
        return f"https://host/{key}?signature={self.signed}" if key else "s3://bucket/x?region=y"


def test_a_place_is_named_the_same_at_any_time_and_gives_nobody_access(made: Made) -> None:
    store = Signing(Clock(1))
    shelf = Shelf(store)
    create(made.source, shelf, "a")
    assert shelf.url("a") == "s3://bucket/x/a?region=y"
    store.put("a/savepoint.json", [b"{}"])
    with pytest.raises(SavepointDamaged, match=r"^s3://bucket/x/a/savepoint\.json") as error:
        shelf.read("a")
    assert "signature" not in str(error.value)
    assert store.signed == 0


def test_what_cannot_be_a_savepoints_name_is_not_listed(made: Made, shelf: Shelf) -> None:
    create(made.source, shelf, "a")
    shelf.store.put("_odd/savepoint.json", [b"{}"])
    assert shelf.names() == ["a"]
