"""A backup is read back whole, a damaged one passed over by name, an older catalog refused."""

from collections.abc import Callable

import pytest

from catchwater.catalog.memory import MemoryCatalog, MemoryDatabase, call_now
from catchwater.catalog.rows import OffsetCommit, Topic
from catchwater.clock import ManualClock
from catchwater.log.repair.backup import (
    BACKUPS,
    KEPT,
    BackupDamaged,
    Backups,
    CatalogOlder,
    decode,
    newest_backup,
    refuse_older,
)
from catchwater.objects.memory import MemoryStore

CLOCK = ManualClock()


def new_catalog() -> MemoryCatalog:
    return MemoryCatalog(MemoryDatabase(CLOCK, call_now))


@pytest.fixture
def catalog() -> MemoryCatalog:
    catalog = new_catalog()
    catalog.create_topic(Topic(b"t" * 16, "t", 2)).result()
    return catalog


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore(CLOCK)


@pytest.fixture
def move(catalog: MemoryCatalog) -> Callable[[int], None]:
    return lambda offset: catalog.commit_offsets("g", {("t", 0): OffsetCommit(offset)}).result()


def test_a_backup_fills_an_empty_catalog(
    catalog: MemoryCatalog, objects: MemoryStore, move: Callable[[int], None]
) -> None:
    move(7)
    assert Backups(catalog, objects, CLOCK).back_up() == 1
    backup, damaged = newest_backup(objects)
    assert backup is not None and not damaged
    other = new_catalog()
    other.restore(backup.state, [], [], backup.number).result()
    assert other.committed("g") == catalog.committed("g")
    assert other.load() == catalog.load()


def test_nothing_is_written_unless_something_changed(
    catalog: MemoryCatalog, objects: MemoryStore, move: Callable[[int], None]
) -> None:
    backups = Backups(catalog, objects, CLOCK)
    assert [backups.back_up(), backups.back_up()] == [1, None]
    move(8)
    assert backups.back_up() == 2


def test_the_newest_few_are_kept(
    catalog: MemoryCatalog, objects: MemoryStore, move: Callable[[int], None]
) -> None:
    backups = Backups(catalog, objects, CLOCK)
    for offset in range(KEPT + 3):
        move(offset)
        backups.back_up()
    kept = [info.key for info in objects.list(BACKUPS)]
    assert len(kept) == KEPT
    assert kept[-1] == f"{BACKUPS}{KEPT + 3:020d}.json.zst"


def test_every_flipped_bit_of_a_backup_is_noticed(
    catalog: MemoryCatalog, objects: MemoryStore, move: Callable[[int], None]
) -> None:
    move(7)
    Backups(catalog, objects, CLOCK).back_up()
    [key] = [info.key for info in objects.list(BACKUPS)]
    data = objects.get(key)
    truth = decode(key, 1, data)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert decode(key, 1, bytes(flipped)) == truth
        except BackupDamaged:
            continue


def test_a_damaged_backup_is_named_and_the_one_before_it_taken(
    catalog: MemoryCatalog, objects: MemoryStore, move: Callable[[int], None]
) -> None:
    backups = Backups(catalog, objects, CLOCK)
    backups.back_up()
    move(7)
    backups.back_up()
    key = f"{BACKUPS}{2:020d}.json.zst"
    objects.put(key, [objects.get(key)[:-9]])
    backup, damaged = newest_backup(objects)
    assert backup is not None and backup.number == 1
    assert [key in str(error) for error in damaged] == [True]


def test_a_catalog_from_before_the_newest_backup_is_refused(
    catalog: MemoryCatalog, objects: MemoryStore
) -> None:
    Backups(catalog, objects, CLOCK).back_up()
    refuse_older(catalog, objects)
    with pytest.raises(CatalogOlder, match="earlier time"):
        refuse_older(new_catalog(), objects)
