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
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, nearest
from catchwater.drill.journal import answers
from catchwater.drill.processes import Child
from catchwater.wire.client import Client

READY_S = 180.0
"""Patience with a machine that others keep busy: a quiet one needs a few seconds."""
COMMAND_S = 120.0
"""How long a platform's own command may take."""
ASK_S = 2.0
"""How long a broker may take to say which brokers there are."""
ZONES = ("a", "b", "c")
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

    @property
    def bootstrap(self) -> str:
        """Where clients find it: HOST:PORT, or several by commas."""

    @property
    def processes(self) -> Sequence[Child]:
        """Those of its brokers, and of what these need, that the drill has started."""

    def start(self) -> None:
        """Start what does not run of it, again where it was before, and wait until it answers."""

    def kill(self) -> None:
        """End its broker at once, as a power cut would; of several, the first."""


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

    @property
    def page_url(self) -> str:
        """The address of its page, once it was started."""
        return f"http://{self._control}/"

    @property
    def processes(self) -> list[Child]:
        """The broker's."""
        return [self.process] if self.process else []

    @property
    def runs(self) -> bool:
        """Whether its broker was started and has not ended."""
        return self.process is not None and self.process.running

    def start(self) -> None:
        """On the ports it had before, or on free ones. Raises `ChildDied`, `ChildStuck`."""
        if not self.runs:
            self.spawn()
        self.await_ready()

    @property
    def _ready(self) -> Path:
        return self.folder / "broker.json"

    def spawn(self) -> None:
        """Start it without waiting."""
        self._ready.unlink(missing_ok=True)
        path = self.folder / "broker.properties"
        lines = {
            "listeners": f"PLAINTEXT://{self.bootstrap}",
            "catchwater.control.listener": self._control,
            "catchwater.ready.file": str(self._ready),
            "log.dirs": str(self.data),
            "log.retention.ms": "-1",  # the events are older than any retention in days
            **self._settings,
        }
        path.touch(0o600)  # a setting may hold a secret
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        child = Child(
            "broker", ["broker", "run", "--config", str(path)], self.folder / "broker.log",
            self._clock, marks=self._marks,
        )  # fmt: skip
        self.process = self._children.enter_context(child)

    def await_ready(self) -> None:
        """Wait until it answers. Raises `ChildDied`, `ChildStuck`."""
        assert self.process is not None
        self.process.wait_until(self._ready.exists, "opened its ports", READY_S)
        addresses = json.loads(self._ready.read_text())
        self.bootstrap = addresses["kafka"]
        self._control = addresses["control"].removeprefix("http://")

    def kill(self) -> None:
        """SIGKILL."""
        assert self.process is not None
        self.process.kill()


