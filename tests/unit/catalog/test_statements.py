"""The statements: named sections of two files, all of them used, and valid in the newest schema."""

import ast
import re
import sqlite3
from pathlib import Path

import pytest

from catchwater.catalog import db
from catchwater.catalog.db import STATEMENTS, migrations, sections

SHARED, POSTGRES = STATEMENTS["sqlite"], STATEMENTS["postgres"]
OWN = [name for name in SHARED if POSTGRES[name] != SHARED[name]]


def test_a_section_begins_with_its_name_and_comments_are_left_out() -> None:
    head = "-- about the file\n\n-- one --\n-- why\nSELECT 1;\n\n"
    assert sections(head + "-- ==== more ====\n\n-- two --\nSELECT 2;\n") == {
        "one": "SELECT 1;",
        "two": "SELECT 2;",
    }


def test_two_statements_of_one_name_are_an_error() -> None:
    with pytest.raises(AssertionError, match="two statements are called one"):
        sections("-- one --\nSELECT 1;\n-- one --\nSELECT 2;\n")


def test_an_exception_for_postgresql_must_have_the_name_of_a_shared_statement() -> None:
    with pytest.raises(AssertionError, match="no statement is called onne"):
        sections("-- onne --\nSELECT 1;\n", {"one": "SELECT 1;"})


def test_every_statement_is_called_and_every_called_one_is_there() -> None:
    called = set()
    for path in Path(db.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                if re.fullmatch(r"[a-z]+(_[a-z]+)+", node.value):
                    called.add(node.value)
        for name in re.findall(r'db\.(?:query|each|many)\(\s*"(\w+)"', path.read_text()):
            assert name in SHARED, f"{path.name} calls {name}"
    assert set(SHARED) <= called


@pytest.mark.parametrize("name", OWN)
def test_an_exception_for_postgresql_takes_the_same_parameters(name: str) -> None:
    assert POSTGRES[name].count("?") == SHARED[name].count("?")
    assert POSTGRES[name].count(";") == 1


@pytest.mark.parametrize("name", SHARED)
def test_a_section_holds_one_statement_that_fits_the_schema(name: str) -> None:
    assert SHARED[name].count(";") == 1
    connection = sqlite3.connect(":memory:")
    for script in migrations():
        connection.executescript(script)
    connection.execute(f"EXPLAIN {SHARED[name]}", [None] * SHARED[name].count("?"))
    connection.close()


def test_the_schema_knows_its_version() -> None:
    connection = sqlite3.connect(":memory:")
    for script in migrations():
        connection.executescript(script)
    version = connection.execute("SELECT max(version) FROM schema_version").fetchone()
    assert version == (len(migrations()),)
    connection.close()
