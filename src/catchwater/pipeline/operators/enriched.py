"""Events completed from a table: the row that the table has now, at this epoch.

`row_key` says which row an event needs. If there is none, the event may wait for it: it is looked
for again in every epoch in which the watermark has moved, until the watermark has passed the
event's time plus `wait`. What is missing then, or at once without `wait`, goes by `missing`.
Events that wait are overtaken by later ones.

State: the events that wait, one entry each.
"""

import dataclasses
from abc import abstractmethod
from typing import Any, ClassVar, Generic, Literal, TypeVar

from catchwater.config import duration_ms
from catchwater.pipeline.functions.entries import MapState, map_state
from catchwater.pipeline.functions.spec import (
    Context,
    EventT,
    FunctionSpec,
    Keyed,
    Out,
    OutT,
    type_arguments,
)
from catchwater.pipeline.operators.basic import lasting, wake
from catchwater.state.keys import EventRefused

RowT = TypeVar("RowT")

Missing = Literal["emit", "skip", "refuse"]


class RowMissing(EventRefused):
    """A table has no row for an event that cannot do without."""


class Enriched(Keyed[EventT, Any, OutT], Generic[EventT, RowT, OutT]):
    """Derive with the types of event, row and output; say `table` and `enrich`."""

    table: ClassVar[str]
    """One of the tables that the function declares."""
    missing: ClassVar[Missing] = "emit"
    """`emit`: enrich with None. `skip`: no output. `refuse`: the poison policy decides."""
    wait: ClassVar[str | None] = None
    """How long after its time an event waits for its row; then it is emitted or skipped."""

    _row_type: ClassVar[Any]
    _wait_ms: ClassVar[int]
    _spec: ClassVar[FunctionSpec]

    @abstractmethod
    def enrich(self, e: EventT, row: RowT | None, ctx: Context) -> Out[OutT]:
        """What the event gives with its row; without only if `missing` is `emit`."""

    def row_key(self, e: EventT, ctx: Context) -> Any:
        """The key of the row that the event needs; the function's own if not said otherwise."""
        return ctx.key

    def on_event(self, e: EventT, s: Any, ctx: Context) -> Out[OutT]:
        """Enrich the event, or let it wait."""
        row = self._row(e, ctx)
        until = self._spec.event_time_of(e) + self._wait_ms
        if row is not None or until <= ctx.watermark or not self._wait_ms:
            return self._give(e, row, ctx)
        s.waiting.append((until, s.numbered))
        s.events[s.numbered] = e
        s.numbered += 1
        wake(s, ctx.watermark + 1, ctx)
        return ()

    def on_timer(self, name: str, at: int, s: Any, ctx: Context) -> Out[OutT]:
        """Look again for the rows that events wait for."""
        outputs: list[OutT] = []
        s.wake_at = None
        before, s.waiting = s.waiting, []
        for until, number in before:
            e = s.events[number]
            row = self._row(e, ctx)
            if row is None and until > ctx.watermark:
                s.waiting.append((until, number))
                continue
            outputs.extend(self._give(e, row, ctx) or ())
            del s.events[number]
        if s.waiting:
            wake(s, ctx.watermark + 1, ctx)
        return outputs

    def _row(self, e: EventT, ctx: Context) -> Any:
        return ctx.table(self.table).get(self.row_key(e, ctx))

    def _give(self, e: EventT, row: Any, ctx: Context) -> Out[OutT]:
        if row is None and self.missing == "skip":
            return ()
        if row is None and self.missing == "refuse":
            key = self.row_key(e, ctx)
            raise RowMissing(f"The table {self.table!r} has no row {key!r}.")
        return self.enrich(e, row, ctx)

    @classmethod
    def declared_types(cls) -> tuple[Any, Any, Any] | None:
        """Event and output as declared; the state is ours. ValueError if they are not written."""
        types = type_arguments(cls, Enriched)
        if types is None:
            raise ValueError("Enriched needs its types: write Enriched[Event, Row, Out]")
        event, cls._row_type, output = types
        events: Any = MapState[int, event]  # type: ignore[valid-type]
        state = dataclasses.make_dataclass(
            "EnrichedState",
            [
                ("waiting", list[tuple[int, int]], dataclasses.field(default_factory=list)),
                ("events", events, map_state()),
                ("numbered", int, 0),
                ("wake_at", int | None, None),
            ],
            namespace={"__module__": __name__},
        )
        return event, state, output

    @classmethod
    def completed(cls, spec: FunctionSpec) -> FunctionSpec:
        """The declaration with the lifetime that follows from `wait`. Raises ValueError."""
        declared = spec.tables.get(getattr(cls, "table", ""))
        if declared is None or declared.row_type is not cls._row_type:
            raise ValueError('say table = "rows" and declare tables={"rows": Row}')
        if cls.missing not in ("emit", "skip", "refuse"):
            raise ValueError(f"missing={cls.missing!r} must be 'emit', 'skip' or 'refuse'")
        if cls.wait is not None and cls.missing == "refuse":
            raise ValueError("an event that has waited is emitted or skipped, it is not refused")
        cls._wait_ms = duration_ms(cls.wait, "wait") if cls.wait is not None else 0
        cls._spec = spec
        return lasting(spec, cls._wait_ms)
