"""The data source's own decisions, against a scripted subscription; no session is started."""

import inspect
import os
import pickle
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows, ReadMinRows

from catchwater.clock import SYSTEM, Clock, ManualClock
from catchwater.replay import pin as pin_module
from catchwater.replay import read as read_module
from catchwater.replay import source as source_module
from catchwater.replay.options import COLUMNS, BadOption, parse_options
from catchwater.replay.pin import ReadPin
from catchwater.replay.plan import OffsetRange, Slice, Task
from catchwater.replay.read import ReadSettings, arrow_schema
from catchwater.replay.source import (
    BatchReader,
    CatchwaterSource,
    SourcePartition,
    StreamReader,
    in_two_lines,
    loaded,
)

LEAST = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


class Api:
    """A control API that takes pins."""

    pins: ClassVar[dict[str, Any]] = {}

    def __init__(self, url: str, **_: object) -> None:
        assert url == "http://c"

    def set_pin(self, pin_id: str, content: Any) -> None:
        self.pins[pin_id] = content


class Subscription:
    """A topic with one partition of `end` records."""

    end = 100

    def __init__(self, options: Any, clock: Clock = SYSTEM) -> None:
        self.options = options
        self.clock = clock
        self.checked: list[Any] = []
        self.waits: list[Any] = []
        self.coming: list[int] = []
        self.asked = 0

    def wait(self, ends: dict[Any, int], timeout_s: float) -> bool:
        """No record comes unless it is `coming`; the clock goes on."""
        self.waits.append((dict(ends), timeout_s))
        if self.coming:
            Subscription.end += self.coming.pop(0)
            return True
        self.clock.pause(timeout_s)
        return False

    def starting(self, default: int) -> dict[Any, int]:
        return {("t", 0): 0 if default == -2 else self.end}

    def latest(self) -> dict[Any, int]:
        self.asked += 1
        return {("t", 0): self.end}

    ending = latest

    def check_present(self, start: Any, now: Any) -> None:
        self.checked.append((dict(start), dict(now)))

    def wanted(self) -> list[OffsetRange]:
        return [OffsetRange("t", 0, 0, self.end)] if self.end else []

    def slices(self, wanted: list[OffsetRange]) -> list[Slice]:
        return [Slice(*each) for each in wanted]

    def cut(self, slices: list[Slice]) -> list[Task]:
        return [Task(tuple(slices))] if slices else []

    def tasks(self, start: dict[Any, int], end: dict[Any, int]) -> list[Task]:
        first, stop = start["t", 0], end["t", 0]
        return self.cut(self.slices([OffsetRange("t", 0, first, stop)] if first < stop else []))

    def control_url(self) -> str:
        return "http://c"

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "Subscription", Subscription)
    monkeypatch.setattr(Subscription, "end", 100)
    monkeypatch.setattr(pin_module, "Control", Api)
    monkeypatch.setattr(Api, "pins", {})


def stream(**options: str) -> StreamReader:
    reader = CatchwaterSource({**LEAST, **options}).streamReader(None)
    assert isinstance(reader, StreamReader)
    return reader


def test_spark_s_types_and_arrow_s_are_the_same() -> None:
    for options in ({"includeHeaders": "true"}, {"columns": "value,timestamp"}, {}):
        source = CatchwaterSource({**LEAST, **options})
        names = loaded(source.options).columns
        fields = source.schema()
        assert fields.names == list(names)
        assert to_arrow_schema(fields, timezone="UTC").equals(arrow_schema(names))
    assert len(COLUMNS) == 8


def test_a_batch_reads_from_the_beginning_to_the_end() -> None:
    reader = CatchwaterSource(LEAST).reader(None)
    assert isinstance(reader, BatchReader)
    (partition,) = reader.partitions()
    ((pin_id, content),) = Api.pins.items()
    pin = ReadPin("http://c", pin_id, 600_000)
    assert partition == SourcePartition(Task((Slice("t", 0, 0, 100),)), "http://c", pin)
    assert content["positions"] == [{"topic": "t", "partition": 0, "offset": 0}]
    assert pickle.loads(pickle.dumps(partition)) == partition


def test_a_batch_renews_its_pin_while_it_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    def noted(batches: Any, pin: Any) -> Any:
        seen.append(pin)
        return batches

    monkeypatch.setattr(source_module, "renewed", noted)
    reader = CatchwaterSource(LEAST).reader(None)
    (partition,) = reader.partitions()
    reader.read(partition)
    assert seen == [partition.pin] and partition.pin is not None


def test_a_stream_takes_no_pin() -> None:
    (partition,) = stream().partitions({"t": {"0": 5}}, {"t": {"0": 9}})
    assert partition.pin is None and Api.pins == {}


