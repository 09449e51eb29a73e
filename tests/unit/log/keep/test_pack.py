"""Packing: scattered runs become segments; nothing is lost or shown twice, whatever happens."""

import errno
import os
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catchwater.broker_config import LogConfig
from catchwater.catalog.rows import (
    PartitionKey,
    RunRow,
)
from catchwater.clock import ManualClock
from catchwater.log.format.segment import read_footer
from catchwater.log.keep.pack import Backlog, Packer, groups
from catchwater.log.keep.sweep import Sweeper
from catchwater.log.read.history import History
from catchwater.log.write.writer import Appends
from catchwater.objects.base import StoreFull
from catchwater.wire.batch import split

MakeBatch = Callable[..., bytes]
OpenLog = Callable[..., Any]
GRACE_MS = 1_000


class Crash(BaseException):
    """The process ends here."""


def packer_of(log: Any, **options: int) -> Packer:
    return Packer(log.catalog, log.storage, log.clock, LogConfig(**options), log.topic_name)


def sweeper_of(log: Any) -> Sweeper:
    return Sweeper(log.core(), grace_ms=GRACE_MS, orphan_grace_ms=GRACE_MS)


def tidy(log: Any) -> None:
    """Pack and sweep until nothing is left to do."""
    packer_of(log).pack()
    sweeper = sweeper_of(log)
    sweeper.sweep()
    for info in log.objects.list(""):  # the store's times are the machine's
        os.utime(log.root / "objects" / info.key, (0, 0))
    log.clock.advance(GRACE_MS)
    sweeper.sweep()
    sweeper.sweep_orphans()


def content(log: Any, key: PartitionKey) -> list[bytes]:
    """The batches of a partition without what is patched, as a reader finds them from 0 on."""
    history = History(log.catalog, log.storage, 0)
    found = []
    for block in history.blocks(key, 0, 1 << 40):
        found += split(block.data)
    expected = 0
    for header, _ in found:
        assert header.base_offset == expected
        expected = header.last_offset + 1
    return [bytes(batch[16:]) for _, batch in found]


def fill(log: Any, make_batch: MakeBatch, keys: list[PartitionKey], chunks: int = 6) -> None:
    for chunk in range(chunks):
        log.append(*((key, make_batch([b"%d" % chunk] * (i + 1))) for i, key in enumerate(keys)))


