"""The writer thread under full, locked and failing databases; its group commit and its trail."""

import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path

import pytest

from catchwater.catalog.db import STATEMENTS, Db, migrations
from catchwater.catalog.errors import CatalogDead, CatalogFull, CatalogUnavailable
from catchwater.catalog.rows import (
    Changes,
    ObjectRow,
    PartitionRow,
    RunRow,
)
from catchwater.catalog.sqlite import SqliteDb, Writer

T1 = b"1" * 16
KEY = (T1, 0)


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    db = connected(tmp_path, timeout=0.01)
    for script in migrations():
        db.executescript(script)
    db.execute(STATEMENTS["sqlite"]["log_insert"], ("c-1",))
    yield db
    db.close()


def connected(folder: Path, timeout: float = 5) -> sqlite3.Connection:
    return sqlite3.connect(
        folder / "catalog.db", isolation_level=None, check_same_thread=False, timeout=timeout
    )


def chunk(n: int) -> Changes:
    return Changes(
        runs=[RunRow(T1, 0, n, n, "wal/a", n, 1, -1, 1)],
        partitions=[PartitionRow(T1, 0, 0, n + 1, n + 1, -1)],
        objects=[ObjectRow("wal/a", "chunk", "live", n + 1, 0)],
    )


def applied(db: sqlite3.Connection) -> int:
    (sequence,) = db.execute("SELECT applied_sequence FROM log").fetchone()
    return int(sequence)


def test_chunks_reach_the_file_without_anybody_waiting(
    db: sqlite3.Connection, tmp_path: Path
) -> None:
    writer = Writer(SqliteDb(db), "catalog.db", lag_s=0.01)
    writer.apply(1, chunk(0))
    other = connected(tmp_path)
    for _ in range(6000):
        if applied(other) == 1:
            break
        threading.Event().wait(0.01)
    assert applied(other) == 1
    other.close()
    writer.close()


def test_many_waiting_barriers_share_few_transactions(db: sqlite3.Connection) -> None:
    commits: list[str] = []
    db.set_trace_callback(lambda text: commits.append(text) if text == "COMMIT" else None)
    writer = Writer(SqliteDb(db), "catalog.db", lag_s=3600)
    entered, gate = threading.Event(), threading.Event()

    def first(_: Db) -> None:
        entered.set()
        gate.wait(60)

    futures = [writer.commit(first)]
    entered.wait(60)
    futures += [writer.commit(lambda _, n=n: n) for n in range(2000)]
    gate.set()
    assert [future.result(60) for future in futures[1:]] == list(range(2000))
    assert len(commits) == 2
    writer.close()


def test_a_full_disk_refuses_barriers_and_keeps_the_trail(db: sqlite3.Connection) -> None:
    writer = Writer(SqliteDb(db), "catalog.db", lag_s=3600)
    [(pages,)] = db.execute("PRAGMA page_count").fetchall()
    db.execute(f"PRAGMA max_page_count = {pages}")
    writer.apply(1, chunk(0))

    def large(db: Db) -> None:
        db.query("pin_upsert", "p", "o" * 100_000, "[]", None, 0, None, "reserved")

    with pytest.raises(CatalogFull, match="no space"):
        writer.commit(large).result(60)
    writer.apply(2, chunk(1))
    assert [run.base_offset for run in writer.unwritten_runs(KEY)] == [0, 1]
    db.execute("PRAGMA max_page_count = 1000000")
    writer.commit(large).result(60)
    assert applied(db) == 2
    assert writer.unwritten_runs(KEY) == []
    writer.close()


def test_a_change_with_a_bug_ends_for_who_waits_and_for_nobody_else(db: sqlite3.Connection) -> None:
    writer = Writer(SqliteDb(db), "catalog.db", lag_s=3600)

    def broken(db: Db) -> None:
        raise ZeroDivisionError("a bug")

    broken_one, other = writer.commit(broken), writer.commit(lambda db: "committed")
    with pytest.raises(ZeroDivisionError):
        broken_one.result(60)
    assert other.result(60) == "committed"
    assert writer.commit(lambda db: "still there").result(60) == "still there"
    writer.close()


def test_a_locked_database_is_waited_for(db: sqlite3.Connection, tmp_path: Path) -> None:
    writer = Writer(SqliteDb(db), "catalog.db", lag_s=3600)
    other = connected(tmp_path)
    other.execute("BEGIN EXCLUSIVE")
    writer.apply(1, chunk(0))
    future = writer.commit(lambda _: "done")
    done, _ = wait([future], timeout=0.2)
    assert not done
    writer.apply(2, chunk(1))
    other.execute("ROLLBACK")
    other.close()
    assert future.result(60) == "done"
    writer.close()
    assert applied(db) == 2


def test_a_file_that_cannot_be_opened_now_fails_the_change_and_nothing_else(
    db: sqlite3.Connection,
) -> None:
    writer = Writer(SqliteDb(db), "catalog.db", lag_s=3600)
    writer.apply(1, chunk(0))

    def scarce(db: Db) -> None:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    with pytest.raises(CatalogUnavailable, match="cannot be opened now"):
        writer.commit(scarce).result(60)
    assert writer.commit(lambda _: "done").result(60) == "done"
    assert applied(db) == 1
    writer.close()


def test_a_defect_while_chunks_are_written_is_told_to_all(
    db: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(SqliteDb(db), "catalog.db", lag_s=3600)

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("catchwater.catalog.sqlite.write_changes", broken)
    writer.apply(1, chunk(0))
    with pytest.raises(CatalogDead):
        writer.commit(lambda _: None).result(60)
    with pytest.raises(CatalogDead):
        writer.close()


def test_after_an_unknown_failure_nothing_is_taken_any_more(db: sqlite3.Connection) -> None:
    writer = Writer(SqliteDb(db), "catalog.db", lag_s=3600)

    def broken(db: Db) -> None:
        db.query("name_lock", 1, 2)

    with pytest.raises(CatalogDead, match="could not be written"):
        writer.commit(broken).result(60)
    with pytest.raises(CatalogDead):
        writer.commit(lambda _: None).result(60)
    with pytest.raises(CatalogDead):
        writer.apply(1, chunk(0))
    with pytest.raises(CatalogDead):
        writer.close()
    assert applied(db) == 0


def test_closing_writes_the_trail(db: sqlite3.Connection) -> None:
    writer = Writer(SqliteDb(db), "catalog.db", lag_s=3600)
    writer.apply(1, chunk(0))
    writer.close()
    assert applied(db) == 1
