"""The declaration of a function: what it resolves to, and what it refuses in words."""

import pickle
from dataclasses import dataclass, field, make_dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum, IntEnum
from types import new_class
from typing import Literal, NewType, TypedDict
from uuid import UUID

import msgspec
import pytest

from catchwater import (
    Call,
    Context,
    Keyed,
    ListState,
    MapState,
    Out,
    ValueState,
    function,
    list_state,
    map_state,
    value_state,
)
from catchwater.pipeline.functions.declare import DeclarationError, spec_of
from catchwater.testing import Harness


@dataclass
class Txn:
    card: str
    id: str
    at: int
    amount: float = 0.0
    tags: list[str] = field(default_factory=list)
    note: str | None = None


@dataclass
class Alert:
    card: str
    rule: str


@dataclass
class Risk:
    small_at: int = 0
    spent: dict[str, float] = field(default_factory=dict)


class CardRisk(Keyed[Txn, Risk, Alert]):
    def on_event(self, e: Txn, s: Risk, ctx: Context) -> Out[Alert]:
        return [Alert(e.card, "always")]

    @staticmethod
    def from_v1(old: dict) -> Risk:
        return Risk(old["last"])


function(
    name="card-risk",
    version=2,
    key="card",
    event_time="at",
    dedup="id",
    state_ttl="30d",
    output_id=("card", "rule"),
    needs_history="7d",
    max_restore="10m",
)(CardRisk)


def declare(target=None, /, **changed):
    """A good declaration with one thing changed."""

    class Plain(Keyed[Txn, Risk, Alert]):
        def on_event(self, e: Txn, s: Risk, ctx: Context) -> Out[Alert]:
            return None

    good = {"name": "f", "key": "card", "event_time": "at"}
    return function(**(good | changed))(target or Plain)


def test_a_declaration_is_resolved_to_types_and_milliseconds():
    spec = spec_of(CardRisk)
    assert (spec.event_type, spec.state_type, spec.output_type) == (Txn, Risk, Alert)
    assert (spec.key, spec.watermark_ms, spec.dedup_ttl_ms) == (("card",), 30_000, 86_400_000)
    assert (spec.state_ttl_ms, spec.max_restore_ms) == (30 * 86_400_000, 600_000)
    assert list(spec.migrations()) == [1]


def test_a_record_lives_as_long_as_the_longer_of_state_and_ids():
    assert spec_of(declare(dedup="id", state_ttl="1h")).record_ttl_ms == 86_400_000
    assert spec_of(declare(state_ttl="1h")).record_ttl_ms == 3_600_000
    assert spec_of(declare(dedup="id")).record_ttl_ms is None


def test_a_plain_function_can_be_declared():
    @function(name="plain", key=("card", "id"), event_time="at")
    def plain(e: Txn, s: Risk, ctx: Context) -> Out[Alert]:
        return [Alert(e.card, "x")]

    spec = spec_of(plain)
    assert (spec.event_type, spec.state_type, spec.output_type) == (Txn, Risk, Alert)
    assert spec.key_of(Txn("c", "1", 5)) == ("c", "1")
    on_event, on_timer = spec.handlers()
    assert on_event(Txn("c", "1", 5), Risk(), None) == [Alert("c", "x")]
    assert on_timer("n", 5, Risk(), None) is None


def test_structs_typed_dicts_and_pydantic_models_are_types_too():
    pydantic = pytest.importorskip("pydantic")

    class Event(msgspec.Struct, rename="camel"):
        card_id: str
        at: int

    class Count(TypedDict, total=False):
        seen: int

    class Verdict(pydantic.BaseModel):
        card: str

    class F(Keyed[Event, Count, Verdict]):
        def on_event(self, e: Event, s: Count, ctx: Context) -> Out[Verdict]:
            return None

    spec = spec_of(declare(F, key="card_id"))
    event = spec.decode_event(b'{"cardId":"c","at":5}')
    assert spec.key_of(event) == "c"
    assert spec.key_of_fields(spec.decode_key_fields(b'{"cardId":"c","at":"?"}')) == "c"
    assert spec.encode_output(Verdict(card="c")) == b'{"card":"c"}'


def test_events_of_a_typed_dict_and_of_a_pydantic_model_are_read():
    pydantic = pytest.importorskip("pydantic")

    class Event(TypedDict):
        card: str
        at: int

    class Model(pydantic.BaseModel):
        card: str = ""
        at: int = 0

    class ByDict(Keyed[Event, Model, Alert]):
        def on_event(self, e: Event, s: Model, ctx: Context) -> Out[Alert]:
            return None

    class ByModel(Keyed[Model, Model, Alert]):
        def on_event(self, e: Model, s: Model, ctx: Context) -> Out[Alert]:
            return None

    for target in (ByDict, ByModel):
        spec = spec_of(declare(target))
        event = spec.decode_event(b'{"card":"c","at":7}')
        assert (spec.key_of(event), spec.event_time_of(event)) == ("c", 7)


