"""What the sinks' conformance suite needs of each kind: a fresh place, and hands to damage it.

A new sink adds a class here and its name to TARGETS in `test_sinks.py`.
"""

import json
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from catchwater.clock import SYSTEM, Clock
from catchwater.recovery.fenced import Claim
from catchwater.replay.control import Control
from catchwater.sinks.base import OutputRecord, RowId, Sink, Staged, TargetState
from catchwater.sinks.config import SinkConfig, SinkContext, look_at, open_sink, parse


@dataclass
class Alert:
    """The outputs of the suite's function."""

    card: str
    id: str
    amount: float
    at: int
    tags: list[str]


def record(epoch: int, shard: int, row: int, *, salt: str = "") -> OutputRecord:
    """The same record for the same identity, on any day but of this one: retention is real."""
    alert = Alert(
        card=f"card-{(row * 7 + shard) % 50}",
        id=f"{epoch}-{shard}-{row}{salt}",
        amount=row / 4,
        at=1_700_000_000_000 + row,
        tags=["fast", f"t{row % 3}"],
    )
    return OutputRecord(alert.card.encode(), msgspec.json.encode(alert), SYSTEM.now_ms())


def always() -> None:
    """No other driver has taken over."""


class Target:
    """One fresh place that a sink writes to."""

    kind = ""
    name = "alerts"
    output_id: tuple[str, ...] = ()
    atomic = True
    """Readers see an epoch whole or not at all."""
    replaces = False
    """A row has a place of its own: it cannot be there twice."""
    at_least_once = True
    """There is such a mode, and it doubles."""
    mends = frozenset({"missing", "doubled", "altered"})
    exclusive = True
    """A second writer is refused."""
    marked = True
    """It keeps the marks of its epochs itself."""
    forks = True
    """Its client may be opened in a fork of this process."""

    def __init__(self, root: Path, options: dict[str, str]) -> None:
        self.root = root
        self.options = options
        self.claim: Claim | None = None
        self.hold: Callable[[], None] = always
        """Of the drivers that open it next."""

    def around(self, pipeline: str, generation: int, clock: Clock) -> SinkContext:
        return SinkContext(
            pipeline,
            (self.root / "checkpoint").as_uri(),
            self.root,
            generation=generation,
            output_type=Alert,
            output_id=self.output_id,
            clock=clock,
            claim=self.claim,
            hold=self.hold,
        )

    def open(
        self,
        *,
        pipeline: str = "cards",
        generation: int = 0,
        delivery: str = "exactly-once",
        clock: Clock = SYSTEM,
        **options: str,
    ) -> Sink:
        """The sink, opened anew."""
        config = self.config(delivery=delivery, **options)
        return open_sink(config, self.around(pipeline, generation, clock))

    def config(self, **options: str) -> SinkConfig:
        """Its section."""
        return parse(self.name, {"kind": self.kind, **self.options, **options})

    def look(self, output_type: Any = Alert) -> TargetState:
        """What it is like, without opening it."""
        return look_at(
            self.config(), replace(self.around("cards", 0, SYSTEM), output_type=output_type)
        )

    def read(self) -> list[dict[str, Any]]:
        """The outputs as a plain reader sees them; whoever reads a log applies retractions."""
        raise AssertionError

    def seams(self, sink: Sink) -> list[tuple[Any, str]]:
        """Objects and methods by which the driver reaches the outside while it commits."""
        raise AssertionError

    def damage(
        self, lost: Sequence[RowId], doubled: Sequence[RowId], altered: Sequence[RowId]
    ) -> None:
        """Lose, double and alter these rows, behind the sink's back."""
        raise AssertionError

    def close(self) -> None:
        """Give everything back."""


def stage(sink: Sink, epoch: int, rows: int, *, salt: str = "") -> list[Staged]:
    """Two shards with output and one without."""
    stager = sink.stager()
    return [
        stager.stage(epoch, shard, [record(epoch, shard, row, salt=salt) for row in range(count)])
        for shard, count in enumerate((rows, 0, rows))
    ]


def write(sink: Sink, epoch: int, rows: int, *, salt: str = "") -> None:
    sink.commit(epoch, stage(sink, epoch, rows, salt=salt))


