"""Apache Kafka's own console tools, from the jars that `benchmarks/kafka_jars.py` fetches."""

import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]

pytestmark = pytest.mark.skipif(
    shutil.which("java") is None or shutil.which("mvn") is None,
    reason="Java or Maven is not installed",
)


@pytest.fixture(scope="module")
def jars():
    command = "from benchmarks.kafka_jars import jars; print(jars('kafka'))"
    run = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


@pytest.fixture
def java(jars):
    def run(main_class, *arguments, text=""):
        # The first compiler tier alone: these processes live for seconds.
        options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m", "-Xshare:auto"]
        done = subprocess.run(
            ["java", *options, "-cp", f"{jars}/*", main_class, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout

    return run


def test_the_console_producer_and_consumer_agree_in_every_codec(broker, java, wanted, assert_read):
    lines = "".join(f"{key}\t{value}\n" for key, value in wanted)
    for codec in CODECS:
        java(
            "org.apache.kafka.tools.ConsoleProducer",
            *("--bootstrap-server", broker.bootstrap, "--topic", f"java-{codec}"),
            *("--reader-property", "parse.key=true", "--compression-codec", codec),
            text=lines,
        )
    out = java(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", broker.bootstrap, "--include", "java-.*", "--from-beginning"),
        *("--group", "java", "--max-messages", str(len(wanted) * len(CODECS))),
        *("--timeout-ms", "150000"),
        *("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"),
        *("--formatter-property", "print.headers=false"),
    )
    by_codec = split_by_topic(out, len(wanted))
    assert len(by_codec) == len(CODECS)
    for rows in by_codec:
        assert_read(rows, wanted)


def split_by_topic(out, count):
    """The console consumer does not print topics; each topic's offsets rise by one from 0."""
    topics: list[list[tuple[int, str, str]]] = []
    waiting = defaultdict(list)
    for line in out.splitlines():
        offset_text, key, value = line.split("\t")
        offset = int(offset_text.removeprefix("Offset:"))
        if offset == 0:
            rows = []
            topics.append(rows)
        else:
            rows = waiting[offset].pop()
        rows.append((offset, key, value))
        waiting[offset + 1].append(rows)
    return topics


def test_the_topic_tool_creates_lists_describes_and_deletes(broker, java):
    def topics(*arguments):
        tool = "org.apache.kafka.tools.TopicCommand"
        return java(tool, "--bootstrap-server", broker.bootstrap, *arguments)

    topics("--create", "--topic", "made-by-java", "--partitions", "3", "--config", "retention.ms=9")
    assert "made-by-java" in topics("--list").split()
    described = topics("--describe", "--topic", "made-by-java")
    assert "PartitionCount: 3" in described
    assert "retention.ms=9" in described
    topics("--delete", "--topic", "made-by-java")
    assert "made-by-java" not in topics("--list").split()


def test_the_group_tool_shows_members_and_lag(broker, java, wanted):
    producer = "org.apache.kafka.tools.ConsoleProducer"
    java(producer, "--bootstrap-server", broker.bootstrap, "--topic", "java-lag", text="a\nb\n")
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    java(
        consumer,
        *("--bootstrap-server", broker.bootstrap, "--topic", "java-lag", "--group", "lagging"),
        *("--from-beginning", "--max-messages", "2", "--timeout-ms", "120000"),
    )
    tool = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
    assert "lagging" in java(tool, "--bootstrap-server", broker.bootstrap, "--list").split()
    out = java(
        tool,
        "--bootstrap-server",
        broker.bootstrap,
        "--describe",
        "--group",
        "lagging",
        "--offsets",
    )
    (row,) = [line.split() for line in out.splitlines() if "java-lag" in line]
    assert row[:6] == ["lagging", "java-lag", "0", "2", "2", "0"]


def test_the_client_of_the_second_version_commits_aborts_fences_and_loops(broker, jars):
    source = Path(__file__).with_name("Transactions.java")
    options = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx512m"]
    done = subprocess.run(
        ["java", *options, "-cp", f"{jars}/*", str(source), broker.bootstrap],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = [line for line in done.stdout.splitlines() if not line.startswith(("20", "WARN"))]
    assert found == [
        "committed [r0/0, r0/1, r2/0, r2/1, r4/0, r4/1]",
        "written 12",
        # Every end has raised the epoch: that is the second version (KIP-890).
        "state CompleteAbort epoch 6",
        "open 1",
        "fenced yes",
        "after [second/0, second/1]",
        "looped 20",
    ]
