"""Columns by type, values by column, and digests that survive a database."""

import json
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NewType, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from catchwater.pipeline.functions.spec import json_encoder
from catchwater.sinks.base import OutputRecord
from catchwater.sinks.columns import Column, RowUnfit, codec_of, digest_of

Card = NewType("Card", str)


class Rule(Enum):
    FAST = "fast"
    FAR = "far"


@dataclass
class Everything:
    text: str
    whole: int
    real: float
    yes: bool
    raw: bytes
    at: datetime
    day: date
    price: Decimal
    id: UUID
    tags: list[str]
    maybe: int | None
    card: Card
    rule: Rule
    level: Literal["low", "high"]
    bound: Annotated[int, "more than 0"]
    either: int | str
    nested: dict[str, Any] = field(default_factory=dict)


EVERYTHING = Everything(
    "ä", 2**60, 0.1, True, b"\x00\xff", datetime(2026, 1, 2, 3, 4, 5, 678_900, UTC),
    date(2026, 1, 2), Decimal("1.50"), UUID(int=7), ["a", "b"], None, Card("c"), Rule.FAR, "low", 3,
    "x", {"b": 1.0, "a": [1e20]},
)  # fmt: skip


def record(value: Any) -> OutputRecord:
    return OutputRecord(b"k", msgspec.json.encode(value), 0)


def test_every_field_has_the_column_of_its_type() -> None:
    kinds = {column.name: column.kind for column in codec_of(Everything).columns}
    assert kinds == {
        "text": "text", "whole": "integer", "real": "real", "yes": "boolean", "raw": "bytes",
        "at": "time", "day": "date", "price": "decimal", "id": "uuid", "tags": "json",
        "maybe": "integer", "card": "text", "rule": "text", "level": "text", "bound": "integer",
        "either": "json", "nested": "json",
    }  # fmt: skip


def test_json_becomes_values_a_database_takes() -> None:
    values = codec_of(Everything).values(record(EVERYTHING))
    assert values[:5] == ("ä", 2**60, 0.1, True, b"\x00\xff")
    assert values[7:12] == ("1.50", str(UUID(int=7)), '["a","b"]', None, "c")
    assert json.loads(values[-1]) == {"b": 1.0, "a": [1e20]}


def test_a_database_may_spell_values_in_its_own_way() -> None:
    codec = codec_of(Everything)
    ours = codec.values(record(EVERYTHING))
    theirs = list(ours)
    theirs[3] = 1  # SQLite knows no booleans
    theirs[4] = memoryview(b"\x00\xff")
    theirs[5] = datetime(2026, 1, 2, 4, 4, 5, 678_900, timezone(timedelta(hours=1)))
    theirs[6] = date(2026, 1, 2)
    theirs[7] = Decimal("1.5")
    theirs[8] = UUID(int=7)
    theirs[9] = ["a", "b"]
    theirs[15] = "x"
    theirs[15] = '"x"'
    theirs[16] = {"a": [100000000000000000000], "b": 1}
    assert digest_of(codec.columns, theirs) == digest_of(codec.columns, ours)


@pytest.mark.parametrize("at", range(17))
def test_any_other_value_has_another_digest(at: int) -> None:
    codec = codec_of(Everything)
    ours = codec.values(record(EVERYTHING))
    others: dict[str, Any] = {
        "text": "b", "integer": 5, "real": 0.2, "boolean": False, "bytes": b"",
        "date": "2026-01-03",
        "time": "2026-01-02T03:04:05.678901Z", "decimal": "1.51", "uuid": str(UUID(int=8)),
        "json": '{"c":1}',
    }  # fmt: skip
    theirs = [*ours]
    theirs[at] = others[codec.columns[at].kind]
    assert digest_of(codec.columns, theirs) != digest_of(codec.columns, ours)


class Renamed(msgspec.Struct, omit_defaults=True, rename="camel"):
    card_id: str
    seen: int = 3
    tags: list[str] = []


def test_a_struct_keeps_its_json_names_and_what_it_leaves_out() -> None:
    codec = codec_of(Renamed)
    assert [column.name for column in codec.columns] == ["cardId", "seen", "tags"]
    assert codec.values(record(Renamed("c"))) == ("c", 3, "[]")
    assert codec.values(record(Renamed("c", 4, ["x"]))) == ("c", 4, '["x"]')


class Typed(TypedDict):
    card: str
    at: int


def test_a_typed_dict_and_a_missing_value() -> None:
    codec = codec_of(Typed)
    assert codec.values(record({"card": "c"})) == ("c", None)


def test_an_output_that_is_no_record_is_one_json_column() -> None:
    for output_type, value in ((str, "x"), (dict[str, int], {"a": 1}), (Typed | Renamed, {"b": 2})):
        codec = codec_of(output_type)
        assert codec.columns == (Column("value", "json"),)
        assert json.loads(codec.values(record(value))[0]) == value


def test_a_dead_letter_is_kept_as_the_bytes_it_is() -> None:
    letter = OutputRecord(b"k", b"\xff{", 0, (("topic", b"payments"), ("offset", b"7")))
    codec = codec_of(None)
    key, value, headers = codec.values(letter)
    assert (key, value) == (b"k", b"\xff{")
    assert json.loads(headers) == {"topic": "payments", "offset": "7"}
    assert digest_of(codec.columns, (b"k", memoryview(b"\xff{"), json.loads(headers))) == (
        digest_of(codec.columns, (key, value, headers))
    )


def test_an_output_that_does_not_fit_its_type_is_named() -> None:
    with pytest.raises(RowUnfit, match=r"An output of .* bytes is not a row"):
        codec_of(Typed).values(OutputRecord(b"k", b'{"card": 5}', 0))


class Model(pydantic.BaseModel):
    raw: bytes
    maybe: bytes | None = None


def test_bytes_of_a_pydantic_model_are_the_text_that_it_makes_of_them() -> None:
    codec = codec_of(Model)
    assert [column.kind for column in codec.columns] == ["text", "text"]
    value = json_encoder()(Model(raw=b"ab cd"))
    assert codec.values(OutputRecord(b"k", value, 0)) == ("ab cd", None)


@dataclass
class TargetState:
    at: datetime


def test_times_of_other_zones_are_told_in_utc() -> None:
    values = codec_of(TargetState).values
    there = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=2)))
    assert values(record(TargetState(there))) == ("2026-01-02T01:04:05+00:00",)
    assert values(record(TargetState(there.astimezone(UTC)))) == ("2026-01-02T01:04:05Z",)
    assert values(record(TargetState(there.replace(tzinfo=None)))) == ("2026-01-02T03:04:05",)


def test_a_dead_letter_whose_headers_no_json_column_takes_is_taken() -> None:
    letter = OutputRecord(b"k", b"v", 0, (("error", b"a nul \0 and \xff"),))
    headers = codec_of(None).values(letter)[2]
    assert "\\u0000" not in headers
    assert json.loads(headers) == {"error": "a nul \ufffd and \ufffd"}