def test_every_partition_becomes_a_segment_that_says_the_same(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    keys = log.create_topic("payments", 3)
    fill(log, make_batch, keys)
    before = {key: content(log, key) for key in keys}
    records = {key: sum(run.record_count for run in log.catalog.runs(key, 0)) for key in keys}
    assert packer_of(log).pack() == 3
    for key in keys:
        [run] = log.catalog.runs(key, 0)
        assert content(log, key) == before[key]
        footer = read_footer(log.objects, run.object)
        assert (footer.topic_id, footer.topic, footer.partition) == (key[0], "payments", key[1])
        assert (footer.base_offset, footer.last_offset) == (run.base_offset, run.last_offset)
        assert run.record_count == footer.record_count == records[key]
    assert log.catalog.chunk_runs(10) == []
    assert packer_of(log).pack() == 0


def test_wal_files_go_once_no_run_needs_them_and_the_grace_is_over(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log(wal_bytes=1)  # a file for every chunk
    [key] = log.create_topic("t")
    fill(log, make_batch, [key])
    files = [file.name for file in log.wal.files()]
    sweeper = sweeper_of(log)
    sweeper.sweep()
    assert [file.name for file in log.wal.files()] == files, "still needed"
    packer_of(log).pack()
    sweeper.sweep()
    log.clock.advance(GRACE_MS - 1)
    sweeper.sweep()
    assert [file.name for file in log.wal.files()] == files, "still in its grace"
    log.clock.advance(1)
    assert sweeper.sweep() == len(files) - 1
    assert [file.name for file in log.wal.files()] == files[-1:], "the newest is being written"
    assert {row.key for row in log.catalog.objects("live")} & set(files) <= {files[-1]}


def test_a_wal_file_whose_frames_are_not_all_applied_stays(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log(wal_bytes=1)
    [key] = log.create_topic("t")
    fill(log, make_batch, [key], chunks=3)
    packer_of(log).pack()
    log.applied = 1
    sweeper = sweeper_of(log)
    for _ in range(2):
        sweeper.sweep()
        log.clock.advance(GRACE_MS)
    assert [file.first_sequence for file in log.wal.files()] == [2, 3]


def test_a_finished_wal_file_in_which_nothing_was_appended_goes_too(open_log: OpenLog) -> None:
    log = open_log(wal_bytes=1)
    for _ in range(3):
        log.applied = log.wal.append([b"a chunk of duplicates"]).sequence
    sweeper_of(log).sweep()
    assert [file.first_sequence for file in log.wal.files()] == [3]


STEPS = [
    ("objects", "put_if_absent", 1),
    ("objects", "put_if_absent", 2),
    ("catalog", "replace_runs", 1),
    ("catalog", "replace_runs", 2),
    ("catalog", "mark_deleting", 1),
    ("wal", "remove", 1),
    ("wal", "remove", 3),
    ("objects", "delete", 1),
    ("objects", "delete", 2),
    ("catalog", "forget_objects", 1),
]


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize(("part", "method", "nth"), STEPS)
def test_a_crash_at_any_step_loses_nothing_and_shows_nothing_twice(
    open_log: OpenLog, make_batch: MakeBatch, part: str, method: str, after: bool, nth: int
) -> None:
    log = open_log(wal_bytes=1)
    keys = log.create_topic("t", 2)
    fill(log, make_batch, keys, chunks=2)
    tidy(log)
    fill(log, make_batch, keys, chunks=4)  # to be joined with the segments there are
    before = {key: content(log, key) for key in keys}
    seam = getattr(log, part)
    original = getattr(seam, method)
    calls = iter(range(1, 1000))

    def dying(*args: Any) -> Any:
        if next(calls) != nth:
            return original(*args)
        if after:
            done = original(*args)
            if hasattr(done, "result"):
                done.result()
        raise Crash

    setattr(seam, method, dying)
    with pytest.raises(Crash):
        tidy(log)
        tidy(log)
    log = open_log(wal_bytes=1)
    assert {key: content(log, key) for key in keys} == before
    tidy(log)
    tidy(log)
    assert {key: content(log, key) for key in keys} == before
    referred = {run.object for key in keys for run in log.catalog.runs(key, 0)}
    assert log.object_keys() - referred == {log.wal.files()[-1].name}
    assert len(referred) == 2


def test_a_full_store_leaves_everything_as_it_was_and_packs_later(
    open_log: OpenLog, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, make_batch, [key])
    before = content(log, key)

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    packer = packer_of(log)
    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", full)
        with pytest.raises(StoreFull):
            packer.pack()
    assert list(log.objects.list("")) == []
    assert content(log, key) == before
    assert packer.pack() == 1


def test_a_damaged_run_stays_where_it_is_and_the_others_are_packed(
    open_log: OpenLog, make_batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    bad, good = log.create_topic("t", 2)
    fill(log, make_batch, [bad, good], chunks=5)
    damaged = log.catalog.runs(bad, 2)[0]
    path = log.root / damaged.object
    data = bytearray(path.read_bytes())
    data[damaged.byte_offset + 30] ^= 1
    path.write_bytes(data)
    packer = packer_of(log)
    packer.pack()
    assert f"{damaged.object} is damaged in bytes {damaged.byte_offset} to" in caplog.text
    packer.pack()
    assert [run.object.split("/")[0] for run in log.catalog.runs(bad, 0)] == [
        "segments",
        "wal",
        "segments",
    ]
    assert [run.object.split("/")[0] for run in log.catalog.runs(good, 0)] == ["segments"]


def test_a_run_with_fewer_records_than_the_catalog_says_is_damaged_too(
    open_log: OpenLog, make_batch: MakeBatch, caplog: pytest.LogCaptureFixture
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, make_batch, [key], chunks=1)
    [run] = log.catalog.runs(key, 0)
    log.catalog.replace_runs([run], [run._replace(last_offset=1)], []).result()
    assert packer_of(log).pack() == 0
    assert "offset 1 should be the last, but it is 0" in caplog.text


def test_runs_trimmed_while_they_are_packed_leave_no_object(
    open_log: OpenLog, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, make_batch, [key])
    original = log.objects.put_if_absent

    def slow(*args: Any) -> int:
        log.catalog.delete_topic(key[0]).result()
        return int(original(*args))

    monkeypatch.setattr(log.objects, "put_if_absent", slow)
    assert packer_of(log).pack() == 0
    assert list(log.objects.list("")) == []


def test_small_segments_are_joined_so_that_few_remain(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    written = 0
    for round_ in range(64):
        log.append((key, make_batch([b"%03d" % round_ * 30])))
        packer_of(log).pack()
        written += log.catalog.runs(key, round_)[0].byte_size
    kept = log.catalog.runs(key, 0)
    assert len(kept) <= 7, "the logarithm of the number of packings"
    assert written <= 7 * sum(run.byte_size for run in kept), "each byte a few times"
    assert len(content(log, key)) == 64


def test_a_segment_keeps_to_its_target_size(open_log: OpenLog, make_batch: MakeBatch) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    for _ in range(20):
        log.append((key, make_batch([b"x" * 1000])))
    packer_of(log, segment_bytes=5000).pack()
    packer_of(log, segment_bytes=5000).pack()
    assert [run.record_count for run in log.catalog.runs(key, 0)] == [4] * 5


def test_packing_is_due_by_bytes_or_by_time_but_not_for_nothing() -> None:
    appends = Appends()
    backlog = Backlog(LogConfig(pack_min_bytes=100, pack_interval_ms=10_000), appends, now_s=0)
    assert not backlog.is_due(9.9)
    assert backlog.is_due(10), "what an earlier process left"
    pack_all(backlog, 10)
    assert not backlog.is_due(30)
    appends.add(60, 30)
    appends.add(10, 39)
    assert not backlog.is_due(39.9)
    assert backlog.is_due(40), "what came first has waited for an interval"
    pack_all(backlog, 40)
    appends.add(60, 45)
    assert not backlog.is_due(46)
    appends.add(60, 46)
    assert not backlog.is_due(46.4), "producers are busy"
    assert backlog.is_due(46.5)


def test_what_waits_ages_until_it_is_packed_and_on_when_that_fails() -> None:
    appends = Appends()
    backlog = Backlog(LogConfig(pack_min_bytes=100, pack_interval_ms=10_000), appends, now_s=0)
    pack_all(backlog, 1)
    assert not backlog.is_due(5) and backlog.age_s(5) == 0, "nothing waits"
    appends.add(60, 5)
    assert backlog.age_s(9) == 4
    for now_s in (15, 25, 35):
        assert backlog.is_due(now_s)
        backlog.begin(now_s, makes_way=False)
        backlog.end(0, has_failed=True)
    assert backlog.age_s(40) == 35, "each attempt has failed"
    backlog.begin(45, makes_way=False)
    appends.add(60, 47)
    backlog.end(60)
    assert backlog.age_s(48) == 3, "since the packing began, at most"
    pack_all(backlog, 50)
    assert backlog.age_s(60) == 0


def pack_all(backlog: Backlog, now_s: float) -> None:
    backlog.begin(now_s, makes_way=False)
    assert backlog.goes_on(now_s)
    backlog.end(0)


def test_what_was_packed_before_producers_came_waits_no_more() -> None:
    appends = Appends()
    backlog = Backlog(LogConfig(pack_min_bytes=100, pack_backlog_bytes=1000), appends, now_s=0)
    appends.add(800, 0)
    backlog.begin(1, makes_way=True)
    appends.add(600, 2)
    assert not backlog.goes_on(2)
    assert not backlog.goes_on(100), "once for all"
    backlog.end(packed_bytes=500)
    assert not backlog.is_due(2), "some 900 wait, of 1000"
    appends.add(100, 2)
    assert backlog.is_due(2)
    backlog.begin(2, makes_way=True)
    assert backlog.goes_on(2), "it goes on until all is packed"
    backlog.end(500, has_failed=True)
    assert not backlog.is_due(11.9)
    assert backlog.is_due(12), "an interval after it failed"


def test_packing_rests_as_long_as_it_works_and_stops_when_told(
    open_log: OpenLog, make_batch: MakeBatch, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    keys = log.create_topic("t", 3)
    fill(log, make_batch, keys)
    packer = packer_of(log)
    rests: list[float] = []

    def rest(seconds: float) -> None:
        rests.append(seconds)
        packer.stop()

    def takes_70_ms(*args: Any) -> Any:
        clock.advance(70)
        return original(*args)

    original = log.objects.put_if_absent
    monkeypatch.setattr(log.objects, "put_if_absent", takes_70_ms)
    monkeypatch.setattr(clock, "pause", rest)
    assert packer.pack() == 1
    assert rests == [pytest.approx(0.07)]


def test_runs_that_are_far_away_are_packed_in_parts_and_not_at_all_once_told_to_stop(
    open_log: OpenLog, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, make_batch, [key], chunks=10)
    before = content(log, key)
    packer = packer_of(log)
    read = log.storage.read_into

    def slow(*place: Any) -> None:
        log.clock.advance(1_000)
        read(*place)

    monkeypatch.setattr(log.storage, "read_into", slow)
    assert packer.pack() == 1
    assert 0 < len(log.catalog.chunk_runs(limit=100)) < 10, "what was read until then"
    assert content(log, key) == before

    def stopped(*place: Any) -> None:
        packer.stop()
        read(*place)

    monkeypatch.setattr(log.storage, "read_into", stopped)
    left = len(log.catalog.chunk_runs(limit=100))
    assert packer.pack() == 0
    assert len(log.catalog.chunk_runs(limit=100)) == left
    assert content(log, key) == before


def test_appends_go_on_while_runs_are_packed(open_log: OpenLog, make_batch: MakeBatch) -> None:
    log = open_log(wal_bytes=2000)
    keys = log.create_topic("t", 2)
    done = threading.Event()

    def pack_again_and_again() -> None:
        packer, sweeper = packer_of(log, segment_bytes=3000), sweeper_of(log)
        while not done.is_set():
            packer.pack()
            log.clock.advance(GRACE_MS)
            sweeper.sweep()

    thread = threading.Thread(target=pack_again_and_again)
    thread.start()
    try:
        fill(log, make_batch, keys, chunks=60)
    finally:
        done.set()
        thread.join()
    for index, key in enumerate(keys):
        assert content(log, key) == [
            make_batch([b"%d" % chunk] * (index + 1))[16:] for chunk in range(60)
        ]


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), st.booleans()), max_size=30),
    st.integers(1, 20),
)
def test_groups_hold_every_run_once_in_order_and_without_gaps(
    shapes: list[tuple[int, int, bool]], target: int
) -> None:
    runs = []
    offset = 0
    for partition, size, gap in sorted(shapes, key=lambda shape: shape[0]):
        offset += gap
        runs.append(RunRow(b"t", partition, offset, offset, "wal/1", 0, size, 0, 1))
        offset += 1
    found = list(groups(runs, LogConfig(segment_bytes=target)))
    assert [run for group in found for run in group] == runs
    for group in found:
        assert len({run.partition for run in group}) == 1
        assert len(group) == 1 or sum(run.byte_size for run in group) <= target
        assert group[-1].last_offset - group[0].base_offset == len(group) - 1
