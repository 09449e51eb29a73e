"""What is particular to SQLite: the file, its schema, its refusals."""

import builtins
import errno
import io
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from catchwater.catalog.db import migrations
from catchwater.catalog.errors import CatalogDead, CatalogTooNew, CatalogUnavailable, TopicExists
from catchwater.catalog.rows import (
    AbortedRow,
    Changes,
    EndedTxn,
    ObjectRow,
    OffsetCommit,
    OpenTxnRow,
    PartitionRow,
    Pin,
    ProducerRow,
    RunRow,
    Scope,
    Topic,
)
from catchwater.catalog.sqlite import SqliteCatalog

T1 = b"1" * 16
KEY = (T1, 0)
WAL = "wal/00000000000000000001.wal"
TOPIC = Topic(T1, "payments", 2, {"retention.ms": "1000"})


_OPEN: list[SqliteCatalog] = []


@pytest.fixture(autouse=True)
def close_what_was_opened() -> Iterator[None]:
    yield
    while _OPEN:
        _OPEN.pop().close()


def opened(path: Path, lag_s: float = 3600) -> SqliteCatalog:
    catalog = SqliteCatalog(path / "catalog.db", new_cluster_id=lambda: "c-1", lag_s=lag_s)
    _OPEN.append(catalog)
    return catalog


def test_a_newer_schema_is_refused_by_name(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with sqlite3.connect(tmp_path / "catalog.db") as db:
        db.execute("UPDATE schema_version SET version = 99")
    db.close()
    (tmp_path / "catalog.sums").unlink()
    with pytest.raises(CatalogTooNew, match=r"catalog\.db has schema version 99"):
        opened(tmp_path)


def test_writing_opens_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    catalog = opened(tmp_path)
    catalog.create_topic(TOPIC).result(60)

    def scarce(path: object, *rest: object, **more: object) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as without:
        for module, name in ((os, "open"), (io, "open"), (io, "open_code"), (builtins, "open")):
            without.setattr(module, name, scarce)
        for number in range(40):  # enough for several checkpoints
            topic = Topic(number.to_bytes(16), f"t-{number}", 1000, {})
            catalog.create_topic(topic).result(60)
            catalog.commit_offsets("g", {("payments", 0): OffsetCommit(number)}).result(60)
            catalog.delete_topic(topic.id).result(60)
        catalog.flush().result(60)
    assert catalog.committed("g")["payments", 0].offset == 39


def test_a_reader_without_descriptors_does_not_call_the_catalog_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = opened(tmp_path)
    connect = catalog._connect

    def scarce() -> sqlite3.Connection:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    catalog._idle.clear()
    monkeypatch.setattr(catalog, "_connect", scarce)
    with pytest.raises(CatalogUnavailable, match="cannot be opened now"):
        catalog.groups()
    monkeypatch.setattr(catalog, "_connect", connect)
    assert catalog.groups() == []


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"not a database " * 100)
    with pytest.raises(CatalogDead, match=r"catalog\.db cannot be read"):
        opened(tmp_path)


def test_a_crash_while_the_schema_is_made_leaves_none(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "catalog.db")
    with pytest.raises(sqlite3.OperationalError):
        db.executescript(f"BEGIN IMMEDIATE;\n{migrations()[0]}\nSELECT * FROM nothing;")
    db.close()
    catalog = opened(tmp_path)
    assert catalog.load().cluster_id == "c-1"
    catalog.close()


def test_every_transaction_is_synced(tmp_path: Path) -> None:
    catalog = opened(tmp_path)
    assert catalog._db.execute("PRAGMA synchronous").fetchone() == (2,)
    assert catalog._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    catalog.close()


def test_a_pin_on_a_topic_with_any_name_comes_back(tmp_path: Path) -> None:
    catalog = opened(tmp_path)
    pin = Pin("p", 'o"wner', {('to"pic', 3): 2**60}, None, 0)
    catalog.set_pin(pin).result(60)
    assert catalog.pins() == [pin]
    catalog.close()


def test_a_catalog_of_version_1_is_upgraded_where_it_is(tmp_path: Path) -> None:
    db = sqlite3.connect(tmp_path / "catalog.db")
    db.executescript(migrations()[0])
    db.execute("INSERT INTO log VALUES ('c-old', 3, 1001)")
    db.execute("INSERT INTO topic VALUES (?, 'payments', 2, '{}')", (T1,))
    db.executemany("INSERT INTO partition VALUES (?, ?, 0, 4, 4, 100)", [(T1, 0), (T1, 1)])
    db.execute("INSERT INTO object VALUES (1, ?, 'chunk', 'live', 4, 5)", (WAL,))
    rows = [(T1, n, n, n, timestamp) for n, timestamp in enumerate((100, 50, 300, 200))]
    db.executemany("INSERT INTO run VALUES (?, 0, ?, ?, 1, ?, 1, ?, 1)", rows)
    db.execute("INSERT INTO object VALUES (9, 'segments/s.seg', 'segment', 'deleting', 6, 7)")
    db.execute("INSERT INTO pin VALUES ('p', 'me', '[]', NULL, 1)")
    db.commit()
    db.close()
    catalog = opened(tmp_path)
    assert catalog.load().cluster_id == "c-old"
    assert catalog.load().applied_sequence == 3
    assert catalog.pins() == [Pin("p", "me", {}, None, 1)]
    assert catalog.allocate_producer_ids(1).result(60) == 1001
    found = [catalog.run_for_timestamp(KEY, at) for at in (60, 101, 301)]
    assert [run and run.base_offset for run in found] == [0, 2, None]
    assert [run.object for run in found[:2] if run] == [WAL, WAL]
    assert catalog.objects("deleting") == [ObjectRow("segments/s.seg", "segment", "deleting", 6, 7)]
    assert catalog.parquet(KEY, 0, 9) == []
    catalog.close()
    opened(tmp_path).close()


