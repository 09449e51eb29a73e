"""An embedded catalog looked at from outside, also while its broker is running: nothing is written.

What the broker has applied and not yet written (a second at most) is not seen. Every change is
refused. A catalog of another schema version is refused by name.
"""

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, TypeVar

from catchwater.catalog.base import CatalogDead, CatalogTooNew
from catchwater.catalog.change.commit import producer_row
from catchwater.catalog.db import Db, SqliteDb
from catchwater.catalog.relational import RelationalCatalog
from catchwater.catalog.rows import ProducerRow
from catchwater.catalog.statements import migrations

T = TypeVar("T")


class ReadOnlyCatalog(RelationalCatalog):
    """The catalog in one SQLite file, for one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Raises `CatalogTooNew`, or `CatalogDead` for one that cannot be read."""
        self._path = path
        with self._failing():
            if not path.exists():
                raise sqlite3.OperationalError("there is no such file")
            uri = f"{path.absolute().as_uri()}?mode=ro"
            self._db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            try:
                [version] = self._db.execute("SELECT max(version) FROM schema_version").fetchone()
                if version != len(migrations()):
                    raise CatalogTooNew(
                        f"The catalog {path} has schema version {version}; this release reads "
                        f"version {len(migrations())}.",
                        hint="Use the release that wrote it; or start its broker with this one.",
                    )
            except (sqlite3.Error, CatalogTooNew):
                self._db.close()
                raise

    def _producers(self, db: Db) -> list[ProducerRow]:
        return [producer_row(row) for row in db.query("producer_select")]

    def _commit(self, change: Callable[[Db], T]) -> Future[T]:
        raise AssertionError("nothing is changed through a catalog opened for reading")

    def _query(self, read: Callable[[Db], T]) -> T:
        with self._failing():
            return read(SqliteDb(self._db))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            self._dead(error)
        except (ValueError, OverflowError) as error:  # what a flipped bit has made of a value
            self._dead(error)

    def _dead(self, error: Exception) -> NoReturn:
        raise CatalogDead(
            f"The catalog {self._path} cannot be read: {error}.",
            hint="Make it again with `catchwater log rebuild`.",
        ) from error

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()
