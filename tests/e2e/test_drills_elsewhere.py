"""The same drills on Apache Kafka, and with a plain Spark job: one form, other findings."""

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.kafka_jars import jars
from benchmarks.replay.sessions import peer_python
from tests.e2e.conducted import not_passed

from catchwater.drill.catalogue import DRILLS
from catchwater.drill.conduct import DrillRun, apache_kafka, conduct
from catchwater.drill.plain_spark import SparkPlace
from catchwater.drill.result import Budget, Result
from catchwater.drill.scene import Shape

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def run(name: str, nodes: int, spark: SparkPlace | None, budget: Budget) -> Result:
        make = apache_kafka(jars("kafka"), nodes)
        shape = Shape(rate=200.0, cards=500)
        wanted = DrillRun(make, shape, journals=tmp_path / "journals", spark=spark)
        result = conduct(DRILLS[name], budget, wanted)
        assert not list((tmp_path / "journals").glob("*.undo"))
        return result

    return run


def test_a_zone_of_three_nodes_of_apache_kafka_is_lost(run: Run) -> None:
    # Its high watermark may go back for a moment when another node leads, which loses nothing.
    result = run("zone-loss", 3, None, Budget(unavailable_s=300.0, anomalies=20))
    assert result.verdict == "pass", result.findings
    assert (result.platform, result.job) == ("apache-kafka-3", None)
    assert result.workload is not None and result.workload.records > 100


@pytest.mark.spark
def test_a_plain_spark_job_has_to_be_started_again_by_hand(run: Run) -> None:
    place = SparkPlace(peer_python(), jars("connector"))
    result = run("kill-driver", 1, place, Budget(restore_s=1200.0, duplicate=10**6))
    assert (result.platform, result.job) == ("apache-kafka", "spark")
    wrong = not_passed(result)
    assert wrong == {"manual steps": "fail", "restore against its estimate": "warn"}
    assert result.estimate_s is None, "nothing foretold it"
    assert result.workload is not None and result.workload.records > 1_000


@pytest.mark.spark
def test_a_plain_spark_job_writes_again_what_it_goes_back_to(run: Run) -> None:
    place = SparkPlace(peer_python(), jars("connector"))
    result = run("older-checkpoint", 1, place, Budget(restore_s=1200.0, manual_steps=3))
    wrong = not_passed(result)
    assert wrong["rows too many"] == "fail" and "rows missing" not in wrong
    assert wrong["input that is kept"] == "warn"
