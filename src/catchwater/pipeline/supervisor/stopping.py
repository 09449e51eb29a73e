"""SIGTERM and Ctrl-C as a flag that a loop looks at, and a pause that ends when there is news."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from catchwater.clock import Clock

_WAKING = (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD)


class Stop:
    """Whether a signal has asked us to stop."""

    requested = False

    def __init__(self, woken: int | None = None) -> None:
        self._woken = woken
        """Readable when a signal has come; None: none will."""

    def pause(self, clock: Clock, seconds: float) -> None:
        """Block for so long; less where a signal asks us to stop, or a child ends."""
        clock.pause(seconds, self._woken)
        if self._woken is not None:
            with suppress(BlockingIOError):
                os.read(self._woken, 4096)


@contextmanager
def stop_requested() -> Iterator[Stop]:
    """Turn SIGTERM and Ctrl-C into a flag, for as long as this lasts. In the main thread only."""
    woken, wake = os.pipe()
    for end in (woken, wake):
        os.set_blocking(end, False)
    stop = Stop(woken)

    def ask(number: int, frame: FrameType | None) -> None:
        stop.requested = stop.requested or number != signal.SIGCHLD

    before = {number: signal.signal(number, ask) for number in _WAKING}
    woken_before = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(woken)
        os.close(wake)
