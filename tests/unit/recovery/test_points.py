"""Restore points: which epochs stay, what is known of the others, and going back behind those."""

import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.unit.pipeline.spark.test_epochs import FakeSink, Rows, manifest, plan
from tests.unit.pipeline.test_upkeep import upkeep
from tests.unit.recovery.savepoint.conftest import Made, state_of
from tests.unit.recovery.test_pins import FakeControl

from catchwater.clock import Clock, ManualClock
from catchwater.objects.open import open_store
from catchwater.pipeline.epochs import EpochWriter
from catchwater.recovery import checkpoint, pins, remote, rewind
from catchwater.recovery.checkpoint import Checkpoint
from catchwater.recovery.contract import PartitionTail, load_contract
from catchwater.recovery.folder import hold, home_of, lock
from catchwater.recovery.intact import look
from catchwater.recovery.ledger import (
    FOLDER,
    EpochEntry,
    Ledger,
    LedgerDamaged,
    Passed,
    SinkEpoch,
    SourceOffset,
    folder_of,
    numbered,
)
from catchwater.recovery.points import NEWEST, PointPolicy, thin
from catchwater.recovery.remote import ScratchGone
from catchwater.replay.control import Control
from catchwater.sinks.base import EpochDiffers, EpochMissing, epoch_checksum

TAILS = {("payments", 0): PartitionTail(0, 100_000, 1)}
EVERY_TENTH = PointPolicy(most=100, every_ms=10)


def epoch(number: int, clock_ms: int | None = None) -> Checkpoint:
    end = SourceOffset(
        number, {"t": {"0": 10 * number}}, [0], number if clock_ms is None else clock_ms
    )
    return Checkpoint(number, end)


def epochs_of(points: list[Checkpoint]) -> list[int]:
    return [each.epoch for each in points]


def test_without_an_interval_the_newest_few_can_be_restored() -> None:
    choice = PointPolicy(3).choose([epoch(n) for n in range(9)])
    assert (epochs_of(choice.points), choice.whole_from) == ([6, 7, 8], 6)


def test_a_point_is_the_first_epoch_of_each_interval_and_no_younger_than_the_newest_few() -> None:
    choice = EVERY_TENTH.choose([epoch(n) for n in range(44)])
    assert (epochs_of(choice.points), choice.whole_from) == ([0, 10, 20, 30], 30)
    # 40 becomes one when it is no longer among the newest.
    choice = EVERY_TENTH.choose([epoch(n) for n in range(41 + NEWEST)])
    assert epochs_of(choice.points) == [0, 10, 20, 30, 40]
    assert choice.covering(35) == 30 and choice.covering(40) == 40
    choice = EVERY_TENTH.choose([epoch(n) for n in range(2)])
    assert (epochs_of(choice.points), choice.whole_from) == ([0], 0)


def test_epochs_that_are_longer_than_the_interval_are_all_points() -> None:
    choice = EVERY_TENTH.choose([epoch(n, 25 * n) for n in range(12)])
    assert epochs_of(choice.points) == [0, 1, 2, 3, 4, 5, 6]


def test_what_was_chosen_stays_chosen() -> None:
    there = [epoch(n, 3 * n) for n in range(100)]
    before: list[int] = []
    for end in range(1, 100):
        kept = [each for each in there[:end] if each.epoch in before or each.epoch >= end - 30]
        chosen = epochs_of(EVERY_TENTH.choose(kept).points)
        assert chosen[: len(before)] == before
        before = chosen


def test_points_go_when_they_are_too_old_or_too_many_but_one_leads_to_the_span() -> None:
    there = [epoch(n) for n in range(105)]
    # From 104 - 35 = 69 on, and 60, which leads there.
    assert epochs_of(PointPolicy(100, 10, 35).choose(there).points) == [60, 70, 80, 90]
    assert epochs_of(PointPolicy(2, 10, 35).choose(there).points) == [80, 90]
    assert epochs_of(PointPolicy(2, 10).choose(there).points) == [80, 90]
    assert epochs_of(PointPolicy(100, 10, 1).choose(there).points) == [90]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "checkpoint")


class FakeSweep:
    """A sink that remembers from which epoch on it was asked to keep."""

    oldest = -1

    def sweep(self, oldest: int, now_ms: int) -> None:
        self.oldest = oldest


