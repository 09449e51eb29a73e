"""The table sink under faults: answers that are lost, a target that is away, bounded memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from catchwater.clock import SYSTEM, ManualClock
from catchwater.sinks import reconcile
from catchwater.sinks.base import (
    EpochDiffers,
    OutputRecord,
    SinkFull,
    SinkUnavailable,
    TargetDiffers,
    TargetTaken,
)
from catchwater.sinks.columns import RowUnfit, codec_of
from catchwater.sinks.config import parse
from catchwater.sinks.epochs import Archive, Owner, StagedFile
from catchwater.sinks.kinds.sqlite import SqliteDatabase
from catchwater.sinks.table import TableSink
from catchwater.sinks.table_target import Writer


@dataclass
class Alert:
    card: str
    at: int


class Flaky(SqliteDatabase):
    """Fails as `plan` says: `away` before a transaction, `lost` after its commit, `full` in it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.plan: list[str] = []
        self.transactions = 0

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        self.transactions += 1
        fault = self.plan.pop(0) if self.plan else ""
        if fault == "away":
            raise SinkUnavailable("The database is out of reach.")
        with super().transaction() as transaction:
            yield transaction
            if fault == "full":
                raise SinkFull("No space.")
        if fault == "lost":
            raise SinkUnavailable("The answer was lost.")


class World:
    def __init__(self, root: Path, mode: str = "append", delivery: str = "exactly-once") -> None:
        self.clock, self.mode = ManualClock(), mode
        self.database = Flaky(root / "out.db")
        self.truth = Archive(StagedFile((root / "checkpoint").as_uri(), "staged/alerts"))
        output_id = ("card",) if mode == "upsert" else ()
        config = parse("alerts", {"kind": "sqlite", "path": "out.db", "table": "alerts",
                                  "mode": mode, "retry": "30s", "delivery": delivery})  # fmt: skip
        self.sink = TableSink(
            self.database, Writer(Owner("cards", "alerts"), "alerts", output_id), codec_of(Alert),
            config, self.truth, self.clock,
        )  # fmt: skip

    def stage(self, epoch: int, rows: int = 10) -> Any:
        records = [
            OutputRecord(b"c%d" % row, msgspec.json.encode(Alert(f"c{row}", epoch)), 0)
            for row in range(rows)
        ]
        return [self.sink.stager().stage(epoch, 0, records)]

    def content(self) -> list[tuple[Any, ...]]:
        return sorted(self.database.scan('SELECT card, "at" FROM alerts', ()))


