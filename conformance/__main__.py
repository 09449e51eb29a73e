"""`python -m conformance`: clients through steps against a broker, a table, and an exit code.

Exit code 1 if a step failed that docs/protocol.md does not explain.
"""

import argparse
import sys
from fnmatch import fnmatch

from conformance.programs import CLIENTS, Missing, program
from conformance.report import PAGE, explained, table, unexplained
from conformance.run import Result, take_steps
from conformance.security import KINDS, secured
from conformance.steps import STEPS
from conformance.targets import TARGETS, target


def main() -> int:
    """Run what the command line asks for."""
    asked = arguments()
    steps = [step for step in STEPS if any(fnmatch(step, p) for p in asked.steps.split(","))]
    # What Catchwater is excused from is no excuse for Apache Kafka: there the script is at fault.
    reasons = explained(PAGE.read_text()) if asked.against == "catchwater" else {}
    results: list[Result] = []
    versions: dict[str, str] = {}
    clients = [c for c in asked.client.split(",") if c] or list(CLIENTS)
    with secured(asked.security) as way, target(asked.against, way.settings) as bootstrap:
        for client in clients:
            try:
                built = program(client, way.environment)
            except Missing as reason:
                print(f"{client}: skipped, {reason}", flush=True)
                continue
            versions[client] = built.version
            results += take_steps(client, built, bootstrap, steps, tell)
    by = f" by {asked.security}" if asked.security else ""
    print(f"\nAgainst {TARGETS[asked.against]}{by}: "
          + ", ".join(f"{client} {version}" for client, version in versions.items()))  # fmt: skip
    print(table(steps, list(versions), results, reasons))
    wrong = unexplained(results, reasons)
    for result in wrong:
        print(f"FAILED {result.client} {result.step}: {result.reason}")
    return 1 if wrong else 0


def arguments() -> argparse.Namespace:
    """The options, with their defaults."""
    parser = argparse.ArgumentParser(prog="python -m conformance", description=__doc__)
    parser.add_argument("--client", default="", help=f"of {', '.join(CLIENTS)}; default all")
    parser.add_argument("--against", default="catchwater", choices=list(TARGETS))
    parser.add_argument("--steps", default="*", help="names or patterns, with commas between")
    parser.add_argument(
        "--security", default="", choices=["", *KINDS], metavar="KIND",
        help=f"how clients come in: {', '.join(KINDS)}; default in plaintext, without a login",
    )  # fmt: skip
    asked = parser.parse_args()
    if asked.security and asked.against != "catchwater":
        parser.error("--security is for our own broker, not for --against kafka")
    return asked


def tell(result: Result) -> None:
    """One line as soon as a step is over."""
    line = f"{result.client:14} {result.outcome:4} {result.step:22} {result.seconds:5.1f} s"
    print(f"{line}  {result.reason}".rstrip(), flush=True)


if __name__ == "__main__":
    sys.exit(main())
