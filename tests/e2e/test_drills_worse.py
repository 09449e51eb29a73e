"""Every drill fails where its fault is made worse: one that can only pass says nothing."""

import os
import signal
import time
from pathlib import Path

import pytest
from tests.e2e import conducted
from tests.e2e.conducted import PIPELINE, lose_acknowledged, not_passed, run, write_into_the_sink

from catchwater.config import CatchwaterError
from catchwater.drill import clients, of_log
from catchwater.drill.platforms import OwnLog
from catchwater.drill.result import Budget
from catchwater.drill.scene import Scene

pytestmark = pytest.mark.timeout(1800)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["replace-broker", "replace-broker-at-rest", "catalog-restart", "object-store-outage"],
)
def test_a_log_that_loses_what_it_acknowledged_fails_its_drill(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_log, "PATIENCE_S", 20.0)
    monkeypatch.setattr(clients, "PATIENCE_S", 20.0)
    assert run(name, tmp_path, lose_acknowledged).verdict == "fail"


@pytest.mark.slow
def test_brokers_that_lose_what_a_lost_zone_acknowledged_fail_its_drill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_log, "PATIENCE_S", 20.0)
    monkeypatch.setattr(clients, "PATIENCE_S", 20.0)

    def lose_objects(scene: Scene) -> None:
        for path in (scene.folder / "objects").rglob("*"):
            if path.is_file():
                path.unlink()

    assert run("zone-loss", tmp_path, lose_objects).verdict == "fail"


@pytest.mark.slow
def test_one_broker_has_no_zone_to_lose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conducted, "ours_in_zones", conducted.ours)
    assert run("zone-loss", tmp_path).verdict == "unknown"


@pytest.mark.slow
def test_a_log_that_stands_still_beside_a_replay_fails_its_drill(tmp_path: Path) -> None:
    def hold_up(scene: Scene) -> None:
        assert isinstance(scene.platform, OwnLog) and scene.platform.process is not None
        os.kill(scene.platform.process.pid, signal.SIGSTOP)
        time.sleep(3)  # how long it stands still: a fault of that length is what is tried
        os.kill(scene.platform.process.pid, signal.SIGCONT)

    result = run("cold-replay", tmp_path, hold_up)
    assert not_passed(result)["acknowledgements beside the replay"] == "fail"


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.parametrize("name", PIPELINE)
def test_a_sink_that_is_not_what_it_should_be_fails_the_drill(tmp_path: Path, name: str) -> None:
    result = run(name, tmp_path, write_into_the_sink, Budget(restore_s=0.1, manual_steps=9))
    assert result.verdict == "fail"
    wrong = not_passed(result)
    assert wrong["rows too many"] == "fail"
    assert wrong.get("restore") == ("fail" if result.restore_s is not None else None)


@pytest.mark.slow
def test_a_drill_whose_fault_cannot_be_caused_ends_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OwnLog, "start", lambda log: (_ for _ in ()).throw(OwnLogAway("away")))
    assert run("replace-broker", tmp_path).verdict == "unknown"


class OwnLogAway(CatchwaterError):
    """The log does not start."""
