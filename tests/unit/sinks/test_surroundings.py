"""Where outputs are staged: names as they may stand in objects' keys."""

import pytest

from catchwater.sinks.surroundings import staged_folder


@pytest.mark.parametrize("name", ["alerts", "a-b_c.d"])
def test_a_plain_name_stands_in_keys_as_it_is(name: str) -> None:
    assert staged_folder(name) == f"staged/{name}"
    assert staged_folder("cards", name) == f"staged/cards/{name}"


def test_any_other_name_stands_in_keys_as_a_digest() -> None:
    found = {staged_folder(name) for name in ("", "..", "a/b", "ä", ".hidden")}
    parts = [folder.removeprefix("staged/") for folder in found]
    assert len(parts) == 5
    assert all(len(part) == 16 and part.isalnum() for part in parts)
