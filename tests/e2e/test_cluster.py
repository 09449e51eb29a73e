"""A pipeline on a standalone cluster of Spark's, all of it on this machine."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
import pytest
from tests.conftest import until
from tests.e2e.conftest import PATIENCE_S

from catchwater.pipeline.spark.session import find_java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

SPARK = Path(pyspark.__file__).parent
CORES = 2


def started(folder: Path, name: str, *arguments: str, says: str) -> tuple[Any, str]:
    """A daemon of Spark's, and what matched in its log once it has said that."""
    environment = os.environ | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "of-the-worker"),
    }
    path = folder / f"{name}.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [SPARK / "bin" / "spark-class", f"org.apache.spark.deploy.{name.lower()}.{name}",
             "--host", "127.0.0.1", "--webui-port", "0", *arguments],
            env=environment, stdout=log, stderr=log,
        )  # fmt: skip
    until(
        lambda: re.search(says, path.read_text()) or process.poll() is not None,
        PATIENCE_S, path.read_text,
    )  # fmt: skip
    found = re.search(says, path.read_text())
    assert found, path.read_text()[-3000:]
    return process, found[1]


@pytest.fixture
def master(tmp_path: Path) -> Iterator[str]:
    """The URL of a master with one worker."""
    processes = []
    try:
        process, url = started(
            tmp_path, "Master", "--port", "0", says=r"Starting Spark master at (\S+)"
        )
        processes.append(process)
        process, _ = started(
            tmp_path, "Worker", "--cores", str(CORES), "--memory", "2g", "--work-dir",
            str(tmp_path / "work"), url, says="(Successfully registered with master)",
        )  # fmt: skip
        processes.append(process)
        yield url
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def test_a_pipeline_on_a_standalone_cluster_writes_each_row_once(
    make_pipeline: Callable[[str], Any], master: str
) -> None:
    pipeline = make_pipeline("clustered")
    settings = {
        "CATCHWATER_SPARK__MASTER": master,
        "CATCHWATER_SPARK__SPARK_EXECUTOR_MEMORY": "1g",
    }
    for name, value in settings.items():
        os.environ[name] = value
    try:
        pipeline.start(epoch_events=1500)
        pipeline.wait_until(lambda: pipeline.is_written(2))
        pipeline.kill()
        assert pipeline.run_to_end(epoch_events=1500) == 0, pipeline.log
    finally:
        for name in settings:
            del os.environ[name]
    assert pipeline.rows == pipeline.cards.expected
