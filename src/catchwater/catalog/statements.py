"""The SQL of this chapter, one statement a file, read once.

Both databases share the files in `sql/`; one that PostgreSQL must be told otherwise (locks, many
rows at once) has a second version in `sql/postgres/`.
"""

from functools import cache
from importlib.resources import files
from typing import Literal

Dialect = Literal["sqlite", "postgres"]

_FOLDER = files("catchwater.catalog")


@cache
def sql(name: str, dialect: Dialect = "sqlite") -> str:
    """The statement called `name`, with `?` for its parameters."""
    own = _FOLDER / "sql" / dialect / f"{name}.sql"
    return (own if own.is_file() else _FOLDER / "sql" / f"{name}.sql").read_text()


def migrations(dialect: Dialect = "sqlite") -> list[str]:
    """The scripts in `migrations/`, in order; script n (from 1) leads to schema version n."""
    folder = _FOLDER / "migrations" / dialect
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(folder / name).read_text() for name in names]
