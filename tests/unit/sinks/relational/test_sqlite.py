"""SQLite's failures by name: full, locked, no database, a row it will not take."""

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from catchwater.sinks.base import SinkFull, SinkUnavailable, TargetDiffers
from catchwater.sinks.columns import RowUnfit
from catchwater.sinks.kinds import sqlite
from catchwater.sinks.kinds.sqlite import SqliteDatabase


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    with closing(SqliteDatabase(tmp_path / "out.db")) as opened:
        with opened.transaction() as transaction:
            transaction.execute("CREATE TABLE t (a INTEGER UNIQUE, b TEXT)")
        yield opened


def rows(database: SqliteDatabase) -> int:
    return len(list(database.scan("SELECT * FROM t", ())))


def test_a_transaction_is_committed_whole_or_undone(database: SqliteDatabase) -> None:
    with database.transaction() as transaction:
        transaction.insert("t", ["a", "b"], ((i, "x") for i in range(2500)))
    with pytest.raises(KeyError), database.transaction() as transaction:
        transaction.insert("t", ["a", "b"], [(-1, "y")])
        raise KeyError
    assert rows(database) == 2500


def test_a_full_disk_is_named_and_half_an_epoch_is_undone(database: SqliteDatabase) -> None:
    with database.transaction() as transaction:
        transaction.execute("PRAGMA max_page_count = 20")
    with pytest.raises(SinkFull, match=r"out\.db cannot grow.* was undone"):
        with database.transaction() as transaction:
            transaction.insert("t", ["a", "b"], ((i, "x" * 1000) for i in range(1000)))
    assert rows(database) == 0
    with database.transaction() as transaction:
        transaction.execute("PRAGMA max_page_count = 1000000")
    with database.transaction() as transaction:
        transaction.insert("t", ["a", "b"], ((i, "x" * 1000) for i in range(1000)))
    assert rows(database) == 1000


def test_another_writer_is_waited_for_and_then_named(
    database: SqliteDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "_BUSY_S", 0.05)
    database.close()
    with closing(sqlite3.connect(tmp_path / "out.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkUnavailable, match=r"out\.db is out of reach: database is locked"):
            with database.transaction():
                pass
        other.execute("ROLLBACK")
    with database.transaction() as transaction:
        transaction.execute("INSERT INTO t VALUES (1, 'x')")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be taken for one" * 50)
    with closing(SqliteDatabase(tmp_path / "notes.txt")) as database:
        with pytest.raises(TargetDiffers, match=r"notes\.txt cannot be written as a SQLite"):
            with database.transaction():
                pass


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with closing(SqliteDatabase(tmp_path / "nowhere" / "out.db")) as database:
        with pytest.raises(TargetDiffers, match="would lie in a folder that is not there"):
            with database.transaction():
                pass
    with closing(SqliteDatabase(tmp_path)) as database:
        with pytest.raises(TargetDiffers, match="is a folder"), database.transaction():
            pass


def test_rows_that_the_table_refuses_are_told_from_a_table_that_is_gone(
    database: SqliteDatabase,
) -> None:
    with pytest.raises(RowUnfit, match="UNIQUE constraint failed"), database.transaction() as t:
        t.insert("t", ["a", "b"], [(1, "x"), (1, "y")])
    with pytest.raises(RowUnfit, match="cannot hold"), database.transaction() as t:
        t.insert("t", ["a", "b"], [(2**70, "x")])
    with pytest.raises(TargetDiffers, match="no such table"), database.transaction() as t:
        t.insert("gone", ["a"], [(1,)])
    assert rows(database) == 0


def test_two_threads_take_turns(database: SqliteDatabase) -> None:
    def other() -> int:
        with database.transaction() as transaction:
            return len(transaction.execute("SELECT * FROM t"))

    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as transaction:
            transaction.execute("INSERT INTO t VALUES (1, 'x')")
            waiting = pool.submit(other)
            transaction.execute("INSERT INTO t VALUES (2, 'x')")
            assert not waiting.done()
        assert waiting.result(60) == 2


@pytest.mark.parametrize("other", [None, "another database"])
def test_a_file_that_is_removed_or_replaced_takes_no_more_rows(
    database: SqliteDatabase, tmp_path: Path, other: str | None
) -> None:
    (tmp_path / "out.db").rename(tmp_path / "moved.db")
    if other:
        (tmp_path / "out.db").write_text(other)
    for _ in range(2):
        with pytest.raises(TargetDiffers, match=r"out\.db was removed or replaced") as told:
            with database.transaction() as transaction:
                transaction.execute("INSERT INTO t VALUES (1, 'x')")
    assert "catchwater sink repair" in str(told.value.hint)
    assert (tmp_path / "out.db").exists() == bool(other)
