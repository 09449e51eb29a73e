"""What many tests share: a real broker process, an S3 server, a PostgreSQL server."""

import contextlib
import functools
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as drawing
from tests.forked import Forked, Forking
from tests.ports import free_port
from tests.postgres import PostgresMissing, PostgresServer
from tests.s3 import CREDENTIALS, make_bucket, moto

from catchwater.config import is_secret

# A machine that is slow, or stands still for a second, is no finding.
drawing.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
drawing.load_profile("any machine")

MEMORY = Path("/dev/shm")
"""A file system in memory, where the system has one."""
_AMPLE_BYTES = 8 * 2**30


def pytest_configure(config: pytest.Config) -> None:
    """Let the short form write to memory where there is plenty; the long forms have the disk.

    A sync takes milliseconds there, which is a fifth of the time of all tests.
    """
    if config.option.markexpr != "not slow" or not MEMORY.is_dir():
        return
    has = os.statvfs(MEMORY)
    if has.f_bavail * has.f_frsize >= _AMPLE_BYTES and not has.f_flag & os.ST_NOEXEC:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY))


COMMAND = str(Path(sys.executable).with_name("catchwater"))
COMMAND_ITSELF = ("env",)
"""A wrapper that does nothing, for brokers whose start or command line is what is tested."""
START_S = 180.0
STOP_S = 120.0
"""Either takes a second or two; not on a machine that others keep busy."""


def until(
    reached: Callable[[], object], patience_s: float = 60.0, said: Callable[[], object] = str
) -> None:
    """Wait until it is so; fails with what is `said` by then when that takes too long."""
    deadline = time.monotonic() + patience_s
    while not reached():
        assert time.monotonic() < deadline, said()
        time.sleep(0.01)


@pytest.fixture(scope="session", autouse=True)
def _commands_leave_no_trail(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What tests type is no part of this user's audit trail."""
    os.environ["CATCHWATER_AUDIT_DIR"] = str(tmp_path_factory.mktemp("commands") / "audit")


@functools.cache
def forking() -> Forking:
    """What the brokers of this process are forked from."""
    return Forking()


@pytest.fixture(scope="session", autouse=True)
def _forking_ends() -> Iterator[None]:
    yield
    if forking.cache_info().currsize:
        forking().close()


class BrokerProcess:
    """One broker on loopback. Its ports are its own, through all restarts."""

    def __init__(self, home: Path, settings: dict[str, str]) -> None:
        self.home = home
        self.data_dir = home / "data"
        self.ready_file = home / "ready.json"
        self.stderr_file = home / "broker.log"
        self.settings = {
            "listeners": f"PLAINTEXT://127.0.0.1:{free_port()}",
            "catchwater.control.listener": f"127.0.0.1:{free_port()}",
            "log.dirs": str(self.data_dir),
            "catchwater.ready.file": str(self.ready_file),
        } | settings
        self.bootstrap = ""
        self.control_url = ""
        self.process: subprocess.Popen[bytes] | Forked | None = None

    def start(self, *wrapper: str) -> None:
        """Start it, under another command (strace) if one is given, and wait until it is ready.

        Without one it is forked (`tests.forked`).
        """
        self.spawn(*wrapper)
        self.await_ready()

    def await_ready(self) -> None:
        """Wait until a spawned broker is ready."""
        until(lambda: self.ready_file.exists() or not self.is_running, START_S, self.log)
        assert self.ready_file.exists(), f"The broker did not start:\n{self.log()}"
        self._learn_addresses()

    def spawn(self, *wrapper: str) -> None:
        """Start it and do not wait."""
        self.ready_file.unlink(missing_ok=True)
        secrets = {key for key, value in self.settings.items() if is_secret(key, value)}
        arguments = [f"{key}={value}" for key, value in self.settings.items() if key not in secrets]
        names = {key: f"CATCHWATER_BROKER__{key.upper().replace('.', '_')}" for key in secrets}
        environment = os.environ | {name: self.settings[key] for key, name in names.items()}
        with self.stderr_file.open("ab") as stderr:
            if not wrapper:
                command = ["broker", "run", *arguments]
                self.process = forking().spawn(command, stderr.fileno(), environment)
                return
            self.process = subprocess.Popen(
                [*wrapper, COMMAND, "broker", "run", *arguments],
                stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr, start_new_session=True,
                env=environment,
            )  # fmt: skip

    def _learn_addresses(self) -> None:
        ready = json.loads(self.ready_file.read_text())
        self.bootstrap = ready["kafka"]
        self.control_url = ready["control"]
        self.settings["listeners"] = f"PLAINTEXT://{self.bootstrap}"
        self.settings["catchwater.control.listener"] = self.control_url.removeprefix("http://")

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """kill -9, the wrapper included."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and wait until it has drained and closed."""
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _end(self, number: signal.Signals) -> None:
        if self.process is None:
            return
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        self.process.wait(STOP_S)
        self.process = None

    def log(self) -> str:
        """What it has written to stderr, over all starts."""
        return self.stderr_file.read_text() if self.stderr_file.exists() else ""


@pytest.fixture(scope="session")
def make_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[..., BrokerProcess]]:
    """`make_broker({"num.partitions": "4"})`: a started broker, ended with its test module.

    Those with `lasting=True` are ended with the session.
    """
    made: list[BrokerProcess] = []

    def make(
        settings: dict[str, str] | None = None, *, start: bool = True, lasting: bool = False
    ) -> BrokerProcess:
        broker = BrokerProcess(tmp_path_factory.mktemp("broker"), settings or {})
        (made if lasting else _MADE).append(broker)
        if start:
            broker.start()
        return broker

    yield make
    for broker in made:
        broker.kill()


