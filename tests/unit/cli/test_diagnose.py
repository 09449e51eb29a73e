"""`catchwater diagnose` over a checkpoint whose log is away, and beside a broker's own page."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from catchwater.broker.metrics import Metrics
from catchwater.cli.diagnose import _broker
from catchwater.log.read.reader import ReadCounts
from catchwater.log.write.writer import Written
from catchwater.objects.retry import RequestCounts
from catchwater.recovery.ledger import Ledger


def test_what_cannot_be_asked_is_said_and_finds_nothing(
    catchwater: Any, pipeline_file: Path
) -> None:
    answer = catchwater("diagnose", pipeline_file)
    assert answer.code == 0, answer.out
    assert "not known: no broker at 127.0.0.1:1 answers" in answer.err
    assert "the last 3 epochs, ms each: source" in answer.out
    assert "? nothing " in answer.out and "holds it back; not all was." in answer.out


def test_a_planted_hot_key_is_named_with_what_helps(catchwater: Any, pipeline_file: Path) -> None:
    ledger = Ledger(pipeline_file.parent / "checkpoint")
    for epoch in ledger.epochs():
        entry = ledger.read(epoch)
        assert entry is not None
        shards = [replace(s, events=1_000, hot_key="c1", hot_events=600) for s in entry.shards]
        ledger.write(replace(entry, shards=shards))
    answer = catchwater("diagnose", pipeline_file)
    assert answer.code == 3
    assert "key 'c1' has 1800 of the last 3000 events (60%)" in answer.out
    assert "why   All events of a key" in answer.out
    assert f"catchwater state get {pipeline_file} c1" in answer.out
    told = json.loads(catchwater("diagnose", pipeline_file, "--json").out)
    assert [each["cause"] for each in told["findings"]] == ["hot-key"]
    assert told["epochs"] == 3 and told["epoch_ms"]["source"] > 0 and told["unknown"]


def test_a_pipeline_that_never_ran_has_nothing_to_say(catchwater: Any, tmp_path: Path) -> None:
    assert catchwater("init", tmp_path).code == 0
    file = tmp_path / "pipeline.toml"
    file.write_text(file.read_text().replace("9092", "1"))
    answer = catchwater("diagnose", file)
    assert answer.code == 0 and "the last 0 epochs, ms each: not measured yet" in answer.out
    assert "? not known" in answer.out and "✔" not in answer.out
    missing = catchwater("diagnose", tmp_path / "absent.toml")
    assert missing.code != 0 and "There is no pipeline file" in missing.err


@pytest.mark.parametrize(("seconds", "p99_s"), [(0.004, 0.005), (0.4, 0.5), (60.0, float("inf"))])
def test_a_brokers_page_is_read(seconds: float, p99_s: float) -> None:
    metrics, counts = Metrics(), RequestCounts()
    metrics.show(counts, ReadCounts(), Written())
    assert _broker(metrics.page().decode()).wal_p99_s is None
    for _ in range(100):
        metrics.wal_fsync_seconds.observe(seconds)
    for outcome in ("ok", "ok", "ok", "failed", "retried"):
        counts.add("put", outcome)
    seen = _broker(metrics.page().decode())
    assert (seen.wal_writes, seen.wal_p99_s) == (100, p99_s)
    assert (seen.store_requests, seen.store_failed) == (5, 2)