def test_a_spec_pickles_with_its_cached_decoders_left_behind():
    spec = spec_of(CardRisk)
    spec.decode_event(b'{"card":"c","id":"1","at":5}')
    assert pickle.loads(pickle.dumps(spec)) == spec


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"name": "bad name"}, "'bad name' must be"),
        ({"version": 0}, "'f': version=0"),
        (
            {"key": "cart"},
            "'f': key='cart' is not a field of Txn (card, id, at, ",
        ),
        ({"key": "tags"}, "key='tags' of Txn must be str, int, bytes, bool, float, UUID, "),
        ({"key": ()}, "key names no field"),
        ({"event_time": "when"}, "event_time='when' is not a field of Txn"),
        ({"event_time": "card"}, "event_time='card' of Txn must be int (milliseconds), not str"),
        ({"dedup": "nr"}, "dedup='nr' is not a field"),
        ({"watermark": "30"}, "watermark='30' is not a duration"),
        ({"state_ttl": "1 month"}, "state_ttl='1 month' is not a duration"),
        ({"output_id": ("card", "id")}, "output_id='id' is not a field of Alert"),
        ({"late": " "}, "late=' ' must be 'drop', 'process', 'dead-letter' or the name of a sink"),
        ({"max_future": "soon"}, "max_future='soon' is not a duration"),
        ({"key": "note"}, "key='note' of Txn must be str, int, "),
        ({"poison": "drop"}, "poison='drop' must be 'fail', 'skip' or 'dead-letter'"),
        ({"poison_limit": 5}, "poison_limit means nothing with poison='fail'"),
        ({"poison": "skip", "poison_limit": -1}, "poison_limit=-1 must be a whole number"),
        ({"key": {"a": "card"}}, "key is given by input, but there are no inputs="),
        ({"tables": {"no table": Txn}}, "the table 'no table' must be 1 to 64 letters"),
        ({"tables": {"shops": int}}, "the row of table 'shops': type int must be a dataclass"),
        ({"calls": {"score": Call()}}, "the call 'score' needs a method ask_score"),
        ({"inputs": {"txns": Txn, "alerts": Alert}}, "must be the union of the inputs' types: Txn"),
    ],
)
def test_a_wrong_declaration_names_function_and_field(changed, words):
    with pytest.raises(DeclarationError) as refused:
        declare(**changed)
    assert words in str(refused.value)


def test_a_class_without_its_types_or_handler_is_refused():
    class NoTypes(Keyed):
        def on_event(self, e, s, ctx):
            return None

    class NoHandler(Keyed[Txn, Risk, Alert]):
        pass

    class NotKeyed:
        pass

    class NoRecord(Keyed[int, Risk, Alert]):
        def on_event(self, e, s, ctx):
            return None

    for target, words in [
        (NoTypes, "write Keyed[Event, State, Out]"),
        (NoHandler, "must define on_event"),
        (NotKeyed, "must derive from Keyed"),
        (NoRecord, "the event type int must be a dataclass"),
    ]:
        with pytest.raises(DeclarationError, match="Function 'f'") as refused:
            declare(target)
        assert words in str(refused.value)


def test_a_state_that_cannot_start_empty_is_refused():
    @dataclass
    class Needy:
        n: int

    class Half(TypedDict):
        n: int

    for state in (Needy, Half):

        class F(Keyed[Txn, state, Alert]):
            def on_event(self, e, s, ctx):
                return None

        with pytest.raises(DeclarationError, match=f"the state {state.__name__} must"):
            declare(F)


def test_a_plain_function_without_annotations_is_refused():
    def bare(e, s, ctx):
        return None

    def no_output(e: Txn, s: Risk, ctx: Context) -> None:
        return None

    for target in (bare, no_output):
        with pytest.raises(DeclarationError, match="write def f"):
            declare(target)


class Loose:
    small_at = 0


class LooseStruct(msgspec.Struct):
    small_at = 0


class LooseBelow(Risk):
    more = 0


class Constants:
    HIGH = 100
    _seen = 0
    spent: float = 0.0

    @property
    def much(self) -> bool:
        return self.spent > self.HIGH


