"""A table that was made anew takes the place of the live one: wholly or not at all, and once."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.sink_targets import (
    PostgresTarget,
    PostgresUpsertTarget,
    SqliteTarget,
    SqliteUpsertTarget,
    Target,
    write,
)

from catchwater.clock import SYSTEM
from catchwater.sinks.base import TargetDiffers
from catchwater.sinks.config import open_sink, parse
from catchwater.sinks.kinds.postgres import PostgresTransaction
from catchwater.sinks.kinds.sqlite import SqliteTransaction
from catchwater.sinks.table import TableSink

ROWS = 4
TARGETS: dict[str, Callable[[Path, Callable[[str], Any]], Target]] = {
    "sqlite": lambda root, given: SqliteTarget(root),
    "sqlite upsert": lambda root, given: SqliteUpsertTarget(root),
    "postgres": lambda root, given: PostgresTarget(root, given("postgres_url")),
    "postgres upsert": lambda root, given: PostgresUpsertTarget(root, given("postgres_url")),
}


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return TARGETS[request.param](tmp_path, request.getfixturevalue)


def rebuilt(target: Target) -> TableSink:
    """The sink of a rebuild of the pipeline, with a checkpoint of its own."""
    around = target.around("cards.anew", 0, SYSTEM)
    around = replace(around, objects=(target.root / "anew").as_uri())
    values = {"kind": target.kind, **target.options, "table": "alerts__anew"}
    sink = open_sink(parse(target.name, values), around)
    assert isinstance(sink, TableSink)
    return sink


def ids(target: Target) -> Counter[str]:
    return Counter(row["id"] for row in target.read())


def prepared(target: Target) -> tuple[Counter[str], Counter[str]]:
    """What the live table holds, and what the one made anew does."""
    live = target.open()
    for epoch in range(3):
        write(live, epoch, ROWS, salt="old")
    live.close()
    anew = rebuilt(target)
    for epoch in range(5):
        write(anew, epoch, ROWS)
    anew.close()
    then = Counter(
        f"{e}-{shard}-{row}" for e in range(5) for shard in (0, 2) for row in range(ROWS)
    )
    return ids(target), then


def test_rows_and_marks_change_places_and_the_pipeline_goes_on(target: Target) -> None:
    _, then = prepared(target)
    anew = rebuilt(target)
    assert anew.take_place("cards", "alerts") == sum(then.values())
    anew.close()
    assert ids(target) == then

    live = target.open()
    assert live.last_epoch() == 4
    write(live, 4, ROWS)  # it has its mark
    write(live, 5, ROWS)
    live.close()
    assert sum(ids(target).values()) == sum(then.values()) + 2 * ROWS


def test_a_second_time_it_takes_nothing_away(target: Target) -> None:
    _, then = prepared(target)
    for rows in (sum(then.values()), -1, -1):
        anew = rebuilt(target)
        assert anew.take_place("cards", "alerts") == rows
        anew.close()
        assert ids(target) == then


def test_whoever_dies_on_the_way_leaves_the_old_or_the_new(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, then = prepared(target)
    kind = PostgresTransaction if target.kind == "postgres" else SqliteTransaction
    execute, steps = kind.execute, 0
    while ids(target) == before:
        anew, left = rebuilt(target), iter(range(steps))

        def dying(self: Any, *given: Any, left: Any = left) -> Any:
            if next(left, None) is None:
                raise Killed
            return execute(self, *given)

        with monkeypatch.context() as patched:
            patched.setattr(kind, "execute", dying)
            try:
                anew.take_place("cards", "alerts")
            except Killed:
                assert ids(target) == before
        anew.close()
        steps += 1
    assert steps > 8, "it has so many steps"
    assert ids(target) == then


def test_a_table_that_cannot_take_the_rows_is_named_and_left(target: Target) -> None:
    before, _ = prepared(target)
    target._run("ALTER TABLE alerts ADD COLUMN extra text NOT NULL DEFAULT ''")  # type: ignore[attr-defined]
    target._run("ALTER TABLE alerts RENAME COLUMN amount TO euros")  # type: ignore[attr-defined]
    anew = rebuilt(target)
    with pytest.raises(TargetDiffers, match="amount is missing"):
        anew.take_place("cards", "alerts")
    anew.close()
    target._run("ALTER TABLE alerts RENAME COLUMN euros TO amount")  # type: ignore[attr-defined]
    assert ids(target) == before
