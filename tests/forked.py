"""Processes that are forked from one which has imported what they need.

A start of `catchwater broker run` is a second of imports, and the tests make hundreds: `Forking`
has a process of this file for them. A fork of it is like a process of the command: it has a
session, standard streams, an environment, a folder and arguments of its own, and no other open
file. `Forked` is what `Popen` is.

What tests run of their own code in children is forked by `FORKSERVER`, before there are threads.
"""

import contextlib
import gc
import json
import multiprocessing
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

FORKSERVER = multiprocessing.get_context("forkserver")
_PRELOADED: list[str] = []

_REQUEST_BYTES = 2**17
_MOST_FILES = 4096


def preload(*modules: str) -> None:
    """Let children of `FORKSERVER` find these imported, beside those of other tests.

    There is one such server for a whole run: what is said once it has begun comes too late.
    """
    _PRELOADED.extend(modules)
    FORKSERVER.set_forkserver_preload(_PRELOADED)


class Forked:
    """A process that is no child of ours, with its end to wait for."""

    def __init__(self, pid: int, ended: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._ended = ended

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code, as `Popen` gives it. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._ended)
            if not waiting.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(f"the forked process {self.pid}", timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(int(os.read(self._ended, 16)))
            os.close(self._ended)
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: signal.Signals) -> None:
        """Nothing happens where it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Forking:
    """The process that others are forked from. It ends with the one that has made it."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._one_at_a_time = threading.Lock()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True,
            )  # fmt: skip

    def spawn(
        self, arguments: Sequence[str], output: int, environment: Mapping[str, str]
    ) -> Forked:
        """`catchwater` with these arguments, in this folder; what it says goes to `output`."""
        ended, tells = os.pipe()
        asked = json.dumps([arguments, dict(environment), os.getcwd()]).encode()
        assert len(asked) < _REQUEST_BYTES
        try:
            with self._one_at_a_time:
                socket.send_fds(self._channel, [asked], [output, tells])
                pid = int(self._channel.recv(16))
        finally:
            os.close(tells)
        return Forked(pid, ended)

    def close(self) -> None:
        self._channel.close()
        self._process.wait()


def _forks(channel: socket.socket) -> Iterator[tuple[list[str], dict[str, str], str, int]]:
    """In each fork what was asked for, once; at the end of the requests nothing."""
    with selectors.DefaultSelector() as selector:
        selector.register(channel, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is None:
                    asked, files, *_ = socket.recv_fds(channel, _REQUEST_BYTES, 2)
                    if not asked:
                        return
                    output, tells = files
                    pid = os.fork()
                    if pid == 0:
                        selector.close()
                        channel.close()
                        yield *json.loads(asked), output
                        return
                    os.close(output)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, tells))
                    channel.send(str(pid).encode())
                else:
                    pid, tells = key.data
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    with contextlib.suppress(BrokenPipeError):
                        os.write(tells, str(os.waitpid(pid, 0)[1]).encode())
                    os.close(tells)


def _become(environment: Mapping[str, str], folder: str, output: int) -> None:
    """What a process of its own has."""
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    with open(os.devnull, "rb") as nothing:
        for standard, file in enumerate((nothing.fileno(), output, output)):
            os.dup2(file, standard)
    os.closerange(3, _MOST_FILES)


def main() -> int:
    """Serve the channel; in a fork, be the command."""
    # What a command imports at its start, and not when it is about to do something.
    from catchwater.broker import main as broker
    from catchwater.cli import main as command
    from catchwater.web import pages

    assert broker and pages
    gc.freeze()
    for arguments, environment, folder, output in _forks(socket.socket(fileno=int(sys.argv[1]))):
        _become(environment, folder, output)
        sys.argv = [str(Path(sys.executable).with_name("catchwater")), *arguments]
        return command()
    return 0


if __name__ == "__main__":
    sys.exit(main())
