"""A pipeline that counts cards into two tables, and what a plain loop says of them.

The tables lie in SQLite or in PostgreSQL; one has every output, the other a card's newest.
"""

import json
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from catchwater.clock import SYSTEM
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import LATEST, Client

TOPIC, PARTITIONS, CARDS = "orders", 2, 17

FUNCTION = '''"""How often a card was seen."""
from dataclasses import dataclass
from catchwater import Context, Keyed, Out, function

@dataclass
class Order:
    card: str
    n: int
    at: int

@dataclass
class Tally:
    seen: int = 0

@dataclass
class Row:
    card: str
    n: int
    seen: int

@function(
    name="tally", version=1, key="card", event_time="at", late="process", output_id=("card",)
)
class Tallied(Keyed[Order, Tally, Row]):
    def on_event(self, e: Order, s: Tally, ctx: Context) -> Out[Row]:
        s.seen += 1
        return [Row(e.card, e.n, s.seen)]
'''
FILE = """\
[pipeline]
function = "orders_seen:Tallied"
checkpoint = "checkpoint"
trigger = "available-now"
shards = 2
[source]
kafka.bootstrap.servers = "{bootstrap}"
subscribe = "orders"
startingOffsets = "earliest"
maxOffsetsPerTrigger = {epoch}
[sink.rows]
{place}
table = "live"
[sink.newest]
{place}
table = "newest"
mode = "upsert"
"""

Row = tuple[str, int, int]
"""Card, its number in the partition, how often it was seen."""


def order(partition: int, n: int) -> dict[str, Any]:
    """All orders of a card lie in one partition."""
    card = f"card-{partition}-{n * 31 % CARDS}"
    return {"card": card, "n": n, "at": 1_700_000_000_000 + n}


def model(first: int, last: int) -> Counter[Row]:
    """The outputs of these orders of every partition, with a state that was empty before."""
    seen: Counter[str] = Counter()
    rows: Counter[Row] = Counter()
    for partition in range(PARTITIONS):
        for n in range(first, last):
            card = order(partition, n)["card"]
            seen[card] += 1
            rows[card, n, seen[card]] += 1
    return rows


def newest(rows: Counter[Row]) -> Counter[Row]:
    """Of each card the last one."""
    return Counter({row[0]: row for row in sorted(rows, key=lambda row: row[1])}.values())


def produce(bootstrap: str, first: int, last: int) -> None:
    """Append these orders to every partition."""
    with Client(bootstrap) as client:
        for partition in range(PARTITIONS):
            told = [json.dumps(order(partition, n)).encode() for n in range(first, last)]
            batch = encode_batch([(b"", each, SYSTEM.now_ms(), ()) for each in told])
            client.produce([((TOPIC, partition), batch)])


def produced(bootstrap: str) -> int:
    """How many orders each partition holds."""
    with Client(bootstrap) as client:
        keys = [(TOPIC, partition) for partition in range(PARTITIONS)]
        (end,) = set(client.list_offsets(dict.fromkeys(keys, LATEST)).values())
    return end


@dataclass(frozen=True)
class Tables:
    """The database of the sinks, and what stands in it."""

    place: Path | str
    """SQLite's file, or PostgreSQL's URL."""

    @property
    def section(self) -> str:
        """The sink's keys that name it."""
        if isinstance(self.place, Path):
            return f'kind = "sqlite"\npath = "{self.place}"'
        return f'kind = "postgres"\nurl = "{self.place}"'

    def run(self, sql: str) -> Sequence[tuple[Any, ...]]:
        """The rows of a statement, in a transaction of its own."""
        if isinstance(self.place, Path):
            with closing(sqlite3.connect(self.place, timeout=30)) as database, database:
                return database.execute(sql).fetchall()
        with psycopg.connect(self.place) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []

    def rows(self, table: str) -> Counter[Row]:
        """What a reader sees."""
        return Counter(tuple(row) for row in self.run(f"SELECT card, n, seen FROM {table}"))

    def names(self) -> set[str]:
        """Every table there is."""
        listed = (
            "SELECT name FROM sqlite_master WHERE type = 'table'"
            if isinstance(self.place, Path)
            else "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
        )
        return {name for (name,) in self.run(listed)}

    def damage(self) -> None:
        """Lose rows, and falsify others."""
        self.run("DELETE FROM live WHERE n % 3 = 0")
        self.run("UPDATE live SET seen = 1000 WHERE n % 7 = 1")
        self.run("UPDATE newest SET seen = 1000")


def write_file(folder: Path, bootstrap: str, tables: Tables, epoch: int) -> Path:
    """The pipeline's file and its function; epochs take so many offsets."""
    (folder / "orders_seen.py").write_text(FUNCTION)
    file = folder / "tally.toml"
    file.write_text(FILE.format(bootstrap=bootstrap, place=tables.section, epoch=epoch))
    return file
