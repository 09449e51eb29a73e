"""What a pipeline's file leads to where its source is another Kafka."""

from pathlib import Path
from typing import Any

import pytest

from catchwater.cli import init
from catchwater.cli.console import open_here
from catchwater.pipeline.opened import OpenPipeline
from catchwater.recovery import pins
from catchwater.recovery.contract import PartitionTail
from catchwater.replay.subscription import Subscription

TAILS = {("payments", 0): PartitionTail(15, 100, 0)}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the brokers of another Kafka were asked."""
    found: list[Any] = []

    def kafka_tails(*told: Any, **_: Any) -> dict[Any, PartitionTail]:
        found.append(told)
        return TAILS

    monkeypatch.setattr(OpenPipeline, "control", None)
    monkeypatch.setattr(pins, "kafka_tails", kafka_tails)
    kept = {"payments": {"cleanup.policy": "delete", "retention.ms": "60000"}}
    monkeypatch.setattr(Subscription, "settings", lambda _, topics: {t: kept[t] for t in topics})
    return found


def test_another_kafka_is_asked_as_the_source_reads_it_and_has_no_pins(
    asked: list[Any], pipeline_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATCHWATER_SOURCE__KAFKA_SECURITY_PROTOCOL", "SSL")
    pipeline = open_here(pipeline_file)
    state = pipeline.log_state(["payments"], {"alerts": 2})
    assert (state.tails, state.pins, state.sink_epochs) == (TAILS, {}, {"alerts": 2})
    assert state.kept_ms == {"payments": 60_000}
    assert pipeline.tails() == TAILS
    assert [(told[0], str(told[2])) for told in asked] == [("127.0.0.1:1", "SSL")] * 2


def test_a_checkpoint_on_another_kafka_is_restored(
    asked: list[Any], catchwater: Any, pipeline_file: Path
) -> None:
    to_one = ["recovery", "restore", pipeline_file, "--checkpoint", 1]
    assert "80 records" in catchwater(*to_one, "--dry-run").err
    assert catchwater(*to_one, "--yes").code == 0


def test_plan_and_status_tell_how_connections_are_secured_and_no_secret(
    catchwater: Any, pipeline_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (pipeline_file.parent / "card_risk.py").write_text(init.FILES["card_risk.py"])
    far = '\n[sink.far]\nkind = "kafka"\ntopic = "t"\nkafka.sasl.password = "${env:SECRET}"\n'
    pipeline_file.write_text(pipeline_file.read_text() + far)
    monkeypatch.setenv("SECRET", "s3cret")
    for section in ("SOURCE", "SINK__FAR"):
        for name, value in (
            ("SECURITY_PROTOCOL", "SASL_SSL"), ("SASL_MECHANISM", "PLAIN"),
            ("SASL_USERNAME", "reader"),
        ):  # fmt: skip
            monkeypatch.setenv(f"CATCHWATER_{section}__KAFKA_{name}", value)
    monkeypatch.setenv("CATCHWATER_SOURCE__KAFKA_SASL_PASSWORD", "s3cret")
    told = catchwater("pipeline", "plan", "--offline", pipeline_file)
    assert "payments at 127.0.0.1:1, SASL_SSL by PLAIN as 'reader'" in told.out
    shown = [told, catchwater("pipeline", "plan", "--offline", pipeline_file, "--json")]
    shown += [catchwater("pipeline", "status", pipeline_file, *more) for more in ([], ["--json"])]
    monkeypatch.setenv("CATCHWATER_SOURCE__KAFKA_SASL_USERNAME", "")
    shown.append(catchwater("pipeline", "plan", "--offline", pipeline_file))
    assert [each.code for each in shown] == [0, 0, 0, 0, 2]
    assert "needs a name and a password" in shown[-1].err
    assert not any("s3cret" in each.out + each.err for each in shown)
