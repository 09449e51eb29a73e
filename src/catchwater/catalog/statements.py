"""The SQL of this chapter, one statement a file.

Both databases share the files in `sql/`; one that PostgreSQL must be told otherwise (locks, many
rows at once) has a second version in `sql/postgres/`. All are read when this module is loaded: a
write must not fail because a file could not be opened then.
"""

from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal

Dialect = Literal["sqlite", "postgres"]

_FOLDER = files("catchwater.catalog")


def _read(folder: Traversable) -> Mapping[str, str]:
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith(".sql")]
    return {name.removesuffix(".sql"): (folder / name).read_text() for name in names}


_SHARED = _read(_FOLDER / "sql")
_TEXTS: Mapping[Dialect, Mapping[str, str]] = {
    "sqlite": _SHARED,
    "postgres": {**_SHARED, **_read(_FOLDER / "sql" / "postgres")},
}


def sql(name: str, dialect: Dialect = "sqlite") -> str:
    """The statement called `name`, with `?` for its parameters."""
    return _TEXTS[dialect][name]


def migrations(dialect: Dialect = "sqlite") -> list[str]:
    """The scripts in `migrations/`, in order; script n (from 1) leads to schema version n."""
    return [text for _, text in sorted(_read(_FOLDER / "migrations" / dialect).items())]
