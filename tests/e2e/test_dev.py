"""`catchwater dev` as somebody works with it: events typed, code saved, Ctrl-C and `kill -9`."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.e2e.conftest import COMMAND
from tests.ports import free_port

from catchwater.cli.init import FILES

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]

PATIENCE_S = 300.0
MARK = "CATCHWATER_TEST_DEV"


class Dev:
    """One `catchwater dev`, and what it has said."""

    def __init__(self, project: Path) -> None:
        self.project = project
        self.function = project / "card_risk.py"
        self.said: list[str] = []
        self._token = f"{os.getpid()}-{time.monotonic_ns()}"
        self.process = subprocess.Popen(
            [COMMAND, "dev"], cwd=project, text=True, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env={**os.environ, MARK: self._token},
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))

    def send(self, number: int, amount: float) -> None:
        assert self.process.stdin is not None
        event = f'{{"card":"c1","id":"{number}","at":{1000 * number},"amount":{amount}}}'
        self.process.stdin.write(event + "\n")
        self.process.stdin.flush()

    def edit(self, old: str, new: str) -> None:
        text = self.function.read_text()
        assert old in text
        self.function.write_text(text.replace(old, new))

    def until_it_says(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while sum(text in line for line in self.said) < times:
            assert self.process.poll() is None and time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def close(self) -> None:
        """End it, if it has not ended, and its pipes."""
        self.process.kill()
        self.process.wait()
        self.until_nothing_is_left()  # each of them holds the other end of what is read
        self._reader.join(PATIENCE_S)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def left(self) -> list[str]:
        """The processes that it has started and that still live."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    marked = f"{MARK}={self._token}".encode() in (entry / "environ").read_bytes()
                    state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                    if marked and state not in "ZX":
                        found.append((entry / "cmdline").read_text().replace("\0", " "))
                except OSError:
                    continue
        return found

    def until_nothing_is_left(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not left


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Callable[[], Dev]]:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text.replace("9092", str(free_port())))
    started: list[Dev] = []

    def start() -> Dev:
        started.append(Dev(tmp_path))
        return started[-1]

    yield start
    for each in started:
        each.close()


def test_a_days_work_and_its_two_ends(dev: Callable[[], Dev]) -> None:
    work = dev()
    work.until_it_says("it runs, from the beginning")
    work.send(1, 0.5)
    work.send(2, 900)
    work.until_it_says('alerts    {"card":"c1","id":"2","rule":"small-then-large"}')
    # A change goes on with the state that was there, and prints are shown.
    work.edit(
        'yield Alert(e.card, e.id, "small', 'print("seen", e.id); yield Alert(e.card, e.id, "big'
    )
    work.until_it_says("card-risk changed: it goes on behind epoch")
    assert "with the state of 1 keys" in work.said[-1]
    work.send(3, 900)
    work.until_it_says('alerts    {"card":"c1","id":"3","rule":"big-then-large"}')
    work.until_it_says("print     seen 3")
    # What cannot run leaves what runs alone.
    work.edit("if e.amount < 1:", "if e.amount < 1")
    work.until_it_says("expected ':' (card_risk.py, line")
    work.until_it_says("the code from before goes on")
    work.send(4, 900)
    work.until_it_says('"id":"4","rule":"big-then-large"')
    # A function that fails waits for the change that mends it, and nothing is lost.
    work.edit("if e.amount < 1", "if e.amount < 1:")
    work.until_it_says("the code is as it was before")
    work.edit('print("seen"', '1 / 0; print("seen"')
    work.until_it_says("it goes on behind epoch", 2)
    work.send(5, 900)
    work.until_it_says("ZeroDivisionError: division by zero, in on_event, module card_risk line")
    work.until_it_says("waits for a change that mends it")
    work.edit("1 / 0; ", "")
    work.until_it_says('"id":"5","rule":"big-then-large"')
    # A second one is refused; the first is killed, and takes all it has started along.
    second = subprocess.run(
        [COMMAND, "dev"], cwd=work.project, capture_output=True, text=True, timeout=PATIENCE_S,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert second.returncode == 1 and "is in use by process" in second.stderr
    work.process.kill()
    work.until_nothing_is_left()
    # The next one goes on behind it, and ends with Ctrl-C.
    again = dev()
    again.until_it_says("it runs, behind epoch")
    again.send(6, 900)
    again.until_it_says('"id":"6","rule":"big-then-large"')
    rows = [line for line in work.said + again.said if line.startswith("alerts ")]
    assert len(rows) == len({*rows}) == 5
    again.process.send_signal(signal.SIGINT)
    assert again.process.wait(PATIENCE_S) == 0, again.said
    again.until_nothing_is_left()
