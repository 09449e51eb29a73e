"""What the driver writes for an epoch, and what it refuses to."""

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from catchwater.clock import Clock, ManualClock
from catchwater.pipeline.epochs import EpochTorn, EpochWriter
from catchwater.pipeline.process.poison import PoisonLimitReached
from catchwater.pipeline.rows import Manifest
from catchwater.recovery.ledger import Ledger, ShardEpoch, SinkEpoch, SourceOffset
from catchwater.sinks.base import EpochDiffers, Staged


class FakeSink:
    """Remembers what it was given."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[Staged]] = {}
        self.error: Exception | None = None

    def commit(self, epoch: int, staged: Iterable[Staged]) -> SinkEpoch:
        if self.error:
            raise self.error
        self.epochs[epoch] = list(staged)
        return SinkEpoch("t", len(self.epochs[epoch]), "sum")


class Rows:
    """A batch of manifests as Spark hands it over."""

    def __init__(self, manifests: Iterable[Manifest]) -> None:
        self._blobs = [msgspec.msgpack.encode(each) for each in manifests]

    def collect(self) -> list[Any]:
        return [SimpleNamespace(blob=blob) for blob in self._blobs]


def manifest(shard: int, stage: int = 0, sink: str = "out", **told: Any) -> Manifest:
    return Manifest(ShardEpoch(shard, stage, **told), {sink: Staged(shard, "", 0, 0, 0)})


def plan(folder: Path, epoch: int) -> SourceOffset:
    end = SourceOffset(epoch, {"t": {"0": 10 * epoch}}, [0], 5)
    path = folder / "offsets" / str(epoch)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'v1\n{{"batchTimestampMs":0}}\n{msgspec.json.encode(end).decode()}')
    return end


@pytest.fixture
def sink() -> FakeSink:
    return FakeSink()


@pytest.fixture
def writer(tmp_path: Path, sink: FakeSink) -> EpochWriter:
    Ledger(tmp_path).begin(SourceOffset(-1, {"t": {"0": 0}}, [0], 5))
    plan(tmp_path, 0)
    sinks: Any = {"out": sink}
    return EpochWriter(Ledger(tmp_path), sinks, 2, Clock(1), poison_limit=3)


def test_sinks_come_before_the_entry_and_get_their_own_stage_only(
    tmp_path: Path, writer: EpochWriter, sink: FakeSink
) -> None:
    rows = Rows([manifest(0, stage=1, sink="other", version=1), manifest(0, token="a", version=1)])
    writer(rows, 0)
    assert [piece.shard for piece in sink.epochs[0]] == [0]
    entry = Ledger(tmp_path).read(0)
    assert entry is not None
    assert [(each.stage, each.token) for each in entry.shards] == [(0, "a"), (1, "")]
    assert entry.start.offsets == {"t": {"0": 0}}
    assert entry.sinks["out"].records == 1


def test_the_entry_says_how_long_the_run_and_each_sink_took(
    tmp_path: Path, sink: FakeSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger(tmp_path).begin(SourceOffset(-1, {"t": {"0": 0}}, [0], 5))
    plan(tmp_path, 0)
    clock = ManualClock()
    commit = sink.commit

    def slowly(*told: Any) -> Any:
        clock.pause(0.25)
        return commit(*told)

    monkeypatch.setattr(sink, "commit", slowly)
    rows = Rows([manifest(0), manifest(1)])
    collect = rows.collect
    monkeypatch.setattr(rows, "collect", lambda: clock.pause(1.5) or collect())
    sinks: Any = {"out": sink}
    EpochWriter(Ledger(tmp_path), sinks, 2, clock)(rows, 0)
    entry = Ledger(tmp_path).read(0)
    assert entry is not None
    assert (entry.run_ms, entry.sink_ms) == (1500.0, {"out": 250.0})


def test_what_was_seen_and_poisoned_adds_up_over_epochs(
    tmp_path: Path, writer: EpochWriter
) -> None:
    writer(Rows([manifest(0, max_event_times={"t-0": 50}), manifest(1, poisoned=2)]), 0)
    plan(tmp_path, 1)
    times = {"t-0": 40, "t-1": 70}
    writer(Rows([manifest(0, max_event_times=times), manifest(1, poisoned=1)]), 1)
    entry = Ledger(tmp_path).read(1)
    assert entry is not None
    assert (entry.seen, entry.poisoned) == ({"t-0": 50, "t-1": 70}, 3)
    assert entry.start.epoch == 0


def test_one_poisoned_record_too_many_commits_nothing(
    tmp_path: Path, writer: EpochWriter, sink: FakeSink
) -> None:
    with pytest.raises(PoisonLimitReached, match="4 records it cannot handle, 3 are allowed"):
        writer(Rows([manifest(0, poisoned=2), manifest(1, poisoned=2)]), 0)
    assert not sink.epochs
    assert Ledger(tmp_path).read(0) is None


def test_a_missing_answer_and_foreign_offsets_tear_the_epoch(
    tmp_path: Path, writer: EpochWriter, sink: FakeSink
) -> None:
    with pytest.raises(EpochTorn, match="1 of 2 shards answered"):
        writer(Rows([manifest(0)]), 0)
    (tmp_path / "offsets" / "0").rename(tmp_path / "offsets" / "1")
    with pytest.raises(EpochTorn, match="its offsets end epoch 0"):
        writer(Rows([manifest(0), manifest(1)]), 1)
    assert not sink.epochs


def test_a_sink_that_fails_leaves_no_entry_and_is_told(
    tmp_path: Path, writer: EpochWriter, sink: FakeSink
) -> None:
    sink.error = EpochDiffers("other content")
    with pytest.raises(EpochDiffers):
        writer(Rows([manifest(0), manifest(1)]), 0)
    assert writer.failure is sink.error
    assert Ledger(tmp_path).read(0) is None
