"""Ports of loopback for servers that are told theirs before they listen, or listen again and again.

A port that the system gives out (port 0) is given out again while the server that had it starts or
starts anew: to any client that connects. These lie below the ports that clients are given, and
each is locked until the process ends that asked for it, so that two test processes have none in
common.
"""

import fcntl
import os
import random
import socket
import tempfile
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