def plan_damage(
    target: Target, epochs: int, rows: int, number: int
) -> tuple[list[RowId], list[RowId], list[RowId]]:
    """So many rows to lose, to double and to alter."""
    every = [RowId(e, s, r) for e in range(epochs) for s in (0, 2) for r in range(rows)]
    chosen = random.Random(7).sample(every, number)
    doubled = [] if target.replaces else chosen[: number // 3]
    altered = chosen[number // 3 : 2 * number // 3]
    return [id for id in chosen if id not in {*doubled, *altered}], doubled, altered


_BY_ROW = "catchwater_epoch = ? AND catchwater_shard = ? AND catchwater_row = ?"


class SqliteTarget(Target):
    kind = "sqlite"

    def __init__(self, root: Path, **options: str) -> None:
        super().__init__(root, {"path": "out.db", "table": "alerts", "retry": "60s", **options})

    def _run(self, sql: str, rows: Iterable[Sequence[Any]] = ((),)) -> list[tuple[Any, ...]]:
        with closing(sqlite3.connect(self.root / "out.db")) as connection:
            found = [row for values in rows for row in connection.execute(sql, values)]
            connection.commit()
        return found

    def read(self) -> list[dict[str, Any]]:
        rows = self._run('SELECT card, id, amount, "at", tags FROM alerts')
        return [
            {"card": c, "id": i, "amount": a, "at": t, "tags": json.loads(tags)}
            for c, i, a, t, tags in rows
        ]

    def seams(self, sink: Any) -> list[tuple[Any, str]]:
        from catchwater.sinks.kinds.sqlite import SqliteTransaction

        return [
            (sink.truth.store, "put"), (sink.truth.store, "get"),
            (SqliteTransaction, "execute"), (SqliteTransaction, "insert"),
        ]  # fmt: skip

    def damage(
        self, lost: Sequence[RowId], doubled: Sequence[RowId], altered: Sequence[RowId]
    ) -> None:
        self._run(f"DELETE FROM alerts WHERE {_BY_ROW}", lost)
        self._run(f"INSERT INTO alerts SELECT * FROM alerts WHERE {_BY_ROW}", doubled)
        self._run(f"UPDATE alerts SET amount = amount + 1 WHERE {_BY_ROW}", altered)


class SqliteUpsertTarget(SqliteTarget):
    output_id = ("id",)
    replaces = True
    at_least_once = False

    def __init__(self, root: Path) -> None:
        super().__init__(root, mode="upsert")


class PostgresTarget(SqliteTarget):
    kind = "postgres"

    def __init__(self, root: Path, url: str, **options: str) -> None:
        Target.__init__(self, root, {"url": url, "table": "alerts", "retry": "60s", **options})
        self.url = url

    def _run(self, sql: str, rows: Iterable[Sequence[Any]] = ((),)) -> list[tuple[Any, ...]]:
        import psycopg

        found: list[tuple[Any, ...]] = []
        with psycopg.connect(self.url) as connection:
            for values in rows:
                cursor = connection.execute(sql.replace("?", "%s").encode(), values)
                found += cursor.fetchall() if cursor.description else []
        return found

    def read(self) -> list[dict[str, Any]]:
        rows = self._run('SELECT card, id, amount, "at", tags FROM alerts')
        names = ("card", "id", "amount", "at", "tags")
        return [dict(zip(names, row, strict=True)) for row in rows]

    def seams(self, sink: Any) -> list[tuple[Any, str]]:
        from catchwater.sinks.kinds.postgres import PostgresTransaction

        return [
            (sink.truth.store, "put"), (sink.truth.store, "get"),
            (PostgresTransaction, "execute"), (PostgresTransaction, "insert"),
        ]  # fmt: skip


class PostgresUpsertTarget(PostgresTarget):
    output_id = ("id",)
    replaces = True
    at_least_once = False

    def __init__(self, root: Path, url: str) -> None:
        super().__init__(root, url, mode="upsert")


class HttpTarget(Target):
    kind = "http"
    output_id = ("id",)
    atomic = False
    replaces = True
    at_least_once = False
    marked = False
    mends = frozenset({"missing", "altered"})

    def __init__(self, root: Path, server: Any) -> None:
        super().__init__(root, {"url": f"{server.url}/alerts/{{id}}", "retry": "60s"})
        self.server = server

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.server.content.values()]

    def seams(self, sink: Any) -> list[tuple[Any, str]]:
        from catchwater.sinks.kinds.http import Endpoint

        return [(sink.truth.store, "put"), (sink.truth.store, "get"), (Endpoint, "_attempt")]

    def damage(
        self, lost: Sequence[RowId], doubled: Sequence[RowId], altered: Sequence[RowId]
    ) -> None:
        assert not doubled
        for epoch, shard, row in lost:
            del self.server.content[f"/alerts/{epoch}-{shard}-{row}"]
        for epoch, shard, row in altered:
            self.server.content[f"/alerts/{epoch}-{shard}-{row}"] += b" "
            alert = json.loads(self.server.content[f"/alerts/{epoch}-{shard}-{row}"])
            alert["amount"] += 1
            self.server.content[f"/alerts/{epoch}-{shard}-{row}"] = json.dumps(alert).encode()


class LogTarget(Target):
    kind = "log"
    mends = frozenset({"missing"})
    exclusive = False

    def __init__(self, root: Path, broker: Any, topic: str) -> None:
        super().__init__(root, {"topic": topic, "partitions": "3"})
        self.name = topic  # one broker keeps the marks of all tests
        self._patch = pytest.MonkeyPatch()
        self.broker = broker
        self.topic = topic
        self.control = Control(broker.control_url)

    def around(self, pipeline: str, generation: int, clock: Clock) -> SinkContext:
        base = super().around(pipeline, generation, clock)
        return SinkContext(**{**vars(base), "bootstrap": self.broker.bootstrap,
                               "control": self.control})  # fmt: skip

    def read(self) -> list[dict[str, Any]]:
        from catchwater.sinks.base import RETRACTS_OFFSET_HEADER
        from catchwater.sinks.kinds.log import read_records

        there: dict[tuple[int, int], dict[str, Any]] = {}
        for placed in read_records(self.control, self.topic, self._tails()):
            retracts = dict(placed.record.headers).get(RETRACTS_OFFSET_HEADER)
            if retracts is None:
                there[placed.partition, placed.offset] = json.loads(placed.record.value)
            else:
                gone = there.pop((placed.partition, int(retracts)))
                assert gone == json.loads(placed.record.value), "a retraction repeats its record"
        return list(there.values())

    def seams(self, sink: Any) -> list[tuple[Any, str]]:
        return [(sink.truth.store, "put"), (Control, "_attempt")]

    def damage(
        self, lost: Sequence[RowId], doubled: Sequence[RowId], altered: Sequence[RowId]
    ) -> None:
        """Nothing in a log can be changed: what it answers is, where it is read back."""
        from catchwater.sinks.kinds import log

        plain_read = log.read_records
        found = {}
        for placed in plain_read(self.control, self.topic, self._tails()):
            plain = json.loads(placed.record.value)
            found[RowId(*map(int, plain["id"].split("-")))] = placed
        self._produce([found[id].record for id in doubled])
        gone = {found[id][:2] for id in lost}
        other = {found[id][:2] for id in altered}

        def read(*arguments: Any) -> Iterator[Any]:
            for placed in plain_read(*arguments):
                if placed[:2] in other:
                    value = placed.record.value.replace(b'"at":', b'"at":1')
                    yield placed._replace(record=placed.record._replace(value=value))
                elif placed[:2] not in gone:
                    yield placed

        self._patch.setattr(log, "read_records", read)

    def close(self) -> None:
        self._patch.undo()

    def _tails(self) -> Any:
        from catchwater.sinks.kinds.log import tails_of

        return tails_of(self.control, self.topic)

    def _produce(self, records: Sequence[OutputRecord]) -> None:
        """As another producer would."""
        from catchwater.sinks.log_stager import batches_of, partition_of
        from catchwater.wire.client import Client

        batches = batches_of((partition_of(each.key, 3), each) for each in records)
        if batches:
            with Client(self.broker.bootstrap) as client:
                client.produce([((self.topic, p), data) for p, data in batches])
