"""A topic's table: the topic's rows, each once, whatever ends in between or comes first."""

import base64
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import closing
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest import mock

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.types import LongType
from sqlalchemy.orm import Session
from tests.power import Power
from tests.schema_registry import FakeRegistry, schema_registry

from catchwater.broker_config import LogConfig
from catchwater.catalog.rows import Pin, Topic
from catchwater.config import CatchwaterError
from catchwater.log.keep.pack import Packer
from catchwater.log.tables import iceberg, upkeep
from catchwater.log.tables import writer as writing
from catchwater.log.tables.iceberg import TopicTable, table_state
from catchwater.log.tables.open import TableRefused, TableUnavailable, TableUnfit
from catchwater.log.tables.rows import RAW, Shape
from catchwater.log.tables.settings import PARTITION_BY, TABLE, Term, refused_table, terms
from catchwater.log.tables.writer import TableWriter
from catchwater.objects.local import PIECE_BYTES
from catchwater.values.settings import BadSchema, ValueFormat, ValueSettings
from catchwater.wire.arrow import encode_batch

OpenLog = Callable[..., Any]
RECORDS = [
    (b"key", b"value", 1_700_000_000_123, [("trace", b"\x01"), ("trace", None)]),
    (None, None, 0, []),
    (b"", b"", -1, []),
    (b"k" * 70, b"v" * 5000, 1_700_000_000_124, [("ünder", b"")]),
]
DDL = "card string, amount double"


class Crash(BaseException):
    """The process ends here."""


class World:
    """A log whose topics are tables, and brokers that come and go."""

    def __init__(self, open_log: OpenLog, root: Path) -> None:
        self.log = open_log()
        self.root = root
        self.properties = {
            "type": "sql",
            "uri": f"sqlite:///{root}/tables.db",
            "warehouse": (root / "tables").as_uri(),
        }
        self.writers: list[TableWriter] = []
        self.registry = "", ""

    def topic(self, partitions: int = 1, **config: str) -> Topic:
        self.log.create_topic("t", partitions, catchwater_table="lake.t", **config)
        return self.named("t")

    def named(self, name: str) -> Topic:
        return next(topic for topic in self.log.topics.values() if topic.name == name)

    def alter(self, topic: Topic, **config: str) -> Topic:
        options = {**topic.config, **{k.replace("_", "."): v for k, v in config.items()}}
        changed = Topic(topic.id, topic.name, topic.partitions, options)
        self.log.topics[topic.id] = changed
        return changed

    def broker(self) -> TableWriter:
        """One that has just started."""
        url, login = self.registry
        config = LogConfig(
            tables=tuple(self.properties.items()), schema_registry=url, schema_registry_login=login
        )
        writer = TableWriter(self.log.core(), config)
        self.writers.append(writer)
        return writer

    def advance(self, writer: TableWriter, topic: Topic) -> bool:
        writer._core = self.log.core()
        stable = {p: self.log.ends[topic.id, p] for p in range(topic.partitions)}
        return writer.advance(topic, stable, lambda: True)

    def append(self, topic: Topic, partition: int = 0, records: Any = RECORDS, codec: int = 0):
        self.log.append(((topic.id, partition), encode_batch(records, codec=codec)))

    def append_json(self, topic: Topic, *rows: object) -> None:
        values = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
        self.append(topic, records=[(None, value, 0, []) for value in values])

    def pack(self, writer: TableWriter | None = None) -> int:
        log, config = self.log, LogConfig()
        more = [writer.packed] if writer else []
        if writer:
            writer._core = log.core()
        return Packer(log.catalog, log.storage, log.clock, config, log.topic_name, *more).pack()

    def catalog(self) -> Catalog:
        return load_catalog("catchwater", **self.properties)

    def table(self) -> Any:
        with closing(self.catalog()) as catalog:
            return catalog.load_table("lake.t")

    def rows(self, *columns: str) -> list[dict[str, Any]]:
        """What a reader of the table sees, by place."""
        found = self.table().scan().to_arrow()
        found = found.sort_by([("partition", "ascending"), ("offset", "ascending")])
        return (found.select(columns) if columns else found).to_pylist()

    def places(self) -> list[tuple[int, int]]:
        return [(row["partition"], row["offset"]) for row in self.rows("partition", "offset")]

    def expected(self) -> list[tuple[int, int]]:
        return sorted((key[1], at) for key, end in self.log.ends.items() for at in range(end))

    def log_ends(self, topic: Topic) -> dict[int, int]:
        return {p: self.log.ends[topic.id, p] for p in range(topic.partitions)}

    def close(self) -> None:
        for writer in self.writers:
            writer.close()


@pytest.fixture
def world(open_log: OpenLog, tmp_path: Path) -> Iterator[World]:
    world = World(open_log, tmp_path)
    yield world
    world.close()


def test_the_table_has_the_topics_records_and_nothing_else(world: World) -> None:
    topic = world.topic(2)
    for codec in range(5):
        world.append(topic, codec % 2, codec=codec)
        world.pack()
    world.append(topic, 1)  # in a chunk still
    assert world.advance(world.broker(), topic)
    assert world.places() == world.expected()
    [first, none, empty, last] = world.rows()[:4]
    assert first["key"] == b"key" and first["value"] == b"value"
    assert first["timestamp"].timestamp() == 1_700_000_000.123
    assert first["headers"] == [{"key": "trace", "value": b"\x01"}, {"key": "trace", "value": None}]
    assert (none["key"], none["value"], none["timestampType"]) == (None, None, 0)
    assert (empty["key"], empty["value"]) == (b"", b"")
    assert last["key"] == b"k" * 70 and last["value"] == b"v" * 5000
    assert [field.name for field in world.table().schema().fields] == RAW.names


