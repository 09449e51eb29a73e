"""Run pytest, and where a few tests fail, run their files alone, several times.

`python -m tests.again ARGUMENTS OF PYTEST`, with `-m` among them. Ten thousand tests share a
machine for half an hour with hundreds of brokers and Sparks that they start, and wait for each
other. A test that fails there and passes `TIMES` times with nothing beside it is unsteady: it is
named at the end, is to be mended, and the run has passed. One that fails once more has failed, and
so have more than `FEW`. What is wrong in every run, or is drawn by seed, fails again.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

TIMES = 3
FEW = 3
_TESTS_FAILED = 1
"""Pytest's exit code; others say that the run itself went wrong."""


def main(arguments: Sequence[str]) -> int:
    """The exit code of pytest, or 0 where all that failed is unsteady."""
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder, "cache")
        code = _pytest("-o", f"cache_dir={cache}", *arguments)
        if code != _TESTS_FAILED:
            return code
        failed = sorted(json.loads((cache / "v/cache/lastfailed").read_text()))
    if len(failed) > FEW:
        return code
    files = dict.fromkeys(test.partition("::")[0] for test in failed)
    for time in range(1, TIMES + 1):
        print(f"Failed beside others, run alone, {time} of {TIMES}: {' '.join(failed)}", flush=True)
        again = _pytest("-q", "-m", arguments[arguments.index("-m") + 1], *files)
        if again:
            return again
    for test in failed:
        print(
            f"UNSTEADY {test}: failed beside others, and passed {TIMES} times with its file alone"
        )
    return 0


def _pytest(*arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
