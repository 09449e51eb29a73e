"""What a function keeps, described by what lies in the bytes."""

import enum
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pydantic

from catchwater import Context, Keyed, Out, function
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.functions.entries import MapState, map_state
from catchwater.pipeline.functions.schema import Field, Kind, Shape, describe, describe_type

INT, STR = Kind("int"), Kind("str")


def shape_of(declared: Any) -> Shape:
    shapes: dict[str, Shape] = {}
    return shapes[describe_type(declared, shapes).record]


def test_a_dataclass_is_a_map_of_its_fields() -> None:
    @dataclass
    class Risk:
        small_at: int = 0
        spent: dict[str, float] = field(default_factory=dict)

    assert shape_of(Risk) == Shape(
        [
            Field("small_at", INT, default=0),
            Field("spent", Kind("dict", of=[STR, Kind("float")]), default={}),
        ]
    )


def test_a_struct_is_described_as_it_is_encoded() -> None:
    class Risk(
        msgspec.Struct, array_like=True, tag=True, forbid_unknown_fields=True, omit_defaults=True
    ):
        small_at: int = msgspec.field(default=0, name="smallAt")

    found = shape_of(Risk)
    assert found.fields == [Field("smallAt", INT, default=0)]
    assert (found.array, found.closed, found.omits) == (True, True, True)
    assert found.tag == "type='Risk'"


class Tree(msgspec.Struct):
    left: "Tree | None" = None


def test_a_class_that_holds_itself_is_described_once() -> None:
    shapes: dict[str, Shape] = {}
    root = describe_type(Tree, shapes)
    (shape,) = shapes.values()
    assert shape.fields[0].kind.kind == "union"
    assert root in shape.fields[0].kind.of


def test_enums_limits_and_unions_say_what_may_be_stored() -> None:
    class Level(enum.Enum):
        LOW = "low"
        HIGH = "high"

    assert describe_type(Level, {}) == Kind("literal", values=["low", "high"])
    assert describe_type(Annotated[int, msgspec.Meta(ge=1)], {}) == Kind("int", limits={"ge": 1})
    assert describe_type(str | None, {}).kind == "union"
    assert describe_type(tuple[int, str], {}) == Kind("tuple", of=[INT, STR])
    assert describe_type(tuple[int, ...], {}) == Kind("list", of=[INT])


class Place(NamedTuple):
    x: int
    y: int = 0


class Loose(TypedDict, total=False):
    seen: int


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    seen: int = 0
    named: str


def test_every_way_to_write_a_record_has_a_shape() -> None:
    assert shape_of(Place) == Shape(
        [Field("x", INT, required=True), Field("y", INT, default=0)], array=True, closed=True
    )
    assert shape_of(Loose) == Shape([Field("seen", INT)])
    assert shape_of(Model) == Shape(
        [Field("seen", INT), Field("named", STR, required=True)], closed=True
    )


def test_a_description_outlives_its_class_as_json() -> None:
    shapes: dict[str, Shape] = {}
    describe_type(Tree, shapes)
    again = msgspec.json.decode(msgspec.json.encode(shapes), type=dict[str, Shape])
    assert again == shapes


@dataclass
class Event:
    card: str
    at: int


class Spent(msgspec.Struct):
    seen: int = 0
    by_day: MapState[int, float] = map_state(ttl="30d")


def test_what_is_kept_entry_by_entry_is_no_part_of_the_record() -> None:
    @function(name="spent", key=("card", "at"), event_time="at")
    class Spending(Keyed[Event, Spent, Event]):
        def on_event(self, e: Event, s: Spent, ctx: Context) -> Out[Event]:
            return ()

    found = describe(spec_of(Spending))
    assert found.key == ["str", "int"]
    assert [each.name for each in found.shapes[found.state.record].fields] == ["seen"]
    assert found.entries == {"by_day": Kind("MapState", of=[INT, Kind("float")])}
