"""Rows of a table's files as the records that they were, however they lie in the files."""

import http.server
import threading
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from catchwater.objects.urls import AccessEnded
from catchwater.replay import read as read_module
from catchwater.replay import rows
from catchwater.replay.offsets import HistoryLost
from catchwater.replay.options import COLUMNS, TIMESTAMP_MS
from catchwater.replay.plan import Quota, Slice, TableFiles, Task
from catchwater.replay.quota import Meter
from catchwater.replay.read import RangeDamaged, ReadSettings, read_task
from catchwater.replay.rows import TimeLost
from catchwater.wire.columns import HEADERS_TYPE

SCHEMA = pa.schema(
    [
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
        pa.field("timestamp", pa.timestamp("us", "UTC")),
        pa.field("timestampType", pa.int32()),
        pa.field("key", pa.binary()),
        pa.field("headers", HEADERS_TYPE),
        pa.field("value", pa.binary()),
    ]
)
"""As `log.tables.rows.RAW`, which readers do not know."""
SETTINGS = ReadSettings("h:1", (*COLUMNS, TIMESTAMP_MS), "http://c")
Row = dict[str, Any]


def record(partition: int, offset: int) -> Row:
    """One of all kinds there are, by its offset: without key, value, headers; with empty ones."""
    headers = [None, [], [{"key": "h", "value": b"1"}, {"key": "", "value": None}]]
    return {
        "partition": partition,
        "offset": offset,
        "timestamp": (offset - 5) * 1_001 * 1_000,  # some are before 1970
        "timestampType": offset % 2,
        "key": [None, b"", b"k%d" % offset][offset % 3],
        "headers": headers[offset % 3],
        "value": [None, b"", b"\x00v%d" % offset][offset // 3 % 3],
    }


def written(path: Path, found: Sequence[Row], group: int = 3) -> str:
    table = pa.Table.from_pylist([*found], SCHEMA)
    pq.write_table(table, path, row_group_size=group)
    return f"file://{path}"


def expected(each: Row) -> Row:
    """As the source gives it."""
    millis = each["timestamp"] // 1000
    return {
        **each,
        "topic": "t",
        "timestamp": datetime.fromtimestamp(0, UTC) + (millis * datetime.resolution * 1000),
        TIMESTAMP_MS: millis,
        "headers": each["headers"] or None,
    }


def read(files: Sequence[str], first: int, stop: int, partition: int = 1) -> list[Row]:
    task = Task((Slice("t", partition, first, stop, files=tuple(files)),))
    return [row for batch in read_task(task, SETTINGS) for row in batch.to_pylist()]


PLACES = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 40)), min_size=1, max_size=60, unique=True
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PLACES, st.lists(st.integers(0, 60), max_size=4), st.integers(1, 7), st.data())
def test_every_wanted_record_comes_once_and_in_order(
    tmp_path: Path, places: list[tuple[int, int]], cuts: list[int], group: int, data: Any
) -> None:
    """However rows are spread over files and groups of rows, in whichever order."""
    ends = sorted({0, *(at for at in cuts if at < len(places)), len(places)})
    files = [
        written(tmp_path / f"{n}.parquet", [record(*place) for place in places[at:to]], group)
        for n, (at, to) in enumerate(pairwise(ends))
    ]
    first, stop = sorted(data.draw(st.tuples(st.integers(0, 42), st.integers(0, 42))))
    wanted = [
        record(p, offset) for p, offset in sorted(places) if p == 1 and first <= offset < stop
    ]
    assert read(files, first, stop) == [expected(each) for each in wanted]


def test_one_record_and_none(tmp_path: Path) -> None:
    one = written(tmp_path / "one", [record(1, 7)])
    assert read([one], 7, 8) == [expected(record(1, 7))]
    assert read([one], 8, 9) == [] == read([one], 7, 8, partition=0)
    assert read([written(tmp_path / "none", [])], 0, 9) == []


def test_bytes_that_are_kept_beside_fields_are_the_value(tmp_path: Path) -> None:
    """Whatever a field is called."""
    found = [record(1, n) for n in range(9)]
    table = pa.Table.from_pylist(found, SCHEMA).rename_columns(
        ["_value" if name == "value" else name for name in SCHEMA.names]
    )
    table = table.append_column("value", pa.array(range(9)))
    pq.write_table(table, tmp_path / "f", row_group_size=4)
    assert read([f"file://{tmp_path}/f"], 0, 9) == [expected(each) for each in found]


