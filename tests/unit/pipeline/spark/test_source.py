"""Where epochs end, decided from what the log and the ledger say; no Spark runs."""

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pyarrow as pa
import pytest

from catchwater.clock import Clock
from catchwater.demo.card_risk import CardRisk
from catchwater.pipeline.functions.declare import spec_of
from catchwater.pipeline.rows import EVENTS, HEAD, TABLES, Head, shard_labels
from catchwater.pipeline.run.versions import publish
from catchwater.pipeline.spark import source
from catchwater.pipeline.spark.source import PackedReader, PackedSettings
from catchwater.recovery import handover
from catchwater.recovery.ledger import EpochEntry, Ledger, ShardEpoch, SourceOffset
from catchwater.replay.options import Offsets, SourceOptions
from catchwater.replay.plan import Slice, Task
from catchwater.state.roll import EMPTY, Position

pytest.importorskip("pyspark")
ALL, FEW = source.ReadAllAvailable(), source.ReadMaxRows(10)
DELAY = spec_of(CardRisk).watermark_ms


class FakeClock(Clock):
    now = 1_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic_s(self) -> float:
        return self.now / 1000

    def pause(self, seconds: float, woken: int | None = None) -> None:
        self.now += round(1000 * seconds)


class FakeLog:
    """Ends by topic and partition, for every subscription."""

    ends: Offsets

    def __init__(self, options: SourceOptions, *_: object) -> None:
        self._topics = options.topics

    def latest(self) -> Offsets:
        return {key: end for key, end in FakeLog.ends.items() if key[0] in self._topics}

    def starting(self, default: int) -> Offsets:
        return dict.fromkeys(self.latest(), 0)

    waits: ClassVar[list[tuple[Offsets, float]]] = []
    coming: ClassVar[Offsets] = {}
    """What has come when somebody waits."""

    def wait(self, ends: Offsets, timeout_s: float) -> bool:
        self.waits.append((dict(ends), timeout_s))
        FakeLog.ends |= self.coming
        return bool(self.coming)

    def check_present(self, *_: object) -> None:
        pass

    def control_url(self) -> None:
        return None

    def close(self) -> None:
        pass

    def tasks(self, start: Offsets, end: Offsets, count: int) -> list[Task]:
        return [
            Task((Slice(*key, start.get(key, 0), stop),))
            for key, stop in sorted(end.items())
            if stop > start.get(key, 0)
        ]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackedSettings:
    monkeypatch.setattr(source, "Subscription", FakeLog)
    FakeLog.ends = {("pay", 0): 0, ("pay", 1): 0}
    monkeypatch.setattr(FakeLog, "waits", [])
    monkeypatch.setattr(FakeLog, "coming", {})
    servers = {"kafka.bootstrap.servers": "127.0.0.1:1"}
    return PackedSettings(
        options={**servers, "subscribe": "pay"},
        checkpoint=str(tmp_path),
        functions=[publish(spec_of(CardRisk), tmp_path)],
        shards=2,
        tasks=2,
        record_key_is_function_key=False,
        table_options={**servers, "subscribe": "shops"},
    )


class Driver:
    """Plays Spark and the rest of the driver: every planned epoch ends with the entry given."""

    def __init__(self, settings: PackedSettings) -> None:
        self.clock = FakeClock()
        self.reader = PackedReader(settings, self.clock)
        self.ledger = Ledger(Path(settings.checkpoint))
        self.at = self.reader.initialOffset()

    def plan(self, limit: Any = ALL) -> SourceOffset | None:
        """The end of the next epoch, None if there is none yet."""
        end = self.reader.latestOffset(self.at, limit)
        return None if end == self.at else SourceOffset.from_json(end)

    def run(self, limit: Any = ALL, seen: dict[str, int] | None = None, **shard: Any) -> None:
        """Plan an epoch and finish it."""
        end = self.plan(limit)
        assert end is not None
        shards = [ShardEpoch(0, version=end.epoch + 1, token="t", **shard), ShardEpoch(1)]
        entry = EpochEntry(end.epoch, end, end, shards, {}, 0, seen=seen or {})
        self.ledger.write(entry)
        self.at = end.to_json()


def test_settings_do_not_show_their_options(settings: PackedSettings) -> None:
    secret = msgspec.structs.replace(settings, options={"kafka.sasl.password": "s3cret"})
    assert "s3cret" not in repr(secret) and "s3cret" in secret.to_option()["settings"]


def test_the_first_epoch_runs_in_any_case_and_the_next_only_for_something(
    settings: PackedSettings,
) -> None:
    driver = Driver(settings)
    driver.run()
    assert driver.plan() is None
    FakeLog.ends = {("pay", 0): 3, ("pay", 1): 0}
    end = driver.plan()
    assert end is not None
    assert end.offsets == {"pay": {"0": 3, "1": 0}}


def test_no_more_is_admitted_than_asked_for(settings: PackedSettings) -> None:
    driver = Driver(settings)
    FakeLog.ends = {("pay", 0): 30, ("pay", 1): 10}
    driver.run(FEW)
    assert driver.at["offsets"] == {"pay": {"0": 7, "1": 2}}


