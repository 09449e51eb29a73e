"""Parquet files: an epoch is one file, created once; a plain reader needs nothing else."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from catchwater.clock import Clock, ManualClock
from catchwater.objects.base import ObjectInfo, StoreUnavailable
from catchwater.objects.local import LocalStore
from catchwater.sinks import reconcile
from catchwater.sinks.arrow_columns import Columns
from catchwater.sinks.base import (
    EpochDiffers,
    EpochMissing,
    Fix,
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
from catchwater.sinks.kinds.parquet import KIND, ParquetSink


class Alert(msgspec.Struct):
    card: str
    amount: float


class Cut(Exception):
    """The process ends here."""


class CuttingStore(LocalStore):
    """A store whose n-th writing request is the last thing that happens."""

    cut_before = cut_after = -1
    writes = 0

    def put(self, key: str, parts: list[bytes]) -> int:  # type: ignore[override]
        return self._cut(super().put, key, parts)

    def put_if_absent(self, key: str, parts: list[bytes]) -> int:  # type: ignore[override]
        return self._cut(super().put_if_absent, key, parts)

    def _cut(self, write, key: str, parts: list[bytes]) -> int:  # type: ignore[no-untyped-def]
        self.writes += 1
        if self.writes == self.cut_before:
            raise Cut
        size = write(key, parts)
        if self.writes == self.cut_after:
            raise Cut
        return int(size)


class World:
    """One target and one archive, and drivers that come and go."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = Clock(7)
        self.stager = StagedFile((root / "kept").as_uri(), "staged/alerts")

    def store(self) -> CuttingStore:
        return CuttingStore(self.root / "out")

    def sink(
        self, store: LocalStore | None = None, generation: int = 0, **changes: object
    ) -> ParquetSink:
        owner = Owner("cards", "alerts", generation)
        columns, truth = Columns(changes.get("output", Alert)), Archive(self.stager)
        if "pipeline" in changes:
            owner = owner._replace(pipeline=str(changes["pipeline"]))
        return ParquetSink(store or self.store(), columns, truth, owner=owner, clock=ManualClock())

    def stage(self, epoch: int, *rows: object) -> list[Staged]:
        """Two shards' pieces; the rows alternate."""
        records = [OutputRecord(b"k", msgspec.json.encode(row), 0) for row in rows]
        return [self.stager.stage(epoch, s, records[s::2], self.clock) for s in (0, 1)]

    def plain(self) -> list[str]:
        """What a reader sees who knows nothing of us, pointed at the whole folder."""
        found = ds.dataset(self.root / "out", format="parquet").to_table()
        return sorted(found["card"].to_pylist()) if found.num_rows else []


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_plain_reader_of_the_folder_sees_the_rows_of_committed_epochs(world: World) -> None:
    sink = world.sink()
    done = sink.commit(4, world.stage(4, Alert("a", 1.0), Alert("b", 2.0), Alert("c", 3.0)))
    sink.commit(5, world.stage(5))
    assert (done.records, sink.last_epoch()) == (3, 5)
    assert world.plain() == ["a", "b", "c"]
    (file,) = (world.root / "out").glob("*.parquet")
    assert file.name == "epoch-00000000000000000004.parquet"
    assert pq.read_table(file).drop_columns(["card", "amount"]).to_pylist() == [
        {"catchwater_epoch": 4, "catchwater_shard": s, "catchwater_row": r}
        for s, r in ((0, 0), (0, 1), (1, 0))
    ]


def test_an_epoch_that_is_committed_again_answers_as_at_first(world: World) -> None:
    rows = (Alert("a", 1.0), Alert("b", 2.0))
    first = world.sink().commit(0, world.stage(0, *rows))
    assert world.sink().commit(0, world.stage(0, *rows)) == first
    assert world.plain() == ["a", "b"]


def test_an_epoch_with_other_content_is_refused(world: World) -> None:
    world.sink().commit(0, world.stage(0, Alert("a", 1.0)))
    with pytest.raises(EpochDiffers, match="epoch 0 of 'cards' with checksum"):
        world.sink().commit(0, world.stage(0, Alert("b", 1.0)))
    assert world.plain() == ["a"]


def test_an_epoch_that_does_not_follow_is_refused(world: World) -> None:
    world.sink().commit(3, world.stage(3, Alert("a", 1.0)))
    with pytest.raises(EpochMissing, match="up to 3 and no mark of 5"):
        world.sink().commit(5, world.stage(5, Alert("b", 1.0)))


