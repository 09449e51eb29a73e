"""A table is claimed by one writer, created where it is missing, and compared where it is not."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from catchwater.config import ConfigError
from catchwater.sinks.base import TargetDiffers, TargetState, TargetTaken
from catchwater.sinks.columns import Column
from catchwater.sinks.epochs import Owner
from catchwater.sinks.kinds.sqlite import SqliteDatabase
from catchwater.sinks.table_target import Target, Writer

COLUMNS = [Column("card", "text"), Column("amount", "real")]
OURS = "catchwater_epoch INTEGER, catchwater_shard INTEGER, catchwater_row INTEGER"


@pytest.fixture
def database(tmp_path: Path) -> Iterator[SqliteDatabase]:
    with closing(SqliteDatabase(tmp_path / "out.db")) as opened:
        yield opened


def writer(
    *, pipeline: str = "cards", sink: str = "alerts", table: str = "alerts",
    output_id: tuple[str, ...] = (),
) -> Writer:  # fmt: skip
    return Writer(Owner(pipeline, sink), table, output_id)


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


@pytest.mark.parametrize(
    ("definition", "told", "alter"),
    [
        ("card TEXT, amount REAL", "catchwater_epoch is missing", '"catchwater_row" INTEGER;'),
        (
            f"card TEXT, {OURS}",
            "amount is missing",
            'ALTER TABLE "alerts" ADD COLUMN "amount" REAL;',
        ),
    ],
)
def test_a_table_that_lacks_columns_is_told_with_the_statements_that_add_them(
    database: SqliteDatabase, tmp_path: Path, definition: str, told: str, alter: str
) -> None:
    run(tmp_path, f"CREATE TABLE alerts ({definition})")
    target = Target(database, writer(), COLUMNS)
    with pytest.raises(TargetDiffers) as refused:
        target.prepare()
    assert told in str(refused.value)
    assert alter in str(refused.value.hint)
    assert "CREATE TABLE" not in str(refused.value.hint)
    seen = target.look().differs
    assert seen is not None and seen.alter == refused.value.alter
    target.alter()
    target.prepare()


def test_what_is_put_back_has_the_new_columns_too(database: SqliteDatabase, tmp_path: Path) -> None:
    """Else every epoch after the upgrade would fail, and none of the checks before."""
    upsert = writer(output_id=("card",))
    Target(database, upsert, COLUMNS).prepare()
    wider = Target(database, upsert, [*COLUMNS, Column("shop", "text")])
    run(tmp_path, "ALTER TABLE alerts ADD COLUMN shop TEXT")
    with pytest.raises(TargetDiffers, match="shop is missing from the table for undoing"):
        wider.prepare()
    wider.alter()
    wider.prepare()
    found = [row[1] for row in run(tmp_path, "PRAGMA table_info(alerts_catchwater_undo)")]
    assert found[-1] == "shop"


def test_a_key_cannot_be_added(database: SqliteDatabase) -> None:
    Target(database, writer(output_id=("card",)), COLUMNS).prepare()
    both = Target(database, writer(output_id=("card", "shop")), [*COLUMNS, Column("shop", "text")])
    with pytest.raises(
        TargetDiffers, match="nothing says that card, shop, the output_id, is unique"
    ) as refused:
        both.alter()
    assert "CREATE TABLE" in str(refused.value.hint)
    assert refused.value.alter == ()


def test_looking_makes_no_database(tmp_path: Path) -> None:
    with closing(SqliteDatabase(tmp_path / "none.db")) as database:
        assert Target(database, writer(), COLUMNS).look() == TargetState()
    assert not (tmp_path / "none.db").exists()


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
