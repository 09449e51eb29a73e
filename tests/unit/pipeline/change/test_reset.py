"""After a reset state is empty and epochs go on; what was is in a savepoint, and in `reset/`."""

from pathlib import Path

import pytest

from catchwater.pipeline.change import reset as module
from catchwater.pipeline.change.reset import NothingToReset, ResetPlan, look, reset
from catchwater.recovery import checkpoint, handover, rewind
from catchwater.recovery.checkpoint import NoSuchCheckpoint
from catchwater.recovery.contract import HistoryGone, PartitionTail
from catchwater.recovery.handover import RestoreUnfinished
from catchwater.recovery.ledger import Ledger
from catchwater.recovery.savepoint.create import Source
from catchwater.recovery.savepoint.view import View, get

from .conftest import Offline, Shop

GOOD = [("a", 1, 1), ("a", 2, 1), ("b", 1, 1), ("c", 1, 1)]
COMMAND = "catchwater recovery reset FILE --to 10 --execute"


def carry_out(shop: Shop, at: int = 0, *, save: bool = False) -> ResetPlan:
    """A reset to where a checkpoint had read."""
    pipeline = shop.pipeline
    plan = look(pipeline, None, at)
    reset(pipeline, plan, COMMAND, ("before", pipeline.shelf()) if save else None)
    shop.seen.clear()
    return plan


def state_of(shop: Shop, key: bytes) -> object:
    found = get(View.of_checkpoint(Source.at(shop.checkpoint), None), key)
    return found.state if found else None


def test_state_is_empty_and_the_sink_goes_on_with_the_next_epoch(shop: Shop) -> None:
    (move,) = look(shop.pipeline, None, 0).moves
    assert (move.at, move.to, move.end, move.again, move.skipped) == (20, 10, 1000, 10, 0)
    plan = carry_out(shop)
    assert plan.epoch == 1
    entry = Ledger(shop.checkpoint).read(1)
    assert entry is not None and entry.end.offsets == {"orders": {"0": 10}}
    assert entry.start.offsets == entry.end.offsets, "it read nothing"
    assert state_of(shop, b"a") is None
    assert shop.rows() == GOOD
    shop.run("a", "d")
    assert shop.rows() == sorted([*GOOD, ("a", 1, 1), ("d", 1, 1)])
    assert state_of(shop, b"a") == {"seen": 1}
    # Each shard's version went on, so that what was before is swept.
    assert {each.version for each in Ledger(shop.checkpoint).read(2).shards} == {3}  # type: ignore[union-attr]


def test_what_there_was_is_in_a_savepoint_and_set_aside(shop: Shop) -> None:
    carry_out(shop, save=True)
    kept = View.of_savepoint(shop.pipeline.shelf().store, shop.pipeline.shelf().read("before"))
    found = get(kept, b"a")
    assert found is not None and found.state == {"seen": 2}
    (aside,) = (Ledger(shop.checkpoint).folder / "reset").iterdir()
    assert {path.name for path in (aside / "epochs").iterdir()} == {"0.json", "1.json"}
    assert [each.epoch for each in checkpoint.read(shop.checkpoint).committed] == [1]


def test_an_epoch_that_only_the_sink_has_is_taken_back(shop: Shop) -> None:
    shop.run("a", "e", told=False)
    assert ("e", 1, 1) in shop.rows()
    carry_out(shop)
    assert shop.rows() == GOOD
    shop.run("e")
    assert shop.rows() == sorted([*GOOD, ("e", 1, 1)])


def test_an_epoch_that_spark_has_not_committed_counts(shop: Shop) -> None:
    shop.run("e", committed=False)
    assert carry_out(shop).epoch == 2
    assert shop.rows() == sorted([*GOOD, ("e", 1, 1)])


@pytest.mark.parametrize(
    ("owner", "step"),
    [(module, "_take_back_unfinished"), (module, "_emptied"), (rewind, "move"),
     (rewind, "write_epoch"), (handover, "end_restore")],
)  # fmt: skip
def test_cut_short_anywhere_nothing_runs_before_it_is_done_again(
    shop: Shop, owner: object, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(owner, step, stop)
        carry_out(shop)
    with pytest.raises(RestoreUnfinished, match=r"A reset of .* was cut short") as cut:
        shop.start()
    assert COMMAND in str(cut.value.hint)
    pipeline = shop.pipeline
    # Where a checkpoint had read nobody can say any more: the command names the offsets.
    plan = look(pipeline, None, checkpoint.last_commit(shop.checkpoint))
    reset(pipeline, plan, COMMAND, None)
    shop.seen.clear()
    shop.run("a")
    assert shop.rows() == sorted([*GOOD, ("a", 1, 1)])


def test_nothing_is_changed_for_a_place_that_there_is_not(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NoSuchCheckpoint):
        look(shop.pipeline, None, 7)
    gone = {("orders", 0): PartitionTail(15, 1000, 1)}
    monkeypatch.setattr(Offline, "tails", lambda self, topics=None: gone)
    with pytest.raises(HistoryGone, match=r"needs orders-0 from offset 10 .* 5 records are gone"):
        look(shop.pipeline, None, 0)
    assert handover.work_of(shop.checkpoint) is handover.Work.WHOLE


def test_before_the_first_epoch_there_is_nothing_to_reset(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    shop.code()
    with pytest.raises(NothingToReset):
        look(shop.pipeline, None, 0)
