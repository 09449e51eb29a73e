"""The tables a function looks rows up in: the last value of each key of a compacted topic.

A broadcast table lies whole in every shard, a keyed one only where its key's state is. Rows are
kept as they came and decoded when they are asked for, once an epoch.
"""

from typing import Any

from catchwater.pipeline.functions.spec import FunctionSpec, TableSpec
from catchwater.pipeline.process.batch import TableBatch
from catchwater.state.entries import ShardState, Table, prefix_of
from catchwater.state.keys import HASH_BYTES, encode_key, stored_key


class TableRows:
    """All tables of a function in one epoch of one shard."""

    def __init__(self, spec: FunctionSpec, state: ShardState) -> None:
        self._spec = spec
        self._state = state
        self._rows: dict[tuple[Table, bytes], Any] = {}
        """Decoded in this epoch, by entry; None: there is no row."""

    def apply(self, batch: TableBatch) -> None:
        """Take over what has changed."""
        spec = self._spec.tables[batch.name]
        for key, value in zip(batch.keys, batch.values, strict=True):
            table, entry = _place(batch.name, spec, stored_key(key) if spec.keyed else key)
            if value is None:
                self._state.delete(table, entry)
            else:
                self._state.put(table, entry, value)

    def row(self, name: str, key: Any, current: bytes) -> Any:
        """The row of a key, or None; `current` is the stored key that is being handled.

        Raises LookupError for a table that is not declared, ValueError for another key of a keyed
        table.
        """
        spec = self._spec.tables.get(name)
        if spec is None:
            known = ", ".join(self._spec.tables) or "none"
            raise LookupError(f"there is no table {name!r}; declared: {known}")
        found = self._spec.encode_key(key) if spec.keyed else encode_key(key)
        if spec.keyed and found != current[HASH_BYTES:]:
            raise ValueError(
                f"the table {name!r} is keyed: beside the key's own row {key!r} lies elsewhere"
            )
        place = _place(name, spec, current if spec.keyed else found)
        if place not in self._rows:
            data = self._state.get(*place)
            self._rows[place] = None if data is None else spec.decode_row(data)
        return self._rows[place]


class RowsOf:
    """`Rows` of one table, as the context hands it out."""

    __slots__ = ("_current", "_name", "_tables")

    def __init__(self, tables: TableRows, name: str, current: bytes) -> None:
        self._tables = tables
        self._name = name
        self._current = current

    def get(self, key: Any) -> Any:
        """The row, or None."""
        return self._tables.row(self._name, key, self._current)


def _place(name: str, spec: TableSpec, key: bytes) -> tuple[Table, bytes]:
    """Table and entry of a row: `key` is a stored key if the table is keyed."""
    if spec.keyed:
        return Table.JOINED, prefix_of(key) + name.encode()
    return Table.SHARED, name.encode() + b"\0" + key
