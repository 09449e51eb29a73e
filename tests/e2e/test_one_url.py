"""A pipeline whose checkpoint is a URL: machines are lost with their disks, sleep and wake."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.e2e import in_session
from tests.e2e.conftest import COMMAND, EVENTS, Pipeline, processes

from catchwater.clock import SYSTEM
from catchwater.config import CatchwaterError
from catchwater.pipeline.run.backfill import backfill_of, begin, progress, resolve
from catchwater.pipeline.run.config import PipelineConfig, load
from catchwater.pipeline.spark.failure import PipelineFailed
from catchwater.recovery.checkpoint import last_commit
from catchwater.recovery.fenced import LeaseHeld
from catchwater.recovery.folder import lock
from catchwater.recovery.ledger import Ledger, folder_of

pytestmark = [pytest.mark.timeout(1800)]


class Lost(CatchwaterError):
    """The machine."""


@dataclass
class Machine(Pipeline):
    """The pipeline as one machine runs it: what it keeps lies in `folder`, but for the URL."""

    url: str = ""

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def checkpoint(self) -> Path:
        return folder_of(self.url, self.cache)

    def write_file(self, trigger: str, **changes: object) -> Path:
        path = super().write_file(trigger, **changes)
        lines = f'checkpoint = "{self.url}"\nlease = "3s"\nspare = true'
        path.write_text(path.read_text().replace('checkpoint = "checkpoint"', lines))
        return path

    def start(self, trigger: str = "continuous", **changes: object) -> None:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("CATCHWATER_CACHE", str(self.cache))
            super().start(trigger, **changes)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "CATCHWATER_CACHE": str(self.cache)}
        return subprocess.run(
            [*self.prefix, COMMAND, *command], env=environment, cwd=self.folder,
            capture_output=True, text=True, timeout=300,
        )  # fmt: skip

    def signal_all(self, number: signal.Signals) -> None:
        for pid in processes(self.session):
            os.kill(pid, number)


@pytest.fixture
def url(s3_url: str) -> str:
    return s3_url.replace("?", "/cards?")


def test_machines_that_are_lost_one_after_the_other_write_each_row_once(
    cards: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_lost(*_: object) -> None:
        raise Lost("The machine is lost.")

    for number in range(100):
        machine = Machine(cards, tmp_path / f"{number}", "lost", url=url)
        machine.folder.mkdir()
        monkeypatch.setenv("CATCHWATER_CACHE", str(machine.cache))
        file = machine.write_file("available-now")
        here = in_session.Pipeline(None, machine.folder, file)
        with monkeypatch.context() as patch:
            if number % 2:  # the sinks have the epoch, and the ledger has not
                patch.setattr(Ledger, "write", _after(2, is_lost, Ledger.write))
            else:  # the ledger has it, and Spark does not know
                here.between = _after(2, is_lost, lambda epoch: None)
            try:
                with lock(machine.checkpoint):
                    here.run()
            except (Lost, PipelineFailed) as error:
                assert "The machine is lost." in str(error)
            else:
                break
    assert number > 4, "there were too few epochs to be lost in"
    assert machine.rows == cards.expected


def _after(calls: int, then: Callable[..., None], first: Callable[..., None]) -> Any:
    """Something else after so many calls."""
    left = iter(range(calls))

    def call(*arguments: Any) -> None:
        return (then if next(left, None) is None else first)(*arguments)

    return call


@pytest.mark.slow
def test_a_backfill_of_a_pipeline_at_a_url_goes_on_on_another_machine(
    cards: Any, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CATCHWATER_SINK__ALERTS__TOPIC", "filled-again")

    def machine(name: str) -> tuple[in_session.Pipeline, PipelineConfig]:
        made = Machine(cards, tmp_path / name, "filled", url=url.replace("/cards", "/filled"))
        made.folder.mkdir()
        monkeypatch.setenv("CATCHWATER_CACHE", str(made.cache))
        file = made.write_file("available-now")
        here = in_session.Pipeline(None, made.folder, file, label="again")
        return here, backfill_of(load(file, os.environ), "again")

    here, config = machine("a")
    begin(config, resolve(config, "earliest", "latest", SYSTEM))
    with lock(config.checkpoint):
        here.run(until=lambda: last_commit(config.checkpoint) >= 3)
    there, config = machine("b")
    done, records = progress(config.checkpoint)
    assert 0 < done < records == EVENTS
    with lock(config.checkpoint):
        there.run()
    assert progress(config.checkpoint) == (EVENTS, EVENTS)
    assert {each.epoch for each in here.epochs}.isdisjoint(each.epoch for each in there.epochs)
    assert cards.rows("filled-again") == cards.expected


@pytest.fixture
def machines(cards: Any, url: str, tmp_path: Path) -> Iterator[list[Machine]]:
    made = [Machine(cards, tmp_path / each, "one-url", url=url) for each in "abc"]
    for each in made:
        each.folder.mkdir()
    yield made
    for each in made:
        if each.process is not None:
            each.signal_all(signal.SIGKILL)
            each.wait()


@pytest.mark.spark
@pytest.mark.slow
def test_a_pipeline_goes_on_from_its_url_wherever_it_is_started(machines: list[Machine]) -> None:
    here, there, elsewhere = machines
    # Slowly, that there is something left to do when another machine is ready.
    here.start("1s", epoch_events=100)
    here.wait_until(lambda: here.is_planned(1))
    there.start("available-now")

    # While its driver lives, nothing else works on the checkpoint.
    elsewhere.write_file("available-now")
    with (
        pytest.raises(LeaseHeld, match=f"in use by process {here.session} on"),
        lock(elsewhere.checkpoint),
    ):
        pass
    told = elsewhere.run("pipeline", "status", "pipeline.toml").stdout
    assert f"process {here.session} on" in " ".join(told.split())
    assert here.process is not None and here.process.poll() is None

    # It is silent for longer than its lease, and another machine, which has nothing of its disks,
    # goes on. Then it wakes.
    there.wait_until(lambda: "Standing by: process" in there.log)
    at = here.committed
    here.signal_all(signal.SIGSTOP)
    assert there.wait() == 0, there.log
    assert there.committed > at
    assert there.rows == there.cards.expected
    here.signal_all(signal.SIGCONT)
    assert here.wait() == 5, here.log
    assert "has taken over the checkpoint" in here.log
    assert there.rows == there.cards.expected

    # A machine that has never run it reads all there is to know.
    status = elsewhere.run("pipeline", "status", "pipeline.toml", "--json")
    told = json.loads(status.stdout)
    assert told["checkpoint"] == elsewhere.url
    assert told["problems"] == [], status.stderr
    assert elsewhere.run("contract", "show", "pipeline.toml").returncode == 0
    saved = elsewhere.run("savepoint", "create", "pipeline.toml", "--name", "kept", "--yes")
    assert saved.returncode == 0, saved.stderr
    assert elsewhere.run("savepoint", "verify", "pipeline.toml", "kept").returncode == 0
