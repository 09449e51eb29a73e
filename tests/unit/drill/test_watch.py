"""A pipeline is watched by its checkpoint's files."""

from pathlib import Path

import pytest

from catchwater.drill.watch import Watch
from catchwater.recovery.ledger import EpochEntry, Ledger, ShardEpoch, SourceOffset


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for log in ("offsets", "commits"):
        (tmp_path / log).mkdir()
    return tmp_path


def plan(folder: Path, epoch: int) -> None:
    (folder / "offsets" / str(epoch)).write_text("v1")


def write(folder: Path, epoch: int, duplicates: int = 1) -> None:
    end = SourceOffset(epoch, {"t": {"0": 10 * (epoch + 1), "1": 5}}, [0], 0)
    shards = [ShardEpoch(shard, duplicates=duplicates) for shard in (0, 1)]
    Ledger(folder).write(EpochEntry(epoch, end, end, shards, {}, 0))


def commit(folder: Path, epoch: int) -> None:
    (folder / "commits" / str(epoch)).write_text("v1")


def test_an_epoch_is_in_flight_from_its_plan_to_its_commit(folder: Path) -> None:
    watch = Watch(folder, "t")
    assert not watch.in_flight
    plan(folder, 0)
    watch.look()
    assert watch.in_flight
    write(folder, 0)
    commit(folder, 0)
    watch.look()
    assert not watch.in_flight
    assert watch.committed == 0


def test_an_epoch_that_is_not_committed_counts_for_nothing(folder: Path) -> None:
    watch = Watch(folder, "t")
    plan(folder, 0)
    write(folder, 0)
    watch.look()
    assert watch.total("duplicates") == 0
    commit(folder, 0)
    watch.look()
    assert watch.total("duplicates") == 2


def test_epochs_that_the_ledger_forgets_stay_counted(folder: Path) -> None:
    watch = Watch(folder, "t")
    for epoch in range(3):
        write(folder, epoch)
        commit(folder, epoch)
        watch.look()
        Ledger(folder).forget_before(epoch)
    assert watch.total("duplicates") == 6


def test_the_input_is_reached_when_every_partition_is(folder: Path) -> None:
    watch = Watch(folder, "t")
    assert not watch.reached({0: 1})
    write(folder, 0)
    commit(folder, 0)
    watch.look()
    assert watch.reached({0: 10, 1: 5})
    assert not watch.reached({0: 11, 1: 5})
