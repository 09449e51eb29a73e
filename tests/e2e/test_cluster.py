"""Pipelines on clusters, all of it on this machine, or each on a host."""

import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.conftest import Cards, Place
from tests.e2e.test_one_url import Machine
from tests.spark_cluster import OF_EXECUTORS, Cluster, started, yarn

from catchwater.recovery.ledger import EpochEntry

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

HEADERS = 16 << 10
"""Of the objects of a small state."""


@contextmanager
def standalone(folder: Path, cores: int) -> Iterator[dict[str, str]]:
    """A master with one worker: what a driver's environment needs to use it."""
    processes = []
    try:
        process, url = started(
            folder, "Master", "--port", "0", says=r"Starting Spark master at (\S+)"
        )
        processes.append(process)
        process, _ = started(
            folder, "Worker", "--cores", str(cores), "--memory", "2g", "--work-dir",
            str(folder / "work"), url, says="(Successfully registered with master)",
        )  # fmt: skip
        processes.append(process)
        yield {"CATCHWATER_SPARK__MASTER": url}
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


@pytest.mark.parametrize(("cluster", "cores"), [(standalone, 2), (yarn, 3)])
def test_a_pipeline_on_a_cluster_writes_each_row_once(
    make_pipeline: Callable[[str], Any], tmp_path: Path, cluster: Any, cores: int
) -> None:
    pipeline = make_pipeline(cluster.__name__)
    with cluster(tmp_path, cores) as settings, pytest.MonkeyPatch.context() as environment:
        for name, value in (settings | OF_EXECUTORS).items():
            environment.setenv(name, value)
        pipeline.start(epoch_events=1500)
        pipeline.wait_until(lambda: pipeline.is_written(2))
        pipeline.kill()
        assert pipeline.run_to_end(epoch_events=1500) == 0, pipeline.log
    assert pipeline.rows == pipeline.cards.expected
    entry = pipeline.ledger.read(max(pipeline.ledger.epochs()))
    assert entry is not None and {each.host for each in entry.shards} == {platform.node()}


def test_a_worker_that_is_lost_with_its_disk_costs_its_shards_and_no_row(
    place: Place, cards_there: Cards, tmp_path: Path
) -> None:
    """Master, workers and driver are hosts with disks of their own; the store holds the rest."""
    url = place.url.replace("?", "/apart?")
    machine = Machine(cards_there, tmp_path / "driver", "apart", url=url)
    machine.folder.mkdir()
    with Cluster(place.network, tmp_path, [machine.folder]) as cluster:
        driver = cluster.host("dr")
        machine.prefix = driver.prefix
        lost, left = cluster.add("wa"), cluster.add("wb")
        with pytest.MonkeyPatch.context() as environment:
            settings = {"CATCHWATER_SPARK__MASTER": cluster.url, **OF_EXECUTORS}
            for name, value in (settings | {"CATCHWATER_RECOVERY__RETAIN": "1000"}).items():
                environment.setenv(name, value)
            machine.start("available-now", epoch_events=500)
            machine.wait_until(lambda: machine.is_written(8))
            cluster.lose("wa")
            lost_at = machine.committed
            try:
                assert machine.wait() == 0, machine.log
            finally:
                driver.kill()
    assert machine.rows == machine.cards.expected

    ledger = machine.ledger
    entries = [entry for each in ledger.epochs() if (entry := ledger.read(each))]
    hosts = [{shard.host for shard in entry.shards} for entry in entries]
    assert hosts[lost_at] == {lost.name, left.name}
    assert hosts[-1] == {left.name} and lost_at < entries[-1].epoch
    # Once each has its share, a shard stays where it is, and reads nothing.
    settled = next(n for n, each in enumerate(hosts) if len(each) > 1)
    for before, after in pairwise(entries[settled : lost_at + 1]):
        assert places(before) == places(after)
        assert not any(shard.rebuilt_bytes for shard in after.shards)
    # What was on the lost one is read once, and nothing else is.
    held = entries[lost_at]
    gone = {shard.shard for shard in held.shards if shard.host == lost.name}
    read = {
        shard.shard: shard.rebuilt_bytes
        for entry in entries[lost_at + 1 :]
        for shard in entry.shards
        if shard.rebuilt_bytes
    }
    assert gone and set(read) == gone
    for shard in held.shards:
        assert read.get(shard.shard, 0) <= 1.05 * shard.state_bytes + HEADERS


def places(entry: EpochEntry) -> dict[tuple[int, int], str]:
    """The host of each shard."""
    return {(each.stage, each.shard): each.host for each in entry.shards}
