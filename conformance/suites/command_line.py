"""Kafka's command line tools, as they lie in its jars, through the cases of [tools](tools).

Every case looks at what the tools print, not only at how they end. All run in one JVM, which is
started again where a tool does not end.
"""

from collections.abc import Iterator
from pathlib import Path

from conformance.suites.outcome import Outcome
from conformance.suites.tools import of_cluster, of_groups, of_records, of_topics, of_transactions
from conformance.suites.tools.cases import CASES, Case
from conformance.suites.tools.jvm import Tools, Wrong
from conformance.targets import KAFKA_WITH_ACLS

DECLARE = (of_topics, of_records, of_groups, of_transactions, of_cluster)
"""Imported for the cases that they declare."""


def settings(against: str, folder: Path) -> dict[str, str]:
    """Of Kafka's optional parts, the one that a tool needs."""
    return dict(KAFKA_WITH_ACLS)


def run(bootstrap: str, folder: Path) -> Iterator[Outcome]:
    """One outcome per case; `tools.log` in the folder has every command and what it printed."""
    tools = Tools(bootstrap, folder)
    try:
        for case in CASES:
            yield _outcome(tools, case)
    finally:
        tools.close()


def _outcome(tools: Tools, case: Case) -> Outcome:
    try:
        case.body(tools, case.name)
    except Wrong as reason:
        return Outcome(case.name, "failed", str(reason))
    return Outcome(case.name, "passed")
