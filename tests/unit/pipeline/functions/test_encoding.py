"""Keys, ids and records as bytes, across versions of a function."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.state.keys import (
    KeyTooLong,
    encode_key,
    key_decoder,
    key_hash,
    stored_key,
    stored_keys,
)
from catchwater.state.records import RecordCodec, StateUnreadable, new_record

PLAIN = st.one_of(st.text(), st.integers(-(2**63), 2**63 - 1), st.binary())


@dataclass
class Old:
    last: int = 0
    gone: str = ""


@dataclass
class Grown:
    added: list[int] = field(default_factory=list)
    last: int = 0


@dataclass
class Renamed:
    latest: str = ""


def codec(state_type, version, migrations=None):
    return RecordCodec(state_type, version, migrations or {})


@settings(deadline=None)
@given(PLAIN)
def test_a_key_comes_back_from_its_bytes(key):
    assert key_decoder(type(key))(encode_key(key)) == key


@settings(deadline=None)
@given(st.tuples(st.text(), st.integers(-(2**63), 2**63 - 1), st.binary()))
def test_a_key_of_several_fields_comes_back(key):
    assert key_decoder((str, int, bytes))(encode_key(key)) == key


def test_a_records_key_in_text_is_the_same_key():
    assert encode_key(42) == b"42"
    assert encode_key("c1") == b"c1"


def test_the_hash_of_a_key_never_changes():
    """Stored state depends on it: another value here loses every state there is."""
    assert key_hash(b"c1").hex() == "43f000a36f6d744e"
    assert stored_key(b"c1") == bytes.fromhex("43f000a36f6d744e") + b"c1"


def test_a_key_over_255_bytes_is_refused():
    stored_key(b"k" * 255)
    with pytest.raises(KeyTooLong, match="has 256 bytes"):
        stored_key(b"k" * 256)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=255)))
def test_many_keys_are_stored_as_each_of_them_is(keys):
    assert stored_keys(keys) == [stored_key(key) for key in keys]


def test_of_many_keys_one_over_255_bytes_is_refused():
    with pytest.raises(KeyTooLong, match="has 256 bytes"):
        stored_keys([b"k", b"k" * 256])


@pytest.mark.parametrize("migrations", [{}, {1: lambda old: Grown([], old["last"])}])
def test_many_records_come_back_as_each_of_them_does(migrations):
    written = codec(Grown, 2)
    encoded = [written.encode(new_record(Grown([n], n))) for n in range(3)]
    stored = {
        b"old": codec(Old, 1).encode(new_record(Old(7))),
        **dict(zip((b"a", b"b", b"c"), encoded, strict=True)),
    }
    read = codec(Grown, 2, migrations)
    assert read.decode_many(stored) == {key: read.decode(data) for key, data in stored.items()}


def test_of_many_records_the_one_that_does_not_fit_is_told():
    @dataclass
    class Narrow:
        last: str = ""

    stored = {b"new": codec(Narrow, 2).encode(new_record(Narrow("x")))}
    stored[b"old"] = codec(Old, 1).encode(new_record(Old(7)))
    with pytest.raises(StateUnreadable, match="by version 1 does not fit Narrow of version 2"):
        codec(Narrow, 2).decode_many(stored)


def test_a_record_comes_back_as_it_was():
    record = new_record(Grown([1, 2], 3))
    record.written, record.timers, record.seen = 5, {"t": 9}, {"a": 1, 7: 2, b"x": 3}
    assert codec(Grown, 3).decode(codec(Grown, 3).encode(record)) == record


def test_added_and_removed_fields_bridge_by_themselves():
    data = codec(Old, 1).encode(new_record(Old(7, "x")))
    assert codec(Grown, 2).decode(data).state == Grown([], 7)


def test_a_migration_brings_over_what_else_changed():
    data = codec(Old, 1).encode(new_record(Old(7)))
    renamed = codec(Renamed, 3, {1: lambda old: Renamed(str(old["last"]))})
    assert renamed.decode(data).state == Renamed("7")
    assert renamed.decode(renamed.encode(new_record(Renamed("8")))).state == Renamed("8")
    data = codec(Renamed, 2).encode(new_record(Renamed("9")))
    assert renamed.decode(data).state == Renamed("9")


def test_state_that_does_not_fit_says_which_migration_is_missing():
    @dataclass
    class Narrow:
        last: str = ""

    data = codec(Old, 1).encode(new_record(Old(7)))
    with pytest.raises(StateUnreadable, match="by version 1 does not fit Narrow of version 2") as e:
        codec(Narrow, 2).decode(data)
    assert "from_v1" in e.value.hint
    with pytest.raises(StateUnreadable):
        codec(Narrow, 3, {2: lambda old: Narrow()}).decode(data)


def test_a_migration_that_gives_no_state_is_told():
    data = codec(Old, 1).encode(new_record(Old(7)))
    with pytest.raises(StateUnreadable, match="from_v1 gave a dict, which is no Grown") as told:
        codec(Grown, 2, {1: lambda old: {"last": old["last"]}}).decode(data)
    assert told.value.hint == "Return Grown(…)."
