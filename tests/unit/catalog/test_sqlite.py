"""What is particular to SQLite: the file, its schema, its refusals."""

import sqlite3
from pathlib import Path

import pytest

from catchwater.catalog.base import (
    CatalogDead,
    CatalogTooNew,
)
from catchwater.catalog.rows import (
    Pin,
)
from catchwater.catalog.sqlite import SqliteCatalog
from catchwater.catalog.statements import migrations


def opened(path: Path, lag_s: float = 3600) -> SqliteCatalog:
    return SqliteCatalog(path / "catalog.db", new_cluster_id=lambda: "c-1", lag_s=lag_s)


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with sqlite3.connect(tmp_path / "catalog.db") as db:
        db.execute("UPDATE schema_version SET version = 99")
    db.close()
    with pytest.raises(CatalogTooNew, match=r"catalog\.db has schema version 99"):
        opened(tmp_path)


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"not a database " * 100)
    with pytest.raises(CatalogDead, match=r"catalog\.db cannot be read"):
        opened(tmp_path)


def test_a_crash_while_the_schema_is_made_leaves_none(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "catalog.db")
    with pytest.raises(sqlite3.OperationalError):
        db.executescript(f"BEGIN IMMEDIATE;\n{migrations()[0]}\nSELECT * FROM nothing;")
    db.close()
    catalog = opened(tmp_path)
    assert catalog.load().cluster_id == "c-1"
    catalog.close()


def test_every_transaction_is_synced(tmp_path: Path) -> None:
    catalog = opened(tmp_path)
    assert catalog._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert catalog._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    catalog.close()


def test_a_pin_on_a_topic_with_any_name_comes_back(tmp_path: Path) -> None:
    catalog = opened(tmp_path)
    pin = Pin("p", 'o"wner', {('to"pic', 3): 2**60}, None, 0)
    catalog.set_pin(pin).result(5)
    assert catalog.pins() == [pin]
    catalog.close()
