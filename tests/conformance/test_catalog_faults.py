"""The catalog under faults: locked, killed, restarted, deadlocked, its last reply lost (F13)."""

import os
import re
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.postgres import PostgresServer

from catchwater.catalog.db import STATEMENTS
from catchwater.catalog.errors import (
    CatalogRefused,
    CatalogTooNew,
    CatalogUnavailable,
    CatalogUncertain,
    SessionFenced,
)
from catchwater.catalog.postgres import PostgresCatalog
from catchwater.catalog.rows import (
    BrokerRow,
    Changes,
    Notice,
    ObjectRow,
    OffsetCommit,
    PartitionRow,
    RunRow,
    Scope,
    ScopeRows,
    Topic,
)
from catchwater.catalog.sqlite import SqliteCatalog
from catchwater.config import ConfigError

T1 = b"1" * 16
KEY = (T1, 0)
Open = Callable[..., PostgresCatalog]
PATIENCE_S = 60.0
"""What a busy machine may take for anything that comes to an end."""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes to an end is not given up before."""
    monkeypatch.setattr("catchwater.catalog.postgres._TRYING_S", PATIENCE_S)


@pytest.fixture
def connect(postgres_url: str) -> Iterator[Open]:
    opened: list[PostgresCatalog] = []

    def connect(suffix: str = "", connections: int = 8) -> PostgresCatalog:
        catalog = PostgresCatalog(
            postgres_url + suffix, new_cluster_id=lambda: "c-1", connections=connections
        )
        opened.append(catalog)
        return catalog

    yield connect
    for catalog in opened:
        catalog.close()


@pytest.fixture
def admin(postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that the faults leave alone."""
    options = {"application_name": "admin"}
    with psycopg.connect(postgres_url, autocommit=True, **options) as connection:  # type: ignore[arg-type]
        yield connection


def with_topic(catalog: PostgresCatalog, partitions: int = 1) -> PostgresCatalog:
    catalog.create_topic(Topic(T1, "payments", partitions)).result(PATIENCE_S)
    return catalog


def one_record(name: str) -> Callable[[ScopeRows], tuple[Changes, int]]:
    """Append one record, in an object of its own, to every partition seen."""

    def decide(seen: ScopeRows) -> tuple[Changes, int]:
        runs, after = [], []
        for row in seen.partitions:
            at = row.high_watermark
            runs.append(RunRow(*row[:2], at, at, name, 0, 1, 100, 1))
            after.append(PartitionRow(*row[:2], row.log_start, at + 1, row.bytes + 1, 100))
        return Changes(runs, after, [], [ObjectRow(name, "chunk", "live", 1, 1)]), len(runs)

    return decide


def end_backends(admin: psycopg.Connection[Any], which: str) -> int:
    """Terminate our catalogs' backends whose last statement is like this; how many."""
    rows = admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'catchwater' AND datname = current_database() AND query LIKE %s",
        (which,),
    ).fetchall()
    return len(rows)


def end_commit(admin: psycopg.Connection[Any]) -> bool:
    """Terminate the backend that is committing, if there is one."""
    rows = admin.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE state = 'active' AND query LIKE 'COMMIT;%' AND datname = current_database()"
    ).fetchall()
    return bool(rows)


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.01)


# --- SQLite ------------------------------------------------------------------------------------


def test_sqlite_that_somebody_has_locked_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "catalog.db"
    catalog = SqliteCatalog(path, new_cluster_id=lambda: "c-1")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    future = catalog.create_topic(Topic(T1, "payments", 1))
    done, _ = wait([future], timeout=1)
    assert not done
    assert catalog.load().topics == []
    other.execute("ROLLBACK")
    other.close()
    future.result(PATIENCE_S)
    assert len(catalog.load().topics) == 1
    catalog.close()


# --- before a commit ---------------------------------------------------------------------------


def test_a_deadlock_is_tried_again(connect: Open, admin: psycopg.Connection[Any]) -> None:
    catalog = with_topic(connect(), partitions=2)
    lock = "SELECT 1 FROM partition WHERE partition = %s FOR UPDATE"
    admin.execute("BEGIN")
    admin.execute(lock, (1,))
    calls: list[ScopeRows] = []

    def decide(seen: ScopeRows) -> tuple[Changes, int]:
        calls.append(seen)
        return one_record("wal/a")(seen)

    future = catalog.transact(Scope(partitions=[(T1, 0), (T1, 1)]), decide)
    time.sleep(0.2)
    admin.execute("SET deadlock_timeout = '20s'")
    admin.execute(lock, (0,))
    admin.execute("COMMIT")
    assert future.result(PATIENCE_S) == 2
    assert len(catalog.runs_in("wal/a")) == 2


