"""Compaction's rules against a plain model: histories of transactions, tombstones and cleanings."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.log.format.batches import StoredBatch, place
from catchwater.log.format.chunk import marker
from catchwater.log.format.records import open_records
from catchwater.log.format.segment import AbortedTxn
from catchwater.log.keep.clean import Cleaning
from catchwater.wire.arrow import encode_batch
from catchwater.wire.batch import read_header

RETENTION_MS = 100

Value = bytes | None
Change = tuple[bytes, Value]


@dataclass
class Written:
    """A log of batches with final offsets, and what a plain reader of committed records knows."""

    end: int = 0
    batches: list[StoredBatch] = field(default_factory=list)
    aborted: list[AbortedTxn] = field(default_factory=list)
    records: dict[int, Change] = field(default_factory=dict)
    """Offset -> key and value, of everything but control records."""
    void: set[int] = field(default_factory=set)

    def add(self, data: bytes) -> int:
        base = self.end
        placed = place(bytearray(data), base).data
        self.batches.append(StoredBatch(read_header(placed), 0, placed))
        self.end = self.batches[-1].header.last_offset + 1
        return base

    def write(self, changes: list[Change], codec: int, producer: int | None) -> list[int]:
        records = [(key, value, 1000 + self.end, ()) for key, value in changes]
        identity = {} if producer is None else {
            "producer_id": producer, "producer_epoch": 0, "base_sequence": 0, "transactional": True
        }  # fmt: skip
        base = self.add(encode_batch(records, codec=codec, **identity))
        offsets = list(range(base, self.end))
        self.records |= dict(zip(offsets, changes, strict=True))
        return offsets

    def finish(self, producer: int, offsets: list[int], commit: bool) -> None:
        _, data = marker(producer, 0, committed=commit, started_ms=1000 + self.end)
        at = self.add(bytes(data))
        if not commit:
            self.aborted.append(AbortedTxn(producer, offsets[0], at))
            self.void |= set(offsets)


CHANGES = st.lists(
    st.tuples(st.sampled_from([b"a", b"b", b"c", b"d"]), st.sampled_from([None, b"x", b"y"])),
    min_size=1,
    max_size=4,
)
STEPS = st.lists(
    st.tuples(CHANGES, st.sampled_from([0, 4]), st.sampled_from([None, 1, 2]), st.booleans()),
    min_size=1,
    max_size=12,
)


def history(steps: list) -> Written:
    """Each step writes a batch, in a transaction of its producer if it names one."""
    log = Written()
    opened: dict[int, list[int]] = {}
    for changes, codec, producer, ends in steps:
        offsets = log.write(changes, codec, producer)
        if producer is not None:
            opened.setdefault(producer, []).extend(offsets)
            if ends:
                log.finish(producer, opened.pop(producer), commit=len(changes) % 2 == 0)
    for producer, offsets in opened.items():
        log.finish(producer, offsets, commit=True)
    return log


def clean(
    log: Written, batches: list[StoredBatch], dirty: list[StoredBatch], now_ms: int
) -> list[StoredBatch]:
    cleaning = Cleaning(log.aborted, now_ms, RETENTION_MS)
    for batch in dirty:
        cleaning.learn(batch)
    kept = [cleaning.keep(batch) for batch in [*batches, *dirty]]
    return [StoredBatch(each[0], 0, memoryview(each[1])) for each in kept if each is not None]


def left(batches: list[StoredBatch]) -> dict[int, tuple[bytes, bool, int]]:
    found = {}
    for batch in batches:
        if not batch.header.is_control:
            for record in open_records(batch.header, batch.data):
                offset = batch.header.base_offset + record.offset_delta
                time = batch.header.base_timestamp + record.timestamp_delta
                assert record.key is not None
                found[offset] = (bytes(record.key), record.is_tombstone, time)
    return found


@settings(deadline=None, max_examples=150)
@given(STEPS, st.lists(st.tuples(st.integers(1, 8), st.sampled_from([0, 60, 200])), max_size=6))
def test_what_stays_is_the_last_value_of_every_key_where_it_was_written(
    steps: list, passes: list[tuple[int, int]]
) -> None:
    log = history(steps)
    now_ms, done = 10_000, 0
    cleaned: list[StoredBatch] = []
    first_cleaned_ms: dict[int, int] = {}
    for count, waited_ms in passes:
        now_ms += waited_ms
        dirty = log.batches[done : done + count]
        done += len(dirty)
        cleaned = clean(log, cleaned, dirty, now_ms)
        found = left(cleaned)
        seen = {
            offset: change
            for batch in log.batches[:done]
            for offset, change in log.records.items()
            if batch.header.base_offset <= offset <= batch.header.last_offset
            and offset not in log.void
        }
        latest = {key: offset for offset, (key, _) in sorted(seen.items())}
        for offset in latest.values():
            first_cleaned_ms.setdefault(offset, now_ms)
        for key, offset in latest.items():
            is_tombstone = seen[offset][1] is None
            is_over = is_tombstone and now_ms >= first_cleaned_ms[offset] + RETENTION_MS
            assert (offset in found) != is_over, (key, offset)
        assert set(found) <= set(latest.values()), "superseded and void records are gone"
        for offset, (key, is_tombstone, _) in found.items():
            assert seen[offset] == (key, seen[offset][1])
            assert is_tombstone == (seen[offset][1] is None)
        times = left(log.batches)
        assert all(times[offset][2] == time for offset, (_, _, time) in found.items())


def commits(batches: list[StoredBatch]) -> list[int]:
    return [batch.header.base_offset for batch in batches if batch.header.is_control]


def test_a_commit_marker_stays_while_its_records_do_and_then_until_its_horizon() -> None:
    log = Written()
    log.finish(1, log.write([(b"a", b"1")], 0, 1), commit=True)
    cleaned = clean(log, [], log.batches, 1000)
    assert commits(cleaned) == [1]
    newer = Written(end=2)
    newer.write([(b"a", b"2")], 0, None)
    cleaned = clean(log, cleaned, newer.batches, 1000)
    assert (sorted(left(cleaned)), commits(cleaned)) == ([2], [1])
    cleaned = clean(log, cleaned, [], 1000)
    cleaned = clean(log, cleaned, [], 1000 + RETENTION_MS - 1)
    assert commits(cleaned) == [1], "its horizon was set when its records were gone"
    assert commits(clean(log, cleaned, [], 1000 + RETENTION_MS)) == []


def test_an_abort_marker_stays_for_good_and_what_was_aborted_goes_at_once() -> None:
    log = Written()
    log.finish(1, log.write([(b"a", b"1"), (b"b", None)], 4, 1), commit=False)
    log.write([(b"c", b"3")], 0, None)
    cleaned = log.batches
    for now_ms in (0, 1000, 2000, 3000):
        cleaned = clean(log, cleaned, [], now_ms)
        assert (sorted(left(cleaned)), commits(cleaned)) == ([3], [2])


def test_records_without_a_key_go() -> None:
    log = Written()
    log.add(encode_batch([(None, b"x", 0, ()), (b"k", b"y", 0, ())]))
    assert sorted(left(clean(log, [], log.batches, 0))) == [1]


def test_a_batch_that_cannot_be_opened_stays_as_it_is_and_is_told() -> None:
    log = Written()
    log.write([(b"a", b"1")], 0, None)
    log.add(encode_batch([(b"a", b"2", 0, ())], codec=4))
    broken = bytearray(log.batches[1].data)
    broken[70] ^= 0xFF
    dirty = [log.batches[0], StoredBatch(log.batches[1].header, 0, memoryview(broken))]
    cleaning = Cleaning((), 0, 0)
    for batch in dirty:
        cleaning.learn(batch)
    assert [cleaning.keep(batch) for batch in dirty] == [(b.header, b.data) for b in dirty]
    [reason] = cleaning.unopened
    assert "The batch at offset 1 is not opened" in str(reason)