# --- following the write-ahead log ---------------------------------------------------------------


def chunk(first: int, last: int, *, at: int = 0) -> Changes:
    """One run of one-byte records, the partition behind it, and its producer."""
    size = last - first + 1
    return Changes(
        runs=[RunRow(T1, 0, first, last, WAL, at, size, -1, size)],
        partitions=[PartitionRow(T1, 0, 0, last + 1, last + 1, -1)],
        producers=[ProducerRow(T1, 0, 9, 1, ((first, last, first),), 1000 + last)],
        objects=[ObjectRow(WAL, "chunk", "live", at + size, 5)],
    )


def with_topic(path: Path) -> SqliteCatalog:
    catalog = opened(path)
    catalog.create_topic(TOPIC).result(60)
    return catalog


def test_what_was_applied_is_read_back_at_once_and_durable_after_a_flush(tmp_path: Path) -> None:
    catalog = with_topic(tmp_path)
    first, second = chunk(0, 4), chunk(5, 9, at=5)
    catalog.apply(1, first)
    catalog.apply(2, second)
    assert catalog.runs(KEY, 0) == [*first.runs, *second.runs]
    assert not opened(tmp_path).runs(KEY, 0)
    assert opened(tmp_path).load().applied_sequence == 0
    catalog.flush().result(60)
    again = opened(tmp_path)
    assert again.runs(KEY, 0) == catalog.runs(KEY, 0) == [*first.runs, *second.runs]
    snapshot = again.load()
    assert snapshot.applied_sequence == 2
    assert snapshot.partitions[0] == second.partitions[0]
    assert list(snapshot.producers) == list(second.producers)
    assert snapshot.topics == [TOPIC]


def test_a_barrier_is_never_durable_without_the_chunks_before_it(tmp_path: Path) -> None:
    catalog = with_topic(tmp_path)
    catalog.apply(1, chunk(0, 4))
    catalog.commit_offsets("g", {("payments", 0): OffsetCommit(5)}).result(60)
    again = opened(tmp_path)
    assert again.committed("g") == {("payments", 0): OffsetCommit(5)}
    assert again.load().applied_sequence == 1
    assert len(again.runs(KEY, 0)) == 1


def test_a_refused_barrier_leaves_the_others_in_its_transaction_alone(tmp_path: Path) -> None:
    catalog = with_topic(tmp_path)
    catalog.apply(1, chunk(0, 4))
    futures = [catalog.set_pin(Pin(f"p{n}", "me", {}, None, n)) for n in range(5)]
    refused = catalog.create_topic(Topic(b"2" * 16, "payments", 1))
    more = [catalog.set_pin(Pin(f"q{n}", "me", {}, None, n)) for n in range(5)]
    with pytest.raises(TopicExists, match="payments"):
        refused.result(60)
    for future in futures + more:
        future.result(60)
    assert len(opened(tmp_path).pins()) == 10
    assert opened(tmp_path).load().applied_sequence == 1


def test_what_transactions_do_is_applied_in_the_order_of_the_chunks(tmp_path: Path) -> None:
    catalog = with_topic(tmp_path)
    position = OffsetCommit(5)
    waiting = Changes(txn_offsets=[(9, "g", "payments", 0, position)])
    catalog.transact(Scope(), lambda seen: (waiting, None)).result(60)
    aborted = AbortedRow(T1, 0, 8, 0, 4)
    catalog.apply(1, Changes(open_txns=[OpenTxnRow(T1, 0, 9, 0), OpenTxnRow(T1, 0, 8, 0)]))
    catalog.apply(2, Changes(closed_txns=[(T1, 0, 9), (T1, 0, 8)], aborted=[aborted]))
    catalog.apply(3, Changes(ended=[EndedTxn(9, True)], open_txns=[OpenTxnRow(T1, 0, 9, 6)]))
    assert catalog.aborted(KEY, 0, 9) == [aborted]
    assert opened(tmp_path).open_txns(9) == []
    catalog.flush().result(60)
    again = opened(tmp_path)
    assert again.open_txns(9) == [OpenTxnRow(T1, 0, 9, 6)]
    assert again.open_txns(8) == []
    assert again.aborted(KEY, 0, 9) == catalog.aborted(KEY, 0, 9) == [aborted]
    assert again.committed("g") == {("payments", 0): position}
