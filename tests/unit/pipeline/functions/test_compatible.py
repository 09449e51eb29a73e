"""What is called compatible is read with its values; what is refused fails or loses some."""

import enum
from dataclasses import make_dataclass
from random import Random
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.pipeline.functions.schema import Kind, StateSchema, compare, describe_type

Declared = Any
TYPES: list[Declared] = [
    int, float, str, bool, bytes, int | None, str | None, int | str, float | str,
    list[int], list[float], set[int], tuple[int, int], tuple[int, ...], list[int | None],
    dict[str, int], dict[str, float], dict[int, int], dict[str, list[int]],
    Literal["a", "b"], Literal["a", "b", "c"], Literal[1, 2],
    Annotated[int, msgspec.Meta(ge=0)], Annotated[int, msgspec.Meta(ge=-1000)],
]  # fmt: skip
NAMES = ["a", "b", "c", "d", "e"]


def schema(declared: Declared, key: list[str] | None = None, **entries: Kind) -> StateSchema:
    shapes: dict[str, Any] = {}
    return StateSchema(key or ["str"], describe_type(declared, shapes), shapes, entries)


def problems(old: Declared, new: Declared) -> list[str]:
    return [str(each) for each in compare(schema(old), schema(new))]


def struct(_name: str = "S", _config: dict[str, Any] | None = None, **fields: Declared) -> Declared:
    described = [(name, kind, each_default(kind)) for name, kind in fields.items()]
    return msgspec.defstruct(_name, described, **_config or {})


def each_default(kind: Declared) -> Any:
    return sample(kind, Random(1), plain=True)


def sample(kind: Declared, random: Random, *, plain: bool = False) -> Any:
    """A value of the type; plain: the one that a field starts with."""
    known: dict[Any, Any] = {
        int: lambda: 0 if plain else random.randint(-2000, 2000),
        float: lambda: 0.0 if plain else random.randint(-1000, 1000) / 8,
        str: lambda: "" if plain else random.choice(["x", "1", "a", "päng"]),
        bool: lambda: False if plain else random.random() < 0.5,
        bytes: lambda: b"" if plain else random.randbytes(2),
        type(None): lambda: None,
    }
    if kind in known:
        return known[kind]()
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind(**{f: sample(t, random) for f, t in kind.__annotations__.items()})
    arguments, origin = kind.__args__, getattr(kind, "__origin__", None)
    if hasattr(kind, "__metadata__"):
        lowest = kind.__metadata__[0].ge
        return 0 if plain else random.choice([lowest, lowest + 1, 5])
    if origin is Literal:
        return arguments[0] if plain else random.choice(arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return tuple(sample(each, random) for each in arguments)
    if origin in (list, set, tuple):
        count = 0 if plain else random.randint(1, 3)
        made = [sample(arguments[0], random) for _ in range(count)]
        # Once in a while one value twice: a set would lose it.
        return origin(made + made[:1] if made else made)
    if origin is dict:
        keys = range(0 if plain else 2)
        return {sample(arguments[0], random): sample(arguments[1], random) for _ in keys}
    return sample(arguments[-1 if plain else random.randrange(len(arguments))], random)


@st.composite
def evolutions(draw: st.DrawFn) -> tuple[Declared, Declared]:
    """A class and what became of it: fields dropped, added, moved, retyped, renamed."""
    config = {
        "array_like": draw(st.booleans()),
        "omit_defaults": draw(st.booleans()),
    }
    kinds = st.sampled_from(TYPES)
    before = {name: draw(kinds) for name in draw(st.permutations(NAMES))[:3]}
    after = dict(before)
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(sorted(after))) if after else ""
        match draw(st.sampled_from(["drop", "add", "retype", "rename", "move"])):
            case "drop":
                after.pop(name, None)
            case "add":
                after.setdefault(draw(st.sampled_from(NAMES)), draw(kinds))
            case "retype" if name:
                after[name] = draw(kinds)
            case "rename" if name:
                other = draw(st.sampled_from(NAMES))
                after = {other if n == name else n: t for n, t in after.items() if n != other}
            case "move":
                after = {n: after[n] for n in draw(st.permutations(sorted(after)))}
    return struct("Old", config, **before), struct("New", config, **after)


