"""SIGTERM and Ctrl-C as a flag that a loop looks at."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stop:
    """Whether a signal has asked us to stop."""

    requested = False


@contextmanager
def stop_requested() -> Iterator[Stop]:
    """Turn SIGTERM and Ctrl-C into a flag, for as long as this lasts."""
    stop = Stop()

    def ask(number: int, frame: FrameType | None) -> None:
        stop.requested = True

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
