"""Groups as Kafka's Java client lives in them: both protocols, cooperative and static members."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or shutil.which("mvn") is None,
    reason="Java or Maven is not installed",
)


def test_members_share_go_on_come_back_and_follow_patterns(make_broker):
    broker = make_broker({"group.consumer.heartbeat.interval.ms": "200"})
    command = "from benchmarks.kafka_jars import jars; print(jars('kafka'))"
    jars = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    source = Path(__file__).with_name("Groups.java")
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
    done = subprocess.run(
        ["java", *options, "-cp", f"{jars}/*", str(source), broker.bootstrap],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    broker.kill()
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    found = [
        line for line in done.stdout.splitlines() if not line.startswith(("20", "WARN", "INFO"))
    ]
    assert found == [
        "java-consumer kept true",
        "java-consumer read 408 408",
        "java-range kept true",
        "java-range read 408 408",
        "java-cooperative kept true",
        "java-cooperative read 408 408",
        "java-static same true",
        "java-static-new same true",
        "pattern [java-seen-1, java-seen-2]",
        "told Consumer Stable uniform",
        "broken InvalidRegularExpression",
    ]
