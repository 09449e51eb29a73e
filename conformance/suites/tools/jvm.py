"""Kafka's command line tools in one JVM, and what one of them said."""

import json
import re
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path

from conformance.programs import BUILT
from conformance.suites.jvm import OPTIONS, compiled, libraries

TIMEOUT_S = 60.0
SHOWN = 300

_TOOLS = "org.apache.kafka.tools."
MAINS = {
    "topics": f"{_TOOLS}TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "console-producer": f"{_TOOLS}ConsoleProducer",
    "console-consumer": f"{_TOOLS}consumer.ConsoleConsumer",
    "consumer-groups": f"{_TOOLS}consumer.group.ConsumerGroupCommand",
    "groups": f"{_TOOLS}GroupsCommand",
    "get-offsets": f"{_TOOLS}GetOffsetShell",
    "delete-records": f"{_TOOLS}DeleteRecordsCommand",
    "transactions": f"{_TOOLS}TransactionsCommand",
    "producer-perf-test": f"{_TOOLS}ProducerPerformance",
    "consumer-perf-test": f"{_TOOLS}ConsumerPerformance",
    "e2e-latency": f"{_TOOLS}EndToEndLatency",
    "log-dirs": f"{_TOOLS}LogDirsCommand",
    "features": f"{_TOOLS}FeatureCommand",
    "metadata-quorum": f"{_TOOLS}MetadataQuorumCommand",
    "leader-election": f"{_TOOLS}LeaderElectionCommand",
    "reassign-partitions": f"{_TOOLS}reassign.ReassignPartitionsCommand",
    "cluster": f"{_TOOLS}ClusterTool",
    "broker-api-versions": f"{_TOOLS}BrokerApiVersionsCommand",
    "acls": f"{_TOOLS}AclCommand",
    "client-metrics": f"{_TOOLS}ClientMetricsCommand",
}
"""The class behind `bin/kafka-NAME.sh`."""


class Wrong(Exception):
    """A tool did not say, or not do, what it should; the message shows what it said."""


@dataclass(frozen=True)
class Said:
    """What a tool wrote, and the status it ended with."""

    tool: str
    exit: int
    out: str
    err: str

    def tells(self, *patterns: str) -> "Said":
        """Status 0, and every pattern matches somewhere in what it wrote. Raises `Wrong`."""
        if self.exit:
            raise Wrong(f"{self.tool} ended with status {self.exit}: {self._shown()}")
        return self._matches(patterns)

    def refuses(self, *patterns: str) -> "Said":
        """A status other than 0, and every pattern. Raises `Wrong`."""
        if not self.exit:
            raise Wrong(f"{self.tool} ended with status 0: {self._shown()}")
        return self._matches(patterns)

    def complains(self, *patterns: str) -> "Said":
        """Every pattern, whatever the status: some tools end with 0 all the same."""
        return self._matches(patterns)

    def lacks(self, *patterns: str) -> "Said":
        """No pattern matches. Raises `Wrong`."""
        for pattern in patterns:
            if re.search(pattern, self.out + self.err, re.MULTILINE):
                raise Wrong(f"{self.tool} says {pattern!r}: {self._shown()}")
        return self

    def _matches(self, patterns: tuple[str, ...]) -> "Said":
        for pattern in patterns:
            if not re.search(pattern, self.out + self.err, re.MULTILINE):
                raise Wrong(f"{self.tool} does not say {pattern!r}: {self._shown()}")
        return self

    def _shown(self) -> str:
        """The cause of the last stack trace, or everything, in a line."""
        cause = (self.out + self.err).rpartition("\nCaused by: ")[2]
        return " / ".join(line.strip() for line in cause.splitlines() if line.strip())[:SHOWN]


class Tools:
    """The JVM, started when first needed and again after a tool that did not end."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self.bootstrap, self.folder = bootstrap, folder
        self._command = _compiled()
        self._process: subprocess.Popen[str] | None = None

    def __call__(self, tool: str, *arguments: str, stdin: str = "") -> Said:
        """Run `bin/kafka-TOOL.sh --bootstrap-server ...`. Raises `Wrong` if it does not end."""
        return self.bare(tool, "--bootstrap-server", self.bootstrap, *arguments, stdin=stdin)

    def bare(self, tool: str, *arguments: str, stdin: str = "") -> Said:
        """The same without the address, which not every tool takes that way."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        asked = {"main": MAINS[tool], "args": arguments, "stdin": stdin}
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(asked) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self.close()
            raise Wrong(f"{tool} did not end within {TIMEOUT_S:.0f} s: {' '.join(arguments)}")
        said = Said(tool, **json.loads(line))
        with (self.folder / "tools.log").open("a") as log:
            log.write(f"$ {tool} {' '.join(arguments)}\n{said.out}{said.err}[{said.exit}]\n")
        return said

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            with (self.folder / "jvm.err").open("a") as errors:
                self._process = subprocess.Popen(
                    self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
                    text=True, cwd=self.folder,
                )  # fmt: skip
        return self._process

    def close(self) -> None:
        """End the JVM."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def _compiled() -> list[str]:
    library = libraries("kafka")
    classes = compiled(Path(__file__).with_name("Tools.java"), library, BUILT / "tools")
    quiet = "-Dorg.apache.logging.log4j.level=OFF"
    return ["java", *OPTIONS, quiet, "-cp", f"{classes}:{library}/*", "Tools"]
