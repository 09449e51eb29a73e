"""kafka-python's own integration tests, from its source distribution, against the broker.

The distribution leaves out `test/service.py`, with which the tests start a Kafka of their own;
`kafka_python_plugin.py` stands in for it, and points them at our addresses: one broker has a
listener for each way to come in.
"""

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from benchmarks.kafka_jars import KAFKA_VERSION

from conformance.programs import BUILT
from conformance.suites import ways_in
from conformance.suites.outcome import Outcome

VERSION = "3.0.12"
TOOLS = [
    f"kafka-python[crc32c,lz4,snappy,zstd]=={VERSION}",
    "pytest==9.1.1",
    "pytest-timeout==2.4.0",
]
TIMEOUT_S = 600
MAX_NOTE = 200

USER, PASSWORD = "alice", "alice-secret"
"""Whom the tests log in as; they make rules, and do everything without one."""

_AS_THEIRS = {
    "node.id": "0", "num.partitions": "4", "group.min.session.timeout.ms": "1000",
    "super.users": f"User:ANONYMOUS;User:{USER}",
}  # fmt: skip


def settings(against: str, folder: Path) -> dict[str, str]:
    """As kafka-python's own tests start a Kafka."""
    protocols = ("SASL_PLAINTEXT", "SSL")
    return ways_in.settings(against, folder, protocols, {USER: PASSWORD}) | _AS_THEIRS


def run(bootstrap: str, folder: Path) -> Iterator[Outcome]:
    """One outcome per test, when all are over; pytest's log is in the folder."""
    environment, source = installed()
    ways_in.add_user(bootstrap, USER, PASSWORD)
    report, log = folder / "report.xml", folder / "pytest.log"
    command = [
        environment / "bin" / "python", "-m", "pytest", "test/integration", "-q",
        "-p", "kafka_python_plugin", "-p", "no:cacheprovider", f"--junitxml={report}",
        "-o", "junit_logging=no", "-o", "log_level=INFO",
        "--timeout=60", "--timeout-method=signal",
    ]  # fmt: skip
    addresses = {"PLAINTEXT": bootstrap} | ways_in.addresses(folder)
    told = {
        "BROKER_ADDRESSES": json.dumps(addresses),
        "BROKER_CERTIFICATES": str(folder),
        "KAFKA_VERSION": KAFKA_VERSION,
        "KAFKA_ROOT": str(folder),  # only has to exist
        "PYTHONPATH": f"{source}{os.pathsep}{Path(__file__).parent}",
    }
    with log.open("wb") as output:
        subprocess.run(
            command, cwd=source, env={**os.environ, **told}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=output, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
    if not report.exists():
        yield Outcome("pytest", "failed", f"ended without a report, see {log}")
        return
    yield from outcomes(ElementTree.parse(report).getroot())


def installed() -> tuple[Path, Path]:
    """An environment with the client and pytest, and the unpacked source; made on first use."""
    folder = BUILT / f"kafka-python-{VERSION}"
    source = folder / f"kafka_python-{VERSION}"
    if not source.exists():
        uv = Path(sys.executable).with_name("uv")
        subprocess.run(
            [uv, "venv", "-q", "--clear", "--python", sys.executable, folder], check=True
        )
        install = [uv, "pip", "install", "-q", "--python", folder / "bin" / "python", *TOOLS]
        subprocess.run(install, check=True)
        fetch = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
        fetch += ["--no-deps", "--no-binary", ":all:", "-d", folder, f"kafka-python=={VERSION}"]
        subprocess.run(fetch, check=True, stdout=sys.stderr)
        with tarfile.open(folder / f"kafka_python-{VERSION}.tar.gz") as packed:
            packed.extractall(folder, filter="data")
        # Left out of the distribution as well; without it `test` is the standard library's.
        (source / "test" / "__init__.py").touch()
    return folder, source


def outcomes(report: ElementTree.Element) -> Iterator[Outcome]:
    """Each test case of a JUnit report; an error in a test's set-up or its end is a failure."""
    for case in report.iter("testcase"):
        name = f"{case.get('classname', '').rpartition('test_')[2]}::{case.get('name')}"
        wrong = [each for each in case if each.tag in ("failure", "error")]
        skipped = case.find("skipped")
        if wrong:
            yield Outcome(name, "failed", _first_line(wrong[0]))
        elif skipped is not None:
            yield Outcome(name, "skipped", _first_line(skipped))
        else:
            yield Outcome(name, "passed")


def _first_line(said: ElementTree.Element) -> str:
    message = said.get("message") or said.text or ""
    return message.strip().partition("\n")[0][:MAX_NOTE]
