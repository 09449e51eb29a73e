"""Iceberg: an epoch is one snapshot, its mark goes with it, and a conflict asks the mark first."""

import datetime as dt
import os
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, UnauthorizedError
from sqlalchemy.orm import Session
from tests.power import Power

from catchwater.clock import Clock, ManualClock
from catchwater.config import ConfigError
from catchwater.sinks.arrow_columns import Columns
from catchwater.sinks.base import (
    EpochDiffers,
    EpochMissing,
    Fix,
    NotAdmitted,
    OutputRecord,
    RowId,
    SinkUnavailable,
    Staged,
    Superseded,
    TargetDiffers,
    TargetTaken,
)
from catchwater.sinks.config import SinkContext, parse
from catchwater.sinks.epochs import Archive, Owner, StagedFile
from catchwater.sinks.kinds.iceberg import KIND, IcebergSink


class Alert(msgspec.Struct):
    card: str
    amount: float


class World:
    """One table and one archive, and drivers that come and go."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.root = root
        self.clock = Clock(7)
        self.stager = StagedFile((root / "kept").as_uri(), "staged/alerts")
        self._stack = stack
        self.catalog = self.connect()

    def connect(self) -> Catalog:
        uri = f"sqlite:///{self.root}/catalog.db"
        catalog = load_catalog("default", type="sql", uri=uri, warehouse=self.root.as_uri())
        self._stack.callback(catalog.close)
        return catalog

    def sink(self, **changes: Any) -> IcebergSink:
        terms = {
            "pipeline": "cards", "name": "alerts", "generation": 0, "output": Alert,
            "catalog": self.catalog, "retry_ms": 5_000, **changes,
        }  # fmt: skip
        catalog, columns = terms.pop("catalog"), Columns(terms.pop("output"))
        owner = Owner(terms.pop("pipeline"), terms.pop("name"), terms.pop("generation"))
        truth = Archive(self.stager)
        return IcebergSink(
            catalog, "lake.alerts", columns, truth, owner=owner, clock=ManualClock(), **terms
        )

    def stage(self, epoch: int, *rows: object) -> list[Staged]:
        records = [OutputRecord(b"k", msgspec.json.encode(row), 0) for row in rows]
        return [self.stager.stage(epoch, s, records[s::2], self.clock) for s in (0, 1)]

    def table(self) -> Any:
        return self.catalog.load_table("lake.alerts")

    def cards(self) -> list[str]:
        return sorted(self.table().scan().to_arrow()["card"].to_pylist())


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with ExitStack() as stack:
        yield World(tmp_path, stack)


def test_an_epoch_is_one_snapshot_whose_summary_says_which(world: World) -> None:
    sink = world.sink()
    done = sink.commit(4, world.stage(4, Alert("a", 1.0), Alert("b", 2.0), Alert("c", 3.0)))
    sink.commit(5, world.stage(5))
    assert (done.records, sink.last_epoch(), world.cards()) == (3, 5, ["a", "b", "c"])
    (snapshot,) = world.table().snapshots()
    assert snapshot.summary["catchwater.epoch"] == "4"
    assert snapshot.summary["catchwater.checksum"] == done.checksum
    rows = world.table().scan().to_arrow().drop_columns(["card", "amount"]).to_pylist()
    assert rows == [
        {"catchwater_epoch": 4, "catchwater_shard": s, "catchwater_row": r}
        for s, r in ((0, 0), (0, 1), (1, 0))
    ]


def test_an_epoch_that_is_committed_again_answers_as_at_first(world: World) -> None:
    rows = (Alert("a", 1.0), Alert("b", 2.0))
    first = world.sink().commit(0, world.stage(0, *rows))
    assert world.sink().commit(0, world.stage(0, *rows)) == first
    assert world.cards() == ["a", "b"]


def test_marks_outlive_the_expiry_of_snapshots(world: World) -> None:
    for epoch, card in enumerate("ab"):
        world.sink().commit(epoch, world.stage(epoch, Alert(card, 1.0)))
    old = world.table().snapshots()[0].snapshot_id
    world.table().maintenance.expire_snapshots().by_id(old).commit()
    assert len(world.table().snapshots()) == 1
    assert world.sink().commit(0, world.stage(0, Alert("a", 1.0))).records == 1
    assert (world.sink().last_epoch(), world.cards()) == (1, ["a", "b"])


def test_only_the_newest_snapshots_are_kept_and_those_with_a_name(world: World) -> None:
    sink = world.sink(snapshots=3)
    world.table().append(Columns(Alert).schema.empty_table())
    others = world.table().current_snapshot().snapshot_id
    for epoch in range(12):
        sink.commit(epoch, world.stage(epoch, Alert(f"{epoch:02}", 1.0)))
        if epoch == 1:
            snapshot = world.table().current_snapshot().snapshot_id
            world.table().manage_snapshots().create_tag(snapshot, "keep").commit()
        sink.sweep(epoch - 2, 0)
        assert len(world.table().snapshots()) <= 2 * 3 + 2
    assert world.cards() == [f"{epoch:02}" for epoch in range(12)]
    assert world.table().snapshot_by_id(others) is not None
    assert world.table().scan(snapshot_id=snapshot).to_arrow().num_rows == 2
    assert not list(wrong(sink, 11))


def test_other_content_and_epochs_that_do_not_follow_are_refused(world: World) -> None:
    world.sink().commit(0, world.stage(0, Alert("a", 1.0)))
    with pytest.raises(EpochDiffers, match="epoch 0 of 'cards' with checksum"):
        world.sink().commit(0, world.stage(0, Alert("b", 1.0)))
    with pytest.raises(EpochMissing, match="up to 0 and no mark of 2"):
        world.sink().commit(2, world.stage(2, Alert("b", 1.0)))
    assert world.cards() == ["a"]


def meet(world: World, intruder: Any) -> Any:
    """Let something happen to the table between its loading and our commit, once."""
    commit = type(world.catalog).commit_table
    pending = [intruder]

    def met(self: Catalog, table: Any, requirements: Any, updates: Any) -> Any:
        while pending:
            pending.pop()()
        return commit(self, table, requirements, updates)

    return mock.patch.object(type(world.catalog), "commit_table", met)


def test_two_drivers_at_once_write_an_epoch_once(world: World) -> None:
    sink, zombie = world.sink(), world.sink(catalog=world.connect())
    rows = (Alert("a", 1.0), Alert("b", 2.0))
    with meet(world, lambda: zombie.commit(0, world.stage(0, *rows))):
        assert sink.commit(0, world.stage(0, *rows)).records == 2
    assert world.cards() == ["a", "b"]
    assert len(world.table().snapshots()) == 1


def test_what_others_write_at_the_same_time_is_kept(world: World) -> None:
    sink = world.sink()

    def other_writer() -> None:
        row = {"catchwater_epoch": [None], "catchwater_shard": [None], "catchwater_row": [None]}
        columns = Columns(Alert).schema
        world.table().append(pa.table({**row, "card": ["x"], "amount": [0.0]}, schema=columns))

    with meet(world, other_writer):
        sink.commit(0, world.stage(0, Alert("a", 1.0)))
    assert world.cards() == ["a", "x"]


def test_a_table_that_always_changes_is_given_up_after_a_while(world: World) -> None:
    sink = world.sink()
    busy = mock.Mock(side_effect=CommitFailedException("changed"))
    with (
        mock.patch.object(type(world.catalog), "commit_table", busy),
        pytest.raises(SinkUnavailable, match=r"changed the table lake.alerts at the same time"),
    ):
        sink.commit(0, world.stage(0, Alert("a", 1.0)))
    assert busy.call_count > 3
    assert world.cards() == []


def test_a_commit_whose_reply_was_lost_is_known_by_its_mark(world: World) -> None:
    commit = type(world.catalog).commit_table
    lost = [ConnectionResetError("gone")]

    def losing(self: Catalog, table: Any, requirements: Any, updates: Any) -> Any:
        answer = commit(self, table, requirements, updates)
        if lost:
            raise lost.pop()
        return answer

    sink = world.sink()
    with mock.patch.object(type(world.catalog), "commit_table", losing):
        assert sink.commit(0, world.stage(0, Alert("a", 1.0))).records == 1
    assert world.cards() == ["a"]


def test_a_killed_driver_leaves_all_or_nothing_and_the_next_one_finishes(world: World) -> None:
    world.sink().commit(0, world.stage(0, Alert("a", 1.0)))
    sink = world.sink()
    with (
        mock.patch.object(type(world.catalog), "commit_table", side_effect=KeyboardInterrupt),
        pytest.raises(KeyboardInterrupt),
    ):
        sink.commit(1, world.stage(1, Alert("b", 1.0), Alert("c", 1.0)))
    assert world.cards() == ["a"]
    world.sink().commit(1, world.stage(1, Alert("b", 1.0), Alert("c", 1.0)))
    assert world.cards() == ["a", "b", "c"]


def test_a_table_of_another_pipeline_is_left_alone(world: World) -> None:
    world.sink().commit(0, world.stage(0, Alert("a", 1.0)))
    with pytest.raises(TargetTaken, match="the sink 'alerts' of the pipeline 'cards'"):
        world.sink(pipeline="other")


def test_a_new_generation_takes_epochs_back_and_fences_the_old_one(world: World) -> None:
    old = world.sink()
    for epoch, card in enumerate("abc"):
        old.commit(epoch, world.stage(epoch, Alert(card, 1.0)))
    new = world.sink(generation=1)
    new.withdraw(0)
    assert (world.cards(), new.last_epoch(), new.truth.epochs()) == (["a"], 0, [0])
    with pytest.raises(Superseded, match="written by generation 1"):
        old.commit(3, world.stage(3, Alert("d", 1.0)))
    new.commit(1, world.stage(1, Alert("B", 1.0)))
    new.withdraw(0)
    assert (world.cards(), new.truth.epochs()) == (["B", "a"], [0, 1])


class More(msgspec.Struct):
    card: str
    amount: float
    at: dt.datetime
    prices: dict[str, Decimal] = {}


class Fewer(msgspec.Struct):
    card: str


class Other(msgspec.Struct):
    card: str
    amount: str


def test_a_new_field_is_a_new_column_and_a_missing_one_stays_null(world: World) -> None:
    world.sink().commit(0, world.stage(0, Alert("a", 1.0)))
    noon = dt.datetime(2024, 1, 1, 12, tzinfo=dt.UTC)
    sink = world.sink(output=More)
    sink.commit(1, world.stage(1, More("b", 2.0, noon, {"x": Decimal("1.5")})))
    rows = world.table().scan().to_arrow().sort_by("card").to_pylist()
    assert [row["at"] for row in rows] == [None, noon]
    assert not list(wrong(sink, 1))
    world.sink(output=Fewer).commit(2, world.stage(2, Fewer("c")))
    assert world.cards() == ["a", "b", "c"]


def test_a_field_of_another_type_is_refused_before_the_start(world: World) -> None:
    world.sink()
    with pytest.raises(TargetDiffers, match=r"The table lake.alerts cannot take the outputs: .*"):
        world.sink(output=Other)


def wrong(sink: IcebergSink, last: int) -> Iterator[Fix]:
    """What `sink repair` finds."""
    truth = {row_id: record for e in range(last + 1) for row_id, record in sink.truth.rows(e)}
    seen: dict[RowId, list[bytes | None]] = {}
    for row in sink.rows(0, last):
        seen.setdefault(row.id, []).append(row.digest)
    for row_id in truth.keys() | seen.keys():
        record = truth.get(row_id)
        if seen.get(row_id) != ([sink.digest(record)] if record else None):
            yield Fix(row_id, record)


def test_rows_missing_altered_doubled_and_foreign_are_found_and_mended(world: World) -> None:
    sink = world.sink()
    for epoch in range(3):
        rows = [Alert(f"{epoch}-{n:02}", float(n)) for n in range(20)]
        sink.commit(epoch, world.stage(epoch, *rows))
    before = world.cards()
    table = world.table()
    found = table.scan(row_filter="catchwater_epoch = 0").to_arrow()
    altered = found.to_pylist()
    altered[3]["amount"] = 99.0
    altered.append(altered[7])
    altered.append({**altered[0], "catchwater_row": 1000})
    del altered[5]
    table.overwrite(found.from_pylist(altered, schema=found.schema), "catchwater_epoch = 0")
    (task,) = world.table().scan(row_filter="catchwater_epoch = 1").plan_files()
    os.truncate(task.file.file_path.removeprefix("file://"), 100)

    assert len(list(wrong(sink, 2))) == 4 + 20
    assert sink.repair(list(wrong(sink, 2))) == []
    assert list(wrong(sink, 2)) == []
    assert world.cards() == before
    assert sink.last_epoch() == 2


def test_a_section_without_a_catalog_has_one_in_its_warehouse(world: World) -> None:
    section = {"kind": "iceberg", "table": "lake.cards", "warehouse": "warehouse"}
    context = SinkContext("cards", "", world.root, output_type=Alert)
    sink = KIND.open(parse("alerts", section), context, Archive(world.stager))
    sink.commit(0, world.stage(0, Alert("a", 1.0)))
    sink.close()
    assert (world.root / "warehouse" / "catalog.db").exists()


def test_what_a_snapshot_names_is_there_after_a_loss_of_power(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    power, warehouse, commits = Power(monkeypatch), world.root / "a" / "warehouse", []
    real = Session.commit

    def commit(self: Session) -> None:
        assert not list(power.lost(warehouse.parent))
        commits.append(self)
        real(self)

    monkeypatch.setattr(Session, "commit", commit)
    section = {"kind": "iceberg", "table": "lake.cards", "warehouse": str(warehouse)}
    context = SinkContext("cards", "", world.root, output_type=Alert)
    sink = KIND.open(parse("alerts", section), context, Archive(world.stager))
    sink.commit(0, world.stage(0, Alert("a", 1.0)))
    sink.commit(1, world.stage(1, Alert("b", 1.0)))
    sink.close()
    assert len(commits) > 2


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"table": "alerts", "warehouse": "w"}, "with its namespace"),
        ({"table": "lake.alerts"}, "names no catalog"),
        ({"table": "lake.alerts", "catalog.type": "nonsense"}, "cannot be opened"),
    ],
)
def test_a_section_that_names_too_little_is_refused(
    world: World, section: dict[str, str], message: str
) -> None:
    context = SinkContext("cards", "", world.root, output_type=Alert)
    with pytest.raises(ConfigError, match=message):
        KIND.open(parse("a", {"kind": "iceberg", **section}), context, Archive(world.stager))


def test_a_table_that_is_dropped_meanwhile_is_told_with_the_way_back(world: World) -> None:
    sink = world.sink()
    sink.commit(0, world.stage(0, Alert("a", 1.0)))
    world.catalog.drop_table("lake.alerts")
    with pytest.raises(TargetDiffers, match=r"The table lake\.alerts is gone") as told:
        sink.commit(1, world.stage(1, Alert("b", 1.0)))
    assert told.value.exit_code == 2
    assert "catchwater sink repair" in str(told.value.hint)


def test_a_column_that_is_dropped_meanwhile_comes_back_with_the_next_start(world: World) -> None:
    sink = world.sink()
    sink.commit(0, world.stage(0, Alert("a", 1.0)))
    with world.table().update_schema() as update:
        update.delete_column("amount")
    with pytest.raises(TargetDiffers, match="cannot take the outputs") as told:
        sink.commit(1, world.stage(1, Alert("b", 1.0)))
    assert "Start the pipeline again" in str(told.value.hint)
    world.sink().commit(1, world.stage(1, Alert("b", 1.0)))
    assert world.cards() == ["a", "b"]


def test_a_catalog_that_is_no_database_is_told(world: World) -> None:
    sink = world.sink()
    (world.root / "catalog.db").write_bytes(b"not a database, but long enough" * 500)
    world.catalog.close()
    with pytest.raises(TargetDiffers, match=r"catalog of the table lake\.alerts cannot be read"):
        sink.commit(0, world.stage(0, Alert("a", 1.0)))


def test_a_catalog_that_does_not_let_us_in_is_not_asked_again(world: World) -> None:
    sink = world.sink()
    refused = UnauthorizedError("NotAuthorizedException: no token")
    with (
        mock.patch.object(world.catalog, "load_table", side_effect=refused) as asked,
        pytest.raises(NotAdmitted, match=r"does not let us in: .*no token"),
    ):
        sink.commit(0, world.stage(0, Alert("a", 1.0)))
    assert asked.call_count == 1


def test_a_catalog_that_is_away_is_asked_again_and_named(world: World) -> None:
    section = {"table": "lake.alerts", "catalog.type": "rest", "catalog.uri": "http://127.0.0.1:1"}
    config = parse("a", {"kind": "iceberg", "retry": "1s", **section})
    context = SinkContext("cards", "", world.root, output_type=Alert, clock=ManualClock())
    with pytest.raises(SinkUnavailable, match=r"lake\.alerts is out of reach: .*Given up after"):
        KIND.open(config, context, Archive(world.stager))
