"""Every drill passes where nothing else is wrong, and leaves nothing behind wherever it is killed.

One of them, without Spark, is in `make test`; the others take a minute or two each (`make slow`).
"""

import json
import os
import random
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import until
from tests.e2e.conducted import LOG, PIPELINE, not_passed, run
from tests.ports import free_port

from catchwater.drill.catalogue import DRILLS
from catchwater.drill.journal import MARK
from catchwater.drill.result import Budget
from catchwater.wire.client import Client

pytestmark = pytest.mark.timeout(1800)

COMMAND = [sys.executable, "-c", "from catchwater.cli import main; main()", "drill"]
KILLS = 20


def test_a_broker_is_replaced_under_load(tmp_path: Path) -> None:
    budget = tmp_path / "budget.toml"
    budget.write_text('[budget]\nunavailable = "10m"\n')  # however busy the machine is
    named = ["--results", str(tmp_path / "results"), "--budget", str(budget)]
    answer = subprocess.run(
        [*COMMAND, "run", "replace-broker", "--json", *named],
        capture_output=True, text=True, timeout=600, check=False,
        env={**os.environ, "CATCHWATER_DRILLS": str(tmp_path / "journals")},
    )  # fmt: skip
    assert answer.returncode == 0, answer.stderr
    told = json.loads(answer.stdout)
    assert told["verdict"] == "pass" and told["manual_steps"] == []
    assert {f["name"] for f in told["findings"]} == {
        "anomalies", "without an acknowledgement", "manual steps",
    }  # fmt: skip
    assert told["workload"]["records"] > 100
    (kept,) = (tmp_path / "results").glob("*.json")
    assert json.loads(kept.read_text()) == told


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LOG if name != "replace-broker"])
def test_a_log_passes_its_drills(tmp_path: Path, name: str) -> None:
    generous = Budget(slower=1000.0)  # what it was on this machine is for benchmarks to say
    result = run(name, tmp_path, budget=generous)
    assert result.verdict == "pass", result.findings


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("name", PIPELINE)
def test_a_pipeline_passes_its_drills(tmp_path: Path, name: str) -> None:
    result = run(name, tmp_path)
    # How well it was foretold on a machine that others keep busy is not for a test to say.
    assert not not_passed(result).keys() - {"restore against its estimate"}, result.findings
    assert result.workload is not None and result.workload.records > 1_000
    without = ("backfill-live", "rollback-version", "replace-broker-in-restore", "slow-sink")
    assert (result.restore_s is None) == (name in without)
    assert len(result.manual_steps) == DRILLS[name].budget.manual_steps
    if name == "redeploy-at-peak" and result.restore_s is not None:  # to stop is no failure
        (took_s,) = (f.measured for f in result.findings if f.name == "restore")
        assert took_s is not None and 0 < result.restore_s < took_s


def marked(folder: Path) -> list[str]:
    """The processes that a drill with this folder of journals has left."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            environment = (path / "environ").read_bytes()
        except OSError:
            continue
        if str(folder).encode() in environment and f"{MARK}=".encode() in environment:
            found.append(path.name)
    return found


@pytest.mark.slow
def test_a_drill_that_is_killed_anywhere_leaves_no_fault_behind(tmp_path: Path) -> None:
    environment = {
        **os.environ, "CATCHWATER_DRILLS": str(tmp_path / "journals"), "TMPDIR": str(tmp_path),
    }  # fmt: skip
    results = str(tmp_path / "results")
    random.seed(5)
    drills = ["replace-broker", "object-store-outage", "zone-loss"]
    killed = 0
    for point in range(KILLS):
        command = [*COMMAND, "run", drills[point % 3], "--results", results]
        with (tmp_path / "log").open("ab") as log:
            drill = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        # The moment of the kill is what is tried: spread over the drill, whose journal grows line
        # by line, and then time goes by.
        time.sleep(10 * (point + random.random()) / KILLS)
        killed += drill.poll() is None
        drill.kill()
        drill.wait()
        until(lambda: not marked(tmp_path) and not list((tmp_path / "journals").glob("*.undo")))
        assert not list(tmp_path.glob("catchwater-drill-*"))
    assert killed > KILLS / 2


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Path]:
    """The file of a platform that is broken and mended by commands."""
    pid, ready, address = tmp_path / "pid", tmp_path / "ready", f"127.0.0.1:{free_port()}"
    arguments = [
        f"listeners=PLAINTEXT://{address}", f"catchwater.control.listener=127.0.0.1:{free_port()}",
        f"log.dirs={tmp_path / 'data'}", f"catchwater.ready.file={ready}",
    ]  # fmt: skip
    broker = shlex.join([*COMMAND[:-1], "broker", "run", *arguments])
    start = tmp_path / "start.sh"
    start.write_text(
        f"{broker} >>{tmp_path / 'broker.log'} 2>&1 </dev/null &\necho $! >{pid}\n"
        f"echo started >>{tmp_path / 'starts'}\n"
    )
    kill = tmp_path / "kill.sh"
    kill.write_text(f"kill -9 $(cat {pid})\n")
    subprocess.run(["sh", str(start)], check=True)
    until(ready.exists)
    path = tmp_path / "staging.toml"
    words = {"kill": ["sh", str(kill)], "start": ["sh", str(start)]}
    lines = {"name": "staging", "bootstrap": address, **words}
    path.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items()))
    yield path
    subprocess.run(["sh", str(kill)], check=False)


def topics(staging: Path) -> list[str]:
    with Client(tomllib.loads(staging.read_text())["bootstrap"]) as client:
        return client.metadata().topics()


@pytest.mark.slow
def test_a_platform_of_commands_is_broken_and_mended_by_them(staging: Path) -> None:
    folder = staging.parent
    environment = {**os.environ, "CATCHWATER_DRILLS": str(folder / "journals")}
    words = [*COMMAND, "run", "replace-broker", "--on", str(staging), "--json"]
    words += ["--results", str(folder / "results")]
    before = (folder / "pid").read_text()
    dry = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=300)
    assert dry.returncode == 0 and "--allow staging" in dry.stderr
    assert (folder / "pid").read_text() == before, "nothing was done"
    done = subprocess.run(
        [*words, "--allow", "staging"],
        capture_output=True, text=True, env=environment, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["platform"] == "staging"
    assert (folder / "pid").read_text() != before, "its broker is another process"
    assert (folder / "starts").read_text() == "started\n" * 2, "not a third beside the second"
    assert topics(staging) == []


@pytest.mark.slow
def test_a_platform_of_commands_is_mended_when_the_drill_is_killed(staging: Path) -> None:
    folder = staging.parent
    environment = {**os.environ, "CATCHWATER_DRILLS": str(folder / "journals")}
    before = (folder / "pid").read_text()
    # The drill's own start of the broker never happens: it is killed as soon as the broker is.
    with (folder / "log").open("wb") as log:
        drill = subprocess.Popen(
            [*COMMAND, "run", "replace-broker", "--on", str(staging), "--allow", "staging",
             "--results", str(folder / "results")],
            env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    until(lambda: not Path(f"/proc/{before.strip()}/exe").exists())
    drill.kill()
    drill.wait()
    until(lambda: not list((folder / "journals").glob("*.undo")), 180)
    assert (folder / "pid").read_text() != before
    assert topics(staging) == []
