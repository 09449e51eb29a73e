"""Every damaged byte is found, and whether the log still reaches back."""

from collections.abc import Callable
from pathlib import Path

import pytest

from catchwater.recovery.contract import PartitionTail
from catchwater.recovery.savepoint.create import create
from catchwater.recovery.savepoint.format import Savepoint
from catchwater.recovery.savepoint.store import Shelf
from catchwater.recovery.savepoint.verify import verify

from .conftest import Made


@pytest.fixture
def savepoint(made: Made, shelf: Shelf) -> Savepoint:
    return create(made.source, shelf, "first", pin=lambda name, _: f"savepoint/{name}")


@pytest.mark.parametrize(
    ("harm", "told"),
    [
        (lambda path: path.unlink(), "There is no object"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, and"),
        (lambda path: path.write_bytes(b"x" * path.stat().st_size), "its checksum does not match"),
    ],
)
def test_a_damaged_object_is_named(
    savepoint: Savepoint, shelf: Shelf, tmp_path: Path, harm: Callable[[Path], None], told: str
) -> None:
    for stored in savepoint.objects:
        path = tmp_path / "savepoints" / "first" / stored.key
        whole = path.read_bytes()
        harm(path)
        found = verify(shelf.store, savepoint, None, None)
        (damage,) = [each for each in found if each.subject == stored.key]
        assert damage.verdict == "fail"
        assert told in damage.message
        if stored.key.startswith("state/"):
            # The shard that cannot be read is named as well, and its function is not called good.
            assert [each.verdict for each in found if ", shard " in each.subject] == ["fail"]
        path.write_bytes(whole)


def test_a_log_that_no_longer_reaches_back_fails_and_one_that_is_away_is_unknown(
    savepoint: Savepoint, shelf: Shelf
) -> None:
    def of(start: int | None, state: str | None) -> dict[str, str]:
        tails = {("payments", 0): PartitionTail(start, 100, 1)} if start is not None else None
        pins = [{"id": "savepoint/first", "state": state}] if state else []
        found = verify(shelf.store, savepoint, tails, None if tails is None else pins)
        return {each.subject: f"{each.verdict} {each.message}" for each in found}

    assert of(30, "reserved")["log"].startswith("pass")
    assert "offset 30 on, and the log begins at offset 31" in of(31, "lost")["log"]
    assert of(31, "lost")["pin"] == "fail savepoint/first is lost"
    assert of(30, None)["pin"] == "fail savepoint/first is not there"
    assert of(None, None)["log"].startswith("unknown")
    assert of(None, None)["pin"].startswith("unknown")
