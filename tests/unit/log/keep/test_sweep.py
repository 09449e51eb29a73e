"""Sweeping: what nobody refers to goes after its grace, and nothing else, whatever fails."""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from catchwater.broker_config import LogConfig
from catchwater.catalog.rows import BrokerRow, ObjectRow
from catchwater.log.keep import sweep
from catchwater.log.keep.pack import Packer
from catchwater.log.keep.sweep import Sweeper
from catchwater.objects.base import ObjectInfo, StoreError

MakeBatch = Callable[..., bytes]
OpenLog = Callable[..., Any]
GRACE_MS = 1000


def fill(log: Any, make_batch: MakeBatch, key: Any) -> None:
    packer = Packer(log.catalog, log.storage, log.clock, LogConfig(), log.topic_name)
    for round_ in range(4):
        log.append((key, make_batch([b"x" * (1000 - 100 * round_)] * 5)))
        packer.pack()


def sweeper_of(log: Any) -> Sweeper:
    return Sweeper(log.core(), grace_ms=GRACE_MS, orphan_grace_ms=5000)


def swept(log: Any) -> None:
    sweeper = sweeper_of(log)
    sweeper.sweep()
    log.clock.advance(GRACE_MS)
    sweeper.sweep()


def segments(log: Any) -> list[str]:
    return [info.key for info in log.objects.list("segments/")]


def test_an_object_stays_for_its_grace_also_over_a_restart(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, make_batch, key)
    log.catalog.trim({key: 20}).result()
    sweeper = sweeper_of(log)
    sweeper.sweep()
    log.clock.advance(GRACE_MS - 1)
    sweeper.sweep()
    assert len(segments(log)) == 4
    log = open_log()
    swept(log)
    assert segments(log) == []


def test_deleting_a_topic_leaves_no_object(open_log: OpenLog, make_batch: MakeBatch) -> None:
    log = open_log(wal_bytes=1)
    [key] = log.create_topic("t")
    [other] = log.create_topic("other")
    fill(log, make_batch, key)
    log.append((key, make_batch([b"not packed"])))
    log.append((other, make_batch([b"x"])))
    log.catalog.delete_topic(key[0]).result()
    swept(log)
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
    sweeper = sweeper_of(log)
    assert sweeper.sweep_orphans() == 0
    log.clock.advance(1)
    assert sweeper.sweep_orphans() == 1
    assert [info.key for info in log.objects.list("")] == ["elsewhere/x"]


def test_a_known_object_is_no_orphan_however_old(open_log: OpenLog, make_batch: MakeBatch) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, make_batch, key)
    for object_key in segments(log):
        os.utime(log.root / "objects" / object_key, (0, 0))
    assert sweeper_of(log).sweep_orphans() == 0
    assert len(segments(log)) == 4


def test_a_deletion_that_fails_holds_up_no_other_and_is_tried_again(
    open_log: OpenLog, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, make_batch, key)
    log.catalog.trim({key: 20}).result()
    first = segments(log)[0]
    original = log.objects.delete

    def failing(object_key: str) -> None:
        if object_key == first:
            raise StoreError(f"{object_key}: no answer")
        original(object_key)

    with monkeypatch.context() as patched:
        patched.setattr(log.objects, "delete", failing)
        swept(log)
    assert segments(log) == [first]
    assert [row.key for row in log.catalog.objects("deleting")] == [first]
    swept(log)
    assert segments(log) == []
    assert log.catalog.objects("deleting") == []


