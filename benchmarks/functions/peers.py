"""How each contestant is installed and started; everything lands in `.cache`, nothing in `.venv`.

A contestant is a list of processes that read one topic, keep state in a folder and write alerts.
Python peers get an environment of their own, pinned; Java ones a folder of jars by Maven.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kafka_jars import CACHE, jars

HERE = Path(__file__).parent
PER_EPOCH = 500_000
"""Events of a micro-batch to catch up with, the same for all who work in micro-batches."""
PINS = {
    "quix": ["quixstreams==3.28.1"],
    "bytewax": ["bytewax==0.21.1", "confluent-kafka==2.12.2"],
    "flink": ["apache-flink==2.3.0", "setuptools<81"],
}


@dataclass(frozen=True)
class Job:
    """What a contestant is asked to do."""

    bootstrap: str
    source: str
    target: str
    group: str
    folder: Path


@dataclass(frozen=True)
class Contestant:
    """A name with its version, and the commands (each with its environment) that do a job."""

    name: str
    commands: Callable[[Job], list[tuple[list[str], dict[str, str]]]]


def python_of(peer: str) -> str:
    """The interpreter of a peer's environment, made on first use."""
    folder = CACHE / "peers" / peer
    if not (folder / ".ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        uv = Path(sys.executable).with_name("uv")
        command = [uv, "pip", "install", "-q", "--python", folder / "bin/python", *PINS[peer]]
        subprocess.run(command, check=True)
        (folder / ".ready").touch()
    return str(folder / "bin" / "python")


def _streams(job: Job) -> list[tuple[list[str], dict[str, str]]]:
    libraries = jars("streams")
    classes = CACHE / "peers" / "streams"
    if not (classes / "CardRule.class").exists():
        classes.mkdir(parents=True, exist_ok=True)
        compiler = [shutil.which("javac") or "javac", "-cp", f"{libraries}/*", "-d", classes]
        subprocess.run([*compiler, HERE / "CardRule.java"], check=True)
    command = [
        shutil.which("java") or "java",
        "-Xmx2g",
        "-cp",
        f"{classes}:{libraries}/*",
        "CardRule",
    ]
    return [([*command, *_arguments(job)], {})]


def _quix(job: Job) -> list[tuple[list[str], dict[str, str]]]:
    command = [python_of("quix"), str(HERE / "on_quix.py"), *_arguments(job)]
    # State belongs to partitions, so the two processes may not share a folder.
    return [([*command[:-1], f"{job.folder}/{n}"], {}) for n in range(2)]


def _bytewax(job: Job) -> list[tuple[list[str], dict[str, str]]]:
    recovery = job.folder / "recovery"
    python = python_of("bytewax")
    if not recovery.exists():
        recovery.mkdir(parents=True)
        subprocess.run([python, "-m", "bytewax.recovery", recovery, "2"], check=True)
    command = [python, "-m", "bytewax.run", f"{HERE / 'on_bytewax.py'}:flow", "-w", "2"]
    command += ["-r", str(recovery), "-s", "1", "-b", "0"]
    named = {"BOOTSTRAP": job.bootstrap, "SOURCE": job.source, "TARGET": job.target}
    return [(command, named)]


def _flink(job: Job) -> list[tuple[list[str], dict[str, str]]]:
    jar = next(jars("flink-kafka").glob("flink-sql-connector-kafka-*.jar"))
    python = python_of("flink")
    command = [python, str(HERE / "on_flink.py"), *_arguments(job), str(jar)]
    return [(command, {"PATH": f"{Path(python).parent}:{os.environ['PATH']}"})]


def _per_key(job: Job) -> list[tuple[list[str], dict[str, str]]]:
    return [([sys.executable, "-m", "benchmarks.functions.on_spark", *_arguments(job)], {})]


def _arguments(job: Job) -> list[str]:
    return [job.bootstrap, job.source, job.target, job.group, str(job.folder)]


PEERS = {
    "per-key": Contestant("Spark 4.3 transformWithState, a state per key", _per_key),
    "streams": Contestant("Kafka Streams 4.3.1, 2 threads", _streams),
    "quix": Contestant("Quix Streams 3.28.1, 2 processes", _quix),
    "bytewax": Contestant("Bytewax 0.21.1, 2 workers", _bytewax),
    "flink": Contestant("PyFlink 2.3.0, parallelism 2", _flink),
}
