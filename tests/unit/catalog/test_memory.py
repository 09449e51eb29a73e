"""The catalog in memory: nothing half done, notices when the simulation wants them."""

from collections.abc import Callable

import pytest

from catchwater.catalog.memory import MemoryCatalog, MemoryDatabase
from catchwater.catalog.rows import Changes, Notice, Scope, ScopeRows, Topic
from catchwater.clock import ManualClock

T1 = b"1" * 16


def test_a_bug_in_a_change_leaves_no_transaction_open() -> None:
    database = MemoryDatabase(ManualClock(), lambda call: call())
    catalog = MemoryCatalog(database)

    def decide(seen: ScopeRows) -> tuple[Changes, None]:
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        catalog.transact(Scope(), decide)
    catalog.create_topic(Topic(T1, "t", 1)).result(0)
    assert len(catalog.load().topics) == 1
    database.close()


def test_notices_wait_until_they_are_scheduled_and_stop_with_their_listener() -> None:
    later: list[Callable[[], None]] = []
    database = MemoryDatabase(ManualClock(), later.append)
    one, two = MemoryCatalog(database), MemoryCatalog(database)
    heard: list[Notice] = []
    one.listen(heard.append)
    two.create_topic(Topic(T1, "t", 1)).result(0)
    assert heard == []
    [call] = later
    call()
    assert heard == [Notice("topics")]
    one.close()
    database.notify(Notice("resync"))
    assert len(later) == 1
    database.close()


def test_two_databases_of_one_seed_have_one_name() -> None:
    names = set()
    for _ in range(2):
        database = MemoryDatabase(ManualClock(seed=7), lambda call: call())
        names.add(MemoryCatalog(database).load().cluster_id)
        database.close()
    assert len(names) == 1