@pytest.mark.parametrize("state", [dataclass(Loose), LooseStruct, dataclass(LooseBelow)])
@pytest.mark.parametrize("role", ["event", "state"])
def test_a_value_without_a_type_is_no_field_and_is_refused(state, role):
    event, kept = (state, Risk) if role == "event" else (Txn, state)

    class Forgetful(Keyed[event, kept, Alert]):
        def on_event(self, e, s, ctx):
            return None

    with pytest.raises(DeclarationError, match=f"of the {role} type .* no type.*annotate it"):
        declare(Forgetful)


def test_constants_methods_and_what_is_hidden_need_no_type():
    class Constant(Keyed[Txn, dataclass(Constants), Alert]):
        def on_event(self, e, s, ctx):
            return None

    assert spec_of(declare(Constant)).name == "f"


async def waits(self, e, s, ctx):
    return None


async def waits_and_yields(self, e, s, ctx):
    yield None


def forgets_the_context(self, e, s):
    return None


@pytest.mark.parametrize(
    ("handlers", "words"),
    [
        ({"on_event": waits}, "waits must not be async"),
        ({"on_event": waits_and_yields}, "must not be async"),
        ({"on_event": forgets_the_context}, r"3 arguments \(too many.*write on_event\(self, e, s"),
        ({"on_timer": forgets_the_context}, r"4 arguments .*write on_timer\(self, name, at"),
    ],
)
def test_a_handler_that_cannot_be_called_is_refused(handlers, words):
    kinds = {"on_event": lambda self, e, s, ctx: None} | handlers
    with pytest.raises(DeclarationError, match=words):
        declare(new_class("Odd", (Keyed[Txn, Risk, Alert],), {}, lambda body: body.update(kinds)))


def test_an_annotation_that_cannot_be_resolved_is_refused():
    def lost(e: "Nowhere", s: Risk, ctx: Context) -> Out[Alert]:  # noqa: F821
        return None

    with pytest.raises(DeclarationError, match="'Nowhere' is not defined"):
        declare(lost)


def test_what_cannot_be_stored_is_refused_as_state():
    @dataclass
    class Lock:
        held: object = field(default_factory=object)

    class F(Keyed[Txn, Lock, Alert]):
        def on_event(self, e, s, ctx):
            return None

    with pytest.raises(DeclarationError, match=r"Lock\.held, of the state type, is of type object"):
        declare(F)


def test_a_union_of_outputs_is_checked_member_by_member():
    @dataclass
    class Other:
        card: str

    class F(Keyed[Txn, Risk, Alert | Other]):
        def on_event(self, e, s, ctx):
            return None

    declare(F, output_id="card")
    with pytest.raises(DeclarationError, match="'rule' is not a field of Other"):
        declare(F, output_id=("card", "rule"))


def test_an_undecorated_class_has_no_declaration():
    with pytest.raises(DeclarationError, match="decorate it with @function"):
        spec_of(Txn)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1


class Mixed(Enum):
    ONE = 1
    TWO = "two"


Customer = NewType("Customer", str)


