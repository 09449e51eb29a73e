"""A checkpoint made of a savepoint goes on where it was taken, in any number of shards."""

from pathlib import Path

import msgspec
import pytest

from catchwater.clock import Clock
from catchwater.recovery import checkpoint
from catchwater.recovery.folder import CheckpointInUse, lock
from catchwater.recovery.handover import Restore, RestoreUnfinished, refuse_unfinished
from catchwater.recovery.ledger import Ledger
from catchwater.recovery.savepoint import restore as module
from catchwater.recovery.savepoint.create import Source, create
from catchwater.recovery.savepoint.format import Savepoint, SavepointDamaged
from catchwater.recovery.savepoint.restore import CheckpointTaken, restore
from catchwater.recovery.savepoint.store import Shelf

from .conftest import Made, state_of

WORK = Restore("file:///x", "catchwater savepoint restore FILE first")


@pytest.fixture
def savepoint(made: Made, shelf: Shelf) -> Savepoint:
    made_of = create(made.source, shelf, "first", epoch=1)
    made.run(a=b"later")
    return made_of


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "fresh" / "checkpoint"


@pytest.mark.parametrize("shards", [2, 1, 3, 8])
def test_state_and_positions_are_those_of_the_epoch(
    made: Made, shelf: Shelf, savepoint: Savepoint, into: Path, shards: int
) -> None:
    restore(shelf.store, savepoint, into, WORK, shards=shards, clock=Clock(4))
    found = checkpoint.read(into)
    assert [each.epoch for each in found.committed] == [1]
    assert found.last is not None
    assert found.last.end == made.offset(1)
    entry = Ledger(into).read(1)
    assert entry is not None
    assert entry.total("events") == savepoint.entry.total("events")
    assert entry.next_due_ms(0) == 0
    assert entry.positions(1).keys() == set(range(shards))
    assert state_of(into, 0) == state_of(into, 1) == made.model[1]
    assert (into / "catchwater" / "code" / "abc.py").read_bytes() == b"print('hello')"
    assert Ledger(into).beginning() == made.offset(-1)
    refuse_unfinished(into)


def test_it_can_be_saved_and_restored_again(
    made: Made, shelf: Shelf, savepoint: Savepoint, into: Path, tmp_path: Path
) -> None:
    restore(shelf.store, savepoint, into, WORK, shards=5, clock=Clock(4))
    again = create(Source.at(into), shelf, "again")
    assert (again.epoch, again.shards) == (1, 5)
    restore(shelf.store, again, tmp_path / "third", WORK, shards=2, clock=Clock(5))
    assert state_of(tmp_path / "third") == made.model[1]


def test_a_folder_in_use_is_not_written_over(
    made: Made, shelf: Shelf, savepoint: Savepoint, into: Path
) -> None:
    with pytest.raises(CheckpointTaken, match="would lose what is there") as error:
        restore(shelf.store, savepoint, made.folder, WORK)
    assert error.value.exit_code == 5
    with lock(into), pytest.raises(CheckpointInUse):
        restore(shelf.store, savepoint, into, WORK)


def test_a_damaged_object_stops_it_and_the_rest_may_not_be_run(
    shelf: Shelf, savepoint: Savepoint, into: Path, tmp_path: Path
) -> None:
    path = tmp_path / "savepoints" / "first" / savepoint.objects[0].key
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + b"?")
    with pytest.raises(SavepointDamaged, match="its checksum does not match"):
        restore(shelf.store, savepoint, into, WORK)
    with pytest.raises(RestoreUnfinished) as error:
        refuse_unfinished(into)
    assert error.value.hint == f"Do it again: {WORK.command}."
    path.write_bytes(whole)
    restore(shelf.store, savepoint, into, WORK)
    refuse_unfinished(into)


@pytest.mark.parametrize("step", ["bind", "write_epoch", "end_restore"])
def test_cut_short_anywhere_it_is_not_run_and_can_be_done_again(
    made: Made,
    shelf: Shelf,
    savepoint: Savepoint,
    into: Path,
    step: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(module, step, stop)
        restore(shelf.store, savepoint, into, WORK)
    with pytest.raises(RestoreUnfinished):
        refuse_unfinished(into)
    restore(shelf.store, savepoint, into, WORK, shards=3)
    assert state_of(into) == made.model[1]


def test_state_may_go_to_another_store(
    made: Made, shelf: Shelf, savepoint: Savepoint, into: Path, tmp_path: Path
) -> None:
    bucket = tmp_path / "bucket"
    restore(shelf.store, savepoint, into, WORK, state=bucket.as_uri(), clock=Clock(6))
    assert state_of(into) == made.model[1]
    assert not (into / "catchwater" / "state").exists()
    assert list(bucket.glob("cards-*/state/count/00000/*.delta"))


def test_offsets_are_written_as_spark_writes_them(
    shelf: Shelf, savepoint: Savepoint, into: Path
) -> None:
    restore(shelf.store, savepoint, into, WORK)
    # Spark refuses to start from a batch without the offsets of the one before.
    assert (into / "offsets" / "0").exists() and not (into / "commits" / "0").exists()
    version, said, end = (into / "offsets" / "1").read_text().splitlines()
    assert version == "v1"
    assert said == '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
    # As a batch of Spark 4.3 left it: its Python source's lines have spaces, its own have none.
    assert end == (
        '{"epoch": 1, "offsets": {"payments": {"0": 20}}, "watermarks": [1], "clock_ms": 1, '
        '"tables": {}, "input_ms": 0}'
    )
    assert (into / "commits" / "1").read_text() == 'v1\n{"nextBatchWatermarkMs":0}'
    assert len(msgspec.json.decode((into / "metadata").read_bytes())["id"]) == 36