@pytest.mark.parametrize("cut", ["cut_before", "cut_after"])
@pytest.mark.parametrize("write", [1, 2])
def test_a_driver_killed_at_any_write_leaves_all_or_nothing_and_the_next_finishes(
    world: World, cut: str, write: int
) -> None:
    world.sink().commit(0, world.stage(0, Alert("a", 1.0)))
    store = world.store()
    setattr(store, cut, write)
    rows = (Alert("b", 2.0), Alert("c", 3.0))
    with pytest.raises(Cut):
        world.sink(store).commit(1, world.stage(1, *rows))
    assert world.plain() in (["a"], ["a", "b", "c"])
    after = world.sink()
    assert after.commit(1, world.stage(1, *rows)).records == 2
    assert (after.last_epoch(), world.plain()) == (1, ["a", "b", "c"])


def test_other_content_is_refused_also_where_the_mark_did_not_come_behind_its_file(
    world: World,
) -> None:
    store = world.store()
    store.cut_after = 1
    with pytest.raises(Cut):
        world.sink(store).commit(0, world.stage(0, Alert("a", 1.0)))
    with pytest.raises(EpochDiffers):
        world.sink().commit(0, world.stage(0, Alert("b", 1.0)))
    assert world.plain() == ["a"]


def test_two_drivers_of_one_generation_write_an_epoch_once(world: World) -> None:
    one, zombie = world.sink(), world.sink()
    assert one.commit(0, world.stage(0, Alert("a", 1.0))) == zombie.commit(
        0, world.stage(0, Alert("a", 1.0))
    )
    one.commit(1, world.stage(1, Alert("b", 1.0)))
    assert zombie.commit(0, world.stage(0, Alert("a", 1.0))).records == 1
    assert zombie.last_epoch() == 1


def test_a_folder_of_another_pipeline_is_left_alone(world: World) -> None:
    world.sink().commit(0, world.stage(0, Alert("a", 1.0)))
    with pytest.raises(TargetTaken, match="the sink 'alerts' of the pipeline 'cards'"):
        world.sink(pipeline="other")


def test_a_new_generation_takes_epochs_back_and_fences_the_old_one(world: World) -> None:
    old = world.sink()
    for epoch, card in enumerate("abc"):
        old.commit(epoch, world.stage(epoch, Alert(card, 1.0)))
    new = world.sink(generation=1)
    new.withdraw(0)
    assert (world.plain(), new.last_epoch()) == (["a"], 0)
    with pytest.raises(Superseded, match="written by generation 1"):
        old.commit(3, world.stage(3, Alert("d", 1.0)))
    new.commit(1, world.stage(1, Alert("B", 1.0)))
    new.withdraw(0)
    assert world.plain() == ["B", "a"]


@pytest.mark.parametrize("write", [1, 2])
def test_a_withdrawal_that_was_cut_short_can_be_done_again(world: World, write: int) -> None:
    old = world.sink()
    for epoch, card in enumerate("abc"):
        old.commit(epoch, world.stage(epoch, Alert(card, 1.0)))
    store = world.store()
    store.cut_after = write
    deleted: list[str] = []

    def delete(key: str) -> None:
        if len(deleted) + 1 == write:
            raise Cut
        deleted.append(key)
        LocalStore.delete(store, key)

    store.delete = delete  # type: ignore[method-assign]
    with pytest.raises(Cut):
        world.sink(store, generation=1).withdraw(0)
    world.sink(generation=1).withdraw(0)
    assert world.plain() == ["a"]


def test_what_a_zombie_of_an_older_generation_left_is_replaced(world: World) -> None:
    store = world.store()
    store.cut_after = 1
    with pytest.raises(Cut):
        world.sink(store).commit(0, world.stage(0, Alert("a", 1.0)))
    world.sink(generation=1).commit(0, world.stage(0, Alert("B", 1.0)))
    assert world.plain() == ["B"]


def test_a_store_that_is_away_fails_the_epoch_by_name(world: World) -> None:
    store = world.store()
    sink = world.sink(store)

    def away(key: str) -> bytes:
        raise StoreUnavailable("no answer")

    store.get = away  # type: ignore[method-assign]
    with pytest.raises(SinkUnavailable, match="no answer"):
        sink.commit(0, world.stage(0, Alert("a", 1.0)))


def test_a_column_of_another_type_is_refused_before_the_start(world: World) -> None:
    class Other(msgspec.Struct):
        card: str
        amount: str

    world.sink().commit(0, world.stage(0, Alert("a", 1.0)))
    with pytest.raises(TargetDiffers, match=r"amount of the files at .* is double; the output has"):
        world.sink(output=Other)


def test_a_new_column_is_null_in_older_rows(world: World) -> None:
    class More(msgspec.Struct):
        card: str
        amount: float
        why: str

    world.sink().commit(0, world.stage(0, Alert("a", 1.0)))
    sink = world.sink(output=More)
    sink.commit(1, world.stage(1, More("b", 2.0, "new")))
    assert [row.id.epoch for row in sink.rows(0, 1)] == [0, 1]


