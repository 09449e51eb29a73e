"""What a Python process of Spark's was doing when it died, written down where others read it.

A process that is killed says nothing, and Spark says only that it is gone. So a worker notes what
it does in a file that outlives it, and the process that reaps it writes a `ProcessEnd`: the driver
names it in its error, and the next attempt at the same shard knows what not to try again.

The folder of both is named by an environment variable, and is the driver's. Where there is none (a
cluster, a test) nothing is noted.
"""

import io
import mmap
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.pipeline.process.poison import Cause

FOLDER = "CATCHWATER_RUN_FOLDER"
"""The environment variable."""
PRINTS = "prints"
"""A file in that folder, where somebody wants to read what functions print."""
_NOTE_BYTES = 4096
_SIZE_BYTES = 4
_ASKED_FOR = (0, -signal.SIGTERM, -signal.SIGHUP)
"""Ends of a process that Spark has asked for."""


def show_prints() -> None:
    """Let what this process prints from now on go to `PRINTS`, where that file is there."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return
    with suppress(OSError):  # without it prints go to Spark's log
        descriptor = os.open(Path(folder, PRINTS), os.O_WRONLY | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.close(descriptor)
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)


class Doing(msgspec.Struct, frozen=True):
    """A worker's work of the moment: a shard's epoch."""

    function: str
    stage: int
    shard: int
    epoch: int
    cause: Cause | None = None
    """What the handler is called for, where the pass is a careful one."""


class ProcessEnd(msgspec.Struct, frozen=True):
    """The end of a process: it died, or noted that it ended for a handler that did not return."""

    pid: int
    at_ms: int
    code: int
    """As `subprocess` has it: the exit code, or less than 0 for a signal. 0: it goes on."""
    what: str
    """What kind of process it was."""
    doing: Doing | None = None
    stack: str = ""
    """Of a worker that ended itself because it hung."""
    peak_bytes: int = 0
    """The most memory it had; 0: unknown."""
    out_of_memory: bool = False
    """Whether the kernel has ended a process for lack of memory meanwhile."""
    blame: str = ""
    """What became of `doing.cause`, where the process goes on."""

    @property
    def handlers(self) -> bool:
        """Whether the code that ran in it did that: nobody else ends a process in this way."""
        return self.doing is not None and self.code != -signal.SIGKILL

    @property
    def how(self) -> str:
        """How it ended."""
        if frames := _frames(self.stack):
            return (
                f"was ended because a handler did not end and could not be interrupted: {frames[0]}"
            )
        return ended(self.code)

    def __str__(self) -> str:
        used = f"; it had used {self.peak_bytes / 2**20:.0f} MiB" if self.peak_bytes else ""
        of = self.doing
        where = f" in function {of.function!r} (epoch {of.epoch}, shard {of.shard})" if of else ""
        at = f", at {of.cause.origin} offset {of.cause.offset}" if of and of.cause else ""
        return f"{self.what} (process {self.pid}) {self.how}{where}{at}{used}"


def ended(code: int) -> str:
    """How a process ended, as `subprocess` has its code."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was ended by {signal.Signals(-code).name} (signal {-code})"
    except ValueError:
        return f"was ended by signal {-code}"


def hint(found: ProcessEnd) -> str:
    """What to do next."""
    if found.code != -signal.SIGKILL:
        return "Correct the function, or what it calls: nothing else ends a process in this way."
    if found.out_of_memory:
        return (
            "The kernel ended a process for lack of memory meanwhile: give the machine or the "
            "container more, or lower tasks or maxOffsetsPerTrigger."
        )
    return (
        "Somebody ended it (kill -9), or a container did at its bound of memory: see "
        "`dmesg | grep -i oom` and lower tasks or maxOffsetsPerTrigger if that is so."
    )


