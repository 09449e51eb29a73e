"""A savepoint becomes the checkpoint of the pipeline that a file describes."""

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from catchwater.objects.base import StoreUnavailable
from catchwater.pipeline.change.rollback import (
    OtherFunctions,
    RestorePlan,
    bring_back,
    check_restore,
)
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.versions import Identity
from catchwater.recovery import checkpoint
from catchwater.recovery.folder import lock
from catchwater.recovery.savepoint.create import Source, create
from catchwater.recovery.savepoint.format import Savepoint
from catchwater.recovery.savepoint.store import Shelf, settle_claim
from catchwater.recovery.savepoint.view import View, diff, get

from .conftest import Shop


@pytest.fixture
def saved(shop: Shop) -> Savepoint:
    """Taken after two epochs; the pipeline goes on for one more."""
    savepoint = create(Source.at(shop.checkpoint), shop.pipeline.shelf(), "saved")
    shop.run("a")
    return savepoint


def wanted(shop: Shop, saved: Savepoint, shards: int = 2, claim: bool = False) -> RestorePlan:
    into = shop.folder / "other"
    return RestorePlan(shop.pipeline.shelf(), saved, into, shards, claim, "do it again")


def test_sinks_that_went_on_are_brought_back_by_a_newer_generation(
    shop: Shop, saved: Savepoint
) -> None:
    assert ("a", 3, 1) in shop.rows()
    bring_back(shop.pipeline, wanted(shop, saved))
    assert ("a", 3, 1) not in shop.rows()
    assert versions.load(shop.folder / "other").generation == 1
    shop.checkpoint_name = "other"
    shop.epochs, shop.seen["a"] = 2, 2
    shop.run("a")
    assert shop.rows().count(("a", 3, 1)) == 1


def test_sinks_that_did_not_go_on_are_left_as_they_are(shop: Shop) -> None:
    savepoint = create(Source.at(shop.checkpoint), shop.pipeline.shelf(), "saved")
    rows = shop.rows()
    bring_back(shop.pipeline, wanted(shop, savepoint))
    assert shop.rows() == rows
    assert versions.load(shop.folder / "other").generation == 0


def test_the_file_says_whose_it_is_and_in_how_many_shards(shop: Shop, saved: Savepoint) -> None:
    bring_back(shop.pipeline, wanted(shop, saved, shards=7))
    bound = Identity.read(shop.folder / "other")
    assert bound is not None
    assert (bound.shards, bound.pipeline, bound.functions) == (7, "tally", ["tally"])
    before = View.of_checkpoint(Source.at(shop.checkpoint), 1)
    after = View.of_checkpoint(Source.at(shop.folder / "other"), None)
    assert not list(diff(before, after))


def test_a_second_job_starts_from_it_while_the_first_goes_on(shop: Shop, saved: Savepoint) -> None:
    sink = shop.config.sinks["rows"]
    sinks = {"rows": replace(sink, options=replace(sink.options, path="second.db"))}
    config = replace(shop.config, name="second", sinks=sinks)
    with lock(shop.checkpoint):
        bring_back(shop.pipeline.other(config=config), wanted(shop, saved))
    bound = Identity.read(shop.folder / "other")
    assert bound is not None
    assert bound.pipeline == "second"
    assert versions.load(shop.folder / "other").generation == 0
    # The first one's outputs are its own, and the savepoint nobody's but its own.
    assert ("a", 3, 1) in shop.rows()
    shop.run("b")
    assert shop.pipeline.shelf().names() == ["saved"]
    shop.pipeline.shelf().delete("saved")
    assert get(View.of_checkpoint(Source.at(shop.folder / "other"), None), b"a") is not None


def test_other_functions_are_refused(shop: Shop, saved: Savepoint) -> None:
    path = shop.folder / f"{shop.module.partition(':')[0]}.py"
    other = shop.folder / "other_function.py"
    other.write_text(path.read_text().replace('name="tally"', 'name="other"'))
    shop.module = "other_function:Tallied"
    with pytest.raises(OtherFunctions, match="holds the state of tally"):
        check_restore(shop.pipeline, wanted(shop, saved))


def test_a_claimed_savepoint_goes_once_the_pipeline_has_gone_on(
    shop: Shop, saved: Savepoint
) -> None:
    into: Path = shop.folder / "other"
    bring_back(shop.pipeline, wanted(shop, saved, claim=True))
    released: list[str] = []
    settle_claim(into, checkpoint.last_commit(into), released.append, shop.clock)
    assert shop.pipeline.shelf().names() == ["saved"]
    settle_claim(into, 2, released.append, shop.clock)
    settle_claim(into, 3, released.append, shop.clock)
    assert shop.pipeline.shelf().names() == []
    assert not list(shop.pipeline.shelf().store.list("saved/"))


def test_a_place_that_is_away_does_not_fail_the_pipeline(
    shop: Shop, saved: Savepoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    into: Path = shop.folder / "other"
    bring_back(shop.pipeline, wanted(shop, saved, claim=True))

    def away(*_: object) -> int:
        raise StoreUnavailable("It does not answer.")

    with monkeypatch.context() as patched:
        patched.setattr(Shelf, "delete", away)
        settle_claim(into, 2, lambda pin: None, shop.clock)
    assert shop.pipeline.shelf().names() == ["saved"]
    settle_claim(into, 3, lambda pin: None, shop.clock)
    assert shop.pipeline.shelf().names() == []


def test_the_pin_of_a_claimed_savepoint_goes_with_it(shop: Shop, saved: Savepoint) -> None:
    into: Path = shop.folder / "other"
    pinned = msgspec.structs.replace(saved, pin="savepoint/tally/saved")
    bring_back(shop.pipeline, wanted(shop, pinned, claim=True))
    released: list[str] = []
    settle_claim(into, 2, released.append, shop.clock)
    assert released == ["savepoint/tally/saved"]
