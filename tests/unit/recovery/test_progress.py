"""How far a restore is: per shard of state and per partition of input."""

from pathlib import Path

import msgspec
import pytest

from catchwater.recovery import progress
from catchwater.recovery.ledger import FOLDER, EpochEntry, SourceOffset
from catchwater.recovery.progress import CatchingUp, Range
from catchwater.state.store import Rebuilding

START = CatchingUp(10_000, 7, [Range("t", 0, 100, 1_100, 50.0), Range("t", 1, 0, 500, 10.0)])


def entry(epoch: int, first: int, second: int, finished_ms: int) -> EpochEntry:
    end = SourceOffset(epoch, {"t": {"0": first, "1": second}}, [0], 0)
    return EpochEntry(epoch, end, end, [], {}, finished_ms, run_ms=1_000.0)


BEFORE = entry(6, 100, 0, 9_000)


def test_before_the_first_epoch_the_time_left_is_by_the_contract() -> None:
    told = progress.progress(START, [BEFORE], now_ms=12_500, input_per_s=50, capacity_per_s=200)
    assert (told.since_s, told.percent, told.phase) == (2.5, 0.0, "session")
    assert told.eta_s == 1_500 / 150
    assert [(each.done, each.of, each.eta_s) for each in told.partitions] == [
        (0, 1_000, None), (0, 500, None),
    ]  # fmt: skip
    assert progress.progress(START, [], now_ms=12_500).eta_s is None, "nothing is known"


def test_epochs_say_how_fast_it_is() -> None:
    ran = [BEFORE, entry(7, 350, 100, 20_000), entry(8, 600, 250, 24_000)]
    told = progress.progress(START, ran, now_ms=24_000)
    assert (told.percent, told.phase) == (50.0, "input")
    first, second = told.partitions
    assert (first.name, first.percent, first.done, first.of) == ("t-0", 50.0, 500, 1_000)
    assert (first.per_s, first.bytes_per_s, first.eta_s) == (100.0, 5_000.0, 5.0)
    assert (second.per_s, second.bytes_per_s, second.eta_s) == (50.0, 500.0, 5.0)
    assert told.eta_s == 5.0
    loaded = progress.progress(START, ran, now_ms=24_000, input_per_s=75)
    assert loaded.eta_s == 10.0
    never = progress.progress(START, ran, now_ms=24_000, input_per_s=200)
    assert never.eta_s is None


def test_the_end_moves_on_and_what_is_read_beyond_it_is_all(tmp_path: Path) -> None:
    progress.begin(tmp_path, START)
    progress.move_on(tmp_path, {("t", 0): 2_100})
    moved = progress.read(tmp_path)
    assert moved is not None and [each.end for each in moved.inputs] == [2_100, 500]
    told = progress.progress(moved, [entry(7, 1_100, 600, 20_000)], now_ms=21_000)
    assert [each.percent for each in told.partitions] == [50.0, 100.0]
    progress.end(tmp_path)
    progress.move_on(tmp_path, {("t", 0): 3_000})
    assert progress.read(tmp_path) is None


def note(folder: Path, shard: int, began_ms: int, at_ms: int, read: int, of: int) -> None:
    (folder / str(shard)).mkdir(parents=True)
    told = Rebuilding(began_ms, at_ms, read, of)
    (folder / str(shard) / "rebuilding.json").write_bytes(msgspec.json.encode(told))


def test_shards_whose_state_is_read_are_shown_until_the_first_epoch_is_done(
    tmp_path: Path,
) -> None:
    note(tmp_path, 0, 11_000, 13_000, 4_000_000, 10_000_000)
    note(tmp_path, 10, 12_000, 12_000, 0, 500)
    note(tmp_path, 2, 1_000, 2_000, 500, 500)  # of a restore before
    (tmp_path / "3").mkdir()
    under_way = msgspec.structs.replace(START, shards={"card-risk": str(tmp_path)})
    told = progress.progress(under_way, [BEFORE], now_ms=13_000)
    assert told.phase == "state"
    assert [(each.name, each.percent, each.bytes_per_s, each.eta_s) for each in told.shards] == [
        ("card-risk 0", 40.0, 2_000_000.0, 3.0),
        ("card-risk 10", 0.0, None, None),
    ]
    assert progress.progress(under_way, [entry(7, 1, 1, 9)], now_ms=13_000).shards == []


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{"])
def test_a_file_that_cannot_be_read_is_no_restore(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / "catching-up.json").write_bytes(content)
    assert progress.read(tmp_path) is None
