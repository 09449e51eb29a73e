"""A task's records from files and from a scripted leader: all of them, once, or a named error."""

from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest

from catchwater.clock import Clock
from catchwater.objects import urls
from catchwater.objects.base import ObjectMissing
from catchwater.replay import read as read_module
from catchwater.replay.control import Plan
from catchwater.replay.offsets import HistoryLost
from catchwater.replay.options import COLUMNS
from catchwater.replay.plan import CHUNK, SEGMENT, Missing, OffsetRange, PlanRange, Slice, Task
from catchwater.replay.read import ROWS, RangeDamaged, ReadSettings, arrow_schema, read_task
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import RequestTimedOut
from catchwater.wire.errors import ErrorCode
from catchwater.wire.fetch import Fetched
from catchwater.wire.security.settings import Security

SETTINGS = ReadSettings("h:1", COLUMNS)


def batch(count: int, base_offset: int = 0, timestamp: int = 1000) -> bytes:
    records = [(b"k", b"%d" % (base_offset + n), timestamp, ()) for n in range(count)]
    return encode_batch(records, base_offset=base_offset)


def stored(
    folder: Path, kind: str, data: bytes, base: int, last: int, first: int = 0, stop: int = 10**9
) -> Slice:
    """A file with something before and after the range, and the slice that reads the range."""
    path = folder / f"{kind}-{base}"
    path.write_bytes(b"before" + data + b"after")
    where = PlanRange("t", 3, kind, path.as_uri(), 6, len(data), base, last)
    return Slice("t", 3, max(first, base), min(stop, last + 1), where)


def offsets(slices: Sequence[Slice], settings: ReadSettings = SETTINGS) -> list[int]:
    found = read_task(Task(tuple(slices)), settings)
    return [offset for rows in found for offset in rows["offset"].to_pylist()]


def test_columns_are_those_of_spark_s_kafka_source(tmp_path: Path) -> None:
    (rows,) = read_task(Task((stored(tmp_path, SEGMENT, batch(2, 5), 5, 6),)), SETTINGS)
    assert rows.schema == arrow_schema(COLUMNS)
    assert rows.schema.names == list(COLUMNS)
    first = rows.slice(0, 1).to_pylist()[0]
    assert first.pop("timestamp").timestamp() == 1.0
    assert first == {
        "key": b"k",
        "value": b"5",
        "topic": "t",
        "partition": 3,
        "offset": 5,
        "timestampType": 0,
        "headers": None,
    }


def test_columns_that_are_not_in_the_records_can_stand_alone(tmp_path: Path) -> None:
    task = Task((stored(tmp_path, SEGMENT, batch(2, 5), 5, 6),))
    (rows,) = read_task(task, ReadSettings("h:1", ("topic", "partition")))
    assert rows.to_pylist() == [{"topic": "t", "partition": 3}] * 2


def test_a_chunk_is_numbered_and_a_segment_carries_its_offsets(tmp_path: Path) -> None:
    chunk = stored(tmp_path, CHUNK, batch(2) + batch(3), 100, 104)
    segment = stored(tmp_path, SEGMENT, batch(2, 105) + batch(1, 107), 105, 107)
    assert offsets([chunk, segment]) == list(range(100, 108))


def test_only_the_slice_is_read(tmp_path: Path) -> None:
    assert offsets([stored(tmp_path, CHUNK, batch(9), 100, 108, 102, 105)]) == [102, 103, 104]


def test_spark_gets_batches_of_ten_thousand_rows(tmp_path: Path) -> None:
    where = stored(tmp_path, CHUNK, batch(25_000), 0, 24_999)
    sizes = [rows.num_rows for rows in read_task(Task((where,)), SETTINGS)]
    assert sizes == [ROWS, ROWS, 5_000]


