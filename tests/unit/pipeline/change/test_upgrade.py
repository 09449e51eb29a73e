"""Another version takes over if it reads all that is stored; else nothing has happened."""

import sqlite3
from dataclasses import replace

import msgspec
import pytest

from catchwater.pipeline.change.upgrade import (
    NotAnUpgrade,
    alterations,
    find,
    look,
    save,
    try_state,
    upgrade,
)
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.versions import OtherPipeline, StateIncompatible, VersionDiffers
from catchwater.recovery import checkpoint, handover, rewind
from catchwater.recovery.checkpoint import settle
from catchwater.recovery.folder import CheckpointInUse, held, lock
from catchwater.recovery.ledger import Ledger
from catchwater.recovery.savepoint.view import View
from catchwater.sinks.base import TargetDiffers

from .conftest import FROM_V1, Shop

COUNT = "count: int = 0"


def test_the_new_version_goes_on_after_the_last_epoch_of_the_old_one(shop: Shop) -> None:
    with pytest.raises(VersionDiffers):
        shop.code(2, COUNT, FROM_V1.format(count="old['seen']"))
        shop.run("a")
    done = upgrade(shop.pipeline, 2)
    assert (done.epoch, done.keys) == (1, 3)
    shop.run("a")
    assert shop.rows() == [("a", 1, 1), ("a", 2, 1), ("a", 3, 2), ("b", 1, 1), ("c", 1, 1)]
    first, second = versions.load(shop.checkpoint).history
    assert (second.version, second.from_epoch, first.savepoint) == (2, 2, "")
    savepoint = shop.pipeline.shelf(second.shelf).read(second.savepoint)
    assert savepoint.epoch == 1
    assert savepoint.versions["history"][-1]["version"] == 1


def test_an_incompatible_field_is_named_and_nothing_has_happened(shop: Shop) -> None:
    pipeline = shop.code(2, "seen: str = ''")
    with pytest.raises(StateIncompatible, match="seen: it was int and is str") as error:
        upgrade(pipeline, 2)
    assert error.value.exit_code == 5
    assert error.value.hint == "Keep the field, or give the function a from_v1(old: dict)."
    assert not pipeline.shelf().names()
    shop.code()
    shop.run("b")
    assert ("b", 2, 1) in shop.rows()


@pytest.mark.parametrize(
    ("count", "told"),
    [
        ("1 // (old['seen'] - 2)", "ZeroDivisionError"),
        ("old['sen']", "KeyError"),
        ("'many'", "Expected `int`, got `str`"),
    ],
)
def test_a_record_that_from_v1_cannot_bring_over_is_named_by_its_key(
    shop: Shop, count: str, told: str
) -> None:
    with pytest.raises(StateIncompatible, match=told) as error:
        upgrade(shop.code(2, COUNT, FROM_V1.format(count=count)), 2)
    assert "of the key 'a'" in str(error.value) or "of the key '" in str(error.value)
    assert [each.version for each in versions.load(shop.checkpoint).history] == [1]


def test_a_version_that_the_file_does_not_name_is_no_upgrade(shop: Shop) -> None:
    with pytest.raises(NotAnUpgrade, match="the pipeline's file names tally 1"):
        look(shop.pipeline, 2)
    with pytest.raises(NotAnUpgrade, match="names tally 3"):
        look(shop.code(3), 2)
    with pytest.raises(NotAnUpgrade, match="is at version 1 already"):
        look(shop.code(1), 1)


