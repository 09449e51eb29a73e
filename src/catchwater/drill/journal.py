"""How a drill is undone, written down before anything is done.

One file a run in the folder of drills, a line for each fault, on the disk before the fault is. A
drill that ends undoes it and removes the file. A drill that is killed leaves the file: a *guard*, a
process of its own that waits for the drill to end, undoes it at once; if that was killed, too, the
next drill or `catchwater drill undo` does. The file of a drill that runs is locked, and nobody else
touches it.

Every process that a drill starts, and every one that these start, has the run's name in its
environment. That is how they are found, by us or by anybody: no list of pids can be incomplete.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.wire.client import Client

MARK = "CATCHWATER_DRILL"
"""The environment variable that names the run."""
OWNED = ".catchwater-drill"
"""The file in a run's folder that says whose it is; without, nothing is deleted."""
COMMAND_S = 120.0
ASK_S = 2.0
"""How long a broker may take to answer."""
_GONE_S = 30.0
_POLL_S = 0.02


class NotUndone(CatchwaterError):
    """A fault of a drill is still there."""


class Processes(msgspec.Struct, frozen=True, tag="processes"):
    """Kill all processes of this run."""

    run: str


class Folder(msgspec.Struct, frozen=True, tag="folder"):
    """Delete the folder of this run."""

    run: str
    path: str


class Command(msgspec.Struct, frozen=True, tag="command"):
    """Run a command that mends a platform, if no broker answers where one should."""

    words: list[str]
    bootstrap: str = ""
    """Empty: run it whatever answers."""


class Mended(msgspec.Struct, frozen=True, tag="mended"):
    """A command noted before this has been run, by the drill itself."""

    words: list[str]


class Move(msgspec.Struct, frozen=True, tag="move"):
    """Bring back what was moved out of reach, if it is not back yet."""

    away: str
    home: str


class Topic(msgspec.Struct, frozen=True, tag="topic"):
    """Delete a topic of this run's own."""

    bootstrap: str
    name: str


Undo = Processes | Folder | Command | Mended | Move | Topic

_DECODER = msgspec.json.Decoder(Undo)


def folder_of_drills() -> Path:
    """Where journals lie: CATCHWATER_DRILLS, or the user's folder for the state of programs."""
    chosen = os.environ.get("CATCHWATER_DRILLS")
    if chosen:
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "catchwater" / "drills"


class Journal:
    """The journal of one run; undone when the block is left."""

    def __init__(self, folder: Path, run: str) -> None:
        self.run = run
        self.path = folder / f"{run}.undo"
        folder.mkdir(parents=True, exist_ok=True)
        # Locked under a name that nobody looks at: it is never seen without its lock.
        fresh = folder / f".{run}.undo"
        self._file = fresh.open("ab")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        fresh.replace(self.path)
        self._guard = subprocess.Popen(
            [sys.executable, "-m", "catchwater.drill.journal", str(self.path)],
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def note(self, undo: Undo) -> None:
        """Write down how the fault is undone that comes now."""
        self._file.write(msgspec.json.encode(undo) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Undo everything. Raises `NotUndone`."""
        problems = undo_file(self.path)
        self._file.close()
        assert self._guard.stdin is not None
        self._guard.stdin.close()
        self._guard.wait()
        if problems:
            raise _left(self.path, problems)


def undo_left(folder: Path) -> list[str]:
    """Undo what drills have left that are gone; their runs. Raises `NotUndone`."""
    undone = []
    for path in sorted(folder.glob("*.undo")):
        if _is_held(path):
            continue
        problems = undo_file(path)
        if problems:
            raise _left(path, problems)
        undone.append(path.stem)
    return undone


def undo_file(path: Path) -> list[str]:
    """Undo what one journal says, the last first, and remove it; what could not be undone."""
    problems = []
    with suppress(FileNotFoundError):
        mended: list[list[str]] = []
        for undo in reversed(list(_read(path))):
            if isinstance(undo, Mended):
                mended.append(undo.words)
            if isinstance(undo, Command) and undo.words in mended:
                continue  # and to start a broker twice makes two
            try:
                _undo(undo)
            except (OSError, CatchwaterError, subprocess.SubprocessError) as problem:
                problems.append(str(problem))
        if not problems:
            path.unlink(missing_ok=True)
    return problems


def processes_of(run: str) -> list[int]:
    """The processes of a run that live."""
    mark = f"{MARK}={run}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


def answers(bootstrap: str, patience_s: float = ASK_S) -> bool:
    """Whether a broker does there."""
    try:
        with Client(bootstrap, timeout_s=patience_s) as client:
            client.metadata([])
    except CatchwaterError:
        return False
    return True


def _read(path: Path) -> Iterator[Undo]:
    for line in path.read_bytes().splitlines():
        with suppress(msgspec.DecodeError):  # cut short: its fault has not happened
            yield _DECODER.decode(line)


def _undo(undo: Undo, clock: Clock = SYSTEM) -> None:
    match undo:
        case Processes(run):
            _kill_all(run, clock)
        case Folder(run, path):
            owned = Path(path) / OWNED
            if owned.is_file() and owned.read_text() == run:
                shutil.rmtree(path)
        case Command(words, bootstrap):
            if bootstrap and answers(bootstrap):
                return  # the drill was killed before it could say that it has mended it
            subprocess.run(
                words, check=True, capture_output=True, timeout=COMMAND_S, stdin=subprocess.DEVNULL
            )
        case Topic(bootstrap, name):
            with Client(bootstrap, timeout_s=COMMAND_S) as client:
                client.delete_topics([name])
        case Move(away, home):
            _bring_back(Path(away), Path(home))


def _bring_back(away: Path, home: Path) -> None:
    """Whatever has been put in its place meanwhile is put aside."""
    if not away.exists():
        return
    if home.exists():
        home.replace(home.with_name(f"{home.name}.instead"))
    away.replace(home)


def _kill_all(run: str, clock: Clock) -> None:
    deadline_s = clock.monotonic_s() + _GONE_S
    while alive := [pid for pid in processes_of(run) if pid != os.getpid()]:
        for pid in alive:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if clock.monotonic_s() > deadline_s:
            raise NotUndone(f"The processes {alive} of drill {run} do not end.")
        clock.pause(_POLL_S)


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return True
    except BlockingIOError:
        return True
    return False


def _left(path: Path, problems: list[str]) -> NotUndone:
    return NotUndone(
        f"A fault of drill {path.stem} is still there: {'; '.join(problems)}",
        hint=f"catchwater drill undo tries again; {path} says what is to be undone.",
    )


def guard(path: Path) -> None:
    """Wait for the drill at the other end of standard input to end, then undo what it left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdin.buffer.read()
    undo_file(path)


if __name__ == "__main__":
    guard(Path(sys.argv[1]))
