"""A pipeline on a standalone cluster of Spark's, all of it on this machine, or each on a host."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyspark
import pytest
from tests.conftest import until
from tests.e2e.conftest import PATIENCE_S, Place
from tests.e2e.test_one_url import Machine
from tests.hosts import Network

from catchwater.pipeline.spark.session import find_java

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

SPARK = Path(pyspark.__file__).parent
CORES = 2
HEADERS = 16 << 10
"""Of the objects of a small state."""


def started(
    folder: Path,
    name: str,
    *arguments: str,
    says: str,
    at: str = "127.0.0.1",
    prefix: Sequence[str] = (),
) -> tuple[Any, str]:
    """A daemon of Spark's, and what matched in its log once it has said that."""
    environment = os.environ | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": at,
        "SPARK_LOCAL_DIRS": str(folder / "of-the-worker"),
    }
    path = folder / f"{name}-{at}.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [*prefix, SPARK / "bin" / "spark-class",
             f"org.apache.spark.deploy.{name.lower()}.{name}",
             "--host", at, "--webui-port", "0", *arguments],
            env=environment, stdout=log, stderr=log, start_new_session=True,
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


def test_a_worker_that_is_lost_with_its_disk_costs_its_shards_and_no_row(
    network: Network, place: Place, tmp_path: Path
) -> None:
    """Master, workers and driver are hosts with disks of their own; the store holds the rest."""
    master, driver, *workers = (network.host(name) for name in ("ma", "dr", "wa", "wb"))
    url = place.url.replace("?", "/apart?")
    machine = Machine(place.cards, tmp_path / "driver", "apart", url=url)
    machine.prefix = driver.prefix
    own = {each.name: tmp_path / each.name for each in workers}
    for folder in (machine.folder, *own.values()):
        folder.mkdir()
    daemons = []
    try:
        process, found = started(
            tmp_path, "Master", "--port", "7077", says=r"Starting Spark master at (\S+)",
            at=master.address, prefix=master.prefix,
        )  # fmt: skip
        daemons.append(process)
        for each in workers:
            process, _ = started(
                own[each.name], "Worker", "--cores", "1", "--memory", "1g", "--work-dir",
                str(own[each.name] / "work"), found, says="(Successfully registered with master)",
                at=each.address, prefix=each.apart(machine.folder),
            )  # fmt: skip
            daemons.append(process)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("CATCHWATER_SPARK__MASTER", found)
            environment.setenv("CATCHWATER_SPARK__SPARK_EXECUTOR_MEMORY", "1g")
            environment.setenv("CATCHWATER_RECOVERY__RETAIN", "1000")
            machine.start("available-now", epoch_events=500)
            machine.wait_until(lambda: machine.is_written(5))
            workers[0].kill()
            lost_at = machine.committed
            assert machine.wait() == 0, machine.log
    finally:
        for host in (driver, *workers, master):
            host.kill()
        for process in daemons:
            process.wait()
    assert machine.rows == machine.cards.expected

    ledger = machine.ledger
    entries = [entry for each in ledger.epochs() if (entry := ledger.read(each))]
    hosts = [{shard.host for shard in entry.shards} for entry in entries]
    assert set().union(*hosts) == {each.name for each in workers}
    assert hosts[-1] == {workers[1].name} and lost_at < entries[-1].epoch
    # A shard that stays reads nothing, and one that moves its state at most.
    for before, after in pairwise(entries):
        for was, now in zip(before.shards, after.shards, strict=True):
            assert now.shard == was.shard
            most = 1.05 * was.state_bytes + HEADERS if now.host != was.host else 0
            assert now.rebuilt_bytes <= most, now
