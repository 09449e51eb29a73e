"""The long forms of the tests in slices: CI runs one after `make check`, chosen by the commit.

`python -m tests.slices run` chooses by HEAD, or by COMMIT, or takes the slice that SLICE names
("none" for no slice, "all" for all, one after the other). `list` shows them; `needs` prints what
the chosen one asks for, as command:package of Debian.

Every slice is made of `make` targets that anybody can run. A command that fails, or takes longer
than BOUND_S allows, ends the run with exit code 1. Needs no more than Python itself, because CI
asks before anything is installed.
"""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
BOUND_S = 60 * float(os.environ.get("SLICE_MINUTES", "25"))
"""Of a whole slice; `.ci/run` allows more where the machine is slow."""

GRACE_S = 60.0

NOT_LONG = frozenset(
    "help setup style format types tidy unit test check docs lock clean demo slice hops".split()
    + "drill bench bench-functions bench-replay cluster wheelhouse".split()
)
"""Targets of the Makefile that are no long form of the tests, or a slice of that name (`cluster`):
all others stand in a slice.
"""


class Slice(NamedTuple):
    """Some of the long forms: commands one after the other, and the tools that only they need."""

    commands: tuple[tuple[str, ...], ...]
    tools: tuple[str, ...] = ()
    """Each a command and the package of Debian that has it."""


def _slow(*paths: str) -> tuple[str, ...]:
    return ("make", "slow", "TESTS=" + " ".join(paths))


def _e2e(*names: str) -> list[str]:
    return [f"tests/e2e/test_{name}.py" for name in names]


_JDK = ("javac:openjdk-17-jdk-headless",)
_NODE = ("node:nodejs", "npm:npm")


def _clients(*kinds: str) -> Slice:
    """All clients, by these ways to come in."""
    return Slice(
        tuple(("make", "conformance", f"SECURITY={kind}") for kind in kinds), (*_JDK, *_NODE)
    )


SLICES: dict[str, Slice] = {
    "slow-log": Slice((_slow("tests/unit", "tests/conformance/test_[a-j]*.py"),), _JDK),
    "slow-sinks": Slice((_slow("tests/conformance/test_[k-z]*.py"),)),
    "slow-clients": Slice((_slow("tests/conformance/clients"),), _JDK),
    "slow-kafkas": Slice(
        (_slow(*_e2e("old_kafkas", "mixed_versions", "golden", "secured_pipeline", "tables")),)
    ),
    "cluster": Slice((_slow(*_e2e("hosts", "cluster")),), ("ip:iproute2", "tini:tini")),
    "cluster-lives": Slice((_slow(*_e2e("cluster_lives")),), ("ip:iproute2",)),
    "slow-operators": Slice((_slow(*_e2e("operators")),)),
    "slow-operator-lives": Slice((_slow(*_e2e("operator_lives")),)),
    "slow-states": Slice((_slow(*_e2e("large_state", "peak", "state_faults")),)),
    "slow-lives": Slice(
        (
            _slow(
                *_e2e("sink_lives", "ways_back", "rebuild_steps", "rebuild_store", "deleted_input")
            ),
            _slow(*_e2e("reset", "region_lost", "readiness", "explained")),
        )
    ),
    "slow-watched": Slice(
        (_slow("tests/browser", *_e2e("status", "typed_events")),), ("chromium:chromium",)
    ),
    "slow-runs": Slice(
        (
            _slow(
                *_e2e(
                    "pipeline",
                    "one_url",
                    "restore_points",
                    "sinks",
                    "supervisor",
                    "versions",
                    "calls",
                )
            ),
        )
    ),
    "slow-sink-away": Slice((_slow(*_e2e("slow_sink", "late")),)),
    "slow-examples": Slice(
        (_slow("examples", *_e2e("examples", "demo", "dev", "backfill", "history_corpus")),)
    ),
    "drills": Slice((_slow(*_e2e("drills")),)),
    "drills-worse": Slice((_slow(*_e2e("drills_worse")),)),
    "drills-elsewhere": Slice((_slow(*_e2e("drills_elsewhere")),)),
    "kills": Slice((("make", "e2e", "TESTS=" + " ".join(_e2e("pipeline", "sinks"))),)),
    "operator-kills": Slice(
        (
            (
                "make",
                "e2e",
                "TESTS=tests/e2e/test_operator_lives.py"
                "::test_a_driver_of_all_operators_is_killed_again_and_again",
            ),
        )
    ),
    "suites": Slice((("make", "suites"),), _JDK),
    "clients": Slice((("make", "conformance"), ("make", "differences")), (*_JDK, *_NODE)),
    "clients-certificates": _clients("mtls", "ssl"),
    "clients-passwords": _clients("sasl_ssl-plain", "sasl_ssl-oauthbearer"),
    "clients-scram": _clients("sasl_ssl-scram-512", "sasl_ssl-scram-256"),
    "rules": Slice((("make", "differences", "ARGS=--security"),), _JDK),
    "crashes": Slice((("make", "kill-points", "POINTS=300"), ("make", "storm"))),
    "simulation": Slice((("make", "sim", "SEEDS=500"),)),
    "chaos": Slice((("make", "chaos", "MINUTES=10"),)),
    "soak": Slice((("make", "soak", "MINUTES=10"),)),
}


