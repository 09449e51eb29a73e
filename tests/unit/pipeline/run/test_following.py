"""A spare's copies of shards follow a checkpoint at a URL, and need nothing more at its turn."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from tests.conftest import until
from tests.unit.recovery.savepoint.conftest import FUNCTIONS, SHARDS, Made

from catchwater.clock import Clock
from catchwater.pipeline.run import following as module
from catchwater.pipeline.run.following import Follower, following
from catchwater.recovery.folder import lock
from catchwater.recovery.ledger import EpochEntry, folder_of
from catchwater.recovery.savepoint.create import NothingToSave, Source
from catchwater.state.entries import Table
from catchwater.state.store import ShardStore, read_boot_id

CLOCK = Clock(3)


@pytest.fixture
def machine(tmp_path: Path) -> Callable[[str], Path]:
    return lambda name: folder_of((tmp_path / "store").as_uri(), tmp_path / name)


def left_to_read(folder: Path, local: Path, entry: EpochEntry) -> tuple[int, dict[bytes, bytes]]:
    """What a task would have to read here at this entry, and the records of the first function."""
    source, read_bytes = Source.at(folder), 0
    found: dict[bytes, bytes] = {}
    for each in entry.shards:
        name = FUNCTIONS[each.stage]
        store = ShardStore.open(local / name / str(each.shard), name, each.shard, read_boot_id())
        with closing(store):
            state = store.begin(each.position, source.log(each.stage, each.shard))
            read_bytes += store.read_bytes
            if each.stage == 0:
                found |= dict(state.committed.scan(Table.RECORD))
    return read_bytes, found


def test_a_spare_has_what_the_driver_has_and_reads_only_what_is_new(
    machine: Callable[[str], Path], tmp_path: Path
) -> None:
    here, there, local = machine("a"), machine("b"), tmp_path / "b" / "local"
    follower = Follower(there, local, CLOCK)
    with pytest.raises(NothingToSave):
        follower.turn()
    with lock(here):
        made = Made(here)
        for number in range(40):
            made.run(**{f"key-{number}": b"v" * 400})
    whole = follower.turn()
    entry = made.source.entry(None)
    assert whole > 40 * 4 and follower.turn() == 0
    assert left_to_read(there, local, entry) == (0, made.model[-1])
    with lock(here):
        made.run(a=b"new")
    assert 0 < follower.turn() < whole / 4
    assert left_to_read(there, local, made.source.entry(None)) == (0, made.model[-1])
    assert len([*local.glob("*/*")]) == len(FUNCTIONS) * SHARDS


def test_what_cannot_be_read_is_said_once_and_left_to_the_tasks(
    machine: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, there = machine("a"), machine("b")
    with lock(here):
        made = Made(here)
        made.run(a=b"1")
    for path in (tmp_path / "store" / "state").rglob("*.delta"):
        path.unlink()
    turns = []
    real = Follower.turn
    monkeypatch.setattr(module, "EVERY_S", 0.001)
    monkeypatch.setattr(Follower, "turn", lambda self: turns.append(1) or real(self))
    with following(there, tmp_path / "local", CLOCK):
        until(lambda: len(turns) > 3, 30.0)
    assert len([line for line in caplog.messages if "could not be followed" in line]) == 1
