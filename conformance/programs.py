"""The clients' programs: how each is got, built and started; which version of the client it has.

A client comes from its language's registry by that language's own tool, in the version pinned
beside the program, into `.cache/conformance`. A machine without the tool skips the client.
"""

import importlib.metadata
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

from benchmarks.kafka_jars import KAFKA_VERSION, MavenMissing, jars

ROOT = Path(__file__).parent.parent
SOURCES = Path(__file__).parent / "clients"
BUILT = ROOT / ".cache" / "conformance"


class Missing(Exception):
    """A tool that the client needs is not on this machine; the message names it."""


@dataclass(frozen=True)
class Program:
    """A client that is ready to run: its command, its version, what to add to the environment."""

    command: Sequence[str]
    version: str
    environment: dict[str, str] = field(default_factory=dict)


def program(client: str, environment: Mapping[str, str] = MappingProxyType({})) -> Program:
    """Get and build one of `CLIENTS`, and tell it more in its environment.

    Raises `Missing`, `CalledProcessError`.
    """
    built = CLIENTS[client]()
    if client == "kcat" and environment.get("SASL_MECHANISM") == "OAUTHBEARER":
        raise Missing("its librdkafka asks no endpoint for tokens")
    return replace(built, environment=built.environment | dict(environment))


def _need(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is not installed")


def _python(module: str, distribution: str) -> Program:
    try:
        version = importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        raise Missing(f"{distribution} is not installed") from None
    return Program([sys.executable, "-m", f"conformance.clients.{module}"], version)


def _librdkafka() -> Program:
    return _python("with_confluent", "confluent-kafka")


def _kcat() -> Program:
    _need("kcat")
    said = subprocess.run(["kcat", "-V"], capture_output=True, text=True, check=True)
    found = re.search(r"Version (\S+) .*librdkafka (\S+)", said.stdout + said.stderr)
    version = f"{found[1]} (librdkafka {found[2]})" if found else "?"
    return Program([sys.executable, "-m", "conformance.clients.with_kcat"], version)


def _java(protocol: str) -> Program:
    _need("java", "javac")
    try:
        libraries = jars("kafka")
    except MavenMissing as reason:
        raise Missing("mvn is not installed") from reason
    classes = BUILT / "java"
    classes.mkdir(parents=True, exist_ok=True)
    sources = [str(path) for path in sorted((SOURCES / "java").glob("*.java"))]
    compile_all = ["javac", "-cp", f"{libraries}/*", "-d", str(classes), *sources]
    subprocess.run(compile_all, check=True)
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-Xshare:auto"]
    command = ["java", *options, "-cp", f"{classes}:{libraries}/*", "Steps"]
    return Program(command, KAFKA_VERSION, {"GROUP_PROTOCOL": protocol})


def build_go(package: str, name: str) -> str:
    """The path of a program of `clients/go`, built. Raises `Missing`, `CalledProcessError`."""
    _need("go")
    module = (SOURCES / "go" / "go.mod").read_text()
    said = subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout
    here, wanted = re.search(r"go(\d+)\.(\d+)", said), re.search(r"^go (\d+)\.(\d+)", module, re.M)
    if here and wanted and tuple(map(int, here.groups())) < tuple(map(int, wanted.groups())):
        raise Missing(f"the library wants {wanted[0]}, installed is {here[0]}")
    binary = BUILT / name
    BUILT.mkdir(parents=True, exist_ok=True)
    subprocess.run(["go", "build", "-o", str(binary), package], cwd=SOURCES / "go", check=True)
    return str(binary)


def _franz_go() -> Program:
    binary = build_go(".", "franz-go")
    module = (SOURCES / "go" / "go.mod").read_text()
    found = re.search(r"twmb/franz-go v(\S+)", module)
    return Program([binary], found[1] if found else "?")


def _kafkajs() -> Program:
    _need("node", "npm")
    folder = BUILT / "node"
    shutil.copytree(SOURCES / "node", folder, dirs_exist_ok=True)
    if not (folder / "node_modules" / "kafkajs").exists():
        install = ["npm", "install", "--no-audit", "--no-fund", "--silent"]
        subprocess.run(install, cwd=folder, check=True, stdout=sys.stderr)
    found = re.search(r'"kafkajs": "(\S+)"', (SOURCES / "node" / "package.json").read_text())
    return Program(["node", str(folder / "steps.js")], found[1] if found else "?")


CLIENTS: dict[str, Callable[[], Program]] = {
    "librdkafka": _librdkafka,
    "java": lambda: _java("classic"),
    "java-consumer": lambda: _java("consumer"),
    "franz-go": _franz_go,
    "kafka-python": lambda: _python("with_kafka_python", "kafka-python"),
    "aiokafka": lambda: _python("with_aiokafka", "aiokafka"),
    "kcat": _kcat,
    "kafkajs": _kafkajs,
}
"""By name; `java-consumer` is the Java client with group.protocol=consumer wherever it can."""