def test_nothing_to_read_is_one_task_without_slices() -> None:
    Subscription.end = 0
    reader = CatchwaterSource(LEAST).reader(None)
    (partition,) = reader.partitions()
    assert list(reader.read(partition)) == []


def test_a_stream_begins_at_the_end() -> None:
    assert stream().initialOffset() == {"t": {"0": 100}}


def test_a_limit_is_given_by_the_option_and_obeyed_as_handed_in() -> None:
    assert stream().getDefaultReadLimit() == ReadAllAvailable()
    limited = stream(maxOffsetsPerTrigger="30")
    assert limited.getDefaultReadLimit() == ReadMaxRows(30)
    start = {"t": {"0": 50}}
    assert limited.latestOffset(start, ReadMaxRows(30)) == {"t": {"0": 80}}
    assert limited.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 100}}


MINUTE_MS = 60_000
AT_50 = {"t": {"0": 50}}


def waiting(clock: Clock, **options: str) -> StreamReader:
    least = {"minOffsetsPerTrigger": "20"}
    return StreamReader(parse_options({**LEAST, **least, **options}), clock)


def test_a_micro_batch_waits_for_the_least_number_of_offsets() -> None:
    clock = ManualClock()
    reader = waiting(clock)
    assert reader.getDefaultReadLimit() == ReadMinRows(20)
    assert reader.latestOffset({"t": {"0": 99}}, ReadMinRows(20)) == {"t": {"0": 100}}, "the first"
    Subscription.end = 119
    at_100 = {"t": {"0": 100}}
    assert reader.latestOffset(at_100, ReadMinRows(20)) is at_100
    assert reader.reportLatestOffset() == {"t": {"0": 119}}, "what waits is seen"
    Subscription.end = 120
    assert reader.latestOffset(at_100, ReadMinRows(20)) == {"t": {"0": 120}}


@pytest.mark.parametrize(
    ("option", "delay_ms"), [({}, 15 * MINUTE_MS), ({"maxTriggerDelay": "30s"}, 30_000)]
)
def test_it_waits_no_longer_than_allowed_since_the_last_one(
    option: dict[str, str], delay_ms: int
) -> None:
    clock = ManualClock()
    reader = waiting(clock, **option)
    reader.latestOffset(AT_50, ReadMinRows(20))
    for _ in range(2):
        Subscription.end += 1
        start = {"t": {"0": Subscription.end - 1}}
        clock.advance(delay_ms - 1)
        assert reader.latestOffset(start, ReadMinRows(20)) == start
        clock.advance(1)
        assert reader.latestOffset(start, ReadMinRows(20)) == {"t": {"0": Subscription.end}}


def test_a_micro_batch_that_came_early_begins_the_wait_anew() -> None:
    clock = ManualClock()
    reader = waiting(clock, maxTriggerDelay="30s")
    for _ in range(2):
        assert reader.latestOffset(AT_50, ReadMinRows(20)) == {"t": {"0": 100}}
        clock.advance(20_000)
    at_99 = {"t": {"0": 99}}
    assert reader.latestOffset(at_99, ReadMinRows(20)) == at_99
    clock.advance(10_000)
    assert reader.latestOffset(at_99, ReadMinRows(20)) == {"t": {"0": 100}}


def test_a_least_and_a_most_hold_together() -> None:
    reader = waiting(ManualClock(), maxOffsetsPerTrigger="30")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(30)
    assert reader.latestOffset(AT_50, limit) == {"t": {"0": 80}}
    at_80, at_81 = {"t": {"0": 80}}, {"t": {"0": 81}}
    assert reader.latestOffset(at_80, limit) == {"t": {"0": 100}}
    assert reader.latestOffset(at_81, limit) == at_81


def test_who_asks_for_everything_is_not_kept_waiting() -> None:
    reader = waiting(ManualClock())
    for _ in range(2):
        assert reader.latestOffset({"t": {"0": 99}}, ReadAllAvailable()) == {"t": {"0": 100}}


def test_available_now_ends_at_the_end_whatever_the_least_number_is() -> None:
    reader = waiting(ManualClock(), maxOffsetsPerTrigger="30")
    reader.prepareForTriggerAvailableNow()
    at = {"t": {"0": 1}}
    seen = []
    while (end := reader.latestOffset(at, reader.getDefaultReadLimit())) != at:
        seen.append(end["t"]["0"])
        at = end
    assert seen == [31, 61, 91, 100]


END = {"t": {"0": 100}}
LONG_S = 40


def idle(**options: str) -> tuple[StreamReader, Subscription, ManualClock]:
    """A stream that has just been told that there is nothing more."""
    clock = ManualClock()
    reader = StreamReader(parse_options({**LEAST, **options}), clock)
    assert reader.latestOffset(END, ReadAllAvailable()) is END
    log = reader._subscription
    assert isinstance(log, Subscription) and log.waits == [], "the first answer comes at once"
    return reader, log, clock


