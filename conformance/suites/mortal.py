"""A broker that a suite kills and starts again: on one port, over one folder, either of the two."""

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.kafka_peer import java, properties
from tests.ports import free_port

from conformance.suites.jvm import Late, until

START_S = 60.0
STOP_S = 20.0
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"


class Mortal:
    """Not running until it is started; killed, it may be started again."""

    def __init__(self, command: Sequence[str], port: int, log: Path) -> None:
        self.bootstrap = f"127.0.0.1:{port}"
        self._command, self._port, self._log = command, port, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Return as soon as it takes connections. Raises `Late`."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        until(self._listens, "the start of the broker", START_S)

    def _listens(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise Late(f"a broker ended while starting: {self._log.read_text().splitlines()[-3:]}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self._port), 0.5):
            return True
        return False

    def kill(self) -> None:
        """At once (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """Ask it to end (SIGTERM), kill it if it does not."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self.kill()


@contextlib.contextmanager
def mortal(against: str, folder: Path) -> Iterator[Mortal]:
    """One of `targets.TARGETS`, started; its data and its log are in the folder."""
    port = free_port()
    command = _kafka(folder, port) if against == "kafka" else _catchwater(folder, port)
    broker = Mortal(command, port, folder / "broker.log")
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()


def _catchwater(folder: Path, port: int) -> list[str]:
    lines = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "catchwater.control.listener": "127.0.0.1:0",
        "log.dirs": str(folder / "data"),
    }
    config = folder / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    executable = Path(sys.executable).with_name("catchwater")
    return [str(executable), "broker", "run", "--config", str(config)]


def _kafka(folder: Path, port: int) -> list[str]:
    config = folder / "server.properties"
    config.write_text(properties(folder, port, free_port(), False, False))
    formatting = java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(config))
    subprocess.run(formatting, check=True, capture_output=True)
    return java("kafka.Kafka", str(config))
