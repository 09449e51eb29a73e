"""What Spark takes for Python runs modules in forks of a prepared process; no Spark here."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import until

from catchwater.pipeline import workers
from catchwater.pipeline.run.driver import zygote
from catchwater.pipeline.spark import launcher

TELLS = """
import os, sys
import pyarrow
print(sys.argv[1:], os.environ["GIVEN"], sys.stdin.read(), os.getppid(), flush=True)
print("to stderr", file=sys.stderr)
"""

FORKS = """
import os, signal
os.fork()
print(os.getpid(), flush=True)
signal.pause()
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("modules")
    (folder / "tells.py").write_text(TELLS)
    (folder / "fails.py").write_text("raise ValueError('as it must')")
    (folder / "forks.py").write_text(FORKS)
    told = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
    (folder / "tells_its_id.py").write_text(told)
    (folder / "waits.py").write_text("import signal; print('here', flush=True); signal.pause()")
    return folder


@pytest.fixture(scope="module")
def python() -> Iterator[str]:
    with zygote([]) as path:
        yield path


def run(python: str, modules: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [python, *arguments], input="hello", capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": str(modules), "GIVEN": "yes"},
    )  # fmt: skip


def started(python: str, modules: Path, module: str) -> "subprocess.Popen[bytes]":
    """A module that does not end by itself."""
    environment = {**os.environ, "PYTHONPATH": str(modules)}
    return subprocess.Popen([python, "-m", module], stdout=subprocess.PIPE, env=environment)


def test_a_fork_gets_arguments_environment_streams_and_path(python: str, modules: Path) -> None:
    first, second = (run(python, modules, "-m", "tells", "a", "b").stdout.split() for _ in "ab")
    assert first[:4] == ["['a',", "'b']", "yes", "hello"]
    assert first[4] == second[4] != str(os.getpid()), "both are children of the zygote"
    assert "to stderr" in run(python, modules, "-m", "tells").stderr


def test_threads_of_its_forks_share_their_memory(python: str, modules: Path) -> None:
    zygotes = int(run(python, modules, "-m", "tells").stdout.split()[-1])
    given = os.environ.get("MALLOC_ARENA_MAX", "1")
    environment = Path(f"/proc/{zygotes}/environ").read_text().split("\0")
    assert f"MALLOC_ARENA_MAX={given}" in environment


def test_a_terminals_ctrl_c_does_not_reach_it(python: str, modules: Path) -> None:
    zygotes = int(run(python, modules, "-m", "tells").stdout.split()[-1])
    assert os.getpgid(zygotes) != os.getpgid(0)


def test_what_fails_says_so(python: str, modules: Path) -> None:
    assert "ValueError: as it must" in run(python, modules, "-m", "fails").stderr


def test_what_is_ended_ends(python: str, modules: Path) -> None:
    with started(python, modules, "waits") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert process.stdout.read() == b"", "nobody holds the stream any more"


def test_a_fork_and_its_children_end_with_a_launcher_that_is_killed(
    python: str, modules: Path
) -> None:
    with started(python, modules, "forks") as process:
        assert process.stdout is not None
        assert len({process.stdout.readline() for _ in range(2)}) == 2
        process.kill()
        assert process.stdout.read() == b"", "the stream ends with the last that holds it"


def test_others_go_on_when_one_ends(python: str, modules: Path) -> None:
    with started(python, modules, "waits") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        for _ in range(3):
            run(python, modules, "-m", "tells")
        assert process.poll() is None
        process.terminate()


def test_where_nobody_answers_it_is_python_itself(
    python: str, modules: Path, tmp_path: Path
) -> None:
    answer = run(python, modules, "-c", "import sys; print(sys.executable)")
    assert answer.stdout.strip() == sys.executable
    lost = tmp_path / "python"
    lost.write_text(Path(python).read_text().replace("/zygote", "/nowhere"))
    lost.chmod(0o700)
    answer = run(str(lost), modules, "-m", "tells", "a")
    assert answer.stdout.split()[:3] == ["['a']", "yes", "hello"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_fork_that_is_killed_is_told_by_its_launcher_unless_it_was_asked_to_end(
    python: str, modules: Path, tmp_path: Path, number: signal.Signals
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(modules), workers.FOLDER: str(tmp_path)}
    command = [python, "-m", "tells_its_id"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        fork = int(process.stdout.readline())
        os.kill(fork, number)
        code = process.wait(60)
    found = [(each.pid, each.code, each.what) for each in workers.read_ends(tmp_path)]
    if number == signal.SIGKILL:
        assert (found, code) == ([(fork, -9, "The source's Python")], 137)
    else:
        assert (found, code) == ([], 0)


def test_an_end_is_told_though_spark_asks_for_it_just_then(tmp_path: Path) -> None:
    """Spark sees the connection break, and may ask before the zygote has said how it ended."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    environment = {**os.environ, workers.FOLDER: str(tmp_path)}
    with socket.socket(socket.AF_UNIX) as zygotes:
        zygotes.bind(str(tmp_path / "socket"))
        zygotes.listen()
        command = [sys.executable, "-IS", launcher.__file__, str(tmp_path / "socket")]
        with subprocess.Popen([*command, sys.executable, "-m", "m"], env=environment) as process:
            connection, _ = zygotes.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(gone.pid.to_bytes(4, "big"))
                until(lambda: catches(process.pid, signal.SIGTERM))
                process.terminate()
                # What it waits for is not there yet, so the signal is what it gets to first.
                until(lambda: not is_pending(process.pid, signal.SIGTERM))
                connection.sendall((-9).to_bytes(4, "big", signed=True))
    assert [(each.pid, each.code) for each in workers.read_ends(tmp_path)] == [(gone.pid, -9)]


def catches(pid: int, number: signal.Signals) -> bool:
    return in_mask(pid, "SigCgt", number) and not in_mask(pid, "SigBlk", number)


def is_pending(pid: int, number: signal.Signals) -> bool:
    return in_mask(pid, "ShdPnd", number)


def in_mask(pid: int, name: str, number: signal.Signals) -> bool:
    """Whether a process's mask of this name has the signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = (line.split()[1] for line in lines if line.startswith(name))
    return bool(int(mask, 16) >> (number - 1) & 1)