def test_only_the_columns_that_are_asked_for_are_there(tmp_path: Path) -> None:
    task = Task((Slice("t", 1, 0, 9, files=(written(tmp_path / "f", [record(1, 8)]),)),))
    [rows] = read_task(task, ReadSettings("h:1", ("offset", "topic", "value")))
    assert rows.to_pylist() == [{"offset": 8, "topic": "t", "value": record(1, 8)["value"]}]
    [bundle] = read_task(task, ReadSettings("h:1", COLUMNS, bundled=True))
    assert bundle.num_rows == 1


def test_groups_without_a_wanted_row_are_not_read_nor_paid_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paid: list[int] = []
    monkeypatch.setattr(Meter, "pay", lambda self, size: paid.append(size))
    file = written(tmp_path / "f", [record(1, n) for n in range(30)], group=10)
    assert [row["offset"] for row in read([file], 12, 15)] == [12, 13, 14]
    assert paid == [pq.read_metadata(tmp_path / "f").row_group(1).total_byte_size]
    assert Task((Slice("t", 1, 12, 15, files=(file,)),), Quota(1, "http://c")).stored_bytes > 0


def test_memory_holds_what_is_not_in_turn_yet_alone(tmp_path: Path) -> None:
    """Files in order are given one after the other, before the next is read."""
    files = [
        written(tmp_path / str(n), [record(1, offset) for offset in range(5 * n, 5 * n + 5)], 5)
        for n in range(4)
    ]
    taken: list[int] = []
    wanted = Slice("t", 1, 0, 20, files=tuple(reversed(files)))
    for n, located in enumerate(rows.records_of(wanted, COLUMNS, taken.append)):
        assert located.offsets.tolist() == list(range(5 * n, 5 * n + 5))
        assert len(taken) == n + 1


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(PLACES, st.integers(1, 7), st.data())
def test_the_first_that_is_not_older_is_found_in_any_order_of_times(
    tmp_path: Path, places: list[tuple[int, int]], group: int, data: Any
) -> None:
    times = st.one_of(st.none(), st.integers(0, 20))
    found = [
        {**record(*place), "timestamp": None if (ms := data.draw(times)) is None else ms * 1_000}
        for place in places
    ]
    half = len(found) // 2
    files = tuple(
        written(tmp_path / str(n), part, group)
        for n, part in enumerate((found[:half], found[half:]))
    )
    first, stop = data.draw(st.integers(0, 10)), data.draw(st.integers(20, 42))
    since_ms = data.draw(st.integers(0, 20))
    at = [
        each["offset"]
        for each in found
        if each["partition"] == 1
        and first <= each["offset"] < stop
        and each["timestamp"] is not None
        and each["timestamp"] >= since_ms * 1_000
    ]
    wanted = Slice("t", 1, first, stop, files=files)
    assert rows.first_since(wanted, since_ms) == min(at, default=None)


def test_a_time_that_a_table_cannot_hold_is_named(tmp_path: Path) -> None:
    lost = {**record(1, 8), "timestamp": None}
    file = written(tmp_path / "f", [record(1, 7), lost])
    with pytest.raises(TimeLost, match="offset 8 of t-1"):
        read([file], 0, 9)
    assert len(read([file], 0, 8)) == 1


class Newest:
    """A control API that names the table's files as they are now."""

    found: TableFiles | None = None

    def __init__(self, url: str, **_: object) -> None:
        assert url == "http://c"

    def table_files(
        self, topic: str, wanted: dict[int, tuple[int, int]], *, as_bytes: bool
    ) -> TableFiles | None:
        assert topic == "t" and as_bytes
        return self.found


def test_a_file_that_was_made_one_with_others_meanwhile_is_asked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_module, "Control", Newest)
    merged = written(tmp_path / "merged", [record(1, n) for n in range(9)])
    gone = f"file://{tmp_path}/gone"
    Newest.found = TableFiles("t", {1: (0, 9)}, [], [merged], "", 0, False)
    assert [row["offset"] for row in read([gone], 0, 9)] == list(range(9))
    for spans in ({1: (2, 9)}, {0: (0, 9)}):
        Newest.found = TableFiles("t", spans, [], [merged], "", 0, False)
        with pytest.raises(HistoryLost, match=r"Deleted from .* table .*: t-1 offsets 0 to 8"):
            read([gone], 0, 9)
    Newest.found = None
    with pytest.raises(HistoryLost):
        read([gone], 0, 9)


