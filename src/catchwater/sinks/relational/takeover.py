"""One table's content in the place of another's, marks included, in one transaction.

Readers of the other table see its old rows or its new ones. The table itself stays, with its
indexes, grants and the views that are built on it.
"""

from catchwater.sinks.relational.database import Transaction, quoted
from catchwater.sinks.relational.tables import UNDO_COLUMNS, Target, Writer

_OF = "pipeline = ? AND sink = ?"


def take_place(transaction: Transaction, mine: Target, theirs: Target, live: Writer) -> int:
    """Give the live writer this table's rows and marks, and drop the table; how many rows.

    -1 if that was done before: then this table has no marks.
    """
    own, other = mine.owner, (live.pipeline, live.sink)
    ((marks,),) = transaction.execute(f"SELECT count(*) FROM catchwater_epochs WHERE {_OF}", own)
    rows = _move(transaction, mine, theirs, live) if marks else -1
    if marks:
        transaction.execute(f"DELETE FROM catchwater_epochs WHERE {_OF}", other)
        transaction.execute(
            f"UPDATE catchwater_epochs SET pipeline = ?, sink = ? WHERE {_OF}", [*other, *own]
        )
        transaction.execute(
            f"UPDATE catchwater_sinks SET generation = ? WHERE {_OF}", [live.generation, *other]
        )
    transaction.execute(f"DELETE FROM catchwater_sinks WHERE {_OF}", own)
    transaction.execute(f"DROP TABLE {mine.name}")
    if live.output_id:
        transaction.execute(f"DROP TABLE {mine.undo}")
    return rows


def _move(transaction: Transaction, mine: Target, theirs: Target, live: Writer) -> int:
    theirs.check_fits(transaction)
    columns = quoted(mine.columns)
    transaction.execute(f"DELETE FROM {theirs.name}")
    transaction.execute(f"INSERT INTO {theirs.name} ({columns}) SELECT {columns} FROM {mine.name}")
    if live.output_id:
        transaction.execute(f"DELETE FROM {theirs.undo}")
        # By name: where columns were added, they do not stand in the same order.
        undone = quoted([*UNDO_COLUMNS, *mine.columns])
        transaction.execute(
            f"INSERT INTO {theirs.undo} ({undone}) SELECT {undone} FROM {mine.undo}"
        )
    ((rows,),) = transaction.execute(f"SELECT count(*) FROM {theirs.name}")
    return int(rows)
