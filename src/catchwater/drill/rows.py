"""The rows that a sink's topic or table holds, against those that it should hold."""

import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import msgspec

from catchwater.sinks.base import RETRACTS_HEADER
from catchwater.wire.arrow import AbortedTransaction, decode, place
from catchwater.wire.client import LATEST, Client

TABLE = "totals"
"""In which drills keep rows that go into no topic."""


def canonical(row: object) -> bytes:
    """One spelling for equal JSON values."""
    return msgspec.json.encode(row, order="deterministic")


def differences(expected: Counter[bytes], actual: Counter[bytes]) -> tuple[int, int]:
    """(rows missing from `actual`, rows in it that should not be there)."""
    return (expected - actual).total(), (actual - expected).total()


def ends_of(client: Client, topic: str) -> dict[int, int]:
    """Partition to the offset behind its last record."""
    keys = [(topic, partition) for partition in client.metadata([topic]).partitions(topic)]
    ends = client.list_offsets(dict.fromkeys(keys, LATEST))
    return {partition: end for (_, partition), end in ends.items()}


def read_rows(client: Client, topic: str) -> Counter[bytes]:
    """Every row of a topic of JSON values, with how often it is there.

    A row that a later record takes back is not counted: a log cannot delete.
    """
    rows: Counter[bytes] = Counter()
    for partition, end in ends_of(client, topic).items():
        offset, key = 0, (topic, partition)
        while offset < end:
            fetched = client.fetch({key: offset}, read_committed=True)[key]
            if not fetched.records:  # what is left is markers, or a transaction that is open
                break
            batches = place(fetched.records, partial_tail=True)
            aborted = [AbortedTransaction(*each) for each in fetched.aborted]
            columns = ["value", "headers"]
            for table in decode(
                fetched.records, batches, first=offset, columns=columns, aborted=aborted
            ):
                for record in table.to_pylist():
                    rows[canonical(msgspec.json.decode(record["value"]))] += _sign(
                        record["headers"]
                    )
            offset = batches[-1].next_offset
    return +rows


def read_table(database: Path) -> Counter[bytes]:
    """Every row of `TABLE` in a SQLite database, as a topic would have it."""
    with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True)) as reading:
        reading.row_factory = sqlite3.Row
        rows = reading.execute(f"SELECT * FROM {TABLE}").fetchall()
    ours = "catchwater_"  # what the sink keeps beside the function's fields
    return Counter(
        canonical({name: row[name] for name in row.keys() if not name.startswith(ours)})
        for row in rows
    )


def _sign(headers: list[dict[str, object]] | None) -> int:
    return -1 if any(each["key"] == RETRACTS_HEADER for each in headers or ()) else 1
