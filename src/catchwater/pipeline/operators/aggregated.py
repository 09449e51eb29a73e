"""Windows whose aggregates are declared: counts, sums, means, extremes, the largest few.

    @function(name="hourly", key="card", event_time="at")
    class Hourly(Aggregated[Payment]):
        window = tumbling("1h")
        payments = count()
        spent = sum("cents")

A result has the fields of the key, the window's `start` and `end`, and one field for each
aggregate; its class is `Hourly.Result`, and its identity (`output_id`) key and start. Windows,
lateness and retractions are those of `Windowed`; sessions merge by themselves. An aggregate that a
later version adds begins at nothing in the windows that are open by then.
"""

import dataclasses
import operator
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from decimal import Decimal
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, ClassVar, Generic, NamedTuple

from catchwater.pipeline.functions.spec import (
    Context,
    EventT,
    FunctionSpec,
    Out,
    type_arguments,
)
from catchwater.pipeline.operators.windowed import Window, Windowed

_NUMBERS = (int, float, Decimal, timedelta)


class Aggregate(ABC):
    """What a window keeps of its events: a value that events are added to, and that merges."""

    def __init__(self, of: str | None) -> None:
        self.of = of
        """The event's field; None: the whole event."""

    @abstractmethod
    def types(self, given: Any) -> tuple[Any, Any]:
        """Types of what is kept and of the result, by the field's type. ValueError: it is none."""

    @abstractmethod
    def nothing(self, given: Any) -> Any:
        """What is kept of no event."""

    @abstractmethod
    def add(self, kept: Any, value: Any) -> Any:
        """With one more, which is the latest."""

    @abstractmethod
    def merge(self, a: Any, b: Any) -> Any:
        """Of two sessions, the earlier one first."""

    def result(self, kept: Any) -> Any:
        """What the result shows."""
        return kept


class _Count(Aggregate):
    def types(self, given: Any) -> tuple[Any, Any]:
        return int, int

    def nothing(self, given: Any) -> Any:
        return 0

    def add(self, kept: Any, value: Any) -> Any:
        return kept + 1

    def merge(self, a: Any, b: Any) -> Any:
        return a + b


class _Sum(Aggregate):
    def types(self, given: Any) -> tuple[Any, Any]:
        return _number(self.of, given), given

    def nothing(self, given: Any) -> Any:
        return given()

    def add(self, kept: Any, value: Any) -> Any:
        return kept + value

    def merge(self, a: Any, b: Any) -> Any:
        return a + b


class _Mean(Aggregate):
    def types(self, given: Any) -> tuple[Any, Any]:
        number = _number(self.of, given)
        return tuple[number, int], float if given is int else given  # type: ignore[valid-type]

    def nothing(self, given: Any) -> Any:
        return given(), 0

    def add(self, kept: Any, value: Any) -> Any:
        return kept[0] + value, kept[1] + 1

    def merge(self, a: Any, b: Any) -> Any:
        return a[0] + b[0], a[1] + b[1]

    def result(self, kept: Any) -> Any:
        return kept[0] / kept[1]


class _Extreme(Aggregate):
    def __init__(self, of: str, better: Callable[[Any, Any], bool]) -> None:
        super().__init__(of)
        self._better = better

    def types(self, given: Any) -> tuple[Any, Any]:
        return typing.Optional[given], given  # noqa: UP045  (of a type that is not known here)

    def nothing(self, given: Any) -> Any:
        return None

    def add(self, kept: Any, value: Any) -> Any:
        return value if kept is None or self._better(value, kept) else kept

    def merge(self, a: Any, b: Any) -> Any:
        return a if b is None else self.add(a, b)


class _TopK(Aggregate):
    def __init__(self, k: int, by: str) -> None:
        super().__init__(None)
        self._k = k
        self._by = by
        self._size: Callable[[Any], Any]

    def types(self, given: Any) -> tuple[Any, Any]:
        if self._k < 1:
            raise ValueError(f"top_k({self._k}) keeps nothing")
        _type_of(given, self._by)
        self._size = _getter(given, self._by)
        return list[given], list[given]

    def nothing(self, given: Any) -> Any:
        return []

    def add(self, kept: Any, value: Any) -> Any:
        return self.merge(kept, [value])

    def merge(self, a: Any, b: Any) -> Any:
        # Stable: of events of one size the earlier ones stay in front.
        return sorted([*a, *b], key=self._size, reverse=True)[: self._k]


def count() -> Any:
    """How many events."""
    return _Count(None)


def sum(field: str) -> Any:
    """The sum of a field: an int, float, Decimal or timedelta."""
    return _Sum(field)


def mean(field: str) -> Any:
    """The mean of a field; of an int a float."""
    return _Mean(field)


