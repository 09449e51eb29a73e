"""A Java program of a suite: started, read while it runs, killed without warning.

Its stdout goes into a file of the suite's folder, which is read on as it grows; stderr lies beside.
"""

import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.kafka_jars import MavenMissing, jars

from conformance.programs import Missing

OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m", "-Xshare:auto"]
STOP_S = 30.0
PAUSE_S = 0.1

Event = dict[str, Any]


def libraries(name: str) -> Path:
    """The folder of a set of jars (`kafka_jars.SETS`). Raises `Missing` without Java or Maven."""
    if shutil.which("java") is None:
        raise Missing("java is not installed")
    try:
        return jars(name)
    except MavenMissing as reason:
        raise Missing("mvn is not installed") from reason


def compiled(source: Path, library: Path, classes: Path) -> Path:
    """The folder of the source's classes. Raises `Missing`, `CalledProcessError`."""
    if shutil.which("javac") is None:
        raise Missing("javac is not installed")
    classes.mkdir(parents=True, exist_ok=True)
    command = ["javac", "-cp", f"{library}/*", "-d", str(classes), str(source)]
    subprocess.run(command, check=True)
    return classes


def properties(path: Path, lines: Mapping[str, str]) -> str:
    """The path of a file with these lines, which is made."""
    path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
    return str(path)


class Jvm:
    """A program that is running or has ended; `name` names its files and is not used twice."""

    def __init__(self, name: str, class_path: str, arguments: Sequence[str], folder: Path) -> None:
        self.name = name
        self.errors = folder / f"{name}.err"
        self._told = folder / f"{name}.out"
        self._read_bytes = 0
        self._events: list[Event] = []
        with self._told.open("wb") as out, self.errors.open("wb") as err:
            self.process = subprocess.Popen(
                ["java", *OPTIONS, "-cp", class_path, *arguments],
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, cwd=folder,
            )  # fmt: skip

    def events(self, name: str | None = None) -> list[Event]:
        """What it told until now, of that name if one is given: lines that are JSON objects."""
        with self._told.open("rb") as file:
            file.seek(self._read_bytes)
            whole, newline, _ = file.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        self._events += [json.loads(line) for line in whole.splitlines() if line.startswith(b"{")]
        return [event for event in self._events if name in (None, event["name"])]

    def runs(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """At once (SIGKILL)."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> bool:
        """Ask it to end (SIGTERM), kill it if it does not; whether it ended by itself."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return False
        return True


class Jvms:
    """The programs of a case, which end with it."""

    def __init__(self, class_path: str, folder: Path) -> None:
        self._class_path, self._folder = class_path, folder
        self.running: list[Jvm] = []

    def start(self, name: str, *arguments: str) -> Jvm:
        """Options of the JVM's, the main class, the program's arguments."""
        jvm = Jvm(name, self._class_path, arguments, self._folder)
        self.running.append(jvm)
        return jvm


@contextlib.contextmanager
def jvms(class_path: str, folder: Path) -> Iterator[Jvms]:
    """Somewhere to start programs, none of which outlives the `with`."""
    started = Jvms(class_path, folder)
    try:
        yield started
    finally:
        for jvm in started.running:
            jvm.kill()


class Late(Exception):
    """Something that a suite waits for has not come; the message says what."""


def until(is_so: Callable[[], object], what: str, deadline_s: float) -> None:
    """Poll until it is so. Raises `Late`."""
    deadline = time.monotonic() + deadline_s
    while not is_so():
        if time.monotonic() > deadline:
            raise Late(f"{what} did not happen within {deadline_s:.0f} s")
        time.sleep(PAUSE_S)
