"""Which offsets Spark reads as Parquet and which come as Arrow: every one in one of the two."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.config import CatchwaterError
from catchwater.replay import history
from catchwater.replay.history import Parts, split
from catchwater.replay.offsets import HistoryLost
from catchwater.replay.options import RANGES, SourceOptions, parse_options, parse_values
from catchwater.replay.pin import ReadPin
from catchwater.replay.plan import (
    CHUNK,
    SEGMENT,
    Aborted,
    Missing,
    OffsetRange,
    PlanRange,
    Quota,
    Slice,
    TableFiles,
    slices_of,
    without,
)
from catchwater.values.settings import identity

LEAST = {"kafka.bootstrap.servers": "h:1", "subscribe": "t"}


def piece(
    first: int, stop: int, of: tuple[int, int] | None = None, partition: int = 0, schema: str = ""
) -> PlanRange:
    """A range of a chunk; or, with `of`, of the segment with these offsets."""
    kind = SEGMENT if of else CHUNK
    place = PlanRange("t", partition, kind, "file:///s", 0, 1, first, stop - 1)
    if of is None:
        return place
    url = f"file:///{partition}/{of[0]}.parquet"
    return replace(
        place, parquet=url, parquet_schema=schema, parquet_first=of[0], parquet_stop=of[1]
    )


def sliced(*ranges: PlanRange, start: int = 0, end: int = 100, aborted: Any = ()) -> list[Slice]:
    return slices_of([OffsetRange("t", 0, start, end)], ranges, aborted)


def always(each: PlanRange) -> bool:
    return True


SEGMENTS = (piece(0, 20, (0, 50)), piece(20, 50, (0, 50)), piece(50, 80, (50, 80)), piece(80, 100))


def test_whole_segments_are_parquet_and_what_is_not_packed_is_not() -> None:
    files, rest = split(sliced(*SEGMENTS), always)
    assert files == ["file:///0/0.parquet", "file:///0/50.parquet"]
    assert rest == [OffsetRange("t", 0, 80, 100)]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        # In the middle of a piece, and where one begins or ends.
        (
            5,
            100,
            Parts(
                ["file:///0/50.parquet"], [OffsetRange("t", 0, 5, 50), OffsetRange("t", 0, 80, 100)]
            ),
        ),
        (20, 80, Parts(["file:///0/50.parquet"], [OffsetRange("t", 0, 20, 50)])),
        (0, 79, Parts(["file:///0/0.parquet"], [OffsetRange("t", 0, 50, 79)])),
        (0, 20, Parts([], [OffsetRange("t", 0, 0, 20)])),
    ],
)
def test_a_segment_that_is_wanted_in_part_is_read_as_arrow(
    start: int, end: int, expected: Parts
) -> None:
    assert split(sliced(*SEGMENTS, start=start, end=end), always) == expected


def test_a_segment_that_an_aborted_transaction_reaches_into_is_read_as_arrow() -> None:
    aborted = [Aborted("t", 0, 7, 45, 55)]
    assert split(sliced(*SEGMENTS, aborted=aborted), always) == Parts(
        [], [OffsetRange("t", 0, 0, 100)]
    )
    aborted = [Aborted("t", 0, 7, 55, 85)]
    assert split(sliced(*SEGMENTS, aborted=aborted), always) == Parts(
        ["file:///0/0.parquet"], [OffsetRange("t", 0, 50, 100)]
    )


def test_what_the_leaders_serve_is_left_to_them() -> None:
    slices = [Slice("t", 0, 3, 6), Slice("t", 0, 6, 9), Slice("t", 1, 9, 12), Slice("u", 1, 12, 13)]
    rest = [OffsetRange("t", 0, 3, 9), OffsetRange("t", 1, 9, 12), OffsetRange("u", 1, 12, 13)]
    assert split(slices, always) == Parts([], rest)


@dataclass(frozen=True)
class Stored:
    """Consecutive offsets of a partition: a segment in pieces, or a chunk."""

    sizes: tuple[int, ...]
    is_segment: bool
    is_readable: bool


STORED = st.builds(
    Stored, st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple), st.booleans(),
    st.booleans(),
)  # fmt: skip
SPANS = st.lists(st.tuples(st.integers(0, 15), st.integers(1, 5)), max_size=2)
"""First offset and number of offsets."""


@given(st.lists(st.lists(STORED, max_size=5), min_size=1, max_size=3), SPANS, SPANS)
def test_every_wanted_offset_is_read_once_and_only_whole_clean_segments_are_parquet(
    partitions: list[list[Stored]],
    unwanted: list[tuple[int, int]],
    void_spans: list[tuple[int, int]],
) -> None:
    ranges, held, readable = [], dict[str, set[tuple[int, int]]](), set[str]()
    ends = []
    for number, stored in enumerate(partitions):
        at = 0
        for each in stored:
            of = (at, at + sum(each.sizes))
            for size in each.sizes:
                whole = of if each.is_segment else None
                ranges.append(piece(at, at + size, whole, partition=number))
                at += size
            if each.is_segment:
                url = ranges[-1].parquet
                held[url] = {(number, offset) for offset in range(*of)}
                if each.is_readable:
                    readable.add(url)
        ends.append(at)
    wanted = []
    for number, end in enumerate(ends):
        at = 0
        for first, size in [*sorted(unwanted), (end, 0)]:
            if at < min(first, end):
                wanted.append(OffsetRange("t", number, at, min(first, end)))
            at = max(at, first + size)
    aborted = [Aborted("t", 0, 9, first, first + size) for first, size in void_spans]
    void = {(0, offset) for each in aborted for offset in range(*each[3:])}
    void |= {(0, each.last_offset) for each in aborted}

    files, rest = split(slices_of(wanted, ranges, aborted), lambda each: each.parquet in readable)

    asked = {(w.partition, offset) for w in wanted for offset in range(w.start, w.end)}
    expected = [url for url in held if held[url] <= asked and url in readable]
    assert files == [url for url in expected if not held[url] & void]
    read = [each for url in files for each in sorted(held[url])]
    read += [(w.partition, offset) for w in rest for offset in range(w.start, w.end)]
    assert sorted(read) == sorted(asked)
    assert all(a[:2] != b[:2] or a.end < b.start for a, b in pairwise(rest))


def settings(**options: str) -> SourceOptions:
    return parse_options({**LEAST, **options})


def test_typed_values_are_taken_from_parquet_of_the_same_schema_only() -> None:
    typed = settings(valueFormat="json", valueSchema="a long")
    own = piece(0, 5, (0, 5), schema=identity(typed.values))
    assert history._is_readable(own, typed)
    assert history._is_readable(own, settings())
    for other in ("", identity(settings(valueFormat="json", valueSchema="a int").values)):
        assert not history._is_readable(piece(0, 5, (0, 5), schema=other), typed)


def test_the_fields_that_are_wanted_are_no_part_of_a_schema_s_identity() -> None:
    given_ = {"valueformat": "json", "valueschema": "a long, b long"}
    whole = parse_values(given_, ("value",))
    assert identity(whole) == identity(parse_values({**given_, "valuefields": "b"}, ("value",)))
    assert identity(whole) != identity(
        parse_values({**given_, "valueschema": "a long"}, ("value",))
    )


def test_a_signed_url_is_not_for_spark_s_reader() -> None:
    there = piece(0, 5, (0, 5))
    signed = replace(there, parquet="https://bucket/key?X-Amz-Signature=x")
    assert history._is_readable(there, settings())
    assert not history._is_readable(signed, settings())


def test_a_path_is_no_pattern_and_not_quoted() -> None:
    assert history._path("file:///a%20b/%5Bx%5D/c*{d}?") == r"file:///a b/\[x\]/c\*\{d\}"
    assert history._path("file:///a%3Fb.parquet") == r"file:///a\?b.parquet"


class Planned:
    """A subscription of one whole segment and a chunk; `history` with it, but for Spark."""

    def __init__(self, quota: Quota | None) -> None:
        self.quota = quota
        self.closed = 0
        self.held: list[str] = []
        self.parts: list[Parts] = []
        self.found: list[TableFiles] = []
        self.taken: list[list[TableFiles]] = []
        self.failure: CatchwaterError | None = None
        self.older: list[Missing] = []
        self.are_records = False
        self.absence = "The log does not hold"

    def wanted(self) -> list[OffsetRange]:
        return []

    def before_start(self, wanted: Any) -> list[Missing]:
        return self.older

    def plan(self, of: Any, older: list[Missing]) -> tuple[list[Slice], ReadPin]:
        assert (of, older) == (self, self.older)
        first = 50 if older else 0
        pieces = [piece(0, 50, (0, 50)), piece(50, 100)]
        kept = [each for each in sliced(*pieces) if each.first >= first]
        return kept, ReadPin("http://c", "p", 9)

    def in_tables(self, missing: list[Missing]) -> tuple[list[Slice], HistoryLost | None]:
        if self.are_records:
            return [Slice(*each, files=("file:///w",)) for each in missing], None
        return [], HistoryLost(missing, "Nowhere", "Ask otherwise.")

    def go_on_without(self, lost: HistoryLost) -> None:
        raise lost

    def close(self) -> None:
        self.closed += 1

    def hold(self, pin: ReadPin, is_needed: Callable[[], bool]) -> Callable[[], None]:
        self.held.append(pin.id)
        return lambda: self.held.remove(pin.id)

    def tables(self, slices: Any) -> list[TableFiles]:
        return self.found

    def frame(self, spark: Any, parts: Parts, tables: Any, *_: Any) -> Any:
        self.parts.append(parts)
        self.taken.append(tables)
        if self.failure:
            raise self.failure
        return type("Frame", (), {})()


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Callable[[Quota | None], Planned]:
    def made(quota: Quota | None) -> Planned:
        log = Planned(quota)
        monkeypatch.setattr(history, "register", lambda spark: None)
        monkeypatch.setattr(history, "Subscription", lambda settings: log)
        monkeypatch.setattr(history, "planned", log.plan)
        monkeypatch.setattr(history, "held", log.hold)
        monkeypatch.setattr(history, "_frame", log.frame)
        return log

    return made


def test_what_a_quota_binds_is_left_to_tasks_that_pay(planned: Any) -> None:
    for quota, files in ((None, ["file:///0/0.parquet"]), (Quota(1000, "http://c"), [])):
        log = planned(quota)
        history.read(None, LEAST)  # type: ignore[arg-type]
        assert log.closed == 1
        assert [parts.files for parts in log.parts] == [files]


def of_table(
    *spans: tuple[int, int, int], values: str = "", malformed: int = 0, left_out: bool = False
) -> TableFiles:
    found = {partition: (first, stop) for partition, first, stop in spans}
    return TableFiles("t", found, ["file:///w"], [], values, malformed, left_out)


def test_what_a_table_has_is_read_from_it_and_the_rest_as_ever(planned: Any) -> None:
    log = planned(None)
    log.found = [of_table((0, 0, 60))]
    history.read(None, LEAST)  # type: ignore[arg-type]
    assert log.taken == [log.found]
    assert log.parts == [Parts([], [OffsetRange("t", 0, 60, 100)])]


def test_what_the_log_has_no_more_is_read_from_the_table_or_named(planned: Any) -> None:
    log = planned(None)
    log.older = [Missing("t", 0, 0, 50)]
    log.found = [of_table((0, 0, 60))]
    history.read(None, LEAST)  # type: ignore[arg-type]
    assert log.taken == [log.found]
    assert log.parts == [Parts([], [OffsetRange("t", 0, 60, 100)])]
    log.held.clear()
    for found, said in (
        ([of_table((0, 10, 60))], "Neither the log nor.*: t-0 offsets 0 to 9"),
        ([of_table((0, 0, 60), left_out=True)], "Neither the log nor.*: t-0 offsets 0 to 49"),
        ([], "The log does not hold: t-0 offsets 0 to 49"),
    ):
        log.found = found
        with pytest.raises(HistoryLost, match=said) as lost:
            history.read(None, LEAST)  # type: ignore[arg-type]
        assert lost.value.hint == "Ask otherwise."
        assert not log.held


def test_what_spark_cannot_read_of_a_table_as_it_is_asked_for_the_source_does(
    planned: Any,
) -> None:
    """As bytes that are decoded, or because a quota binds the query."""
    for quota, found in ((None, [of_table((0, 10, 60))]), (Quota(1, "http://c"), [])):
        log = planned(quota)
        log.older, log.found, log.are_records = [Missing("t", 0, 0, 50)], found, True
        history.read(None, LEAST)  # type: ignore[arg-type]
        rest = [OffsetRange("t", 0, 0, 10), OffsetRange("t", 0, 60, 100)]
        assert log.parts == [Parts([], rest if found else [OffsetRange("t", 0, 0, 100)])]


def test_a_table_is_not_read_where_a_quota_binds(planned: Any) -> None:
    log = planned(Quota(1000, "http://c"))
    log.found = [of_table((0, 0, 60))]
    history.read(None, LEAST)  # type: ignore[arg-type]
    assert log.taken == [[]]


@given(
    st.lists(st.integers(0, 100), min_size=2, max_size=12, unique=True),
    st.tuples(st.integers(0, 100), st.integers(0, 100)),
)
def test_every_offset_is_in_the_table_or_in_the_rest(
    ends: list[int], span: tuple[int, int]
) -> None:
    slices = [Slice("t", 0, first, stop) for first, stop in pairwise(sorted(ends))]
    first, stop = sorted(span)
    left = without(slices, [of_table((0, first, stop))] if first < stop else [])
    wanted = {at for each in slices for at in range(each.first, each.stop)}
    rest = [at for each in left for at in range(each.first, each.stop)]
    assert sorted(wanted - set(range(first, stop))) == rest
    other = Slice("u", 0, 0, 5)
    assert without([other], [of_table((0, 0, 5))]) == [other]


def test_a_table_stands_for_what_the_source_would_give_or_not_at_all() -> None:
    def stands(each: TableFiles, **given_: str) -> bool:
        return history._stands_for(each, parse_options({**LEAST, **given_}))

    json_of = {"valueFormat": "json", "valueSchema": "a long"}
    typed = identity(settings(**json_of).values)
    assert stands(of_table()) and not stands(of_table(values=typed))
    assert stands(of_table(values=typed), **json_of) and not stands(of_table(), **json_of)
    bad = of_table(values=typed, malformed=1)
    assert not stands(bad, **json_of) and stands(bad, **json_of, onMalformed="null")
    aborted = of_table(left_out=True)
    committed = {"kafka.isolation.level": "read_committed"}
    assert not stands(aborted) and stands(aborted, **committed)


def test_the_pin_is_held_until_the_frame_is_released_or_could_not_be_made(planned: Any) -> None:
    log = planned(None)
    frame = history.read(None, LEAST)  # type: ignore[arg-type]
    assert log.held == ["p"]
    for _ in range(2):
        history.release(frame)
        assert log.held == []
    log.failure = CatchwaterError("The frame cannot be made.")
    with pytest.raises(CatchwaterError, match="cannot be made"):
        history.read(None, LEAST)  # type: ignore[arg-type]
    assert log.held == []


def test_the_rest_is_asked_for_by_exact_offsets() -> None:
    rest = [OffsetRange("t", 0, 5, 9), OffsetRange("t", 0, 12, 13), OffsetRange("u", 3, 0, 7)]
    options = {**LEAST, "StartingOffsets": "earliest", "endingTimestamp": "7", "columns": "offset"}
    named = {**history._without_place(options), RANGES: history._ranges_json(rest)}
    assert set(named) == {"kafka.bootstrap.servers", "columns", RANGES}
    assert json.loads(named[RANGES]) == {"t": {"0": [[5, 9], [12, 13]]}, "u": {"3": [[0, 7]]}}
    assert parse_options(named).ranges == tuple(rest)
