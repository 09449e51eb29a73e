"""After a rollback state, outputs and code are those of the version before."""

import os
import sys
from contextlib import closing
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from catchwater.clock import SYSTEM
from catchwater.objects.base import Part
from catchwater.objects.local import LocalStore
from catchwater.pipeline.change import rollback as module
from catchwater.pipeline.change.rollback import (
    NothingToRollBack,
    RestorePlan,
    SavepointGone,
    bring_back,
    look,
    roll_back,
)
from catchwater.pipeline.change.upgrade import upgrade
from catchwater.pipeline.opened import OutputsStay
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.versions import CodeGone, VersionDiffers
from catchwater.recovery import checkpoint, handover, rewind
from catchwater.recovery.handover import AnotherChange, RestoreUnfinished, alone
from catchwater.recovery.ledger import Ledger
from catchwater.recovery.savepoint.create import Source, create
from catchwater.recovery.savepoint.view import View, get
from catchwater.sinks import table

from .conftest import Shop

GOOD = [("a", 1, 1), ("a", 2, 1), ("b", 1, 1), ("c", 1, 1)]


@pytest.fixture
def bad(shop: Shop) -> Shop:
    """Version 2 took over, and did two epochs."""
    shop.code(2)
    upgrade(shop.pipeline, 2)
    shop.run("a", "d")
    shop.run("b")
    assert len(shop.rows()) == len(GOOD) + 3
    return shop


def back(shop: Shop) -> int:
    generation = roll_back(shop.pipeline, look(shop.pipeline))
    shop.seen.clear()
    shop.seen.update({"a": 2, "b": 1, "c": 1})
    shop.epochs = 2
    return generation


def test_state_and_outputs_are_those_before_and_the_old_code_replays(bad: Shop) -> None:
    assert back(bad) == 1
    assert bad.rows() == GOOD
    assert checkpoint.last_commit(bad.checkpoint) == 1
    view = View.of_checkpoint(Source.at(bad.checkpoint), None)
    found = get(view, b"a")
    assert found is not None
    assert (found.version, found.state) == (1, {"seen": 2})
    assert get(view, b"d") is None
    # The file names version 2 still, and version 1 runs.
    bad.run("a", "d")
    assert bad.rows() == sorted([*GOOD, ("a", 3, 1), ("d", 1, 1)])
    bad.code(3)
    with pytest.raises(VersionDiffers, match="version was 1 and is now 3"):
        bad.run("a")


def test_what_was_undone_is_kept_aside(bad: Shop) -> None:
    back(bad)
    aside = Ledger(bad.checkpoint).folder / "withdrawn" / "1"
    assert {p.name for p in (aside / "offsets").iterdir()} == {"2", "3"}
    assert {p.name for p in (aside / "catchwater" / "epochs").iterdir()} == {"2.json", "3.json"}
    assert [each.version for each in versions.load(bad.checkpoint).withdrawn] == [2]


def test_mended_code_of_the_same_version_can_be_upgraded_to_again(bad: Shop) -> None:
    back(bad)
    bad.run("a")
    bad.code(2, more="mended = True")
    assert upgrade(bad.pipeline, 2).epoch == 2
    bad.run("a")
    assert bad.rows() == sorted([*GOOD, ("a", 3, 1), ("a", 4, 2)])
    assert roll_back(bad.pipeline, look(bad.pipeline)) == 2
    assert bad.rows() == sorted([*GOOD, ("a", 3, 1)])


def test_without_an_upgrade_there_is_no_way_back(shop: Shop) -> None:
    with pytest.raises(NothingToRollBack):
        look(shop.pipeline)


def test_what_is_missing_for_it_is_named_before_anything_changes(bad: Shop) -> None:
    upgraded = versions.load(bad.checkpoint).history[-1]
    first = versions.load(bad.checkpoint).history[0]
    path = Path(first.artefact(bad.checkpoint).path)
    code = path.read_bytes()
    path.write_bytes(code + b"#")
    with pytest.raises(CodeGone) as gone:
        sys.modules.pop(first.module)
        look(bad.pipeline)
    assert gone.value.exit_code == 5
    assert f"Put the module {first.module} of version 1 back" in str(gone.value.hint)
    path.write_bytes(code)
    bad.pipeline.shelf(upgraded.shelf).delete(upgraded.savepoint)
    with pytest.raises(SavepointGone, match=upgraded.savepoint) as lost:
        look(bad.pipeline)
    assert lost.value.exit_code == 5


