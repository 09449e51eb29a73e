"""Finding what to fetch costs by what is returned, not by what the log holds.

One partition of 10 thousand, 1 million and 10 million runs, in SQLite and in PostgreSQL, loaded
directly. The ratio of the time at the larger sizes to the time at 10 thousand is the claim: a
reader far behind, or in a large log, does not make the catalog slower.
"""

import random
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path

import psycopg
from tests.postgres import PostgresMissing, PostgresServer

from benchmarks.measure import Row, alternate, publish, row
from catchwater.catalog.base import Catalog
from catchwater.catalog.postgres import PostgresCatalog
from catchwater.catalog.rows import Topic
from catchwater.catalog.sqlite import SqliteCatalog

SIZES = (10_000, 1_000_000, 10_000_000)
NAMES = {1_000_000: "1 million", 10_000_000: "10 million"}
TOPIC_ID = b"\x01" * 16
RUN_BYTES = 64 * 1024
RUNS_AN_OBJECT = 100
FETCH_BYTES = 1024 * 1024
LOOKUPS = 300
TARGET = 3.0

# Time goes on by 10 ms a run, and every seventh run is a second late.
_COLUMNS = (
    "topic_id, partition, last_offset, base_offset, object_id, byte_offset, byte_size, "
    "max_timestamp, record_count, reach_timestamp"
)
_VALUES = (
    f"0, 10 * n + 9, 10 * n, n / {RUNS_AN_OBJECT} + 1, "
    f"(n % {RUNS_AN_OBJECT}) * {RUN_BYTES}, {RUN_BYTES}, "
    "10 * n - CASE WHEN n % 7 = 3 THEN 1000 ELSE 0 END, 10, "
    "10 * n - CASE WHEN n % 7 = 3 THEN 10 ELSE 0 END"
)


def load_sqlite(folder: Path, runs: int) -> Catalog:
    """A catalog file with one partition of so many runs."""
    path = folder / f"{runs}.db"
    with _empty(SqliteCatalog(path, new_cluster_id=lambda: "bench")):
        pass
    for beside in folder.glob(f"{runs}.sums"):
        beside.unlink()  # checksums of pages that are about to be written past the catalog
    db = sqlite3.connect(path, isolation_level=None)
    db.executescript(
        "PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA cache_size=-200000"
    )
    indexes = db.execute(
        "SELECT name, sql FROM sqlite_master "
        "WHERE type = 'index' AND tbl_name = 'run' AND sql <> ''"
    ).fetchall()
    for name, _ in indexes:
        db.execute(f"DROP INDEX {name}")
    numbers = "WITH RECURSIVE series (n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM series LIMIT ?) "
    db.execute(
        f"{numbers} INSERT INTO object SELECT n + 1, printf('wal/%020d.wal', n), 'chunk', 'live', "
        "0, 0 FROM series",
        (runs // RUNS_AN_OBJECT,),
    )
    db.execute(
        f"{numbers} INSERT INTO run ({_COLUMNS}) SELECT ?, {_VALUES} FROM series", (runs, TOPIC_ID)
    )
    for _, statement in indexes:
        db.execute(statement)
    db.execute("PRAGMA journal_mode = WAL")
    db.close()
    return SqliteCatalog(path, new_cluster_id=lambda: "bench")


def load_postgres(server: PostgresServer, runs: int) -> Catalog:
    """A database with one partition of so many runs."""
    url = server.new_database()
    with _empty(PostgresCatalog(url, new_cluster_id=lambda: "bench")):
        pass
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SET maintenance_work_mem = '300MB'")
        indexes = db.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'run' "
            "AND indexname <> 'run_pkey'"
        ).fetchall()
        for name, _ in indexes:
            db.execute(f"DROP INDEX {name}".encode())
        db.execute("ALTER TABLE run DROP CONSTRAINT run_pkey")
        db.execute("ALTER TABLE run SET UNLOGGED")
        db.execute(
            "INSERT INTO object (key, kind, state, size_bytes, created_ms) SELECT "
            "'wal/' || lpad(n::text, 20, '0') || '.wal', 'chunk', 'live', 0, 0 "
            "FROM generate_series(0, %s) AS n ORDER BY n",
            (runs // RUNS_AN_OBJECT,),
        )
        values = _VALUES.replace("%", "%%").encode()
        db.execute(
            b"INSERT INTO run (" + _COLUMNS.encode() + b") SELECT %s, " + values
            + b" FROM generate_series(0, %s - 1) AS n",
            (TOPIC_ID, runs),
        )  # fmt: skip
        db.execute("ALTER TABLE run ADD PRIMARY KEY (topic_id, partition, last_offset)")
        for _, statement in indexes:
            db.execute(statement.encode())
        db.execute("VACUUM ANALYZE run")
        db.execute("VACUUM ANALYZE object")
    return PostgresCatalog(url, new_cluster_id=lambda: "bench")


@contextmanager
def _empty(catalog: Catalog) -> Iterator[None]:
    """Make the tables and a topic, and let go."""
    catalog.create_topic(Topic(TOPIC_ID, "bench", 1)).result()
    yield
    catalog.close()


def microseconds(look_up: Callable[[int], object], runs: int) -> float:
    """The median time of a look-up at random places, in microseconds."""
    places = random.Random(runs)
    times = []
    for _ in range(LOOKUPS):
        number = places.randrange(runs - 32)
        start = time.perf_counter()
        look_up(number)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def fetch(catalog: Catalog, number: int) -> None:
    """What a fetch of 1 MiB asks."""
    found = catalog.runs((TOPIC_ID, 0), 10 * number, max_bytes=FETCH_BYTES)
    assert len(found) == FETCH_BYTES // RUN_BYTES


def at_timestamp(catalog: Catalog, number: int) -> None:
    """What ListOffsets with a timestamp asks."""
    found = catalog.run_for_timestamp((TOPIC_ID, 0), 10 * number)
    assert found is not None and found.base_offset // 10 - number in (0, 1)


def compare(database: str, catalogs: dict[int, Catalog]) -> list[Row]:
    """Both look-ups at the larger sizes beside the smallest."""
    small = SIZES[0]
    rows = []
    for name, look_up in (("1 MiB of runs", fetch), ("a timestamp", at_timestamp)):
        for runs in SIZES[1:]:
            figures = [
                partial(microseconds, partial(look_up, catalogs[size]), size)
                for size in (runs, small)
            ]
            claim = f"{database}: {name} in {NAMES[runs]}"
            large, few = alternate(*figures)
            rows.append(row(claim, "µs", large, "10 thousand", few, target=TARGET, better="lower"))
    return rows


def main() -> None:
    """Both databases, one after the other; about three minutes, 4 GB of disk."""
    rows: list[Row] = []
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-catalog-")))
        catalogs = {runs: load_sqlite(folder, runs) for runs in SIZES}
        for catalog in catalogs.values():
            stack.callback(catalog.close)
        rows += compare("SQLite", catalogs)
    with ExitStack() as stack, suppress(PostgresMissing):
        server = PostgresServer()
        stack.callback(server.close)
        catalogs = {runs: load_postgres(server, runs) for runs in SIZES}
        for catalog in catalogs.values():
            stack.callback(catalog.close)
        rows += compare("PostgreSQL", catalogs)
    publish("catalog", rows)


if __name__ == "__main__":
    main()
