"""How far behind a pipeline is, in what state, and where its epochs' time goes."""

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from catchwater.cli import status as page_of_status
from catchwater.clock import SYSTEM, ManualClock
from catchwater.pipeline import status
from catchwater.pipeline.run.config import PipelineConfig
from catchwater.recovery.checkpoint import settle, write_offset
from catchwater.recovery.estimate import RestoreSample, add_sample
from catchwater.recovery.intact import Look
from catchwater.recovery.ledger import EpochEntry, Ledger, ShardEpoch, SinkEpoch, SourceOffset
from catchwater.recovery.savepoint.restore import write_epoch
from catchwater.verdicts import Behind, Lag, Restored
from catchwater.wire.arrow import encode_batch
from catchwater.wire.client import RequestTimedOut

CONFIG = PipelineConfig(
    functions=("m:F",), checkpoint=Path("c"), sinks={},
    source={"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "orders"},
)  # fmt: skip
READ = {"orders": {"0": 10, "1": 7}}


class Log:
    """A client of a log with these ends; what lies next is a record of a known time."""

    ends: dict[tuple[str, int], int] | None = None
    batch_ms = 0

    def __init__(self, bootstrap: str, **options: Any) -> None:
        pass

    def list_offsets(self, wanted: dict[tuple[str, int], int]) -> dict[tuple[str, int], int]:
        if self.ends is None:
            raise RequestTimedOut("Gave up after 2 s.")
        return self.ends

    def fetch(self, wanted: dict[tuple[str, int], int], **limits: int) -> Any:
        batch = encode_batch([(b"k", b"v", self.batch_ms, ())])
        return {key: SimpleNamespace(records=memoryview(batch)) for key in wanted}

    def close(self) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ManualClock:
    monkeypatch.setattr(status, "Client", Log)
    monkeypatch.setattr(status, "_answers", lambda address: True)
    return ManualClock()


def test_the_lag_is_what_was_not_read_and_as_old_as_its_oldest_record(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Log, "batch_ms", clock.now_ms() - 2500)
    monkeypatch.setattr(Log, "ends", {("orders", 0): 10, ("orders", 1): 12})
    assert status.lag_shown(CONFIG, READ, clock) == Lag(
        5, 2.5, partitions=[Behind("orders", 1, 5, 2.5)]
    )
    monkeypatch.setattr(Log, "ends", {("orders", 0): 10, ("orders", 1): 7})
    assert status.lag_shown(CONFIG, READ, clock) == Lag(0, 0.0)


def test_what_cannot_be_asked_is_unknown_and_says_why(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert status.lag_shown(CONFIG, READ, clock).unknown == "Gave up after 2 s."
    assert status.lag_shown(CONFIG, None, clock).unknown == "no epoch was committed yet"
    monkeypatch.undo()
    told = status.lag_shown(CONFIG, READ, clock)
    assert told.unknown == "no broker at 127.0.0.1:1 answers"


def entry(epoch: int, finished_ms: int) -> EpochEntry:
    end = SourceOffset(epoch, READ, [0], 0)
    shards = [
        ShardEpoch(0, 0, events=10, outputs=4, operator_ms=5.0),
        ShardEpoch(1, 0, events=10, outputs=4, operator_ms=20.0),
        ShardEpoch(0, 1, events=8, outputs=2, operator_ms=3.0),
    ]
    sinks = {"rows": SinkEpoch("rows", 2, "c")}
    return EpochEntry(
        epoch, end, end, shards, sinks, finished_ms, run_ms=100.0, sink_ms={"rows": 7.0}
    )


def test_where_shards_are_and_what_it_cost_to_move_them() -> None:
    def epoch(number: int, *hosts: str, **moved: int) -> EpochEntry:
        shards = [
            ShardEpoch(n, host=host, state_bytes=1000, rebuilt_bytes=moved.get(f"s{n}", 0))
            for n, host in enumerate(hosts)
        ]
        return msgspec.structs.replace(entry(number, 0), shards=shards)

    entries = [epoch(1, "a", "b"), epoch(2, "b", "b", s0=300), epoch(3, "b", "c", s1=100)]
    rows = status.shards_shown(entries, ["risk"])
    assert [(r["function"], r["shard"], r["host"], r["moves"], r["read_bytes"]) for r in rows] == [
        ("risk", 0, "b", 1, 300), ("risk", 1, "c", 1, 100),
    ]  # fmt: skip
    assert page_of_status._shards(rows) == (
        "1 at b, 1 at c; 2 moves in 6 shard epochs, 66.7 % found their state; 133 B an epoch were "
        "read of the others"
    )
    # One machine that has all of them is not worth a line.
    assert page_of_status._shards(status.shards_shown([epoch(1, "a", "a")], [])) == ""
    assert status.shards_shown([], []) == []


def test_an_epochs_time_is_that_of_its_parts(tmp_path: Path) -> None:
    done = entry(3, 1_000_000)
    assert status.times_of(done, tmp_path) == {
        "source_ms": 77.0, "operator_ms": 23.0, "sinks_ms": 7.0, "commit_ms": None,
        "total_ms": 107.0,
    }  # fmt: skip
    (tmp_path / "commits").mkdir()
    (tmp_path / "commits" / "3").touch()
    os.utime(tmp_path / "commits" / "3", (1000.05, 1000.05))
    assert status.times_of(done, tmp_path)["commit_ms"] == 50.0
    os.utime(tmp_path / "commits" / "3", (5000, 5000))  # by a restore of an earlier release
    assert status.times_of(done, tmp_path)["commit_ms"] is None


@pytest.mark.parametrize("after_s", [0.02, 34.8])
def test_a_commit_that_was_written_in_sparks_place_says_nothing_of_how_long_spark_took(
    tmp_path: Path, after_s: float
) -> None:
    done = entry(0, int((time.time() - after_s) * 1000))
    write_epoch(tmp_path / "restored", done, SYSTEM)
    Ledger(tmp_path / "settled").write(done)
    write_offset(tmp_path / "settled", done.end)
    assert settle(tmp_path / "settled") == 0
    for folder in ("restored", "settled"):
        times = status.times_of(done, tmp_path / folder)
        assert times["commit_ms"] is None
        assert times["total_ms"] == 107.0


def test_the_rate_of_a_chain_is_what_goes_in_and_what_comes_out() -> None:
    entries = [entry(0, 1000), entry(1, 2000), entry(2, 5000)]
    assert status.rate_shown(entries, None) == {"in_per_s": 10.0, "out_per_s": 1.0, "over_s": 4.0}
    assert status.rate_shown(entries, 9000)["in_per_s"] == 5.0
    assert status.rate_shown(entries[:1], 9000)["in_per_s"] is None


@pytest.mark.parametrize(
    ("supervised", "process", "records", "now_ms", "state"),
    [
        (None, 7, 0, 1100, "running"),
        ("running", 7, 0, 1100, "running"),
        ("running", 7, 0, 60_000, "idle"),
        ("running", 7, 5, 60_000, "running"),
        ("running", 7, None, 60_000, "running"),
        ("waiting", None, 0, 60_000, "waiting"),
        ("killed", None, 0, 60_000, "killed"),
        ("ended", None, 0, 60_000, "ended"),
        ("ended", 7, 0, 1100, "running"),
        ("killed", 7, 0, 60_000, "idle"),
        ("waiting", 7, 0, 1100, "waiting"),
        (None, None, 0, 1100, "stopped"),
    ],
)
def test_the_state_in_a_word(
    supervised: str | None, process: int | None, records: int | None, now_ms: int, state: str
) -> None:
    found = Look(Path("c"), 0, [], {}, None, [entry(0, 1000)], [])
    assert status.state_of(supervised, process, found, records, now_ms) == state
    nothing = Look(Path("c"), -1, [], {}, None, [], [])
    assert status.state_of(None, None, nothing, records, now_ms) == "never started"


def test_the_newest_restores_are_reported_with_what_they_were_made_of(tmp_path: Path) -> None:
    assert status.restored(tmp_path) == []
    for number in range(25):
        whole = RestoreSample(
            number, 5.0, 100, 2.0, 10, 10.0, first_s=1.0, scheduling_s=0.5, detection_s=1.5,
            estimated_s=25.0, ended_ms=number,
        )  # fmt: skip
        add_sample(tmp_path, whole if number else RestoreSample(0, 1.0, 0, 0.0, 0, 0.0))
    found = status.restored(tmp_path)
    assert [each.ended_ms for each in found] == list(range(5, 25))
    assert found[-1] == Restored(24, 20.0, 25.0, 1.5, 5.5, 2.0, 11.0)
