"""Retention: what is too old or too much goes, and what is pinned stays or is lost loudly."""

import logging
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.broker_config import LogConfig
from catchwater.catalog.rows import PartitionKey, PartitionRow, Pin, RunRow
from catchwater.log.keep.pack import Packer
from catchwater.log.keep.retain import Retention, doomed, log_start_after
from catchwater.log.keep.sweep import Sweeper
from catchwater.log.topic_settings import Policy

MakeBatch = Callable[..., bytes]
OpenLog = Callable[..., Any]
NOW = 1_000_000
FOREVER = Policy(-1, -1)


def run(base: int, last: int, size: int = 10, newest: int = 0) -> RunRow:
    return RunRow(b"t", 0, base, last, "segments/x", 0, size, newest, last - base + 1)


def partition(runs: list[RunRow]) -> PartitionRow:
    return PartitionRow(
        b"t",
        0,
        log_start=runs[0].base_offset if runs else 0,
        high_watermark=runs[-1].last_offset + 1 if runs else 0,
        bytes=sum(entry.byte_size for entry in runs),
        earliest_timestamp=runs[0].max_timestamp if runs else -1,
    )


def after(runs: list[RunRow], policy: Policy, pinned: int | None = None) -> int:
    row = partition(runs)
    return log_start_after(doomed(runs, row, policy, NOW), row.log_start, pinned)


def test_a_run_goes_once_its_newest_record_is_too_old() -> None:
    runs = [run(0, 9, newest=NOW - 101), run(10, 19, newest=NOW - 100), run(20, 29, newest=NOW)]
    assert after(runs, Policy(100, -1)) == 10
    assert after(runs, Policy(99, -1)) == 20
    assert after(runs, Policy(-1, -1)) == 0
    assert after(runs, Policy(-1, -1)) == 0


def test_an_old_run_behind_a_young_one_stays() -> None:
    assert after([run(0, 9, newest=NOW), run(10, 19, newest=0)], Policy(100, -1)) == 0


def test_everything_may_go_by_age() -> None:
    assert after([run(0, 9), run(10, 19)], Policy(0, -1)) == 20


def test_runs_without_a_time_never_go_by_age() -> None:
    assert after([run(0, 9, newest=-1)], Policy(0, -1)) == 0


def test_by_size_what_stays_is_never_less_than_the_limit() -> None:
    runs = [run(i, i, size=10) for i in range(10)]
    assert after(runs, Policy(-1, 35)) == 6
    assert after(runs, Policy(-1, 30)) == 7
    assert after(runs, Policy(-1, 100)) == 0
    assert after(runs, Policy(-1, 0)) == 10


@given(
    sizes=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 50), st.integers(-1, 100))),
    retention_ms=st.integers(-1, 100),
    retention_bytes=st.integers(-1, 300),
    pinned=st.none() | st.integers(0, 200),
)
def test_retention_keeps_pins_and_whole_runs_and_goes_as_far_as_it_may(
    sizes: list[tuple[int, int, int]], retention_ms: int, retention_bytes: int, pinned: int | None
) -> None:
    runs: list[RunRow] = []
    for count, size, newest in sizes:
        base = runs[-1].last_offset + 1 if runs else 0
        runs.append(run(base, base + count - 1, size, newest))
    policy = Policy(retention_ms, retention_bytes)
    row = partition(runs)
    start = log_start_after(doomed(runs, row, policy, 100), row.log_start, pinned)
    assert start in {0, *(entry.last_offset + 1 for entry in runs)}
    if pinned is not None and runs and pinned <= runs[-1].last_offset:
        assert start <= pinned
    kept = [entry for entry in runs if entry.base_offset >= start]
    if retention_bytes >= 0 and retention_ms < 0 and start:
        assert sum(entry.byte_size for entry in kept) >= retention_bytes
    if kept and (pinned is None or kept[0].last_offset < pinned):
        assert not policy.deletes(kept[0], sum(entry.byte_size for entry in kept), 100)
    if policy.deletes_nothing(row, 100):
        assert start == 0, "the totals may not promise what the runs do not keep"


class Stage:
    """Retention over a miniature log."""

    def __init__(self, log: Any, default: Policy) -> None:
        self.log = log
        self.default = default
        self.core = log.core()
        self.held = 0

    @asynccontextmanager
    async def steady(self) -> Any:
        self.held += 1
        yield

    async def apply(self) -> int:
        self.core = self.log.core()
        return await Retention(self.core, self.default, self.steady).apply()

    def log_start(self, key: PartitionKey) -> int:
        return self.core.states[key].log_start

    def sweep(self) -> None:
        sweeper = Sweeper(self.core, grace_ms=1000, orphan_grace_ms=5000)
        sweeper.sweep()
        self.log.clock.advance(1000)
        sweeper.sweep()

    def segments(self) -> list[str]:
        return [info.key for info in self.log.objects.list("segments/")]

    def pin(self, pin_id: str) -> Pin:
        return next(pin for pin in self.log.catalog.pins() if pin.id == pin_id)


def fill(log: Any, make_batch: MakeBatch, key: PartitionKey, packings: int = 4) -> None:
    """So many segments of five offsets each, the larger ones first so that none are joined."""
    packer = Packer(log.catalog, log.storage, log.clock, LogConfig(), log.topic_name)
    for round_ in range(packings):
        value = b"x" * (1000 - 100 * round_)
        log.append((key, make_batch([value] * 5, [log.clock.now_ms()] * 5)))
        packer.pack()