def test_a_turn_goes_on_where_the_last_one_ended_in_whichever_broker(world: World) -> None:
    topic = world.topic(2)
    broker = world.broker()
    for step in range(4):
        world.append(topic, step % 2)
        world.append(topic, 0)
        if step % 2:
            broker = world.broker()
        assert world.advance(broker, topic)
        assert world.places() == world.expected()
    commits = len(world.table().snapshots())
    assert world.advance(broker, topic), "nothing is new"
    assert len(world.table().snapshots()) == commits == 4


def test_where_it_stands_is_in_its_snapshot(world: World) -> None:
    topic = world.topic(2)
    world.append(topic, 1)
    world.advance(world.broker(), topic)
    summary = world.table().current_snapshot().summary
    assert json.loads(summary["catchwater.offsets"]) == {"1": 4}
    assert summary["catchwater.records"] == "4"
    assert summary["catchwater.topic"] == "t"


def crash_before(target: Any, name: str) -> Any:
    return mock.patch.object(target, name, side_effect=Crash)


def crash_after(target: Any, name: str) -> Any:
    real = getattr(target, name)

    def last(*args: Any, **kwargs: Any) -> Any:
        real(*args, **kwargs)
        raise Crash

    return mock.patch.object(target, name, last)


@pytest.mark.parametrize(
    "crash",
    [
        lambda: crash_before(TopicTable, "open"),
        lambda: crash_after(TopicTable, "open"),
        lambda: crash_before(TopicTable, "write"),
        lambda: crash_after(TopicTable, "write"),
        lambda: crash_before(TopicTable, "_add"),
        lambda: crash_after(TopicTable, "_add"),
        lambda: crash_after(TopicTable, "commit"),
    ],
)
@pytest.mark.parametrize("is_new", [True, False])
def test_a_process_that_ends_leaves_neither_gap_nor_double(
    world: World, crash: Any, is_new: bool
) -> None:
    topic = world.topic(2)
    if not is_new:
        world.append(topic, 0)
        world.advance(world.broker(), topic)
    world.append(topic, 0)
    world.append(topic, 1)
    with crash(), pytest.raises(Crash):
        world.advance(world.broker(), topic)
    world.append(topic, 1)
    world.advance(world.broker(), topic)
    assert world.places() == world.expected()


def test_of_two_brokers_that_commit_at_once_one_is_let_through(world: World) -> None:
    topic = world.topic(2)
    world.append(topic, 0)
    one, other = world.broker(), world.broker()
    real = TopicTable._add

    def late(self: TopicTable, table: Any, batch: Any) -> None:
        if self is one._tables[topic.id][1] and not other.counts:
            world.append(topic, 1)
            world.advance(other, topic)
        real(self, table, batch)

    with mock.patch.object(TopicTable, "_add", late):
        world.advance(one, topic)
    assert world.places() == world.expected()
    assert one.counts["t"].commits == 0 and one.counts["t"].conflicts >= 1
    world.append(topic, 0)
    world.advance(one, topic)
    assert world.places() == world.expected()
    named = {file.file.file_path for file in world.table().scan().plan_files()}
    there = {path.as_uri() for path in (world.root / "tables").rglob("*.parquet")}
    assert there == named, "what was not let through is gone"


def test_a_commit_of_somebody_else_in_between_costs_another_try(world: World) -> None:
    topic = world.topic()
    world.append(topic)
    broker = world.broker()
    world.advance(broker, topic)
    world.append(topic)
    real = TopicTable._add
    others = iter([0, 1])

    def late(self: TopicTable, table: Any, batch: Any) -> None:
        if (offset := next(others, None)) is not None:
            with closing(world.catalog()) as catalog:
                catalog.load_table("lake.t").delete(f"offset = {offset}")
        real(self, table, batch)

    with mock.patch.object(TopicTable, "_add", late):
        world.advance(broker, topic)
    assert world.places() == world.expected()[2:]
    assert broker.counts["t"].conflicts == 2


def test_a_commit_whose_reply_was_lost_is_found(world: World) -> None:
    from pyiceberg.exceptions import CommitFailedException

    topic = world.topic()
    world.append(topic)
    real = TopicTable._add

    def lost(self: TopicTable, table: Any, batch: Any) -> None:
        real(self, table, batch)
        raise CommitFailedException("the reply was lost")

    broker = world.broker()
    with mock.patch.object(TopicTable, "_add", lost):
        world.advance(broker, topic)
    assert world.places() == world.expected()
    assert broker.counts["t"].commits == 1


def test_what_the_packer_has_just_packed_is_not_read_again(world: World) -> None:
    topic = world.topic(2)
    broker = world.broker()
    world.advance(broker, topic)
    for step in range(3):
        world.append(topic, 0, codec=step)
        world.append(topic, 1)
        world.pack(broker)
    with mock.patch.object(type(world.log.storage), "read", side_effect=AssertionError):
        world.advance(broker, topic)
    assert world.places() == world.expected()
    assert broker.counts["t"].handed_over == broker.counts["t"].records == 24


