"""The sinks' conformance suite, for files, Iceberg tables and Kafkas: see `sink_targets`."""

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from tests.conformance.sink_targets import Target

from catchwater.clock import SYSTEM, Clock
from catchwater.objects.open import open_store
from catchwater.sinks.base import (
    RETRACTS_HEADER,
    RETRACTS_OFFSET_HEADER,
    ROW_HEADER,
    SINK_HEADER,
    RowId,
)
from catchwater.sinks.columns import ROW_COLUMNS
from catchwater.sinks.config import SinkContext

_NAMES = ("card", "id", "amount", "at", "tags")


def _damaged(table: Any, epoch: int, damage: Sequence[Sequence[RowId]]) -> Any:
    """The epoch's rows with some lost, doubled and altered."""
    lost, doubled, altered = (set(ids) for ids in damage)
    rows: list[dict[str, Any]] = []
    for row in table.to_pylist():
        id = RowId(*(row[name] for name in ROW_COLUMNS))
        if id in altered:
            row["amount"] += 1
        rows += [row] * (0 if id in lost else 2 if id in doubled else 1)
    return pa.Table.from_pylist(rows, schema=table.schema)


def _by_epoch(damage: Sequence[Sequence[RowId]]) -> dict[int, list[list[RowId]]]:
    found: dict[int, list[list[RowId]]] = defaultdict(lambda: [[], [], []])
    for kind, ids in enumerate(damage):
        for id in ids:
            found[id.epoch][kind].append(id)
    return found


class ParquetTarget(Target):
    """A directory, or a bucket, that is read by listing its Parquet files."""

    kind = "parquet"
    at_least_once = False

    def __init__(self, root: Path, url: str = "out") -> None:
        super().__init__(root, {"url": url})
        self.store = open_store(url if "://" in url else (root / url).as_uri(), SYSTEM)
        self.forks = "://" not in url

    def read(self) -> list[dict[str, Any]]:
        if not self.forks:
            found = [pq.read_table(pa.BufferReader(self.store.get(info.key)))
                     for info in self.store.list("epoch-")]  # fmt: skip
            return [row for table in found for row in table.select(_NAMES).to_pylist()]
        table = ds.dataset(self.root / "out", format="parquet").to_table()
        return list(table.select(_NAMES).to_pylist()) if table.num_rows else []

    def seams(self, sink: Any) -> list[tuple[Any, str]]:
        stores = [(sink.truth.store, "put"), (sink.truth.store, "get")]
        return [*stores, *((sink._store, name) for name in ("get", "put", "put_if_absent"))]

    def damage(
        self, lost: Sequence[RowId], doubled: Sequence[RowId], altered: Sequence[RowId]
    ) -> None:
        for epoch, damage in _by_epoch((lost, doubled, altered)).items():
            key = f"epoch-{epoch:020d}.parquet"
            table = pq.read_table(pa.BufferReader(self.store.get(key)))
            sink = pa.BufferOutputStream()
            pq.write_table(_damaged(table, epoch, damage), sink)
            self.store.put(key, [sink.getvalue()])


class IcebergTarget(Target):
    """A table of a SQLite catalog in a local warehouse, read by pyiceberg."""

    kind = "iceberg"
    at_least_once = False
    forks = False  # reading it starts threads, and a fork of those may hang or fail

    def __init__(self, root: Path, **options: str) -> None:
        values = {"table": "lake.alerts", "warehouse": "warehouse", "retry": "60s", **options}
        super().__init__(root, values)

    def read(self) -> list[dict[str, Any]]:
        with self._table() as table:
            return list(table.scan(selected_fields=_NAMES).to_arrow().to_pylist())

    def _table(self) -> Any:
        from contextlib import contextmanager

        from pyiceberg.catalog import load_catalog

        @contextmanager
        def opened() -> Any:
            folder = self.root / "warehouse"
            uri = f"sqlite:///{folder}/catalog.db"
            given = {k.removeprefix("catalog."): v for k, v in self.options.items()
                     if k.startswith("catalog.")}  # fmt: skip
            warehouse = self.options["warehouse"]
            where = warehouse if "://" in warehouse else folder.as_uri()
            catalog = load_catalog(**{"type": "sql", "uri": uri, "warehouse": where, **given})
            try:
                yield catalog.load_table("lake.alerts")
            finally:
                catalog.close()

        return opened()

    def seams(self, sink: Any) -> list[tuple[Any, str]]:
        catalog = type(sink._catalog)
        return [
            (sink.truth.store, "put"), (sink.truth.store, "get"),
            (catalog, "load_table"), (catalog, "_update_and_stage_table"),
            (catalog, "commit_table"),
        ]  # fmt: skip

    def damage(
        self, lost: Sequence[RowId], doubled: Sequence[RowId], altered: Sequence[RowId]
    ) -> None:
        with self._table() as table:
            for epoch, damage in _by_epoch((lost, doubled, altered)).items():
                where = f"catchwater_epoch = {epoch}"
                found = table.scan(row_filter=where).to_arrow()
                table.overwrite(_damaged(found, epoch, damage), where)


