"""Retention: what is too old or too much goes, what is pinned stays, and no bytes are left over."""

import asyncio
import os
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.catalog.rows import (
    PartitionKey,
    Pin,
    RunRow,
    Topic,
)
from catchwater.log.keep.pack import PackConfig, Packer
from catchwater.log.keep.retain import Policy, Retention, Sweeper, log_start_after, pinned_offsets
from catchwater.log.write.sequence import PartitionState

MakeBatch = Callable[..., bytes]
OpenLog = Callable[..., Any]
NOW = 1_000_000
FOREVER = Policy(-1, -1)


def run(base: int, last: int, size: int = 10, newest: int = 0) -> RunRow:
    return RunRow(b"t", 0, base, last, "segments/x", 0, size, newest, last - base + 1)


def state(runs: list[RunRow]) -> PartitionState:
    return PartitionState(
        log_start=runs[0].base_offset if runs else 0,
        high_watermark=runs[-1].last_offset + 1 if runs else 0,
        bytes=sum(entry.byte_size for entry in runs),
        earliest_timestamp=runs[0].max_timestamp if runs else -1,
    )


def after(runs: list[RunRow], policy: Policy, pinned: int | None = None) -> int:
    return log_start_after(runs, state(runs), policy, pinned, NOW)


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


def test_a_topic_overrides_the_default() -> None:
    topic = Topic(b"t", "t", 1, {"retention.ms": "5"})
    assert Policy(100, 200).of(topic) == Policy(5, 200)
    topic = Topic(b"t", "t", 1, {"retention.bytes": "-1", "retention.ms": "-1"})
    assert Policy(100, 200).of(topic) == FOREVER


def pin(offset: int, lease: int | None = None, place: tuple[str, int] = ("t", 0)) -> Pin:
    return Pin(f"{offset}", "me", {place: offset}, lease, 0)


def test_the_lowest_pin_in_force_counts() -> None:
    pins = [pin(30), pin(10, NOW), pin(20, NOW + 1), pin(5, None, ("t", 1)), pin(1, NOW - 1)]
    assert pinned_offsets(pins, NOW) == {("t", 0): 20, ("t", 1): 5}


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
    start = log_start_after(runs, state(runs), policy, pinned, now_ms=100)
    assert start in {0, *(entry.last_offset + 1 for entry in runs)}
    if pinned is not None and runs and pinned <= runs[-1].last_offset:
        assert start <= pinned
    kept = [entry for entry in runs if entry.base_offset >= start]
    if retention_bytes >= 0 and retention_ms < 0 and start:
        assert sum(entry.byte_size for entry in kept) >= retention_bytes
    if kept and (pinned is None or kept[0].last_offset < pinned):
        assert not policy.deletes(kept[0], sum(entry.byte_size for entry in kept), 100)
    if policy.deletes_nothing(state(runs), 100):
        assert start == 0, "the totals may not promise what the runs do not keep"


class Stage:
    """The jobs over a miniature log, and the log's state as `Log` would keep it."""

    def __init__(self, log: Any, default: Policy) -> None:
        self.log = log
        self.states: dict[PartitionKey, PartitionState] = {}
        self.pins_change = asyncio.Lock()
        self.packer = Packer(log.catalog, log.storage, log.clock, PackConfig(), log.topic_name)
        self.retention = Retention(
            log.catalog, log.topics.values(), self.states.__getitem__, self.trim,
            self.pins_change, log.clock, default,
        )  # fmt: skip
        self.sweeper = Sweeper(
            log.catalog, log.storage, log.clock, grace_ms=1000, orphan_grace_ms=5000,
            applied_sequence=lambda: log.applied,
        )  # fmt: skip

    def look(self) -> None:
        for topic in self.log.topics.values():
            for partition in range(topic.partitions):
                key = (topic.id, partition)
                log_start = self.states[key].log_start if key in self.states else 0
                runs = [r for r in self.log.catalog.runs(key, 0) if r.last_offset >= log_start]
                self.states[key] = state(runs)
                self.states[key].log_start = log_start

    async def trim(self, log_starts: Mapping[PartitionKey, int]) -> None:
        for row in await asyncio.wrap_future(self.log.catalog.trim(log_starts)):
            self.states[row[:2]].log_start = row.log_start

    async def apply(self) -> int:
        self.look()
        return await self.retention.apply()

    def sweep(self) -> None:
        self.sweeper.sweep()
        self.log.clock.advance(1000)
        self.sweeper.sweep()

    def segments(self) -> list[str]:
        return [info.key for info in self.log.objects.list("segments/")]


