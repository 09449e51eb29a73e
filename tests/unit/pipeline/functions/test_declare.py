"""The declaration of a function: what it resolves to, and what it refuses in words."""

import pickle
from dataclasses import dataclass, field
from typing import TypedDict

import msgspec
import pytest

from catchwater import Context, Keyed, Out, function
from catchwater.pipeline.functions.declare import DeclarationError, spec_of


@dataclass
class Txn:
    card: str
    id: str
    at: int
    amount: float = 0.0
    tags: list[str] = field(default_factory=list)


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
        ({"key": "cart"}, "'f': key='cart' is not a field of Txn (card, id, at, amount, tags)"),
        ({"key": "tags"}, "key='tags' of Txn must be str, int, bytes, bool, float, UUID, "),
        ({"key": ()}, "key names no field"),
        ({"event_time": "when"}, "event_time='when' is not a field of Txn"),
        ({"event_time": "card"}, "event_time='card' of Txn must be int (milliseconds), not str"),
        ({"dedup": "nr"}, "dedup='nr' is not a field"),
        ({"watermark": "30"}, "watermark='30' is not a duration"),
        ({"state_ttl": "1 month"}, "state_ttl='1 month' is not a duration"),
        ({"output_id": ("card", "id")}, "output_id='id' is not a field of Alert"),
        ({"late": "keep"}, "late='keep' must be 'drop' or 'process'"),
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

    with pytest.raises(DeclarationError, match="types that can be stored"):
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
