"""The SQL files: one statement each, all of them valid against the newest schema."""

import sqlite3
from importlib.resources import files

import pytest

from catchwater.catalog.statements import migrations, sql

NAMES = sorted(
    entry.name.removesuffix(".sql") for entry in (files("catchwater.catalog") / "sql").iterdir()
)


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
