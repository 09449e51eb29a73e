"""The DDL parser against Spark's own types, which write themselves as DDL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types

from catchwater.values.json import parse_ddl
from catchwater.values.settings import BadSchema

PLAIN = [
    types.StringType(), types.BinaryType(), types.BooleanType(), types.ByteType(),
    types.ShortType(), types.IntegerType(), types.LongType(), types.FloatType(),
    types.DoubleType(), types.DateType(), types.TimestampType(),
]  # fmt: skip
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs")), min_size=1)


def structs(inner: st.SearchStrategy[types.DataType]) -> st.SearchStrategy[types.StructType]:
    named = st.lists(st.tuples(NAMES, inner), min_size=1, max_size=4, unique_by=lambda f: f[0])
    distinct = named.filter(lambda fields: len({name.lower() for name, _ in fields}) == len(fields))
    return distinct.map(lambda fields: types.StructType([types.StructField(*f) for f in fields]))


DECIMALS = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(lambda s: types.DecimalType(precision, s))
)
TYPES = st.recursive(
    st.sampled_from(PLAIN) | DECIMALS,
    lambda inner: (
        inner.map(types.ArrayType)
        | inner.map(lambda value: types.MapType(types.StringType(), value))
        | structs(inner)
    ),
    max_leaves=5,
)


def ddl(kind: types.DataType) -> str:
    match kind:
        case types.StructType():
            return f"struct<{fields(kind)}>"
        case types.ArrayType():
            return f"array<{ddl(kind.elementType)}>"
        case types.MapType():
            return f"MAP < string,{ddl(kind.valueType)} >"
    return kind.simpleString()


def fields(struct: types.StructType) -> str:
    quoted = [(each.name.replace("`", "``"), ddl(each.dataType)) for each in struct]
    return " , ".join(f"`{name}`: {kind}" for name, kind in quoted)


@given(structs(TYPES))
def test_what_is_written_as_ddl_is_read_back(schema: types.StructType) -> None:
    assert parse_ddl(fields(schema)) == schema


def test_names_need_neither_quotes_nor_a_colon() -> None:
    parsed = parse_ddl("card string, At BIGINT,\n amount decimal, t struct<x: tinyint, y real>")
    assert parsed.simpleString() == (
        "struct<card:string,At:bigint,amount:decimal(10,0),t:struct<x:tinyint,y:float>>"
    )


@pytest.mark.parametrize(
    ("text", "character", "what"),
    [
        ("", 1, "a field's name is expected, not the end"),
        ("a", 2, "the end is no type"),
        ("a lng", 3, "'lng' is no type (did you mean long?)"),
        ("a interval", 3, "'interval' is no type"),
        ("a int,", 7, "a field's name is expected, not the end"),
        ("a int b int", 7, "',' or the end is expected, not 'b'"),
        ("a int, A long", 10, "the field A stands there twice"),
        ("a array<int", 12, "'>' is expected, not the end"),
        ("a array", 8, "'<' is expected, not the end"),
        ("a map<int, string>", 7, "a map's keys are of type string, not 'int'"),
        ("a decimal(39, 2)", 11, "a number from 1 to 38 is expected, not '39'"),
        ("a decimal(5, 6)", 14, "a number from 0 to 5 is expected, not '6'"),
        ("a int not null", 7, "',' or the end is expected, not 'not'"),
        ("a-b int", 2, "'-' is no type"),
        ("`a int", 1, "a field's name is expected, not '`'"),
        ("a struct<x int, y >", 19, "'>' is no type"),
    ],
)
def test_an_error_names_the_character(text: str, character: int, what: str) -> None:
    with pytest.raises(BadSchema) as caught:
        parse_ddl(text)
    assert str(caught.value).startswith(f"valueSchema, character {character}: {what}")


@given(st.text(alphabet="ab <>(),:`'arymint3struc\n"))
def test_any_text_is_a_schema_or_an_error_that_names_its_place(text: str) -> None:
    try:
        assert len(parse_ddl(text)) > 0
    except BadSchema as error:
        assert str(error).startswith("valueSchema, character ")
