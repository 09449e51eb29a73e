"""Every key that is shown can be typed, whatever its fields are; spellings of one value are one."""

from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from catchwater.recovery.savepoint.view import NotAKey, shown, typed, types_of
from catchwater.state.keys import encode_key

AN_ID = UUID("00000000-0000-0000-0000-00000000000a")
KEYS: list[tuple[str, Any, str]] = [
    ("str", "card-17", "card-17"),
    ("str", "Zoë\u00a0☂", "Zoë\u00a0☂"),
    ("str", '["a", 1]', '["a", 1]'),
    ("str", "", ""),
    ("int", -5, "-5"),
    ("bool", True, "true"),
    ("float", 1.5, "1.5"),
    ("bytes", b"abc", "abc"),
    ("bytes", b"\xff\x00", "0xff00"),
    ("bytes", b"0xff", "0xff"),
    ("UUID", AN_ID, str(AN_ID)),
    ("Decimal", Decimal("1.50"), "1.5"),
    ("datetime", datetime(2026, 6, 1, tzinfo=UTC), "2026-06-01T00:00:00Z"),
    ("date", date(2026, 6, 1), "2026-06-01"),
    ("time", time(7, 30), "07:30:00"),
    ("Color", "red", "red"),
]


@pytest.mark.parametrize(("of", "key", "text"), KEYS)
def test_a_key_of_one_field_is_its_text(of: str, key: Any, text: str) -> None:
    assert shown(encode_key(key), [of]) == text
    assert encode_key(key) in typed(text, [of])


@pytest.mark.parametrize(("of", "key", "text"), KEYS)
def test_a_key_of_several_fields_is_a_list_of_them(of: str, key: Any, text: str) -> None:
    stored = encode_key((key, 7, "x"))
    told = shown(stored, [of, "int", "str"])
    assert told.startswith("[")
    assert told.endswith(', 7, "x"]')
    assert stored in typed(told, [of, "int", "str"])


@pytest.mark.parametrize(
    ("of", "one", "other"),
    [
        ("float", "1.50", 1.5),
        ("bool", "True", True),
        ("Decimal", "1.00", Decimal(1)),
        ("UUID", str(AN_ID).upper(), AN_ID),
        ("datetime", "2026-06-01T02:00:00+02:00", datetime(2026, 6, 1, tzinfo=UTC)),
    ],
)
def test_another_spelling_of_a_value_is_the_same_key(of: str, one: str, other: Any) -> None:
    assert typed(one, [of])[0] == encode_key(other)


def test_what_is_no_key_of_these_fields_is_refused_with_how_to_type_it() -> None:
    for text in ("a", '["a"]', '["a", 1, 2]', '["a", [1]]', '["a", null]', '{"a": 1}', "[" * 9999):
        with pytest.raises(NotAKey, match="2 fields str, int") as error:
            typed(text, ["str", "int"])
        assert error.value.hint == "Type them as a JSON list: '[\"a\", 1]'."
        assert error.value.exit_code == 2


def test_where_nobody_says_the_types_a_list_may_be_meant_or_the_text() -> None:
    assert typed('["a", 1]', []) == [encode_key(("a", 1)), b'["a", 1]']
    assert typed("[[1]]", []) == [b"[[1]]"]
    assert typed("a", []) == [b"a"]
    assert types_of({}, "count") == []


def test_the_last_version_says_the_types() -> None:
    history = [
        {"function": name, "schema": {"key": key}}
        for name, key in [("count", ["str"]), ("other", ["int"]), ("count", ["str", "int"])]
    ]
    assert types_of({"history": history}, "count") == ["str", "int"]