def test_what_the_packer_hands_over_is_taken_with_rests(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rests: list[int] = []
    topic = world.topic()
    broker = world.broker()
    world.advance(broker, topic)
    monkeypatch.setattr(writing, "resting", lambda clock, go_on: lambda: rests.append(1))
    world.append(topic)
    world.pack(broker)
    assert broker.counts["t"].handed_over and rests


def test_what_the_packer_hands_over_is_bounded_by_files(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FILE_BYTES", 10_000)
    topic = world.topic()
    broker = world.broker()
    world.advance(broker, topic)
    for _ in range(6):
        world.append(topic)
        world.pack(broker)
    world.advance(broker, topic)
    assert world.places() == world.expected()
    assert len(list(world.table().scan().plan_files())) == 3
    assert len(world.table().snapshots()) == 1


def test_what_a_snapshot_names_is_there_after_a_loss_of_power(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "MERGE_LEAST", 2)
    power, warehouse, commits = Power(monkeypatch), world.root / "tables", []
    real = Session.commit

    def commit(self: Session) -> None:
        assert not list(power.lost(warehouse))
        commits.append(self)
        real(self)

    monkeypatch.setattr(Session, "commit", commit)
    topic = world.topic()
    broker = world.broker()
    for _ in range(3):
        world.append(topic, records=[(b"k", os.urandom(PIECE_BYTES), 0, ())] * 3)
        world.advance(broker, topic)
    assert world.places() == world.expected()
    assert len(list(world.table().scan().plan_files())) < 3, "files are made one, too"
    assert len(commits) > 4


def test_what_is_not_stable_waits(world: World) -> None:
    topic = world.topic()
    world.append(topic)
    broker = world.broker()
    broker.advance(topic, {0: 2}, lambda: True)
    assert world.places() == [(0, 0), (0, 1)]
    world.advance(broker, topic)
    assert world.places() == world.expected()


def test_a_table_that_was_rolled_back_is_filled_again(world: World) -> None:
    topic = world.topic()
    broker = world.broker()
    for _ in range(3):
        world.append(topic)
        world.advance(broker, topic)
    with closing(world.catalog()) as catalog:
        table = catalog.load_table("lake.t")
        first = table.snapshots()[0].snapshot_id
        table.manage_snapshots().rollback_to_snapshot(first).commit()
    assert world.places() == world.expected()[:4]
    world.advance(broker, topic)
    assert world.places() == world.expected()


def test_snapshots_of_others_in_between_change_nothing(world: World) -> None:
    topic = world.topic()
    broker = world.broker()
    world.append(topic)
    world.advance(broker, topic)
    with closing(world.catalog()) as catalog:
        catalog.load_table("lake.t").delete("offset = 1")
    world.append(topic)
    world.advance(broker, topic)
    assert world.places() == [each for each in world.expected() if each != (0, 1)]


def test_where_our_snapshot_has_expired_the_property_says_it(world: World) -> None:
    topic = world.topic()
    world.append(topic)
    world.advance(world.broker(), topic)
    with closing(world.catalog()) as catalog:
        table = catalog.load_table("lake.t")
        table.delete("offset = 1")
        table.refresh()
        ours = table.snapshots()[0].snapshot_id
        table.maintenance.expire_snapshots().by_ids([ours]).commit()
        table.refresh()
        assert table_state(table).offsets == {0: 4}


def test_what_the_log_has_deleted_is_a_gap_that_is_named(world: World) -> None:
    topic = world.topic()
    broker = world.broker()
    world.append(topic)
    world.advance(broker, topic)
    for _ in range(2):
        world.append(topic)
        world.pack()
    world.log.catalog.trim({(topic.id, 0): 10}).result()
    broker = world.broker()
    world.advance(broker, topic)
    assert world.places() == [(0, at) for at in (0, 1, 2, 3, 10, 11)]
    assert table_state(world.table()).gaps == ((0, 4, 10),)
    broker.table(topic).open()
    assert broker.table(topic).native({0: (0, 12)}).spans == {0: (10, 12)}


def test_a_log_that_went_back_in_time_is_refused(world: World) -> None:
    topic = world.topic()
    world.append(topic)
    world.advance(world.broker(), topic)
    world.log.ends[topic.id, 0] = 2
    broker = world.broker()
    with pytest.raises(TableRefused, match="restored to an earlier time"):
        world.advance(broker, topic)
    assert "restored" in broker.counts["t"].error


def test_a_table_of_something_else_is_refused(world: World) -> None:
    topic = world.topic()
    with closing(world.catalog()) as catalog:
        catalog.create_namespace("lake")
        catalog.create_table("lake.t", RAW)
    with pytest.raises(TableRefused, match="not a topic's"):
        world.advance(world.broker(), topic)


def test_a_table_of_a_topic_that_was_deleted_is_refused(world: World) -> None:
    topic = world.topic()
    world.append(topic)
    world.advance(world.broker(), topic)
    again = Topic(b"another".ljust(16, b"."), "t", 1, topic.config)
    with pytest.raises(TableRefused, match="another topic"):
        world.broker().state(again)


def test_a_catalog_out_of_reach_is_named(world: World) -> None:
    world.properties = {"type": "sql", "uri": "sqlite:////proc/none/tables.db"}
    topic = world.topic()
    with pytest.raises(TableUnavailable):
        world.advance(world.broker(), topic)


def test_damaged_records_stop_their_partition_alone(world: World) -> None:
    topic = world.topic(2)
    world.append(topic, 0)
    world.append(topic, 1)
    world.pack()
    [run] = world.log.catalog.runs((topic.id, 0), 0)
    path = world.log.root / "objects" / run.object
    data = bytearray(path.read_bytes())
    data[run.byte_offset + 80] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    broker = world.broker()
    world.advance(broker, topic)
    assert world.places() == [(1, at) for at in range(4)]
    assert "Offsets 0 to 3 of partition 0 of t cannot be read" in broker.counts["t"].error


def test_old_snapshots_of_ours_are_expired(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(iceberg, "KEPT_SNAPSHOTS", 2)
    topic = world.topic(catchwater_table_snapshot_retention_ms="0")
    broker = world.broker()
    for _ in range(7):
        world.append(topic)
        world.advance(broker, topic)
        assert len(world.table().snapshots()) < 4
    assert world.places() == world.expected()
    lists = list((world.root / "tables").rglob("snap-*.avro"))
    assert len(lists) == len(world.table().snapshots())


# --- typed values --------------------------------------------------------------------------------

TYPED = {"catchwater_history_value_format": "json", "catchwater_history_value_schema": DDL}


def test_declared_values_are_columns(world: World) -> None:
    topic = world.topic(**TYPED)
    world.append_json(topic, {"card": "a", "amount": 1.5, "more": 1}, {"card": None})
    world.append(topic, records=[(b"k", None, 0, [])])
    world.advance(world.broker(), topic)
    found = world.rows("offset", "card", "amount", "_malformed")
    assert [tuple(row.values()) for row in found] == [
        (0, "a", 1.5, None), (1, None, None, None), (2, None, None, None),
    ]  # fmt: skip


def test_malformed_values_keep_their_bytes_and_are_counted(world: World) -> None:
    topic = world.topic(**TYPED)
    world.append_json(topic, {"card": "a"}, b"no json", {"card": 7}, {"card": "b"})
    broker = world.broker()
    world.advance(broker, topic)
    assert [row["_malformed"] for row in world.rows()] == [None, b"no json", b'{"card": 7}', None]
    assert [row["card"] for row in world.rows()] == ["a", None, None, "b"]
    assert broker.counts["t"].malformed == 2
    assert world.table().current_snapshot().summary["catchwater.malformed"] == "2"


@pytest.mark.parametrize("declared", [TYPED, {}])
def test_fields_that_nobody_may_see_are_not_in_the_table(
    world: World, declared: dict[str, str]
) -> None:
    topic = world.topic(**declared, catchwater_fields="card=mask,amount=drop")
    world.append_json(topic, {"card": "4242", "amount": 1.5})
    world.advance(world.broker(), topic)
    [row] = world.rows()
    if declared:
        assert (row["card"], row["amount"]) == ("***", None)
    else:
        assert json.loads(row["value"]) == {"card": "***"}


def test_a_field_named_like_a_column_of_ours_is_refused(world: World) -> None:
    topic = world.topic(
        catchwater_history_value_format="json", catchwater_history_value_schema="offset long"
    )
    with pytest.raises(BadSchema, match="named like another column"):
        world.advance(world.broker(), topic)
    topic = world.alter(topic, **KEPT, catchwater_history_value_schema="_value long")
    with pytest.raises(BadSchema, match="named like another column"):
        world.advance(world.broker(), topic)


KEPT = {"catchwater_table_value_bytes": "true"}
VALUES = [
    b'{"card": "a",  "amount": 1, "unknown": null}', b"no json", b'{"amount":1.50}', b"{}", None,
]  # fmt: skip


def test_declared_values_are_kept_as_bytes_where_that_is_asked_for(world: World) -> None:
    """To the letter: also fields that are not declared, spaces, and what is malformed."""
    topic = world.topic(**TYPED, **KEPT)
    broker = world.broker()
    world.append(topic, records=[(b"k", value, 0, []) for value in VALUES])
    world.advance(broker, topic)
    assert [row["_value"] for row in world.rows()] == VALUES
    assert [row["_malformed"] for row in world.rows()] == [None, b"no json", None, None, None]
    table = broker.table(topic)
    table.open()
    typed, as_bytes = table.native({0: (0, 9)}), table.native({0: (0, 9)}, as_bytes=True)
    assert typed is not None and as_bytes is not None
    assert (typed.spans, as_bytes.spans) == ({0: (0, 5)}, {0: (0, 5)})
    assert typed.values and not as_bytes.values


def native(world: World, broker: TableWriter, topic: Topic, *, as_bytes: bool) -> Any:
    table = broker.table(topic)
    table.open()
    found = table.native({0: (0, 99), 1: (0, 99)}, as_bytes=as_bytes)
    assert found is not None
    return found.spans, bool(found.values)


def test_bytes_stand_for_records_from_where_they_are_kept_and_fields_as_ever(world: World) -> None:
    """However the schema changes meanwhile, as long as what may be seen of a value is the same."""
    topic = world.topic(**TYPED)
    broker = world.broker()

    def grown(topic: Topic) -> None:
        world.append_json(topic, {"card": "a", "amount": 1}, {"card": "b"})
        world.advance(broker, topic)

    grown(topic)
    assert native(world, broker, topic, as_bytes=True) == ({0: (0, 2)}, True)
    topic = world.alter(topic, **KEPT)
    grown(topic)
    assert native(world, broker, topic, as_bytes=True) == ({0: (2, 4)}, False)
    assert native(world, broker, topic, as_bytes=False) == ({0: (0, 4)}, True)
    topic = world.alter(topic, catchwater_history_value_schema=f"{DDL}, note string")
    grown(topic)
    assert native(world, broker, topic, as_bytes=True) == ({0: (2, 6)}, False)
    assert native(world, broker, topic, as_bytes=False) == ({0: (4, 6)}, True)
    topic = world.alter(topic, catchwater_fields="amount=drop")
    grown(topic)
    assert native(world, broker, topic, as_bytes=True) == ({0: (6, 8)}, False)
    assert [row["_value"] for row in world.rows()][6:] == [b'{"card":"a"}', b'{"card":"b"}']
    topic = world.alter(topic, catchwater_table_value_bytes="false")
    grown(topic)
    assert native(world, broker, topic, as_bytes=True) == ({0: (6, 10)}, True)
    assert [row["_value"] for row in world.rows()][8:] == [None, None]


def test_bytes_of_a_topic_that_declares_nothing_are_its_values(world: World) -> None:
    topic = world.topic(**KEPT)
    broker = world.broker()
    world.append_json(topic, {"card": "a"})
    world.advance(broker, topic)
    assert "_value" not in world.rows()[0]
    assert native(world, broker, topic, as_bytes=True) == ({0: (0, 1)}, False)


def test_narrow_integers_are_as_wide_as_iceberg_has_them() -> None:
    shape = Shape(ValueSettings(ValueFormat.JSON, "a byte, b struct<c: short>, d array<byte>"))
    kinds = {field.name: field.type for field in shape.schema}
    assert kinds["a"] == pa.int32()
    assert kinds["b"].field("c").type == pa.int32()
    assert kinds["d"].value_type == pa.int32()


def test_a_column_that_is_added_is_there_from_then_on(world: World) -> None:
    topic = world.topic(**TYPED)
    broker = world.broker()
    world.append_json(topic, {"card": "a", "amount": 1, "note": "early"})
    world.advance(broker, topic)
    topic = world.alter(topic, catchwater_history_value_schema=f"{DDL}, note string")
    world.append_json(topic, {"card": "b", "note": "late"})
    world.advance(broker, topic)
    assert [row["note"] for row in world.rows()] == [None, "late"]


def test_a_column_is_widened(world: World) -> None:
    topic = world.topic(
        catchwater_history_value_format="json", catchwater_history_value_schema="n int"
    )
    broker = world.broker()
    world.append_json(topic, {"n": 1})
    world.advance(broker, topic)
    topic = world.alter(topic, catchwater_history_value_schema="n long")
    world.append_json(topic, {"n": 2**40})
    world.advance(broker, topic)
    assert [row["n"] for row in world.rows()] == [1, 2**40]
    assert world.table().schema().find_type("n") == LongType()


def test_a_column_that_was_renamed_at_the_table_is_still_fed(world: World) -> None:
    topic = world.topic(**TYPED)
    world.append_json(topic, {"card": "a"})
    world.advance(world.broker(), topic)
    with (
        closing(world.catalog()) as catalog,
        catalog.load_table("lake.t").update_schema() as update,
    ):
        update.rename_column("card", "card_number")
    world.append_json(topic, {"card": "b"})
    world.advance(world.broker(), topic)
    assert [row["card_number"] for row in world.rows()] == ["a", "b"]
    assert "card" not in world.table().schema().column_names


def test_a_field_that_does_not_fit_any_more_keeps_its_bytes_and_is_counted(world: World) -> None:
    topic = world.topic(**TYPED)
    broker = world.broker()
    world.append_json(topic, {"card": "a", "amount": 1})
    world.advance(broker, topic)
    topic = world.alter(topic, catchwater_history_value_schema="card string, amount boolean")
    world.append_json(topic, {"card": "b", "amount": True}, {"card": "c"})
    world.advance(broker, topic)
    found = world.rows("card", "amount", "_malformed")
    assert [tuple(row.values()) for row in found] == [
        ("a", 1.0, None), ("b", None, b'{"card": "b", "amount": true}'), ("c", None, None),
    ]  # fmt: skip
    assert broker.counts["t"].malformed == 1
    assert broker.table(topic).facts()["unfit"] == ["amount"]


# --- rewinding -----------------------------------------------------------------------------------


def test_a_table_is_rewound_and_filled_again(world: World) -> None:
    topic = world.topic(2)
    broker = world.broker()
    for _ in range(2):
        world.append(topic, 0)
        world.append(topic, 1)
        world.advance(broker, topic)
    table = broker.table(topic)
    table.open()
    assert table.rewind({0: 3, 1: 99}).offsets == {0: 3, 1: 8}
    assert world.places() == [(0, 0), (0, 1), (0, 2), *((1, at) for at in range(8))]
    world.advance(broker, topic)
    assert world.places() == world.expected()


def test_a_rewind_of_nothing_says_where_it_stands(world: World) -> None:
    topic = world.topic()
    broker = world.broker()
    world.append(topic)
    world.advance(broker, topic)
    assert broker.table(topic).rewind({0: 4}).offsets == {0: 4}
    assert world.places() == world.expected()


# --- partitioning, settings ----------------------------------------------------------------------


def test_a_table_is_partitioned_as_the_topic_says(world: World) -> None:
    topic = world.topic(**TYPED, catchwater_table_partition_by="card")
    broker = world.broker()
    world.append_json(topic, {"card": "a"}, {"card": "b"}, {"card": "a"})
    world.advance(broker, topic)
    assert len(list(world.table().scan(row_filter="card = 'b'").plan_files())) == 1
    assert len(list(world.table().scan().plan_files())) == 2
    topic = world.alter(topic, catchwater_table_partition_by="partition")
    world.append_json(topic, {"card": "c"}, {"card": "d"})
    world.advance(broker, topic)
    assert [row["card"] for row in world.rows()] == ["a", "b", "a", "c", "d"]
    assert [field.name for field in world.table().spec().fields] == ["partition"]


def test_a_partitioning_by_what_is_no_column_is_refused(world: World) -> None:
    topic = world.topic(catchwater_table_partition_by="card")
    with pytest.raises(TableRefused, match="no column"):
        world.advance(world.broker(), topic)


def test_how_a_table_is_named_and_partitioned() -> None:
    assert terms("day(timestamp),bucket(16,card),offset") == (
        Term("day", "timestamp"), Term("bucket", "card", 16), Term("identity", "offset"),
    )  # fmt: skip
    assert [each.name for each in terms("day(timestamp),card")] == ["timestamp_day", "card"]
    assert refused_table("", None) is None
    assert "with its namespace" in (refused_table("payments", {}) or "")
    assert "encrypts its objects" in (refused_table("lake.payments", None) or "")
    assert TABLE in (refused_table("a b", {}) or "") and PARTITION_BY.startswith(TABLE)


# --- what becomes of its files -------------------------------------------------------------------


@given(st.lists(st.integers(1, 2 * upkeep.MERGED_BYTES), max_size=60))
def test_only_small_files_of_like_sizes_are_made_one(sizes: list[int]) -> None:
    taken = upkeep.to_merge(sizes)
    assert len(set(taken)) == len(taken) and (not taken or len(taken) >= upkeep.MERGE_LEAST)
    assert sum(sizes[index] for index in taken) <= upkeep.MERGED_BYTES
    left = {*range(len(sizes))} - {*taken}
    assert all(sizes[some] <= sizes[more] for some in taken for more in left)


def test_a_byte_is_rewritten_a_few_times_however_many_files_come() -> None:
    sizes: list[int] = []
    rewritten = 0
    for _ in range(3_000):
        sizes.append(10_000)
        if taken := upkeep.to_merge(sizes):
            total = sum(sizes[index] for index in taken)
            rewritten += total
            sizes = [size for index, size in enumerate(sizes) if index not in taken] + [total]
    assert sum(sizes) == 3_000 * 10_000 and len(sizes) < 30
    assert rewritten < 10 * sum(sizes)


def data_files(world: World) -> set[str]:
    return {path.as_uri() for path in (world.root / "tables").rglob("*.parquet")}


def live_files(world: World) -> set[str]:
    return {task.file.file_path for task in world.table().scan().plan_files()}


@pytest.mark.parametrize("settings", [{}, {"catchwater_table_partition_by": "partition"}])
def test_small_files_are_made_one_and_no_row_changes(
    world: World, settings: dict[str, str]
) -> None:
    topic = world.topic(2, **settings)
    broker = world.broker()
    for step in range(24):
        world.append(topic, step % 2)
        world.advance(broker, topic)
        assert world.places() == world.expected()
    assert len(live_files(world)) < 2 * upkeep.MERGE_LEAST + 4
    assert {row["value"] for row in world.rows("value")} == {b"value", None, b"", b"v" * 5000}
    headers = {json.dumps(row["headers"], default=list) for row in world.rows("headers")}
    assert len(headers) == 3, "none, two, and one of a name beyond ASCII"
    operations = {each.summary.operation.value for each in world.table().snapshots()}
    assert operations == {"append", "replace"}
    assert world.rows("value") and table_state(world.table()).offsets == world.log_ends(topic)


def test_files_are_merged_in_the_columns_that_the_table_has_now(world: World) -> None:
    topic = world.topic(**TYPED)
    broker = world.broker()
    for n in range(upkeep.MERGE_LEAST - 1):
        world.append_json(topic, {"card": f"c{n}", "amount": n})
        world.advance(broker, topic)
    with (
        closing(world.catalog()) as catalog,
        catalog.load_table("lake.t").update_schema() as update,
    ):
        update.rename_column("card", "card_number")
    topic = world.alter(topic, catchwater_history_value_schema=f"{DDL}, note string")
    world.append_json(topic, {"card": "last", "amount": 0, "note": "new"})
    world.advance(broker, topic)
    assert len(live_files(world)) == 1
    cards = [*(f"c{n}" for n in range(upkeep.MERGE_LEAST - 1)), "last"]
    assert [row["card_number"] for row in world.rows()] == cards
    assert [row["note"] for row in world.rows()] == [*[None] * (upkeep.MERGE_LEAST - 1), "new"]


def test_rows_that_somebody_deleted_stay_deleted_and_are_known_to_be(world: World) -> None:
    topic = world.topic()
    broker = world.broker()
    for step in range(upkeep.MERGE_LEAST):
        world.append(topic)
        world.advance(broker, topic)
        if step == 1:
            with closing(world.catalog()) as catalog:
                catalog.load_table("lake.t").delete("offset = 1")
    assert len(live_files(world)) == 1
    assert world.places() == [each for each in world.expected() if each != (0, 1)]
    broker.table(topic).open()
    with pytest.raises(TableUnfit, match="deleted or added by somebody else"):
        broker.table(topic).native({0: (0, 4)})


@pytest.mark.parametrize("crash", ["before", "after"])
def test_a_process_that_ends_while_files_are_made_one_changes_nothing(
    world: World, crash: str
) -> None:
    topic = world.topic()
    broker = world.broker()
    for _ in range(upkeep.MERGE_LEAST - 1):
        world.append(topic)
        world.advance(broker, topic)
    world.append(topic)
    stop = crash_before if crash == "before" else crash_after
    with stop(upkeep.Change, "commit"), pytest.raises(Crash):
        world.advance(broker, topic)
    assert world.places() == world.expected()
    world.append(topic)
    world.advance(world.broker(), topic)
    assert world.places() == world.expected()


def test_of_a_merge_and_a_commit_of_somebody_else_the_commit_is_let_through(world: World) -> None:
    topic = world.topic()
    broker = world.broker()
    for _ in range(upkeep.MERGE_LEAST - 1):
        world.append(topic)
        world.advance(broker, topic)
    world.append(topic)
    real = upkeep.Change.commit

    def late(self: upkeep.Change) -> None:
        with closing(world.catalog()) as catalog:
            catalog.load_table("lake.t").delete("offset = 1")
        real(self)

    with mock.patch.object(upkeep.Change, "commit", late):
        world.advance(broker, topic)
    assert world.places() == [each for each in world.expected() if each != (0, 1)]
    assert not [each for each in data_files(world) if each.endswith("merged.parquet")]


def test_files_that_no_snapshot_names_go_with_the_last_that_did(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "KEPT_SNAPSHOTS", 2)
    topic = world.topic(catchwater_table_snapshot_retention_ms="0")
    broker = world.broker()
    for _ in range(3 * upkeep.MERGE_LEAST):
        world.append(topic)
        world.advance(broker, topic)
    assert world.places() == world.expected()
    table = world.table()
    named = {
        entry.data_file.file_path
        for snapshot in table.snapshots()
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io)
    }
    assert data_files(world) == named
    lists = {path.as_uri() for path in (world.root / "tables").rglob("snap-*.avro")}
    assert lists == {snapshot.manifest_list for snapshot in table.snapshots()}


def test_a_snapshot_that_has_a_name_stays_readable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "KEPT_SNAPSHOTS", 2)
    topic = world.topic(catchwater_table_snapshot_retention_ms="0")
    broker = world.broker()
    world.append(topic)
    world.advance(broker, topic)
    with closing(world.catalog()) as catalog:
        table = catalog.load_table("lake.t")
        first = table.current_snapshot().snapshot_id
        table.manage_snapshots().create_tag(first, "first").commit()
    for _ in range(2 * upkeep.MERGE_LEAST):
        world.append(topic)
        world.advance(broker, topic)
    assert len(world.table().scan(snapshot_id=first).to_arrow()) == 4


def test_while_a_query_holds_the_topic_no_snapshot_expires(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "KEPT_SNAPSHOTS", 2)
    topic = world.topic(catchwater_table_snapshot_retention_ms="0")
    broker = world.broker()
    until_ms = world.log.clock.now_ms() + 60_000
    held = [
        Pin("read/1", "a batch query on Spark", {("t", 0): 0}, until_ms, 0),
        Pin("checkpoint", "a pipeline", {("t", 0): 0}, None, 0),
        Pin("read/2", "another topic's", {("u", 0): 0}, 2 * until_ms, 0),
    ]
    monkeypatch.setattr(world.log.catalog, "pins", lambda: held)
    for _ in range(2 * upkeep.MERGE_LEAST):
        world.append(topic)
        world.advance(broker, topic)
    kept = len(world.table().snapshots())
    assert kept >= 2 * upkeep.MERGE_LEAST
    world.log.clock.advance(60_001)
    world.append(topic)
    world.advance(broker, topic)
    assert len(world.table().snapshots()) == 2


def test_young_snapshots_stay_as_long_as_the_topic_says(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "KEPT_SNAPSHOTS", 2)
    topic = world.topic()
    broker = world.broker()
    for _ in range(7):
        world.append(topic)
        world.advance(broker, topic)
    assert len(world.table().snapshots()) == 7
    monkeypatch.setattr(iceberg, "MOST_SNAPSHOTS", 3)
    world.append(topic)
    world.advance(broker, topic)
    assert len(world.table().snapshots()) == 3, "and no longer than makes commits slow"


# --- newest values -------------------------------------------------------------------------------

NEWEST = {"cleanup_policy": "compact", "catchwater_table_upsert": "true"}


def keyed(key: int, value: bytes | None) -> Any:
    return (b"k%d" % key, value, 1_700_000_000_000, [])


@pytest.mark.parametrize(
    "settings", [{}, {"catchwater_table_partition_by": "bucket(2,key)"}, {"packs": "true"}]
)
def test_a_table_of_newest_values_is_what_a_dict_is(
    world: World, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "FILE_BYTES", 3_000)  # several files a commit
    topic = world.topic(2, **NEWEST, **settings)
    broker = world.broker()
    chance = random.Random(7)
    model: dict[tuple[int, bytes], bytes] = {}
    for step in range(14):
        for _ in range(chance.randrange(1, 3)):
            partition = chance.randrange(2)
            records = [
                keyed(chance.randrange(30), chance.choice([None, b"%d" % step, b"x" * 200]))
                for _ in range(chance.randrange(1, 25))
            ]
            world.append(topic, partition, records)
            for key, value, _, _ in records:
                model.pop((partition, key), None)
                model |= {} if value is None else {(partition, key): value}
            if "packs" in settings:
                world.pack(broker)
        if chance.random() < 0.2:
            broker = world.broker()
        world.advance(broker, topic)
        found = world.rows("partition", "key", "value")
        assert len(found) == len(model), step
        assert {(row["partition"], row["key"]): row["value"] for row in found} == model
    table = world.table()
    assert int(table.current_snapshot().summary["total-delete-files"]) < 2 * upkeep.MERGE_LEAST + 4
    live = [task.file.record_count for task in table.scan().plan_files()]
    assert sum(live) < 4 * len(model), "rows that gave way are left out when files are made anew"


def test_a_tombstone_takes_the_row_away_also_of_declared_values(world: World) -> None:
    topic = world.topic(**TYPED, **NEWEST)
    broker = world.broker()
    row = json.dumps({"card": "a", "amount": 1}).encode()
    world.append(topic, records=[keyed(1, row), keyed(2, row), keyed(3, b"{}"), keyed(4, b"no")])
    world.advance(broker, topic)
    world.append(topic, records=[keyed(1, None)])
    world.advance(broker, topic)
    found = world.rows("key", "card", "_malformed")
    assert [tuple(each.values()) for each in found] == [
        (b"k2", "a", None), (b"k3", None, None), (b"k4", None, b"no"),
    ]  # fmt: skip
    assert world.table().schema().column_names[-1] == "_malformed"


def test_a_row_gives_way_in_the_file_that_somebody_else_has_put_it_in(world: World) -> None:
    topic = world.topic(**NEWEST)
    broker = world.broker()
    world.append(topic, records=[keyed(1, b"old"), keyed(2, b"old")])
    world.advance(broker, topic)
    world.append(topic, records=[keyed(1, b"new")])
    real, others = upkeep.Change.commit, iter([1])

    def late(self: upkeep.Change) -> None:
        if next(others, None):
            with closing(world.catalog()) as catalog:
                table = catalog.load_table("lake.t")
                table.overwrite(table.scan().to_arrow())
        real(self)

    with mock.patch.object(upkeep.Change, "commit", late):
        world.advance(broker, topic)
    assert {row["key"]: row["value"] for row in world.rows()} == {b"k1": b"new", b"k2": b"old"}
    assert len(world.rows()) == 2 and broker.counts["t"].conflicts == 1


def test_a_table_of_newest_values_is_rewound_and_filled_again(world: World) -> None:
    topic = world.topic(**NEWEST)
    broker = world.broker()
    for step in range(4):
        world.append(topic, records=[keyed(key, b"%d" % step) for key in range(step, 6)])
        world.advance(broker, topic)
    before = world.rows("key", "value", "offset")
    table = broker.table(topic)
    table.open()
    table.rewind({0: 8})
    assert len(world.rows()) < len(before)
    world.advance(broker, topic)
    assert world.rows("key", "value", "offset") == before


# --- poison --------------------------------------------------------------------------------------


def test_a_table_may_wait_at_a_value_that_is_not_as_declared(world: World) -> None:
    topic = world.topic(2, **TYPED, catchwater_table_on_malformed="stop")
    broker = world.broker()
    rows = [{"card": "a"}, b"no json", {"card": "b"}]
    world.append_json(topic, *rows)
    world.append(topic, 1, records=[(None, b"{}", 0, [])])
    for _ in range(2):
        world.advance(broker, topic)
        assert world.places() == [(0, 0), (1, 0)], "the other partition goes on"
        assert "value at offset 1 of partition 0 is not as declared" in broker.counts["t"].error
    topic = world.alter(topic, catchwater_table_on_malformed="column")
    world.advance(broker, topic)
    assert world.places() == world.expected() and broker.counts["t"].error == ""
    assert [row["_malformed"] for row in world.rows()] == [None, b"no json", None, None]


def test_what_the_packer_hands_over_does_not_pass_a_value_that_is_waited_for(world: World) -> None:
    topic = world.topic(**TYPED, catchwater_table_on_malformed="stop")
    broker = world.broker()
    world.advance(broker, topic)
    world.append_json(topic, {"card": "a"}, b"no json", {"card": "b"})
    world.pack(broker)
    world.advance(broker, topic)
    assert world.places() == [(0, 0)]


# --- schemas of a registry -----------------------------------------------------------------------

FIRST = {
    "type": "record",
    "name": "Txn",
    "fields": [{"name": "card", "type": "string"}],
}
SECOND = {
    **FIRST,
    "fields": [*FIRST["fields"], {"name": "place", "type": ["null", "string"], "default": None}],
}
REGISTERED = {
    "catchwater_history_value_format": "avro",
    "catchwater_history_value_schema": "registry",
}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with schema_registry() as fake:
        yield fake


def framed(schema_id: int, schema: Any, row: dict[str, Any]) -> Any:
    stream = BytesIO()
    fastavro.schemaless_writer(stream, schema, row)
    value = b"\0" + schema_id.to_bytes(4, "big") + stream.getvalue()
    return (None, value, 1_700_000_000_000, [])


def test_columns_are_those_of_the_newest_schema_that_the_registry_has(
    world: World, registry: FakeRegistry
) -> None:
    registry.login = "broker:hunter2"
    registry.register(1, FIRST, "t-value", 1)
    world.registry = (registry.url, registry.login)
    topic = world.topic(**REGISTERED)
    broker = world.broker()
    world.append(topic, records=[framed(1, FIRST, {"card": "a"}), (None, b"no id", 0, [])])
    world.advance(broker, topic)
    registry.register(2, SECOND, "t-value", 2)
    world.append(topic, records=[framed(2, SECOND, {"card": "b", "place": "Ghent"})])
    world.append(topic, records=[framed(1, FIRST, {"card": "c"}), framed(9, FIRST, {"card": "d"})])
    world.pack(broker)
    world.advance(broker, topic)
    found = [tuple(row.values()) for row in world.rows("card", "place")]
    assert found == [("a", None), (None, None), ("b", "Ghent"), ("c", None), (None, None)]
    is_bad = [row["_malformed"] is not None for row in world.rows()]
    assert is_bad == [False, True, False, False, True]


def test_a_registry_that_is_away_lets_go_on_what_is_known_and_skips_nothing(
    world: World, registry: FakeRegistry
) -> None:
    world.registry = (registry.url, "")
    topic = world.topic(**REGISTERED)
    broker = world.broker()
    registry.status = 503
    world.append(topic, records=[framed(1, FIRST, {"card": "a"})])
    with pytest.raises(CatchwaterError, match="does not give subject 't-value'"):
        world.advance(broker, topic)
    registry.status = 200
    registry.register(1, FIRST, "t-value", 1)
    world.advance(broker, topic)
    registry.status = 503
    world.append(topic, records=[framed(1, FIRST, {"card": "b"})])
    assert world.advance(broker, topic), "by the schema that is known"
    assert [row["card"] for row in world.rows()] == ["a", "b"]
    world.append(topic, records=[framed(2, SECOND, {"card": "c", "place": "Ghent"})])
    with pytest.raises(CatchwaterError, match="does not give schema id 2"):
        world.advance(broker, topic)
    assert len(world.rows()) == 2 and "schema id 2" in broker.counts["t"].error
    registry.status = 200
    registry.register(2, SECOND, "t-value", 2)
    world.advance(broker, topic)
    assert [tuple(row.values()) for row in world.rows("card", "place")] == [
        ("a", None), ("b", None), ("c", "Ghent"),
    ]  # fmt: skip


def test_a_registry_with_a_schema_of_another_kind_or_none_is_named(
    world: World, registry: FakeRegistry
) -> None:
    world.registry = (registry.url, "")
    topic = world.topic(**REGISTERED)
    with pytest.raises(BadSchema, match="has no subject 't-value'"):
        world.advance(world.broker(), topic)
    registry.register(1, "{}", "t-value", 1, schemaType="JSON")
    with pytest.raises(BadSchema, match="is JSON, and the values' format is avro"):
        world.advance(world.broker(), topic)


def test_the_first_message_of_a_registered_protobuf_file_gives_the_columns(
    world: World, registry: FakeRegistry
) -> None:
    file = descriptor_pb2.FileDescriptorProto(name="txn.proto", package="pay", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    for name in ("Txn", "Other"):
        message = file.message_type.add(name=name)
        message.field.add(name="card", number=1, type=9, label=1)
        message.field.add(
            name="at", number=2, type=11, label=1, type_name=".google.protobuf.Timestamp"
        )
    text = base64.b64encode(file.SerializeToString()).decode()
    registry.register(1, text, "t-value", 1, schemaType="PROTOBUF")
    world.registry = (registry.url, "")
    topic = world.topic(**{**REGISTERED, "catchwater_history_value_format": "protobuf"})
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    row = message_factory.GetMessageClass(pool.FindMessageTypeByName("pay.Txn"))(card="c1")
    row.at.FromMilliseconds(1_700_000_000_123)
    frame = b"\0\0\0\0\1"
    values = [frame + b"\0", frame + b"\2\2", frame + b"\0\xff"]
    bodies = [row.SerializeToString(), row.SerializeToString(), b""]
    world.append(topic, records=[(None, a + b, 0, []) for a, b in zip(values, bodies, strict=True)])
    world.advance(world.broker(), topic)
    found = world.rows("card", "at", "_malformed")
    assert found[0]["card"] == "c1" and found[0]["at"].timestamp() == 1_700_000_000.123
    assert [row["card"] for row in found[1:]] == [None, None], "another message, and none at all"
    assert all(row["_malformed"] for row in found[1:])