def same(old: Any, new: Any) -> bool:
    """Whether two values are equal but for their class: a tuple is a list, a set is unordered."""
    if isinstance(old, bool) != isinstance(new, bool):
        return False
    if isinstance(old, set):
        return isinstance(new, set | list | tuple) and sorted(old) == sorted(new)
    if isinstance(old, list | tuple):
        return isinstance(new, list | tuple) and list(old) == list(new)
    return bool(old == new)


def brought_over(old: Any, new_type: Declared) -> bool:
    """Whether what was stored is read under the same names, with the same values."""
    try:
        new = msgspec.msgpack.decode(msgspec.msgpack.encode(old), type=new_type)
    except msgspec.ValidationError:
        return False
    before, after = type(old).__annotations__, new_type.__annotations__
    if new_type.__struct_config__.array_like:
        # What was another field's value is not brought over, though it can be read.
        if any(was != now for was, now in zip(before, after, strict=False)):
            return False
    shared = before.keys() & after.keys()
    return all(same(getattr(old, name), getattr(new, name)) for name in shared)


@settings(max_examples=200, deadline=None)
@given(evolutions(), st.integers(0, 2**32))
def test_the_verdict_is_what_reading_stored_state_shows(
    pair: tuple[Declared, Declared], seed: int
) -> None:
    old_type, new_type = pair
    found = problems(old_type, new_type)
    random = Random(seed)
    samples = [sample(old_type, random) for _ in range(40)] + [old_type()]
    results = [brought_over(each, new_type) for each in samples]
    suspected = any("renamed" in each for each in found)
    if not found:
        assert all(results)
    elif not suspected:
        assert not all(results), found


def test_fields_may_be_added_with_a_default_removed_and_moved() -> None:
    old = make_dataclass("Risk", [("a", int, 0), ("b", str, ""), ("c", bytes, b"")])
    new = make_dataclass("Risk", [("c", bytes, b""), ("d", bool, False), ("a", float, 0.0)])
    assert problems(old, new) == []


def test_a_new_field_without_a_default_is_named_with_its_path() -> None:
    inner = struct("Inner", a=int)
    wider = msgspec.defstruct("Inner", [("b", str), ("a", int, 0)])
    assert problems(struct(by=dict[str, inner]), struct(by=dict[str, wider])) == [
        "state.by[].b: it is new and has no default"
    ]


def test_a_changed_type_says_what_it_was_and_is() -> None:
    assert problems(struct(a=str), struct(a=int)) == ["state.a: it was str and is int"]
    assert problems(struct(a=list[str]), struct(a=list[int])) == [
        "state.a[]: it was str and is int"
    ]
    assert problems(struct(a=int | None), struct(a=int)) == ["state.a: it could be None and is int"]
    assert problems(struct(a=dict[int, str]), struct(a=dict[str, str])) == [
        "state.a[key]: it was int and is str"
    ]


def test_literals_are_held_to_a_new_limit_one_by_one() -> None:
    old, at_least = struct(a=Literal[1, 2]), [Annotated[int, msgspec.Meta(ge=n)] for n in (0, 2)]
    assert problems(old, struct(a=at_least[0])) == []
    assert problems(old, struct(a=at_least[1])) == ["state.a: ge=2 is new"]


def test_a_renamed_field_is_refused_though_it_could_be_read() -> None:
    assert problems(struct(spent=float), struct(total=float)) == [
        "state.spent: it is gone and total is new: its values would be lost if it was renamed"
    ]
    assert problems(struct(spent=float), struct(total=str)) == []


def test_a_class_read_by_place_may_only_grow_and_shrink_at_its_end() -> None:
    by_place = {"array_like": True}
    old = struct("S", by_place, a=int, b=int)
    assert problems(old, struct("S", by_place, a=int, b=int, c=str)) == []
    assert problems(old, struct("S", by_place, a=int)) == []
    assert problems(old, struct("S", by_place, b=int, a=int)) == [
        "state.a: b stands in its place, and the class is read by place"
    ]
    assert problems(old, struct("S", a=int, b=int)) == [
        "state: it was written by place and is read by name"
    ]


def test_a_default_that_was_left_out_of_the_bytes_must_stay() -> None:
    omits = {"omit_defaults": True}
    old = msgspec.defstruct("S", [("a", int, 1)], omit_defaults=True)
    assert problems(old, msgspec.defstruct("S", [("a", int, 1)])) == []
    changed = msgspec.defstruct("S", [("a", int, 2)], **omits)
    assert problems(old, changed) == ["state.a: its default was 1, which was left out, and is 2"]