def test_a_checkpoint_in_use_is_left_alone(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("catchwater.pipeline.change.upgrade.running", lambda folder: None)
    pipeline = shop.code(2)
    shop.clock.pause = lambda seconds: None  # type: ignore[method-assign]
    monkeypatch.setattr(shop.clock, "monotonic_s", iter(range(0, 10_000, 30)).__next__)
    with lock(shop.checkpoint), pytest.raises(CheckpointInUse):
        upgrade(pipeline, 2)


def test_an_epoch_that_only_sparks_commit_lacks_is_the_old_versions(shop: Shop) -> None:
    shop.run("b", committed=False)
    assert checkpoint.last_commit(shop.checkpoint) == 1
    done = upgrade(shop.code(2), 2)
    assert done.epoch == 2
    assert checkpoint.read(shop.checkpoint).planned is None
    assert ("b", 2, 1) in shop.rows()
    assert settle(shop.checkpoint) == 2


def test_an_epoch_without_an_entry_is_written_by_the_new_version(shop: Shop) -> None:
    shop.run("b", told=False)
    assert ("b", 2, 1) in shop.rows()
    assert Ledger(shop.checkpoint).read(2) is None
    done = upgrade(shop.code(2), 2)
    assert done.epoch == 1
    assert ("b", 2, 1) not in shop.rows()
    shop.seen["b"] -= 1
    shop.run("b")
    assert ("b", 2, 2) in shop.rows()


def test_a_savepoint_of_another_state_of_that_epoch_is_not_taken_for_this_one(shop: Shop) -> None:
    pipeline = shop.code(2)
    old = save(pipeline, look(pipeline, 2), 1, None)
    assert save(pipeline, look(pipeline, 2), 1, None) == old
    entry = Ledger(shop.checkpoint).read(1)
    assert entry is not None
    Ledger(shop.checkpoint).write(msgspec.structs.replace(entry, finished_ms=7))
    fresh = save(pipeline, look(pipeline, 2), 1, None)
    assert fresh.name.startswith(f"{old.name}-")
    assert pipeline.shelf().names() == [old.name, fresh.name]


def test_a_file_that_names_more_than_another_version_is_refused(shop: Shop) -> None:
    pipeline = shop.code(2)
    for change in ({"shards": 3}, {"name": "other"}, {"source": {**shop.config.source,
                   "subscribe": "more"}}):  # fmt: skip
        with pytest.raises(OtherPipeline, match="cannot be continued"):
            look(pipeline.other(config=replace(pipeline.config, **change)), 2)
    assert look(pipeline, 2)


def test_a_new_output_field_is_refused_before_anything_is_changed(shop: Shop) -> None:
    """Else the upgrade passes, and every start after it fails."""
    pipeline = shop.code(2, row="note: str = ''")
    for refused in (look, upgrade):
        with pytest.raises(TargetDiffers, match=r"'rows'.* tally .*: note is missing") as error:
            refused(pipeline, 2)
        assert 'ALTER TABLE "tally" ADD COLUMN "note" TEXT;' in str(error.value.hint)
        assert error.value.exit_code == 2
    assert not pipeline.shelf().names()
    assert [*alterations(pipeline)] == ["rows"]
    assert look(pipeline, 2, alter=True)
    shop.code()
    shop.run("b")
    assert ("b", 2, 1) in shop.rows()


def test_the_table_is_altered_where_that_was_asked_for(shop: Shop) -> None:
    upgrade(shop.code(2, row="note: str = ''"), 2, alter=True)
    shop.run("b")
    assert ("b", 2, 2) in shop.rows()
    assert alterations(shop.pipeline) == {}


def test_what_no_column_mends_is_refused_all_the_same(shop: Shop) -> None:
    with sqlite3.connect(shop.folder / "rows.db") as database:
        database.execute("DROP TABLE tally")
        database.execute("CREATE TABLE tally (card INTEGER)")
    pipeline = shop.code(2, row="note: str = ''")
    with pytest.raises(TargetDiffers, match="card is integer"):
        upgrade(pipeline, 2, alter=True)
    assert not pipeline.shelf().names()


def test_a_sink_that_is_away_is_told_before_the_pipeline_is_stopped(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("catchwater.sinks.kinds.sqlite._BUSY_S", 0)
    (shop.folder / "rows.db").rename(shop.folder / "away.db")
    (shop.folder / "rows.db").mkdir()
    with pytest.raises(TargetDiffers, match="is a folder"):
        upgrade(shop.code(2), 2)
    assert not shop.pipeline.shelf().names()


def test_what_is_tried_is_held_until_it_was_tried(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_then: list[list[int]] = []

    def trying(view: View, spec: object, stage: int) -> int:
        held_then.append(held(shop.checkpoint))
        return try_state(view, spec, stage)  # type: ignore[arg-type]

    monkeypatch.setattr("catchwater.pipeline.change.upgrade.try_state", trying)
    look(shop.code(2), 2)
    assert held_then == [[1]]
    assert held(shop.checkpoint) == []


def test_functions_that_go_to_different_versions_are_told_apart(shop: Shop) -> None:
    specs = [*shop.code(2).specs, replace(shop.pipeline.specs[0], name="other", version=5)]
    ledger = versions.load(shop.checkpoint)
    there = msgspec.structs.replace(ledger.history[0], function="other", version=4)
    with pytest.raises(NotAnUpgrade) as error:
        find(specs, ledger.added(there), 2)
    assert "one after the other" in str(error.value.hint)


def test_a_rewind_that_was_cut_short_is_ended_before_another_version_takes_over(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next start would end it, and take the new version back behind where it took over."""
    shop.run("b")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(handover, "move", stop)
        rewind.go_back(shop.checkpoint, 0)
    shop.code(2)
    assert upgrade(shop.pipeline, 2).epoch == 0
    last = checkpoint.last_commit(shop.checkpoint)
    handover.finish_rewind(shop.checkpoint)
    assert last == checkpoint.last_commit(shop.checkpoint) == 0
