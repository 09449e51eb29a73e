"""Requests and replies so large that to work on them would hold up everybody else.

What is slow in proportion to its size goes to a thread. What has to stay on the event loop is done
in turns of a few milliseconds.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from catchwater.broker.broker import Call
from catchwater.clock import Clock
from catchwater.wire.messages import decode_request

LARGE_REQUEST_BYTES = 64 * 1024
"""To decode a larger one takes so long that others would notice."""
LARGE_REPLY_VALUES = 5_000
"""To encode one of more values takes longer than about 10 ms."""
A_TURN = 500
"""Topics and partitions that are gathered at one go; a few milliseconds."""


async def decode_aside(call: Call) -> Any:
    """The request, decoded in a thread; its frame is let go. Raises `MalformedMessage`."""
    try:
        return await asyncio.to_thread(decode_request, call.header, call.frame.data)
    finally:
        call.frame.release()


def is_large(fields: Mapping[str, Any]) -> bool:
    """Whether a reply is so large that a thread has to encode it; stops to count when it is."""
    left = LARGE_REPLY_VALUES
    waiting: list[Mapping[str, Any] | Sequence[Any]] = [fields]
    while waiting and left >= 0:
        inside = waiting.pop()
        left -= len(inside)
        values = inside.values() if isinstance(inside, Mapping) else inside
        waiting += [value for value in values if isinstance(value, Mapping | list | tuple)]
    return left < 0


class Turns:
    """Counts the work of a task, and lets others have a turn after every `A_TURN` of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._left = A_TURN
        self.done = 0
        """All work so far."""

    async def after(self, work: int) -> None:
        """So much more was done."""
        self.done += work
        self._left -= work
        if self._left <= 0:
            self._left = A_TURN
            await self._clock.sleep(0)
