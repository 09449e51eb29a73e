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

    def __init__(self, bootstrap: str, **options: Any) -> None:
        pass

    def metadata(self, topics: list[str]) -> Any:
        if self.topics is None:
            raise RequestTimedOut("127.0.0.1:1 did not answer in 5.0 s.")
        return SimpleNamespace(topics=lambda: [each for each in topics if each in self.topics])

    def broker_config(self) -> dict[str, str]:
        return {}

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
