"""What a drill breaks: a Kafka that can be started and killed, ours or another.

A drill asks for no more than this: an address, and that the process behind it ends at once and
begins again. Ours and Apache Kafka are started by the drill, on loopback, in a folder of its own,
and end with it. Any other is run by the commands of a file: the drill did not start it, so it says
what it would do unless it was allowed to do it (`permitted`).
"""

import json
import re
import shutil
import socket
import subprocess
import tomllib
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, nearest
from catchwater.drill.journal import answers
from catchwater.drill.processes import Child

READY_S = 180.0
"""Patience with a machine that others keep busy: a quiet one needs a few seconds."""
COMMAND_S = 120.0
"""How long a platform's own command may take."""
CLUSTER_ID = "Y2F0Y2h3YXRlci1kcmlsbA"
_PRODUCTION = re.compile(r"(?<![a-z])(prod|prd|production|live)(?![a-z])", re.IGNORECASE)


class NotPermitted(CatchwaterError):
    """The platform is not one that drills may break."""

    exit_code = 5


class BadPlatform(CatchwaterError):
    """A platform's file, or what the platform needs here, is not as it should be."""

    exit_code = 2


class CommandFailed(CatchwaterError):
    """A command that breaks or mends a platform failed."""


class Platform(Protocol):
    """A Kafka that can be broken."""

    name: str
    ours: bool
    """Whether it is a log of ours, with pins and with replay from storage."""
    started_here: bool
    """Whether the drill started it, and may do with it what it likes."""
    bootstrap: str

    def start(self) -> None:
        """Start it, again where it was before, and wait until it answers."""

    def kill(self) -> None:
        """End its broker at once, as a power cut would."""