def fixes_of(sink: ParquetSink, last: int) -> Iterator[Fix]:
    """What `sink repair` finds: missing, altered, doubled and foreign rows."""
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
        rows = [Alert(f"{epoch}-{n}", float(n)) for n in range(20)]
        sink.commit(epoch, world.stage(epoch, *rows))
    before = world.plain()
    data = world.root / "out"
    first, second, third = sorted(data.glob("*.parquet"))
    table = pq.read_table(first)
    altered = table.to_pylist()
    altered[3]["amount"] = 99.0
    altered.append(altered[7])
    altered.append({**altered[0], "catchwater_row": 1000})
    del altered[5]
    pq.write_table(table.from_pylist(altered, schema=table.schema), first)
    second.write_bytes(second.read_bytes()[:100])
    pq.write_table(pq.read_table(third).slice(0, 2), data / "copied.parquet")

    assert len(list(fixes_of(sink, 2))) == 4 + 20 + 2
    assert sink.repair(fixes_of(sink, 2)) == []
    assert list(fixes_of(sink, 2)) == []
    assert world.plain() == before
    assert sink.repair([]) == []
    assert world.sink().commit(1, world.stage(1, *[Alert(f"1-{n}", float(n)) for n in range(20)]))


def test_a_listing_that_shows_nothing_changes_nothing_that_is_committed(world: World) -> None:
    class Blind(LocalStore):
        def list(self, prefix: str) -> Iterator[ObjectInfo]:
            return iter(())

    sink = world.sink(Blind(world.root / "out"))
    sink.commit(0, world.stage(0, Alert("a", 1.0)))
    sink.commit(1, world.stage(1, Alert("b", 1.0)))
    assert sink.last_epoch() == 1
    sink = world.sink(Blind(world.root / "out"), generation=1)
    sink.withdraw(0)
    assert world.plain() == ["a"]


def test_marks_of_epochs_no_restore_goes_back_to_are_forgotten(world: World) -> None:
    sink = world.sink()
    for epoch in range(4):
        sink.commit(epoch, world.stage(epoch, Alert("a", 1.0)))
        sink.sweep(epoch - 1, 0)
    with pytest.raises(EpochMissing):
        sink.commit(0, world.stage(0, Alert("a", 1.0)))
    assert sink.last_epoch() == 3


def test_a_file_whose_columns_somebody_has_changed_is_mended(world: World) -> None:
    sink = world.sink()
    sink.commit(0, world.stage(0, *(Alert(f"c{n}", float(n)) for n in range(6))))
    path = world.root / "out" / f"epoch-{0:020d}.parquet"
    table = pq.read_table(path)
    at = table.column_names.index("amount")
    for changed in (
        table.set_column(at, "amount", table["amount"].cast(pa.string())),
        table.drop_columns(["amount"]),
        table.set_column(0, "catchwater_epoch", table["catchwater_epoch"].cast(pa.string())),
    ):
        pq.write_table(changed, path)
        report = reconcile.verify(sink, 0)
        assert len(report.findings) == 6
        assert reconcile.repair(sink, report) == []
        assert not reconcile.verify(sink, 0).findings
        assert world.plain() == [f"c{n}" for n in range(6)]


def test_rows_that_do_not_say_which_they_are_are_left_alone(world: World) -> None:
    sink = world.sink()
    sink.commit(0, world.stage(0, Alert("a", 1.0), Alert("b", 1.0)))
    path = world.root / "out" / f"epoch-{0:020d}.parquet"
    table = pq.read_table(path)
    unknown = table.set_column(0, "catchwater_epoch", pa.nulls(2, pa.int64()))
    pq.write_table(unknown, world.root / "out" / "stray.parquet")
    pq.write_table(pa.concat_tables([table.slice(1), unknown.slice(0, 1)]), path)
    report = reconcile.verify(sink, 0)
    assert [finding.kind for finding in report.findings] == ["missing"]
    assert reconcile.repair(sink, report) == []
    assert not reconcile.verify(sink, 0).findings
    assert world.plain() == ["a", "a", "a", "b", "b"]


def test_a_folder_that_is_removed_meanwhile_is_told_with_the_way_back(world: World) -> None:
    sink = world.sink()
    sink.commit(0, world.stage(0, Alert("a", 1.0)))
    shutil.rmtree(world.root / "out")
    with pytest.raises(TargetDiffers, match=r"The folder .*out is gone") as told:
        sink.commit(1, world.stage(1, Alert("b", 1.0)))
    assert "catchwater sink repair" in str(told.value.hint)


def test_a_place_that_is_no_folder_is_told(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    config = parse("alerts", {"kind": "parquet", "url": "out"})
    truth = Archive(StagedFile(tmp_path.as_uri(), "staged/alerts"))
    with pytest.raises(TargetDiffers, match="could not be opened") as told:
        KIND.open(config, SinkContext("cards", "", tmp_path, output_type=Alert), truth)
    assert "Name a folder" in str(told.value.hint)