class KafkaTarget(Target):
    """A topic of some Kafka, read as a committed reader that applies retractions."""

    kind = "kafka"
    exclusive = False
    forks = False

    def __init__(self, root: Path, bootstrap: str, topic: str) -> None:
        super().__init__(root, {"topic": topic, "partitions": "2", "retry": "60s"})
        self.name = topic  # one Kafka keeps the marks of all tests
        self.bootstrap = bootstrap
        self.opened: list[Any] = []

    def around(self, pipeline: str, generation: int, clock: Clock) -> SinkContext:
        base = super().around(pipeline, generation, clock)
        return SinkContext(**{**vars(base), "bootstrap": self.bootstrap})

    def open(self, **options: Any) -> Any:
        sink = super().open(**options)
        self.opened.append(sink)
        return sink

    def close(self) -> None:
        for sink in self.opened:
            sink.close()

    def _messages(self) -> list[Any]:
        from catchwater.sinks.kafka_client import Brokers, read

        brokers = Brokers({"bootstrap.servers": self.bootstrap})
        return list(read(brokers, self.options["topic"], SYSTEM, hidden_s=0))

    def read(self) -> list[dict[str, Any]]:
        there: dict[tuple[int, int], Any] = {}
        for message in self._messages():
            retracts = dict(message.headers()).get(RETRACTS_OFFSET_HEADER)
            if retracts is None:
                there[message.partition(), message.offset()] = json.loads(message.value())
            else:
                gone = there.pop((message.partition(), int(retracts)))
                assert gone == json.loads(message.value()), "a retraction repeats its record"
        return list(there.values())

    def seams(self, sink: Any) -> list[tuple[Any, str]]:
        from catchwater.sinks.kafka_client import Writer

        return [
            (sink.truth.store, "put"), (sink.truth.store, "get"),
            (Writer, "__init__"), (Writer, "write"), (Writer, "_send"),
        ]  # fmt: skip

    def damage(
        self, lost: Sequence[RowId], doubled: Sequence[RowId], altered: Sequence[RowId]
    ) -> None:
        """A log cannot be changed, but anybody may write to it."""
        from confluent_kafka import Producer

        producer = Producer({"bootstrap.servers": self.bootstrap, "partitioner": "murmur2_random"})
        there = {
            RowId(*map(int, dict(m.headers())[ROW_HEADER].split(b"/"))): m
            for m in self._messages()
        }  # fmt: skip

        def write(id: RowId, value: bytes, headers: dict[str, bytes]) -> None:
            sink = dict(there[id].headers())[SINK_HEADER]
            producer.produce(
                self.options["topic"], key=there[id].key(), value=value,
                partition=there[id].partition(), headers={**headers, SINK_HEADER: sink},
            )  # fmt: skip
            producer.poll(0)

        for id in (*lost, *altered):
            offset = str(there[id].offset()).encode()
            told = {RETRACTS_HEADER: str(id).encode(), RETRACTS_OFFSET_HEADER: offset}
            write(id, there[id].value(), told)
        for id in (*doubled, *altered):
            value = there[id].value()
            if id in altered:
                value = msgspec.json.encode({**json.loads(value), "amount": -1.0})
            write(id, value, {ROW_HEADER: str(id).encode()})
        assert producer.flush(30) == 0
