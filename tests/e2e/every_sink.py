"""One pipeline into a sink of every kind: what a plain reader finds there, and whether that is all.

The function `Shoppers` has flat outputs with an identity, so that every kind can take them.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from tests.conformance.kv_server import KeyValueServer
from tests.e2e.life import Life
from tests.e2e.test_sinks import SINKS, counted, in_files, in_postgres, in_sqlite, in_table

from catchwater.clock import SYSTEM
from catchwater.drill.rows import canonical
from catchwater.sinks.base import RETRACTS_HEADER
from catchwater.sinks.kafka_client import Brokers, read

CASE = "function"
"""Of `CASES`, the one whose outputs they take."""

AGAIN = """
[sink.again]
kind = "sqlite"
path = "again.db"
table = "alerts"
delivery = "at-least-once"
"""


class EverySink:
    """Where one pipeline writes its outputs to."""

    def __init__(self, life: Life, postgres: str, store: KeyValueServer, foreign: str = "") -> None:
        """With the address of a foreign Kafka, or without one."""
        self.life, self.postgres, self.store, self.foreign = life, postgres, store, foreign
        self.far = f"{life.name}-far"  # brokers outlive a test
        self.doubled = 0
        """Rows that the at-least-once sink had twice, at the last look."""
        self._restored = -1
        sections = SINKS.format(far=self.far, postgres=postgres, http=store.url, foreign=foreign)
        if not foreign:
            sections = sections.partition("[sink.foreign]")[0]
        life.write(sinks=sections + AGAIN)

    def held(self) -> dict[str, Counter[bytes]]:
        """The outputs by sink."""
        folder = self.life.folder
        found = {
            "out": self.life.rows,
            "rows": counted(in_sqlite(folder / "out.db")),
            "newest": counted(in_sqlite(folder / "newest.db")),
            "shop": counted(in_postgres(self.postgres)),
            "store": counted([json.loads(body) for body in self.store.content.values()]),
            "files": counted(in_files(folder)),
            "table": counted(in_table(folder)),
            "far": in_kafka(self.life.bootstrap, self.far),
        }
        return found | ({"foreign": in_kafka(self.foreign, self.far)} if self.foreign else {})

    def check(self) -> None:
        """Every sink has every row once; an at-least-once sink has each, and says which it is."""
        self.life.check()
        expected, held = self.life.expected, self.held()
        missing = {name: (expected - rows).total() for name, rows in held.items()}
        twice = {name: (rows - expected).total() for name, rows in held.items()}
        assert not any(missing.values()), missing
        assert not any(twice.values()), twice
        rows = in_sqlite(self.life.folder / "again.db")
        known = {identity(row): row for row in rows}
        assert all(row == known[identity(row)] for row in rows)
        assert counted([*known.values()]) == expected
        self.doubled = len(rows) - len(known)

    def restored(self, epoch: int) -> None:
        """By hand, where no mark tells what was written behind the savepoint of this epoch."""
        with closing(sqlite3.connect(self.life.folder / "again.db")) as database, database:
            database.execute("DELETE FROM alerts WHERE catchwater_epoch > ?", (epoch,))
        self._restored = epoch

    def verify_and_mend(self) -> None:
        """They say so themselves; what there is twice since the restore is known, and deleted."""
        file = str(self.life.file)
        for name in self.held():
            self.life.type("sink", "verify", file, "--sink", name)
        self.life.type("sink", "repair", file, "--sink", "again", "--yes")
        rows = Counter(identity(row) for row in in_sqlite(self.life.folder / "again.db"))
        assert {times for id, times in rows.items() if id[0] > self._restored} == {1}


def identity(row: Mapping[str, Any]) -> tuple[int, ...]:
    """By which a row is known that is there again."""
    return tuple(row[f"catchwater_{name}"] for name in ("epoch", "shard", "row"))


def in_kafka(bootstrap: str, topic: str) -> Counter[bytes]:
    """As a committed reader who knows of retractions."""
    found: Counter[bytes] = Counter()
    for message in read(Brokers({"bootstrap.servers": bootstrap}), topic, SYSTEM):
        retracts = RETRACTS_HEADER in dict(message.headers() or ())
        found[canonical(json.loads(message.value()))] += -1 if retracts else 1
    return +found
