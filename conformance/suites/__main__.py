"""`python -m conformance.suites`: foreign suites against a fresh broker each, and an exit code.

Exit code 1 if a test failed that expected.toml does not explain, or if it explains one that no
longer fails.
"""

import argparse
import importlib
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.programs import BUILT, Missing
from conformance.suites.expected import Verdict, judge, read_expected
from conformance.suites.outcome import ConfiguredSuite, KillingSuite, Outcome, Suite
from conformance.targets import TARGETS, target

SUITES = (
    "kafka_python",
    "command_line",
    "verifiable",
    "streams",
    "connect",
    "secured",
)
"""Each the name of a module in this package."""

EXPECTED = Path(__file__).with_name("expected.toml")


def main() -> int:
    """Run what the command line asks for."""
    asked = arguments()
    expected = read_expected(EXPECTED)
    rows = []
    wrong = False
    for name in asked.suite or SUITES:
        try:
            outcomes = take(name, asked.against)
        except Missing as reason:
            print(f"{name}: skipped, {reason}", flush=True)
            continue
        verdict = judge(name, asked.against, outcomes, expected)
        tell(name, verdict)
        wrong = wrong or bool(verdict.unexplained or verdict.stale)
        rows.append(row(name, outcomes, verdict))
    print(f"\nAgainst {TARGETS[asked.against]}:")
    print("| suite | passed | failed | of them explained | skipped |")
    print("|---|---:|---:|---:|---:|")
    print("\n".join(rows))
    return 1 if wrong else 0


def arguments() -> argparse.Namespace:
    """The options, with their defaults."""
    parser = argparse.ArgumentParser(prog="python -m conformance.suites", description=__doc__)
    parser.add_argument("--suite", action="append", choices=SUITES, help="default: all")
    parser.add_argument("--against", default="catchwater", choices=list(TARGETS))
    return parser.parse_args()


def take(name: str, against: str) -> list[Outcome]:
    """The suite's outcomes against a broker started for it; each is also told as it comes."""
    suite: Suite = importlib.import_module(f"conformance.suites.{name}")
    folder = BUILT / "suites" / f"{name}-{against}"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    outcomes = []
    for outcome in _outcomes(suite, against, folder):
        line = f"{name}  {outcome.status:7} {outcome.name}  {outcome.note}"
        print(line.rstrip(), flush=True)
        outcomes.append(outcome)
    return outcomes


def _outcomes(suite: Suite, against: str, folder: Path) -> Iterator[Outcome]:
    settings = suite.settings(against, folder) if isinstance(suite, ConfiguredSuite) else None
    with target(against, settings) as bootstrap:
        yield from suite.run(bootstrap, folder)
    if isinstance(suite, KillingSuite):
        yield from suite.run_killing(against, folder)


def tell(name: str, verdict: Verdict) -> None:
    """What the run came to, a line each; of what is explained, reasons with their number."""
    for reason, count in Counter(reason for _, reason in verdict.explained).items():
        print(f"{name}: expected {count:4}: {reason}")
    for outcome in verdict.unexplained:
        print(f"{name}: FAILED {outcome.name}: {outcome.note}")
    for excuse in verdict.stale:
        print(f"{name}: stale, no test fails like this any more: {excuse.name} ({excuse.reason})")


def row(name: str, outcomes: Sequence[Outcome], verdict: Verdict) -> str:
    """The suite's line of the table."""
    counts = Counter(outcome.status for outcome in outcomes)
    cells = [counts["passed"], counts["failed"], len(verdict.explained), counts["skipped"]]
    return f"| `{name}` | {' | '.join(map(str, cells))} |"


if __name__ == "__main__":
    sys.exit(main())
