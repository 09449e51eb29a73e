"""How a pattern is said: steps one after the other, and what has been found of them."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

from catchwater.pipeline.functions.spec import EventT

Condition = Callable[[Any, "Found[Any]"], bool]
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
        """Names, counts and strictness; what conditions say is the code's affair."""
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


class Found(Generic[EventT]):
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