class OwnLog:
    """One broker of ours, in a folder."""

    name = "catchwater"
    ours = started_here = True

    def __init__(
        self,
        folder: Path,
        children: ExitStack,
        clock: Clock = SYSTEM,
        *,
        settings: Mapping[str, str] | None = None,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self._children = children
        self._clock = clock
        self._settings = settings or {}
        self._marks = marks
        self.bootstrap = self._control = "127.0.0.1:0"
        self.process: Child | None = None

    @property
    def data(self) -> Path:
        """Where all that it keeps lies."""
        return self.folder / "data"

    def start(self) -> None:
        """On the ports it had before, or on free ones. Raises `ChildDied`, `ChildStuck`."""
        ready = self.folder / "broker.json"
        ready.unlink(missing_ok=True)
        path = self.folder / "broker.properties"
        lines = {
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "catchwater.control.listener": self._control,
            "catchwater.ready.file": str(ready),
            "log.dirs": str(self.data),
            "log.retention.ms": "-1",  # the events are older than any retention in days
            **self._settings,
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        child = Child(
            "broker", ["broker", "run", "--config", str(path)], self.folder / "broker.log",
            self._clock, marks=self._marks,
        )  # fmt: skip
        self.process = self._children.enter_context(child)
        child.wait_until(ready.exists, "opened its ports", READY_S)
        addresses = json.loads(ready.read_text())
        self.bootstrap = addresses["kafka"]
        self._control = addresses["control"].removeprefix("http://")

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()


class ApacheKafka:
    """One node of Apache Kafka, broker and controller in one, in a folder.

    `jars` is the folder of its Java archives, as `libs` of its distribution.
    """

    name = "apache-kafka"
    ours = False
    started_here = True

    def __init__(
        self,
        folder: Path,
        children: ExitStack,
        jars: Path,
        clock: Clock = SYSTEM,
        *,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        java = shutil.which("java")
        if java is None or not any(jars.glob("kafka*.jar")):
            raise BadPlatform(
                f"There is no Apache Kafka to start: {jars} holds no kafka*.jar, or java is not "
                "on the path.",
                hint="Name the folder libs of its distribution with --kafka-jars.",
            )
        self.folder = folder
        self._children = children
        self._clock = clock
        self._marks = marks
        self._program = [java, "-Xmx1g", "-cp", f"{jars.resolve()}/*"]
        self.bootstrap, self._controller = _free_address(), _free_address()
        self._process: Child | None = None

    def start(self) -> None:
        """Raises `ChildDied`, `ChildStuck`."""
        path = self.folder / "kafka.properties"
        listeners = f"PLAINTEXT://{self.bootstrap},CONTROLLER://{self._controller}"
        lines = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{self._controller}",
            "listeners": listeners,
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(self.folder / "kafka-logs"),
            "log.retention.ms": "-1",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        if not (self.folder / "kafka-logs" / "meta.properties").exists():
            with self._run(["format", "-t", CLUSTER_ID, "-c", str(path)], "StorageTool") as tool:
                tool.wait(READY_S)
        child = self._run([str(path)], None)
        self._process = self._children.enter_context(child)
        child.wait_until(self._answers, "opened its port", READY_S)

    def _run(self, arguments: Sequence[str], tool: str | None) -> Child:
        main = f"kafka.tools.{tool}" if tool else "kafka.Kafka"
        return Child(
            "Apache Kafka", [main, *arguments], self.folder / "broker.log", self._clock,
            program=self._program, marks=self._marks,
        )  # fmt: skip

    def _answers(self) -> bool:
        host, _, port = self.bootstrap.rpartition(":")
        try:
            socket.create_connection((host, int(port)), 0.5).close()
        except OSError:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL."""
        assert self._process is not None
        self._process.kill()


class ByCommands:
    """Any Kafka, broken and mended by the commands of a file."""

    ours = started_here = False

    def __init__(self, name: str, bootstrap: str, kill: Sequence[str], start: Sequence[str]):
        self.name = name
        self.bootstrap = bootstrap
        self.commands = {"kill": list(kill), "start": list(start)}

    def start(self) -> None:
        """Only if it does not answer. Raises `CommandFailed`."""
        if not answers(self.bootstrap):
            self._run("start")
            if not answers(self.bootstrap, READY_S):
                raise CommandFailed(f"{self.name} does not answer at {self.bootstrap}.")

    def kill(self) -> None:
        """Raises `CommandFailed`."""
        self._run("kill")

    def _run(self, what: str) -> None:
        command = self.commands[what]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMMAND_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as problem:
            told = f"The command {what} of {self.name} did not end well: {problem}."
            raise CommandFailed(told, hint=" ".join(command)) from problem
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-300:]
            raise CommandFailed(
                f"The command {what} of {self.name} ended with {done.returncode}: {said}",
                hint=" ".join(command),
            )


def read_platform(path: Path) -> ByCommands:
    """The platform of a TOML file. Raises `BadPlatform`."""
    try:
        told = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise BadPlatform(f"The platform's file {path} cannot be read: {problem}.") from problem
    known = {"name": str, "bootstrap": str, "kill": list, "start": list}
    for key, value in told.items():
        if key not in known:
            raise BadPlatform(
                f"{path}: there is no key {key!r}.", hint=f"The nearest is {nearest(key, known)}."
            )
        if not isinstance(value, known[key]) or not all(_is_text(part) for part in value):
            wanted = "a list of words" if known[key] is list else "a text"
            raise BadPlatform(f"{path}: {key} must be {wanted}.")
    missing = [key for key in known if not told.get(key)]
    if missing:
        raise BadPlatform(
            f"{path}: {missing[0]} is missing.",
            hint='name, bootstrap, kill and start, such as kill = ["ssh", "kafka-2", "…"].',
        )
    return ByCommands(**told)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def permitted(
    platform: Platform, allowed: Collection[str], really: str | None, *, dry_run: bool
) -> bool:
    """Whether to break it for real; False: only say what would be done.

    What the drill starts may be broken. Another has to be in the list of those allowed, and one
    whose name says production has to be named once more. Raises `NotPermitted`.
    """
    if platform.started_here:
        return not dry_run
    names = f"{platform.name} {platform.bootstrap}"
    if _PRODUCTION.search(names) and really != platform.name:
        raise NotPermitted(
            f"{platform.name} at {platform.bootstrap} has the name of a production platform.",
            hint=f"If it is meant: --yes-really {platform.name}",
        )
    return not dry_run and bool({platform.name, platform.bootstrap} & set(allowed))


def _free_address() -> str:
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"
