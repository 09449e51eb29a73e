"""The only source of time, sleep, randomness and ids.

Everything that waits, stamps or draws takes a `Clock`, so that a test can hand in one that it
moves by hand and a simulation can replay a seed. Nothing else in the package imports `time`,
`random` or `uuid.uuid4` (the linter refuses it).
"""

import asyncio
import math
import random
import select
import time
import uuid
from typing import Any


class Clock:
    """The machine's clock, and a random source that is seeded when a seed is given.

    Without a seed the operating system draws, so that forked processes never draw alike.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.random = random.SystemRandom() if seed is None else random.Random(seed)

    def __getstate__(self) -> dict[str, Any]:
        """Without the operating system's source, which every process has and none can send."""
        state = self.__dict__
        return {k: v for k, v in state.items() if not isinstance(v, random.SystemRandom)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"random": random.SystemRandom(), **state})

    def now_ms(self) -> int:
        """Wall-clock time, milliseconds since the Unix epoch; may jump."""
        return time.time_ns() // 1_000_000

    def monotonic_s(self) -> float:
        """Seconds on a clock that never goes back; only differences mean anything."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Let the event loop go on for so many seconds."""
        await asyncio.sleep(seconds)

    def pause(self, seconds: float, woken: int | None = None) -> None:
        """Block this thread for so many seconds, or until this descriptor can be read."""
        if woken is None:
            time.sleep(seconds)
        else:
            select.select([woken], [], [], seconds)

    def token(self) -> str:
        """Sixteen random hexadecimal digits: names nothing else will ever have."""
        return f"{self.random.getrandbits(64):016x}"

    def uuid(self) -> uuid.UUID:
        """A version 4 UUID drawn from this clock's random source."""
        return uuid.UUID(int=self.random.getrandbits(128), version=4)


class ManualClock(Clock):
    """A clock that stands still until `advance` moves it; for tests and simulations."""

    def __init__(self, now_ms: int = 1_700_000_000_000, seed: int = 0) -> None:
        super().__init__(seed)
        self._now_ms = now_ms

    def now_ms(self) -> int:
        """The time it was last moved to, in milliseconds."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """The same time in seconds."""
        return self._now_ms / 1000

    def advance(self, ms: int) -> None:
        """Move the clock forward."""
        self._now_ms += ms

    async def sleep(self, seconds: float) -> None:
        """Move the clock instead of waiting, and give other tasks a turn."""
        self._now_ms += int(seconds * 1000)
        await asyncio.sleep(0)

    def pause(self, seconds: float, woken: int | None = None) -> None:
        """Move the clock instead of waiting; by a millisecond at least, so that no wait stands."""
        self._now_ms += math.ceil(seconds * 1000)


SYSTEM = Clock()
"""The machine's clock, for callers that are handed none."""


TOLERANCE_MS = 10_000
"""More than a clock is slewed by between two passes; what it may cost in retention."""


class ClockJumps:
    """Whether the wall clock can be believed: it must have gone on as the monotonic clock has.

    Retention by age and delete horizons compare the times of records with the wall clock, and one
    that was set an hour ahead would delete an hour too early. So they act only when both clocks
    agree on how long it has been since the last look; after a jump they wait for the next one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = self._look()

    def since_last(self) -> int:
        """By how many milliseconds the wall clock has jumped since the last call; 0: it has not."""
        before_ms, self._ahead_ms = self._ahead_ms, self._look()
        jump_ms = self._ahead_ms - before_ms
        return jump_ms if abs(jump_ms) > TOLERANCE_MS else 0

    def _look(self) -> int:
        return self._clock.now_ms() - int(self._clock.monotonic_s() * 1000)
