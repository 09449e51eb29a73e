"""Our own broker as a child process on loopback, for as long as a `with` lasts."""

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

START_S = 180.0
"""It takes a second or two; not on a machine that others keep busy."""


@dataclass(frozen=True)
class Broker:
    """A running broker: its two addresses, its process, its data."""

    bootstrap: str
    control: str
    pid: int
    data: Path


@contextlib.contextmanager
def catchwater_broker(command: Sequence[str | Path] = (), **settings: str) -> Iterator[Broker]:
    """Defaults, on free ports; settings are broker keys with `.` written as `_`.

    `command` is run in place of `catchwater`.
    """
    folder = Path(tempfile.mkdtemp(prefix="catchwater-bench-"))
    ready = folder / "ready.json"
    lines = {
        "listeners": "PLAINTEXT://127.0.0.1:0",
        "catchwater.control.listener": "127.0.0.1:0",
        "log.dirs": str(folder / "data"),
        "catchwater.ready.file": str(ready),
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    config = folder / "server.properties"
    config.touch(0o600)  # the URL of a catalog may hold a password
    config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    program = command or [Path(sys.executable).with_name("catchwater")]
    log = folder / "broker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*program, "broker", "run", "--config", config], stdout=output, stderr=output
        )
    try:
        deadline = time.monotonic() + START_S
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"The broker did not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.05)
        told = json.loads(ready.read_text())
        yield Broker(told["kafka"], told["control"], process.pid, folder / "data")
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        shutil.rmtree(folder, ignore_errors=True)
