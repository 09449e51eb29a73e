"""One client taken through steps: start its program, read a line a step, judge what is missing.

The program prints `pass NAME`, `fail NAME REASON` or `skip NAME REASON` for each step in the
order given; lines of any other form are its library's. If it ends or stays silent for `TIMEOUT_S`
before a step's line, that step has failed, and the program is started again with the steps that
are left.
"""

import os
import queue
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO

from conformance.programs import ROOT, Program
from conformance.steps import TIMEOUT_S

MAX_REASON = 200


@dataclass(frozen=True)
class Result:
    """How a client's step went: `outcome` is pass, fail or skip; `reason` is empty for a pass."""

    client: str
    step: str
    outcome: str
    reason: str = ""
    seconds: float = 0.0


def take_steps(
    client: str,
    program: Program,
    bootstrap: str,
    steps: Sequence[str],
    tell: Callable[[Result], None],
) -> list[Result]:
    """Results in the order of `steps`; each is also told as it comes."""
    results: list[Result] = []
    while len(results) < len(steps):
        left = list(steps[len(results) :])
        prefix = f"{client}-{len(results)}"
        for result in _one_life(client, program, bootstrap, prefix, left):
            results.append(result)
            tell(result)
    return results


def _one_life(
    client: str, program: Program, bootstrap: str, prefix: str, steps: list[str]
) -> Iterator[Result]:
    """Results until the program ends; at least one."""
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            [*program.command, bootstrap, prefix, *steps],
            cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True,
            env={**os.environ, **program.environment}, start_new_session=True,
        )  # fmt: skip
        lines: queue.Queue[str | None] = queue.Queue()
        assert process.stdout is not None
        reader = threading.Thread(target=_pump, args=(process.stdout, lines))
        reader.start()
        try:
            for step in steps:
                began_s = time.monotonic()
                outcome, reason = _await_line(step, lines, errors)
                yield Result(client, step, outcome, reason, time.monotonic() - began_s)
                if reason.startswith(ENDED):
                    return
        finally:
            process.kill()
            process.wait()
            reader.join()
            process.stdout.close()


ENDED = "the program "


def _pump(stdout: IO[str], lines: "queue.Queue[str | None]") -> None:
    for line in stdout:
        lines.put(line)
    lines.put(None)


def _await_line(step: str, lines: "queue.Queue[str | None]", errors: IO[str]) -> tuple[str, str]:
    """Outcome and reason of the step that is running."""
    form = re.compile(rf"(pass|fail|skip) {re.escape(step)}(?: (.*))?$")
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return "fail", f"{ENDED}did not answer within {TIMEOUT_S:.0f} s"
        if line is None:
            return "fail", f"{ENDED}ended: {_last_line(errors)}"
        if found := form.match(line.rstrip("\n")):
            return found[1], (found[2] or "")[:MAX_REASON]


def _last_line(errors: IO[str]) -> str:
    errors.seek(0)
    said = [line.strip() for line in errors.read().splitlines() if line.strip()]
    return said[-1][:MAX_REASON] if said else "nothing on stderr"
