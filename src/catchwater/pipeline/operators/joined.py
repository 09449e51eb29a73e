"""Two inputs joined by key and time: what belongs together, and what stayed alone.

A left and a right event of one key are a pair if the right one is at most `before` older and at
most `after` younger than the left one, both in event time and both inclusive. The pair is matched
when its second event arrives, left or right; every pair once. An event that can meet no
other any more, because the watermark has passed its time, is dropped; if it was in no match, `how`
says whether it is `unmatched`.

A pair for which `match` gives nothing is no match: `match` is the place for further conditions.

State: the events that may still be matched, one entry each, and their times in the key's record.
"""

import dataclasses
from abc import abstractmethod
from bisect import bisect_left, bisect_right, insort
from operator import attrgetter
from typing import Any, ClassVar, Generic, Literal, TypeVar

import msgspec

from catchwater.config import duration_ms
from catchwater.pipeline.functions.entries import MapState, map_state
from catchwater.pipeline.functions.spec import (
    Context,
    FunctionSpec,
    Keyed,
    Out,
    OutT,
    type_arguments,
)
from catchwater.pipeline.operators.basic import lasting, wake

LeftT = TypeVar("LeftT")
RightT = TypeVar("RightT")

How = Literal["inner", "left", "right", "outer"]


class Waiting(msgspec.Struct, order=True, array_like=True):
    """An event that may still be matched."""

    at: int
    """Event time, ms."""
    number: int
    """Where it lies among its side's events."""
    matched: bool = False


@dataclasses.dataclass(frozen=True)
class _Side:
    """What is known of one of the two inputs."""

    input: str
    event_time_of: Any
    back_ms: int
    """How much older the other side's event may be."""
    ahead_ms: int
    """How much younger."""
    alone: bool
    """Whether `unmatched` is called for an event of this side that finds none."""


class Joined(Keyed[Any, Any, OutT], Generic[LeftT, RightT, OutT]):
    """Derive with the types of left event, right event and output; say `within` and `match`.

    Declare `inputs={"orders": Order, "payments": Payment}`: left first.
    """

    within: ClassVar[str | None] = None
    """How far a pair's events may be apart; or say `before` and `after`, or one of them."""
    before: ClassVar[str | None] = None
    after: ClassVar[str | None] = None
    how: ClassVar[How] = "inner"
    """Which sides' events are `unmatched` if they find none: `left`, `right`, both (`outer`)."""

    _left_type: ClassVar[Any]
    _sides: ClassVar[tuple[_Side, _Side]]

    @abstractmethod
    def match(self, left: LeftT, right: RightT, ctx: Context) -> Out[OutT]:
        """What a pair gives; nothing: it is no match."""

    def unmatched(self, e: LeftT | RightT, ctx: Context) -> Out[OutT]:
        """What an event gives that was in no match, now that none can come any more."""
        return ()

    def on_event(self, e: Any, s: Any, ctx: Context) -> Out[OutT]:
        """Match the event with those of the other side, and let it wait for more."""
        is_left = isinstance(e, self._left_type)
        side = self._sides[not is_left]
        at = side.event_time_of(e)
        mine, others = (s.left, s.right) if is_left else (s.right, s.left)
        events = s.right_events if is_left else s.left_events
        outputs: list[OutT] = []
        new = Waiting(at, s.numbered)
        for other in _between(others, at - side.back_ms, at + side.ahead_ms):
            found = events[other.number]
            pair = (e, found) if is_left else (found, e)
            given = list(self.match(*pair, ctx) or ())
            if given:
                new.matched = other.matched = True
                outputs += given
        s.numbered += 1
        insort(mine, new)
        (s.left_events if is_left else s.right_events)[new.number] = e
        wake(s, at + side.ahead_ms + 1, ctx)
        return outputs

    def on_timer(self, name: str, at: int, s: Any, ctx: Context) -> Out[OutT]:
        """Drop events that can no longer be matched; `unmatched` gets those that never were."""
        outputs: list[OutT] = []
        s.wake_at = None
        held = (s.left, s.left_events), (s.right, s.right_events)
        for side, (waiting, events) in zip(self._sides, held, strict=True):
            over = bisect_left(waiting, at - side.ahead_ms, key=attrgetter("at"))
            for each in waiting[:over]:
                if side.alone and not each.matched:
                    outputs.extend(self.unmatched(events[each.number], ctx) or ())
                del events[each.number]
            del waiting[:over]
            if waiting:
                wake(s, waiting[0].at + side.ahead_ms + 1, ctx)
        return outputs

    @classmethod
    def declared_types(cls) -> tuple[Any, Any, Any] | None:
        """Either event, and output, as declared; the state is ours. Raises ValueError."""
        types = type_arguments(cls, Joined)
        if types is None:
            raise ValueError("Joined needs its types: write Joined[Left, Right, Out]")
        left, right, output = types
        if left is right or not all(isinstance(each, type) for each in (left, right)):
            raise ValueError("the two inputs of a Joined need event classes of their own")
        cls._left_type = left
        left_events: Any = MapState[int, left]  # type: ignore[valid-type]
        right_events: Any = MapState[int, right]  # type: ignore[valid-type]
        state = dataclasses.make_dataclass(
            "JoinedState",
            [
                ("left", list[Waiting], dataclasses.field(default_factory=list)),
                ("right", list[Waiting], dataclasses.field(default_factory=list)),
                ("left_events", left_events, map_state()),
                ("right_events", right_events, map_state()),
                ("numbered", int, 0),
                ("wake_at", int | None, None),
            ],
            namespace={"__module__": __name__},
        )
        return left | right, state, output

    @classmethod
    def completed(cls, spec: FunctionSpec) -> FunctionSpec:
        """The declaration with the lifetime that follows from the times. Raises ValueError."""
        inputs = list(spec.inputs)
        if len(inputs) != 2 or spec.inputs[inputs[0]].event_type is not cls._left_type:
            raise ValueError('declare inputs={"left": Left, "right": Right}, the left one first')
        if spec.late == "process":
            raise ValueError("a late event may have missed its match; a Joined never handles it")
        if cls.how not in ("inner", "left", "right", "outer"):
            raise ValueError(f"how={cls.how!r} must be 'inner', 'left', 'right' or 'outer'")
        if (cls.within is None) == (cls.before is None and cls.after is None):
            raise ValueError("say within, or else before or after or both")
        names = ("within", "within") if cls.within else ("before", "after")
        before = duration_ms(cls.within or cls.before or "0s", names[0])
        after = duration_ms(cls.within or cls.after or "0s", names[1])
        times = [spec.input(name).event_time_of for name in inputs]
        cls._sides = (
            _Side(inputs[0], times[0], before, after, cls.how in ("left", "outer")),
            _Side(inputs[1], times[1], after, before, cls.how in ("right", "outer")),
        )
        return lasting(spec, max(before, after) + 1)


def _between(waiting: list[Waiting], low: int, high: int) -> list[Waiting]:
    """Those from one event time to another, both inclusive."""
    time = attrgetter("at")
    return waiting[bisect_left(waiting, low, key=time) : bisect_right(waiting, high, key=time)]