def test_it_works_in_steps_rests_in_between_and_stops_when_told(
    open_log: OpenLog, make_batch: MakeBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = open_log()
    [key] = log.create_topic("t")
    fill(log, make_batch, key)
    log.catalog.trim({key: 20}).result()
    monkeypatch.setattr(sweep, "STEP_OBJECTS", 1)
    asked = iter([True] * 4 + [True, True, False])
    sweeper = sweeper_of(log)
    sweeper.sweep(lambda: next(asked))
    log.clock.advance(GRACE_MS)
    assert sweeper.sweep(lambda: next(asked)) == 2
    assert len(segments(log)) == 2


def test_an_object_committed_from_after_it_was_marked_stays(
    open_log: OpenLog, make_batch: MakeBatch
) -> None:
    log = open_log(wal_bytes=1)
    [key] = log.create_topic("t")
    for _ in range(2):
        log.append((key, make_batch([b"x"])))
    [first, _] = log.catalog.runs(key, 0)
    log.catalog.trim({key: 1}).result()
    log.catalog.mark_deleting([first.object]).result()
    log.catalog.apply(3, log.changes([first._replace(base_offset=2, last_offset=2)]))
    log.catalog.flush().result()
    swept(log)
    assert log.catalog.objects("deleting") != []
    assert first.object in {file.name for file in log.wal.files()}


# --- among brokers -------------------------------------------------------------------------------


class SharedStage:
    """The sweeper of a broker that shares catalog and WAL, over lists."""

    def __init__(self, *, one_frame_files: bool = False) -> None:
        self.live: dict[str, bool] = {}
        """Object key -> whether a run lies in it."""
        self.deleting: set[str] = set()
        self.files: dict[str, int] = {}
        self.alive = [(1, 7)]
        self.now_ms = 0
        done = SimpleNamespace(result=lambda: None)
        self.catalog: Any = SimpleNamespace(
            objects=self.objects,
            known_objects=lambda keys: set(keys) & (set(self.live) | self.deleting),
            brokers=lambda: [
                BrokerRow(*session, "", "h", 1, "", "object", True, "live", 0)
                for session in self.alive
            ],
            mark_deleting=self.mark,
            forget_objects=self.forget,
            flush=lambda: done,
        )
        self.done = done
        wal = SimpleNamespace(listing=self.listing, one_frame_files=one_frame_files)
        storage = SimpleNamespace(
            wal=wal,
            objects=SimpleNamespace(list=lambda prefix: iter(())),
            delete=lambda key: self.files.pop(key, None),
        )
        clock = SimpleNamespace(
            now_ms=lambda: self.now_ms,
            monotonic_s=lambda: self.now_ms / 1000,
            pause=lambda seconds: None,
        )
        core: Any = SimpleNamespace(
            catalog=self.catalog, storage=storage, clock=clock, session=(1, 7)
        )
        self.sweeper = Sweeper(core, grace_ms=GRACE_MS, orphan_grace_ms=5000)

    def objects(self, state: str, *, unreferenced: bool = False) -> list[ObjectRow]:
        keys = self.deleting if state == "deleting" else self.live
        return [
            ObjectRow(key, "chunk", state, 1, 0)
            for key in keys
            if not (unreferenced and self.live.get(key))
        ]

    def mark(self, keys: list[str]) -> Any:
        self.deleting |= set(keys)
        for key in keys:
            del self.live[key]
        return self.done

    def forget(self, keys: list[str]) -> Any:
        self.deleting -= set(keys)
        return self.done

    def listing(self) -> Any:
        return (ObjectInfo(key, 1, modified_ms) for key, modified_ms in self.files.items())

    def file(self, session: str, number: int, *, row: bool = True, used: bool = False) -> str:
        key = f"wal/{session}/{number:020d}.wal"
        self.files[key] = self.now_ms
        if row:
            self.live[key] = used
        return key

    def sweep(self) -> None:
        self.sweeper.sweep()
        self.now_ms += GRACE_MS
        self.sweeper.sweep()


def test_a_living_sessions_newest_file_stays_and_all_of_a_dead_one_go() -> None:
    stage = SharedStage()
    stage.file("1-7", 1)
    used = stage.file("1-7", 2, used=True)
    newest = stage.file("1-7", 3)
    stage.file("1-6", 1)
    stage.file("1-6", 2)
    stage.sweep()
    assert set(stage.files) == {used, newest}
    stage.alive = []
    stage.sweep()
    assert set(stage.files) == {used}


def test_a_file_that_is_one_frame_goes_as_soon_as_nothing_lies_in_it() -> None:
    stage = SharedStage(one_frame_files=True)
    stage.file("1-7", 1)
    stage.sweep()
    assert stage.files == {}


@pytest.mark.parametrize("one_frame_files", [True, False])
def test_files_never_committed_go_once_their_session_cannot_commit_them(
    one_frame_files: bool,
) -> None:
    stage = SharedStage(one_frame_files=one_frame_files)
    stage.file("1-7", 1, row=False)
    committed = stage.file("1-7", 2, used=True)
    in_flight = stage.file("1-7", 3, row=False)
    stage.file("2-3", 1, row=False)
    assert stage.sweeper.sweep_orphans() == 0
    stage.now_ms += 5001
    assert stage.sweeper.sweep_orphans() == 2
    assert set(stage.files) == {committed, in_flight}
    stage.alive = []
    assert stage.sweeper.sweep_orphans() == 1
    assert set(stage.files) == {committed}
