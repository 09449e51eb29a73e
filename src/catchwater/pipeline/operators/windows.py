"""Which windows an event belongs to. Pure; times are event times in ms, windows half-open.

Fixed windows are cut from the epoch (1970-01-01 UTC) on, shifted by `offset`; a session is what
lies less than its gap apart.
"""

from dataclasses import dataclass
from typing import NamedTuple

from catchwater.config import duration_ms


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
