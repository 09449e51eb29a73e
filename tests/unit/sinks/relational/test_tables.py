"""A table is claimed by one writer, created where it is missing, and compared where it is not."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from catchwater.config import ConfigError
from catchwater.sinks.base import TargetDiffers, TargetTaken
from catchwater.sinks.relational.columns import Column
from catchwater.sinks.relational.sqlite import SqliteDatabase
from catchwater.sinks.relational.tables import Target, Writer

COLUMNS = [Column("card", "text"), Column("amount", "real")]
OURS = "catchwater_epoch INTEGER, catchwater_shard INTEGER, catchwater_row INTEGER"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    with closing(SqliteDatabase(tmp_path / "out.db")) as opened:
        yield opened


def writer(**more: object) -> Writer:
    return Writer(**{"pipeline": "cards", "sink": "alerts", "generation": 0,
                     "table": "alerts", **more})  # type: ignore[arg-type]  # fmt: skip


def run(tmp_path: Path, sql: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        return connection.execute(sql).fetchall()


def test_a_missing_table_is_created_with_the_outputs_columns(
    database: SqliteDatabase, tmp_path: Path
) -> None:
    Target(database, writer(output_id=("card",)), COLUMNS).prepare()
    Target(database, writer(output_id=("card",)), COLUMNS).prepare()
    found = [row[1:3] for row in run(tmp_path, "PRAGMA table_info(alerts)")]
    assert found == [
        ("card", "TEXT"), ("amount", "REAL"), ("catchwater_epoch", "INTEGER"),
        ("catchwater_shard", "INTEGER"), ("catchwater_row", "INTEGER"),
    ]  # fmt: skip
    assert run(tmp_path, "SELECT * FROM catchwater_sinks") == [("cards", "alerts", "alerts", 0)]


@pytest.mark.parametrize(
    ("definition", "told"),
    [
        ("card TEXT, amount REAL", "catchwater_epoch is missing"),
        (f"card TEXT, {OURS}", "amount is missing"),
        (f"card INTEGER, amount REAL, {OURS}", "card is integer"),
        (f"card TEXT, amount REAL, {OURS}, shop TEXT NOT NULL", "shop must be given a value"),
    ],
)
def test_a_table_that_does_not_fit_is_told_with_what_is_wrong(
    database: SqliteDatabase, tmp_path: Path, definition: str, told: str
) -> None:
    run(tmp_path, f"CREATE TABLE alerts ({definition})")
    with pytest.raises(TargetDiffers) as refused:
        Target(database, writer(), COLUMNS).prepare()
    assert told in str(refused.value)
    assert 'CREATE TABLE "alerts" ("card" TEXT, "amount" REAL' in str(refused.value.hint)
    assert refused.value.exit_code == 2


def test_a_table_may_have_more_than_is_needed(database: SqliteDatabase, tmp_path: Path) -> None:
    extra = "shop TEXT, at TEXT NOT NULL DEFAULT 'now'"
    run(tmp_path, f"CREATE TABLE alerts (card VARCHAR(20), amount REAL, {OURS}, {extra})")
    Target(database, writer(), COLUMNS).prepare()


def test_a_table_has_one_writer_and_a_writer_one_table(database: SqliteDatabase) -> None:
    Target(database, writer(), COLUMNS).prepare()
    with pytest.raises(TargetTaken, match="sink 'alerts' of the pipeline 'cards'"):
        Target(database, writer(pipeline="other"), COLUMNS).prepare()
    with pytest.raises(TargetTaken):
        Target(database, writer(sink="others"), COLUMNS).prepare()
    with pytest.raises(TargetDiffers, match="has written to the table alerts so far"):
        Target(database, writer(table="elsewhere"), COLUMNS).prepare()


@pytest.mark.parametrize("table", ["", "a b", 'x"; DROP TABLE y', "a.b.c", "1a"])
def test_a_name_that_would_need_escaping_is_refused(database: SqliteDatabase, table: str) -> None:
    with pytest.raises(ConfigError, match="is not the name of a table"):
        Target(database, writer(table=table), COLUMNS)


def test_columns_and_identities_that_cannot_be_are_refused(database: SqliteDatabase) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a column"):
        Target(database, writer(), [Column('a"b', "text")])
    with pytest.raises(ConfigError, match="cannot be the name of a column"):
        Target(database, writer(), [Column("Catchwater_Row", "text")])
    with pytest.raises(ConfigError, match="replaces rows by 'id', which is no column"):
        Target(database, writer(output_id=("id",)), COLUMNS)


def test_a_table_has_one_writer_however_it_is_spelled(database: SqliteDatabase) -> None:
    Target(database, writer(), COLUMNS).prepare()
    with pytest.raises(TargetTaken, match="sink 'alerts' of the pipeline 'cards'"):
        Target(database, writer(pipeline="other", table="Alerts"), COLUMNS).prepare()
    Target(database, writer(table="ALERTS"), COLUMNS).prepare()
