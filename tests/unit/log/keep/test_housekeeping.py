"""The jobs of whole logs: one at a time, by one broker, and never past a pin (F39)."""

import asyncio
import io
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pyarrow.parquet as pq
import pytest
from tests.unit.log.shared import World, append, batch, catalog_of, everything, offsets, until

from catchwater.broker_config import LogConfig
from catchwater.catalog.errors import CatalogFull
from catchwater.catalog.rows import PartitionKey, Pin
from catchwater.clock import ManualClock
from catchwater.log.core import RangeMissing
from catchwater.log.keep.compact import Compactor
from catchwater.log.keep.leases import BUCKETS, TTL_MS, bucket_of
from catchwater.log.keep.pack import Packer
from catchwater.log.keep.parquet import PARQUET
from catchwater.log.keep.tables import ASK_AGAIN_S
from catchwater.log.log import Log
from catchwater.log.tables.iceberg import TableState, TopicTable
from catchwater.log.tables.settings import COMMIT_INTERVAL_MS, TABLE
from catchwater.log.write.writer import Submission
from catchwater.objects.base import StoreFull
from catchwater.wire.arrow import decode, encode_batch, place
from catchwater.wire.batch import read_header

HOUR_MS = 3_600_000
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0"}

Open = Callable[..., Awaitable[Log]]


class TwoClocks(ManualClock):
    """A wall clock that can be set apart from the monotonic one."""

    set_by_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.set_by_ms


@pytest.fixture
def clocks() -> TwoClocks:
    return TwoClocks()


@pytest.fixture
async def log(tmp_path: Path, clocks: TwoClocks) -> AsyncIterator[Log]:
    config = LogConfig(background=False, catalog_lag_ms=1, delete_grace_ms=0, wal_segment_bytes=1)
    opened = await Log.open(tmp_path, config, clocks)
    yield opened
    await opened.close()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


def keyed(key: PartitionKey, *changes: tuple[str, str | None]) -> Submission:
    records = [(k.encode(), None if v is None else v.encode(), 0, ()) for k, v in changes]
    view = memoryview(encode_batch(records))
    return Submission(key, read_header(view), view)


async def values(log: Log, key: PartitionKey) -> dict[str, tuple[int, str]]:
    state, found = log.state(key), {}
    offset = state.log_start
    while offset < state.high_watermark:
        read = await log.read(key, offset, 1 << 20, at_least_one=True)
        data = b"".join(read.parts)
        batches = place(data)
        for rows in decode(data, batches, first=offset):
            for row in rows.to_pylist():
                found[row["key"].decode()] = row["offset"], row["value"].decode()
        offset = batches[-1].next_offset
    return found


async def test_a_compacted_topic_keeps_its_last_values_and_its_bytes_are_counted(log: Log) -> None:
    topic = await log.create_topic("t", 1, COMPACTED)
    key = (topic.id, 0)
    for n in range(5):
        await append(log, keyed(key, ("a", f"{n}"), (f"own{n}", "x")))
    await log.keeping.pack()
    before = log.state(key).bytes
    assert await log.keeping.compact() == 1
    assert await values(log, key) == {"a": (8, "4")} | {
        f"own{n}": (2 * n + 1, "x") for n in range(5)
    }
    [row] = await log.storage("t")
    assert log.state(key).bytes == row.segment_bytes < before
    await offsets(log, keyed(key, ("a", "5")))
    assert (await values(log, key))["a"] == (10, "5")
    assert log.state(key).bytes == row.segment_bytes + len(keyed(key, ("a", "5")).data)


