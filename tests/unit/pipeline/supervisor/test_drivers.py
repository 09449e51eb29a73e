"""Driver processes and what they leave behind: real processes, no Spark."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from catchwater.clock import SYSTEM
from catchwater.config import ConfigError
from catchwater.pipeline.run.driver import report
from catchwater.pipeline.supervise import DriverProcess, Failure

WAITS = """
import sys
from catchwater.clock import SYSTEM
from catchwater.pipeline.run.driver import Turn
turn = Turn()
while not turn.come:
    SYSTEM.pause(0.005)
print("my turn", flush=True)
sys.stdout.close()
{then}
"""
HAS_FAMILY = """
import os, subprocess, sys
child = "import os, time; os.setpgid(0, 0); print(os.getpid(), flush=True); time.sleep(99)"
family = [subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE) for _ in "ab"]
told = [member.stdout.readline().decode() for member in family]
open({path!r}, "w").write("".join(told))
os.rename({path!r}, {path!r} + ".done")
family[0].wait()
"""


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], DriverProcess]]:
    made: list[DriverProcess] = []

    def run(program: str) -> DriverProcess:
        made.append(DriverProcess([sys.executable, "-c", program], tmp_path))
        return made[-1]

    yield run
    for driver in made:
        with suppress(ProcessLookupError):
            driver.end()


def wait_for(driver: DriverProcess) -> Failure:
    while (failure := driver.ended()) is None:
        SYSTEM.pause(0.005)
    return failure


def test_a_driver_waits_for_its_turn(start: Callable[[str], DriverProcess]) -> None:
    driver = start(WAITS.format(then="sys.exit(7)"))
    assert driver.ended() is None
    driver.go()
    assert wait_for(driver) == Failure(7)


def test_what_it_left_word_of_is_its_failure(
    start: Callable[[str], DriverProcess], tmp_path: Path
) -> None:
    driver = start(
        "import sys; from pathlib import Path\n"
        "from catchwater.config import ConfigError\n"
        "from catchwater.pipeline.run.driver import report\n"
        f"report(Path({str(tmp_path)!r}), ConfigError('No such topic.', hint='Make it.'))\n"
        "sys.exit(2)"
    )
    assert wait_for(driver) == Failure(2, "No such topic.", "Make it.")


def test_word_of_an_earlier_driver_is_not_taken_for_this_ones(
    start: Callable[[str], DriverProcess], tmp_path: Path
) -> None:
    report(tmp_path, ConfigError("No such topic."))
    assert wait_for(start("import sys; sys.exit(1)")) == Failure(1)


def test_ending_a_driver_ends_all_that_it_started(
    start: Callable[[str], DriverProcess], tmp_path: Path
) -> None:
    path = str(tmp_path / "family")
    driver = start(HAS_FAMILY.format(path=path))
    while not os.path.exists(path + ".done"):
        SYSTEM.pause(0.005)
    driver.end()
    for pid in map(int, Path(path + ".done").read_text().split()):
        assert not _alive(pid)


def test_a_driver_dies_with_its_supervisor(tmp_path: Path) -> None:
    """The supervisor is killed; its driver sees the pipe end, though it never got its turn."""
    program = WAITS.format(then="")
    supervisor = (
        "import os, signal, sys; from pathlib import Path\n"
        "from catchwater.pipeline.supervise import DriverProcess\n"
        f"driver = DriverProcess([sys.executable, '-c', {program!r}], Path({str(tmp_path)!r}))\n"
        f"Path({str(tmp_path)!r}, 'driver').write_text(str(driver.pid))\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-c", supervisor]) == -9
    pid = int((tmp_path / "driver").read_text())
    while _alive(pid):
        SYSTEM.pause(0.01)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
