"""A pipeline on a standalone cluster that loses one thing after the other.

Each is a host with disks of its own (`tests.spark_cluster`). Two brokers over PostgreSQL and an S3
server have the log, another S3 server has the checkpoint.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.cluster import Brokers
from tests.conftest import until
from tests.e2e.conftest import COMMAND, EVENTS, PATIENCE_S, Cards, Place
from tests.e2e.life import Life
from tests.e2e.test_one_url import Machine
from tests.ports import free_port
from tests.s3 import make_bucket, moto
from tests.spark_cluster import OF_EXECUTORS, Cluster, Driver, newest

from catchwater.clock import SYSTEM
from catchwater.demo.scenarios import card_payments
from catchwater.drill.feeder import Feeder
from catchwater.recovery.folder import refresh
from catchwater.recovery.ledger import EpochEntry, Ledger, folder_of
from catchwater.replay.control import Control
from catchwater.wire.client import Client

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

LEASE_S = 5
AWAY_S = 60.0


class CardsJob(Machine):
    """The demo's pipeline."""

    @property
    def file(self) -> Path:
        return self.folder / "pipeline.toml"

    def move(self, url: str) -> None:
        """Its checkpoint is another one from now on."""
        self.url = url
        self.write_file("1s", epoch_events=60)

    def check_whole(self) -> None:
        """Every row is there once."""
        assert self.rows == self.cards.expected


class ChainJob(Life):
    """Two operators, one behind the other."""

    @property
    def checkpoint(self) -> Path:
        url = str(self._settings["checkpoint"])
        return folder_of(url, self.folder / "cache") if "://" in url else self.folder / url

    def move(self, url: str) -> None:
        """Its checkpoint is another one from now on."""
        self.url = url
        self.write(checkpoint=url, epoch_events=12)

    def entries(self) -> list[EpochEntry]:
        for each in self._checkpoints[1:]:
            refresh(each, SYSTEM)
        return super().entries()


@pytest.fixture
def brokers(place: Place, postgres_url: str, tmp_path: Path) -> Iterator[Brokers]:
    """Two over one PostgreSQL, with their objects in an S3 server of their own."""
    here = place.network.here
    with moto(here) as endpoint:
        settings = {
            "catchwater.insecure": "true",
            "catchwater.objects": make_bucket(endpoint, "shared-log"),
        }
        made = Brokers(tmp_path, postgres_url, settings, zones=("a", "b"))
        for broker in made.all.values():
            broker.settings["listeners"] = f"PLAINTEXT://{here}:{free_port()}"
            broker.settings["catchwater.control.listener"] = f"{here}:{free_port()}"
        made.start()
        yield made
        made.close()


def make_job(name: str, brokers: Brokers, folder: Path) -> Any:
    if name == "chain":
        job = ChainJob("chain", brokers.bootstrap, folder, events=2_400)
        job.feed(1)
        return job
    scenario = card_payments(EVENTS, seed=7)
    with Client(brokers.bootstrap) as client:
        client.create_topics({"payments": 4}, {"retention.ms": "-1"})
        Feeder(client, "payments", 4, 400).feed(scenario.events(), EVENTS)
    folder.mkdir()
    control = Control(brokers.all[1].control_url)
    return CardsJob(Cards(brokers.bootstrap, control, scenario), folder, "shared")


