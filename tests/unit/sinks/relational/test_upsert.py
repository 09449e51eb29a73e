"""Rows that replace each other, held to a dict: taking back any number of epochs is exact."""

from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from catchwater.sinks.columns import Column
from catchwater.sinks.epochs import Owner
from catchwater.sinks.kinds.sqlite import SqliteDatabase
from catchwater.sinks.table import NO_ROW, put_back, replace_rows
from catchwater.sinks.table_target import Target, Writer

epochs = st.lists(
    st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(0, 9) | st.none()), max_size=3),
    max_size=6,
)
"""Epochs of shards of rows by identity; None: it is taken back."""


@settings(max_examples=60, deadline=None)
@given(epochs, st.integers(-1, 6))
def test_the_table_is_as_it_was_after_the_epoch_gone_back_to(
    tmp_path_factory: pytest.TempPathFactory,
    written: list[list[dict[str, int | None]]],
    after: int,
) -> None:
    path = Path(tmp_path_factory.mktemp("upsert")) / "out.db"
    columns = [Column("id", "text"), Column("n", "integer")]
    with closing(SqliteDatabase(path)) as database:
        target = Target(database, Writer(Owner("p", "s"), "t", ("id",)), columns)
        target.prepare()
        model: dict[str, int] = {}
        states = {-1: dict(model)}
        for epoch, shards in enumerate(written):
            with database.transaction() as transaction:
                for shard, rows in enumerate(shards):
                    values = [
                        (id, n, *(NO_ROW if n is None else (epoch, shard, 0)))
                        for id, n in rows.items()
                    ]
                    replace_rows(transaction, target, ["id"], epoch, values)
                    model.update({id: n for id, n in rows.items() if n is not None})
                    for id in [id for id, n in rows.items() if n is None]:
                        model.pop(id, None)
            states[epoch] = dict(model)
        assert dict(database.scan("SELECT id, n FROM t", ())) == model
        with database.transaction() as transaction:
            put_back(transaction, target, ["id"], after)
        kept = min(after, len(written) - 1)
        assert dict(database.scan("SELECT id, n FROM t", ())) == states[kept]
