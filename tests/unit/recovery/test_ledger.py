"""The ledger: whole files, read back as written, damage named."""

from pathlib import Path

import pytest

from catchwater.recovery.ledger import (
    EpochEntry,
    Ledger,
    LedgerDamaged,
    ShardEpoch,
    SinkEpoch,
    SourceOffset,
    numbered,
    read_offset,
    write_whole,
)
from catchwater.state.roll import Position


def offset(epoch: int, at: int) -> SourceOffset:
    return SourceOffset(epoch, {"payments": {"0": at}}, [1000, 900], 2000)


def entry(epoch: int, *shards: ShardEpoch) -> EpochEntry:
    sinks = {"alerts": SinkEpoch("alerts", 3, "abc", {"0": (0, 2)})}
    return EpochEntry(epoch, offset(epoch - 1, 0), offset(epoch, 9), list(shards), sinks, 7)


def spark_offset_file(path: Path, end: SourceOffset) -> None:
    import msgspec

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('v1\n{"batchTimestampMs":5}\n' + msgspec.json.encode(end).decode())


def test_an_entry_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    written = entry(3, ShardEpoch(0, events=5), ShardEpoch(1, events=2))
    ledger.write(written)
    assert Ledger(tmp_path).read(3) == written
    assert ledger.read(4) is None
    assert written.total("events") == 7


def test_the_epoch_is_due_when_its_first_shard_is(tmp_path: Path) -> None:
    shards = [ShardEpoch(0), ShardEpoch(1, next_due_ms=50), ShardEpoch(2, next_due_ms=40)]
    shards.append(ShardEpoch(0, stage=1, next_due_ms=9, next_due_clock_ms=70))
    assert (entry(0, *shards).next_due_ms(0), entry(0, *shards).next_due_ms(1)) == (40, 9)
    assert entry(0, *shards).next_due_clock_ms == 70
    assert entry(0, ShardEpoch(0)).next_due_ms(0) is None
    assert entry(0, ShardEpoch(0)).next_due_clock_ms is None


def test_an_entry_says_where_the_state_of_every_stage_stands() -> None:
    first = ShardEpoch(1, version=4, token="a")
    second = ShardEpoch(1, stage=1, version=4, token="b")
    written = entry(3, first, second)
    assert written.positions() == {1: Position(4, "a")}
    assert written.positions(1) == {1: Position(4, "b")}


def test_an_epoch_builds_on_the_entry_before_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.base(0) is None
    ledger.write(entry(3))
    assert ledger.base(4) == entry(3)
    with pytest.raises(LedgerDamaged, match="no entry of epoch 4, which Spark committed"):
        ledger.base(5)


def test_a_stage_runs_at_the_watermark_of_as_many_epochs_before() -> None:
    assert [offset(1, 0).watermark_of(stage) for stage in (0, 1, 2)] == [1000, 900, 900]


def test_a_damaged_entry_is_named(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.write(entry(3))
    path = ledger.folder / "epochs" / "3.json"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(LedgerDamaged, match=r"3\.json is damaged"):
        ledger.read(3)


def test_epochs_that_nothing_goes_back_to_are_forgotten(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    for epoch in range(5):
        ledger.write(entry(epoch))
    ledger.forget_before(3)
    assert ledger.epochs() == [3, 4]


def test_the_first_beginning_is_kept(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.begin(offset(-1, 10)) == offset(-1, 10)
    assert ledger.begin(offset(-1, 99)) == offset(-1, 10)
    assert ledger.start_of(0) == offset(-1, 10)


def test_an_epoch_starts_where_the_one_before_ended(tmp_path: Path) -> None:
    spark_offset_file(tmp_path / "offsets" / "4", offset(4, 77))
    assert Ledger(tmp_path).start_of(5) == offset(4, 77)


def test_without_a_beginning_epoch_0_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LedgerDamaged, match="where does epoch 0 start"):
        Ledger(tmp_path).start_of(0)


def test_a_recorded_end_is_that_of_the_moved_offset_file(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    assert ledger.recorded_end(6) is None
    spark_offset_file(ledger.replayed / "offsets" / "6", offset(6, 66))
    assert ledger.recorded_end(6) == offset(6, 66)
    assert ledger.recorded_epochs() == [6]


@pytest.mark.parametrize("text", ["", "v2\n{}\n{}", "v1\n{}", "v1\n{}\n{", 'v1\n{}\n{"epoch": 1}'])
def test_a_damaged_offset_file_is_named_whatever_is_wrong(tmp_path: Path, text: str) -> None:
    path = tmp_path / "7"
    path.write_text(text)
    with pytest.raises(LedgerDamaged, match=str(path)):
        read_offset(path)


def test_a_file_is_replaced_whole_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_whole(path, b"one")
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"
    assert list(path.parent.iterdir()) == [path]


def test_only_plain_numbers_are_numbered_files(tmp_path: Path) -> None:
    for name in ("1", "12", ".12.crc", "x", "3.json"):
        (tmp_path / name).touch()
    assert sorted(numbered(tmp_path)) == [1, 12]
    assert list(numbered(tmp_path, ".json")) == [3]
    assert list(numbered(tmp_path / "absent")) == []
