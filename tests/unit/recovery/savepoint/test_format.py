"""`savepoint.json` passes its checks, and nothing that was tampered with does."""

import msgspec
import pytest

from catchwater.recovery.savepoint.create import create
from catchwater.recovery.savepoint.format import (
    BadName,
    Savepoint,
    SavepointDamaged,
    StoredObject,
    check_name,
    decode,
    encode,
)
from catchwater.recovery.savepoint.store import Shelf

from .conftest import Made


@pytest.fixture
def savepoint(made: Made, shelf: Shelf) -> Savepoint:
    return create(made.source, shelf, "first")


def test_it_is_read_as_it_was_written(savepoint: Savepoint) -> None:
    assert decode(encode(savepoint), "x") == savepoint


def test_no_byte_can_be_changed_or_cut_off(savepoint: Savepoint) -> None:
    data = encode(savepoint)
    for at in range(0, len(data), 41):
        with pytest.raises(SavepointDamaged, match="here cannot be used"):
            decode(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :], "here")
        with pytest.raises(SavepointDamaged):
            decode(data[:at], "x")


@pytest.mark.parametrize("key", ["../../etc/passwd", "state/a/00000/../x", "other/x", "/code/x"])
def test_an_object_outside_is_refused(savepoint: Savepoint, key: str) -> None:
    crafted = msgspec.structs.replace(savepoint, objects=[StoredObject(key, 1, "")])
    with pytest.raises(SavepointDamaged, match=r"not allowed|no object of a savepoint"):
        decode(encode(crafted), "x")


def test_a_missing_shard_and_a_newer_format_are_said(savepoint: Savepoint) -> None:
    with pytest.raises(SavepointDamaged, match="it lacks shards of 'count'"):
        decode(encode(msgspec.structs.replace(savepoint, shards=3)), "x")
    newer = encode(savepoint).replace(b'"version":1', b'"version":2', 1)
    with pytest.raises(SavepointDamaged, match="format is version 2, and this release reads"):
        decode(newer, "x")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", ".hidden", "x" * 101, "ä"])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(BadName):
        check_name(name)