class ApacheKafka:
    """Nodes of Apache Kafka, each a broker and a controller in one and a zone of its own.

    `jars` is the folder of its Java archives, as `libs` of its distribution. Of several nodes each
    has every partition, and two of them acknowledge.
    """

    ours = False
    started_here = True

    def __init__(
        self,
        folder: Path,
        children: ExitStack,
        jars: Path,
        clock: Clock = SYSTEM,
        *,
        nodes: int = 1,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        java = shutil.which("java")
        if java is None or not any(jars.glob("kafka*.jar")):
            raise BadPlatform(
                f"There is no Apache Kafka to start: {jars} holds no kafka*.jar, or java is not "
                "on the path.",
                hint="Name the folder libs of its distribution with --kafka-jars.",
            )
        self.name = "apache-kafka" if nodes == 1 else f"apache-kafka-{nodes}"
        self.folder = folder
        self._children = children
        self._clock = clock
        self._marks = marks
        heap = "-Xmx1g" if nodes == 1 else "-Xmx512m"
        self._program = [java, heap, "-cp", f"{jars.resolve()}/*"]
        self._addresses = [free_address() for _ in range(nodes)]
        self._controllers = [free_address() for _ in range(nodes)]
        self.bootstrap = ",".join(self._addresses)
        self._nodes: dict[int, Child] = {}

    @property
    def processes(self) -> list[Child]:
        """Of its nodes."""
        return list(self._nodes.values())

    def start(self) -> None:
        """Raises `ChildDied`, `ChildStuck`."""
        away = [
            number for number in range(len(self._addresses))
            if number not in self._nodes or not self._nodes[number].running
        ]  # fmt: skip
        for number in away:
            self._spawn(number)
        for number in away:
            listens = partial(_listens, self._addresses[number])
            self._nodes[number].wait_until(listens, "opened its port", READY_S)
        self._nodes[0].wait_until(self._all_there, "found the other nodes", READY_S)

    def _spawn(self, number: int) -> None:
        home = self.folder / f"node-{number}"
        home.mkdir(exist_ok=True)
        path = home / "kafka.properties"
        address, controller = self._addresses[number], self._controllers[number]
        copies = str(len(self._addresses))
        acknowledging = str(min(2, len(self._addresses)))
        voters = ",".join(f"{each}@{at}" for each, at in enumerate(self._controllers, start=1))
        lines = {
            "process.roles": "broker,controller",
            "node.id": str(number + 1),
            "broker.rack": ZONES[number],
            "controller.quorum.voters": voters,
            "listeners": f"PLAINTEXT://{address},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{address}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": str(home / "kafka-logs"),
            "log.retention.ms": "-1",
            "default.replication.factor": copies,
            "min.insync.replicas": acknowledging,
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": copies,
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": acknowledging,
            "group.initial.rebalance.delay.ms": "0",
        }
        path.write_text("".join(f"{key}={value}\n" for key, value in lines.items()))
        if not (home / "kafka-logs" / "meta.properties").exists():
            command = ["format", "-t", CLUSTER_ID, "-c", str(path)]
            with self._run(number, command, "StorageTool") as tool:
                tool.wait(READY_S)
        self._nodes[number] = self._children.enter_context(self._run(number, [str(path)], None))

    def _run(self, number: int, arguments: Sequence[str], tool: str | None) -> Child:
        main = f"kafka.tools.{tool}" if tool else "kafka.Kafka"
        log = self.folder / ("broker.log" if number == 0 else f"broker-{number + 1}.log")
        return Child(
            "Apache Kafka", [main, *arguments], log, self._clock,
            program=self._program, marks=self._marks,
        )  # fmt: skip

    def _all_there(self) -> bool:
        return len(brokers_of(self.bootstrap)) == len(self._addresses)

    def kill(self) -> None:
        """SIGKILL to the first node."""
        self._nodes[0].kill()


class ByCommands:
    """Any Kafka, broken and mended by the commands of a file."""

    ours = started_here = False
    processes: Sequence[Child] = ()

    def __init__(self, name: str, bootstrap: str, kill: Sequence[str], start: Sequence[str]):
        self.name = name
        self.bootstrap = bootstrap
        self.commands = {"kill": list(kill), "start": list(start)}
        self._killed = False

    def start(self) -> None:
        """If it was killed, or does not answer. Raises `CommandFailed`."""
        if self._killed or not answers(self.bootstrap):
            self._run("start")
            if not answers(self.bootstrap, READY_S):
                raise CommandFailed(f"{self.name} does not answer at {self.bootstrap}.")
        self._killed = False

    def kill(self) -> None:
        """Raises `CommandFailed`."""
        self._killed = True
        self._run("kill")

    def _run(self, what: str) -> None:
        command = self.commands[what]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMMAND_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, subprocess.TimeoutExpired) as problem:
            message = f"The command {what} of {self.name} did not end well: {problem}."
            raise CommandFailed(message, hint=" ".join(command)) from problem
        if done.returncode:
            said = (done.stderr or done.stdout).strip()[-300:]
            raise CommandFailed(
                f"The command {what} of {self.name} ended with {done.returncode}: {said}",
                hint=" ".join(command),
            )


def read_platform(path: Path) -> ByCommands:
    """The platform of a TOML file. Raises `BadPlatform`."""
    try:
        settings = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as problem:
        raise BadPlatform(f"The platform's file {path} cannot be read: {problem}.") from problem
    known = {"name": str, "bootstrap": str, "kill": list, "start": list}
    for key, value in settings.items():
        if key not in known:
            raise BadPlatform(
                f"{path}: there is no key {key!r}.", hint=f"The nearest is {nearest(key, known)}."
            )
        if not isinstance(value, known[key]) or not all(_is_text(part) for part in value):
            wanted = "a list of words" if known[key] is list else "a text"
            raise BadPlatform(f"{path}: {key} must be {wanted}.")
    missing = [key for key in known if not settings.get(key)]
    if missing:
        raise BadPlatform(
            f"{path}: {missing[0]} is missing.",
            hint='name, bootstrap, kill and start, such as kill = ["ssh", "kafka-2", "…"].',
        )
    return ByCommands(**settings)


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


def brokers_of(bootstrap: str) -> Collection[int]:
    """The brokers that are there, by the word of one of them; none where nobody answers."""
    try:
        with Client(bootstrap, timeout_s=ASK_S) as client:
            return client.metadata([]).brokers.keys()
    except CatchwaterError:
        return ()


def free_address() -> str:
    """One on loopback that nobody listens at."""
    with closing(socket.socket()) as listener:
        listener.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{listener.getsockname()[1]}"


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 0.5).close()
    except OSError:
        return False
    return True
