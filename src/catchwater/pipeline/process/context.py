"""What a handler sees as its `ctx`: one object for a whole epoch, moved from cause to cause."""

from hashlib import blake2b
from random import Random  # noqa: TID251  (seeded by key and event: a replay draws the same)
from typing import Any

from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.state.keys import HASH_BYTES
from catchwater.state.records import Record, new_record

MAX_TIMER_NAME_BYTES = 100


class EpochContext:
    """`function.Context`; `process` sets the three plain attributes before every handler."""

    __slots__ = (
        "_drawn_for",
        "_random",
        "_spec",
        "cause",
        "now",
        "record",
        "stored_key",
        "timers_before",
        "watermark",
    )

    def __init__(self, spec: FunctionSpec, watermark_ms: int, clock_ms: int) -> None:
        self._spec = spec
        self._random: Random | None = None
        self._drawn_for: Any = None
        self.watermark = watermark_ms
        self.now = clock_ms
        self.stored_key = b""
        self.record: Record[Any] = new_record(None)
        self.cause: Any = None
        """The event, or (time, name) of the timer, that is being handled."""
        self.timers_before: dict[bytes, dict[str, int]] = {}
        """Of the keys whose timers changed: the timers as the epoch found them."""

    @property
    def key(self) -> Any:
        """The key's value."""
        return self._spec.decode_key(self.stored_key[HASH_BYTES:])

    @property
    def random(self) -> Random:
        """Seeded by function, key and cause, so that where epochs begin does not matter."""
        if self._random is None or self._drawn_for is not self.cause:
            seed = b"\0".join((self._spec.name.encode(), self.stored_key, self._identity()))
            self._random = Random(blake2b(seed).digest())
            self._drawn_for = self.cause
        return self._random

    def timer(self, name: str, at: int) -> None:
        """Set the key's timer of this name.

        Raises ValueError if the name is over 100 bytes, or `at` is no whole number of ms.
        """
        if not isinstance(at, int):
            raise ValueError(f"the timer {name!r} must be set for whole milliseconds, not {at!r}")
        if len(name.encode()) > MAX_TIMER_NAME_BYTES:
            raise ValueError(f"the timer name {name[:40]!r}… is over {MAX_TIMER_NAME_BYTES} bytes")
        self._remember_timers()
        self.record.timers[name] = at

    def cancel_timer(self, name: str) -> None:
        """Forget the key's timer of this name."""
        self._remember_timers()
        self.record.timers.pop(name, None)

    def _remember_timers(self) -> None:
        if self.stored_key not in self.timers_before:
            self.timers_before[self.stored_key] = dict(self.record.timers)

    def _identity(self) -> bytes:
        """Two equal events of one key draw the same if the function declares no `dedup` id."""
        cause = self.cause
        if isinstance(cause, tuple):
            return repr(cause).encode()
        if self._spec.dedup is not None:
            return self._spec.encode_id(self._spec.id_of(cause))
        return self._spec.encode_output(cause)