@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_what_a_sink_cannot_take_back_is_named_before_anything_changes(
    bad: Shop, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_SWEEP_EPOCHS", 1)
    with closing(bad.pipeline.other()) as opened:
        opened.sinks["rows"].sweep(2, SYSTEM.now_ms())
    look(bad.pipeline)
    with closing(bad.pipeline.other()) as opened:
        opened.sinks["rows"].sweep(3, SYSTEM.now_ms())
    if mode == "append":  # its rows say of which epoch they are
        back(bad)
        assert bad.rows() == GOOD
        return
    before = bad.rows()
    with pytest.raises(OutputsStay, match="epochs 2 to 2 of the sink 'rows'") as refused:
        look(bad.pipeline)
    assert refused.value.exit_code == 5
    bad.run("b")
    assert len(bad.rows()) == len(before) + 1, "it runs on"


@pytest.mark.parametrize(
    "step", ["bring_state", "move_aside", "write_epoch", "versions", "handover"]
)
def test_cut_short_anywhere_it_is_done_again_and_nothing_runs_before(
    bad: Shop, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        if step in ("versions", "handover"):
            target = getattr(module, step)
            patched.setattr(target, {"versions": "store", "handover": "end_restore"}[step], stop)
        else:
            patched.setattr(rewind, step, stop)
        back(bad)
    with pytest.raises(RestoreUnfinished, match="was cut short"):
        bad.start()
    back(bad)
    bad.run("a")
    assert bad.rows() == sorted([*GOOD, ("a", 3, 1)])


def test_a_pipeline_that_was_cut_into_other_shards_since_goes_back_in_those(bad: Shop) -> None:
    before = {key: get(View.of_checkpoint(Source.at(bad.checkpoint), None), key) for key in KEYS}
    save = create(Source.at(bad.checkpoint), bad.pipeline.shelf(), "moved")
    config = replace(bad.config, shards=5, checkpoint=bad.folder / "moved")
    pipeline = bad.pipeline.other(config=config)
    into = RestorePlan(bad.pipeline.shelf(), save, config.checkpoint, 5, False, "again")
    bring_back(pipeline, into)
    after = View.of_checkpoint(Source.at(config.checkpoint), None)
    assert {key: get(after, key) for key in KEYS} == before

    roll_back(pipeline, look(pipeline))
    assert bad.rows() == GOOD
    back_again = View.of_checkpoint(Source.at(config.checkpoint), None)
    assert back_again.entry.positions(0).keys() == set(range(5))
    for key, seen in {b"a": 2, b"b": 1, b"c": 1}.items():
        found = get(back_again, key)
        assert found is not None
        assert found.state == {"seen": seen}


KEYS = (b"a", b"b", b"c", b"d")


def test_cut_short_it_is_done_again_where_urls_of_objects_differ_each_time(
    bad: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    signatures = count()
    plain = LocalStore.url

    def signed(store: LocalStore, key: str = "", part: Part | None = None) -> str:
        return f"{plain(store, key)}?signature={next(signatures)}" if key else plain(store)

    monkeypatch.setattr(LocalStore, "url", signed)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(rewind, "move_aside", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        back(bad)
    back(bad)
    bad.run("a")
    assert bad.rows() == sorted([*GOOD, ("a", 3, 1)])


def test_a_version_that_cannot_even_be_imported_is_taken_back(bad: Shop) -> None:
    (bad.folder / f"{bad.module.partition(':')[0]}.py").write_text("this is no Python")
    sys.modules.pop(bad.module.partition(":")[0])
    roll_back(bad.pipeline, look(bad.pipeline))
    assert bad.rows() == GOOD


def test_a_version_that_died_before_it_was_handed_over_to_is_forgotten(bad: Shop) -> None:
    handover.ask(bad.checkpoint, bad.folder / "shadow")
    back(bad)
    assert handover.fenced_by(bad.checkpoint) is None


def test_a_checkpoint_that_has_handed_over_is_not_rolled_back(bad: Shop) -> None:
    way = look(bad.pipeline)
    handover.ask(bad.checkpoint, bad.folder / "shadow")
    handover.hand_over(bad.checkpoint, 3)
    rows = bad.rows()
    with pytest.raises(handover.HandedOver, match="has handed over to"):
        roll_back(bad.pipeline, way)
    assert bad.rows() == rows


def test_an_upgrade_or_a_rollback_at_the_same_time_is_refused(bad: Shop) -> None:
    way = look(bad.pipeline)
    with alone(bad.checkpoint, bad.clock):
        with pytest.raises(AnotherChange, match=f"Process {os.getpid()} is"):
            roll_back(bad.pipeline, way)
        with pytest.raises(AnotherChange):
            upgrade(bad.code(3), 3)
    back(bad)