class Bucket(http.server.ThreadingHTTPServer):
    """The files of a folder by ranges; a URL is good for some requests, as `left` says."""

    def __init__(self, folder: Path, left: dict[str, int]) -> None:
        super().__init__(("127.0.0.1", 0), _Ranges)
        self.folder, self.left = folder, left
        self.asked: list[tuple[str, int]] = []
        """What was asked for: the file, and from which byte on."""

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/{name}?X-Amz-Signature=secret"


class _Ranges(http.server.BaseHTTPRequestHandler):
    server: Bucket

    def do_GET(self) -> None:
        name = self.path.partition("?")[0][1:]
        self.server.left[name] = self.server.left.get(name, 1_000) - 1
        if self.server.left[name] < 0:
            return self._answer(403, b"")
        file = self.server.folder / name.partition("@")[0]
        if not file.exists():
            return self._answer(404, b"")
        data = file.read_bytes()
        begin, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        first = int(begin) if begin else max(0, len(data) - int(last))
        part = data[first : int(last) + 1] if begin else data[first:]
        if not part:
            return self._answer(416, b"", f"bytes */{len(data)}")
        self.server.asked.append((name, first))
        return self._answer(206, part, f"bytes {first}-{first + len(part) - 1}/{len(data)}")

    def _answer(self, status: int, body: bytes, where: str = "") -> None:
        self.send_response(status)
        if where:
            self.send_header("Content-Range", where)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    with Bucket(tmp_path, {}) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_files_in_a_bucket_are_read_by_their_urls(bucket: Bucket) -> None:
    places = [*range(0, 40, 2), *range(1, 40, 2)]
    for n in range(2):
        written(bucket.folder / str(n), [record(1, each) for each in places[20 * n : 20 * n + 20]])
    written(bucket.folder / "none", [])
    found = read([*map(bucket.url, ("0", "1", "none"))], 3, 37)
    assert found == [expected(record(1, n)) for n in range(3, 37)]


def test_what_is_in_a_file_is_asked_once_by_all_slices(bucket: Bucket) -> None:
    found = [
        {**record(p, n), "value": Random(n).randbytes(2_000)} for n in range(100) for p in (1, 2)
    ]
    written(bucket.folder / "f", found, group=50)
    size = (bucket.folder / "f").stat().st_size
    url = bucket.url("f")
    assert [row["offset"] for row in read([url], 0, 100)] == [*range(100)]
    assert len(bucket.asked) == 1 + 4 * 2, "the end, and two parts of each group"
    assert bucket.asked[0] == ("f", size - 2**16)
    bucket.asked.clear()
    assert [row["offset"] for row in read([url], 10, 20)] == [*range(10, 20)]
    assert len(bucket.asked) == 2


@pytest.mark.parametrize("requests", range(2, 9))
def test_a_url_that_ends_meanwhile_is_asked_for_anew_as_often_as_that_brings_something(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, requests: int
) -> None:
    monkeypatch.setattr(read_module, "Control", Newest)
    written(bucket.folder / "f", [record(1, n) for n in range(30)])
    asked: list[int] = []

    def anew(self: Newest, topic: str, wanted: dict[int, tuple[int, int]], **_: object) -> Any:
        asked.append(wanted[1][0])
        name = f"f@{len(asked)}"
        bucket.left[name] = requests
        return TableFiles("t", wanted, [bucket.url(name)], [], "", 0, False)

    monkeypatch.setattr(Newest, "table_files", anew)
    bucket.left["f@0"] = requests
    if requests < 3:  # the end, and a group's two parts
        with pytest.raises(AccessEnded, match="f@1 answered 403"):
            read([bucket.url("f@0")], 0, 30)
        assert asked == [0]
    else:
        found = read([bucket.url("f@0")], 0, 30)
        assert [row["offset"] for row in found] == [*range(30)]
        assert len(asked) > 1 and asked == sorted(set(asked))


def test_a_file_that_is_gone_from_a_bucket_is_asked_for_anew(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_module, "Control", Newest)
    written(bucket.folder / "merged", [record(1, n) for n in range(9)])
    Newest.found = TableFiles("t", {1: (0, 9)}, [], [bucket.url("merged")], "", 0, False)
    assert [row["offset"] for row in read([bucket.url("gone")], 0, 9)] == list(range(9))


def test_what_is_no_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"PAR1 no more")
    with pytest.raises(RangeDamaged, match=r"The table of t, .* offsets 3 to 8 of partition 1"):
        read([f"file://{tmp_path}/f"], 3, 9)
