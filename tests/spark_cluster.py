"""Clusters for Spark on this machine: its own, whose master and workers are hosts, and YARN.

The wheel `pyspark` has all of the first; YARN's servers come through Maven (`yarn`). A host
(`tests.hosts`) has a network and disks of its own; without one the daemons run on loopback.
A driver is a host, too, and anybody may look at its checkpoint, which is a URL.
"""

import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyspark
from benchmarks.kafka_jars import jars
from tests.conftest import until
from tests.e2e.conftest import COMMAND, PATIENCE_S, processes
from tests.hosts import Host, Network
from tests.ports import free_port

from catchwater.clock import SYSTEM
from catchwater.pipeline.spark.session import find_java
from catchwater.recovery.folder import refresh
from catchwater.recovery.ledger import Ledger

SPARK = Path(pyspark.__file__).parent
QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""A JVM of this kind is there sooner, with many of them on one machine."""
OF_EXECUTORS = {
    "CATCHWATER_SPARK__SPARK_EXECUTOR_MEMORY": "1g",
    "CATCHWATER_SPARK__SPARK_EXECUTOR_EXTRAJAVAOPTIONS": QUICK,
}
"""Of a driver: how its executors are started."""
_LOOK_S = 0.25
_READY_S = 90.0
START_S = 400.0
"""A daemon is there in five seconds; not on a machine that others keep busy."""


def started(
    folder: Path,
    name: str,
    *arguments: str,
    says: str,
    at: str = "127.0.0.1",
    prefix: Sequence[str] = (),
    **environment: str,
) -> tuple["subprocess.Popen[bytes]", str]:
    """A daemon of Spark's, and what matched in its log once it has said that."""
    own = os.environ | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(SPARK),
        "SPARK_LOCAL_IP": at,
        "SPARK_LOCAL_DIRS": str(folder / "of-the-worker"),
        "SPARK_DAEMON_JAVA_OPTS": QUICK,
    }
    path = folder / f"{name}-{at}.log"
    with path.open("wb") as log:
        process = subprocess.Popen(
            [*prefix, SPARK / "bin" / "spark-class",
             f"org.apache.spark.deploy.{name.lower()}.{name}",
             "--host", at, "--webui-port", "0", *arguments],
            env=own | environment, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    until(
        lambda: re.search(says, path.read_text()) or process.poll() is not None,
        START_S, path.read_text,
    )  # fmt: skip
    found = re.search(says, path.read_text())
    assert found, path.read_text()[-3000:]
    return process, found[1]


_YARN_SITE = """<configuration>
{properties}</configuration>"""
_PROPERTY = "<property><name>{}</name><value>{}</value></property>\n"


@contextmanager
def yarn(folder: Path, cores: int) -> Iterator[dict[str, str]]:
    """YARN of one node with so many cores: what a driver's environment needs to use it."""
    of_rm = ("address", "scheduler.address", "resource-tracker.address", "admin.address")
    ports = [f"resourcemanager.{each}" for each in (*of_rm, "webapp.address")]
    ports += [f"nodemanager.{each}" for each in ("address", "localizer.address", "webapp.address")]
    settings = {each: f"127.0.0.1:{free_port()}" for each in ports} | {
        "resourcemanager.scheduler.class": "org.apache.hadoop.yarn.server.resourcemanager"
        ".scheduler.fifo.FifoScheduler",
        "scheduler.minimum-allocation-mb": 256,
        "nodemanager.resource.memory-mb": 8192,
        "nodemanager.resource.cpu-vcores": cores,
        "nodemanager.vmem-check-enabled": "false",
        "nodemanager.disk-health-checker.enable": "false",
        "nodemanager.local-dirs": folder / "of-the-node",
        "nodemanager.log-dirs": folder / "logs",
    }
    properties = "".join(_PROPERTY.format(f"yarn.{k}", v) for k, v in settings.items())
    (folder / "yarn-site.xml").write_text(_YARN_SITE.format(properties=properties))
    temporary = _PROPERTY.format("hadoop.tmp.dir", folder / "tmp")
    (folder / "core-site.xml").write_text(_YARN_SITE.format(properties=temporary))
    of_spark = ("hadoop-client-*", "slf4j-*", "jcl-over-slf4j-*", "log4j-*", "jakarta.servlet-*")
    classes = [folder, *jars("yarn").glob("*.jar")]
    classes += [jar for each in of_spark for jar in SPARK.glob(f"jars/{each}.jar")]
    names, processes = ("ResourceManager", "NodeManager"), []
    try:
        for name in names:
            with (folder / f"{name}.log").open("wb") as log:
                command = [
                    find_java().home / "bin" / "java", *QUICK.split(), "-Xmx512m",
                    "-cp", os.pathsep.join(map(str, classes)),
                    f"org.apache.hadoop.yarn.server.{name.lower()}.{name}",
                ]  # fmt: skip
                started = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
            processes.append(started)
        nodes = f"http://{settings['resourcemanager.webapp.address']}/ws/v1/cluster/nodes"
        until(
            lambda: b'"RUNNING"' in _asked(nodes) or any(each.poll() for each in processes), START_S
        )
        for name, process in zip(names, processes, strict=True):
            assert process.poll() is None, (folder / f"{name}.log").read_text()
        yield {
            "HADOOP_CONF_DIR": str(folder),
            "CATCHWATER_SPARK__MASTER": "yarn",
            "CATCHWATER_SPARK__SPARK_EXECUTOR_INSTANCES": str(cores - 1),
            "CATCHWATER_SPARK__SPARK_YARN_JARS": f"local:{SPARK}/jars/*",
            "CATCHWATER_SPARK__SPARK_YARN_STAGINGDIR": str(folder / "staging"),
        }
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait()


def _asked(url: str) -> bytes:
    """What a server answers; nothing as long as none does."""
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return bytes(answer.read())
    except OSError:
        return b""


@dataclass
class Cluster:
    """A master on a host, and workers that come and go."""

    network: Network
    folder: Path
    apart: Sequence[Path]
    """Folders that each worker has for itself."""
    cores: int = 1
    memory: str = "2g"
    environment: Mapping[str, str] = field(default_factory=dict)
    """Of workers, and of the executors that they start."""
    url: str = field(default="", init=False)
    workers: dict[str, Host] = field(default_factory=dict, init=False)
    _daemons: list[Any] = field(default_factory=list, init=False)

    def __enter__(self) -> "Cluster":
        host = self.host("ma")
        process, self.url = started(
            self.folder, "Master", "--port", "7077", says=r"Starting Spark master at (\S+)",
            at=host.address, prefix=host.prefix,
        )  # fmt: skip
        self._daemons.append(process)
        return self

    def __exit__(self, *error: object) -> None:
        for host in (*self.workers.values(), self.host("ma")):
            host.kill()
        for process in self._daemons:
            process.wait()

    def host(self, name: str) -> Host:
        """The host of this name, which may have been one of another cluster."""
        return self.network.hosts.get(name) or self.network.host(name)

    def add(self, name: str) -> Host:
        """One more worker, with empty disks."""
        host = self.host(name)
        own = self.folder / name
        own.mkdir(exist_ok=True)
        process, _ = started(
            own, "Worker", "--cores", str(self.cores), "--memory", self.memory, "--work-dir",
            str(own / "work"), self.url, says="(Successfully registered with master)",
            at=host.address, prefix=host.apart(*self.apart), **self.environment,
        )  # fmt: skip
        self._daemons.append(process)
        self.workers[name] = host
        return host

    def lose(self, name: str) -> None:
        """Turn a worker off; what was on its disks is gone."""
        self.workers.pop(name).kill()


@dataclass
class Driver:
    """`catchwater pipeline run` on a host whose scratch no other host has."""

    host: Host
    file: Path
    settings: dict[str, str]
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    session: int = field(default=0, init=False)

    @property
    def cache(self) -> Path:
        return self.file.parent.parent / f"{self.file.parent.name}-{self.host.link}"

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def _log(self) -> Path:
        return self.cache.with_suffix(".log")

    def start(self, *options: str) -> None:
        self.cache.mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.host.apart(self.cache), COMMAND, "pipeline", "run", self.file, "--quick",
                 "--no-supervise", *options],
                env=os.environ | self.settings | {"CATCHWATER_CACHE": str(self.cache)},
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.session = self.process.pid

    def stand_by(self) -> None:
        """Start it, and wait until it waits for the one that runs."""
        self.start()
        until(lambda: "Standing by: process" in self.log, PATIENCE_S, lambda: self.log)

    def get_ready(self) -> None:
        """Stand by until its Spark is ready, too, or has had enough time for it."""
        self.stand_by()
        until_s = SYSTEM.monotonic_s() + _READY_S
        until(lambda: "Spark is ready" in self.log or SYSTEM.monotonic_s() > until_s, 2 * _READY_S)

    @property
    def ended(self) -> bool:
        return self.process is not None and self.process.poll() is not None

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(PATIENCE_S)

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """Turn its machine off."""
        self.host.kill()
        if self.process is not None:
            self.process.wait()

    def signal_all(self, number: signal.Signals) -> None:
        for pid in processes(self.session):
            os.kill(pid, number)


def newest(checkpoint: Path) -> int:
    """The last epoch of a checkpoint at a URL, as a machine sees it that only reads.

    Takes a while, so that who asks again and again leaves the store and the processor to others.
    """
    SYSTEM.pause(_LOOK_S)
    refresh(checkpoint, SYSTEM)
    return max(Ledger(checkpoint).epochs(), default=-1)
