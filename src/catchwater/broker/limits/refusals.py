"""One line in the log for each connection that was closed on purpose, but not without end.

The first hundred are written as they come, then ten a second; of the others only the number, so
that who floods the port does not fill the disk. The metrics count them all. What a client can have
a say in is written with its control characters escaped: a line stays one line.
"""

import logging

from catchwater.broker.limits.rate import TokenBucket

LINES_A_SECOND = 10
FIRST_LINES = 100

_log = logging.getLogger("catchwater.broker")


def printable(text: str) -> str:
    """The text with everything escaped that does not print: newlines, escapes, surrogates."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


class RefusalLog:
    """Writes about closed connections to the log `catchwater.broker`."""

    def __init__(self, now_s: float) -> None:
        self._bucket = TokenBucket(LINES_A_SECOND, FIRST_LINES, now_s)
        self._left_out = 0

    def write(self, host: str, message: str, now_s: float) -> None:
        """One line, or one more that is left out."""
        if self._bucket.take(now_s):
            _log.warning("Closed the connection from %s: %s", host, printable(message))
        else:
            self._left_out += 1

    def summarize(self, now_s: float) -> None:
        """Say how many were left out since the last time, if any and if there is room to."""
        if self._left_out and self._bucket.take(now_s):
            _log.warning(
                "Closed %s more connections; catchwater_connections_closed_total counts them.",
                self._left_out,
            )
            self._left_out = 0
