"""Timestamps are found among any runs, whatever was trimmed or replaced, as by walking them."""

from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.catalog.memory import MemoryCatalog, MemoryDatabase, call_now
from catchwater.catalog.rows import Changes, ObjectRow, PartitionRow, RunRow, Scope, Topic
from catchwater.clock import ManualClock

T1 = b"1" * 16
KEY = (T1, 0)
OBJECT = ObjectRow("wal/a", "chunk", "live", 1, 0)
TIMES = st.integers(-1, 12)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(TIMES, min_size=1, max_size=6)),
        st.tuples(st.just("trim"), st.integers(0, 40)),
        st.tuples(st.just("replace"), st.integers(0, 10), st.integers(1, 4), TIMES),
    ),
    max_size=12,
)


def run_at(first: int, last: int, timestamp: int) -> RunRow:
    return RunRow(*KEY, first, last, OBJECT.key, first, last - first + 1, timestamp, 1)


def append(catalog: MemoryCatalog, runs: list[RunRow], timestamps: list[int]) -> None:
    """One chunk with a run of one record for each timestamp."""
    [before] = catalog.partitions([KEY])
    start = before.high_watermark
    new = [run_at(start + n, start + n, timestamp) for n, timestamp in enumerate(timestamps)]
    runs += new
    size = before.bytes + len(new)
    after = PartitionRow(*KEY, before.log_start, start + len(new), size, runs[0].max_timestamp)
    change = Changes(new, [after], [], [OBJECT])
    catalog.transact(Scope(), lambda seen: (change, None)).result()


def replace(catalog: MemoryCatalog, runs: list[RunRow], at: int, count: int, time: int) -> None:
    """Neighbouring runs become one, of another timestamp, as when compaction drops records."""
    old = runs[at : at + count]
    if old:
        new = run_at(old[0].base_offset, old[-1].last_offset, time)._replace(byte_size=1)
        row = catalog.replace_runs(old, [new], []).result()
        runs[at : at + count] = [new]
        assert row.earliest_timestamp == runs[0].max_timestamp


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_a_timestamp_is_found_as_by_walking(steps: list[tuple[object, ...]]) -> None:
    database = MemoryDatabase(ManualClock(), call_now)
    catalog = MemoryCatalog(database)
    catalog.create_topic(Topic(T1, "t", 1)).result()
    runs: list[RunRow] = []
    for kind, *what in steps:
        if kind == "append":
            append(catalog, runs, *what)  # type: ignore[arg-type]
        elif kind == "replace":
            replace(catalog, runs, *what)  # type: ignore[arg-type]
        else:
            [log_start] = what
            assert isinstance(log_start, int)
            runs = [run for run in runs if run.last_offset >= log_start]
            [row] = catalog.trim({KEY: log_start}).result()
            assert row.earliest_timestamp == (runs[0].max_timestamp if runs else -1)
        for timestamp in range(-1, 14):
            wanted = next((run for run in runs if run.max_timestamp >= timestamp), None)
            assert catalog.run_for_timestamp(KEY, timestamp) == wanted
        assert catalog.runs(KEY, 0) == runs
        assert catalog.partitions([KEY])[0].bytes == sum(run.byte_size for run in runs)
    database.close()


def test_a_timestamp_is_found_among_runs_that_came_before_those_in_front_of_them() -> None:
    """An epoch of a sink is in the catalog at once; the chunks around it are written together."""
    catalog = MemoryCatalog(MemoryDatabase(ManualClock(), call_now))
    catalog.create_topic(Topic(T1, "t", 1)).result()
    for runs in ([run_at(10, 10, 9)], [run_at(5, 9, 6), run_at(11, 20, 7)]):
        change = Changes(runs, objects=[OBJECT])
        catalog.transact(Scope(), lambda seen, change=change: (change, None)).result()
    found = [catalog.run_for_timestamp(KEY, timestamp) for timestamp in (6, 7, 9, 10)]
    assert [run and run.base_offset for run in found] == [5, 10, 10, None]
