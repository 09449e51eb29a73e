"""Every operator under every fault: outputs and final state are those of plain loops.

A twentieth of the events is late, a tenth comes twice. A life goes through what befalls state,
checkpoints and versions, one after the other. Kills end a process at a step of an epoch, or a Spark
driver, its workers or an executor under all operators at once. The long forms take every operator,
with Spark and without, and `KILLS` kills.
"""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.conformance.kv_server import key_value_server
from tests.e2e.conftest import PATIENCE_S, processes, python_workers
from tests.e2e.every_operator import CASES
from tests.e2e.every_sink import CASE, EverySink
from tests.e2e.life import Life, live, run_and_die
from tests.forked import FORKSERVER, preload

pytestmark = pytest.mark.timeout(3600)

KILLS = int(os.environ.get("KILLS", "4"))
"""Drivers killed in the long forms; `make e2e` takes twenty."""
SEED = int(os.environ.get("SEED", "1"))
FEW = 3
"""Kills of the short form."""
STEPS = 30
"""An epoch has some ten."""
ROOT = Path(__file__).parents[2]

preload(__name__, "catchwater.sinks.kinds.log")


def mostly_slow(*short: str) -> list[Any]:
    """All cases; only these in the short form."""
    return [case if case in short else pytest.param(case, marks=pytest.mark.slow) for case in CASES]


Make = Callable[..., Life]


@pytest.fixture(scope="module")
def log(make_broker: Callable[..., Any]) -> str:
    """A log that keeps everything; its address."""
    return str(make_broker({"log.retention.ms": "-1"}).bootstrap)


@pytest.fixture
def make(log: str, tmp_path: Path) -> Make:
    """`make("join")`: a pipeline that has not begun."""
    return lambda case, spark=None: Life(case, log, tmp_path / case, spark)


@pytest.mark.parametrize("case", mostly_slow("join", "chain"))
def test_a_life_without_spark(case: str, make: Make) -> None:
    live(make(case))


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_a_life_on_spark(case: str, make: Make, spark: Any) -> None:
    live(make(case, spark))


def check_killed(life: Life, kills: int) -> None:
    """Kill so many processes of the pipeline, wherever they are; then let it come to its end."""
    draw = random.Random(f"{life.folder.name} {SEED}")
    life.write(epoch_events=8)
    life.feed(1)
    for _ in range(kills):
        step, after = draw.randrange(1, STEPS), draw.random() < 0.5
        child = FORKSERVER.Process(
            target=run_and_die, args=(life.folder, step), kwargs={"after": after}
        )
        child.start()
        child.join(PATIENCE_S)
        assert child.exitcode == -signal.SIGKILL, f"step {step}, after {after}"
        if draw.random() < 0.3:
            life.wipe()
        if draw.random() < 0.3:
            life.lose_commit()
    life.write(epoch_events=100)
    life.run()
    life.check_whole()


@pytest.mark.parametrize("case", mostly_slow("session"))
def test_killed_at_any_step_of_an_epoch(case: str, make: Make) -> None:
    check_killed(make(case), FEW)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_killed_again_and_again(case: str, make: Make) -> None:
    check_killed(make(case), max(KILLS, 20))


@dataclass
class Together:
    """The pipelines of all operators in one driver; one of them writes into every sink."""

    lives: list[Life]
    sinks: EverySink
    process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    @property
    def folder(self) -> Path:
        return self.lives[0].folder.parent

    @property
    def log(self) -> str:
        return (self.folder / "driver.log").read_text()[-3000:]

    @property
    def epochs(self) -> int:
        """In the ledgers of all."""
        return sum(life.done for life in self.lives)

    def start(self, *options: str) -> None:
        command = [sys.executable, "-m", "tests.e2e.all_at_once", *options]
        with (self.folder / "driver.log").open("ab") as log:
            self.process = subprocess.Popen(
                [*command, *(str(life.folder) for life in self.lives)],
                cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def go_on(self, epochs: int) -> None:
        """Wait until all together have done so many more."""
        assert self.process is not None
        until, deadline = self.epochs + epochs, time.monotonic() + PATIENCE_S
        while self.epochs < until:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.005)

    def kill(self) -> None:
        """kill -9 of the driver; its JVM and its workers go by themselves."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()
        deadline = time.monotonic() + PATIENCE_S
        while alive := processes(self.process.pid):
            assert time.monotonic() < deadline, alive
            time.sleep(0.02)

    def executors(self) -> list[int]:
        """The JVMs that run tasks."""
        assert self.process is not None
        found = []
        for pid in processes(self.process.pid):
            with suppress(OSError):
                if b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def end(self) -> None:
        """Wait until all have consumed their input, and hold each to its models."""
        assert self.process is not None
        assert self.process.wait(3 * PATIENCE_S) == 0, self.log
        for life in self.lives:
            life.check_whole()
        self.sinks.check()
        print(f"at least once: {self.sinks.doubled} rows twice")
        self.sinks.verify_and_mend()


@pytest.fixture
def together(make: Make, postgres_url: str) -> Iterator[Together]:
    lives = {case: make(case) for case in CASES}
    for life in lives.values():
        life.write(epoch_events=8)
        life.feed(1)
    with key_value_server() as store:
        made = Together([*lives.values()], EverySink(lives[CASE], postgres_url, store))
        yield made
        if made.process is not None and made.process.poll() is None:
            made.kill()


@pytest.mark.spark
@pytest.mark.slow
def test_a_driver_of_all_operators_is_killed_again_and_again(together: Together) -> None:
    draw = random.Random(SEED)
    for kill in range(KILLS):
        together.start()
        # As many epochs as there are operators, or fewer: each is somewhere in one of its own.
        together.go_on(draw.randrange(1, len(CASES) + 1))
        time.sleep(draw.uniform(0, 0.3))
        together.kill()
        for life in together.lives:
            if kill % 4 == 1:
                life.wipe()
            if kill % 4 == 2:
                life.lose_commit()
    for life in together.lives:
        life.write(epoch_events=40)
    together.start()
    killed = 0
    for _ in range(3):
        together.go_on(2)
        assert together.process is not None
        for worker in python_workers(together.process.pid)[:2]:
            with suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)
                killed += 1
    assert killed > 0
    together.end()


@pytest.mark.spark
@pytest.mark.slow
def test_an_executor_is_lost_under_all_operators(together: Together) -> None:
    for life in together.lives:
        life.write(epoch_events=40)
    together.start("--cluster")
    together.go_on(2 * len(CASES))
    os.kill(together.executors()[0], signal.SIGKILL)
    together.end()