@pytest.mark.parametrize(("option", "wait_s"), [({}, 0.1), ({"catchwater.wait": "1s"}, 1.0)])
def test_who_asks_again_and_again_waits_and_the_log_is_asked_once_a_second(
    option: dict[str, str], wait_s: float
) -> None:
    reader, log, clock = idle(**option)
    began_s = clock.monotonic_s()
    while clock.monotonic_s() < began_s + LONG_S:
        assert reader.latestOffset(END, ReadAllAvailable()) is END
        clock.advance(10)  # as Spark does
    assert set(map(str, log.waits)) == {str(({("t", 0): 100}, wait_s))}
    assert len(log.waits) <= LONG_S / wait_s and log.asked <= LONG_S + 2


def test_a_record_ends_the_wait() -> None:
    reader, log, clock = idle()
    log.coming = [7]
    assert reader.latestOffset(END, ReadAllAvailable()) == {"t": {"0": 107}}
    assert clock.monotonic_s() == ManualClock().monotonic_s()


def test_who_comes_back_by_a_trigger_of_its_own_is_not_kept() -> None:
    reader, log, clock = idle()
    for _ in range(3):
        clock.advance(200)
        assert reader.latestOffset(END, ReadAllAvailable()) is END
    assert log.waits == []


def test_available_now_waits_for_nothing() -> None:
    reader, log, _ = idle()
    reader.prepareForTriggerAvailableNow()
    assert reader.latestOffset(END, ReadAllAvailable()) is END
    assert log.waits == []


def test_a_stream_has_no_end() -> None:
    for end in (
        {"endingOffsets": '{"t": {"0": 9}}'},
        {"endingOffsets": "latest"},  # as Spark's own source refuses it
        {"endingTimestamp": "5"},
    ):
        with pytest.raises(BadOption, match="A streaming query has no end"):
            stream(**end)
    stream()


def test_progress_reports_the_end_of_the_log() -> None:
    reader = stream()
    assert reader.reportLatestOffset() is None
    reader.latestOffset({"t": {"0": 50}}, ReadMaxRows(10))
    assert reader.reportLatestOffset() == {"t": {"0": 100}}


def test_available_now_reads_nothing_that_came_later() -> None:
    reader = stream()
    reader.prepareForTriggerAvailableNow()
    Subscription.end = 500
    start = {"t": {"0": 50}}
    assert reader.latestOffset(start, ReadAllAvailable()) == {"t": {"0": 100}}
    assert reader.latestOffset({"t": {"0": 100}}, ReadMaxRows(10)) == {"t": {"0": 100}}


def test_a_micro_batch_is_planned_between_its_offsets() -> None:
    reader = stream()
    (partition,) = reader.partitions({"t": {"0": 50}}, {"t": {"0": 70}})
    assert partition.task == Task((Slice("t", 0, 50, 70),))
    assert reader.partitions({"t": {"0": 50}}, {"t": {"0": 50}}) == []
    reader.stop()


def test_a_task_reads_as_the_options_say(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(read_module, "read_task", lambda *given: iter(seen.append(given) or ()))
    options = {"columns": "value", "failOnDataLoss": "false"}
    reader = stream(**options, **{"kafka.isolation.level": "read_committed"})
    task = Task(())
    assert list(reader.read(SourcePartition(task, "http://c"))) == []
    assert seen == [(task, ReadSettings("h:1", ("value",), "http://c", True, False))]


class Refuses:
    """As a reader of ours."""

    @in_two_lines
    def plan(self, start: object, limit: object) -> None:
        raise BadOption("no such offset")

    @in_two_lines
    def read(self, *, partition: int) -> Iterator[int]:
        yield partition
        raise BadOption("no such record")

    @in_two_lines
    def fail(self) -> None:
        raise ValueError("a mistake of ours, whose traceback is of use")


def test_spark_is_to_tell_an_error_of_ours_without_the_traceback_of_its_own_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(ValueError):
        Refuses().fail()
    assert not os.environ["SPARK_HIDE_TRACEBACK"]
    with pytest.raises(BadOption):
        Refuses().plan(1, 2)
    assert os.environ["SPARK_HIDE_TRACEBACK"]
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    read = Refuses().read(partition=7)
    assert next(read) == 7 and not os.environ["SPARK_HIDE_TRACEBACK"]
    with pytest.raises(BadOption):
        next(read)
    assert os.environ["SPARK_HIDE_TRACEBACK"]
    assert len(inspect.signature(Refuses().plan).parameters) == 2, "Spark counts them"
