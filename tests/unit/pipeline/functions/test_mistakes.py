"""Mistakes in a function: each is told in words, with function and field, and costs no state."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, make_dataclass
from decimal import Decimal
from functools import cached_property
from pathlib import Path
from typing import Any, TypedDict

import pytest

from catchwater import (
    Call,
    Context,
    Keyed,
    ListState,
    MapState,
    ValueState,
    function,
    list_state,
    map_state,
    value_state,
)
from catchwater.operators import Windowed, tumbling
from catchwater.pipeline.calls.policy import override
from catchwater.pipeline.functions.declare import DeclarationError
from catchwater.pipeline.process.poison import EventFailed
from catchwater.testing import Harness

LONG_MAX = 2**63 - 1


@dataclass
class Event:
    key: str
    at: int
    n: int = 0


@dataclass
class State:
    n: int = 0
    ratio: float = 0.0
    counts: MapState[str, int] = map_state()
    items: ListState[int] = list_state()
    last: ValueState[int] = value_state()


@dataclass
class Acc:
    n: int = 0


@dataclass
class Output:
    key: str


@dataclass
class Finer(Output):
    more: int = 0


def made(on_event: Callable[..., Any], on_timer: Any = None, **declared: Any) -> Any:
    """A function of these handlers; `event`, `state` and `output` may be other classes."""
    types = [
        declared.pop(n, c) for n, c in (("event", Event), ("state", State), ("output", Output))
    ]

    class Made(Keyed[types[0], types[1], types[2]]):  # type: ignore[misc, valid-type]
        def on_event(self, e: Any, s: Any, ctx: Context) -> Any:
            return on_event(e, s, ctx)

        def on_timer(self, name: str, at: int, s: Any, ctx: Context) -> Any:
            return on_timer(s, ctx) if on_timer else ()

    return function(**{"name": "f", "key": "key", "event_time": "at"} | declared)(Made)


def nothing(e: Any, s: Any, ctx: Context) -> None:
    return None


def refusal(**declared: Any) -> str:
    with pytest.raises(DeclarationError, match="Function 'f': ") as refused:
        made(nothing, **declared)
    return str(refused.value)


def test_whatever_an_event_class_raises_is_the_events_fault() -> None:
    @dataclass
    class Odd:
        key: str
        at: int
        n: int = 1

        def __post_init__(self) -> None:
            {2: 1}.get(self.n) or Decimal("x" if self.n == 3 else 1) / self.n

    bad = [b'{"key":"a","at":1,"n":%d}' % n for n in (0, 1, 3, 5)]
    h = Harness(made(lambda e, s, ctx: [Output(e.key)], event=Odd, poison="skip"))
    assert len(h.send(*bad)) == 2
    assert [letter.error.partition(" ")[2].split(":")[0][:20] for letter in h.poisoned]
    assert "DivisionByZero" in h.poisoned[0].error
    assert "InvalidOperation" in h.poisoned[1].error


@pytest.mark.parametrize("at", [LONG_MAX, 2**63 + 5, 1_700_000_000_000_000])
def test_an_event_time_that_is_no_time_is_poison_and_moves_no_watermark(at: int) -> None:
    h = Harness(made(lambda e, s, ctx: [Output(e.key)], state_ttl="1d", poison="skip"))
    sent = h.send(Event("a", 5), Event("a", at), Event("b", 6))
    assert sent == [Output("a"), Output("b")]
    assert "'at' must be milliseconds since 1970" in h.poisoned[0].error
    assert h.watermark == 0
    h.crash_and_restore(at=0)
    h.check_replay(orders=5)


@pytest.mark.parametrize(
    ("name", "at", "words"),
    [("x", 2**63, "in 64 bits"), ("x", -(2**63) - 1, "in 64 bits"), (5, 7, "must be a text")],
)
def test_a_timer_that_cannot_be_kept_is_the_events_fault(name: Any, at: int, words: str) -> None:
    with pytest.raises(EventFailed, match=words):
        Harness(made(lambda e, s, ctx: ctx.timer(name, at))).send(Event("a", 1))
    h = Harness(made(lambda e, s, ctx: ctx.timer("never", LONG_MAX)))
    assert h.send(Event("a", 1)) == []


CANNOT_BE_KEPT = {
    "state.n": lambda e, s, ctx: setattr(s, "n", s.n + (1.5 if e.n else 1)),
    "state.ratio": lambda e, s, ctx: setattr(s, "ratio", "much" if e.n else s.ratio),
    "'counts' cannot keep it": lambda e, s, ctx: s.counts.update({"x": 1.5 if e.n else 1}),
    "no key of the state's field 'counts'": (
        lambda e, s, ctx: s.counts.update({5 if e.n else "y": 1})
    ),
    "'items' cannot keep it": lambda e, s, ctx: s.items.append("much" if e.n else 1),
    "'last' cannot keep it": lambda e, s, ctx: s.last.set(None if e.n else 1),
    "'mean' was set on the state, but is no field of State": (
        lambda e, s, ctx: setattr(s, "mean" if e.n else "n", 3)
    ),
}  # fmt: skip


@pytest.mark.parametrize("words", CANNOT_BE_KEPT)
def test_a_state_that_could_not_be_read_again_is_not_stored(words: str) -> None:
    handler: Any = CANNOT_BE_KEPT[words]
    with pytest.raises(EventFailed, match=f"events-0, offset 1, .*{words}"):
        Harness(made(handler)).send(Event("a", 1), Event("a", 2, n=1))
    h = Harness(made(handler, poison="skip", state_ttl="1d"))
    h.send(Event("a", 1), Event("a", 2, n=1), Event("a", 3))
    h.send(Event("a", 4))
    assert len(h.poisoned) == 1
    h.crash_and_restore(at=0)


def test_what_cannot_be_encoded_is_named_by_its_field() -> None:
    loose = make_dataclass("Loose", [("key", str), ("mean", Any, None)])

    def handler(e: Event, s: Any, ctx: Context) -> list[Any]:
        if e.n:
            s.mean = {1, object()}
        return [loose(e.key, complex(1) if e.n == 0 else 1.0)]

    state = make_dataclass("Loosely", [("n", int, 0), ("mean", Any, None)])
    h = Harness(made(handler, state=state, output=loose, poison="skip"))
    h.send(Event("a", 1, n=0), Event("a", 2, n=1))
    assert [letter.error for letter in h.poisoned] == [
        "TypeError: the output's field 'mean' cannot be encoded: complex cannot be encoded.",
        "TypeError: the state's field 'mean' cannot be encoded: object cannot be encoded.",
    ]


def test_what_is_hidden_or_computed_may_be_set_on_a_state() -> None:
    @dataclass
    class Computed:
        n: int = 0

        @cached_property
        def double(self) -> int:
            return 2 * self.n

    def handler(e: Event, s: Any, ctx: Context) -> list[Output]:
        s.n += 1
        s._seen = s.double
        return [Output(str(s.double))]

    h = Harness(made(handler, state=Computed))
    assert h.send(Event("a", 1)) + h.send(Event("a", 2)) == [Output("2"), Output("4")]


class Told(TypedDict):
    key: str


def yielding(*values: Any) -> Callable[..., Any]:
    return lambda e, s, ctx: (value for value in values)


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (lambda e, s, ctx: Output("a"), "'Output' object is not iterable: outputs are yielded, or"),
        (lambda e, s, ctx: True, "'bool' object is not iterable: outputs are yielded, or"),
        (lambda e, s, ctx: "alert", "put out a str, but declares Output: yield"),
        (lambda e, s, ctx: {"key": "a"}, "put out a str, but declares Output: yield"),
        (yielding(None), "put out a NoneType, but declares Output"),
        (yielding([Output("a")]), "put out a list, but declares Output"),
        (yielding({"key": "a"}), "put out a dict, but declares Output"),
        (yielding(Output("a"), Event("a", 1)), "put out a Event, but declares Output"),
    ],
)
def test_what_is_no_output_is_told(handler: Any, words: str) -> None:
    for target in (made(handler), made(lambda e, s, ctx: ctx.timer("t", 0), handler_of(handler))):
        with pytest.raises(EventFailed, match=words):
            Harness(target).send(Event("a", 1))


def handler_of(handler: Callable[..., Any]) -> Callable[..., Any]:
    return lambda s, ctx: handler(None, s, ctx)


def test_an_operators_result_that_is_no_output_is_told() -> None:
    @function(name="f", key="key", event_time="at")
    class Hourly(Windowed[Event, Acc, Output]):
        window = tumbling("1h")

        def add(self, e: Event, acc: Acc, ctx: Context) -> None:
            acc.n += 1

        def result(self, window: Any, acc: Acc, ctx: Context) -> Any:
            return Output(ctx.key)

    h = Harness(Hourly)
    h.send(Event("a", 1))
    with pytest.raises(EventFailed, match=r"timer wake .* not iterable: outputs are yielded"):
        h.advance_time("2h")


def test_what_an_operator_lacks_is_named() -> None:
    class Hourly(Windowed[Event, Acc, Output]):
        window = tumbling("1h")

        def add(self, e: Event, acc: Acc, ctx: Context) -> None:
            acc.n += 1

    with pytest.raises(DeclarationError, match="class Hourly must define result"):
        function(name="f", key="key", event_time="at")(Hourly)
    Hourly.result = Hourly.add  # type: ignore[assignment]
    Hourly.__abstractmethods__ = frozenset()  # type: ignore[attr-defined]
    Hourly.allowed_lateness = 5  # type: ignore[assignment]
    with pytest.raises(DeclarationError, match="allowed_lateness=5 is not a duration"):
        function(name="f", key="key", event_time="at")(Hourly)


def test_what_an_output_may_be() -> None:
    for output, value in (
        (Output, Finer("a")), (Told, {"key": "a"}), (Output | Event, Event("a", 1)), (str, 5),
        (Any, None),
    ):  # fmt: skip
        assert Harness(made(yielding(value), output=output)).send(Event("a", 1)) == [value]


def test_a_type_that_no_codec_knows_is_refused_where_it_is_declared() -> None:
    deep = make_dataclass(
        "Deep", [("files", list[dict[str, tuple[Path, int]]], field(default_factory=list))]
    )
    for declared in ({"state": make_dataclass("Outer", [("deep", deep | None, None)])},
                     {"state": deep},
                     {"event": make_dataclass("E", [("key", str), ("at", int), ("deep", deep)])},
                     {"tables": {"rows": deep}}):  # fmt: skip
        assert "Deep.files, of the" in refusal(**declared)
        assert "is of type Path, which cannot be stored" in refusal(**declared)
    either = make_dataclass("E", [("key", str), ("at", int), ("x", Event | Output)])
    assert "the event type E cannot be read: Type unions may not" in refusal(event=either)


@pytest.mark.parametrize("kind", [Counter, lambda: defaultdict(int)])
def test_a_collection_that_comes_back_as_another_is_refused(kind: Callable[[], Any]) -> None:
    state = make_dataclass("S", [("counts", dict[str, int], field(default_factory=kind))])
    name = type(kind()).__name__
    assert f"'counts' begins as a {name}, but is a dict when" in refusal(state=state)


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"inputs": [Event]}, 'must be a dict: inputs={"name": Event}'),
        ({"tables": ["rows"]}, 'must be a dict: tables={"name": Row}'),
        ({"calls": ["score"]}, 'must be a dict: calls={"name": Call(…)}'),
        ({"key": None}, "key=None must name a field"),
        ({"event_time": None}, "event_time=None is not a field of Event"),
    ],
)
def test_a_declaration_of_the_wrong_kind_is_told(declared: dict[str, Any], words: str) -> None:
    assert words in refusal(**declared)


def test_an_annotation_that_leads_nowhere_is_named() -> None:
    lost = make_dataclass("Lost", [("key", str), ("at", int), ("x", "Nowhere | None", None)])
    assert "annotation of the event type Lost cannot be resolved" in refusal(event=lost)


def test_a_class_that_cannot_be_made_anew_is_refused() -> None:
    class Needy(Keyed[Event, State, Output]):
        def __init__(self, limit: int) -> None:
            self.limit = limit

        def on_event(self, e: Event, s: State, ctx: Context) -> None:
            return None

    with pytest.raises(DeclarationError, match="class Needy must be made without arguments"):
        function(name="f", key="key", event_time="at")(Needy)


@pytest.mark.parametrize(
    ("ask", "call", "words"),
    [
        (lambda self, e, s: None, lambda self, q: None, r"write ask_x\(self, e\)"),
        (lambda self, e: None, lambda self: None, r"write call_x\(self, question\)"),
    ],
)
def test_a_call_that_cannot_be_made_is_refused(ask: Any, call: Any, words: str) -> None:
    class Asks(Keyed[Event, State, Output]):
        def on_event(self, e: Event, s: State, ctx: Context) -> None:
            return None

    Asks.ask_x, Asks.call_x = ask, call  # type: ignore[attr-defined]
    with pytest.raises(DeclarationError, match=words):
        function(name="f", key="key", event_time="at", calls={"x": Call()})(Asks)


def test_a_call_of_many_questions_gives_a_list_and_a_call_of_one_takes_no_batch() -> None:
    class Asks(Keyed[Event, State, Output]):
        def ask_x(self, e: Event) -> str | None:
            return None

        def call_x(self, questions: list[str]) -> str:
            return ""

        def on_event(self, e: Event, s: State, ctx: Context) -> None:
            return None

    with pytest.raises(DeclarationError, match=r"call_x is asked many .* write -> list\[Answer\]"):
        function(name="f", key="key", event_time="at", calls={"x": Call(batch=5)})(Asks)
    with pytest.raises(DeclarationError, match="batch=0 must be a whole number from 1"):
        function(name="f", key="key", event_time="at", calls={"x": Call(batch=0)})(Asks)
    with pytest.raises(ValueError, match="declare Call"):
        override(Call(), {"batch": "5"})
    assert override(Call(batch=1), {"batch": "5"}).batch == 5


def test_the_state_of_a_key_of_another_type_is_not_asked() -> None:
    with pytest.raises(TypeError, match="5 is no key of 'f'"):
        Harness(made(nothing)).state(5)


def test_a_value_is_true_where_one_is_set() -> None:
    def handler(e: Event, s: State, ctx: Context) -> list[Output]:
        before = bool(s.last)
        s.last.set(0)
        return [Output(f"{before} {bool(s.last)}")]

    assert Harness(made(handler)).send(Event("a", 1), Event("a", 2)) == [
        Output("False True"), Output("True True"),
    ]  # fmt: skip
