"""`catchwater pipeline run` as a user runs it: killed, started again, stopped, replaced."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.e2e.conftest import COMMAND, processes

from catchwater.pipeline.run.driver import zygote
from catchwater.pipeline.supervise import Supervision, read_supervision
from catchwater.recovery.folder import SUPERVISOR, holder

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

PATIENCE_S = 400.0


class Supervised:
    """One supervisor over a pipeline of `make_pipeline`."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, *options: str, settings: str = "", **changes: object) -> None:
        path = self.pipeline.write_file("continuous", **changes)
        text = path.read_text().replace("[pipeline]\n", f"[pipeline]\n{settings}\n")
        path.write_text(text)
        with (self.pipeline.folder / "pipeline.log").open("ab") as log:
            self.process = subprocess.Popen(
                [COMMAND, "pipeline", "run", str(path), "--quick", *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def supervision(self) -> Supervision:
        told = read_supervision(self.pipeline.checkpoint)
        assert told is not None
        return told

    @property
    def driver(self) -> int:
        driver = self.supervision.driver
        assert driver is not None
        return driver

    def wait_until(self, condition: Callable[[], bool]) -> None:
        assert self.process is not None
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert self.process.poll() is None, self.pipeline.log[-3000:]
            assert time.monotonic() < deadline, self.pipeline.log[-3000:]
            time.sleep(0.005)

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)


@pytest.fixture
def supervise(make_pipeline: Callable[[str], Any]) -> Iterator[Callable[[str], Supervised]]:
    made: list[Supervised] = []

    def make(name: str) -> Supervised:
        made.append(Supervised(make_pipeline(name)))
        return made[-1]

    yield make
    for each in made:
        if each.process is not None:
            each.process.kill()
            each.process.wait()


def test_a_killed_driver_is_started_again_and_each_row_is_written_once(
    supervise: Callable[[str], Supervised],
) -> None:
    run = supervise("watched")
    run.start("--available-now", epoch_events=1500)  # eight: it must not end before it is killed
    run.wait_until(lambda: run.pipeline.is_planned(2))
    killed = run.driver
    os.kill(killed, signal.SIGKILL)
    run.wait_until(lambda: run.supervision.driver not in (killed, None))
    assert not processes(killed), "the next driver does not wait for the JVM of the one before"

    # Another supervisor is refused while this one is there, and says whose it is.
    second = subprocess.run(
        [COMMAND, "pipeline", "run", str(run.pipeline.folder / "pipeline.toml")],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert second.returncode == 1
    assert f"in use by process {holder(run.pipeline.checkpoint, SUPERVISOR)}" in second.stderr

    assert run.wait() == 0, run.pipeline.log
    assert run.pipeline.rows == run.pipeline.cards.expected
    status = subprocess.run(
        [COMMAND, "pipeline", "status", str(run.pipeline.folder / "pipeline.toml"), "--json"],
        capture_output=True, check=True, timeout=300,
    )  # fmt: skip
    told = json.loads(status.stdout)["supervisor"]
    assert (told["state"], told["restarts"]) == ("ended", 1)
    assert told["last_cause"] == "The driver was ended by SIGKILL (signal 9)."
    assert holder(run.pipeline.checkpoint) is None


@pytest.mark.slow
def test_a_warm_spare_takes_over_and_stop_ends_both(
    supervise: Callable[[str], Supervised],
) -> None:
    run = supervise("spared")
    # Of 40 events there are epochs left when the spare is ready, however quick the machine.
    run.start(settings="spare = true", epoch_events=40)
    run.wait_until(lambda: run.pipeline.committed >= 2 and "Standing by." in run.pipeline.log)
    killed, spare = run.driver, run.supervision.spare
    assert spare is not None
    before = run.pipeline.committed
    os.kill(killed, signal.SIGKILL)
    run.wait_until(lambda: run.supervision.driver == spare)
    run.wait_until(lambda: run.pipeline.committed > before + 1)
    run.wait_until(lambda: run.supervision.spare not in (None, spare))
    both = [run.driver, run.supervision.spare]
    stop = subprocess.run(
        [COMMAND, "pipeline", "stop", str(run.pipeline.folder / "pipeline.toml"), "--yes"],
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert stop.returncode == 0, stop.stderr
    assert "has ended" in stop.stderr
    assert run.wait() == 0, run.pipeline.log
    assert not any(processes(each) for each in both if each)
    assert run.pipeline.rows <= run.pipeline.cards.expected
    assert run.pipeline.run_to_end() == 0, run.pipeline.log
    assert run.pipeline.rows == run.pipeline.cards.expected


@pytest.mark.slow
def test_a_killed_supervisor_takes_everything_with_it(
    supervise: Callable[[str], Supervised],
) -> None:
    run = supervise("orphaned")
    run.start(epoch_events=100)
    run.wait_until(lambda: run.pipeline.committed >= 1)
    driver = run.driver
    assert run.process is not None
    run.process.kill()
    deadline = time.monotonic() + PATIENCE_S
    while processes(driver):
        assert time.monotonic() < deadline, processes(driver)
        time.sleep(0.05)
    assert run.pipeline.run_to_end() == 0, run.pipeline.log
    assert run.pipeline.rows == run.pipeline.cards.expected


@pytest.mark.slow
def test_a_source_that_is_starved_for_more_than_ten_seconds_costs_another_query(
    make_pipeline: Callable[[str], Any],
) -> None:
    pipeline = make_pipeline("starved")
    asked, python = pipeline.folder / "asked", pipeline.folder / "python"
    path = pipeline.write_file("available-now")
    with zygote([str(pipeline.folder)]) as forked:
        python.write_text(
            f"""#!/bin/sh
case "$*" in *streaming_source_runner*)
  echo once more >> {asked}; [ "$(wc -l < {asked})" -gt 1 ] || sleep 15;;
esac
exec {forked} "$@"
"""
        )
        python.chmod(0o755)
        run = [COMMAND, "pipeline", "run", str(path), "--quick", "--no-supervise"]
        ended = subprocess.run(
            [*run, "--python", str(python)], capture_output=True, text=True, timeout=PATIENCE_S
        )
    assert ended.returncode == 0, ended.stderr
    assert "the query starts again" in ended.stderr
    assert len(asked.read_text().splitlines()) >= 2
    assert pipeline.rows == pipeline.cards.expected


@pytest.mark.slow
def test_a_broken_checkpoint_file_costs_an_epoch_more_and_is_named(
    make_pipeline: Callable[[str], Any],
) -> None:
    pipeline = make_pipeline("damaged")
    assert pipeline.run_to_end() == 0, pipeline.log
    last = pipeline.committed
    for broken in (
        pipeline.checkpoint / "offsets" / str(last),
        pipeline.ledger.folder / "epochs" / f"{last}.json",
        pipeline.checkpoint / "commits" / str(last),
    ):
        broken.write_bytes(broken.read_bytes()[:-3])
        broken.with_name(f".{broken.name}.crc").unlink(missing_ok=True)
        assert pipeline.run_to_end() == 0, pipeline.log
        assert str(broken) in pipeline.log
        assert f"Going on from checkpoint {last - 1}, not {last}: 1 epochs run" in pipeline.log
        assert pipeline.committed == last
        assert pipeline.rows == pipeline.cards.expected


@pytest.mark.slow
def test_a_broken_object_of_the_state_is_found_by_the_next_driver(
    supervise: Callable[[str], Supervised],
) -> None:
    run = supervise("torn")
    assert run.pipeline.run_to_end() == 0, run.pipeline.log
    run.pipeline.lose_local_state()
    run.pipeline.delete_last_commit()  # an epoch runs again, from the state before it
    last = run.pipeline.committed
    shard = run.pipeline.ledger.read(last).shards[0]
    name = f"{shard.version:020}-{shard.token}.delta"
    [broken] = run.pipeline.ledger.folder.rglob(name)
    broken.write_bytes(broken.read_bytes()[:-3])
    run.start("--available-now")
    assert run.wait() == 0, run.pipeline.log
    assert broken.name in run.pipeline.log
    assert f"Going on from checkpoint {last - 1}, not {last}" in run.pipeline.log
    assert (run.supervision.restarts, run.pipeline.committed) == (1, last + 1)
    assert run.pipeline.rows == run.pipeline.cards.expected
