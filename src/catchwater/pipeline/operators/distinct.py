"""The first event of each id, and no other: the declaration's `dedup` as a stage of its own.

A function that declares `dedup` needs no Distinct before it. It is for what follows in a chain, or
for a topic that others read.

State: the ids of `dedup_ttl` (event time), each with its key.
"""

from dataclasses import dataclass, replace
from typing import Any, Generic

from catchwater.pipeline.functions.spec import (
    Context,
    EventT,
    FunctionSpec,
    Keyed,
    Out,
    type_arguments,
)


@dataclass
class Nothing:
    """No state but the ids."""


class Distinct(Keyed[EventT, Nothing, EventT], Generic[EventT]):
    """Derive with the type of event; declare `dedup` and `dedup_ttl`."""

    def on_event(self, e: EventT, s: Nothing, ctx: Context) -> Out[EventT]:
        """Let it through: it has not been seen for `dedup_ttl`."""
        return [e]

    @classmethod
    def declared_types(cls) -> tuple[Any, Any, Any] | None:
        """Output is what input was. ValueError if that is not written."""
        types = type_arguments(cls, Distinct)
        if types is None:
            raise ValueError("Distinct needs its type: write Distinct[Event]")
        return types[0], Nothing, types[0]

    @classmethod
    def completed(cls, spec: FunctionSpec) -> FunctionSpec:
        """The declaration with ids that end. ValueError if it names no id."""
        if spec.dedup is None:
            raise ValueError("Distinct knows events by their id: declare dedup")
        if spec.state_ttl_ms is not None:
            raise ValueError("ids end by dedup_ttl; declare it without state_ttl")
        return replace(spec, state_ttl_ms=spec.dedup_ttl_ms)
