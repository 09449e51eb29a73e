"""The failures that are excused, from a TOML file: which, against which broker, and why.

An `[[expected]]` has `suite`, a `name` (`*` for anything), a `reason`, and `against` where it
concerns one of the two brokers only. Nothing is excused for good: one that fits no failure of a
run that could have shown it is stale, unless it says `sometimes = true`.
"""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from conformance.suites.outcome import Outcome


class Expected(NamedTuple):
    """One excuse."""

    suite: str
    name: str
    reason: str
    against: str = "*"
    sometimes: bool = False

    def concerns(self, suite: str, against: str) -> bool:
        """Whether a run of the suite against that broker can show it."""
        return self.suite == suite and self.against in ("*", against)

    def explains(self, outcome: Outcome) -> bool:
        """Whether the outcome is a failure of that name; brackets stand for themselves."""
        pattern = re.escape(self.name).replace(r"\*", ".*")
        return outcome.status == "failed" and re.fullmatch(pattern, outcome.name) is not None


class Verdict(NamedTuple):
    """What a run came to: failures with their reasons, those without one, excuses without any."""

    explained: list[tuple[Outcome, str]]
    unexplained: list[Outcome]
    stale: list[Expected]


def read_expected(path: Path) -> list[Expected]:
    """The excuses in the order of the file, which is the order they are tried in."""
    return [Expected(**each) for each in tomllib.loads(path.read_text()).get("expected", [])]


def judge(
    suite: str, against: str, outcomes: Iterable[Outcome], expected: Iterable[Expected]
) -> Verdict:
    """Hold the whole run of one suite against the excuses that concern it."""
    concerned = [each for each in expected if each.concerns(suite, against)]
    used: set[Expected] = set()
    verdict = Verdict([], [], [])
    for outcome in outcomes:
        if outcome.status != "failed":
            continue
        excuse = next((each for each in concerned if each.explains(outcome)), None)
        if excuse is None:
            verdict.unexplained.append(outcome)
        else:
            used.add(excuse)
            verdict.explained.append((outcome, excuse.reason))
    verdict.stale.extend(each for each in concerned if each not in used and not each.sometimes)
    return verdict