def thinned(made: Made, epochs: int = 45, kept: PointPolicy = EVERY_TENTH) -> FakeSweep:
    sink = FakeSweep()
    keeping = upkeep(made, sink, kept=kept)
    for number in range(epochs):
        made.run(a=str(number).encode(), **{f"key-{number % 3}": str(number).encode()})
        if number % 4 == 3:
            keeping.look(at_once=True)
    keeping.look(at_once=True)
    keeping.sweep()
    return sink


WHOLE = [*range(30, 45)]
POINTS = [0, 10, 20]


def test_between_points_only_the_ends_of_epochs_are_kept(made: Made) -> None:
    sink = thinned(made)
    ledger, folder = Ledger(made.folder), made.folder
    assert ledger.epochs() == [*POINTS, *WHOLE]
    assert sorted(numbered(folder / "offsets")) == [*POINTS, *WHOLE]
    assert sorted(numbered(folder / "commits")) == [*POINTS, *WHOLE]
    assert sorted(numbered(folder / FOLDER / "contracts", ".json")) == [*POINTS, *WHOLE]
    assert [(first, last) for first, last, _ in ledger.passed_files()] == [
        (1, 9), (11, 19), (21, 29),
    ]  # fmt: skip
    assert checkpoint.committed_epochs(folder) == [*POINTS, *WHOLE]
    # Sinks need not keep more than the part in which all epochs are there.
    assert sink.oldest == 30
    entries = [entry for each in ledger.epochs() if (entry := ledger.read(each))]
    assert [each.epoch for each in ledger.recent(entries)] == WHOLE
    assert ledger.recent([]) == []


def test_the_state_of_every_point_is_there_and_that_of_other_epochs_is_not(made: Made) -> None:
    thinned(made)
    entries = [made.source.entry(each) for each in [*POINTS, *WHOLE]]
    needed = {
        key
        for entry in entries
        for (stage, _), log in made.logs.items()
        for key in log.objects_of(entry.positions(stage)[log.shard])
    }
    store = open_store(home_of(made.folder), made.clock)
    assert {info.key for info in store.list("state/")} == needed
    for point in [*POINTS, 30, 44]:
        copy = made.folder.with_name(f"at-{point}")
        shutil.copytree(made.folder, copy)
        rewind.rewind(copy, point, TAILS)
        assert state_of(copy) == made.model[point]
        shutil.rmtree(copy)


def test_going_back_to_a_point_runs_the_epochs_behind_it_to_the_same_ends(made: Made) -> None:
    thinned(made)
    rewind.rewind(made.folder, 10, TAILS)
    ledger = Ledger(made.folder)
    # Spark asks for the end of the epoch before; nobody takes it for one that can be restored.
    assert sorted(numbered(made.folder / "offsets")) == [0, 9, 10]
    assert not look(made.folder).broken and checkpoint.committed_epochs(made.folder) == [0, 10]
    for number in range(11, 45):
        assert ledger.recorded_end(number) == made.offset(number)
    assert ledger.recorded_end(45) is None
    # They are thinned again on the way, and once more one can go back behind them.
    made.epochs, made.positions = 11, {
        (each.stage, each.shard): each.position for each in made.source.entry(10).shards
    }  # fmt: skip
    keeping = upkeep(made, FakeSweep(), kept=EVERY_TENTH)
    for number in range(11, 45):
        made.run(a=str(number).encode())
    keeping.look(at_once=True)
    assert ledger.epochs() == [*POINTS, *WHOLE]
    assert len(ledger.passed_files()) == 3
    rewind.rewind(made.folder, 0, TAILS)
    assert [ledger.recorded_end(number) for number in range(1, 45)] == [
        made.offset(number) for number in range(1, 45)
    ]


def test_points_that_are_too_old_go_with_what_leads_from_them(made: Made) -> None:
    thinned(made, kept=PointPolicy(most=2, every_ms=10))
    ledger = Ledger(made.folder)
    assert ledger.epochs() == [20, *WHOLE]
    assert [(first, last) for first, last, _ in ledger.passed_files()] == [(21, 29)]