def chosen(commit: str) -> str:
    """The name of the slice that belongs to a commit, of which all 40 digits are given."""
    number = int.from_bytes(hashlib.sha256(commit.encode()).digest()[:8], "big")
    return list(SLICES)[number % len(SLICES)]


def _asked() -> list[str]:
    """The slices that COMMIT and SLICE ask for; HEAD's where neither does."""
    name = os.environ.get("SLICE", "")
    if name in ("all", "none"):
        return list(SLICES) if name == "all" else []
    if name and name not in SLICES:
        sys.exit(f"error: no slice is called {name!r}; there are: {', '.join(SLICES)}, all, none")
    if name:
        return [name]
    commit = _revision(os.environ.get("COMMIT") or "HEAD")
    print(f"The slice of commit {commit[:12]} is {chosen(commit)}.", file=sys.stderr)
    return [chosen(commit)]


def _revision(commit: str) -> str:
    parsed = subprocess.run(
        ["git", "rev-parse", "--verify", commit + "^{commit}"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if parsed.returncode:
        sys.exit(f"error: {commit} is no commit here")
    return parsed.stdout.strip()


def run(name: str) -> None:
    """Run a slice's commands; ends the process with exit code 1 where one fails or takes long."""
    until_s = time.monotonic() + BOUND_S
    for command in SLICES[name].commands:
        print(f"slice {name}: {' '.join(command)}", flush=True)
        process = subprocess.Popen(command, cwd=ROOT, start_new_session=True)
        try:
            code = process.wait(max(0.0, until_s - time.monotonic()))
        except (subprocess.TimeoutExpired, KeyboardInterrupt):
            _end(process)
            sys.exit(f"error: slice {name} was ended after {BOUND_S / 60:g} min in {command[1]}")
        if code:
            sys.exit(f"error: slice {name} failed: {' '.join(command)} ended with {code}")
    print(f"slice {name}: passed", flush=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let pytest stop what it has started, then kill what is left."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def main(arguments: list[str]) -> None:
    """What the module's docstring says."""
    match arguments:
        case ["run"]:
            for name in _asked():
                run(name)
        case ["list"]:
            for name, each in SLICES.items():
                print(f"{name:20}", " && ".join(" ".join(command) for command in each.commands))
        case ["needs"]:
            print(*dict.fromkeys(tool for name in _asked() for tool in SLICES[name].tools))
        case _:
            sys.exit("usage: python -m tests.slices run|list|needs")


if __name__ == "__main__":
    main(sys.argv[1:])