async def test_jobs_called_by_hand_wait_for_each_other(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_work: list[str] = []

    def job(name: str) -> Callable[..., int]:
        def work(*args: Any) -> int:
            assert not at_work, f"{name} began while {at_work} was at work"
            at_work.append(name)
            log.keeping._core.clock.pause(0)
            at_work.remove(name)
            return 0

        return work

    monkeypatch.setattr(log.keeping._packer, "pack", job("pack"))
    monkeypatch.setattr(log.keeping._sweeper, "sweep", job("sweep"))
    monkeypatch.setattr(log.keeping._sweeper, "sweep_orphans", job("orphans"))
    keeping = log.keeping
    jobs = [keeping.pack(), keeping.retain(), keeping.sweep_orphans(), keeping.retain()]
    await asyncio.gather(*jobs, keeping.pack())


async def test_packing_waits_for_busy_producers_and_stops_for_them_up_to_its_bounds(
    tmp_path: Path, clocks: TwoClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By hand all is packed at once; in the background as producers let it."""
    config = LogConfig(
        background=False,
        catalog_lag_ms=1,
        pack_min_bytes=1,
        pack_backlog_bytes=3000,
        pack_interval_ms=60_000,
    )
    log = await Log.open(tmp_path, config, clocks)
    keys = [((await log.create_topic(f"t{n}", 1)).id, 0) for n in range(3)]
    original = log.objects.put_if_absent

    def beside_a_producer(*args: Any) -> int:
        log._core.writer.appends.add(1, clocks.monotonic_s())
        return int(original(*args))

    def due() -> bool:
        return log.keeping._backlog.is_due(clocks.monotonic_s())

    async def in_background() -> int:
        return await log.keeping._pack(makes_way=True)

    await append(log, *(batch(key) for key in keys))
    assert not due(), "something was appended just now"
    clocks.advance(500)
    assert due(), "producers are quiet"
    with monkeypatch.context() as busy:
        busy.setattr(log.objects, "put_if_absent", beside_a_producer)
        assert await in_background() == 1, "they are not, once the first segment is written"
    assert not due()
    clocks.advance(500)
    assert due()
    assert await in_background() == 2
    assert not due()

    monkeypatch.setattr(log.objects, "put_if_absent", beside_a_producer)
    await append(log, *(batch(key) for key in keys))
    log._core.writer.appends.add(2000, clocks.monotonic_s())
    assert not due()
    log._core.writer.appends.add(1000, clocks.monotonic_s())
    assert due(), "as much waits as may"
    assert await in_background() == 3, "all of it, however busy producers are"

    await append(log, *(batch(key) for key in keys))
    clocks.advance(59_000)
    await append(log, *(batch(key) for key in keys))
    assert not due()
    clocks.advance(1_000)
    log._core.writer.appends.add(1, clocks.monotonic_s())
    assert due(), "an interval has passed"
    assert await in_background() == 3
    await log.close()


async def test_what_cannot_be_rewritten_on_a_full_disk_holds_no_deletion_up(
    tmp_path: Path, clocks: TwoClocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any) -> int:
        raise StoreFull("There is no room for a segment.")

    monkeypatch.setattr(Packer, "pack", full)
    monkeypatch.setattr(Compactor, "compact", full)
    often = LogConfig(
        catalog_lag_ms=1,
        delete_grace_ms=0,
        wal_segment_bytes=1,
        pack_interval_ms=1,
        retention_interval_ms=1,
    )
    log = await Log.open(tmp_path, often, clocks)
    await log.create_topic("compacted", 1, COMPACTED)
    topic = await log.create_topic("t", 1)
    for _ in range(5):
        await append(log, batch((topic.id, 0)))
    await log.delete_topic("t")
    await until(lambda: len(list(tmp_path.rglob("*.wal"))) == 1)
    await log.close()


async def test_deleting_a_topic_leaves_no_object_and_its_pins_are_lost_loudly(
    log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await log.create_topic("t", 2)
    for n in range(4):
        await append(log, batch((topic.id, n % 2)))
        await log.keeping.pack()
    await append(log, batch((topic.id, 0)))
    await log.set_pin(Pin("p/1", "pipeline", {("t", 0): 1}, None, 0))
    await log.delete_topic("t")
    await log.keeping.lose_pins("t")
    [pin] = await log.pins()
    assert pin.state == "lost"
    assert "The pin p/1 of pipeline is lost: t-0 is gone." in caplog.text
    other = await log.create_topic("t", 1, {"retention.ms": "-1"})
    await append(log, batch((other.id, 0)))
    await log.keeping.pack()
    for _ in range(2):
        await log.keeping.retain()
    left = [info.key for info in log.objects.list("segments/")]
    assert [key.split("/")[1] for key in left] == [other.id.hex()]


async def test_records_are_deleted_on_request_but_not_past_a_pin(log: Log) -> None:
    topic = await log.create_topic("t", 2)
    first, second = (topic.id, 0), (topic.id, 1)
    for _ in range(2):
        await append(log, batch(first, 5), batch(second, 5))
    pin = Pin("p/1", "pipeline", {("t", 0): 7}, None, 0)
    await log.set_pin(pin)
    assert await log.keeping.delete_records({first: 8, second: 8}) == {first: pin}
    assert [log.state(key).log_start for key in (first, second)] == [0, 8]
    assert await log.keeping.delete_records({first: 7}) == {}
    assert log.state(first).log_start == 7


async def test_after_a_jump_of_the_clock_nothing_is_deleted_for_one_interval(
    log: Log, clocks: TwoClocks, caplog: pytest.LogCaptureFixture
) -> None:
    topic = await log.create_topic("t", 1, {"retention.ms": str(HOUR_MS)})
    key = (topic.id, 0)
    records = [(b"k", b"v", clocks.now_ms(), ())]
    view = memoryview(encode_batch(records))
    await append(log, Submission(key, read_header(view), view))
    await log.keeping.pack()
    clocks.set_by_ms += 2 * HOUR_MS
    await log.keeping._keep_to_policy()
    assert log.state(key).log_start == 0
    assert "The wall clock has jumped by 7200000 ms" in caplog.text
    clocks.set_by_ms = 0
    for _ in range(3):
        await log.keeping._keep_to_policy()
    assert log.state(key).log_start == 0, "it was set back in time"
    clocks.advance(HOUR_MS + 1)
    await log.keeping._keep_to_policy()
    assert log.state(key).log_start == 1


# --- among brokers -------------------------------------------------------------------------------


def test_buckets_are_even_and_the_same_everywhere() -> None:
    keys = [(bytes([topic] * 16), partition) for topic in range(32) for partition in range(32)]
    counts = [0] * BUCKETS
    for key in keys:
        counts[bucket_of(key, BUCKETS)] += 1
    assert min(counts) > 30
    assert bucket_of((b"\0" * 16, 7), BUCKETS) == 14


async def test_brokers_share_the_packing_and_a_dead_ones_files_are_swept(world: World) -> None:
    one, two = await world.log(1, delete_grace_ms=0), await world.log(2, delete_grace_ms=0)
    topic = await one.create_topic("t", 8, {"retention.ms": "-1"})
    keys = [(topic.id, index) for index in range(8)]
    await asyncio.wait_for(two.look_up(["t"]), 60)
    for _ in range(3):
        await append(one, *(batch(key) for key in keys))
        await append(two, *(batch(key, 2) for key in keys))
    wanted = {key: await everything(one, key) for key in keys}
    written = await asyncio.gather(one.keeping.pack(), two.keeping.pack())
    assert sum(written) >= 8
    assert catalog_of(one).chunk_runs(10) == []
    for log in (one, two):
        await log.refresh(keys)
        assert {key: await everything(log, key) for key in keys} == wanted
    assert await one.keeping.pack() == 0, "the leases were given up"
    for log in (two, one, two):
        await log.keeping.retain()
    assert list(world.store.list("wal/")) == []
    assert len(list(world.store.list("segments/"))) == 8


async def test_a_lease_that_could_not_be_renewed_is_not_held_whatever_the_catalog_lacked(
    world: World,
) -> None:
    one = await world.log(1)
    async with one.keeping._leases.held("pack/0") as lease:
        assert lease()
        await world.beat(1)
        catalog_of(one).refusal = CatalogFull("There is no space for the catalog.")
        await world.beat(TTL_MS // 2)
        await until(lambda: not lease())
    catalog_of(one).refusal = None


async def test_no_pin_is_ever_passed_whichever_brokers_race(world: World) -> None:
    one = await world.log(1, delete_grace_ms=0, retention_ms=0)
    two = await world.log(2, delete_grace_ms=0, retention_ms=0)
    topic = await one.create_topic("t", 1)
    key = (topic.id, 0)
    await asyncio.wait_for(two.look_up(["t"]), 60)
    held = 0
    for round_ in range(12):
        await append(one, batch(key))
        await one.keeping.pack()
        pin = Pin(f"p/{round_}", "p", {("t", 0): round_}, None, 0)

        async def clock() -> None:
            for _ in range(60):
                await world.beat(100)

        setting, retaining, _ = await asyncio.gather(
            two.set_pin(pin), one.keeping.retain(), clock(), return_exceptions=True
        )
        assert retaining is None, retaining
        await two.refresh([key])
        if isinstance(setting, RangeMissing):
            continue
        assert setting is None, setting
        held += 1
        assert one.state(key).log_start <= round_
        assert min(base for base, _ in await everything(one, key)) <= round_
        assert all(pin.state != "lost" for pin in await one.pins())
        await two.release_pin(pin.id)
    assert held


async def test_a_broker_whose_session_is_gone_gives_up_its_jobs(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    one = await world.log(1)
    topic = await one.create_topic("t", 1)
    await append(one, batch((topic.id, 0)))
    other = await world.log(1, host="another")
    with caplog.at_level(logging.ERROR), pytest.raises(Exception, match=r"superseded|session"):
        await one.keeping.pack()
    await asyncio.wait_for(other.look_up(["t"]), 60)
    assert await other.keeping.pack() == 1


async def test_a_compacted_topic_has_parquet_of_what_was_cleaned_only(log: Log) -> None:
    topic = await log.create_topic("t", 1, COMPACTED | {PARQUET: "true"})
    key = (topic.id, 0)
    seen = []
    for n in range(2):
        await append(log, keyed(key, ("a", f"{n}"), (f"own{n}", "x")))
        await append(log, keyed(key, ("a", f"{n}!")))
        await log.keeping.pack()
        await log.keeping.write_parquet()
        assert len(list(log.objects.list("parquet/"))) == n, "not of what is not clean yet"
        await log.keeping.compact()
        await log.keeping.write_parquet()
        [planned] = await log.planner.plan("t", [(0, 0, 3 * n + 3)])
        assert planned.kind == "cleaned"
        path = Path(unquote(urlsplit(planned.parquet).path))
        rows = pq.read_table(io.BytesIO(path.read_bytes()), columns=["offset", "value"])
        seen.append(rows.to_pydict())
        for _ in range(2):
            await log.keeping.retain()
        assert [info.key for info in log.objects.list("parquet/")] == [str(path)[-len(KEY) :]]
    assert seen == [
        {"offset": [1, 2], "value": [b"x", b"0!"]},
        {"offset": [1, 4, 5], "value": [b"x", b"x", b"1!"]},
    ]


KEY = f"parquet/{'0' * 32}/0/{'0' * 20}-{'0' * 16}.parquet"


async def test_one_broker_writes_parquet_in_turns_and_the_other_plans_with_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"parquet_after_ms": 0}
    first, second = await world.log(1, **config), await world.log(2, **config)
    topic = await first.create_topic("t", 1, {PARQUET: "true"})
    await offsets(first, batch((topic.id, 0), 3))
    await first.keeping.pack()
    await world.beat(1)  # a lease that was given up has ended
    held = f"pack/{bucket_of((topic.id, 0), BUCKETS)}"
    assert second.session is not None
    assert await asyncio.wrap_future(catalog_of(second).take_lease(held, second.session, HOUR_MS))
    assert not await first.keeping.write_parquet()
    assert list(world.store.list("parquet/")) == [], "the other one does it"
    assert await asyncio.wrap_future(catalog_of(second).take_lease(held, second.session, 0))
    await world.beat(1)
    with monkeypatch.context() as hurried:
        hurried.setattr("catchwater.log.keep.housekeeping._PARQUET_TURN_S", -1.0)
        assert await first.keeping.write_parquet(), "something is left"
    assert not await first.keeping.write_parquet()
    assert not await second.keeping.write_parquet()
    [info] = world.store.list("parquet/")
    await second.look_up(["t"])
    await second.refresh([(topic.id, 0)])
    [planned] = await second.planner.plan("t", [(0, 0, 3)])
    assert planned.parquet == world.store.url(info.key)


async def test_a_table_with_nothing_to_come_is_not_asked_unless_another_broker_rewound_it(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, warehouse = f"sqlite:///{tmp_path}/tables.db", tmp_path.as_uri()
    tables = (("type", "sql"), ("uri", uri), ("warehouse", warehouse))
    first, second = await world.log(1, tables=tables), await world.log(2, tables=tables)
    topic = await first.create_topic("t", 1, {TABLE: "lake.t"})
    await second.look_up(["t"])
    opened: list[str] = []
    original = TopicTable.open

    def counted(table: TopicTable) -> TableState:
        opened.append(table.settings.name)
        return original(table)

    monkeypatch.setattr(TopicTable, "open", counted)

    async def after(ms: int = COMMIT_INTERVAL_MS) -> tuple[int, dict[int, int]]:
        """How often the table was opened in its next turn, and where it stands then."""
        opened.clear()
        await world.beat(ms)
        assert not await first.keeping.write_tables()
        state = first.keeping.tables.writer.look(topic)[1]
        return len(opened), state.offsets if state else {}

    assert await after() == (1, {}), "one that never had a record"
    assert await after() == (0, {})
    await offsets(first, batch((topic.id, 0), 3))
    assert await after() == (1, {0: 3})
    assert await after() == (0, {0: 3})
    said = await second.keeping.rewind_table(topic, {0: 1}, dry_run=False)
    assert said["rows"] == 2
    assert await after() == (1, {0: 3}), "the rows that another broker took back are there again"
    assert await after() == (0, {0: 3})
    assert await after(int(ASK_AGAIN_S * 1000)) == (1, {0: 3}), "somebody else may have changed it"
    await first.keeping.rewind_table(topic, {0: 2}, dry_run=False)
    assert await after(0) == (1, {0: 3})
    assert await asyncio.wrap_future(catalog_of(first).release_pin("table/t"))
    assert await after() == (1, {0: 3})
    assert [pin.id for pin in catalog_of(first).pins()] == ["table/t"], "a lost pin is set again"
