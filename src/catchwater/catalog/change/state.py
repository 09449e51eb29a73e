"""The small state of a catalog: read whole for a backup, and written into an empty catalog.

Small is all but the runs in segments, which say of themselves what they hold. Brokers, leases and
the members of groups are left out, for they begin anew: members of an earlier time would pass for
those of today. So are the payloads of the WAL `postgres`, which are large.
"""

from collections.abc import Sequence

from catchwater.catalog.db import Db
from catchwater.catalog.rows import ObjectRow, RunRow, State

TABLES = {
    "topic": ("topic_select", "topic_insert"),
    "partition": ("partition_select", "partition_upsert"),
    "producer": ("producer_select", "producer_upsert"),
    "txn": ("txn_select", "txn_upsert"),
    "open_txn": ("open_txn_select", "open_txn_upsert"),
    "aborted_txn": ("aborted_txn_all", "aborted_txn_insert"),
    "txn_offset": ("txn_offset_all", "txn_offset_upsert"),
    "group_offset": ("group_offset_all", "group_offset_upsert"),
    "group_claim": ("group_claim_all", "group_claim_insert"),
    "pin": ("pin_select", "pin_upsert"),
    "sink_epoch": ("sink_epoch_all", "sink_epoch_insert"),
    "object": ("object_chunks", "object_upsert"),
    "run": ("run_of_chunks", "run_insert"),
}
"""Table -> the statements that read and write it, with the same columns in the same order."""

BEGIN_WITH_TOPIC_ID = {"topic", "partition", "producer", "open_txn", "aborted_txn", "run"}
"""The tables whose first column is 16 bytes; no other column holds bytes."""


def take_state(db: Db) -> State:
    """Everything at one moment: call it first in its transaction."""
    db.query("backup_begin")
    state = {table: db.query(select) for table, (select, _) in TABLES.items()}
    return {"log": db.query("log_all"), **state}


def take_number(db: Db) -> int:
    """A number for a backup, above all earlier ones."""
    [(number,)] = db.query("backup_take")
    return int(number)


def restore(
    state: State, objects: Sequence[ObjectRow], runs: Sequence[RunRow], number: int, db: Db
) -> None:
    """Fill a catalog that holds nothing, with these objects and runs besides those of the state.

    Backups taken from now on have numbers above `number`.
    """
    assert not db.query("topic_select"), "a state is restored into an empty catalog"
    [log] = state["log"]
    db.query("log_restore", *log, number)
    rows = {table: state.get(table, ()) for table in TABLES}
    rows["object"] = [*rows["object"], *objects]
    rows |= _groups(rows, db.now_ms())
    ordered = sorted([*rows["run"], *runs], key=lambda run: (run[0], run[1], run[2]))
    rows["run"] = ordered
    for table, (_, insert) in TABLES.items():
        if table == "topic":
            for topic in rows[table]:
                db.query(insert, *topic)  # it returns something, as `many` must not
        else:
            db.many(insert, rows[table])


def _groups(rows: State, now_ms: int) -> State:
    """What tells of groups: all members have just gone, and no position expires before its time.

    Older releases knew neither when a position was committed nor what a group was.
    """
    claims = [(*row, "", None)[:5] for row in rows["group_claim"]]
    return {
        "group_claim": [
            (*row[:4], now_ms if row[3] and row[4] is None else row[4]) for row in claims
        ],
        "group_offset": [(*row, now_ms)[:7] for row in rows["group_offset"]],
        "txn_offset": [(*row, now_ms)[:8] for row in rows["txn_offset"]],
    }