_MADE: list[BrokerProcess] = []


@pytest.fixture(scope="module", autouse=True)
def _brokers_end_with_their_module(request: pytest.FixtureRequest) -> Iterator[None]:
    """Forty that nobody talks to take time and memory from who is tested, and 16 MB each at least.

    What they wrote is left where a test has failed.
    """
    failed_before = request.session.testsfailed
    yield
    while _MADE:
        broker = _MADE.pop()
        broker.kill()
        if request.session.testsfailed == failed_before:
            shutil.rmtree(broker.home, ignore_errors=True)


@pytest.fixture(scope="module")
def broker(make_broker: Callable[..., BrokerProcess]) -> Iterator[BrokerProcess]:
    """A started broker of the test module's own."""
    process = make_broker()
    yield process
    process.kill()


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    """The endpoint of an S3 server, whose credentials stand in the environment."""
    with pytest.MonkeyPatch.context() as environment:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            environment.delenv(name)
        for name, value in CREDENTIALS.items():
            environment.setenv(name, value)
        with moto() as endpoint:
            yield endpoint


_BUCKETS = itertools.count(1)


@pytest.fixture
def s3_url(s3_server: str) -> str:
    """The URL of a fresh bucket, for `open_store` and `catchwater.objects`."""
    return make_bucket(s3_server, f"bucket-{next(_BUCKETS)}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A private PostgreSQL server; tests that need one are skipped where it is not installed."""
    try:
        server = PostgresServer()
    except PostgresMissing as reason:
        pytest.skip(str(reason))
    yield server
    server.close()


@pytest.fixture
def postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of a fresh database, for `catchwater.catalog`."""
    url = postgres_server.new_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def apache_kafka() -> Iterator[str]:
    """The bootstrap servers of a real Apache Kafka; skipped where there is no Java or Maven."""
    from benchmarks.kafka_jars import MavenMissing
    from benchmarks.kafka_peer import apache_kafka as started

    with contextlib.ExitStack() as stack:
        try:
            bootstrap, _ = stack.enter_context(started())
        except (MavenMissing, FileNotFoundError) as reason:
            pytest.skip(str(reason))
        yield bootstrap
