"""The plan names all that a start would fail on, in one go, and changes nothing."""

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from catchwater.cli import init
from catchwater.replay import subscription
from catchwater.wire.client import RequestTimedOut

PIPELINE = """
[pipeline]
function = "card_risk:CardRisk"
checkpoint = "checkpoint"
[source]
"kafka.bootstrap.servers" = "127.0.0.1:1"
subscribe = "payments"
[sink.rows]
kind = "sqlite"
path = "out.db"
table = "rows"
[sink.far]
kind = "sqlite"
path = "nowhere/out.db"
table = "rows"
[sink.shared]
kind = "postgres"
url = "postgresql://me:s3cret@127.0.0.1:1/shop"
table = "rows"
[sink.alerts]
topic = "alerts"
"""


class Kafka:
    """A client of brokers that are not ours, and hold these topics; None: they do not answer."""

    topics: list[str] | None = None
    retention_ms = "604800000"

    def __init__(self, bootstrap: str, **options: Any) -> None:
        pass

    def metadata(self, topics: list[str]) -> Any:
        if self.topics is None:
            raise RequestTimedOut("127.0.0.1:1 did not answer in 5.0 s.")
        return SimpleNamespace(topics=lambda: [each for each in topics if each in self.topics])

    def broker_config(self) -> dict[str, str]:
        return {}

    def topic_configs(self, topics: list[str]) -> dict[str, dict[str, str]]:
        return {each: {"retention.ms": self.retention_ms} for each in topics}

    def close(self) -> None:
        pass


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(subscription, "Client", Kafka)
    monkeypatch.setattr(Kafka, "topics", [])
    (tmp_path / "card_risk.py").write_text(init.FILES["card_risk.py"])
    with closing(sqlite3.connect(tmp_path / "out.db")) as database:
        database.execute("CREATE TABLE rows (card TEXT)")
    path = tmp_path / "pipeline.toml"
    path.write_text(PIPELINE)
    return path


def problems(answer: Any) -> dict[str, str]:
    return {each["what"]: each["message"] for each in json.loads(answer.out)["problems"]}


def test_all_that_is_wrong_is_named_at_once(
    catchwater: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    monkeypatch.delitem(sys.modules, "catchwater.sinks.kinds.postgres", raising=False)
    there = sorted(file.parent.rglob("*"))
    answer = catchwater("pipeline", "plan", file, "--json")
    assert answer.code == 4
    told = problems(answer)
    assert [*told] == ["sink shared", "topic payments", "sink alerts", "sink far", "sink rows"]
    assert "needs the package psycopg" in told["sink shared"]
    assert "There is no topic payments at 127.0.0.1:1" in told["topic payments"]
    assert "id is missing" in told["sink rows"]
    assert "folder that is not there" in told["sink far"]
    assert "name no catchwater.control.url" in told["sink alerts"]
    assert [each for each in sorted(file.parent.rglob("*")) if "pycache" not in str(each)] == there
    shown = catchwater("pipeline", "plan", file).out
    assert "✘ sink rows" in shown and 'ALTER TABLE "rows" ADD COLUMN "id" TEXT' in shown
    assert "pip install 'catchwater[postgres]'" in shown
    found = json.loads(catchwater("doctor", file, "--check", "python", "--json").out)
    assert [each["check"] for each in found] == ["python", *told]


def test_the_window_that_can_be_restored_is_said(
    catchwater: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def restorable(*lines: str) -> str:
        file.write_text(PIPELINE + "[recovery]\n" + "\n".join(lines) + "\n")
        told: dict[str, str] = json.loads(
            catchwater("pipeline", "plan", "--offline", file, "--json").out
        )
        assert "restorable_now" not in told
        return told["restorable"]

    assert restorable("retain = 3").startswith("the newest 3 checkpoints; functions need 7 d ")
    assert restorable('checkpoints = "60s"', 'retain = "24h"').startswith(
        "a restore point every 1 min for 24 h, and every epoch since the newest: 24 h back, from "
        "where on they keep the log from deletion; functions need 7 d "
    )
    short = restorable('checkpoints = "60s"', 'retain = "24h"', "retain_most = 30")
    assert "every 1 min for 30 min," in short and "(retain asks for 24 h: see retain_most)" in short


def test_history_that_another_kafka_does_not_keep_is_refused(
    catchwater: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kafka, "topics", ["payments"])
    assert "needs_history" not in problems(catchwater("pipeline", "plan", file, "--json"))
    monkeypatch.setattr(Kafka, "retention_ms", "86400000")
    answer = catchwater("pipeline", "plan", file, "--json")
    assert answer.code == 4
    assert problems(answer)["needs_history"] == (
        "card-risk needs 7 d of history (needs_history), and payments at 127.0.0.1:1 is kept for "
        "24 h (retention.ms): another Kafka has no pins."
    )


def test_what_does_not_answer_is_a_warning_and_no_secret_is_told(
    catchwater: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Kafka, "topics", None)
    text = file.read_text().replace("nowhere/out.db", "far.db").replace("out.db", "fresh.db")
    file.write_text(text)
    answer = catchwater("pipeline", "plan", file, "--json")
    assert answer.code == 3
    told = problems(answer)
    assert [*told] == ["source", "sink shared"]
    assert "PostgreSQL at 127.0.0.1:1/shop is out of reach" in told["sink shared"]
    assert "s3cret" not in answer.out + catchwater("pipeline", "plan", file).out


def test_asking_nobody_and_nothing_wrong_is_good(
    catchwater: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert catchwater("pipeline", "plan", file, "--offline").code == 0
    monkeypatch.setattr(Kafka, "topics", ["payments"])
    text = file.read_text()
    file.write_text(text[: text.index("[sink.far]")].replace("out.db", "fresh.db"))
    answer = catchwater("pipeline", "plan", file, "--json")
    assert (answer.code, problems(answer)) == (0, {})
    (found,) = json.loads(catchwater("doctor", file, "--check", "numba", "--json").out)[1:]
    assert (found["check"], found["verdict"]) == ("pipeline", "ok")