class Notes:
    """What this process does, where others find it."""

    def __init__(self, folder: Path, clock: Clock = SYSTEM) -> None:
        self._folder = folder
        self._clock = clock
        path = note_path(folder, os.getpid())
        path.parent.mkdir(exist_ok=True)
        with path.open("w+b") as file:
            file.truncate(_NOTE_BYTES)
            self._page = mmap.mmap(file.fileno(), _NOTE_BYTES)
        self.pid = os.getpid()

    def write(self, doing: Doing | None) -> None:
        """Note what it does from here on."""
        data = b"" if doing is None else msgspec.msgpack.encode(doing)
        if len(data) <= _NOTE_BYTES - _SIZE_BYTES:
            self._page[: len(data) + _SIZE_BYTES] = len(data).to_bytes(_SIZE_BYTES, "big") + data

    def blame(self, doing: Doing, text: str) -> None:
        """Let other attempts know that what it does ends badly."""
        found = ProcessEnd(
            os.getpid(), self._clock.now_ms(), 0, "A Python worker", doing, blame=text
        )
        write_end(self._folder, found, f"{os.getpid()}-{self._clock.token()}")

    def before(self, doing: Doing) -> list[ProcessEnd]:
        """What earlier attempts at this shard's epoch did to their processes."""
        return [
            each
            for each in read_ends(self._folder)
            if each.handlers
            and each.doing
            and msgspec.structs.replace(each.doing, cause=None) == doing
        ]


_NOTES: dict[int, Notes] = {}
"""By process id: a fork has none of its own yet."""


def notes() -> Notes | None:
    """This process's; None where there is no folder for them."""
    folder = os.environ.get(FOLDER)
    if not folder:
        return None
    if os.getpid() not in _NOTES:
        _NOTES.clear()
        with suppress(OSError):
            _NOTES[os.getpid()] = Notes(Path(folder))
    return _NOTES.get(os.getpid())


def note_path(folder: Path, pid: int) -> Path:
    """Where the process notes what it does."""
    return folder / "workers" / str(pid)


def stack_path(folder: Path, pid: int) -> Path:
    """Where a process that hangs leaves its stack."""
    return folder / "workers" / f"{pid}.stack"


def write_end(folder: Path, found: ProcessEnd, name: str) -> None:
    """Keep it; where that cannot be done, nobody will know."""
    with suppress(OSError):
        path = folder / "ends" / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(found))
        fresh.replace(path)


def read_ends(folder: Path) -> list[ProcessEnd]:
    """All there are, the latest last."""
    found = []
    try:
        names = os.listdir(f"{folder}/ends")  # mostly there is none, and every epoch asks
    except FileNotFoundError:
        return []
    for name in names:
        with suppress(OSError, msgspec.MsgspecError):
            if name.endswith(".json"):
                data = (folder / "ends" / name).read_bytes()
                found.append(msgspec.json.decode(data, type=ProcessEnd))
    return sorted(found, key=lambda each: each.at_ms)


def reap(clock: Clock = SYSTEM) -> None:
    """Wait for the children of this process that have ended, and write down what they did.

    For a signal's handler: it does not wait.
    """
    folder = os.environ.get(FOLDER)
    with suppress(ChildProcessError):
        while True:
            pid, status, used = os.wait4(-1, os.WNOHANG)
            if pid == 0:
                return
            if folder:
                code = os.waitstatus_to_exitcode(status)
                _note_end(Path(folder), pid, code, used.ru_maxrss * 1024, clock.now_ms())


def _note_end(folder: Path, pid: int, code: int, peak_bytes: int, at_ms: int) -> None:
    note, stack = note_path(folder, pid), stack_path(folder, pid)
    trace = stack.read_text(errors="replace") if stack.exists() else ""
    if code not in _ASKED_FOR:
        found = ProcessEnd(
            pid, at_ms, code, "A Python worker", _read_note(note), trace, peak_bytes,
            out_of_memory=code == -signal.SIGKILL and _memory_ran_out(),
        )  # fmt: skip
        write_end(folder, found, str(pid))
        sys.stderr.write(f"{found}.\n{trace}")
        sys.stderr.flush()
    for path in (note, stack):
        path.unlink(missing_ok=True)


def _read_note(path: Path) -> Doing | None:
    with suppress(OSError, msgspec.MsgspecError):
        data = path.read_bytes()
        size = int.from_bytes(data[:_SIZE_BYTES], "big")
        if size:
            return msgspec.msgpack.decode(data[_SIZE_BYTES : _SIZE_BYTES + size], type=Doing)
    return None


def _oom_kills() -> int:
    """How many processes the kernel has ended for lack of memory, where it says."""
    with suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


_OOM_KILLS = [_oom_kills()]


def _memory_ran_out() -> bool:
    before, now = _OOM_KILLS[0], _oom_kills()
    _OOM_KILLS[0] = now
    return now > before


def _frames(stack: str) -> Sequence[str]:
    """The lines of a stack of faulthandler's, of the thread that handles events, inmost first."""
    threads = stack.split("\n\n")
    main = next((each for each in threads if "shard_epoch.py" in each), "")
    return [line.strip() for line in main.splitlines() if line.strip().startswith("File ")]
