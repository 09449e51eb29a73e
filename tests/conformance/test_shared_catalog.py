"""What every catalog of many brokers keeps to: sessions, leases, one order, notices."""

import threading
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest

from catchwater.catalog.errors import BrokerRefused, SessionFenced
from catchwater.catalog.memory import MemoryCatalog, MemoryDatabase, call_now
from catchwater.catalog.rows import (
    BrokerRow,
    Changes,
    GroupChanges,
    Notice,
    ObjectRow,
    PartitionRow,
    RunRow,
    Scope,
    ScopeRows,
    Session,
    Topic,
)
from catchwater.catalog.shared import SharedCatalog
from catchwater.clock import ManualClock

T1 = b"1" * 16
KEY = (T1, 0)
TTL_MS = 300_000
PATIENCE_S = 60.0


class Shared(NamedTuple):
    """A catalog that several brokers may connect to, and a way to let its time pass."""

    connect: Callable[[], SharedCatalog]
    let_pass: Callable[[int], None]


@pytest.fixture(params=["memory", "postgres"])
def shared(request: pytest.FixtureRequest) -> Iterator[Shared]:
    opened: list[SharedCatalog] = []
    clock = ManualClock()
    memory = MemoryDatabase(clock, call_now)
    postgres_url = request.getfixturevalue("postgres_url") if request.param == "postgres" else ""

    def connect() -> SharedCatalog:
        catalog: SharedCatalog
        if request.param == "memory":
            catalog = MemoryCatalog(memory)
        else:
            from catchwater.catalog.postgres import PostgresCatalog

            catalog = PostgresCatalog(postgres_url, new_cluster_id=lambda: "c-1", connections=8)
        opened.append(catalog)
        return catalog

    def let_pass(ms: int) -> None:
        if request.param == "memory":
            clock.advance(ms)
        else:
            threading.Event().wait(ms / 1000)

    yield Shared(connect, let_pass)
    for catalog in opened:
        catalog.close()
    memory.close()


def broker(number: int, *, wal: str = "object", is_shared: bool = True) -> BrokerRow:
    return BrokerRow(number, 0, "z1", "host", 9092, "http://c", wal, is_shared, "live", 0)


def one_record(name: str) -> Callable[[ScopeRows], tuple[Changes, int]]:
    """Append one record in an object of its own; the offset it got."""

    def decide(seen: ScopeRows) -> tuple[Changes, int]:
        [row] = seen.partitions
        at = row.high_watermark
        run = RunRow(*KEY, at, at, name, 0, 1, 100, 1)
        after = PartitionRow(*KEY, row.log_start, at + 1, row.bytes + 1, 100)
        return Changes([run], [after], [], [ObjectRow(name, "chunk", "live", 1, 1)]), at

    return decide


def append(catalog: SharedCatalog, session: Session | None, name: str) -> int:
    scope = Scope(session=session, partitions=[KEY])
    return catalog.transact(scope, one_record(name)).result(PATIENCE_S)


def with_topic(catalog: SharedCatalog) -> SharedCatalog:
    catalog.create_topic(Topic(T1, "payments", 1)).result(PATIENCE_S)
    return catalog


def test_brokers_join_are_seen_and_leave(shared: Shared) -> None:
    catalog = shared.connect()
    first = catalog.join(broker(1), TTL_MS).result(PATIENCE_S)
    second = shared.connect().join(broker(2), TTL_MS).result(PATIENCE_S)
    assert first.broker_id == 1 and second.broker_id == 2
    assert second.epoch > first.epoch
    [one, two] = shared.connect().brokers()
    assert one == broker(1)._replace(epoch=first.epoch, deadline_ms=one.deadline_ms)
    assert two.zone == "z1"
    alive = catalog.heartbeat(first, "draining", TTL_MS).result(PATIENCE_S)
    assert [row.state for row in alive] == ["draining", "live"]
    assert alive == catalog.brokers()
    catalog.leave(first).result(PATIENCE_S)
    catalog.leave(first).result(PATIENCE_S)
    assert [row.id for row in catalog.brokers()] == [2]


def test_a_superseded_session_changes_nothing(shared: Shared) -> None:
    catalog = with_topic(shared.connect())
    old = catalog.join(broker(1), TTL_MS).result(PATIENCE_S)
    assert append(catalog, old, "wal/a") == 0
    new = shared.connect().join(broker(1), TTL_MS).result(PATIENCE_S)
    for refused in (
        catalog.transact(Scope(session=old, partitions=[KEY]), one_record("wal/b")),
        catalog.heartbeat(old, "live", TTL_MS),
        catalog.take_lease("pack/0", old, TTL_MS),
        catalog.claim_group("g", old),
    ):
        with pytest.raises(SessionFenced, match=f"Session {old.epoch} of broker 1"):
            refused.result(PATIENCE_S)
    catalog.leave(old).result(PATIENCE_S)
    assert catalog.runs_in("wal/b") == []
    assert [row.epoch for row in catalog.brokers()] == [new.epoch]
    assert append(catalog, new, "wal/c") == 1