def test_an_enum_may_grow_and_not_shrink() -> None:
    small = enum.Enum("Level", {"LOW": "low"})
    large = enum.Enum("Level", {"LOW": "low", "HIGH": "high"})
    assert problems(struct("S", None, a=Literal["x"]), struct("S", None, a=Literal["x", "y"])) == []
    assert compare(schema(small), schema(large)) == []
    assert problems(large, small) == ["state: it was one of 'low', 'high' and is one of 'low'"]
    assert problems(large, str) == []


def test_limits_may_be_loosened_and_not_tightened() -> None:
    def at_least(n: int) -> Declared:
        return struct(a=Annotated[int, msgspec.Meta(ge=n)])

    assert problems(at_least(0), at_least(-1)) == []
    assert problems(at_least(0), at_least(1)) == ["state.a: ge was 0, is 1"]
    assert problems(struct(a=int), at_least(0)) == ["state.a: ge=0 is new"]


def test_unions_of_records_are_told_apart_by_their_tags_alone() -> None:
    cat, dog = (msgspec.defstruct(n, [("age", int, 0)], tag=True) for n in ("Cat", "Dog"))
    bird = msgspec.defstruct("Bird", [("age", int, 0)], tag="Dog")
    assert (
        problems(struct("S", None, a=list[cat | dog]), struct("S", None, a=list[dog | cat])) == []
    )
    assert problems(list[cat | dog], list[cat | bird]) == []
    assert problems(list[cat | dog], list[cat]) == [
        "state[]: its tag was type='Dog' and is type='Cat'"
    ]


def test_another_key_and_moved_state_are_nothing_that_from_v1_could_mend() -> None:
    declared = struct(a=int)
    (key,) = compare(schema(declared, ["str"]), schema(declared, ["int"]))
    assert (key.field, key.migratable) == ("key", False)
    spent = Kind("MapState", of=[Kind("str"), Kind("float")])
    (moved,) = compare(schema(struct(), spent=spent), schema(struct(spent=dict[str, float])))
    assert (moved.field, moved.migratable) == ("state.spent", False)
    counts = Kind("MapState", of=[Kind("str"), Kind("str")])
    (entry,) = compare(schema(struct(), spent=spent), schema(struct(), spent=counts))
    assert str(entry) == "state.spent[]: it was float and is str"
    assert compare(schema(struct(), spent=spent), schema(struct())) == []


def test_a_plain_map_may_become_a_state_of_its_own() -> None:
    spent = Kind("MapState", of=[Kind("str"), Kind("float")])
    last = Kind("ValueState", of=[Kind("float")])
    old = schema(struct(spent=dict[str, int], last=int))
    assert compare(old, schema(struct(), spent=spent, last=last)) == []
    (refused,) = compare(schema(struct(spent=list[int])), schema(struct(), spent=spent))
    assert str(refused) == "state.spent: it was list[int] and is dict[str, float]"


@pytest.mark.parametrize("declared", TYPES, ids=str)
def test_a_type_reads_what_it_wrote(declared: Declared) -> None:
    assert problems(struct(a=declared), struct(a=declared)) == []


@pytest.mark.parametrize("kind", ["MapState", "ListState", "ValueState"])
def test_a_state_of_its_own_under_another_name_is_refused(kind: str) -> None:
    parts = [Kind("str"), Kind("float")] if kind == "MapState" else [Kind("float")]
    old = schema(struct(n=int), spent=Kind(kind, parts))
    new = schema(struct(n=int), paid=Kind(kind, parts))
    told = "state.spent: it is gone and paid is new: its values would be lost if it was renamed"
    (found,) = compare(old, new)
    assert (str(found), found.migratable) == (told, True)
    other = Kind(kind, [*parts[:-1], Kind("bytes")])
    assert compare(old, schema(struct(n=int), paid=other)) == []
    assert compare(old, schema(struct(n=int))) == []
    assert compare(schema(struct(n=int)), new) == []
    # A field of the record that became one, and got another name on the way.
    plain = {"MapState": dict[str, float], "ListState": list[float], "ValueState": float}[kind]
    (found,) = compare(schema(struct(n=int, spent=plain)), new)
    assert str(found) == told
