"""What clients name themselves cannot forge a line of the broker's log."""

import logging

from catchwater.broker.main import OneLine


def test_a_message_is_one_line() -> None:
    forged = "x\n2026-01-01 00:00:00 INFO \x1b[2JReady\u2028"
    record = logging.LogRecord("n", logging.INFO, __file__, 1, "The pin of %s", (forged,), None)
    (line,) = OneLine("%(levelname)s %(message)s").format(record).splitlines()
    assert line == r"INFO The pin of x\n2026-01-01 00:00:00 INFO \x1b[2JReady\u2028"
