"""PostgreSQL's failures by name: a backend that is ended, a server that is away, a refused row."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import time
from pathlib import Path

import msgspec
import psycopg
import pytest

from catchwater.config import ConfigError
from catchwater.sinks import reconcile
from catchwater.sinks.base import NotAdmitted, OutputRecord, SinkUnavailable, TargetDiffers
from catchwater.sinks.columns import RowUnfit
from catchwater.sinks.config import SinkContext, open_sink, parse
from catchwater.sinks.kinds.postgres import PostgresDatabase


@pytest.fixture
def database(postgres_url: str) -> Iterator[PostgresDatabase]:
    with closing(PostgresDatabase(postgres_url)) as opened:
        with opened.transaction() as transaction:
            transaction.execute("CREATE TABLE t (a bigint UNIQUE, b text)")
        yield opened


def end_backends(url: str) -> None:
    with psycopg.connect(url) as other:
        other.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )


def rows(database: PostgresDatabase) -> int:
    return len(list(database.scan("SELECT * FROM t", ())))


def test_a_backend_that_is_ended_undoes_the_transaction_and_the_next_one_works(
    database: PostgresDatabase, postgres_url: str
) -> None:
    with pytest.raises(SinkUnavailable, match=r"PostgreSQL at 127.0.0.1:\d+/\w+ is out of reach"):
        with database.transaction() as transaction:
            transaction.insert("t", ["a", "b"], ((i, "x") for i in range(1000)))
            end_backends(postgres_url)
    assert rows(database) == 0
    end_backends(postgres_url)  # between two transactions
    with pytest.raises(SinkUnavailable), database.transaction():
        pass
    with database.transaction() as transaction:
        transaction.insert("t", ["a", "b"], ((i, "x") for i in range(1000)))
    assert rows(database) == 1000


def test_a_server_that_is_away_is_named_without_the_password() -> None:
    with closing(PostgresDatabase("postgresql://me:secret@127.0.0.1:1/shop")) as database:
        with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1:1/shop is out of reach") as away:
            with database.transaction():
                pass
    assert "secret" not in str(away.value)


def test_rows_that_the_table_refuses_are_told_from_a_table_that_is_gone(
    database: PostgresDatabase,
) -> None:
    with pytest.raises(RowUnfit, match="unique constraint"), database.transaction() as t:
        t.insert("t", ["a", "b"], [(1, "x"), (1, "y")])
    with pytest.raises(RowUnfit, match="refuses an output"), database.transaction() as t:
        t.insert("t", ["a", "b"], [(1, "nul \0")])
    with pytest.raises(RowUnfit), database.transaction() as t:
        t.insert("t", ["a", "b"], [(2**70, "x")])
    with pytest.raises(TargetDiffers, match="does not exist"), database.transaction() as t:
        t.insert("gone", ["a"], [(1,)])
    assert rows(database) == 0


def test_a_named_lock_keeps_others_waiting(database: PostgresDatabase, postgres_url: str) -> None:
    with closing(PostgresDatabase(postgres_url)) as other:
        with database.transaction() as transaction:
            transaction.lock("cards/alerts")
            with other.transaction() as second:
                second.execute("SET LOCAL lock_timeout = 50")
                second.lock("cards/others")
            with pytest.raises(SinkUnavailable, match="lock"), other.transaction() as second:
                second.execute("SET LOCAL lock_timeout = 50")
                second.lock("cards/alerts")


@pytest.mark.parametrize("url", ["mysql://h/d", "postgresql://h", "h/d"])
def test_what_is_no_url_of_a_database_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="must be the URL of a PostgreSQL database"):
        PostgresDatabase(url)


def test_two_threads_take_turns(database: PostgresDatabase) -> None:
    def other() -> int:
        with database.transaction() as transaction:
            return len(transaction.execute("SELECT * FROM t"))

    with ThreadPoolExecutor(1) as pool:
        with database.transaction() as transaction:
            transaction.execute("INSERT INTO t VALUES (1, 'x')")
            waiting = pool.submit(other)
            transaction.execute("INSERT INTO t VALUES (2, 'x')")
            assert not waiting.done()
        assert waiting.result(60) == 2


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://me:s3cret@h:abc/d",
        "postgresql://me:s3/cret@h/d",
        "postgresql://me:s3%cret@h/d",
        "postgresql://h/d?sslmod=require",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError, match="must be the URL of a PostgreSQL database") as refused:
        PostgresDatabase(url)
    assert "s3" not in str(refused.value) and "cret" not in str(refused.value)


def test_several_hosts_and_a_socket_are_urls_of_a_database() -> None:
    for url in ("postgresql://a:1,b:2/shop", "postgresql:///shop?host=/run/postgresql"):
        PostgresDatabase(url).close()


def test_a_login_in_vain_is_told_at_once(postgres_url: str) -> None:
    wrong = postgres_url.replace("s3cret", "wrong")
    with closing(PostgresDatabase(wrong)) as other, pytest.raises(NotAdmitted) as refused:
        with other.transaction():
            pass
    assert "password authentication failed" in str(refused.value)
    assert "wrong" not in str(refused.value)
    nowhere = f"{postgres_url.rpartition('/')[0]}/nowhere"
    with closing(PostgresDatabase(nowhere)) as other:
        with pytest.raises(NotAdmitted, match='database "nowhere" does not exist'):
            with other.transaction():
                pass


def test_who_may_not_write_is_told_what_to_grant(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as owner:
        owner.execute("DROP ROLE IF EXISTS guest")
        owner.execute("CREATE ROLE guest LOGIN PASSWORD 'guest'")
    url = f"postgresql://guest:guest@{postgres_url.rpartition('@')[2]}"
    with closing(PostgresDatabase(url)) as guest:
        with pytest.raises(TargetDiffers, match="permission denied for schema public") as told:
            with guest.transaction() as transaction:
                transaction.execute("CREATE TABLE g (a int)")
    assert "GRANT" in str(told.value.hint)


def test_options_of_the_url_are_obeyed_and_times_are_in_utc(postgres_url: str) -> None:
    url = f"{postgres_url}?options=-c%20search_path%3Dpg_catalog"
    with closing(PostgresDatabase(url)) as database, database.transaction() as transaction:
        assert transaction.execute("SHOW search_path") == [("pg_catalog",)]
        assert transaction.execute("SHOW TimeZone") == [("UTC",)]


def test_a_column_of_a_domain_has_the_type_beneath(database: PostgresDatabase) -> None:
    with database.transaction() as transaction:
        transaction.execute("CREATE DOMAIN card AS text CHECK (value <> '')")
        transaction.execute(
            "CREATE TABLE d (a card NOT NULL, b bigint GENERATED ALWAYS AS IDENTITY)"
        )
        found = database.columns(transaction, '"d"')
        assert found == {"a": ("text", True), "b": ("int8", False)}
        assert database.columns(transaction, '"public"."d"') == found
        assert database.columns(transaction, '"nowhere"."d"') == {}


def test_a_table_with_its_schema_is_the_table_without(database: PostgresDatabase) -> None:
    with database.transaction() as transaction:
        assert database.full_names(transaction, ["t", "public.t", "other.t"]) == [
            "public.t", "public.t", "other.t",
        ]  # fmt: skip


def test_a_text_that_no_column_takes_is_told_with_its_row(database: PostgresDatabase) -> None:
    with database.transaction() as transaction:
        transaction.execute("CREATE TABLE texts (a text, e int, s int, r int)")
    columns = ["a", "e", "s", "r"]
    with pytest.raises(RowUnfit, match=r"NUL .*\(epoch, shard, row: 7, 1, 4\)"):
        with database.transaction() as transaction:
            transaction.insert("texts", columns, [("fine", 7, 1, 3), ("nul \0", 7, 1, 4)])


def test_a_view_is_told_as_what_it_is(database: PostgresDatabase) -> None:
    with pytest.raises(TargetDiffers, match="cannot copy to view") as told:
        with database.transaction() as transaction:
            transaction.execute("CREATE VIEW v AS SELECT * FROM t")
            transaction.insert("v", ["a"], [(1,)])
    assert "Name a table" in str(told.value.hint)


@dataclass
class Loose:
    """Fields that are JSON, whatever stands in them."""

    either: int | str | None
    clock: time
    nested: dict[str, float | str]


def test_json_columns_that_hold_texts_are_compared_as_what_they_are(
    postgres_url: str, tmp_path: Path
) -> None:
    context = SinkContext("cards", tmp_path.as_uri(), tmp_path, output_type=Loose)
    options = {"kind": "postgres", "url": postgres_url, "table": "loose"}
    outputs = [
        Loose(either, time(1, 2, 3), nested)
        for either in (5, "5", "abc", "null", None, "")
        for nested in ({"a": 1e308, "b": 0.1}, {"a": "1", "c": 2.0**63})
    ]
    records = [OutputRecord(b"k", msgspec.json.encode(each), 0) for each in outputs]
    with closing(open_sink(parse("loose", options), context)) as sink:
        sink.commit(0, [sink.stager().stage(0, 0, records)])
        assert reconcile.verify(sink, 0).findings == ()
        with psycopg.connect(postgres_url) as other:
            other.execute("UPDATE loose SET either = '5' WHERE either = '\"5\"'")
        found = reconcile.verify(sink, 0).findings
        assert [(each.kind, each.id.row) for each in found] == [("altered", 2), ("altered", 3)]
        assert reconcile.repair(sink, reconcile.verify(sink, 0)) == []
        assert reconcile.verify(sink, 0).findings == ()
