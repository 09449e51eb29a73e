"""What a task pays before it reads: all of it, in time, also where no broker answers."""

from typing import Any, ClassVar

import pytest

from catchwater.broker.quotas import ConfiguredLimits, ReplayQuotas
from catchwater.clock import ManualClock
from catchwater.replay import quota as quota_module
from catchwater.replay.control import ControlRefused, ControlUnreachable
from catchwater.replay.plan import Quota
from catchwater.replay.quota import Meter

RATE = 1_000_000
URL = "http://keeper:1"


class Api:
    """The keeper's control API over a real account; `failures` of it come first."""

    clock: ClassVar[ManualClock]
    quotas: ClassVar[ReplayQuotas]
    asked: ClassVar[list[int]]
    failures: ClassVar[int]
    failure: ClassVar[Exception]

    def __init__(self, url: str, *, client_id: str, **_: Any) -> None:
        assert (url, client_id) == (URL, "nightly")

    def grant(self, wanted_bytes: int) -> tuple[int, float]:
        Api.asked.append(wanted_bytes)
        if Api.failures:
            Api.failures -= 1
            Api.clock.advance(5_000)
            raise Api.failure
        limit = Api.quotas.limits.quota("User:a", "nightly")
        assert limit is not None
        grant = Api.quotas.grant(limit, wanted_bytes)
        return grant.size_bytes, grant.throttle_ms / 1000


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    Api.clock, Api.asked, Api.failures = ManualClock(), [], 0
    Api.quotas = ReplayQuotas(ConfiguredLimits(RATE, {}), Api.clock)
    monkeypatch.setattr(quota_module, "Control", Api)
    return Api.clock


def meter(clock: ManualClock, total_bytes: int, tasks: int = 1) -> Meter:
    return Meter(Quota(RATE, URL, "nightly", tasks), total_bytes, clock)


def test_nothing_is_paid_where_there_is_no_quota(clock: ManualClock) -> None:
    free = Meter(None, 10, clock)
    free.pay(10)
    assert (free.throttled_s, Api.asked) == (0.0, [])


@pytest.mark.parametrize("sizes", [[4_000_000], [10_000] * 400, [3_999_999, 1]])
def test_a_task_reads_nothing_before_it_is_paid_for(clock: ManualClock, sizes: list[int]) -> None:
    began_s, paid = clock.monotonic_s(), 0
    paying = meter(clock, sum(sizes))
    for size in sizes:
        paying.pay(size)
        paid += size
        assert paid <= RATE * (clock.monotonic_s() - began_s) * 1.001
    assert clock.monotonic_s() - began_s == pytest.approx(4.0)
    assert paying.throttled_s == pytest.approx(4.0)
    assert len(Api.asked) == 16, "a step at a time, however small the ranges are"


def test_no_more_is_asked_for_than_the_task_reads(clock: ManualClock) -> None:
    paying = meter(clock, 300_000)
    paying.pay(100_000)
    paying.pay(200_000)
    assert Api.asked == [300_000, 50_000]


def test_a_range_beyond_what_was_planned_is_paid_for_too(clock: ManualClock) -> None:
    paying = meter(clock, 100_000)
    paying.pay(100_000)
    paying.pay(40_000)
    assert Api.asked == [100_000, 40_000]


@pytest.mark.parametrize(
    "failure",
    [ControlUnreachable("It did not answer."), ControlRefused(404, {"message": "Not found."})],
)
def test_without_grants_a_task_goes_on_at_an_even_part(
    clock: ManualClock, caplog: pytest.LogCaptureFixture, failure: Exception
) -> None:
    Api.failures, Api.failure = 1, failure
    began_s = clock.monotonic_s()
    paying = meter(clock, 3_000_000, tasks=4)
    paying.pay(2_000_000)
    assert clock.monotonic_s() - began_s == pytest.approx(8.0), "the time it waited counts"
    assert "even part of the quota" in caplog.text
    paying.pay(1_000_000)
    assert clock.monotonic_s() - began_s == pytest.approx(9.0), "asks again for the next range"
