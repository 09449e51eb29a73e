"""Keys and ranges, before any store looks at them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.objects.base import BadKey, ObjectTruncated, check_key, check_range


@given(st.text(alphabet="ab.-_/0", max_size=12))
def test_an_accepted_key_stays_below_the_root(key: str) -> None:
    try:
        check_key(key)
    except BadKey:
        return
    parts = key.split("/")
    assert all(part and not part.startswith(".") for part in parts)


def test_the_keys_we_use_are_accepted() -> None:
    for key in [
        "wal/00000000000000000001.wal",
        "segments/0123456789abcdef/0/00000000000000000000-a1b2.seg",
        "staged/card-risk/alerts/0a1b.chunk",
    ]:
        assert check_key(key) == key


def test_a_range_must_lie_in_the_object() -> None:
    check_range("a", 0, 10, 10)
    with pytest.raises(ObjectTruncated, match="bytes 5 to 11 are needed"):
        check_range("a", 5, 6, 10)