def test_a_partition_with_something_unread_holds_the_watermark(settings: PackedSettings) -> None:
    driver = Driver(settings)
    FakeLog.ends = {("pay", 0): 30, ("pay", 1): 10}
    driver.run(FEW, seen={"pay-0": 100_000, "pay-1": 900_000})
    end = driver.plan(FEW)
    assert end is not None and end.watermark_ms == 100_000 - DELAY
    driver.run(seen={"pay-0": 120_000, "pay-1": 950_000}, next_due_ms=1)
    end = driver.plan()
    assert end is not None and end.watermark_ms == 950_000 - DELAY


def test_a_shard_that_waits_for_a_time_gets_an_epoch_when_it_has_come(
    settings: PackedSettings,
) -> None:
    driver = Driver(settings)
    driver.run(next_due_clock_ms=FakeClock.now + 50)
    assert driver.plan() is None
    driver.clock.now += 50
    end = driver.plan()
    assert end is not None
    assert (end.epoch, end.clock_ms) == (1, driver.clock.now)


def test_idle_input_lets_the_watermark_go_on_with_the_clock(settings: PackedSettings) -> None:
    driver = Driver(msgspec.structs.replace(settings, idle_timeout_ms=10_000))
    FakeLog.ends = {("pay", 0): 3, ("pay", 1): 0}
    driver.run(seen={"pay-0": 500_000}, next_due_ms=500_000 - DELAY + 5_000)
    driver.clock.now += 14_999
    assert driver.plan() is None
    driver.clock.now += 1
    end = driver.plan()
    assert end is not None and end.watermark_ms == 500_000 - DELAY + 5_000


def test_who_asks_again_waits_for_a_record_in_topics_and_tables(settings: PackedSettings) -> None:
    driver = Driver(msgspec.structs.replace(settings, tables={"shops": "shops"}))
    FakeLog.ends[("shops", 0)] = 5
    driver.run()
    assert driver.plan() is None and FakeLog.waits == [], "Spark may have something else to do"
    assert driver.plan() is None
    everything = {("pay", 0): 0, ("pay", 1): 0, ("shops", 0): 5}
    assert FakeLog.waits == [(everything, source.LONGEST_WAIT_S)]
    FakeLog.coming = {("pay", 1): 2}
    end = driver.plan()
    assert end is not None and end.offsets == {"pay": {"0": 0, "1": 2}}


def test_it_waits_no_longer_than_until_a_shard_is_due(settings: PackedSettings) -> None:
    driver = Driver(settings)
    driver.run(next_due_clock_ms=FakeClock.now + 50)
    assert driver.plan() is None
    assert driver.plan() is None
    driver.clock.now += 49
    assert driver.plan() is None
    assert [wait_s for _, wait_s in FakeLog.waits] == [0.05, 0.001]


def test_it_waits_no_longer_than_until_an_idle_watermark_is_due(settings: PackedSettings) -> None:
    driver = Driver(msgspec.structs.replace(settings, idle_timeout_ms=10_000))
    FakeLog.ends = {("pay", 0): 3, ("pay", 1): 0}
    driver.run(seen={"pay-0": 500_000}, next_due_ms=500_000 - DELAY + 5_000)
    driver.clock.now += 14_600
    assert driver.plan() is None
    assert driver.plan() is None
    assert [wait_s for _, wait_s in FakeLog.waits] == [0.4]
    driver.clock.now += 400
    assert driver.plan() is not None


@pytest.mark.parametrize("of_a_clock", [True, False])
def test_a_run_to_the_end_of_its_input_or_by_a_clock_does_not_wait(
    settings: PackedSettings, of_a_clock: bool
) -> None:
    driver = Driver(msgspec.structs.replace(settings, waits=not of_a_clock))
    driver.run()
    if not of_a_clock:
        driver.reader.prepareForTriggerAvailableNow()
    assert driver.plan() is None and driver.plan() is None
    assert FakeLog.waits == []


def test_a_leader_that_is_held_up_asks_no_log_and_goes_on_when_it_may(
    settings: PackedSettings,
) -> None:
    driver = Driver(settings)
    driver.run()
    folder = Path(settings.checkpoint)
    FakeLog.ends = {("pay", 0): 3, ("pay", 1): 0}
    handover.set_pace(folder, 900, driver.clock.now + 60_000)
    began = driver.clock.now
    assert driver.plan() is None, "at once"
    assert driver.clock.now == began
    assert driver.plan() is not None
    assert began + 880 <= driver.clock.now <= began + 920 and FakeLog.waits == []


def test_a_shadow_sees_what_its_leader_does_while_it_waits(settings: PackedSettings) -> None:
    driver = Driver(settings)
    driver.run()
    folder = Path(settings.checkpoint)
    leader = folder / "leader"
    handover.follow(folder, leader)
    assert driver.plan() is None
    began = driver.clock.now
    assert driver.plan() is None
    assert driver.clock.now - began >= 1000 * source.LONGEST_WAIT_S, "it is kept"
    end = SourceOffset(1, {"pay": {"0": 2, "1": 1}}, [77], 88)
    ledger = Ledger(leader)
    ledger.begin(end)
    ledger.write(EpochEntry(1, end, end, [], {}, 0))
    assert driver.plan() == end


