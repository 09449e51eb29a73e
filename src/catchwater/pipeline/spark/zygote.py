"""A Python process with our imports made, from which Spark's Python processes are forked.

Spark starts Python afresh for its daemon of workers and for each streaming source, one after the
other, and each loads Arrow, Spark's Python and our compiled loops: seconds of a start, which this
process spends while the JVM is still starting. Spark gets a small script (`launcher`) as its
interpreter. Who starts it is `run.driver.zygote`.

It has one thread of Python's, as a process that forks must. It ends when the process that started
it does: its standard input ends then. A fork ends, with what it has started, when its launcher
does: to end a driver and all that it has started, one need not know of the forks.
"""

import gc
import importlib
import marshal
import os
import runpy
import select
import signal
import socket
import sys
from contextlib import suppress

_PRELOADED = (
    "catchwater.pipeline.shard_epoch",
    "catchwater.pipeline.spark.source",
    "catchwater.replay.read",
    "catchwater.sinks.log_stager",
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.worker",
)
"""What daemon, workers and source need."""


def serve(listener: socket.socket) -> None:
    """Fork what is asked for there until standard input ends; a fork returns, too."""
    # Only here: who starts a zygote is not to wait for the decoders' compiler.
    from catchwater.wire import arrow, kernels

    for module in _PRELOADED:
        importlib.import_module(module)
    if not kernels.are_cached():
        sys.stderr.write("compiling the record decoders: once on this machine, some seconds\n")
        sys.stderr.flush()
    arrow.warm()
    gc.freeze()  # no fork looks through what all of them share, and so none copies it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _fork_on_demand(listener)


def _fork_on_demand(listener: socket.socket) -> None:
    ended, on_end = os.pipe()
    os.set_blocking(on_end, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only to be woken
    signal.set_wakeup_fd(on_end)
    poll = select.poll()
    for descriptor in (0, listener.fileno(), ended):
        poll.register(descriptor, select.POLLIN)
    forks: dict[int, tuple[socket.socket, int]] = {}
    while 0 not in (ready := {descriptor for descriptor, _ in poll.poll()}):
        if ended in ready:
            os.read(ended, 64)
            for gone, code in _reap(forks):
                with suppress(KeyError):  # its launcher went first
                    poll.unregister(gone)
                with forks.pop(gone)[0] as waiting, suppress(OSError):
                    waiting.sendall(code.to_bytes(4, "big", signed=True))
        for gone in ready & forks.keys():
            poll.unregister(gone)
            _end(forks[gone][1])
        if listener.fileno() in ready:
            connection, _ = listener.accept()
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for other in (listener, *(each for each, _ in forks.values())):
                    other.close()
                os.close(ended)
                os.close(on_end)
                _become(connection)
                return
            poll.register(connection, 0)  # tells only of its end
            forks[connection.fileno()] = connection, pid


def _reap(forks: dict[int, tuple[socket.socket, int]]) -> list[tuple[int, int]]:
    """The connections of the forks that have ended, and each one's exit code, or less a signal."""
    ended = []
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0] != 0:
            code = os.waitstatus_to_exitcode(found[1])
            ended += [(each, code) for each, (_, fork) in forks.items() if fork == found[0]]
    return ended


def _end(pid: int) -> None:
    """A fork and its group; it may not lead one yet."""
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _become(connection: socket.socket) -> None:
    """In a fork: run the module that the launcher names, in its stead, and lead a group."""
    os.setpgid(0, 0)
    size, streams, _, _ = socket.recv_fds(connection, 4, 3)
    order = connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)
    module, arguments, environment = marshal.loads(order)
    connection.sendall(os.getpid().to_bytes(4, "big"))
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(environment)
    for folder in reversed(environment.get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    sys.argv = [module, *arguments]
    sys.modules.pop(module, None)  # it is run, not imported
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