async def test_with_retention_of_a_millisecond_a_pin_keeps_everything_from_it_on(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log(wal_bytes=1)
    [key] = log.create_topic("t", retention_ms="1")
    fill(log, make_batch, key)
    stage = Stage(log, FOREVER)
    log.catalog.set_pin(Pin("c1", "pipeline", {("t", 0): 12}, None, 0)).result()
    log.clock.advance(1000)
    assert await stage.apply() == 1
    stage.sweep()
    assert stage.log_start(key) == 10
    assert [entry.base_offset for entry in log.catalog.runs(key, 0)] == [10, 15]
    assert len(stage.segments()) == 2
    assert await stage.apply() == 0

    log.catalog.release_pin("c1").result()
    assert await stage.apply() == 1
    stage.sweep()
    assert stage.log_start(key) == 20
    assert stage.segments() == []
    assert log.object_keys() == {log.wal.files()[-1].name}


async def test_a_pin_whose_lease_has_ended_holds_nothing(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t", retention_ms="1")
    fill(log, make_batch, key)
    stage = Stage(log, FOREVER)
    lease = log.clock.now_ms() + 5000
    log.catalog.set_pin(Pin("c1", "pipeline", {("t", 0): 0}, lease, 0)).result()
    log.clock.advance(4999)
    assert await stage.apply() == 0
    log.clock.advance(1)
    log.catalog.set_pin(Pin("c2", "pipeline", {("t", 0): 20}, None, 0)).result()
    assert await stage.apply() == 1
    assert stage.log_start(key) == 20
    assert [pin.id for pin in log.catalog.pins()] == ["c2"], "a pin that has ended is removed"


async def test_pins_hold_still_from_the_look_at_them_to_the_deletion(open_log: OpenLog) -> None:
    stage = Stage(open_log(), FOREVER)
    await stage.apply()
    assert stage.held == 1


async def test_each_topic_has_its_own_policy(open_log: OpenLog, make_batch: MakeBatch) -> None:
    log = open_log()
    [kept] = log.create_topic("kept")
    [by_size] = log.create_topic("by-size", retention_bytes="1")
    [by_age] = log.create_topic("by-age", retention_ms="1")
    for key in (kept, by_size, by_age):
        fill(log, make_batch, key)
    stage = Stage(log, Policy(60_000, -1))
    log.clock.advance(1000)
    assert await stage.apply() == 2
    assert [stage.log_start(key) for key in (kept, by_size, by_age)] == [0, 15, 20]


async def test_a_pin_that_retention_waits_for_is_extended_and_one_it_does_not_is_reserved(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t", retention_ms="1")
    fill(log, make_batch, key)
    log.catalog.set_pin(Pin("c1", "pipeline", {("t", 0): 12}, None, 0)).result()
    stage = Stage(log, FOREVER)
    await stage.apply()
    assert stage.pin("c1").state == "reserved"
    log.clock.advance(1000)
    await stage.apply()
    assert stage.pin("c1").state == "extended"
    assert stage.log_start(key) == 10


async def test_a_pin_past_its_cap_is_warned_of_first_and_then_lost_loudly(
    open_log: OpenLog, make_batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    [key] = log.create_topic("t", retention_ms="1")
    fill(log, make_batch, key)
    held = sum(entry.byte_size for entry in log.catalog.runs(key, 5))
    log.catalog.set_pin(Pin("c1", "me", {("t", 0): 7}, None, 0, max_bytes=held - 1)).result()
    log.catalog.set_pin(Pin("c2", "me", {("t", 0): 12}, None, 0, max_bytes=held)).result()
    stage = Stage(log, FOREVER)
    log.clock.advance(1000)
    await stage.apply()
    assert (stage.pin("c1").state, stage.pin("c2").state) == ("unreserved", "extended")
    assert stage.log_start(key) == 5
    assert f"The pin c1 of me holds back {held} bytes, more than its max_bytes" in caplog.text
    await stage.apply()
    assert (stage.pin("c1").state, stage.pin("c2").state) == ("lost", "extended")
    assert stage.log_start(key) == 10
    assert "The pin c1 of me is lost: t-0 offsets 7 to 9 are gone." in caplog.text
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]


async def test_a_pin_that_grows_no_larger_is_taken_back_into_the_promise(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t", retention_ms="1")
    fill(log, make_batch, key)
    log.catalog.set_pin(Pin("c1", "me", {("t", 0): 7}, None, 0, max_bytes=1)).result()
    stage = Stage(log, FOREVER)
    log.clock.advance(1000)
    await stage.apply()
    log.catalog.set_pin(Pin("c1", "me", {("t", 0): 7}, None, 0, max_bytes=1 << 20)).result()
    for _ in range(3):
        await stage.apply()
    assert stage.pin("c1").state == "extended"
    assert stage.log_start(key) == 5


async def test_a_pin_on_a_deleted_topic_is_lost(
    open_log: OpenLog, make_batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    log.create_topic("t")
    log.catalog.set_pin(Pin("c1", "me", {("gone", 3): 7, ("t", 0): 0}, None, 0)).result()
    stage = Stage(log, FOREVER)
    await stage.apply()
    assert stage.pin("c1").state == "lost"
    assert "The pin c1 of me is lost: gone-3 is gone." in caplog.text


async def test_a_compacted_topic_keeps_everything_unless_it_deletes_too(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [only] = log.create_topic("only", retention_ms="1", cleanup_policy="compact")
    [both] = log.create_topic("both", retention_ms="1", cleanup_policy="compact,delete")
    for key in (only, both):
        fill(log, make_batch, key)
    stage = Stage(log, Policy(60_000, 1))
    log.clock.advance(1000)
    assert await stage.apply() == 1
    assert (stage.log_start(only), stage.log_start(both)) == (0, 20)
