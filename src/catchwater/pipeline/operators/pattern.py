"""Sequences of a key's events: what happened one after the other, or did not in time.

Every event that meets the first step begins a partial match, unless the key has `max_partial` of
them. An event is offered to the partial matches from the oldest to the newest; each takes it or
not, and one whose steps are all done is a match. After a match all partial matches of the key
are forgotten, and its last event begins none: Flink's SKIP_PAST_LAST_EVENT, SQL's AFTER MATCH SKIP
PAST LAST ROW. So no event is in two matches.

Order is the order of the log. A partial match takes events less than `within` (event time) after
its first. When the watermark has passed that, it has timed out, also with no further input.

State: the events of the partial matches, in the key's record.

The steps of a pattern, and the events that were found for them.
"""

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic

import msgspec

from catchwater.config import duration_ms
from catchwater.pipeline.functions.spec import (
    Context,
    EventT,
    FunctionSpec,
    Keyed,
    Out,
    OutT,
    type_arguments,
)
from catchwater.pipeline.operators.basic import bound_to, lasting, wake

Condition = Callable[[Any, "Match[Any]"], bool]
"""Whether an event will do, given what was found before it: `lambda e, found: e.amount < 1`."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step: as many events as `count` that meet the condition."""

    name: str
    condition: Condition
    strict: bool = False
    """Whether every event must meet it from when the step is waited for, or others are ignored."""
    count: int = 1
    unless: tuple[Condition, ...] = ()
    """An event that meets one of these while the step is waited for ends the partial match."""


@dataclass(frozen=True, slots=True)
class Steps:
    """A pattern; made by `begin`, made longer by `then` and `next`."""

    steps: tuple[Step, ...]
    unless_before_next: tuple[Condition, ...] = ()

    def __str__(self) -> str:
        """Names, counts and strictness; conditions are code, and not compared."""
        return " ".join(
            f"{'!' if step.strict else ''}{step.name}*{step.count}" for step in self.steps
        )

    def then(self, name: str, condition: Condition) -> "Steps":
        """Later on an event that meets the condition; others in between are ignored."""
        return self._with(Step(name, condition, unless=self.unless_before_next))

    def next(self, name: str, condition: Condition) -> "Steps":
        """The very next event of the key must meet the condition, or the partial match ends."""
        return self._with(Step(name, condition, strict=True, unless=self.unless_before_next))

    def times(self, count: int) -> "Steps":
        """The last step takes so many events, not one. Raises ValueError if that is below 1."""
        if count < 1:
            raise ValueError(f"step {self.steps[-1].name!r} cannot take {count} events")
        last = replace(self.steps[-1], count=count)
        return replace(self, steps=(*self.steps[:-1], last))

    def unless(self, condition: Condition) -> "Steps":
        """No event that meets the condition before the step that follows is done."""
        return replace(self, unless_before_next=(*self.unless_before_next, condition))

    def _with(self, step: Step) -> "Steps":
        if any(step.name == other.name for other in self.steps):
            raise ValueError(f"there are two steps named {step.name!r}")
        return Steps((*self.steps, step))


def begin(name: str, condition: Condition) -> Steps:
    """A pattern's first step: every event that meets the condition begins a partial match."""
    return Steps((Step(name, condition),))


class Match(Generic[EventT]):
    """The events of a match, or of what there is of it so far, by step."""

    def __init__(self, steps: Sequence[Step], events: list[tuple[int, EventT]]) -> None:
        self._steps = steps
        self._events = events

    def __getitem__(self, name: str) -> EventT:
        """The step's event, the last one if it takes several. KeyError if there is none yet."""
        for step, event in reversed(self._events):
            if self._steps[step].name == name:
                return event
        raise KeyError(name)

    def __contains__(self, name: str) -> bool:
        """Whether the step has an event."""
        return any(self._steps[step].name == name for step, _ in self._events)

    def __iter__(self) -> Iterator[EventT]:
        """All events, in the order they were found."""
        return (event for _, event in self._events)

    def all(self, name: str) -> list[EventT]:
        """The step's events, in the order they were found."""
        return [event for step, event in self._events if self._steps[step].name == name]


class Partial(msgspec.Struct, Generic[EventT]):
    """A match that has begun."""

    started: int
    """Event time of its first event, ms."""
    step: int = 0
    """The step waited for; as many as there are steps: none, it is a match."""
    events: list[tuple[int, EventT]] = []
    """With the step each was taken for."""


