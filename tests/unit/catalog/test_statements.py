"""The SQL files: one statement each, all of them valid against the newest schema."""

import sqlite3
from importlib.resources import files

import pytest

from catchwater.catalog.statements import migrations, sql

FOLDER = files("catchwater.catalog") / "sql"
NAMES = sorted(e.name.removesuffix(".sql") for e in FOLDER.iterdir() if e.name.endswith(".sql"))


def test_an_exception_for_postgresql_stands_beside_a_shared_statement() -> None:
    exceptions = {e.name.removesuffix(".sql") for e in (FOLDER / "postgres").iterdir()}
    assert exceptions < set(NAMES)
    for name in exceptions:
        assert sql(name, "postgres").count("?") == sql(name).count("?")
        assert sql(name, "postgres").count(";") == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_file_holds_one_statement_that_fits_the_schema(name: str) -> None:
    assert sql(name).count(";") == 1
    db = sqlite3.connect(":memory:")
    for script in migrations():
        db.executescript(script)
    parameters = [None] * sql(name).count("?")
    db.execute(f"EXPLAIN {sql(name)}", parameters)
    db.close()


def test_the_schema_knows_its_version() -> None:
    db = sqlite3.connect(":memory:")
    for script in migrations():
        db.executescript(script)
    assert db.execute("SELECT max(version) FROM schema_version").fetchone() == (len(migrations()),)
    db.close()