@dataclass
class Operated:
    """A job on a cluster, and what befalls it there."""

    job: Any
    cluster: Cluster
    place: Place
    """Where its checkpoint is."""
    drivers: list[Driver] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)

    def driver(self, name: str) -> Driver:
        """A host that can run it."""
        self.drivers.append(Driver(self.cluster.host(name), self.job.file, dict(self.settings)))
        return self.drivers[-1]

    def says(self, what: str) -> None:
        """What comes next, for whom the test fails."""
        print(
            f"{time.strftime('%X')} after epoch {newest(self.job.checkpoint)}: {what}", flush=True
        )

    def goes_on(self, epochs: int) -> EpochEntry:
        """Wait until so many more are in the ledger; the last one."""
        at = newest(self.job.checkpoint)

        def said() -> str:
            logs = "\n".join(each.log[-3000:] for each in self.drivers)
            return f"after epoch {at} there are no {epochs} more:\n{logs}"

        until(lambda: newest(self.job.checkpoint) >= at + epochs, PATIENCE_S, said)
        return self.last()

    def last(self) -> EpochEntry:
        entry = Ledger(self.job.checkpoint).read(newest(self.job.checkpoint))
        assert entry is not None
        return entry

    def is_everywhere(self) -> None:
        """Each worker has shards."""
        there = {each.name for each in self.cluster.workers.values()}
        until(lambda: hosts_of(self.goes_on(1)) == there, PATIENCE_S, lambda: hosts_of(self.last()))

    def lose_the_drivers_machine(self, name: str) -> None:
        """With its disks; the one of this name goes on."""
        lost = self.drivers[-1]
        self.driver(name).stand_by()
        lost.kill()
        self.goes_on(4)

    def let_the_driver_sleep(self, name: str) -> None:
        """For longer than its lease; the one of this name takes over, and the first one wakes."""
        asleep = self.drivers[-1]
        self.driver(name).stand_by()
        asleep.signal_all(signal.SIGSTOP)
        at = self.goes_on(4).epoch
        asleep.signal_all(signal.SIGCONT)
        assert asleep.wait() == 5, asleep.log
        assert "has taken over the checkpoint" in asleep.log
        assert self.goes_on(2).epoch > at

    def take_the_store_away(self, seconds: float) -> None:
        """Nobody reaches the checkpoint meanwhile, nor commits but what was on its way to it."""
        driver = self.drivers[-1]
        hosts = [driver.host, *self.cluster.workers.values()]
        for each in hosts:
            each.lose(self.place.store)
        at, back_s = newest(self.job.checkpoint), time.monotonic() + seconds
        until(lambda: time.monotonic() >= back_s, seconds + PATIENCE_S)
        assert newest(self.job.checkpoint) <= at + 1
        for each in hosts:
            each.find(self.place.store)
        at = newest(self.job.checkpoint)
        until(lambda: driver.ended or newest(self.job.checkpoint) > at, PATIENCE_S)
        if driver.ended:  # for its supervisor to start it again
            driver.start()
        self.goes_on(3)

    def move(self, shards: int) -> None:
        """Stop it, and have it go on in so many shards."""
        before = self.job.url
        self.stop()
        self.command("savepoint", "create", "--name", "moved", "--yes")
        self.job.move(before.replace("-in-8", f"-in-{shards}"))
        self.settings["CATCHWATER_PIPELINE__SHARDS"] = str(shards)
        saved = before.replace("?", "/savepoints?")
        self.command("savepoint", "restore", "moved", "--at", saved, "--yes")

    def stop(self) -> None:
        driver = self.drivers[-1]
        if not driver.ended:
            assert driver.stop() == 0, driver.log

    def ends(self) -> None:
        """It reads what is left, and all of it is right."""
        self.says("it reads to the end")
        self.stop()
        self.settings["CATCHWATER_SOURCE__MAXOFFSETSPERTRIGGER"] = "1000"
        last = self.driver("dz")
        last.start("--available-now")
        assert last.wait() == 0, last.log
        shards = {each.shard for each in self.last().shards}
        assert len(shards) == int(self.settings["CATCHWATER_PIPELINE__SHARDS"])
        self.job.check_whole()
        self.command("sink", "verify")

    def command(self, *words: str) -> None:
        """`catchwater …` on a machine that never ran it, which must succeed."""
        command = [COMMAND, *words[:2], str(self.job.file), *words[2:]]
        own = {**os.environ, **self.settings, "CATCHWATER_CACHE": str(self.job.folder / "cache")}
        done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, (words, done.stdout, done.stderr)


@pytest.fixture
def operated(
    request: pytest.FixtureRequest, brokers: Brokers, place: Place, tmp_path: Path
) -> Iterator[Operated]:
    """A job in 8 shards that runs on three workers, and is whole in the end."""
    job = make_job(request.param, brokers, tmp_path / request.param)
    job.move(place.url.replace("?", f"/{request.param}-in-8?"))
    with Cluster(place.network, tmp_path, [job.folder]) as cluster:
        made = Operated(job, cluster, place)
        made.settings = {
            # Those that start have time for it between the epochs of the one that runs.
            "CATCHWATER_PIPELINE__TRIGGER": "3s",
            "CATCHWATER_PIPELINE__TASKS": "3",
            "CATCHWATER_PIPELINE__SHARDS": "8",
            "CATCHWATER_PIPELINE__SPARE": "true",
            "CATCHWATER_PIPELINE__LEASE": f"{LEASE_S}s",
            "CATCHWATER_RECOVERY__RETAIN": "1000",
            "CATCHWATER_SPARK__MASTER": cluster.url,
            **OF_EXECUTORS,
            "CATCHWATER_SPARK__SPARK_EXECUTOR_CORES": "1",
            # As many as the pipeline has workers at a time: a fourth's is for the next driver.
            "CATCHWATER_SPARK__SPARK_CORES_MAX": "3",
        }
        try:
            for worker in ("wa", "wb", "wc"):
                cluster.add(worker)
            made.driver("da").start()
            made.is_everywhere()
            yield made
        finally:
            for each in made.drivers:
                each.kill()


@pytest.mark.parametrize("operated", ["cards", "chain"], indirect=True)
def test_a_pipeline_outlives_its_machines_its_drivers_sleep_and_its_store(
    operated: Operated,
) -> None:
    operated.says("a worker is lost")
    operated.cluster.lose("wa")
    operated.is_everywhere()
    operated.says("the driver's machine is lost")
    operated.lose_the_drivers_machine("db")
    operated.says("a worker joins")
    operated.cluster.add("wd")
    operated.is_everywhere()
    operated.says("the driver sleeps longer than its lease")
    operated.cluster.add("we")  # one for the next driver
    operated.let_the_driver_sleep("dc")
    operated.says("the store is away")
    operated.take_the_store_away(AWAY_S)
    operated.says("8 shards become 16")
    operated.move(16)
    operated.ends()


def hosts_of(entry: EpochEntry) -> set[str]:
    return {each.host for each in entry.shards}
