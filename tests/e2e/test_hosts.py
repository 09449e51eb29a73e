"""Drivers on hosts of a network, cut off from all others or from their store alone."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
from tests.e2e.conftest import Cards, Place
from tests.e2e.test_one_url import Machine

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]

_TESTS = count(1)

AWAY_S = 60.0
ANSWER_S = 45.0
"""A status that waits tells nothing; Python's start is in it, on a busy machine."""


@dataclass
class Driver(Machine):
    """Of a pipeline without Spark, on a host."""

    def begin(self, pause_s: float) -> None:
        """Run it in its turn to the end of the input, with a pause behind each epoch."""
        file = self.write_file("available-now", epoch_events=100)
        command = [sys.executable, "-m", "tests.e2e.on_a_host", str(file), str(pause_s)]
        with (self.folder / "pipeline.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *command], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True,
                env={**os.environ, "CATCHWATER_CACHE": str(self.cache)},
            )  # fmt: skip
        self.session = self.process.pid


@pytest.fixture
def machines(place: Place, cards_there: Cards, tmp_path: Path) -> Iterator[Callable[[str], Driver]]:
    made: list[Driver] = []
    test = f"hosts-{next(_TESTS)}"

    def make(name: str) -> Driver:
        hosts = place.network.hosts
        host = hosts.get(name) or place.network.host(name)
        url = place.url.replace("?", f"/{test}?")
        driver = Driver(cards_there, tmp_path / name, test, url=url)
        driver.prefix = host.prefix
        driver.folder.mkdir()
        made.append(driver)
        return driver

    yield make
    for each in made:
        if each.process is not None:
            each.signal_all(signal.SIGKILL)
            each.wait()


def test_a_driver_that_is_cut_off_commits_nothing_when_it_is_connected_again(
    place: Place, machines: Callable[[str], Driver]
) -> None:
    here, there = machines("a"), machines("b")
    here.begin(1.0)
    here.wait_until(lambda: here.is_planned(1))
    there.begin(0.0)
    there.wait_until(lambda: "Standing by: process" in there.log)
    host = place.network.hosts["a"]
    host.cut_off()
    at = here.committed
    assert there.wait() == 0, there.log
    assert there.committed > at + 1
    assert there.rows == there.cards.expected
    host.connect()
    # It finds its place taken, unless it has given up on its brokers before.
    assert here.wait() in (1, 5), here.log
    assert here.committed <= at + 1
    assert there.rows == there.cards.expected


def test_a_store_that_is_cut_off_for_a_minute_costs_no_epoch(
    place: Place, machines: Callable[[str], Driver]
) -> None:
    here, there = machines("a"), machines("b")
    here.begin(1.0)
    here.wait_until(lambda: here.is_planned(2))
    there.write_file("available-now")
    status = ("pipeline", "status", "pipeline.toml", "--json")
    assert "process" in json.loads(there.run(*status).stdout)["elsewhere"]
    hosts = [place.network.hosts[name] for name in "ab"]
    for host in hosts:
        host.lose(place.store)
    began_s = time.monotonic()
    # Meanwhile both say what they know.
    answer = there.run(*status)
    assert time.monotonic() - began_s < ANSWER_S
    told = json.loads(answer.stdout)
    assert told["state"] == "unknown" and told["committed_epoch"] >= 0
    assert "cannot be read now" in answer.stderr
    assert json.loads(here.run(*status).stdout)["committed_epoch"] >= 0
    time.sleep(max(0.0, AWAY_S - (time.monotonic() - began_s)))
    for host in hosts:
        host.find(place.store)

    # It goes on, or has ended for its supervisor to start it again.
    code = here.wait()
    while code:
        here.begin(0.0)
        code = here.wait()
    assert here.rows == here.cards.expected
