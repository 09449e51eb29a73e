"""Three brokers of ours, each in a zone of its own, over a PostgreSQL that the drill starts, too.

The catalog's server is private: a folder and a port of the drill's, a password that is drawn, and
an end with the drill. It runs as another user where the drill is root's, which PostgreSQL refuses.
Objects lie in a folder that all brokers see, as an object store is seen from all zones.
"""

import os
import pwd
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from catchwater.clock import SYSTEM, Clock
from catchwater.drill.platforms import READY_S, ZONES, BadPlatform, OwnLog, free_address
from catchwater.drill.processes import Child

_USERS = ("postgres", "nobody")


class OwnBrokers:
    """A broker of ours in each zone, over one catalog."""

    ours = started_here = True

    def __init__(
        self,
        folder: Path,
        children: ExitStack,
        clock: Clock = SYSTEM,
        *,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        self.name = f"catchwater-{len(ZONES)}"
        self._catalog = PrivatePostgres(folder / "catalog", children, clock, marks=marks)
        self._brokers = []
        for number, zone in enumerate(ZONES, start=1):
            settings = {
                "node.id": str(number),
                "broker.rack": zone,
                "catchwater.catalog": self._catalog.url,
                "catchwater.objects": f"file://{folder}/objects",
                "catchwater.wal": "object",
                "catchwater.wal.linger.ms": "10",
            }
            home = folder / f"broker-{number}"
            home.mkdir()
            self._brokers.append(OwnLog(home, children, clock, settings=settings, marks=marks))

    @property
    def bootstrap(self) -> str:
        """All of them."""
        return ",".join(each.bootstrap for each in self._brokers)

    @property
    def processes(self) -> list[Child]:
        """The brokers' and the catalog's."""
        brokers = [child for each in self._brokers for child in each.processes]
        return [*self._catalog.processes, *brokers]

    def start(self) -> None:
        """Those that do not run, all at once. Raises `ChildDied`, `ChildStuck`."""
        self._catalog.start()
        for each in self._brokers:
            if not each.runs:
                each.spawn()
        for each in self._brokers:
            each.await_ready()

    def kill(self) -> None:
        """SIGKILL to all there is in the first zone."""
        self._brokers[0].kill()


class PrivatePostgres:
    """A PostgreSQL server on loopback, in a folder."""

    def __init__(
        self,
        folder: Path,
        children: ExitStack,
        clock: Clock = SYSTEM,
        *,
        marks: Mapping[str, str] | None = None,
    ) -> None:
        """Raises `BadPlatform` where this machine has none."""
        self._programs, self._user = _programs(), _user()
        self._folder = folder
        self._children = children
        self._clock = clock
        self._marks = marks
        self._password = clock.token()
        self._address = free_address()
        self._process: Child | None = None

    @property
    def url(self) -> str:
        """Of its one database."""
        return f"postgresql://catchwater:{self._password}@{self._address}/postgres"

    @property
    def processes(self) -> list[Child]:
        """The server's."""
        return [self._process] if self._process else []

    def start(self) -> None:
        """Unless it runs. Raises `ChildDied`, `ChildStuck`."""
        if self._process is not None and self._process.running:
            return
        if not self._folder.exists():
            self._make()
        host, _, port = self._address.rpartition(":")
        settings = {
            "listen_addresses": host,
            "port": port,
            "unix_socket_directories": "",
            "max_connections": "100",
            "logging_collector": "off",
        }
        options = [f"--{key}={value}" for key, value in settings.items()]
        child = self._run("postgres", "-D", str(self._data), *options)
        self._process = self._children.enter_context(child)
        child.wait_until(self._answers, "answered", READY_S)

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _make(self) -> None:
        self._folder.mkdir()
        password = self._folder / "password"
        password.write_text(self._password)
        if self._user:
            # Another user has to come through the drill's folder, which nobody else may list.
            self._folder.parent.chmod(0o711)
            for path in (self._folder, password):
                shutil.chown(path, self._user)
        options = ["-U", "catchwater", "-E", "UTF8", "--locale=C", "--auth=scram-sha-256"]
        command = ["initdb", "-D", str(self._data), f"--pwfile={password}", "--no-sync", *options]
        with self._run(*command) as tool:
            tool.wait(READY_S)

    def _run(self, program: str, *arguments: str) -> Child:
        words = ["env", "-C", str(self._folder)]
        if self._user:
            words += ["setpriv", f"--reuid={self._user}", "--init-groups"]
        log = self._folder.parent / "catalog.log"
        return Child(
            "catalog's PostgreSQL", arguments, log, self._clock,
            program=[*words, str(self._programs / program)], marks=self._marks,
        )  # fmt: skip

    def _answers(self) -> bool:
        host, _, port = self._address.rpartition(":")
        asked = [str(self._programs / "pg_isready"), "-q", "-h", host, "-p", port]
        return subprocess.run(asked, check=False, timeout=READY_S).returncode == 0


def check_postgres() -> None:
    """Raises `BadPlatform` where brokers cannot be started in several zones here."""
    _programs()
    _user()


def has_postgres() -> bool:
    """Whether they can."""
    try:
        check_postgres()
    except BadPlatform:
        return False
    return True


def _programs() -> Path:
    """The folder of PostgreSQL's programs; Debian does not put it on the path."""
    on_path = shutil.which("initdb")
    folders: Sequence[Path] = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if on_path:
        folders = [Path(on_path).resolve().parent, *folders]
    for folder in folders:
        if all((folder / each).exists() for each in ("initdb", "postgres", "pg_isready")):
            return folder
    raise BadPlatform(
        "Brokers in several zones share a catalog in PostgreSQL, and this machine has none.",
        hint="Install PostgreSQL's server (initdb, postgres); nothing else of it is used.",
    )


def _user() -> str | None:
    """The user it runs as; None: our own, unless we are root."""
    if os.geteuid() != 0:
        return None
    there = {each.pw_name for each in pwd.getpwall()}
    found = next((each for each in _USERS if each in there), None)
    if found is None or shutil.which("setpriv") is None:
        raise BadPlatform(
            "PostgreSQL does not run as root, and there is nobody else to be.",
            hint="Run the drill as another user.",
        )
    return found
