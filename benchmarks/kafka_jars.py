"""Jars of Apache Kafka, Spark's Kafka connector and others, fetched once with Maven into `.cache`.

`jars("kafka")` is Kafka's server, console tools and client; `jars("connector-4.2")` is what
`spark.jars` needs for Spark's own Kafka source; `registry()` is a schema registry. Maven finds its
repositories in the user's settings. Raises `MavenMissing` when there is no `mvn` on the path.
"""

import fcntl
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
CACHE = ROOT / ".cache"

KAFKA_VERSION = "4.3.1"
SPARK_PEER_VERSION = "4.2.0"
REGISTRY_VERSION = "3.0.9"

SETS = {
    "kafka": [
        ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
        ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
        ("org.apache.logging.log4j", "log4j-slf4j2-impl", "2.25.3"),
    ],
    "connector": [
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", SPARK_PEER_VERSION),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
        ("org.apache.kafka", "kafka-clients", "3.9.1"),
        ("org.apache.commons", "commons-pool2", "2.12.1"),
    ],
    "streams": [
        ("org.apache.kafka", "kafka-streams", KAFKA_VERSION),
        ("com.fasterxml.jackson.core", "jackson-databind", "2.19.2"),
        ("org.slf4j", "slf4j-nop", "2.0.17"),
    ],
    "connect": [
        ("org.apache.kafka", "connect-runtime", KAFKA_VERSION),
        ("org.apache.kafka", "connect-file", KAFKA_VERSION),
        ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.3"),
    ],
    # What Spark reads Iceberg tables with, and the driver of a SQL catalog in a file.
    "iceberg": [
        ("org.apache.iceberg", "iceberg-spark-runtime-4.1_2.13", "1.12.0"),
        ("org.xerial", "sqlite-jdbc", "3.50.3.0"),
    ],
    "flink-kafka": [
        ("org.apache.flink", "flink-sql-connector-kafka", "4.0.1-2.0"),
    ],
    # Avro by the serializers of a schema registry whose parts all are in Maven Central.
    "serdes": [
        ("io.apicurio", "apicurio-registry-avro-serde-kafka", "3.1.7"),
        ("org.slf4j", "slf4j-nop", "2.0.17"),
    ],
    # YARN's servers, of the Hadoop whose client pyspark has.
    "yarn": [
        ("org.apache.hadoop", "hadoop-client-minicluster", "3.5.0"),
        ("org.bouncycastle", "bcprov-jdk18on", "1.78.1"),
        ("org.bouncycastle", "bcpkix-jdk18on", "1.78.1"),
        ("org.bouncycastle", "bcutil-jdk18on", "1.78.1"),
    ],
    # An API server of Kubernetes for tests, by those who made the client that pyspark has.
    "kubernetes": [
        ("io.fabric8", "kubernetes-server-mock", "7.6.1"),
        ("io.fabric8", "mockwebserver", "7.6.1"),
        ("io.vertx", "vertx-web", "4.5.26"),
        ("io.vertx", "vertx-bridge-common", "4.5.26"),
        ("org.bouncycastle", "bcprov-jdk18on", "1.82"),
        ("org.bouncycastle", "bcpkix-jdk18on", "1.82"),
        ("org.bouncycastle", "bcutil-jdk18on", "1.82"),
    ],
    # Releases of Kafka's server that are still run, each with the logging that it came with.
    "kafka-2.8": [
        ("org.apache.kafka", "kafka_2.13", "2.8.2"),
        ("org.slf4j", "slf4j-log4j12", "1.7.30"),
    ],
    "kafka-3.3": [
        ("org.apache.kafka", "kafka_2.13", "3.3.2"),
        ("org.slf4j", "slf4j-reload4j", "1.7.36"),
    ],
    "kafka-3.7": [
        ("org.apache.kafka", "kafka_2.13", "3.7.2"),
        ("org.slf4j", "slf4j-reload4j", "1.7.36"),
    ],
    "kafka-3.9": [
        ("org.apache.kafka", "kafka_2.13", "3.9.1"),
        ("org.slf4j", "slf4j-reload4j", "1.7.36"),
    ],
}
"""What each set asks for; Maven brings what Kafka needs, and of the connector, say, these alone."""

_ALONE = ("connector", "flink-kafka", "iceberg", "kubernetes", "yarn")

POM = """<project><modelVersion>4.0.0</modelVersion>
<groupId>x</groupId><artifactId>x</artifactId><version>1</version>
<dependencies>{dependencies}</dependencies></project>"""
DEPENDENCY = """<dependency><groupId>{0}</groupId><artifactId>{1}</artifactId>
<version>{2}</version>{exclusions}</dependency>"""
ALONE = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)


class MavenMissing(Exception):
    """There is no `mvn`; the peers of the benchmarks and the Java clients come through it."""


def jars(name: str) -> Path:
    """The folder that holds the set's jars, fetched on first use (about 60 MB for Kafka)."""

    def fetch(work: Path) -> Path:
        exclusions = ALONE if name in _ALONE else ""
        dependencies = "".join(DEPENDENCY.format(*d, exclusions=exclusions) for d in SETS[name])
        (work / "pom.xml").write_text(POM.format(dependencies=dependencies))
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime"]
        _maven(work, *copy, f"-DoutputDirectory={work / 'jars'}")
        return work / "jars"

    return _fetched(f"{name}-{SETS[name][0][2]}", fetch)


def registry() -> Path:
    """The jar that runs Apicurio Registry, which speaks Confluent's HTTP API too (110 MB)."""

    def fetch(work: Path) -> Path:
        artifact = f"io.apicurio:apicurio-registry-app:{REGISTRY_VERSION}:tar.gz:all"
        _maven(work, "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={work}")
        [archive] = work.glob("*.tar.gz")
        shutil.unpack_archive(archive, work / "registry", filter="data")
        return work / "registry"

    folder = _fetched(f"registry-{REGISTRY_VERSION}", fetch)
    [jar] = folder.glob("*-runner.jar")
    return jar


def _fetched(name: str, fetch: Callable[[Path], Path]) -> Path:
    """The folder of this name in the cache; `fetch` makes it in the folder that it is given."""
    folder = CACHE / name
    if folder.exists():
        return folder
    if shutil.which("mvn") is None:
        raise MavenMissing("mvn is not on the path; install Maven, then run this again.")
    CACHE.mkdir(exist_ok=True)
    # Two test processes may want it at the same time; nor is Maven's own cache made for two.
    with (CACHE / "jars.lock").open("w") as lock, tempfile.TemporaryDirectory(dir=CACHE) as scratch:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            fetch(Path(scratch)).rename(folder)
    return folder


def _maven(work: Path, *arguments: str) -> None:
    # Maven colours even what it does not say; stdout is for our answer.
    subprocess.run(["mvn", "-q", "-B", *arguments], cwd=work, check=True, stdout=sys.stderr)


if __name__ == "__main__":
    for each in SETS:
        print(jars(each))
