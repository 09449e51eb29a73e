"""A new version repeats the old one's epochs unseen, and writes from the fence on."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from catchwater.clock import Clock
from catchwater.pipeline.change.rollback import look as look_back
from catchwater.pipeline.change.rollback import roll_back
from catchwater.pipeline.change.warm import (
    Comparison,
    Conductor,
    NotRunning,
    OutputsDiffer,
    prepare,
)
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.pipeline.run.versions import StateIncompatible, load
from catchwater.recovery import checkpoint, handover
from catchwater.recovery.checkpoint import settle
from catchwater.recovery.folder import lock

from .conftest import Shop

OLD = [("a", 1, 1), ("a", 2, 1), ("b", 1, 1), ("c", 1, 1)]


@pytest.fixture
def beside(shop: Shop) -> Iterator[tuple[Shop, Shop]]:
    """Version 1 that runs, and version 2 beside it, from the savepoint on."""
    old_module = shop.module
    shop.code(2)
    with lock(shop.checkpoint):
        config = prepare(shop.pipeline, 2)
    new = replace(shop, seen=shop.seen.copy(), checkpoint_name=config.checkpoint.name)
    new.module, shop.module = shop.module, old_module
    yield shop, new


def conductor(old: Shop, new: Shop, *, same: bool = False) -> tuple[Conductor, list[Comparison]]:
    told: list[Comparison] = []
    leader = old.pipeline.other(config=replace(old.config))
    return Conductor(leader, new.checkpoint, told.append, same=same), told


def test_its_outputs_are_compared_and_written_from_the_epoch_after_the_fence_on(
    beside: tuple[Shop, Shop],
) -> None:
    old, new = beside
    conduct, told = conductor(old, new)
    for cards in (["a", "b"], ["d"], ["a"]):
        old.run(*cards)
    conduct()
    assert handover.fenced_by(old.checkpoint) is None, "it is three epochs behind"
    rows = old.rows()
    new.run("a", "b")
    new.run("d")
    assert old.rows() == rows, "a shadow writes nothing"
    conduct()
    assert handover.fenced_by(old.checkpoint) == new.checkpoint
    # The old one is at an epoch when it sees the fence; it ends with it, and hands over.
    old.run("c")
    handover.hand_over(old.checkpoint, settle(old.checkpoint))
    assert handover.take_over(new.checkpoint)
    new.run("a")
    new.run("c")
    assert not told
    conduct()
    new.seen["e"] = 0
    new.run("a", "e")
    found = sorted([*OLD, ("a", 3, 1), ("b", 2, 1), ("d", 1, 1), ("a", 4, 1), ("c", 2, 1),
                    ("a", 5, 2), ("e", 1, 2)])  # fmt: skip
    assert new.rows() == found
    (comparison,) = told
    assert (comparison.epochs, comparison.same, comparison.differs) == (4, 0, True)
    assert comparison.only_old == comparison.only_new == 5
    assert comparison.examples[0].startswith("- {")
    # Whoever looks for the pipeline finds the new checkpoint.
    assert handover.current(old.checkpoint) == new.checkpoint


def test_the_old_version_is_asked_for_time_while_the_new_one_is_behind(
    beside: tuple[Shop, Shop], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = beside
    conduct, _ = conductor(old, new)
    now_ms = 0
    monkeypatch.setattr(Clock, "now_ms", lambda clock: now_ms)
    for _ in range(9):
        old.run("a")
    for _ in range(4):
        now_ms += 400
        new.run("a")
        conduct()
    # Its epochs take 400 ms each; the old one is asked for twice that between two of its own.
    assert handover.pace(old.checkpoint, now_ms) == 800
    assert handover.pace(old.checkpoint, now_ms + 3001) == 0
    assert handover.fenced_by(old.checkpoint) is None


def test_outputs_that_were_to_be_the_same_and_are_not_end_it_before_the_fence(
    beside: tuple[Shop, Shop],
) -> None:
    old, new = beside
    conduct, _ = conductor(old, new, same=True)
    old.run("a")
    new.run("a")
    with pytest.raises(OutputsDiffer, match="The old version goes on") as error:
        conduct()
    assert error.value.exit_code == 4
    assert handover.fenced_by(old.checkpoint) is None
    old.run("b")


@pytest.mark.parametrize("same", [False, True])
def test_nothing_is_taken_over_before_something_was_compared(
    beside: tuple[Shop, Shop], monkeypatch: pytest.MonkeyPatch, same: bool
) -> None:
    old, new = beside
    now_ms = 0
    monkeypatch.setattr(Clock, "now_ms", lambda clock: now_ms)
    conduct, _ = conductor(old, new, same=same)
    conduct()
    assert handover.fenced_by(old.checkpoint) is None, "it has caught up, and knows nothing yet"
    now_ms = 10_000
    conduct()
    # Where nothing comes in there is nothing to compare; only `same` insists.
    assert (handover.fenced_by(old.checkpoint) is None) == same


def test_an_old_version_that_dies_behind_the_fence_is_spoken_for(
    beside: tuple[Shop, Shop],
) -> None:
    old, new = beside
    conduct, told = conductor(old, new)
    old.run("a")
    new.run("a")
    with lock(old.checkpoint):
        conduct()
        conduct()
        assert handover.successor_of(old.checkpoint) is None
    # Killed between its own entry and Spark's commit: the epoch counts as done.
    old.run("b", committed=False)
    conduct()
    assert handover.successor_of(old.checkpoint) == handover.Successor(str(new.checkpoint), 3)
    assert handover.take_over(new.checkpoint)
    new.run("b")
    conduct()
    assert told
    new.run("c")
    assert new.rows() == sorted([*OLD, ("a", 3, 1), ("b", 2, 1), ("c", 2, 2)])


def test_a_rollback_after_it_gives_back_what_the_old_version_would_have_written(
    beside: tuple[Shop, Shop],
) -> None:
    old, new = beside
    conduct, _ = conductor(old, new)
    old.run("a")
    new.run("a")
    conduct()
    handover.hand_over(old.checkpoint, settle(old.checkpoint))
    handover.take_over(new.checkpoint)
    conduct()
    new.run("b")
    roll_back(new.pipeline, look_back(new.pipeline))
    assert new.rows() == sorted(OLD)
    new.seen.clear()
    new.seen.update({"a": 2, "b": 1, "c": 1})
    new.epochs = 2
    new.run("a")
    new.run("b")
    assert new.rows() == sorted([*OLD, ("a", 3, 1), ("b", 2, 1)])


def test_without_an_old_version_that_runs_it_is_refused(shop: Shop) -> None:
    shop.code(2)
    with pytest.raises(NotRunning, match="no old version to run beside"):
        prepare(shop.pipeline, 2)
    shop.code(2, "seen: str = ''")
    with lock(shop.checkpoint), pytest.raises(StateIncompatible):
        prepare(shop.pipeline, 2)
    assert [each.version for each in load(shop.checkpoint).history] == [1]
    assert checkpoint.last_commit(shop.checkpoint) == 1


def test_the_shadow_has_nothing_that_only_one_of_two_can_have(shop: Shop) -> None:
    shop.code(2)
    pipeline = shop.pipeline
    config: PipelineConfig = replace(
        pipeline.config, metrics="127.0.0.1:1", local=shop.folder / "l", trigger="available-now"
    )
    with lock(shop.checkpoint):
        beside = prepare(pipeline.other(config=config), 2)
    assert beside.metrics is None
    assert beside.local != config.local
    assert beside.trigger == "continuous"
    assert beside.checkpoint.parent == config.checkpoint.parent


def test_an_attempt_that_was_given_up_does_not_bar_the_next_one(
    beside: tuple[Shop, Shop],
) -> None:
    old, new = beside
    old.module = new.module
    with lock(old.checkpoint):
        config = prepare(old.pipeline, 2)
    assert config.checkpoint != new.checkpoint, "nothing came in since: it is the same epoch"
    assert config.checkpoint.name.startswith(new.checkpoint.name)
    assert checkpoint.last_commit(config.checkpoint) == checkpoint.last_commit(new.checkpoint)


def test_no_other_version_runs_beside_one_that_is_about_to_hand_over(
    beside: tuple[Shop, Shop],
) -> None:
    old, new = beside
    old.module = new.module
    handover.ask(old.checkpoint, new.checkpoint)
    with lock(old.checkpoint), pytest.raises(handover.AnotherChange, match="asked to hand over to"):
        prepare(old.pipeline, 2)


def test_who_is_not_handed_over_to_ends(beside: tuple[Shop, Shop]) -> None:
    old, new = beside
    conduct, _ = conductor(old, new)
    other = old.folder / "other"
    handover.ask(old.checkpoint, other)
    with lock(old.checkpoint):
        conduct()
    handover.hand_over(old.checkpoint, settle(old.checkpoint))
    with pytest.raises(handover.HandedOver, match="and not to"):
        conduct()


def test_a_rebuild_that_was_cut_short_is_not_spoken_for(beside: tuple[Shop, Shop]) -> None:
    """It has not exchanged its tables: the pipeline must not go on from there."""
    old, new = beside
    conduct, _ = conductor(old, new)
    handover.replace(old.checkpoint, old.folder / "rebuild")
    with lock(old.checkpoint):
        conduct()
    with pytest.raises(handover.HandedOver, match="has begun to take the place of"):
        conduct()
    assert handover.current(old.checkpoint) == old.checkpoint
