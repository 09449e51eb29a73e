"""The SQL of this chapter, one statement a file, read once."""

from functools import cache
from importlib.resources import files

_FOLDER = files("catchwater.catalog")


@cache
def sql(name: str) -> str:
    """The statement in `sql/<name>.sql`."""
    return (_FOLDER / "sql" / f"{name}.sql").read_text()


def migrations() -> list[str]:
    """The scripts in `migrations/`, in order; script n (from 1) leads to schema version n."""
    folder = _FOLDER / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(folder / name).read_text() for name in names]
