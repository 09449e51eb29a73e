"""A thread that sees to it that no call of a handler takes for ever.

Once a second it looks at what is being handled (`progress`). What has been handled for longer than
the function's `handler_timeout` is ended: by an exception raised inside it, which also ends sleeps
and waits; where that is swallowed, or the code is not Python's and does not look for signals, by
the end of the process. A loop in C that holds the interpreter's lock stops this thread, too: for
that a timer of faulthandler's runs beside, which needs no lock.

Costs the handlers nothing: it counts its own looks, and what is handled is known by its identity.
A process that was stopped for a while (SIGSTOP) is not taken for one that hangs: no looks, no time.
"""

import faulthandler
import math
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import IO, Any

from catchwater.pipeline.process.poison import HandlerTimeout, Progress, key_hash
from catchwater.pipeline.workers import FOLDER, stack_path

LOOK_S = 1.0
GRACE_LOOKS = 5
"""After this many looks the process of an interrupted handler is ended."""
HUNG = 124
"""The exit code of a process that is ended because a handler cannot be interrupted."""
_INTERRUPT = signal.SIGUSR2


@contextmanager
def watched(progress: Progress, function: str, timeout_ms: int) -> Iterator[None]:
    """Raises `HandlerTimeout` in a handler that takes longer meanwhile.

    Only the main thread of a process can be interrupted, as a worker's is; others are not watched.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    dog = _dog()
    dog.watch(progress, function, math.ceil(timeout_ms / 1000 / LOOK_S))
    try:
        yield
    finally:
        dog.let_go()


class _Dog:
    """The thread of one process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._work = threading.Event()
        self._armed = False
        self._progress: Progress | None = None
        self._function = ""
        self._looks = 0
        """How many looks may find the same handler at work before it is interrupted."""
        self._suspect: Any = None
        self._seen = 0
        self._main = threading.main_thread().ident or 0
        self._file = _stack_file()
        signal.signal(_INTERRUPT, self._interrupted)
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def watch(self, progress: Progress, function: str, looks: int) -> None:
        """From the main thread: look at this until the next call."""
        with self._lock:
            self._function, self._looks, self._progress = function, looks, progress
            if not self._armed:
                self._arm()
                self._work.set()

    def let_go(self) -> None:
        """From the main thread."""
        self._progress = None

    def _run(self) -> None:
        idle = threading.Event()
        while True:
            self._work.wait()
            idle.wait(LOOK_S)
            with self._lock:
                if self._progress is None:
                    self._disarm()
                else:
                    self._arm()
            self._look()

    def _arm(self) -> None:
        """Let the process end unless this is called again in time."""
        patience_s = (self._looks + GRACE_LOOKS) * LOOK_S
        faulthandler.dump_traceback_later(patience_s, exit=True, file=self._file)
        self._armed = True

    def _disarm(self) -> None:
        self._work.clear()
        faulthandler.cancel_dump_traceback_later()
        self._armed = False

    def _look(self) -> None:
        progress = self._progress
        context = progress.context if progress else None
        found = context.cause if context else None
        if found is None or found is not self._suspect:
            self._suspect, self._seen = found, 0
            return
        self._seen += 1
        if self._seen == self._looks:
            self._tell()
        if self._seen >= self._looks + GRACE_LOOKS:
            faulthandler.dump_traceback(file=self._file)
            os._exit(HUNG)
        if self._seen >= self._looks:
            with suppress(ProcessLookupError):
                signal.pthread_kill(self._main, _INTERRUPT)

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """In the main thread: end the handler, if it is still the one that takes too long."""
        context = self._progress.context if self._progress else None
        suspect = self._suspect
        if context and suspect is not None and context.cause is suspect:
            if self._seen >= self._looks:  # again each second, if it goes on all the same
                raise HandlerTimeout(
                    f"it had not ended after {self._looks * LOOK_S:g} s, its handler_timeout"
                )

    def _tell(self) -> None:
        """Where the handler is, for the log."""
        cause = self._progress.cause() if self._progress else None
        place = (
            f" of {cause.origin}, offset {cause.offset}, key {key_hash(cause.key)}" if cause else ""
        )
        sys.stderr.write(
            f"Function {self._function!r} takes more than {self._looks * LOOK_S:g} s for one "
            f"call{place}. It is here:\n"
        )
        sys.stderr.flush()
        faulthandler.dump_traceback(file=_standard_error())


def _stack_file() -> IO[str]:
    """Where the last stack of this process goes."""
    if folder := os.environ.get(FOLDER):
        with suppress(OSError):
            path = stack_path(Path(folder), os.getpid())
            path.parent.mkdir(exist_ok=True)
            return path.open("w")
    return _standard_error()


def _standard_error() -> IO[str]:
    """What faulthandler can write to: a test's stand-in has no descriptor."""
    return sys.__stderr__ or sys.stderr


_DOGS: dict[int, _Dog] = {}
"""By process id: threads do not live on in a fork."""


def _dog() -> _Dog:
    if os.getpid() not in _DOGS:
        _DOGS.clear()
        _DOGS[os.getpid()] = _Dog()
    return _DOGS[os.getpid()]