def fill(log: Any, make_batch: MakeBatch, key: PartitionKey, packings: int = 4) -> None:
    """So many segments of five offsets each, the larger ones first so that none are joined."""
    packer = Packer(log.catalog, log.storage, log.clock, PackConfig(), log.topic_name)
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
    assert stage.states[key].log_start == 10
    assert [entry.base_offset for entry in log.catalog.runs(key, 0)] == [10, 15]
    assert len(stage.segments()) == 2
    assert await stage.apply() == 0

    log.catalog.release_pin("c1").result()
    assert await stage.apply() == 1
    stage.sweep()
    assert stage.states[key].log_start == 20
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
    assert await stage.apply() == 1
    assert stage.states[key].log_start == 20


async def test_no_topic_is_touched_while_pins_change(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t", retention_ms="1")
    fill(log, make_batch, key)
    log.clock.advance(1000)
    stage = Stage(log, FOREVER)
    async with stage.pins_change:
        applying = asyncio.ensure_future(stage.apply())
        await asyncio.sleep(0)
        log.catalog.set_pin(Pin("c1", "pipeline", {("t", 0): 0}, None, 0)).result()
    assert await applying == 0


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
    assert [stage.states[key].log_start for key in (kept, by_size, by_age)] == [0, 15, 20]


async def test_an_object_stays_for_its_grace_also_over_a_restart(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t", retention_ms="1")
    fill(log, make_batch, key)
    stage = Stage(log, FOREVER)
    log.clock.advance(1000)
    await stage.apply()
    stage.sweeper.sweep()
    log.clock.advance(999)
    stage.sweeper.sweep()
    assert len(stage.segments()) == 4
    log = open_log()
    stage = Stage(log, FOREVER)
    stage.sweep()
    assert stage.segments() == []


def test_deleting_a_topic_leaves_no_object(open_log: OpenLog, make_batch: MakeBatch) -> None:
    log = open_log(wal_bytes=1)
    [key] = log.create_topic("t")
    [other] = log.create_topic("other")
    fill(log, make_batch, key)
    log.append((key, make_batch([b"not packed"])))
    log.append((other, make_batch([b"x"])))
    log.catalog.delete_topic(key[0]).result()
    stage = Stage(log, FOREVER)
    stage.sweep()
    assert log.object_keys() == {log.wal.files()[-1].name}
    assert log.catalog.objects("deleting") == []
    assert len(log.catalog.runs(other, 0)) == 1


@pytest.mark.parametrize("key", ["segments/00/0/0-x.seg", "staged/p/s/x.chunk"])
def test_an_object_without_a_row_is_swept_once_it_is_old(open_log: OpenLog, key: str) -> None:
    log = open_log()
    log.objects.put(key, [b"left by a crash"])
    log.objects.put("elsewhere/x", [b"not ours"])
    made_ms = next(log.objects.list(key)).modified_ms
    log.clock.advance(made_ms + 5000 - log.clock.now_ms())
    stage = Stage(log, FOREVER)
    assert stage.sweeper.sweep_orphans() == 0
    log.clock.advance(1)
    assert stage.sweeper.sweep_orphans() == 1
    assert [info.key for info in log.objects.list("")] == ["elsewhere/x"]


def test_a_known_object_is_no_orphan_however_old(open_log: OpenLog, make_batch: MakeBatch) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, make_batch, key)
    stage = Stage(log, FOREVER)
    for object_key in stage.segments():
        os.utime(log.root / "objects" / object_key, (0, 0))
    assert stage.sweeper.sweep_orphans() == 0
    assert len(stage.segments()) == 4