def test_what_is_held_is_not_thinned(made: Made) -> None:
    keeping = upkeep(made, FakeSweep(), kept=EVERY_TENTH)
    for _ in range(14):
        made.run(a=b"1")
    with hold(made.folder, 3, made.clock):
        for _ in range(14, 45):
            made.run(a=b"1")
        keeping.look(at_once=True)
        assert Ledger(made.folder).epochs() == [0, *range(3, 45)]
    made.run(a=b"1")
    keeping.look(at_once=True)
    assert Ledger(made.folder).epochs() == [*POINTS, 30, *range(40, 46)]


def test_a_process_that_died_while_it_thinned_is_no_loss(
    made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(45):
        made.run(a=b"1")
    real, left = Path.unlink, 0

    def unlink(path: Path, missing_ok: bool = False) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        real(path, missing_ok)

    deaths = 0
    for each in range(1, 100, 3):
        left = each
        choice = EVERY_TENTH.choose(checkpoint.read(made.folder).committed)
        with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
            patch.setattr(Path, "unlink", unlink)
            thin(made.folder, EVERY_TENTH, choice, [])
            break
        deaths += 1
    assert deaths > 4
    assert Ledger(made.folder).epochs() == [*POINTS, *WHOLE]
    rewind.rewind(made.folder, 0, TAILS)
    ledger = Ledger(made.folder)
    assert [ledger.recorded_end(n) for n in range(1, 45)] == [made.offset(n) for n in range(1, 45)]


def test_a_rollback_forgets_how_the_epochs_ended_that_are_written_anew(made: Made) -> None:
    thinned(made)
    rewind.move_aside(made.folder, 14, 4)
    ledger = Ledger(made.folder)
    assert [(first, last) for first, last, _ in ledger.passed_files()] == [(1, 9), (11, 14)]
    assert sorted(p.name for p in (ledger.folder / "withdrawn").rglob("*.epochs")) == [
        "11-19.epochs", "21-29.epochs",
    ]  # fmt: skip
    made_of = [
        each.end for _, _, path in ledger.passed_files() for each in ledger.read_passed(path)
    ]
    assert made_of == [made.offset(n) for n in (*range(1, 10), *range(11, 15))]


def test_a_damaged_file_of_ends_is_named(made: Made) -> None:
    thinned(made)
    ledger = Ledger(made.folder)
    rewind.rewind(made.folder, 0, TAILS)
    path = ledger.passed_files()[0][2]
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(LedgerDamaged, match="checksum"):
        ledger.read_passed(path)
    with pytest.raises(LedgerDamaged, match="where epoch 5 ended"):
        ledger.recorded_end(5)


# Sinks.


class Forgetful(FakeSink):
    """Has the epochs up to 20, and a mark of none."""

    def commit(self, epoch: int, staged: Any) -> SinkEpoch:
        raise EpochMissing(f"no mark of {epoch}")

    def last_epoch(self) -> int | None:
        return 20


@pytest.mark.parametrize("checksum", ["same", "another"])
def test_a_sink_that_has_forgotten_an_epoch_is_not_given_it_twice(
    tmp_path: Path, checksum: str
) -> None:
    staged = [manifest(0).staged["out"]]
    was = SinkEpoch("t", 7, epoch_checksum(staged) if checksum == "same" else "0")
    ledger = Ledger(tmp_path)
    ledger.begin(SourceOffset(-1, {"t": {"0": 0}}, [0], 5))
    ledger.pass_over([Passed(plan(tmp_path, n), {"out": was}) for n in (0, 1)])
    plan(tmp_path, 0)
    sinks: Any = {"out": Forgetful()}
    writer = EpochWriter(ledger, sinks, 1, Clock(1))
    # It never ran: there is nothing that it could be compared with.
    with pytest.raises(EpochMissing):
        writer(Rows([manifest(0)]), 0)
    (ledger.replayed / "offsets").mkdir(parents=True)
    (ledger.replayed / "offsets" / "30").touch()
    if checksum == "same":
        writer(Rows([manifest(0)]), 0)
        entry = ledger.read(0)
        assert entry is not None and entry.sinks == {"out": was}
    else:
        with pytest.raises(EpochDiffers, match="epoch 0 with checksum 0"):
            writer(Rows([manifest(0)]), 0)


# At a URL.


def test_at_a_url_a_thinned_checkpoint_is_the_same_elsewhere(tmp_path: Path) -> None:
    here, there = (folder_of((tmp_path / "store").as_uri(), tmp_path / each) for each in "ab")

    with lock(here):
        made = Made(here)
        keeping = upkeep(made, FakeSweep(), kept=EVERY_TENTH)
        for _ in range(45):
            made.run(a=b"1")
            remote.publish(here)
        keeping.look(at_once=True)
    with lock(there):
        ledger = Ledger(there)
        assert checkpoint.committed_epochs(there) == [*POINTS, *WHOLE]
        assert [(a, b) for a, b, _ in ledger.passed_files()] == [(1, 9), (11, 19), (21, 29)]
    with pytest.raises(ScratchGone, match=r"35\.json"), lock(here):
        # The oldest may go, with what leads from it; one in the middle may not vanish.
        choice = PointPolicy(2, 10).choose(checkpoint.read(here).committed)
        thin(here, PointPolicy(2, 10), choice, [])
        Ledger(here).forget_before(20)
        remote.publish(here)
        (here / FOLDER / "epochs" / "35.json").unlink()
    with lock(there):
        assert checkpoint.committed_epochs(there) == [20, *WHOLE]


# Pins and contracts.


def test_a_point_is_pinned_and_the_epochs_behind_it_name_its_pin(made: Made) -> None:
    control = FakePins()
    keeping = upkeep(made, FakeSweep(), kept=EVERY_TENTH, control=control)
    for _ in range(45):
        made.run(a=b"1")
        keeping.look(at_once=True)
    assert sorted(control.held) == ["cards/0", "cards/10", "cards/20", "cards/30"]
    assert load_contract(made.folder, 44).retention.pin == "cards/30"
    assert load_contract(made.folder, 30).retention.pin == "cards/20"
    # Pins are looked at where a point is new, not at every epoch.
    assert control.asked < 12


class FakePins(FakeControl):
    """Counts how often it is asked for its pins."""

    asked = 0

    def pins(self) -> list[dict[str, Any]]:
        self.asked += 1
        return super().pins()


def test_history_that_functions_need_is_pinned_and_moves_with_the_clock() -> None:
    control: Any = FakeControl("cards/3")
    pins.hold_history(control, "cards", {("t", 1): 5, ("t", 0): 3})
    assert control.held["cards/history"]["positions"] == [
        {"topic": "t", "partition": 0, "offset": 3},
        {"topic": "t", "partition": 1, "offset": 5},
    ]
    # Retention was faster: it is set the next time, where the log begins by then.
    control.log_start = 7
    pins.hold_history(control, "cards", {("t", 0): 6})
    assert control.held["cards/history"]["positions"][0]["offset"] == 3
    pins.hold_history(control, "cards", None)
    pins.hold_history(control, "cards", None)
    assert [*control.held] == ["cards/3"]


def test_the_pin_of_history_is_moved_now_and_then(made: Made) -> None:
    control, asked = FakePins(), []
    clock = ManualClock()

    def since(at_ms: int) -> dict[tuple[str, int], int]:
        asked.append(clock.now_ms() - at_ms)
        return {("payments", 0): 4}

    keeping = upkeep(made, FakeSweep(), needs_history_ms=60_000, control=control, since=since,
                     clock=clock)  # fmt: skip
    for _ in range(3):
        made.run(a=b"1")
        keeping.look(at_once=True)
    assert asked == [60_000] and "cards/history" in control.held
    clock.pause(31.0)
    made.run(a=b"1")
    keeping.look(at_once=True)
    assert asked == [60_000, 60_000]


def test_an_epoch_longer_than_the_interval_is_said_once(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    keeping = upkeep(made, FakeSweep(), kept=PointPolicy(100, 1000))
    for _ in range(3):
        entry = made.run(a=b"1")
        slow = {name: getattr(entry, name) for name in EpochEntry.__struct_fields__}
        Ledger(made.folder).write(EpochEntry(**slow | {"run_ms": 4200.0}))
        keeping.look(at_once=True)
    (line,) = [each for each in caplog.messages if "shorter than an epoch" in each]
    assert line.startswith("checkpoints = 1 s is shorter than an epoch: epoch 0 took 4.2 s.")


def test_the_control_api_is_what_the_fakes_stand_for() -> None:
    assert {"pins", "set_pin", "release_pin"} <= {*dir(Control)}
