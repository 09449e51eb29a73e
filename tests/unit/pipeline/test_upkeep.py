"""Upkeep behind epochs: contracts of what is kept, and nothing swept that a running epoch wrote."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as replace_struct
from tests.unit.recovery.savepoint.conftest import Made

from catchwater.clock import Clock, ManualClock
from catchwater.pipeline.epochs import Upkeep
from catchwater.pipeline.functions.schema import StateSchema, describe_type
from catchwater.pipeline.run import versions
from catchwater.pipeline.run.versions import ROLLBACK_MS, Version, Versions
from catchwater.recovery.contract import PartitionTail, Terms
from catchwater.recovery.folder import hold
from catchwater.recovery.ledger import Ledger, numbered
from catchwater.recovery.points import PointPolicy
from catchwater.recovery.savepoint.create import state_keys
from catchwater.state.entries import DictEntries, Table, no_changes
from catchwater.state.roll import Position

TAILS = {("payments", 0): PartitionTail(0, 1000, 1)}


TERMS = Terms("cards", [], 0, None, {}, pinned=False)


class FakeSink:
    """Remembers from which epoch on it was asked to keep."""

    oldest = -1

    def sweep(self, oldest: int, now_ms: int) -> None:
        self.oldest = oldest


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "checkpoint")


def upkeep(
    made: Made,
    sink: Any,
    terms: Terms = TERMS,
    *,
    kept: PointPolicy = PointPolicy(2),  # noqa: B008  (frozen)
    control: Any = None,
    since: Any = None,
    needs_history_ms: int = 0,
    clock: Clock | None = None,
) -> Upkeep:
    terms = replace(terms, pinned=control is not None, needs_history_ms=needs_history_ms)

    def tails(topics: Iterable[str]) -> dict[tuple[str, int], PartitionTail]:
        return {key: tail for key, tail in TAILS.items() if key[0] in topics}

    return Upkeep(
        made.folder, control, tails, terms, kept=kept, logs=lambda: made.logs, journals=[],
        sinks={"out": sink}, watch=None, clock=clock or made.clock, since=since,
    )  # fmt: skip


def objects(made: Made, version: int) -> list[Path]:
    state = made.folder / "catchwater" / "state"
    return [path for path in state.rglob("*") if path.name.startswith(f"{version:020}-")]


def test_what_is_kept_has_a_contract_and_the_rest_is_forgotten(made: Made) -> None:
    sink = FakeSink()
    keeping = upkeep(made, sink)
    for value in (b"1", b"2", b"3"):
        made.run(a=value)
    assert [entry.epoch for entry in keeping.look(at_once=True)] == [0, 1, 2]
    assert keeping.look(at_once=True) == []
    ledger = Ledger(made.folder)
    assert ledger.epochs() == [1, 2]
    assert sorted(numbered(ledger.folder / "contracts", ".json")) == [1, 2]
    keeping.sweep()
    assert sink.oldest == 1


@pytest.mark.parametrize(("ago_ms", "oldest"), [(ROLLBACK_MS, 0), (ROLLBACK_MS + 1, 1)])
def test_outputs_since_an_upgrade_are_kept_for_a_day(made: Made, ago_ms: int, oldest: int) -> None:
    clock, sink = ManualClock(), FakeSink()
    before = Version("f", 1, "m", "F", "c", StateSchema([], describe_type(int, {}), {}), 0, 0)
    upgraded = replace_struct(
        before, version=2, since_ms=clock.now_ms() - ago_ms, savepoint="before"
    )
    versions.store(made.folder, Versions([before, upgraded]))
    keeping = upkeep(made, sink, clock=clock)
    for value in (b"1", b"2", b"3"):
        made.run(a=value)
    keeping.look(at_once=True)
    keeping.sweep()
    assert sink.oldest == oldest


def test_a_contract_that_the_last_driver_had_no_time_to_write_is_written_by_the_next(
    made: Made,
) -> None:
    before = upkeep(made, FakeSink())
    made.run(a=b"1")
    before.look(at_once=True)
    made.run(a=b"2")  # and it dies
    after = upkeep(made, FakeSink())
    made.run(a=b"3")
    assert [entry.epoch for entry in after.look(at_once=True)] == [2]
    assert sorted(numbered(Ledger(made.folder).folder / "contracts", ".json")) == [1, 2]
    assert after.newest is not None and after.newest.epoch == 2


def test_an_epoch_that_is_running_keeps_what_it_has_written(made: Made) -> None:
    keeping = upkeep(made, FakeSink())
    for value in (b"1", b"2", b"3", b"4"):
        made.run(a=value)
    keeping.look(at_once=True)
    # An attempt at epoch 4, and a failed one at epoch 3 before it.
    log, base = made.logs[0, 0], made.positions[0, 0]
    changes = no_changes()
    changes[Table.RECORD][b"k" * 9] = b"v"
    log.append(base, Position(base.version + 1, "running"), changes, DictEntries())
    before = Ledger(made.folder).read(2)
    assert before is not None
    base = before.positions()[0]
    failed = Position(base.version + 1, "failed")
    log.append(base, failed, changes, DictEntries())
    keeping.sweep()
    assert any("running" in path.name for path in objects(made, 5))
    # Of the last committed version nobody can say that the attempt will not yet be committed.
    assert any("failed" in path.name for path in objects(made, 4))
    made.epochs = 4
    made.run(a=b"5")
    keeping.look(at_once=True)
    keeping.sweep()
    assert not any("failed" in path.name for path in objects(made, 4))
    assert made.source.entry(None).epoch == 4


def test_short_epochs_are_done_together(made: Made) -> None:
    keeping = upkeep(made, FakeSink())
    made.run(a=b"1")
    assert len(keeping.look()) == 1
    made.run(a=b"2")
    assert keeping.look() == []
    assert len(keeping.look(at_once=True)) == 1


def test_an_epoch_that_somebody_reads_is_not_forgotten(made: Made) -> None:
    sink = FakeSink()
    keeping = upkeep(made, sink)
    made.run(a=b"1")
    with hold(made.folder, 0, made.clock):
        for value in (b"2", b"3", b"4"):
            made.run(a=value)
        keeping.look(at_once=True)
        keeping.sweep()
        assert Ledger(made.folder).epochs() == [0, 1, 2, 3]
        assert sink.oldest == 0
        assert list(state_keys(made.source, made.source.entry(0)))
    made.run(a=b"5")
    keeping.look(at_once=True)
    assert Ledger(made.folder).epochs() == [3, 4]


def test_a_breached_budget_warns_at_its_checkpoint_and_not_at_every_one(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    keeping = upkeep(made, FakeSink(), replace(TERMS, max_restore_s=5.0))
    for value in (b"1", b"2", b"3"):
        made.run(a=value)
        keeping.look(at_once=True)
    (warning,) = [line for line in caplog.messages if "restore" in line]
    assert warning.startswith("Checkpoint 0, restore: 22.") and warning.endswith(" of 5 s.")
    assert keeping.newest is not None and keeping.newest.epoch == 2
    # Who keeps within its budgets is not spoken of.
    caplog.clear()
    quiet = upkeep(made, FakeSink(), replace(TERMS, max_restore_s=600.0))
    made.run(a=b"4")
    quiet.look(at_once=True)
    assert not caplog.messages