def test_a_serialization_failure_calls_decide_again(
    connect: Open, admin: psycopg.Connection[Any]
) -> None:
    catalog = with_topic(connect("?options=-cdefault_transaction_isolation%3Drepeatable%5C%20read"))
    scope = Scope(partitions=[KEY])
    catalog.transact(scope, one_record("wal/a")).result(PATIENCE_S)
    calls = 0

    def decide(seen: ScopeRows) -> tuple[Changes, int]:
        nonlocal calls
        calls += 1
        if calls == 1:  # somebody else changes what the transaction is about to change
            admin.execute("UPDATE object SET created_ms = 7")
        return one_record("wal/a")(seen)

    assert catalog.transact(scope, decide).result(PATIENCE_S) == 1
    assert calls == 2
    assert [run.base_offset for run in catalog.runs_in("wal/a")] == [0, 1]


def test_idle_connections_that_the_server_has_ended_are_not_used(
    connect: Open, admin: psycopg.Connection[Any]
) -> None:
    catalog = with_topic(connect())
    for _ in range(5):
        assert end_backends(admin, "%") >= 1
        time.sleep(0.05)
        assert catalog.partitions([KEY])
        catalog.alter_topic_config(T1, dict).result(PATIENCE_S)


def test_a_lock_nobody_lets_go_of_fails_the_change_and_nothing_else(
    connect: Open, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    patient = with_topic(connect())
    monkeypatch.setattr("catchwater.catalog.postgres._TRYING_S", 0.5)
    quick = connect("?options=-cstatement_timeout%3D2000")
    admin.execute("BEGIN")
    admin.execute("SELECT 1 FROM partition FOR UPDATE")
    future = quick.transact(Scope(partitions=[KEY]), one_record("wal/a"))
    with pytest.raises(CatalogUnavailable, match="statement timeout"):
        future.result(PATIENCE_S)
    monkeypatch.undo()
    assert quick.partitions([KEY])
    admin.execute("ROLLBACK")
    assert patient.transact(Scope(partitions=[KEY]), one_record("wal/b")).result(PATIENCE_S) == 1


def test_a_transaction_that_stands_still_lets_go_of_its_locks(connect: Open) -> None:
    frozen = connect("?options=-cidle_in_transaction_session_timeout%3D300")
    with_topic(frozen)
    gate, entered = threading.Event(), threading.Event()

    def decide(seen: ScopeRows) -> tuple[Changes, int]:
        entered.set()
        gate.wait(PATIENCE_S)  # as a process under SIGSTOP
        return one_record("wal/frozen")(seen)

    scope = Scope(partitions=[KEY])
    stopped = frozen.transact(scope, decide)
    assert entered.wait(PATIENCE_S)
    assert connect().transact(scope, one_record("wal/other")).result(PATIENCE_S) == 1
    gate.set()
    assert stopped.result(PATIENCE_S) == 1
    assert [run.base_offset for run in frozen.runs(KEY, 0)] == [0, 1]


def test_a_heartbeat_waits_for_no_frozen_broker(connect: Open) -> None:
    catalog = with_topic(connect("?options=-cidle_in_transaction_session_timeout%3D30000"))
    frozen = catalog.join(BrokerRow(1, 0, "", "h", 1, "", "object", True, "live", 0), 100).result(
        PATIENCE_S
    )
    alive = catalog.join(BrokerRow(2, 0, "", "h", 1, "", "object", True, "live", 0), 9999).result(
        PATIENCE_S
    )
    entered, gate = threading.Event(), threading.Event()

    def decide(seen: ScopeRows) -> tuple[Changes, int]:
        entered.set()
        gate.wait(PATIENCE_S)
        return one_record("wal/frozen")(seen)

    stopped = catalog.transact(Scope(session=frozen, partitions=[KEY]), decide)
    entered.wait(PATIENCE_S)
    time.sleep(0.15)
    catalog.heartbeat(alive, "live", 9999).result(PATIENCE_S)
    assert not stopped.done()
    gate.set()
    stopped.result(PATIENCE_S)
    catalog.heartbeat(alive, "live", 9999).result(PATIENCE_S)
    with pytest.raises(SessionFenced):
        catalog.heartbeat(frozen, "live", 9999).result(PATIENCE_S)


def test_a_backend_that_does_not_answer_is_given_up(
    connect: Open, admin: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = with_topic(connect())
    backends = admin.execute(
        "SELECT pid FROM pg_stat_activity "
        "WHERE application_name = 'catchwater' AND datname = current_database()"
    ).fetchall()
    assert backends
    monkeypatch.setattr("catchwater.catalog.server._ANSWER_S", 2.0)
    for (backend,) in backends:
        os.kill(backend, signal.SIGSTOP)
    try:
        catalog.alter_topic_config(T1, lambda _: {"retention.ms": "1"}).result(PATIENCE_S)
    finally:
        for (backend,) in backends:
            os.kill(backend, signal.SIGCONT)
    assert catalog.load().topics[0].config == {"retention.ms": "1"}


def test_a_value_that_postgresql_cannot_hold_is_refused(connect: Open) -> None:
    catalog = with_topic(connect())
    with pytest.raises(CatalogRefused, match="cannot hold"):
        catalog.commit_offsets("g", {("t", 0): OffsetCommit(1, -1, "a\0b")}).result(PATIENCE_S)
    catalog.commit_offsets("g", {("t", 0): OffsetCommit(1, -1, "ab")}).result(PATIENCE_S)


# --- during a commit -----------------------------------------------------------------------------


def test_a_commit_cut_before_it_took_effect_is_uncertain_and_was_not(
    connect: Open, admin: psycopg.Connection[Any]
) -> None:
    catalog = with_topic(connect())
    admin.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM pg_sleep(60); RETURN NULL; END $$"
    )
    admin.execute(
        "CREATE CONSTRAINT TRIGGER slow AFTER INSERT ON run DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION slow()"
    )
    future = catalog.transact(Scope(partitions=[KEY]), one_record("wal/a"))
    wait_until(lambda: end_commit(admin))
    with pytest.raises(CatalogUncertain):
        future.result(PATIENCE_S)
    assert catalog.runs_in("wal/a") == []
    admin.execute("DROP TRIGGER slow ON run")
    assert catalog.transact(Scope(partitions=[KEY]), one_record("wal/b")).result(PATIENCE_S) == 1
    assert catalog.runs(KEY, 0)[0].base_offset == 0


def test_a_commit_whose_reply_is_lost_is_uncertain_and_was(
    connect: Open, admin: psycopg.Connection[Any]
) -> None:
    with_topic(connect())
    # A standby that does not exist: the commit has happened and waits for it for ever.
    admin.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
    admin.execute("SELECT pg_reload_conf()")
    try:
        catalog = connect("?options=-csynchronous_commit%3Don")
        heard: list[Notice] = []
        connect().listen(heard.append)
        future = catalog.transact(Scope(partitions=[KEY]), one_record("wal/a"))
        wait_until(lambda: end_commit(admin))
        with pytest.raises(CatalogUncertain):
            future.result(PATIENCE_S)
        assert [run.base_offset for run in catalog.runs_in("wal/a")] == [0]
        wait_until(lambda: Notice("resync", []) in heard)
    finally:
        admin.execute("ALTER SYSTEM RESET synchronous_standby_names")
        admin.execute("SELECT pg_reload_conf()")


# --- everything at once --------------------------------------------------------------------------


def append_through(catalog: PostgresCatalog, name: str) -> bool:
    """Append as a broker would; whether it was acknowledged."""
    try:
        catalog.transact(Scope(partitions=[KEY]), one_record(name)).result(PATIENCE_S)
    except CatalogUncertain:
        return bool(found(catalog, name))
    except CatalogUnavailable:
        assert found(catalog, name) == []
        return False
    return True


def found(catalog: PostgresCatalog, name: str) -> list[RunRow]:
    """The runs in an object, asked for until there is an answer."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return catalog.runs_in(name)
        except CatalogUnavailable:
            assert time.monotonic() < deadline, "no query came through"


def check_log(catalog: PostgresCatalog, acknowledged: list[str]) -> None:
    runs = catalog.runs(KEY, 0, limit=100_000)
    assert [run.base_offset for run in runs] == list(range(len(runs)))
    assert sorted(run.object for run in runs) == sorted(acknowledged)
    assert catalog.partitions([KEY])[0].high_watermark == len(runs)


def test_backends_that_are_killed_all_the_time_lose_and_double_nothing(
    connect: Open, admin: psycopg.Connection[Any]
) -> None:
    catalogs = [with_topic(connect()), connect()]
    stop = threading.Event()
    ended = 0

    def kill() -> None:
        """Again and again; a machine that gets nothing done meanwhile is given longer."""
        nonlocal ended
        pause_s, before = 0.05, 0
        while not stop.wait(pause_s):
            ended += end_backends(admin, "%")
            pause_s = 0.05 if len(acknowledged) > before else min(2 * pause_s, 5.0)
            before = len(acknowledged)

    acknowledged: list[str] = []
    killer = threading.Thread(target=kill)
    killer.start()
    deadline = time.monotonic() + 2 * PATIENCE_S

    def work(number: int) -> None:
        n = 0
        while (len(acknowledged) < 60 or ended < 20) and time.monotonic() < deadline:
            name = f"wal/{number}-{n}"
            n += 1
            if append_through(catalogs[number % 2], name):
                acknowledged.append(name)

    with ThreadPoolExecutor(4) as workers:
        for done in [workers.submit(work, number) for number in range(4)]:
            done.result(3 * PATIENCE_S)
    stop.set()
    killer.join()
    assert ended >= 20 and len(acknowledged) >= 60
    check_log(catalogs[0], acknowledged)


def test_a_server_that_crashes_and_comes_back_is_waited_for(
    connect: Open, postgres_server: PostgresServer
) -> None:
    catalog = with_topic(connect())
    heard: list[Notice] = []
    catalog.listen(heard.append)
    assert append_through(catalog, "wal/before")
    postgres_server.stop(signal.SIGQUIT)
    waiting = catalog.transact(Scope(partitions=[KEY]), one_record("wal/during"))
    time.sleep(0.3)
    postgres_server.start()
    assert waiting.result(PATIENCE_S) == 1
    check_log(catalog, ["wal/before", "wal/during"])
    wait_until(lambda: Notice("resync") in heard)


def test_a_server_that_stays_away_makes_changes_and_queries_unavailable(
    connect: Open, postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = with_topic(connect())
    postgres_server.stop()
    try:
        monkeypatch.setattr("catchwater.catalog.postgres._TRYING_S", 0.5)
        with pytest.raises(CatalogUnavailable, match="did not do what it was asked"):
            catalog.alter_topic_config(T1, dict).result(PATIENCE_S)
        with pytest.raises(CatalogUnavailable):
            catalog.runs(KEY, 0)
    finally:
        monkeypatch.undo()
        postgres_server.start()
    catalog.alter_topic_config(T1, dict).result(PATIENCE_S)


# --- notices -------------------------------------------------------------------------------------


def test_a_listener_whose_connection_was_lost_says_so_and_goes_on(
    connect: Open, admin: psycopg.Connection[Any]
) -> None:
    catalog = with_topic(connect())
    heard: list[Notice] = []
    connect().listen(heard.append)
    assert end_backends(admin, "%") >= 2  # what the listener last asked says the time
    wait_until(lambda: Notice("resync") in heard)
    assert append_through(catalog, "wal/a")
    wait_until(lambda: Notice("partitions", [(T1, 0, 0, 1)]) in heard)


def test_a_commit_is_durable_even_where_the_servers_default_is_not(connect: Open) -> None:
    catalog = connect("?options=-csynchronous_commit%3Doff")
    with catalog._pool.lend() as connection:
        assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)


# --- opening -------------------------------------------------------------------------------------


def test_three_brokers_may_make_the_tables_at_once(connect: Open) -> None:
    with ThreadPoolExecutor(3) as workers:
        catalogs = list(workers.map(lambda _: connect(), range(3)))
    assert {catalog.load().cluster_id for catalog in catalogs} == {"c-1"}


def test_every_statement_fits_the_tables(connect: Open, admin: psycopg.Connection[Any]) -> None:
    connect()
    for text in STATEMENTS["postgres"].values():
        if text.startswith("SET"):
            continue
        pieces = re.sub(r"--.*", "", text).split("?")
        numbered = "".join(f"{piece}${n}" for n, piece in enumerate(pieces[:-1], 1)) + pieces[-1]
        admin.execute(f"PREPARE p AS {numbered}".encode())
        admin.execute("DEALLOCATE p")


def test_a_newer_schema_is_refused(connect: Open, admin: psycopg.Connection[Any]) -> None:
    connect()
    admin.execute("UPDATE schema_version SET version = 99")
    with pytest.raises(CatalogTooNew, match="schema version 99"):
        connect()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://catchwater:hush-hush@127.0.0.1:1/nowhere",
        "postgresql://catchwater:hush-hush@127.0.0.1:port/nowhere",
        "postgresql://catchwater:hush-hush@127.0.0.1:1/x?unknown_option=1",
    ],
)
def test_no_error_tells_the_password(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catchwater.catalog.postgres._TRYING_S", 0.1)
    with pytest.raises((CatalogUnavailable, ConfigError)) as caught:
        PostgresCatalog(url, new_cluster_id=lambda: "c-1")
    told: BaseException | None = caught.value
    while told is not None:
        assert "hush-hush" not in f"{told} {getattr(told, 'hint', '')}"
        told = told.__cause__


def test_a_wrong_password_is_refused_and_not_told(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catchwater.catalog.postgres._TRYING_S", 0.1)
    wrong = postgres_url.replace("s3cret-of-the-tests", "wrong-secret")
    with pytest.raises(CatalogUnavailable, match="password authentication failed") as caught:
        PostgresCatalog(wrong, new_cluster_id=lambda: "c-1")
    assert "wrong-secret" not in str(caught.value)
