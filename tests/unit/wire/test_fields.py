"""Field encodings: both ways the same, and a claim beyond the message is refused before use."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.wire.fields import (
    I32,
    Cursor,
    MalformedMessage,
    encode_size,
    encode_text,
    encode_varint,
)

flexibility = st.booleans()


@settings(deadline=None)
@given(st.integers(0, 2**35 - 1))
def test_a_varint_is_read_as_it_was_written(value: int) -> None:
    assert Cursor(memoryview(encode_varint(value))).varint() == value


@settings(deadline=None)
@given(st.none() | st.text(max_size=300), flexibility)
def test_a_string_is_read_as_it_was_written(text: str | None, flexible: bool) -> None:
    cursor = Cursor(memoryview(encode_text(text, flexible)))
    assert cursor.nullable_text(flexible) == text
    assert cursor.at == cursor.end


@settings(deadline=None)
@given(st.integers(-1, 2**31 - 2), flexibility)
def test_a_size_is_read_as_it_was_written(size: int, flexible: bool) -> None:
    assert Cursor(memoryview(encode_size(size, flexible))).size(flexible) == size


@pytest.mark.parametrize("flexible", [True, False])
def test_null_is_refused_where_a_value_must_be(flexible: bool) -> None:
    with pytest.raises(MalformedMessage):
        Cursor(memoryview(encode_text(None, flexible))).text(flexible)
    with pytest.raises(MalformedMessage):
        Cursor(memoryview(encode_size(-1, flexible))).count(flexible)


def test_a_count_is_refused_when_the_message_has_fewer_bytes_left() -> None:
    data = memoryview(I32.pack(4) + b"abc")
    with pytest.raises(MalformedMessage, match="4 elements"):
        Cursor(data).count(flexible=False)


def test_the_elements_of_a_message_are_counted_together() -> None:
    data = memoryview((I32.pack(3) + b"abc") * 2)
    cursor = Cursor(data, max_elements=5)
    assert cursor.count(flexible=False) == 3
    cursor.take(3)
    with pytest.raises(MalformedMessage):
        cursor.count(flexible=False)


@pytest.mark.parametrize("size_bytes", [-1, 4, 2**31])
def test_a_cursor_never_leaves_its_message(size_bytes: int) -> None:
    cursor = Cursor(memoryview(b"abc"))
    with pytest.raises(MalformedMessage, match=f"{size_bytes} bytes"):
        cursor.take(size_bytes)
    assert cursor.at == 0


@pytest.mark.parametrize("data", [b"", b"\x80", b"\xff" * 5, b"\xff" * 10])
def test_a_varint_cut_short_or_too_long_is_malformed(data: bytes) -> None:
    with pytest.raises(MalformedMessage):
        Cursor(memoryview(data)).varint()
