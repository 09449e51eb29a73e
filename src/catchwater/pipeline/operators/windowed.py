"""Aggregation of a key's events by windows of event time.

A window's result is given when the watermark reaches its end, also with no further input. For
`allowed_lateness` longer the window takes late events, each of which gives its result again, in
full; then it is dropped. An event is late, hence dropped and counted, when all its windows have
been: as long as one of them is open the event is taken, although it is older than the watermark.

Sessions that an event connects are merged. One that had given its result, and now begins earlier or
ends later, takes that result back (`Retraction`), if the function declares an `output_id`: the
merged session gives its own when it ends. What to take back is what `result` says of the session as
it was, so nothing is kept for it.

State: one accumulator per key and window; those that have ended, each in an entry of its own.

Which windows an event belongs to. Pure; times are event times in ms, windows half-open.

Fixed windows are cut from the epoch (1970-01-01 UTC) on, shifted by `offset`; a session is what
lies less than its gap apart.
"""

import dataclasses
import functools
from abc import abstractmethod
from bisect import insort
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from catchwater.config import duration_ms
from catchwater.pipeline.functions.entries import MapState, map_state
from catchwater.pipeline.functions.spec import (
    Context,
    EventT,
    FunctionSpec,
    Keyed,
    Out,
    OutT,
    Retraction,
    is_record,
    type_arguments,
)
from catchwater.pipeline.operators.basic import bound_to, lasting, wake


class Window(NamedTuple):
    """From `start` to before `end`, event time in ms."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Fixed:
    """Windows of one size, one beginning every so often."""

    size_ms: int
    every_ms: int
    offset_ms: int

    def __str__(self) -> str:
        return f"{self.size_ms} every {self.every_ms} from {self.offset_ms}"

    def windows_of(self, at: int) -> list[Window]:
        """The windows that hold a time, oldest first; at least one."""
        last = at - (at - self.offset_ms) % self.every_ms
        starts = range(last, at - self.size_ms, -self.every_ms)
        return [Window(start, start + self.size_ms) for start in reversed(starts)]

    def last_end(self, at: int) -> int:
        """Where the last window that holds a time ends."""
        return at - (at - self.offset_ms) % self.every_ms + self.size_ms

    @property
    def span_ms(self) -> int:
        """From an event to the end of its windows at most."""
        return self.size_ms


@dataclass(frozen=True, slots=True)
class Sessions:
    """Windows that grow with the events in them, until none comes for as long as the gap."""

    gap_ms: int

    def __str__(self) -> str:
        return f"gaps of {self.gap_ms}"

    def windows_of(self, at: int) -> list[Window]:
        """The session of an event that is alone."""
        return [Window(at, at + self.gap_ms)]

    def last_end(self, at: int) -> int:
        """Where that session ends."""
        return at + self.gap_ms

    @property
    def span_ms(self) -> int:
        """From a session's last event to its end."""
        return self.gap_ms


def tumbling(size: str, *, offset: str = "0s") -> Fixed:
    """Windows side by side: "1h" from the full hour, or from `offset` after it."""
    return sliding(size, every=size, offset=offset)


def sliding(size: str, *, every: str, offset: str = "0s") -> Fixed:
    """Windows that overlap: one of `size` begins every so often, so an event is in size / every.

    Raises ValueError if a duration is none, or there were gaps between windows.
    """
    fixed = Fixed(duration_ms(size), duration_ms(every), duration_ms(offset))
    if not 0 < fixed.every_ms <= fixed.size_ms:
        raise ValueError(f"windows of {size!r} every {every!r} do not cover all of time")
    return fixed


def session(gap: str) -> Sessions:
    """Windows of activity: two events less than `gap` apart are in one. Raises ValueError."""
    sessions = Sessions(duration_ms(gap))
    if sessions.gap_ms == 0:
        raise ValueError(f"a session's gap of {gap!r} separates nothing")
    return sessions


AccT = TypeVar("AccT")


