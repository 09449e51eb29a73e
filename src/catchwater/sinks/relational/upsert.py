"""Rows that replace each other: written so that an epoch can be withdrawn again.

An epoch's rows go into a temporary table, from there what they replace goes into the undo table,
and then they replace it; a retraction deletes it and puts nothing in its place. All in the
transaction that the epoch's mark is in, in SQL that SQLite and PostgreSQL read alike. Putting back
takes, of each row, what the oldest withdrawn epoch found.
"""

from collections.abc import Iterable, Sequence

from catchwater.sinks.relational.database import Transaction, quoted
from catchwater.sinks.relational.tables import Target

NO_ROW = (None, None, None)
"""In the place of epoch, shard and row: nothing is to be there under this identity."""

_FRESH = "catchwater_fresh"


def replace_rows(
    transaction: Transaction,
    target: Target,
    output_id: Sequence[str],
    epoch: int,
    rows: Iterable[Sequence[object]],
) -> None:
    """Let these rows replace those of the same identity; no two of them have the same one.

    One that ends with NO_ROW deletes what it would replace.
    """
    columns = quoted(target.columns)
    others = [name for name in target.columns if name not in output_id]
    same = " AND ".join(f't."{name}" = f."{name}"' for name in output_id)
    found = ", ".join(
        f'f."{name}"' if name in output_id else f't."{name}"' for name in target.columns
    )
    updated = ", ".join(f'"{name}" = excluded."{name}"' for name in others)
    transaction.execute(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS {_FRESH} AS "
        f"SELECT {columns} FROM {target.name} WHERE 1 = 0"
    )
    transaction.insert(_FRESH, target.columns, rows)
    transaction.execute(
        f"INSERT INTO {target.undo} (catchwater_undo_epoch, catchwater_existed, {columns}) "
        f"SELECT ?, t.catchwater_epoch IS NOT NULL, {found} "
        f"FROM {_FRESH} f LEFT JOIN {target.name} t ON {same} WHERE 1 = 1 ON CONFLICT DO NOTHING",
        [epoch],
    )
    there = " AND ".join(f'f."{name}" = {target.name}."{name}"' for name in output_id)
    transaction.execute(
        f"DELETE FROM {target.name} WHERE EXISTS "
        f"(SELECT 1 FROM {_FRESH} f WHERE f.catchwater_epoch IS NULL AND {there})"
    )
    transaction.execute(
        f"INSERT INTO {target.name} ({columns}) SELECT {columns} FROM {_FRESH} "
        "WHERE catchwater_epoch IS NOT NULL "
        f"ON CONFLICT ({quoted(output_id)}) DO UPDATE SET {updated}"
    )
    transaction.execute(f"DELETE FROM {_FRESH}")


def put_back(
    transaction: Transaction, target: Target, output_id: Sequence[str], after: int
) -> None:
    """Make the table as it was after this epoch."""
    identity = quoted(output_id)
    columns = quoted(target.columns)
    same = " AND ".join(f'u."{name}" = {target.name}."{name}"' for name in output_id)
    oldest = " AND ".join(f'o."{name}" = u."{name}"' for name in output_id)
    transaction.execute(
        f"DELETE FROM {target.name} WHERE EXISTS "
        f"(SELECT 1 FROM {target.undo} u WHERE u.catchwater_undo_epoch > ? AND {same})",
        [after],
    )
    transaction.execute(
        f"INSERT INTO {target.name} ({columns}) SELECT {columns} FROM {target.undo} u "
        f"WHERE u.catchwater_existed AND u.catchwater_undo_epoch = "
        f"(SELECT min(o.catchwater_undo_epoch) FROM {target.undo} o "
        f"WHERE o.catchwater_undo_epoch > ? AND {oldest}) "
        f"ON CONFLICT ({identity}) DO NOTHING",
        [after],
    )
    transaction.execute(f"DELETE FROM {target.undo} WHERE catchwater_undo_epoch > ?", [after])