def test_a_recorded_end_is_issued_again_whatever_the_log_holds_now(
    settings: PackedSettings,
) -> None:
    driver = Driver(settings)
    driver.run()
    recorded = SourceOffset(1, {"pay": {"0": 2, "1": 1}}, [77], 88)
    path = driver.ledger.replayed / "offsets" / "1"
    path.parent.mkdir(parents=True)
    path.write_text(f"v1\n{{}}\n{msgspec.json.encode(recorded).decode()}")
    assert driver.plan() == recorded


def test_tables_are_read_to_their_end_before_the_first_event(settings: PackedSettings) -> None:
    driver = Driver(msgspec.structs.replace(settings, tables={"shops": "shops"}))
    FakeLog.ends = {("pay", 0): 3, ("pay", 1): 0, ("shops", 0): 25}
    driver.at = driver.reader.initialOffset() | {"tables": {"shops": {"0": 0}}}
    for read in (10, 20):
        driver.run(FEW)
        assert driver.at["offsets"] == {"pay": {"0": 0, "1": 0}}
        assert driver.at["tables"] == {"shops": {"0": read}}
    driver.run(FEW)
    assert (driver.at["offsets"]["pay"]["0"], driver.at["tables"]["shops"]["0"]) == (3, 25)
    FakeLog.ends[("shops", 0)] = 99
    FakeLog.ends[("pay", 0)] = 4
    driver.run(FEW)
    assert (driver.at["offsets"]["pay"]["0"], driver.at["tables"]["shops"]["0"]) == (4, 35)


def test_every_shard_gets_a_head_with_the_position_of_the_entry_before(
    settings: PackedSettings,
) -> None:
    driver = Driver(settings)
    first = driver.at
    driver.run(keys=5)
    heads = driver.reader.partitions(first, driver.at)[0].heads
    first, second = shard_labels(2)
    at = [(row.label, row.shard, row.sequence) for row in heads]
    assert at == [(first, 0, HEAD), (second, 1, HEAD)]
    assert msgspec.msgpack.decode(heads[0].blob, type=Head).base == EMPTY
    FakeLog.ends = {("pay", 0): 3, ("pay", 1): 2}
    second = driver.at
    driver.run()
    parts = driver.reader.partitions(second, driver.at)
    head = msgspec.msgpack.decode(parts[0].heads[0].blob, type=Head)
    assert (head.base, head.keys, head.epoch) == (Position(1, "t"), 5, 1)
    assert [len(part.heads) for part in parts] == [2, 0]


def test_rows_of_tables_go_before_events_and_tasks_after_each_other(
    settings: PackedSettings,
) -> None:
    driver = Driver(msgspec.structs.replace(settings, tables={"shops": "shops"}))
    FakeLog.ends = {("pay", 0): 3, ("pay", 1): 2, ("shops", 0): 2}
    begin = driver.at | {"tables": {"shops": {"0": 0}}}
    end = replace_offsets(begin)
    parts = driver.reader.partitions(begin, end)
    assert [(part.of_tables, part.index) for part in parts] == [(True, 0), (False, 0), (False, 1)]
    firsts = [part.first for part in parts]
    assert TABLES == firsts[0] < EVENTS == firsts[1] < firsts[2]


def replace_offsets(begin: dict[str, Any]) -> dict[str, Any]:
    until = SourceOffset.from_json(begin)
    changed = msgspec.structs.replace(
        until, epoch=0, offsets={"pay": {"0": 3, "1": 2}}, tables={"shops": {"0": 2}}
    )
    return changed.to_json()


def test_records_of_several_partitions_that_come_together_are_told_apart() -> None:
    columns = {"topic": list("aabbb"), "partition": [0, 1, 1, 1, 0], "offset": [7, 8, 9, 10, 11]}
    batch = pa.RecordBatch.from_pydict(columns)
    parts = [part.column("offset").to_pylist() for part in source.cut(batch)]
    assert parts == [[7], [8], [9, 10], [11]]
    assert list(source.cut(batch.slice(0, 0))) == []


def test_batches_of_one_partition_run_together_until_they_are_large() -> None:
    def batch(partition: int, offset: int, size: int = 1) -> pa.RecordBatch:
        columns = {"topic": ["a"], "partition": [partition], "offset": [offset]}
        return pa.RecordBatch.from_pydict({**columns, "value": [bytes(size)]})

    given = [batch(0, 1), batch(0, 2), batch(1, 3), batch(1, 4, source.RUN_BYTES), batch(1, 5)]
    found = [[each["offset"][0].as_py() for each in run] for run in source.runs(given)]
    assert found == [[1, 2], [3, 4], [5]]
    assert list(source.runs([])) == []
