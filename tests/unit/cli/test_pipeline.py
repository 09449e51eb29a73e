"""A pipeline's status is read from its checkpoint alone."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from catchwater.pipeline.run.versions import Identity
from catchwater.pipeline.supervise import Supervision
from catchwater.recovery.folder import SUPERVISOR, lock
from catchwater.recovery.ledger import Ledger, ShardEpoch


def test_the_status_tells_epochs_and_what_they_did(catchwater: Any, pipeline_file: Path) -> None:
    told = json.loads(catchwater("pipeline", "status", pipeline_file, "--json").out)
    assert (told["committed_epoch"], told["planned_epoch"]) == (2, 3)
    assert told["restorable"] == [0, 1, 2]
    assert told["recent_epochs"][-1] == {
        "epoch": 2, "events": 10, "outputs": 2, "late": 0, "duplicates": 1, "poisoned": 0,
        "delta_bytes": 20, "restore_s": 0.5, "finished_ms": 1000, "source_ms": 30.0,
        "operator_ms": 12.5, "sinks_ms": 4.5, "commit_ms": None, "total_ms": 47.0,
    }  # fmt: skip
    assert told["operator"] == {
        "keys": 4, "state_bytes": 50, "operator_p50_ms": 12.5, "operator_p99_ms": 12.5,
    }  # fmt: skip


def test_a_person_reads_times_lag_functions_and_where_an_epochs_time_goes(
    catchwater: Any, pipeline_file: Path
) -> None:
    lines = catchwater("pipeline", "status", pipeline_file).out.splitlines()
    copied = [line for line in lines if line.startswith(14 * " " + "catchwater ")]
    assert all(len(line) <= 80 for line in lines if "checkpoint" not in line and line not in copied)
    told = {line[:14].strip(): line[14:] for line in lines}
    assert told["correct"].startswith("unknown: The sink")
    assert told["recoverable"].startswith("unknown: The log was not asked: no broker")
    assert told["fresh"].startswith("unknown: The lag is not known: no broker at 127.0.0.1:1")
    assert copied[0].strip() == f"catchwater sink verify {pipeline_file}"
    assert (told["pipeline"], told["state"]) == ("card_risk:CardRisk", "stopped")
    assert told["epoch"].startswith("2 was done at 1970-01-01T00:00:01Z, ")
    assert "ago; 3 was begun" in told["epoch"]
    assert told["watermark"] == "1970-01-01T00:00:02Z"
    assert told["lag"].startswith("unknown: no broker at 127.0.0.1:1 answers")
    assert told["restorable"] == "0-2"
    at = lines.index(next(line for line in lines if line.startswith("function ")))
    assert lines[at].split() == [
        "function", "events", "outputs", "late", "dupl", "poison", "keys", "state", "p99", "ms",
    ]  # fmt: skip
    assert lines[at + 1].split() == ["stage", "0", "30", "6", "0", "3", "0", "4", "50", "B", "12"]
    at = lines.index(next(line for line in lines if line.startswith("sink ")))
    assert lines[at + 1].split() == ["alerts", "2", "6", "4.5", "alerts", "0:7"]
    assert lines[-1].split() == ["2", "10", "2", "30", "12", "4.5", "47", "00:00:01Z"]


def test_a_chain_is_told_function_by_function(catchwater: Any, pipeline_file: Path) -> None:
    """What goes in is not what goes from one function to the next as well."""
    folder = pipeline_file.parent / "checkpoint"
    Identity("cards", ["rules", "totals"], 1, ["payments"], {}).write(folder)
    ledger = Ledger(folder)
    for epoch in ledger.epochs():
        entry = ledger.read(epoch)
        assert entry is not None
        second = ShardEpoch(0, stage=1, events=2, outputs=1, keys=1, operator_ms=1.0)
        ledger.write(msgspec.structs.replace(entry, shards=[*entry.shards, second]))
    told = json.loads(catchwater("pipeline", "status", pipeline_file, "--json").out)
    assert [(f["function"], f["events"], f["outputs"]) for f in told["functions"]] == [
        ("rules", 30, 6), ("totals", 6, 3),
    ]  # fmt: skip
    last = told["recent_epochs"][-1]
    assert (last["events"], last["outputs"], last["operator_ms"]) == (10, 1, 13.5)
    assert told["rate"] == {"in_per_s": 20_000.0, "out_per_s": 2_000.0, "over_s": 0.0}


def test_it_is_shown_again_and_again_until_ctrl_c(pipeline_file: Path) -> None:
    program = Path(sys.executable).with_name("catchwater")
    with subprocess.Popen(
        [program, "pipeline", "status", pipeline_file, "--watch", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        seen = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert [told["committed_epoch"] for told in seen] == [2, 2]
    assert (process.returncode, "Traceback" in said) == (130, False)


def test_a_pipeline_that_never_ran_has_a_status_too(
    catchwater: Any, pipeline_file: Path, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    pipeline_file.rename(moved / "pipeline.toml")
    answer = catchwater("pipeline", "status", moved / "pipeline.toml", "--json")
    assert json.loads(answer.out)["committed_epoch"] is None
    shown = catchwater("pipeline", "status", moved / "pipeline.toml").out.splitlines()
    assert shown[1] == "state         never started; catchwater pipeline run FILE starts it"
    assert len(shown) == 3


def test_a_pipeline_has_the_same_name_before_and_after_its_first_start(
    catchwater: Any, pipeline_file: Path
) -> None:
    named = 'function = "catchwater.demo.card_risk:CardRisk"'
    text = re.sub("function = .*", named, pipeline_file.read_text())
    pipeline_file.write_text(text.replace('"checkpoint"', '"another"'))
    told = json.loads(catchwater("pipeline", "status", pipeline_file, "--json").out)
    assert (told["name"], told["state"]) == ("card-risk", "never started")


def test_a_file_that_is_not_there_is_told_with_what_to_do(catchwater: Any, tmp_path: Path) -> None:
    answer = catchwater("pipeline", "status", tmp_path / "absent.toml")
    assert answer.code == 2
    told = f"error: There is no pipeline file {tmp_path / 'absent.toml'}.\nhint: Name one"
    assert answer.err.startswith(told)


def test_a_place_that_is_no_folder_is_no_bug(catchwater: Any, pipeline_file: Path) -> None:
    text = pipeline_file.read_text().replace('"checkpoint"', '"pipeline.toml/checkpoint"')
    pipeline_file.write_text(text)
    answer = catchwater("pipeline", "status", pipeline_file)
    assert (answer.code, answer.out) == (1, "")
    assert "Not a directory" in answer.err
    assert "hint: Name a place" in answer.err


def test_an_unknown_key_in_the_file_is_named(catchwater: Any, pipeline_file: Path) -> None:
    pipeline_file.write_text(pipeline_file.read_text().replace("subscribe", "subscribes"))
    answer = catchwater("pipeline", "status", pipeline_file)
    assert answer.code == 2
    assert "subscribes" in answer.err


def test_a_supervisor_that_is_gone_without_a_word_was_killed(
    catchwater: Any, pipeline_file: Path
) -> None:
    told = Supervision(1, "running", 5, driver=2, spare=3, restarts=4, last_cause="No route.")
    path = pipeline_file.parent / "checkpoint" / "catchwater" / "supervisor.json"
    path.write_bytes(msgspec.json.encode(told))
    supervisor = json.loads(catchwater("pipeline", "status", pipeline_file, "--json").out)[
        "supervisor"
    ]
    assert (supervisor["state"], supervisor["driver"], supervisor["restarts"]) == (
        "killed",
        None,
        4,
    )
    with lock(pipeline_file.parent / "checkpoint", name=SUPERVISOR):
        answer = catchwater("pipeline", "status", pipeline_file)
    assert "state         running since 1970-01-01T00:00:00Z" in answer.out
    assert "processes     supervisor 1, driver 2, spare 3" in answer.out
    assert "restarts      4" in answer.out
    assert "last failure  No route." in answer.out


def test_stopping_what_does_not_run_says_so(catchwater: Any, pipeline_file: Path) -> None:
    answer = catchwater("pipeline", "stop", pipeline_file, "--yes")
    assert (answer.code, answer.err.startswith("Nothing works on ")) == (0, True)


def test_a_dry_run_stops_nothing(catchwater: Any, pipeline_file: Path) -> None:
    with lock(pipeline_file.parent / "checkpoint", name=SUPERVISOR):
        answer = catchwater("pipeline", "stop", pipeline_file, "--dry-run")
    assert answer.err == f"Process {os.getpid()} was left running.\n"
