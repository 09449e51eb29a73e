"""Versions, rollbacks and restores of a checkpoint at a URL, each on a machine of its own."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from catchwater.pipeline.change.rollback import RestorePlan, bring_back, look, roll_back
from catchwater.pipeline.change.upgrade import upgrade
from catchwater.pipeline.change.warm import prepare
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.backfill import Bounds, backfill_of, begin
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.recovery import checkpoint
from catchwater.recovery.folder import lock, refresh
from catchwater.recovery.handover import RestoreUnfinished, make_ready
from catchwater.recovery.ledger import Ledger, NotAtUrl, folder_of, url_of
from catchwater.recovery.savepoint.create import Source, create

from .conftest import FROM_V1, Shop

GOOD = [("a", 1, 1), ("a", 2, 1), ("b", 1, 1), ("c", 1, 1)]


@dataclass
class ShopAtUrl(Shop):
    """Whatever is done next is done on another machine."""

    machine: int = 0

    def elsewhere(self) -> "ShopAtUrl":
        self.machine += 1
        refresh(self.checkpoint)
        return self

    @property
    def config(self) -> PipelineConfig:
        url = (self.folder / self.checkpoint_name).as_uri()
        cache = self.folder / f"machine-{self.machine}"
        return replace(super().config, checkpoint=folder_of(url, cache))

    def run(self, *cards: str, committed: bool = True, told: bool = True) -> None:
        with lock(self.checkpoint):
            super().run(*cards, committed=committed, told=told)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ShopAtUrl]:
    """Version 1 after two epochs, on two machines."""
    path = list(sys.path)
    shop = ShopAtUrl(tmp_path)
    shop.code()
    shop.run("a", "b")
    shop.elsewhere().run("a", "c")
    yield shop
    sys.path[:] = path


def test_a_version_takes_over_on_another_machine(shop: ShopAtUrl) -> None:
    more = FROM_V1.format(count="old['seen']")
    shop.elsewhere().code(2, "count: int = 0", more)
    upgrade(shop.pipeline, 2)
    shop.elsewhere().run("a")
    assert shop.rows() == sorted([*GOOD, ("a", 3, 2)])
    assert [each.version for each in versions.load(shop.checkpoint).history] == [1, 2]


def test_a_version_that_was_bad_is_taken_back_on_another_machine(shop: ShopAtUrl) -> None:
    shop.elsewhere().code(2)
    upgrade(shop.pipeline, 2)
    shop.elsewhere().run("a", "d")
    assert roll_back(shop.elsewhere().pipeline, look(shop.pipeline)) == 1
    assert shop.rows() == GOOD
    shop.seen.clear()
    shop.seen.update({"a": 2, "b": 1, "c": 1})
    shop.epochs = 2
    shop.elsewhere().run("a", "d")
    assert shop.rows() == sorted([*GOOD, ("a", 3, 1), ("d", 1, 1)])


def test_a_rollback_that_was_cut_short_is_refused_elsewhere_and_can_be_done_again(
    shop: ShopAtUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.code(2)
    upgrade(shop.pipeline, 2)
    shop.run("a", "d")

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(versions, "store", dies)
    with pytest.raises(KeyboardInterrupt):
        roll_back(shop.pipeline, look(shop.pipeline))
    monkeypatch.undo()
    assert shop.rows() == GOOD, "the sink was changed, and the checkpoint knows that it may be"
    shop.elsewhere()
    with lock(shop.checkpoint), pytest.raises(RestoreUnfinished):
        make_ready(shop.checkpoint, shop.clock)
    roll_back(shop.pipeline, look(shop.pipeline))
    shop.elsewhere()
    assert checkpoint.last_commit(shop.checkpoint) == 1
    with lock(shop.checkpoint):
        make_ready(shop.checkpoint, shop.clock)


def test_a_savepoint_becomes_a_checkpoint_at_a_url(shop: ShopAtUrl) -> None:
    shelf = shop.pipeline.shelf()
    savepoint = create(Source.at(shop.checkpoint), shelf, "saved")
    shop.run("a")
    shop.checkpoint_name = "other"
    wanted = RestorePlan(shelf, savepoint, shop.checkpoint, 2, False, "do it again")
    bring_back(shop.pipeline, wanted)
    shop.elsewhere()
    assert Ledger(shop.checkpoint).epochs() == [1]
    shop.epochs, shop.seen["a"] = 2, 2
    shop.run("a")
    assert shop.rows() == sorted([*GOOD, ("a", 3, 1)])


def test_savepoints_lie_at_the_url(shop: ShopAtUrl) -> None:
    url = (shop.folder / "checkpoint").as_uri()
    assert shop.pipeline.savepoints == f"{url}/savepoints"


def test_what_needs_a_second_checkpoint_is_refused(shop: ShopAtUrl) -> None:
    shop.code(2)
    with pytest.raises(NotAtUrl, match="beside the old version needs a checkpoint that is a fold"):
        prepare(shop.pipeline, 2)


def test_a_backfill_lies_below_the_url_and_is_known_on_another_machine(
    shop: ShopAtUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, bounds = replace(shop.config, name="tally"), Bounds({"t": {"0": 0}}, {"t": {"0": 5}})
    monkeypatch.setenv("CATCHWATER_CACHE", str(shop.folder / "here"))
    here = backfill_of(live, "again")
    assert here.until is None
    begin(here, bounds)
    monkeypatch.setenv("CATCHWATER_CACHE", str(shop.folder / "there"))
    there = backfill_of(live, "again")
    assert (there.until, there.name) == (bounds.end, "tally.again")
    assert there.checkpoint != here.checkpoint
    url = (shop.folder / "checkpoint").as_uri()
    assert url_of(there.checkpoint) == f"{url}/backfills/again"
