"""A function that keeps a kilobyte of each key for an hour, which compresses to a half."""

import hashlib
from dataclasses import dataclass

from catchwater import Context, Keyed, Out, function

HOUR_MS = 3_600_000
VALUE_BYTES = 1_000


@dataclass
class Note:
    key: str
    at: int


@dataclass
class Kept:
    count: int = 0
    text: str = ""


@dataclass
class Told:
    key: str
    count: int


def text_of(key: str) -> str:
    """What is kept of a key."""
    return hashlib.shake_128(key.encode()).hexdigest(VALUE_BYTES // 2)


@function(name="kept", key="key", event_time="at", state_ttl="1h", late="process")
class Keeps(Keyed[Note, Kept, Told]):
    def on_event(self, e: Note, s: Kept, ctx: Context) -> Out[Told]:
        s.count += 1
        s.text = s.text or text_of(e.key)
        return ()
