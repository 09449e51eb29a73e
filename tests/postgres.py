"""A private PostgreSQL server for tests: a directory, a loopback port, an end by its process id.

PostgreSQL refuses to run as root; as root we run it as the user `postgres` (or `nobody`).
"""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import psycopg
from tests.ports import free_port

START_S = 180.0
"""Starting and ending take a second; not on a machine that others keep busy."""
_PASSWORD = "s3cret-of-the-tests"


class PostgresMissing(Exception):
    """There is no PostgreSQL on this machine, or nobody whom it would run as."""


class PostgresServer:
    """One server. `fsync=False` is quick and forgets on power loss, which no test causes."""

    def __init__(self, *, fsync: bool = False) -> None:
        self._programs = _programs()
        self._user = _user()
        self.home = Path(tempfile.mkdtemp(prefix="catchwater-pg-"))
        self._data = self.home / "data"
        self._fsync = fsync
        self._numbers = count(1)
        self.port = 0
        self.process: subprocess.Popen[bytes] | None = None
        with ExitStack() as undo:
            undo.callback(self.close)
            if self._user:
                shutil.chown(self.home, self._user)
            self._init()
            self.start()
            undo.pop_all()

    def start(self, port: int | None = None) -> None:
        """Start it, on the port it had before if there was one, and wait until it answers."""
        self.port = port or self.port or free_port()
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "shared_buffers": "64MB",
            "logging_collector": "off",
            "fsync": "on" if self._fsync else "off",
            "full_page_writes": "on" if self._fsync else "off",
        }
        options = [f"--{key}={value}" for key, value in settings.items()]
        command = [str(self._programs / "postgres"), "-D", str(self._data), "-p", str(self.port)]
        with (self.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._as_user([*command, *options]),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home,
                start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + START_S
        while True:
            try:
                with psycopg.connect(self._url("postgres"), connect_timeout=10):
                    return
            except psycopg.OperationalError as error:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    log_text = (self.home / "server.log").read_text()
                    raise AssertionError(f"PostgreSQL did not start:\n{log_text}") from error
                time.sleep(0.02)

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """End it: SIGINT is PostgreSQL's fast shutdown, SIGQUIT its immediate one (a crash)."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            self.process.wait(START_S)
        self.process = None

    def new_database(self) -> str:
        """The URL of a fresh, empty database."""
        name = f"test_{next(self._numbers)}"
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self._url(name)

    def drop_database(self, url: str) -> None:
        """End its connections and remove it."""
        with psycopg.connect(self._url("postgres"), autocommit=True) as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {url.rpartition('/')[2]} WITH (FORCE)")

    def close(self) -> None:
        """End it and remove its files."""
        self.stop()
        shutil.rmtree(self.home, ignore_errors=True)

    def _init(self) -> None:
        password_file = self.home / "password"
        password_file.write_text(_PASSWORD)
        if self._user:
            shutil.chown(password_file, self._user)
        options = [
            "--no-sync",
            "-U",
            "catchwater",
            "-E",
            "UTF8",
            "--locale=C",
            "--auth=scram-sha-256",
        ]
        command = [str(self._programs / "initdb"), "-D", str(self._data), *options]
        done = subprocess.run(
            self._as_user([*command, f"--pwfile={password_file}"]),
            capture_output=True, text=True, cwd=self.home, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr

    def _as_user(self, command: list[str]) -> list[str]:
        return (
            ["setpriv", f"--reuid={self._user}", "--init-groups", *command]
            if self._user
            else command
        )

    def _url(self, database: str) -> str:
        return f"postgresql://catchwater:{_PASSWORD}@127.0.0.1:{self.port}/{database}"


def _programs() -> Path:
    """The folder of `initdb` and `postgres`; Debian does not put it on the path."""
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("initdb")
    if on_path:
        folders.insert(0, Path(on_path).resolve().parent)
    for folder in folders:
        if (folder / "initdb").exists() and (folder / "postgres").exists():
            return folder
    raise PostgresMissing("PostgreSQL's initdb and postgres are not on this machine")


def _user() -> str | None:
    """Whom to run it as: ourselves, unless we are root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            pwd.getpwnam(name)
        except KeyError:
            continue
        if shutil.which("setpriv"):
            return name
    raise PostgresMissing("PostgreSQL does not run as root, and there is nobody else to be")
