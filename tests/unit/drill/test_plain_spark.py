"""A plain Spark job is watched, and taken back, by the files that Spark writes."""

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from catchwater.drill.plain_spark import NoSpark, SparkStage, SparkWatch, find_spark
from catchwater.drill.platforms import OwnLog
from catchwater.drill.stage import Job
from catchwater.recovery.estimate import LEAST_NEAR_S


def batch(folder: Path, number: int, end: int, took_s: float | None = 1.0) -> None:
    """One that began and, unless it takes None, was committed."""
    for of in ("offsets", "commits"):
        (folder / of).mkdir(parents=True, exist_ok=True)
    metadata = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
    offsets = folder / "offsets" / str(number)
    offsets.write_text(f'v1\n{metadata}\n{{"payments":{{"0":{end},"1":{end}}}}}')
    (folder / "offsets" / f".{number}.crc").write_bytes(b"crc")
    if took_s is not None:
        commit = folder / "commits" / str(number)
        commit.write_text('v1\n{"nextBatchWatermarkMs":0}')
        began_s = offsets.stat().st_mtime
        os.utime(commit, (began_s + took_s, began_s + took_s))


@pytest.fixture
def stage(tmp_path: Path) -> SparkStage:
    job = Job("n", "f", "payments", "totals", 100)
    return SparkStage(job, OwnLog(tmp_path, ExitStack()), tmp_path, ExitStack())


def test_how_far_it_is_is_read_from_the_last_batch_that_was_committed(tmp_path: Path) -> None:
    watch = SparkWatch(tmp_path, "payments")
    watch.look()
    assert watch.committed == -1 and not watch.reached({0: 0})
    batch(tmp_path, 0, 10)
    batch(tmp_path, 1, 20, took_s=None)
    watch.look()
    assert watch.committed == 0 and watch.in_flight
    assert watch.reached({0: 10, 1: 10}) and not watch.reached({0: 10, 1: 11})
    assert watch.contract() is None


def test_it_is_taken_back_by_moving_newer_batches_away(stage: SparkStage) -> None:
    for number in range(6):
        batch(stage.checkpoint, number, number)
    batch(stage.checkpoint, 6, 6, took_s=None)
    assert stage.checkpoints() == 6
    assert "batch 3 of 5" in stage.go_back(3)
    left = sorted(path.name for path in (stage.checkpoint / "offsets").iterdir())
    assert left == [".0.crc", ".1.crc", ".2.crc", ".3.crc", "0", "1", "2", "3"]
    stage.watch.look()
    assert stage.watch.committed == 3 and not stage.watch.in_flight


def test_near_is_twice_what_a_batch_takes(stage: SparkStage) -> None:
    assert stage.near_s() == LEAST_NEAR_S
    for number in range(3):
        batch(stage.checkpoint, number, number, took_s=4.0)
    assert stage.near_s() == pytest.approx(8.0, abs=0.1)


def test_the_job_is_a_program_with_nothing_left_open(stage: SparkStage) -> None:
    stage.write_function(keep_bytes=7)
    text = (stage.folder / "job.py").read_text()
    compile(text, "job.py", "exec")
    assert "digest(7)" in text and '"maxOffsetsPerTrigger", "100"' in text
    assert "{" not in text


@pytest.mark.parametrize("has", ["nothing", "python"])
def test_a_spark_that_is_not_there_is_named(tmp_path: Path, has: str) -> None:
    python = tmp_path / "python"
    python.touch()
    with pytest.raises(NoSpark, match="environment of its own"):
        find_spark(python if has == "python" else None, tmp_path)
