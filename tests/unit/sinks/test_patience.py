"""A target that is away is asked again with growing pauses, and given up in time."""

from itertools import pairwise

import pytest

from catchwater.clock import ManualClock
from catchwater.sinks.base import Patience, SinkUnavailable, patiently


def test_what_comes_back_in_time_is_never_told() -> None:
    clock = ManualClock()
    tries = []

    def call() -> str:
        tries.append(clock.now_ms())
        if len(tries) < 6:
            raise SinkUnavailable("It is away.")
        return "done"

    assert patiently(call, clock, 60_000) == "done"
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert pauses[0] <= 100 and pauses[-1] > 4 * pauses[0]


def test_what_stays_away_is_told_with_how_long_it_was() -> None:
    clock = ManualClock()
    began = clock.now_ms()

    def call() -> None:
        raise SinkUnavailable("PostgreSQL at db:5432/shop is out of reach.")

    with pytest.raises(
        SinkUnavailable, match=r"out of reach\. Given up after \d+ tries in \d"
    ) as e:
        patiently(call, clock, 20_000)
    assert 10_000 < clock.now_ms() - began <= 20_000
    assert "runs again" in str(e.value.hint)


def test_an_answer_begins_the_time_anew() -> None:
    clock = ManualClock()
    patience = Patience(clock, 1000)
    for _ in range(20):
        patience.wait(SinkUnavailable("Away."))
        patience.answered()
