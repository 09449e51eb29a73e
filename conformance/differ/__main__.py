"""`python -m conformance.differ`: every case asked of both brokers, and what differs.

Exit code 1 for a difference that `expected.toml` does not explain; an explanation that explains
nothing any more is told.
"""

import argparse
import contextlib
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

from kio.index import api_key_map

from conformance.differ import administering, grouping, reading, writing
from conformance.differ.cases import CASES, Case, empty_request
from conformance.differ.compare import differences
from conformance.differ.expected import Expected, read_expected
from conformance.differ.requests import exists
from conformance.differ.talk import Broker, Talk
from conformance.targets import target

API_VERSIONS, FIND_COORDINATOR, INIT_PRODUCER_ID = 18, 10, 22
EXPECTED = Path(__file__).with_name("expected.toml")
DECLARING = (administering, grouping, reading, writing)
"""The modules whose import declares the cases."""


class Found(NamedTuple):
    """One difference, in the n-th answer of a case, in some versions of the API."""

    api: str
    case: str
    path: str
    kafka: str
    ours: str
    error: int | None = None
    """What both answer around it."""

    def line(self, versions: Sequence[int]) -> str:
        shown = f"v{versions[0]}" + (f"-{versions[-1]}" if len(versions) > 1 else "")
        values = f"Kafka {_short(self.kafka)}, Catchwater {_short(self.ours)}"
        return f"{self.api} {shown} {self.case} {self.path}: {values}"


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def main() -> int:
    """Compare, print, and say whether all of it is explained."""
    parser = argparse.ArgumentParser(prog="python -m conformance.differ", description=__doc__)
    parser.add_argument("--api", default="*", help="a name as Kafka writes it, or a pattern")
    parser.add_argument("--case", default="*", help="a name, or a pattern")
    parser.add_argument(
        "--security", action="store_true", help="who may do what, instead: users under rules"
    )
    parser.add_argument("--kafka", help="the address of one that runs already")
    parser.add_argument("--ours", help="the address of one that runs already")
    asked = parser.parse_args()
    if asked.security:
        from conformance.differ import security

        return security.compare(asked.api)
    with contextlib.ExitStack() as stack:
        kafka = Broker(asked.kafka or stack.enter_context(target("kafka")))
        ours = Broker(asked.ours or stack.enter_context(target("catchwater")))
        stack.callback(kafka.close)
        stack.callback(ours.close)
        only_kafka = agree_on_versions(kafka, ours)
        work = [
            (case, version)
            for case in cases_of(list(kafka.versions))
            for version in kafka.versions.get(case.api_key, ())
            if fnmatch(case.name, asked.case) and fnmatch(api_name(case.api_key), asked.api)
        ]
        with ThreadPoolExecutor(2) as both:
            heard = list(both.map(lambda broker: answers(broker, work), (kafka, ours)))
    print(f"{sum(map(len, heard[0]))} replies to {len(work)} cases and versions of "
          f"{len({case.api_key for case, _ in work})} APIs")  # fmt: skip
    print(f"Only Apache Kafka serves: {', '.join(only_kafka)}")
    everything = asked.api == asked.case == "*"
    return report(collect(work, *heard), read_expected(EXPECTED), everything)


def agree_on_versions(kafka: Broker, ours: Broker) -> list[str]:
    """Tell both which versions both serve; returns what we do not, in words."""
    served = [
        {
            each.api_key: [
                version
                for version in range(each.min_version, each.max_version + 1)
                if exists(each.api_key, version)
            ]
            for each in broker.ask(API_VERSIONS, 0, {}).api_keys
        }
        for broker in (kafka, ours)
    ]
    both, missing = {}, []
    for key, theirs in sorted(served[0].items()):
        shared = [version for version in theirs if version in served[1].get(key, ())]
        lacking = [version for version in theirs if version not in shared]
        if shared:
            both[key] = shared
        if lacking:
            missing.append(f"{api_name(key)} v{lacking[0]}-{lacking[-1]}")
    kafka.versions = ours.versions = both
    return missing


def api_name(api_key: int) -> str:
    """As Kafka writes it: ListOffsets."""
    return api_key_map.get(api_key, str(api_key)).title().replace("_", "")


def cases_of(api_keys: Sequence[int]) -> list[Case]:
    """The declared cases, and the empty request of each API."""
    empty = [Case("empty_request", key, empty_request) for key in api_keys]
    return sorted([*CASES, *empty], key=lambda case: (case.api_key, case.name))


def answers(broker: Broker, work: Sequence[tuple[Case, int]]) -> list[list[Any]]:
    """What the broker answered, by case and version."""
    awake = Talk(broker, "warm", API_VERSIONS, 0)
    for kind in (0, 1):  # of groups, of transactions: the first search makes their topics
        _await_coordinator(awake, kind)
    writing.producer(awake, "warm")
    heard = []
    for case, version in work:
        talk = Talk(broker, case.name, case.api_key, version)
        case.body(talk)
        heard.append(talk.heard)
    return heard


def _await_coordinator(talk: Talk, kind: int) -> None:
    asked = {"key": "warm", "key_type": kind, "coordinator_keys": ["warm"]}
    talk.until(
        lambda: "not_available" not in str(talk.prepare(FIND_COORDINATOR, **asked)),
        "a coordinator",
    )


def collect(
    work: Sequence[tuple[Case, int]], kafka: Sequence[list[Any]], ours: Sequence[list[Any]]
) -> dict[Found, list[int]]:
    """Each difference, with the versions it was found in."""
    found: dict[Found, list[int]] = defaultdict(list)
    for (case, version), theirs, mine in zip(work, kafka, ours, strict=True):
        for difference in differences({"": theirs}, {"": mine}):
            path = difference.path.lstrip(".")
            at = Found(
                api_name(case.api_key),
                case.name,
                path,
                repr(difference.kafka),
                repr(difference.ours),
                difference.error,
            )
            found[at].append(version)
    return found


def report(found: dict[Found, list[int]], expected: list[Expected], everything: bool) -> int:
    """Print what nobody explains, and count the rest by explanation."""
    counts = dict.fromkeys(expected, 0)
    wrong = 0
    for difference, versions in found.items():
        why = next((e for e in expected if e.explains(difference, versions)), None)
        if why is None:
            wrong += 1
            print(difference.line(versions))
        else:
            counts[why] += 1
    for why, count in counts.items():
        if count:
            print(f"expected {count:4}: {why.reason}")
    stale = [why for why, count in counts.items() if not count] if everything else []
    for why in stale:
        print(f"stale: {why}")
    print(f"{wrong} differences are not explained, {sum(counts.values())} are")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