def test_many_small_ranges_are_put_together(tmp_path: Path) -> None:
    counts = [300, 9_000, 700, 1, 12_000, 5, 6]
    slices, at = [], 0
    for count in counts:
        slices.append(stored(tmp_path, CHUNK, batch(count), at, at + count - 1))
        at += count
    found = list(read_task(Task(tuple(slices)), SETTINGS))
    assert [rows.num_rows for rows in found] == [10_000, 1, 10_000, 2_000, 11]
    assert [offset for rows in found for offset in rows["offset"].to_pylist()] == list(range(at))


@pytest.mark.parametrize(
    ("data", "base", "last"),
    [
        (batch(3, 10), 10, 14),
        (batch(3, 11), 10, 12),
        (batch(3, 10)[:-1], 10, 12),
        (b"", 10, 12),
        (bytes(80), 10, 12),
    ],
    ids=["too few", "another offset", "cut short", "empty", "zeros"],
)
def test_storage_that_differs_from_the_plan_is_named(
    tmp_path: Path, data: bytes, base: int, last: int
) -> None:
    where = stored(tmp_path, SEGMENT, data, base, last)
    with pytest.raises(RangeDamaged, match=r"t-3") as caught:
        offsets([where])
    assert f"segment-{base} bytes 6 to {6 + len(data)}" in str(caught.value)


def test_damaged_records_are_named_with_file_and_offset(tmp_path: Path) -> None:
    data = bytearray(batch(3, 10) + batch(3, 13))
    data[-1] ^= 1
    with pytest.raises(RangeDamaged, match=r"segment-10 bytes .* offset 13 .* CRC"):
        offsets([stored(tmp_path, SEGMENT, bytes(data), 10, 15)])


def test_a_timestamp_beyond_spark_s_is_an_error_that_says_where(tmp_path: Path) -> None:
    where = stored(tmp_path, SEGMENT, batch(1, 10, 2**62), 10, 10)
    with pytest.raises(Exception, match="t-3 from offset 10 on has a timestamp"):
        offsets([where])
    assert offsets([where], ReadSettings("h:1", ("offset",))) == [10]


class Planner:
    """Stands in for the control API: one newer plan."""

    answer = Plan(())

    def __init__(self, url: str, locations: Sequence[str]) -> None:
        assert (url, locations) == ("http://c", ())

    def plan(self, wanted: Sequence[OffsetRange], *, read_committed: bool) -> Plan:
        assert wanted == [OffsetRange("t", 3, 12, 15)]
        return self.answer


def test_a_chunk_packed_since_the_plan_is_found_by_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = stored(tmp_path, CHUNK, batch(9), 10, 18, 12, 15)
    (tmp_path / "chunk-10").unlink()
    packed = stored(tmp_path, SEGMENT, batch(20, 5), 5, 24)
    assert packed.range is not None
    monkeypatch.setattr(read_module, "Control", Planner)
    monkeypatch.setattr(Planner, "answer", Plan((packed.range,)))
    settings = ReadSettings("h:1", COLUMNS, "http://c")
    assert offsets([gone], settings) == [12, 13, 14]
    monkeypatch.setattr(Planner, "answer", Plan((), (Missing("t", 3, 12, 14),)))
    with pytest.raises(HistoryLost, match="t-3 offsets 12 to 13"):
        offsets([gone], settings)
    with pytest.raises(ObjectMissing):
        offsets([gone])


def slow_to_read(monkeypatch: pytest.MonkeyPatch, pauses: int) -> None:
    """Each range is given only after so many attempts, of 20 ms each by the task's clock."""
    now_s = 0.0

    def pass_s(self: Clock, seconds: float, woken: int | None = None) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(Clock, "pause", pass_s)
    monkeypatch.setattr(read_module.Delays, "monotonic_s", lambda self: now_s)

    def read_range(url: str, offset: int, size: int, *, clock: Clock) -> memoryview:
        for _ in range(pauses):
            clock.pause(0.02)
        return urls.read_range(url, offset, size)

    monkeypatch.setattr(read_module, "read_range", read_range)


