"""Pipelines that Python declares: in a session of the caller's, and on from the command line."""

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from examples import fraud_routing
from tests.e2e.conftest import PATIENCE_S
from tests.e2e.test_examples import COMMAND, PARTITIONS, ROOT, counted, rows, times
from tests.spark_cluster import QUICK

from catchwater import Kafka, Pipeline, Topic
from catchwater.clock import SYSTEM
from catchwater.demo.card_risk import CardRisk
from catchwater.drill.feeder import Event, Feeder
from catchwater.pipeline.spark import session
from catchwater.testing import Harness
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def feed(broker: Any, payments: list[fraud_routing.Payment]) -> None:
    with Client(broker.bootstrap) as client:
        encoded = (Event(p.card.encode(), msgspec.json.encode(p), 0) for p in payments)
        Feeder(client, "payments", PARTITIONS, 50).feed(encoded, len(payments))


def test_executors_with_another_python_are_named(spark: Any, tmp_path: Path) -> None:
    context, own = spark.sparkContext, spark.sparkContext.pythonExec
    mine = session.borrow(spark, {}, [])
    session.check_executors(mine, tmp_path, SYSTEM)
    context.pythonExec = sys._base_executable  # without our package
    try:
        with pytest.raises(session.SessionUnfit, match="cannot run Python as this") as raised:
            session.check_executors(mine, tmp_path, SYSTEM)
    finally:
        context.pythonExec = own
    assert f"PYSPARK_PYTHON={sys.executable}" in (raised.value.hint or "")
    assert not [*tmp_path.rglob("seen-*")]


def test_a_second_session_beside_the_first_is_refused(spark: Any, tmp_path: Path) -> None:
    made = Pipeline(
        "cards", CardRisk, source=Kafka("127.0.0.1:1", "payments"), sinks=[Topic("alerts")],
        folder=tmp_path,
    )  # fmt: skip
    with pytest.raises(session.SessionUnfit, match="has a Spark session already"):
        made.run()


def test_a_notebooks_pipeline_goes_on_from_the_command_line(broker: Any, tmp_path: Path) -> None:
    payments = [
        fraud_routing.Payment(
            f"c{d.randrange(20)}", i, at, d.choice(("NL", "NL", "PT")), d.choice((100, 110, 9_000))
        )
        for d, i, at in times(3, 600_000)
    ]
    for name in ("notebook.py", "fraud_routing.py", "fraud_routing.toml"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    with Client(broker.bootstrap) as client:
        client.create_topics({"payments": PARTITIONS}, {"retention.ms": "-1"})
    feed(broker, payments[:200])

    # From another folder: paths are meant from the script.
    script = subprocess.run(
        [sys.executable, str(tmp_path / "notebook.py")],
        env=os.environ
        | {"BOOTSTRAP": broker.bootstrap, "PYSPARK_PYTHON": sys.executable}
        | {"PYSPARK_SUBMIT_ARGS": f"--driver-java-options '{QUICK}' pyspark-shell"},
        cwd=tmp_path.parent,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert script.returncode == 0, script.stderr[-4000:]
    assert "running {'epoch': 0" in script.stdout, script.stdout
    assert "stopped 3" in script.stdout
    assert (tmp_path / "checkpoint" / "savepoints" / "friday").is_dir()

    feed(broker, payments[200:])
    settings = {"CATCHWATER_SOURCE__KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap}
    on = subprocess.run(
        [COMMAND, "pipeline", "run", str(tmp_path / "fraud_routing.toml"), "--available-now",
         "--quick", "--no-supervise"],
        env=os.environ | settings, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert on.returncode == 0, on.stderr[-4000:]
    scores = Harness(fraud_routing.CardScore).send(*payments)
    assert rows(broker, "scores") == counted(scores)
    assert rows(broker, "cases") == counted(Harness(fraud_routing.ReviewDesk).send(*scores))
    assert rows(broker, "not-payments") == Counter()