@pytest.fixture(params=["append", "upsert"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, request.param)
    yield made
    made.sink.close()


def test_an_answer_lost_after_the_commit_is_asked_for_again_and_nothing_is_twice(
    world: World,
) -> None:
    world.database.plan = ["lost"]
    done = world.sink.commit(0, world.stage(0))
    assert done.records == 10
    assert len(world.content()) == 10


def test_a_target_that_comes_back_in_time_costs_only_time(world: World) -> None:
    world.database.plan = ["away"] * 4
    world.sink.commit(0, world.stage(0))
    assert len(world.content()) == 10


def test_a_target_that_stays_away_fails_the_epoch_by_name_and_it_runs_again(world: World) -> None:
    world.database.plan = ["away"] * 1000
    began = world.clock.now_ms()
    with pytest.raises(SinkUnavailable, match=r"out of reach\. Given up after \d+ tries in \d+"):
        world.sink.commit(0, world.stage(0))
    assert world.clock.now_ms() - began <= 30_000
    world.database.plan = []
    assert world.content() == []
    world.sink.commit(0, world.stage(0))
    assert len(world.content()) == 10


def test_a_full_target_is_not_waited_for(world: World) -> None:
    began = world.clock.now_ms()
    world.database.plan = ["full"]
    with pytest.raises(SinkFull):
        world.sink.commit(0, world.stage(0))
    assert world.clock.now_ms() == began
    assert world.content() == []


def test_a_repeated_epoch_with_other_content_is_refused(world: World) -> None:
    world.sink.commit(0, world.stage(0))
    with pytest.raises(EpochDiffers):
        world.sink.commit(0, world.stage(0, rows=9))
    assert len(world.content()) == 10


def test_an_output_that_repeats_within_a_shard_keeps_its_last_value(tmp_path: Path) -> None:
    world = World(tmp_path, "upsert")
    records = [OutputRecord(b"c", msgspec.json.encode(Alert("c", at)), 0) for at in range(5)]
    stager = world.sink.stager()
    world.sink.commit(0, [stager.stage(0, 1, records[:3]), stager.stage(0, 0, records[3:])])
    assert world.content() == [("c", 2)]  # shard 1 is written after shard 0
    assert not reconcile.verify(world.sink, 0).findings
    world.sink.close()


def test_at_least_once_leaves_no_marks(tmp_path: Path) -> None:
    world = World(tmp_path, delivery="at-least-once")
    world.sink.commit(0, world.stage(0))
    world.sink.commit(0, world.stage(0))
    assert len(world.content()) == 20
    assert list(world.database.scan("SELECT * FROM catchwater_epochs", ())) == []
    ids = "SELECT DISTINCT catchwater_epoch, catchwater_shard FROM alerts"
    assert list(world.database.scan(ids, ())) == [(0, 0)]
    world.sink.close()


def test_marks_and_what_was_replaced_are_forgotten_now_and_then(tmp_path: Path) -> None:
    world = World(tmp_path, "upsert")
    for epoch in range(70):
        world.sink.commit(epoch, world.stage(epoch, rows=1))
    before = world.database.transactions
    world.sink.sweep(10, 10**15)
    assert world.database.transactions == before  # not for so few
    world.sink.sweep(66, 10**15)
    (marks,) = world.database.scan("SELECT min(epoch), max(epoch) FROM catchwater_epochs", ())
    (undo,) = world.database.scan(
        "SELECT min(catchwater_undo_epoch) FROM alerts_catchwater_undo", ()
    )
    assert (marks, undo) == ((66, 69), (66,))
    assert world.truth.epochs() == [66, 67, 68, 69]
    world.sink.commit(70, world.stage(70))
    world.sink.close()


def run(world: World, sql: str) -> None:
    with world.database.transaction() as transaction:
        transaction.execute(sql)


def test_a_table_that_is_dropped_meanwhile_is_told_with_the_way_back(world: World) -> None:
    world.sink.commit(0, world.stage(0))
    run(world, "DROP TABLE alerts")
    with pytest.raises(TargetDiffers, match="The table alerts is gone") as told:
        world.sink.commit(1, world.stage(1))
    assert told.value.exit_code == 2
    assert "catchwater sink repair" in str(told.value.hint)


def test_a_table_that_is_altered_meanwhile_is_told_with_what_is_wrong(world: World) -> None:
    world.sink.commit(0, world.stage(0))
    run(world, "ALTER TABLE alerts RENAME COLUMN card TO name")
    with pytest.raises(TargetDiffers, match="cannot take the outputs: card is missing") as told:
        world.sink.commit(1, world.stage(1))
    if world.mode == "append":
        assert 'ALTER TABLE "alerts" ADD COLUMN "card" TEXT' in str(told.value.hint)
    else:  # a key cannot be added
        assert "CREATE TABLE" in str(told.value.hint)


def test_a_row_that_the_table_refuses_is_told_as_that_while_the_table_fits(world: World) -> None:
    world.sink.commit(0, world.stage(0))
    run(world, "CREATE TRIGGER no BEFORE INSERT ON alerts BEGIN SELECT RAISE(ABORT, 'no'); END")
    with pytest.raises(RowUnfit, match="refuses an output: no") as told:
        world.sink.commit(1, world.stage(1))
    assert "alter the column" in str(told.value.hint)


def test_a_sink_whose_claim_was_deleted_writes_no_more(world: World) -> None:
    world.sink.commit(0, world.stage(0))
    run(world, "DELETE FROM catchwater_sinks")
    with pytest.raises(TargetTaken, match="no longer has its row in catchwater_sinks"):
        world.sink.commit(1, world.stage(1))
    assert len(world.content()) == 10


def test_a_database_that_is_away_while_what_is_behind_is_swept_fails_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catchwater.sinks.table._SWEEP_EPOCHS", 1)
    for epoch in range(3):
        world.sink.commit(epoch, world.stage(epoch))
    world.database.plan = ["away"]
    # A moment behind what was staged: what is younger than `keep` is left, and its marks with it.
    world.sink.sweep(2, SYSTEM.now_ms() + 1000)
    assert not world.database.plan
    world.sink.sweep(2, SYSTEM.now_ms() + 1000)
    with world.database.transaction() as transaction:
        left = transaction.execute("SELECT epoch FROM catchwater_epochs")
    assert left == [(2,)]
