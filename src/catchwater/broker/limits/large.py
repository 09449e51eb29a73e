"""Requests and replies so large that to work on them would hold up everybody else.

What is slow in proportion to its size goes to a thread. What has to stay on the event loop is done
in turns of a few milliseconds.
"""

import asyncio
from typing import Any

from catchwater.broker.broker import Call
from catchwater.clock import Clock
from catchwater.wire.messages import decode_request

LARGE_REQUEST_BYTES = 64 * 1024
"""To decode a larger one, and to encode its reply, takes so long that others would notice."""
A_TURN = 500
"""Topics and partitions that are gathered at one go; a few milliseconds."""


async def decode_aside(call: Call) -> Any:
    """The request, decoded in a thread; its frame is let go. Raises `MalformedMessage`."""
    try:
        return await asyncio.to_thread(decode_request, call.header, call.frame.data)
    finally:
        call.frame.release()


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