def test_a_task_says_when_it_ends_what_repeated_requests_have_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slices = [stored(tmp_path, SEGMENT, batch(2, base), base, base + 1) for base in (10, 12)]
    slow_to_read(monkeypatch, 3)
    assert offsets(slices) == [10, 11, 12, 13]
    assert caplog.text == "", "less than a second is not worth a line"
    monkeypatch.setattr(read_module, "_WORTH_SAYING_S", 0.1)
    assert offsets(slices) == [10, 11, 12, 13]
    assert "The task from t-3 offset 10 on took 0.1 s longer" in caplog.text
    assert "where 6 requests were repeated or held back, 0.0 s for its quota" in caplog.text


def test_a_task_that_fails_says_what_it_has_lost_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    slow_to_read(monkeypatch, 3)
    monkeypatch.setattr(read_module, "_WORTH_SAYING_S", 0.05)
    damaged = stored(tmp_path, SEGMENT, b"x" * 100, 10, 15)
    with pytest.raises(RangeDamaged):
        offsets([damaged])
    assert "where 3 requests were repeated" in caplog.text


class Leader:
    """Stands in for the client: answers in the order given."""

    answers: ClassVar[deque[Fetched]] = deque()
    asked: ClassVar[list[int]] = []
    log_start: ClassVar[int] = 0

    def __init__(
        self, bootstrap: str, client_id: str, timeout_s: float, clock: Clock, security: Security
    ) -> None: ...

    def __enter__(self) -> "Leader":
        return self

    def __exit__(self, *_: object) -> None: ...

    def fetch(self, wanted: dict[tuple[str, int], int], **_: object) -> dict[object, Fetched]:
        ((key, offset),) = wanted.items()
        self.asked.append(offset)
        return {key: self.answers.popleft()} if self.answers else {}

    def list_offsets(self, wanted: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        return dict.fromkeys(wanted, self.log_start)


@pytest.fixture
def leader(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Leader]]:
    monkeypatch.setattr(read_module, "Client", Leader)
    Leader.answers, Leader.asked, Leader.log_start = deque(), [], 0
    yield Leader


def fetched(data: bytes, error: ErrorCode = ErrorCode.NONE) -> Fetched:
    return Fetched(memoryview(data), 100, 0, error)


def test_a_leader_is_asked_until_the_end(leader: type[Leader]) -> None:
    leader.answers += [
        fetched(batch(5, 10) + batch(5, 15)[:-3]),
        fetched(b""),
        fetched(batch(5, 15) + batch(5, 20)),
    ]
    assert offsets([Slice("t", 3, 12, 22)]) == list(range(12, 22))
    assert leader.asked == [12, 15, 15]


def test_a_leader_that_sends_nothing_is_not_waited_for_for_ever(leader: type[Leader]) -> None:
    with pytest.raises(RequestTimedOut, match=r"t-3 should hold offsets up to 21, .* offset 12 on"):
        offsets([Slice("t", 3, 12, 22)])


def test_what_a_leader_has_deleted_is_named(leader: type[Leader]) -> None:
    leader.answers.append(fetched(b"", ErrorCode.OFFSET_OUT_OF_RANGE))
    leader.log_start = 15
    with pytest.raises(HistoryLost, match="t-3 offsets 12 to 14"):
        offsets([Slice("t", 3, 12, 22)])


@pytest.mark.parametrize(("log_start", "expected"), [(15, [15, 16]), (5, []), (99, [])])
def test_it_is_skipped_only_when_allowed(
    leader: type[Leader], log_start: int, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    leader.answers += [fetched(b"", ErrorCode.OFFSET_OUT_OF_RANGE), fetched(batch(5, 15))]
    leader.log_start = log_start
    settings = ReadSettings("h:1", COLUMNS, fail_on_data_loss=False)
    assert offsets([Slice("t", 3, 12, 17)], settings) == expected
    assert "t-3 offsets 12 to" in caplog.text


def test_the_schema_is_what_spark_expects_to_the_type() -> None:
    assert pa.types.is_timestamp(arrow_schema(["timestamp"]).field(0).type)
    assert str(arrow_schema(["timestamp"]).field(0).type) == "timestamp[us, tz=UTC]"
