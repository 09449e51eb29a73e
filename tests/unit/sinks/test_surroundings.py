"""Names as they may stand in objects' keys."""

import pytest

from catchwater.sinks.surroundings import key_part


@pytest.mark.parametrize(("name", "part"), [("alerts", "alerts"), ("a-b_c.d", "a-b_c.d")])
def test_a_plain_name_stands_in_keys_as_it_is(name: str, part: str) -> None:
    assert key_part(name) == part


def test_any_other_name_stands_in_keys_as_a_digest() -> None:
    found = {key_part(name) for name in ("", "..", "a/b", "ä", ".hidden")}
    assert len(found) == 5
    assert all(len(part) == 16 and part.isalnum() for part in found)
