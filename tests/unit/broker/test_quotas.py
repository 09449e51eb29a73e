"""Accounts by a fake clock: readers of one account come to its rate together, whoever they are."""

import heapq
from collections.abc import Iterator

import pytest

from catchwater.broker import quotas as module
from catchwater.broker.quotas import MOST_DEBT_S, STEP_S, ConfiguredLimits, Quota, ReplayQuotas
from catchwater.clock import ManualClock

RATE = 1_000_000
QUOTA = Quota("User:a", RATE)
LIMITS = ConfiguredLimits(RATE, {})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def quotas(clock: ManualClock) -> ReplayQuotas:
    return ReplayQuotas(LIMITS, clock)


def task(quotas: ReplayQuotas, quota: Quota, sizes: list[int]) -> Iterator[int]:
    """Pays for its ranges one after the other; yields the milliseconds that it waits."""
    left, granted = sum(sizes), 0
    for size in sizes:
        while granted < size:
            grant = quotas.grant(quota, left)
            left -= grant.size_bytes
            granted += grant.size_bytes
            yield grant.throttle_ms
        granted -= size


def run(clock: ManualClock, tasks: list[Iterator[int]]) -> list[float]:
    """All of them side by side; when each has ended, in seconds from now."""
    began_ms = clock.now_ms()
    waiting = [(began_ms, index) for index in range(len(tasks))]
    ends = [0.0] * len(tasks)
    while waiting:
        at_ms, index = heapq.heappop(waiting)
        clock.advance(at_ms - clock.now_ms())
        wait_ms = next(tasks[index], None)
        if wait_ms is None:
            ends[index] = (clock.now_ms() - began_ms) / 1000
        else:
            heapq.heappush(waiting, (clock.now_ms() + wait_ms, index))
    return ends


@pytest.mark.parametrize("sizes", [[10_000] * 200, [2_000_000], [1, 1_999_999]])
def test_a_job_s_tasks_read_at_the_account_s_rate_together(quotas, clock, sizes) -> None:
    ends = run(clock, [task(quotas, QUOTA, sizes) for _ in range(4)])
    assert max(ends) == pytest.approx(8.0, rel=0.01)
    assert min(ends) == pytest.approx(8.0, rel=0.15), "each had an even share"


def test_what_one_task_does_not_use_the_others_do(quotas, clock) -> None:
    ends = run(clock, [task(quotas, QUOTA, [size]) for size in (100_000, 100_000, 3_800_000)])
    assert max(ends) == pytest.approx(4.0, rel=0.01)
    assert max(ends[:2]) < 1.0


def test_two_jobs_of_one_account_share_it_and_others_do_not_wait(quotas, clock) -> None:
    one = [task(quotas, QUOTA, [500_000] * 4) for _ in range(2)]
    two = [task(quotas, QUOTA, [500_000] * 4) for _ in range(2)]
    other = [task(quotas, Quota("User:b", 2 * RATE), [500_000] * 4)]
    ends = run(clock, one + two + other)
    assert max(ends[:4]) == pytest.approx(8.0, rel=0.01)
    assert ends[4] == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(("pause_s", "lasts_s"), [(0.4, 10.0), (0.9, 10.0), (2.5, 35.0)])
def test_short_pauses_between_micro_batches_are_made_up_for(
    quotas, clock, pause_s, lasts_s
) -> None:
    began_ms = clock.now_ms()
    for _ in range(10):
        run(clock, [task(quotas, QUOTA, [250_000] * 2) for _ in range(2)])
        clock.advance(int(pause_s * 1000))
    took_s = (clock.now_ms() - began_ms) / 1000
    # 1 MB in each second, pauses included, unless they are long.
    assert took_s == pytest.approx(lasts_s, rel=0.15)


def test_a_task_that_is_killed_leaves_a_step_of_debt_at_most(quotas, clock) -> None:
    for _ in range(8):
        next(task(quotas, QUOTA, [64_000_000]))
    ends = run(clock, [task(quotas, QUOTA, [250_000])])
    assert ends == [pytest.approx(9 * module.STEP_S)]


def test_a_rate_that_changes_counts_from_the_next_grant_on(quotas, clock) -> None:
    assert quotas.grant(QUOTA, RATE).throttle_ms == 250
    clock.advance(250)
    assert quotas.grant(QUOTA._replace(bytes_per_s=2 * RATE), 2 * RATE) == (500_000, 250)


def test_a_rate_of_a_byte_a_second_grants_a_byte(quotas) -> None:
    assert quotas.grant(Quota("x", 1), 10) == (1, 1000)


def test_accounts_that_nobody_pays_from_are_forgotten(quotas, clock, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_ACCOUNTS", 3)
    for name in "abc":
        quotas.grant(Quota(name, RATE), 1)
    clock.advance(3_000)
    quotas.grant(QUOTA, 1)
    assert list(quotas._spent_until_s) == ["User:a"]


def test_the_most_specific_name_decides() -> None:
    limits = ConfiguredLimits(10, {"User:a": 20, "client-id:nightly": 30, "client-id:free": -1})
    assert limits.quota("User:b", "x") == ("User:b", 10)
    assert limits.quota("User:a", "x") == ("User:a", 20)
    assert limits.quota("User:ANONYMOUS", "nightly") == ("client-id:nightly", 30)
    assert limits.quota("User:a", "nightly") == ("User:a client-id:nightly", 30), (
        "who takes another's client id runs up their own debt"
    )
    assert limits.quota("User:a", "free") is None
    assert ConfiguredLimits(-1, {}).quota("User:a", "") is None


def test_nobody_can_run_up_a_debt_without_end() -> None:
    clock = ManualClock()
    quotas = ReplayQuotas(ConfiguredLimits(100, {}), clock)
    granted = [quotas.grant(Quota("User:a", 100), 25) for _ in range(10_000)]
    assert max(each.throttle_ms for each in granted) <= (MOST_DEBT_S + 2 * STEP_S) * 1000
    assert sum(each.size_bytes for each in granted) <= 100 * (MOST_DEBT_S + 2 * STEP_S)
    last = granted[-1]
    assert last.size_bytes == 0 < last.throttle_ms
    clock.advance(last.throttle_ms)
    assert quotas.grant(Quota("User:a", 100), 25).size_bytes == 25
