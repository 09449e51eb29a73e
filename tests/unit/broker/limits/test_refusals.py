"""Lines about closed connections: one each, none forged, and not more than a disk can take."""

import pytest

from catchwater.broker.limits.refusals import FIRST_LINES, LINES_A_SECOND, RefusalLog, printable


def test_a_flood_is_written_in_part_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    log = RefusalLog(0.0)
    for _ in range(1_000):
        log.write("10.0.0.1", "why", 0.0)
    log.summarize(0.0)
    assert len(caplog.records) == FIRST_LINES
    log.summarize(1.0)
    assert caplog.messages[-1].startswith(f"Closed {1_000 - FIRST_LINES} more")
    for _ in range(1_000):
        log.write("10.0.0.1", "why", 1.0)
    assert len(caplog.records) == FIRST_LINES + LINES_A_SECOND


def test_nothing_is_said_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    RefusalLog(0.0).summarize(10.0)
    assert not caplog.records


def test_a_line_stays_one_line(caplog: pytest.LogCaptureFixture) -> None:
    RefusalLog(0.0).write("10.0.0.1", "a\nERROR forged\x1b[31m\r\x00\ud800", 0.0)
    assert caplog.messages[0].isprintable()
    assert printable("as it is: \u20ac") == "as it is: \u20ac"