class Windowed(Keyed[EventT, Any, OutT], Generic[EventT, AccT, OutT]):
    """Derive with the types of event, accumulator and output; say `window`, `add` and `result`."""

    window: ClassVar[Fixed | Sessions]
    """`tumbling("1h")`, `sliding("1h", every="5m")` or `session("30m")`."""
    allowed_lateness: ClassVar[str] = "0s"
    """How long after its result a window still takes late events."""

    _lateness_ms: ClassVar[int]
    _acc_type: ClassVar[Any]
    _spec: ClassVar[FunctionSpec]

    @abstractmethod
    def add(self, e: EventT, acc: AccT, ctx: Context) -> None:
        """Count the event in, changing the accumulator in place."""

    @abstractmethod
    def result(self, window: Window, acc: AccT, ctx: Context) -> Out[OutT]:
        """The window's result; called again to take it back."""

    def merge(self, a: AccT, b: AccT) -> AccT:
        """One accumulator of two sessions, `a` being the earlier; may change and return either."""
        raise AssertionError("completed() refuses sessions without a merge")

    def on_event(self, e: EventT, s: Any, ctx: Context) -> Out[OutT]:
        """Count the event into its windows; those that had given their result give it again."""
        outputs: list[Any] = []
        for window in self._windows(self._spec.event_time_of(e), s, ctx, outputs):
            has_ended = window.end <= ctx.watermark
            acc = s.ended_accs[window.start] if has_ended else s.accs[window.start]
            self.add(e, acc, ctx)
            if has_ended:
                s.ended_accs[window.start] = acc
                outputs.extend(self.result(window, acc, ctx) or ())
            wake(s, window.end + self._lateness_ms * has_ended, ctx)
        return outputs

    def on_timer(self, name: str, at: int, s: Any, ctx: Context) -> Out[OutT]:
        """Give the results of windows that end now, and drop those that take nothing any more."""
        outputs: list[OutT] = []
        s.wake_at = None
        while s.open and s.open[0].end <= at:
            window = s.open.pop(0)
            acc = s.accs.pop(window.start)
            outputs.extend(self.result(window, acc, ctx) or ())
            if self._lateness_ms:
                _put(s.ended, s.ended_accs, window, acc)
        while s.ended and s.ended[0].end + self._lateness_ms <= at:
            del s.ended_accs[s.ended.pop(0).start]
        for window in s.open[:1]:
            wake(s, window.end, ctx)
        for window in s.ended[:1]:
            wake(s, window.end + self._lateness_ms, ctx)
        return outputs

    def _windows(self, at: int, s: Any, ctx: Context, outputs: list[Any]) -> Iterator[Window]:
        """The windows that take an event of this time, each with an accumulator in the state.

        What they take back is added to the outputs.
        """
        watermark = ctx.watermark
        for window in self.window.windows_of(at):
            if isinstance(self.window, Sessions):
                known = self._merged(window, s, ctx, outputs)
            else:
                known = window if window.start in s.accs or window in s.ended else None
            if known is not None:
                yield known
            elif window.end + self._lateness_ms > watermark:
                _keep(s, window, self._acc_type(), watermark)
                yield window

    def _merged(self, alone: Window, s: Any, ctx: Context, outputs: list[Any]) -> Window | None:
        """The one session that is left of those which an event's own connects; None: of none."""
        ended = [w for w in s.ended if w.start < alone.end and alone.start < w.end]
        opened = [w for w in s.open if w.start < alone.end and alone.start < w.end]
        if not (ended or opened):
            return None
        starts, ends = zip(alone, *ended, *opened, strict=True)
        merged = Window(min(starts), max(ends))
        for given in ended if self._spec.output_id else ():
            if given != merged:
                results = self.result(given, s.ended_accs[given.start], ctx) or ()
                outputs.extend(map(Retraction, results))
        accs = [_take(s.ended, s.ended_accs, w) for w in ended]
        accs += [_take(s.open, s.accs, w) for w in opened]
        _keep(s, merged, functools.reduce(self.merge, accs), ctx.watermark)
        return merged

    @classmethod
    def declared_types(cls) -> tuple[Any, Any, Any] | None:
        """Event and output as declared; the state is ours. ValueError if a type cannot be."""
        types = type_arguments(cls, Windowed)
        if types is None:
            raise ValueError("Windowed needs its types: write Windowed[Event, Acc, Out]")
        event, acc, output = types
        if not is_record(acc):
            raise ValueError(f"the accumulator {acc!r} must be a dataclass or the like")
        try:
            acc()
        except (TypeError, ValueError):
            raise ValueError(f"the accumulator {acc!r} needs a default for every field") from None
        return event, cls._state_of(acc), output

    @classmethod
    def _state_of(cls, acc: Any) -> Any:
        """The class of the state, whose windows have such accumulators."""
        cls._acc_type = acc
        accs: Any = dict[int, acc]
        ended_accs: Any = MapState[int, acc]
        meaning = str(getattr(cls, "window", None))
        return dataclasses.make_dataclass(
            "WindowedState",
            [
                ("window", bound_to(meaning), meaning),
                ("open", list[Window], dataclasses.field(default_factory=list)),
                ("accs", accs, dataclasses.field(default_factory=dict)),
                ("ended", list[Window], dataclasses.field(default_factory=list)),
                ("ended_accs", ended_accs, map_state()),
                ("wake_at", int | None, None),
            ],
            namespace={"__module__": __name__},
        )

    @classmethod
    def completed(cls, spec: FunctionSpec) -> FunctionSpec:
        """The declaration with the lifetime that follows from the windows. Raises ValueError."""
        if not isinstance(getattr(cls, "window", None), Fixed | Sessions):
            raise ValueError("say window = tumbling(...), sliding(...) or session(...)")
        if isinstance(cls.window, Sessions) and cls.merge is Windowed.merge:
            raise ValueError("sessions need a merge(a, b): an event may connect two")
        if spec.late == "process":
            raise ValueError("late events of windows are taken by allowed_lateness, not by late")
        cls._lateness_ms = duration_ms(cls.allowed_lateness, "allowed_lateness")
        cls._spec = spec
        return lasting(spec, cls.window.span_ms + cls._lateness_ms)

    @classmethod
    def open_until(cls, at: int) -> int:
        """Until the last of its windows is dropped."""
        return cls.window.last_end(at) + cls._lateness_ms - 1


def _keep(s: Any, window: Window, acc: Any, watermark: int) -> None:
    """Windows that late events alone can change lie apart, each accumulator on its own."""
    if window.end > watermark:
        _put(s.open, s.accs, window, acc)
    else:
        _put(s.ended, s.ended_accs, window, acc)


def _put(windows: list[Window], accs: MutableMapping[int, Any], window: Window, acc: Any) -> None:
    insort(windows, window)
    accs[window.start] = acc


def _take(windows: list[Window], accs: MutableMapping[int, Any], window: Window) -> Any:
    windows.remove(window)
    acc = accs[window.start]
    del accs[window.start]
    return acc