@pytest.mark.parametrize(
    ("key_type", "value", "text"),
    [
        (str, "a", b"a"), (int, -5, b"-5"), (bytes, b"\x00", b"\x00"), (bool, True, b"true"),
        (float, 1.5, b"1.5"), (UUID, UUID(int=7), str(UUID(int=7)).encode()),
        (date, date(2024, 1, 2), b"2024-01-02"), (time, time(1, 2), b"01:02:00"),
        (datetime, datetime(2024, 1, 2, tzinfo=UTC), b"2024-01-02T00:00:00Z"),
        (Decimal, Decimal("1.50"), b"1.5"), (Colour, Colour.RED, b"red"), (Level, Level.LOW, b"1"),
        (Literal["x", "y"], "x", b"x"), (Literal[1, 2], 2, b"2"), (Customer, "c", b"c"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("several", [False, True])
def test_a_key_may_be_of_any_type_that_has_one_text(key_type, value, text, several):
    event = make_dataclass("Event", [("k", key_type), ("n", int), ("at", int)])

    @function(name="f", key=("k", "n") if several else "k", event_time="at")
    class F(Keyed[event, Risk, str]):
        def on_event(self, e, s, ctx):
            return [repr(ctx.key)]

    spec = spec_of(F)
    given = event(value, 3, 5)
    decoded = spec.decode_event(spec.encode_output(given))
    partial = spec.decode_key_fields(spec.encode_output(given))
    key = spec.encode_key(spec.key_of(decoded))
    assert key == spec.encode_key(spec.key_of_fields(partial))
    assert spec.decode_key(key) == ((value, 3) if several else value)
    assert several or key == text
    harness = Harness(F)
    assert harness.send(given) == [repr(spec.decode_key(key))]
    assert harness.state((value, 3) if several else value) == Risk()


@pytest.mark.parametrize("key_type", [Mixed, list[str], Risk, Literal["a", 1], str | None, object])
def test_other_types_of_keys_are_refused(key_type):
    event = make_dataclass("Event", [("k", key_type), ("at", int)])

    class F(Keyed[event, Risk, str]):
        def on_event(self, e, s, ctx):
            return None

    with pytest.raises(DeclarationError, match=r"'f': key='k' of Event must be str, int, bytes, "):
        function(name="f", key="k", event_time="at")(F)


@dataclass
class Order:
    buyer: str
    at: int
    number: int


@dataclass
class Payment:
    card: str
    time: int
    id: str


@dataclass
class Wrong:
    card: int
    time: int
    id: str


def two_inputs(second=Payment, **changed):
    class Both(Keyed[Order | second, Risk, str]):
        def on_event(self, e, s: Risk, ctx: Context) -> Out[str]:
            s.small_at += 1
            return [f"{type(e).__name__} {ctx.key} {s.small_at}"]

    good = {
        "name": "both", "inputs": {"orders": Order, "payments": second},
        "key": {"orders": "buyer", "payments": "card"},
        "event_time": {"orders": "at", "payments": "time"},
        "dedup": {"orders": "number", "payments": "id"},
    }  # fmt: skip
    return function(**(good | changed))(Both)


def test_several_inputs_share_a_keys_state_and_each_has_its_own_fields():
    h = Harness(two_inputs())
    assert h.send(Order("a", 5, 1), Payment("a", 6, "1"), Payment("b", 7, "1")) == [
        "Order a 1", "Payment a 2", "Payment b 1",
    ]  # fmt: skip
    assert h.send(Payment("a", 8, "1"), Order("a", 8, 1)) == []
    assert h.duplicates == 2
    h.send(Payment("a", 100_000, "2"))
    assert h.watermark == 70_000
    assert (h.send(Order("a", 60_000, 9)), h.late) == ([], 1)
    h.crash_and_restore(event=2)
    h.check_replay(orders=5)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"key": {"orders": "buyer"}}, "key is given for orders; the inputs are orders, payments"),
        ({"key": "buyer"}, "key='buyer' is not a field of Payment (card, time, id)"),
        ({"event_time": {"orders": "at", "payments": "id"}}, "event_time='id' of Payment must be"),
        ({"second": Wrong}, "the key of input 'payments' is int, that of 'orders' str"),
        (
            {
                "inputs": {"or ders": Order, "payments": Payment},
                "key": "x",
                "event_time": "x",
                "dedup": None,
            },
            "the input 'or ders' must be",
        ),
    ],
)
def test_wrong_inputs_are_named(changed, words):
    with pytest.raises(DeclarationError) as refused:
        two_inputs(**changed)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    ("declared", "default", "words"),
    [
        (MapState[str, int], list_state(), "is a MapState, its default makes a ListState"),
        (MapState, map_state(), "needs its types: write MapState[…]"),
        (dict[str, ListState[int]], {}, "holds a list, map or value state inside another type"),
        (ListState[int] | None, None, "holds a list, map or value state inside another type"),
        (int, list_state(), "must be annotated ListState[…], MapState[…] or ValueState[…]"),
        (ListState[int], None, "must have list_state(), map_state() or value_state() as its"),
        (MapState[list, int], map_state(), "the keys of the state's field 'f' must be str, int"),
        (ListState[int], list_state(ttl="soon"), "ttl of the state's field 'f': "),
        (ListState[int], list_state(max=0), "max=0 leaves no element"),
        (ListState[Txn | Alert], list_state(), "the state's field 'f' cannot be stored"),
    ],
)
def test_a_wrong_list_map_or_value_state_is_named(declared, default, words):
    kind = field(default_factory=dict) if default == {} else default
    state = make_dataclass("State", [("f", declared, kind)])

    class F(Keyed[Txn, state, str]):
        def on_event(self, e, s, ctx):
            return None

    with pytest.raises(DeclarationError) as refused:
        declare(F)
    assert words in str(refused.value) and "'f'" in str(refused.value)


def test_only_dataclasses_and_structs_hold_list_map_and_value_states():
    class Count(TypedDict, total=False):
        last: ValueState[int]

    class F(Keyed[Txn, Count, str]):
        def on_event(self, e, s, ctx):
            return None

    with pytest.raises(DeclarationError, match=r"in a dataclass or a msgspec\.Struct"):
        declare(F)
    assert value_state(ttl="1d").ttl == "1d"
