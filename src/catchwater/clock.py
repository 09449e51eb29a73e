"""The only source of time, sleep, randomness and ids.

Code that waits, reads the time or draws random numbers takes a `Clock`, so that a test can pass one
that it advances itself and a simulation can replay a seed. No other module of the package imports
`time`, `random` or `uuid.uuid4` (the linter refuses it).
"""

import asyncio
import math
import random
import select
import time
import uuid
from typing import Any


class Clock:
    """The machine's clock, and a random source with an optional seed.

    Without a seed the operating system is the source, so that forked processes never draw the same.
    """

    def __init__(self, seed: int | None = None) -> None:
        self.random = random.SystemRandom() if seed is None else random.Random(seed)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the operating system's random source, which cannot be pickled."""
        state = self.__dict__
        return {k: v for k, v in state.items() if not isinstance(v, random.SystemRandom)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({"random": random.SystemRandom(), **state})

    def now_ms(self) -> int:
        """Wall-clock time, milliseconds since the Unix epoch; may be set forward or back."""
        return int(time.time() * 1000)

    monotonic_s = staticmethod(time.monotonic)
    """Seconds on a clock that never goes back; only differences mean anything.

    Asked several times for each request, so there is no function of ours between.
    """

    async def sleep(self, seconds: float) -> None:
        """Wait without blocking the event loop."""
        await asyncio.sleep(seconds)

    def pause(self, seconds: float, woken: int | None = None) -> None:
        """Block this thread for so many seconds, or until this descriptor is readable."""
        if woken is None:
            time.sleep(seconds)
        else:
            select.select([woken], [], [], seconds)

    def token(self) -> str:
        """Sixteen random hexadecimal digits, for unique names."""
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
        """The time of the last `advance`, in milliseconds."""
        return self._now_ms

    def monotonic_s(self) -> float:
        """The same time, in seconds."""
        return self._now_ms / 1000

    def advance(self, ms: int) -> None:
        """Move the clock forward."""
        self._now_ms += ms

    async def sleep(self, seconds: float) -> None:
        """Move the clock instead of waiting, and give other tasks a turn."""
        self._now_ms += int(seconds * 1000)
        await asyncio.sleep(0)

    def pause(self, seconds: float, woken: int | None = None) -> None:
        """Move the clock instead of waiting; by 1 ms at least, so that every wait ends."""
        self._now_ms += math.ceil(seconds * 1000)


SYSTEM = Clock()
"""The machine's clock, for callers that are given none."""


TOLERANCE_MS = 10_000
"""More than NTP slews a clock between two passes; retention may be wrong by as much."""


class ClockJumps:
    """Detects that the wall clock was set, by comparing it with the monotonic clock.

    Retention by age and delete horizons compare the times of records with the wall clock; one that
    was set an hour ahead would delete an hour too early. So they act only if both clocks agree on
    the time since the last call; after a jump they wait for the next pass.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead_ms = self._look()

    def since_last(self) -> int:
        """The milliseconds that the wall clock was set by since the last call; 0 if it was not."""
        before_ms, self._ahead_ms = self._ahead_ms, self._look()
        jump_ms = self._ahead_ms - before_ms
        return jump_ms if abs(jump_ms) > TOLERANCE_MS else 0

    def _look(self) -> int:
        return self._clock.now_ms() - int(self._clock.monotonic_s() * 1000)
