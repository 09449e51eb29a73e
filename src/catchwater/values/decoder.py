"""What a format gives: Spark's fields, and the way from bytes to a row to the cells of a column."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import types

from catchwater.values.settings import BadSchema

Cells = Callable[[Sequence[Any]], list[Any]]
"""The cells of one field in these rows, in what `pyarrow.array` takes for the field's type."""


@dataclass(frozen=True)
class Decoder:
    """One format with one schema.

    `decode` makes a row of a value, or raises one of `errors`; `empty` is a row of nulls. `cells`
    has one function for each of `fields`, which may raise ValueError too.
    """

    fields: tuple[types.StructField, ...]
    cells: tuple[Cells, ...]
    decode: Callable[[bytes], Any]
    errors: tuple[type[Exception], ...]
    empty: Any


def cells_by(read: Callable[[Any], Any]) -> Cells:
    """The cells that `read` finds in each row."""

    def cells(rows: Sequence[Any]) -> list[Any]:
        return [read(row) for row in rows]

    return cells


def only(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The names of fields that are wanted: all that are known, if none is given."""
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadSchema(
            f"valueFields names {unknown[0]}, but the fields of valueSchema are: "
            f"{', '.join(known)}."
        )
    return list(names or known)


def refused(path: str, what: str) -> BadSchema:
    """The error for a field that no column can hold."""
    return BadSchema(
        f"valueSchema: the field {path} {what}.", hint="Leave it out by the option valueFields."
    )
