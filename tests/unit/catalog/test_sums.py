"""Every flipped bit and every cut of a SQLite file is noticed before SQLite reads it."""

import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from catchwater.catalog.sums import (
    CHECKPOINT_PAGES,
    CatalogDamaged,
    PageSums,
    find_spoiled,
    sums_path,
)

ROWS = 300
TOGETHER = 10


class Database:
    """A database with checksums, as the catalog's writer uses it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.closed = False
        self.sums = PageSums(path)
        self.db = sqlite3.connect(path, isolation_level=None)
        self.db.execute("PRAGMA journal_mode = WAL")
        self.db.execute("PRAGMA synchronous = FULL")
        self.db.execute("PRAGMA wal_autocheckpoint = 0")
        self.db.execute("CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, text TEXT)")
        self.sums.begin(self.db)

    def insert(self, count: int = ROWS) -> None:
        for _ in range(count // TOGETHER):
            self.db.execute("BEGIN")
            rows = [("x" * 50,)] * TOGETHER
            self.db.executemany("INSERT INTO t (text) VALUES (?)", rows)
            self.db.execute("COMMIT")

    def crash(self, to: Path) -> Path:
        """What a killed process leaves."""
        to.mkdir()
        for file in self.path.parent.glob("catalog.*"):
            shutil.copy(file, to / file.name)
        return to / self.path.name

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        self.sums.checkpoint(self.db)
        self.db.close()
        self.sums.close()


@pytest.fixture
def open_database(tmp_path: Path) -> Iterator[Callable[[Path], Database]]:
    opened: list[Database] = []

    def open_it(path: Path = tmp_path / "catalog.db") -> Database:
        opened.append(Database(path))
        return opened[-1]

    yield open_it
    for database in opened:
        database.close()


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def test_a_database_that_nobody_touched_opens_again(tmp_path: Path) -> None:
    for _ in range(3):
        database = Database(tmp_path / "catalog.db")
        database.insert()
        database.close()
        assert not list(find_spoiled(tmp_path / "catalog.db"))
    assert not (tmp_path / "catalog.db-wal").exists()


def test_every_flipped_bit_of_the_file_is_noticed_in_its_page(tmp_path: Path) -> None:
    database = Database(tmp_path / "catalog.db")
    database.insert()
    database.close()
    path = tmp_path / "catalog.db"
    whole = path.read_bytes()
    draw = random.Random(4)
    for bit in [*range(0, 800, 7), *(draw.randrange(len(whole) * 8) for _ in range(200))]:
        flip(path, bit)
        (found,) = find_spoiled(path)
        assert found.path == path
        assert found.first_byte <= bit // 8 <= found.last_byte
        path.write_bytes(whole)
    with pytest.raises(CatalogDamaged, match="damaged in bytes 0 to 4095"):
        flip(path, 77)
        PageSums(path)


@pytest.mark.parametrize("size", [0, 1, 4096, 5000])
def test_a_file_cut_short_is_noticed(tmp_path: Path, size: int) -> None:
    database = Database(tmp_path / "catalog.db")
    database.insert()
    database.close()
    path = tmp_path / "catalog.db"
    path.write_bytes(path.read_bytes()[:size])
    assert list(find_spoiled(path))


def test_a_database_that_is_gone_is_not_begun_anew(tmp_path: Path) -> None:
    database = Database(tmp_path / "catalog.db")
    database.close()
    (tmp_path / "catalog.db").unlink()
    with pytest.raises(CatalogDamaged, match="gone"):
        PageSums(tmp_path / "catalog.db")


def test_a_copy_from_an_earlier_time_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    database = Database(path)
    database.insert()
    database.close()
    earlier = path.read_bytes()
    database = Database(path)
    database.insert()
    database.close()
    path.write_bytes(earlier)
    assert list(find_spoiled(path))


def test_a_crash_at_any_moment_raises_no_alarm(
    tmp_path: Path, open_database: Callable[[Path], Database]
) -> None:
    database = open_database(tmp_path / "catalog.db")
    for life in range(20):
        database.insert(40)
        if life % 3 == 0:
            database.sums.checkpoint(database.db)
        left = database.crash(tmp_path / f"life-{life}")
        assert not list(find_spoiled(left))
        after = open_database(left)
        (count,) = after.db.execute("SELECT count(*) FROM t").fetchone()
        assert count == 40 * (life + 1)


def test_a_crash_between_checkpoint_and_checksums_raises_no_alarm(
    tmp_path: Path, open_database: Callable[[Path], Database]
) -> None:
    database = open_database(tmp_path / "catalog.db")
    database.insert()
    database.db.execute("PRAGMA wal_checkpoint(PASSIVE)")
    left = database.crash(tmp_path / "after")
    assert not list(find_spoiled(left))
    open_database(left)
    assert not list(find_spoiled(left))


def test_a_torn_last_transaction_raises_no_alarm_and_a_flip_before_it_does(
    tmp_path: Path, open_database: Callable[[Path], Database]
) -> None:
    database = open_database(tmp_path / "catalog.db")
    database.insert()
    left = database.crash(tmp_path / "after")
    wal = left.with_name("catalog.db-wal")
    whole = wal.read_bytes()
    wal.write_bytes(whole[:-1000])
    assert not list(find_spoiled(left))
    slot = 24 + 4096
    draw = random.Random(4)
    flipped = 0
    for _ in range(60):
        bit = draw.randrange(len(whole) * 8)
        wal.write_bytes(whole)
        flip(wal, bit)
        if bit // 8 < len(whole) - 4 * slot:
            assert [found.path for found in find_spoiled(left)] == [wal], bit
            flipped += 1
    assert flipped


def test_checkpoints_come_when_enough_was_written(
    tmp_path: Path, open_database: Callable[[Path], Database]
) -> None:
    database = open_database(tmp_path / "catalog.db")
    for _ in range(40):
        database.insert(1000)
        database.sums.keep_up(database.db)
    wal_bytes = (tmp_path / "catalog.db-wal").stat().st_size
    assert (CHECKPOINT_PAGES - 50) * 4096 < wal_bytes < CHECKPOINT_PAGES * 3 * 4096
    assert not list(find_spoiled(tmp_path / "catalog.db"))


def test_a_database_without_checksums_gets_them_if_it_is_sound(
    tmp_path: Path, open_database: Callable[[Path], Database]
) -> None:
    path = tmp_path / "catalog.db"
    database = Database(path)
    database.insert()
    database.close()
    sums_path(path).unlink()
    open_database(path).close()
    assert sums_path(path).exists()
    data = bytearray(path.read_bytes())
    data[4096:4196] = bytes(100)
    path.write_bytes(data)
    sums_path(path).unlink()
    with pytest.raises((CatalogDamaged, sqlite3.DatabaseError)):
        open_database(path)