def test_a_heartbeat_ends_the_sessions_that_missed_theirs(shared: Shared) -> None:
    catalog = with_topic(shared.connect())
    silent = catalog.join(broker(1), 200).result(PATIENCE_S)
    alive = catalog.join(broker(2), TTL_MS).result(PATIENCE_S)
    shared.let_pass(250)
    assert [row.id for row in catalog.brokers()] == [2]
    assert append(catalog, silent, "wal/not-yet-superseded") == 0
    left = catalog.heartbeat(alive, "live", TTL_MS).result(PATIENCE_S)
    assert [row.id for row in left] == [2]
    with pytest.raises(SessionFenced):
        append(catalog, silent, "wal/superseded")
    with pytest.raises(SessionFenced):
        catalog.heartbeat(silent, "live", TTL_MS).result(PATIENCE_S)


def test_a_broker_with_a_log_of_its_own_joins_no_other(shared: Shared) -> None:
    catalog = shared.connect()
    catalog.join(broker(1, wal="file", is_shared=False), TTL_MS).result(PATIENCE_S)
    catalog.join(broker(1, wal="file", is_shared=False), TTL_MS).result(PATIENCE_S)
    with pytest.raises(BrokerRefused, match=r"log of broker 1 \(file\) cannot be read"):
        catalog.join(broker(2), TTL_MS).result(PATIENCE_S)
    only = catalog.join(broker(1), TTL_MS).result(PATIENCE_S)
    with pytest.raises(BrokerRefused, match=r"log of broker 2 \(file\) cannot be read"):
        catalog.join(broker(2, wal="file", is_shared=False), TTL_MS).result(PATIENCE_S)
    assert [row.epoch for row in catalog.brokers()] == [only.epoch]


def test_live_brokers_write_to_one_kind_of_log(shared: Shared) -> None:
    catalog = shared.connect()
    catalog.join(broker(1, wal="object"), TTL_MS).result(PATIENCE_S)
    with pytest.raises(BrokerRefused, match="kind postgres, the other to one of the kind object"):
        catalog.join(broker(2, wal="postgres"), TTL_MS).result(PATIENCE_S)
    catalog.join(broker(1, wal="postgres"), TTL_MS).result(PATIENCE_S)
    catalog.join(broker(2, wal="postgres"), TTL_MS).result(PATIENCE_S)


def test_a_lease_has_one_live_holder(shared: Shared) -> None:
    catalog = shared.connect()
    one = catalog.join(broker(1), TTL_MS).result(PATIENCE_S)
    two = catalog.join(broker(2), TTL_MS).result(PATIENCE_S)
    assert catalog.take_lease("pack/0", one, TTL_MS).result(PATIENCE_S)
    assert catalog.take_lease("pack/0", one, TTL_MS).result(PATIENCE_S)
    assert not catalog.take_lease("pack/0", two, TTL_MS).result(PATIENCE_S)
    assert catalog.take_lease("pack/1", two, 100).result(PATIENCE_S)
    shared.let_pass(150)
    assert catalog.take_lease("pack/1", one, TTL_MS).result(PATIENCE_S)
    catalog.leave(one).result(PATIENCE_S)
    assert catalog.take_lease("pack/0", two, TTL_MS).result(PATIENCE_S)


def test_a_trim_under_a_lease_needs_the_lease(shared: Shared) -> None:
    catalog = with_topic(shared.connect())
    one = catalog.join(broker(1), TTL_MS).result(PATIENCE_S)
    two = catalog.join(broker(2), TTL_MS).result(PATIENCE_S)
    assert append(catalog, one, "wal/a") == 0
    assert catalog.take_lease("pins", one, 100).result(PATIENCE_S)
    shared.let_pass(150)
    assert catalog.take_lease("pins", two, TTL_MS).result(PATIENCE_S)
    with pytest.raises(SessionFenced, match="lost the lease 'pins'"):
        catalog.trim({KEY: 1}, ("pins", one)).result(PATIENCE_S)
    assert [row.log_start for row in catalog.partitions([KEY])] == [0]
    catalog.trim({KEY: 1}, ("pins", two)).result(PATIENCE_S)
    assert [row.log_start for row in catalog.partitions([KEY])] == [1]


def test_runs_replaced_under_a_lease_need_the_lease(shared: Shared) -> None:
    catalog = with_topic(shared.connect())
    one = catalog.join(broker(1), TTL_MS).result(PATIENCE_S)
    two = catalog.join(broker(2), TTL_MS).result(PATIENCE_S)
    append(catalog, one, "wal/a")
    before = catalog.runs(KEY, 0)
    assert catalog.take_lease("pins", two, TTL_MS).result(PATIENCE_S)
    with pytest.raises(SessionFenced, match="lost the lease 'pins'"):
        catalog.replace_runs(before, [], [], ("pins", one)).result(PATIENCE_S)
    assert catalog.runs(KEY, 0) == before
    catalog.replace_runs(before, [], [], ("pins", two)).result(PATIENCE_S)
    assert catalog.runs(KEY, 0) == []


