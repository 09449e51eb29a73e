"""Ports of loopback for servers that are told theirs before they listen, or listen again and again.

A port that the system gives out (port 0) is given out again while the server that had it starts or
starts anew: to any client that connects. These lie below the ports that clients are given, and
each is locked until the process ends that asked for it, so that two test processes have none in
common.

And connections to a port that say nothing, held by processes of their own.
"""

import contextlib
import fcntl
import os
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

_FIRST, _LAST = 20_000, 31_999
"""Linux gives clients ports from 32,768 on."""
_held: list[int] = []
"""The locks' descriptors."""


def free_port() -> int:
    """A port that nobody has, and that no other process is told by this function."""
    folder = Path(tempfile.gettempdir()) / f"catchwater-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    draw = random.SystemRandom()
    while True:
        port = draw.randint(_FIRST, _LAST)
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT, 0o600)
        if _locked(lock) and _is_free(port):
            _held.append(lock)
            return port
        os.close(lock)


def _locked(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers bind it
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


_MUTE = """
import socket, sys
port, count = int(sys.argv[1]), int(sys.argv[2])
held = []
for _ in range(count):
    try:
        held.append(socket.create_connection(("127.0.0.1", port), 5, ("127.0.0.2", 0)))
    except OSError:
        pass
print("connected", flush=True)
sys.stdin.read()
"""
_A_PROCESS = 200


@contextlib.contextmanager
def mute_connections(port: int, count: int) -> Iterator[None]:
    """So many connections that say nothing and stay, as far as they are let."""
    mutes = [
        subprocess.Popen(
            [sys.executable, "-c", _MUTE, str(port), str(min(_A_PROCESS, count - at))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for at in range(0, count, _A_PROCESS)
    ]
    try:
        for mute in mutes:
            assert mute.stdout is not None
            assert mute.stdout.readline() == b"connected\n"
        yield
    finally:
        for mute in mutes:
            mute.kill()
            mute.communicate()
