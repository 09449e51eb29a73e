"""Sequences of a key's events: what happened one after the other, or did not in time.

Every event that meets the first step begins a partial match, but while a key has `max_partial` of
them none begins. An event is offered to the partial matches from the oldest to the newest, each
takes it or not, and one that has it all is a match. After a match all partial matches of the key
are forgotten, and its last event begins none: Flink's SKIP_PAST_LAST_EVENT, SQL's AFTER MATCH SKIP
PAST LAST ROW. So no event is in two matches.

Order is the order of the log. A partial match takes events less than `within` (event time) after
its first. When the watermark has passed that, it has timed out, also with no further input.

State: the events of the partial matches, in the key's record.
"""

import dataclasses
from abc import abstractmethod
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
from catchwater.pipeline.operators.lifetime import bound_to, lasting, wake
from catchwater.pipeline.operators.sequence import Found, Step, Steps


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
    def match(self, found: Found[EventT], ctx: Context) -> Out[OutT]:
        """All steps were found."""

    def timed_out(self, found: Found[EventT], ctx: Context) -> Out[OutT]:
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
                return self.match(Found(self._steps, partial.events), ctx)
        s.partials = offered
        return ()

    def on_timer(self, name: str, at: int, s: Any, ctx: Context) -> Out[OutT]:
        """Give up what can no longer become a match."""
        outputs: list[OutT] = []
        s.wake_at = None
        before, s.partials = s.partials, []
        for partial in before:
            if partial.started + self._within_ms > at:
                s.partials.append(partial)
                wake(s, partial.started + self._within_ms, ctx)
            else:
                outputs.extend(self.timed_out(Found(self._steps, partial.events), ctx) or ())
        return outputs

    def _offer(self, partial: Partial[EventT], e: EventT, at: int) -> bool:
        """Let the partial match take the event if it can; False: the event ends it."""
        if at >= partial.started + self._within_ms:
            return True
        step = self._steps[partial.step]
        found = Found(self._steps, partial.events)
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