def test_claims_of_a_session_supersede_each_other(shared: Shared) -> None:
    catalog = shared.connect()
    one = catalog.join(broker(1), TTL_MS).result(PATIENCE_S)
    two = catalog.join(broker(2), TTL_MS).result(PATIENCE_S)
    first = catalog.claim_group("g", one).result(PATIENCE_S)
    catalog.keep_group("g", GroupChanges(3), claim_epoch=first.epoch).result(PATIENCE_S)
    second = catalog.claim_group("g", two).result(PATIENCE_S)
    assert second.epoch > first.epoch and second.generation == 3


def test_two_sessions_that_race_on_a_partition_get_consecutive_offsets(shared: Shared) -> None:
    with_topic(shared.connect())
    got: list[int] = []

    def race(number: int) -> None:
        catalog = shared.connect()
        session = catalog.join(broker(number), TTL_MS).result(PATIENCE_S)
        for n in range(40):
            got.append(append(catalog, session, f"wal/{number}-{n}"))

    threads = [threading.Thread(target=race, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
        if "memory" in type(shared.connect()).__module__:
            thread.join()  # SQLite in memory is for one thread at a time
    for thread in threads:
        thread.join(PATIENCE_S)
    assert sorted(got) == list(range(80))
    catalog = shared.connect()
    assert [run.base_offset for run in catalog.runs(KEY, 0)] == list(range(80))
    assert catalog.partitions([KEY]) == [PartitionRow(*KEY, 0, 80, 80, 100)]


def test_a_chunks_bytes_may_travel_in_its_commit(shared: Shared) -> None:
    catalog = with_topic(shared.connect())
    data = bytes(range(256)) * 10
    change = Changes(payloads=[("wal/a", memoryview(data)), ("wal/b", bytearray(b"other"))])
    catalog.transact(Scope(), lambda seen: (change, None)).result(PATIENCE_S)
    again = shared.connect()
    assert again.payload("wal/a", 0, len(data)) == data
    assert again.payload("wal/a", 255, 3) == b"\xff\x00\x01"
    assert again.payload("wal/b", 0, 99) == b"other"
    assert again.payload("wal/c", 0, 1) is None
    catalog.delete_payloads(["wal/a", "wal/gone"]).result(PATIENCE_S)
    assert again.payload("wal/a", 0, 1) is None
    assert again.payload("wal/b", 0, 5) == b"other"


def test_a_snapshot_leaves_the_producers_to_the_database(shared: Shared) -> None:
    catalog = with_topic(shared.connect())
    append(catalog, None, "wal/a")
    snapshot = shared.connect().load()
    assert snapshot.producers == []
    assert snapshot.partitions == [PartitionRow(*KEY, 0, 1, 1, 100)]


class Heard:
    """Notices as they come, and a way to wait for one."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._changed = threading.Condition()

    def __call__(self, notice: Notice) -> None:
        with self._changed:
            self.notices.append(notice)
            self._changed.notify_all()

    def wait_for(self, wanted: Callable[[Notice], bool]) -> Notice:
        with self._changed:
            found = self._changed.wait_for(
                lambda: next((notice for notice in self.notices if wanted(notice)), None),
                PATIENCE_S,
            )
        assert found is not None, f"only heard {self.notices}"
        return found


def test_everybody_hears_of_every_change(shared: Shared) -> None:
    catalog = shared.connect()
    heard = Heard()
    shared.connect().listen(heard)
    with_topic(catalog)
    heard.wait_for(lambda notice: notice.kind == "topics")
    session = catalog.join(broker(1), TTL_MS).result(PATIENCE_S)
    heard.wait_for(lambda notice: notice.kind == "brokers")
    append(catalog, session, "wal/a")
    heard.wait_for(lambda notice: (T1, 0, 0, 1) in notice.partitions)
    catalog.trim({KEY: 1}).result(PATIENCE_S)
    heard.wait_for(lambda notice: (T1, 0, 1, 1) in notice.partitions)


def test_nobody_hears_of_what_was_refused(shared: Shared) -> None:
    catalog = with_topic(shared.connect())
    session = catalog.join(broker(1), TTL_MS).result(PATIENCE_S)
    catalog.leave(session).result(PATIENCE_S)
    heard = Heard()
    shared.connect().listen(heard)
    with pytest.raises(SessionFenced):
        append(catalog, session, "wal/refused")
    append(catalog, None, "wal/a")
    told = heard.wait_for(lambda notice: notice.kind == "partitions")
    assert told.partitions == [(T1, 0, 0, 1)]
    assert heard.notices == [told]


def test_a_notice_about_many_partitions_arrives_whole(shared: Shared) -> None:
    catalog = shared.connect()
    catalog.create_topic(Topic(T1, "wide", 1000)).result(PATIENCE_S)
    heard = Heard()
    shared.connect().listen(heard)
    rows = [PartitionRow(T1, index, 0, 2**62, 1, -1) for index in range(1000)]
    catalog.transact(Scope(), lambda seen: (Changes(partitions=rows), None)).result(PATIENCE_S)
    heard.wait_for(lambda _: sum(len(notice.partitions) for notice in heard.notices) == 1000)
    told = [row for notice in heard.notices for row in notice.partitions]
    assert sorted(told) == [row[:4] for row in rows]