def min(field: str) -> Any:
    """The least value of a field."""
    return _Extreme(field, operator.lt)


def max(field: str) -> Any:
    """The greatest value of a field."""
    return _Extreme(field, operator.gt)


def top_k(k: int, *, by: str) -> Any:
    """The k events with the greatest values of a field, the greatest first, ties as they came."""
    return _TopK(k, by)


class _Column(NamedTuple):
    """One aggregate of one class."""

    name: str
    aggregate: Aggregate
    given: Any
    """The type of what is aggregated."""
    value_of: Callable[[Any], Any]
    """Of an event."""


class Aggregated(Windowed[EventT, Any, Any], Generic[EventT]):
    """Derive with the type of event; say `window`, and an attribute for each aggregate."""

    Result: ClassVar[Any]
    """The class of the results: the key's fields, `start`, `end`, and one for each aggregate."""

    _columns: ClassVar[list[_Column]]

    def add(self, e: EventT, acc: Any, ctx: Context) -> None:
        """Add the event to all aggregates."""
        for name, aggregate, _, value_of in self._columns:
            setattr(acc, name, aggregate.add(getattr(acc, name), value_of(e)))

    def result(self, window: Window, acc: Any, ctx: Context) -> Out[Any]:
        """One result a window."""
        key = ctx.key if len(self._spec.key) > 1 else (ctx.key,)
        values = (each.aggregate.result(getattr(acc, each.name)) for each in self._columns)
        return (self.Result(*key, *window, *values),)

    def merge(self, a: Any, b: Any) -> Any:
        """Aggregate by aggregate."""
        for name, aggregate, _, _ in self._columns:
            setattr(a, name, aggregate.merge(getattr(a, name), getattr(b, name)))
        return a

    @classmethod
    def declared_types(cls) -> tuple[Any, Any, Any] | None:
        """The event as declared; state and result are ours. Raises ValueError."""
        types = type_arguments(cls, Aggregated)
        if types is None:
            raise ValueError("Aggregated needs its type: write Aggregated[Event]")
        (event,) = types
        found = {name: getattr(cls, name) for name in dir(cls) if not name.startswith("_")}
        declared = {name: each for name, each in found.items() if isinstance(each, Aggregate)}
        if not declared:
            raise ValueError("say what to aggregate: n = count(), or the like")
        order = [name for base in reversed(cls.__mro__) for name in vars(base)]
        cls._columns = [
            _Column(name, each, *_given(event, each.of))
            for name, each in sorted(declared.items(), key=lambda item: order.index(item[0]))
        ]
        kept = [
            (
                each.name,
                each.aggregate.types(each.given)[0],
                dataclasses.field(default_factory=partial(each.aggregate.nothing, each.given)),
            )
            for each in cls._columns
        ]
        acc = dataclasses.make_dataclass("Kept", kept, namespace={"__module__": __name__})
        return event, cls._state_of(acc), None

    @classmethod
    def output_type(cls, declared: Any, key: Mapping[str, Any]) -> Any:
        """`Result`. ValueError if two of its fields have one name."""
        fields = {**key, "start": int, "end": int}
        for each in cls._columns:
            if each.name in fields:
                raise ValueError(f"the aggregate {each.name!r} has the name of another field")
            fields[each.name] = each.aggregate.types(each.given)[1]
        space = {"__module__": cls.__module__, "__qualname__": f"{cls.__qualname__}.Result"}
        cls.Result = dataclasses.make_dataclass("Result", list(fields.items()), namespace=space)
        return cls.Result

    @classmethod
    def completed(cls, spec: FunctionSpec) -> FunctionSpec:
        """The declaration with the results' identity. Raises ValueError."""
        return super().completed(replace(spec, output_id=spec.output_id or (*spec.key, "start")))


def _given(event: Any, of: str | None) -> tuple[Any, Callable[[Any], Any]]:
    """The type of what is aggregated, and how to get it from an event."""
    if of is None:
        return event, lambda e: e
    return _type_of(event, of), _getter(event, of)


def _type_of(event: Any, field: str) -> Any:
    fields = typing.get_type_hints(event)
    if field not in fields:
        raise ValueError(
            f"{field!r} is not a field of {event.__name__} ({', '.join(fields)}), so it cannot be "
            "aggregated"
        )
    return fields[field]


def _getter(event: Any, field: str) -> Callable[[Any], Any]:
    return itemgetter(field) if typing.is_typeddict(event) else attrgetter(field)


def _number(field: str | None, given: Any) -> Any:
    if given not in _NUMBERS:
        names = ", ".join(each.__name__ for each in _NUMBERS)
        raise ValueError(f"{field!r} is not a number ({names}), so it has no sum and no mean")
    return given