class Pattern(Keyed[EventT, Any, OutT], Generic[EventT, OutT]):
    """Derive with the types of event and output; say `steps`, `within` and `match`."""

    steps: ClassVar[Steps]
    """`begin("small", is_small).then("large", is_large)`"""
    within: ClassVar[str]
    """How long after the first event of a match its last may come, event time."""
    max_partial: ClassVar[int] = 100
    """How many partial matches a key may have; while it has, no event begins another."""

    _steps: ClassVar[tuple[Step, ...]]
    _within_ms: ClassVar[int]
    _spec: ClassVar[FunctionSpec]

    @abstractmethod
    def match(self, found: Match[EventT], ctx: Context) -> Out[OutT]:
        """All steps were found."""

    def timed_out(self, found: Match[EventT], ctx: Context) -> Out[OutT]:
        """The time is over, and only these were found: at least the first event."""
        return ()

    def on_event(self, e: EventT, s: Any, ctx: Context) -> Out[OutT]:
        """Offer the event to the partial matches, then let it begin one."""
        at = self._spec.event_time_of(e)
        offered = [partial for partial in s.partials if self._offer(partial, e, at)]
        begun: Partial[EventT] = Partial(at)
        if len(offered) < self.max_partial and self._offer(begun, e, at) and begun.events:
            offered.append(begun)
            wake(s, at + self._within_ms, ctx)
        for partial in offered:
            if partial.step == len(self._steps):
                s.partials = []
                return self.match(Match(self._steps, partial.events), ctx)
        s.partials = offered
        return ()

    def on_timer(self, name: str, at: int, s: Any, ctx: Context) -> Out[OutT]:
        """End the partial matches whose time is over."""
        outputs: list[OutT] = []
        s.wake_at = None
        before, s.partials = s.partials, []
        for partial in before:
            if partial.started + self._within_ms > at:
                s.partials.append(partial)
                wake(s, partial.started + self._within_ms, ctx)
            else:
                outputs.extend(self.timed_out(Match(self._steps, partial.events), ctx) or ())
        return outputs

    def _offer(self, partial: Partial[EventT], e: EventT, at: int) -> bool:
        """Let the partial match take the event if it can; False: the event ends it."""
        if at >= partial.started + self._within_ms:
            return True
        step = self._steps[partial.step]
        found = Match(self._steps, partial.events)
        if any(condition(e, found) for condition in step.unless):
            return False
        if not step.condition(e, found):
            return not step.strict
        partial.events.append((partial.step, e))
        if len(found.all(step.name)) == step.count:
            partial.step += 1
        return True

    @classmethod
    def declared_types(cls) -> tuple[Any, Any, Any] | None:
        """Event and output as declared; the state is ours. ValueError if they are not written."""
        types = type_arguments(cls, Pattern)
        if types is None:
            raise ValueError("Pattern needs its types: write Pattern[Event, Out]")
        event, output = types
        partial: Any = Partial[event]  # type: ignore[valid-type]
        meaning = str(getattr(cls, "steps", None))
        state = dataclasses.make_dataclass(
            "PatternState",
            [
                ("steps", bound_to(meaning), meaning),
                ("partials", list[partial], dataclasses.field(default_factory=list)),
                ("wake_at", int | None, None),
            ],
            namespace={"__module__": __name__},
        )
        return event, state, output

    @classmethod
    def completed(cls, spec: FunctionSpec) -> FunctionSpec:
        """The declaration with the lifetime that follows from `within`. Raises ValueError."""
        if not isinstance(getattr(cls, "steps", None), Steps):
            raise ValueError("say steps = begin(...).then(...)")
        if cls.steps.unless_before_next:
            raise ValueError(
                "unless(...) belongs before then or next; "
                "what has not happened when the time is over is what timed_out is for"
            )
        if not hasattr(cls, "within"):
            raise ValueError("say within: how long after its first event a match may end")
        if cls.max_partial < 1:
            raise ValueError(f"max_partial={cls.max_partial} leaves no match to begin")
        cls._steps = cls.steps.steps
        cls._within_ms = duration_ms(cls.within, "within")
        cls._spec = spec
        return lasting(spec, cls._within_ms)
