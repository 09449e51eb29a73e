"""What Spark takes for Python: has the prepared process (`zygote`) fork instead of starting one.

Passes on what it was given (module, arguments, environment, standard streams) and waits for the
end. Where nobody answers, it becomes the real interpreter. Run by path, alone and without
site-packages, so that it takes milliseconds: it imports nothing of ours.
"""

import marshal
import os
import signal
import socket
import sys
from contextlib import suppress
from types import FrameType

_END = {signal.SIGTERM}


def main(address: str, python: str, *arguments: str) -> None:
    """Have the zygote at this address run the module in a fork, and wait until that has ended."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _END)  # until it can be passed on
    connection = socket.socket(socket.AF_UNIX)
    try:
        if arguments[:1] != ("-m",):
            raise ConnectionError("the zygote runs modules only")
        connection.connect(address)
        order = marshal.dumps((arguments[1], arguments[2:], dict(os.environ)))
        socket.send_fds(connection, [len(order).to_bytes(4, "big")], [0, 1, 2])
        connection.sendall(order)
        pid = int.from_bytes(connection.recv(4, socket.MSG_WAITALL), "big")
        if pid == 0:
            raise ConnectionError("the zygote has died")
    except OSError:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _END)
        os.execv(python, [python, *arguments])

    def pass_on(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):  # Spark asks where it has just seen the fork go
            os.kill(pid, number)

    signal.signal(signal.SIGTERM, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _END)
    ended = connection.recv(4, socket.MSG_WAITALL)  # when the fork has
    code = int.from_bytes(ended, "big", signed=True)
    if code not in (0, -signal.SIGTERM):  # Spark asks with SIGTERM
        note_end(arguments[1], pid, code)
        sys.exit(code if code > 0 else 128 - code)


def note_end(module: str, pid: int, code: int) -> None:
    """Leave word for the driver, as `workers.ProcessEnd` has it."""
    import json
    import time

    what = "Spark's Python daemon" if "daemon" in module else "The source's Python"
    folder = os.environ.get("CATCHWATER_RUN_FOLDER")
    if not folder or not os.path.isdir(folder):
        return
    at_ms = time.time_ns() // 1_000_000
    note = json.dumps({"pid": pid, "at_ms": at_ms, "code": code, "what": what})
    os.makedirs(f"{folder}/ends", exist_ok=True)
    with open(f"{folder}/ends/{pid}.new", "w") as file:
        file.write(note)
    os.replace(f"{folder}/ends/{pid}.new", f"{folder}/ends/{pid}.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
