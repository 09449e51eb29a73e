"""What made a query fail, in one sentence, out of what Spark and its processes tell of it.

A JVM that ends unasked, told in one sentence.

What asks it something then fails in a way of its own: Spark's bridge with a refused connection,
its server for counters, of which we have none, with a traceback on the screen.
"""

import importlib
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.pipeline import workers
from catchwater.pipeline.workers import ended

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


DYING_S = 10.0
"""So long may a JVM that does not answer take to end."""


class JvmEnded(CatchwaterError):
    """Spark's JVM has ended, and nobody had told it to."""


@contextmanager
def alive(spark: "SparkSession") -> Iterator[None]:
    """Raises `JvmEnded` where what is done meanwhile fails because the JVM is gone."""
    from py4j.protocol import Py4JNetworkError

    process = getattr(spark.sparkContext._gateway, "proc", None)  # None: a launcher has made it
    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        if process is None:
            raise
        try:
            code = process.wait(DYING_S)
        except subprocess.TimeoutExpired:
            raise error from None
        raise JvmEnded(
            f"Spark's JVM {ended(code)}.",
            hint="Where memory is short, the system ends what takes most: see the kernel's log.",
        ) from error


def without_tracebacks(context: Any) -> None:
    """Let the server for counters be silent about a JVM that is gone."""
    context._accumulatorServer.handle_error = lambda request, address: None


_OURS = re.compile(
    r"^(?:.*\s)?(catchwater(?:\.\w+)+)\.(\w+): (.+)$(?:\n\s*hint: (.+)$)?", re.MULTILINE
)
"""Our errors in a Python worker's traceback, with their hints."""
_ENDED = re.compile(r"terminated with exception: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""What Spark says itself, before it tells the query's state."""
_STATE = "=== Streaming Query ==="
"""Where Spark goes on with the query's plan and state: no cause stands there."""
_CRASHED = "Python worker exited unexpectedly"
"""What Spark says of a worker that is gone, also where it names another cause."""
_RAISED = "Traceback (most recent call last)"
"""What Spark says where a Python process could still say something itself. Of one that is gone it
says any of a dozen things, or nothing: a broken pipe, an end of file, "no cause message"."""
_PATIENCE_S, _RECENT_MS, _POLL_S = 2.0, 60_000, 0.02
"""Spark may notice the end of a process before how it ended is written down."""


@dataclass(frozen=True)
class Traces:
    """What the processes of one session leave of what happens to them."""

    log: Path
    """Spark's log."""
    folder: Path | None = None
    """Where its Python processes' ends are written down (`workers`)."""
    since_ms: int = 0
    """When the query began: what ended before is not its failure."""


class PipelineFailed(CatchwaterError):
    """The query ended with an error; the message is its cause."""

    kind = "PipelineFailed"
    """The class of the error that made it end, where that is one of ours."""


def is_starved(text: str) -> bool:
    """Whether a query failed because a Python process was not there within Spark's 10 s for it."""
    return "failed to connect back" in text


def cause(text: str, traces: Traces, clock: Clock = SYSTEM) -> CatchwaterError:
    """One sentence out of what Spark says of a failed query.

    Our own errors by their own words; else a Python process that died; else Spark's last error.
    """
    where = f"The whole story is in {traces.log}."
    ours = _OURS.findall(text)
    if ours:
        module, name, message, hint = ours[-1]
        kind = getattr(importlib.import_module(module), name, None)
        failed = PipelineFailed(f"The pipeline failed: {message}", hint=f"{hint} {where}".lstrip())
        failed.exit_code = getattr(kind, "exit_code", 1)
        failed.restart = getattr(kind, "restart", Restart.AGAIN)
        failed.kind = name
        return failed
    said = text.partition(_STATE)[0]
    silent = _CRASHED in said or (_RAISED not in said and not is_starved(said))
    if silent and (ended := _latest_end(traces, clock)):
        failed = PipelineFailed(
            f"The pipeline failed: {ended}.", hint=f"{workers.hint(ended)} {where}"
        )
        failed.kind = "ProcessEnded"
        return failed
    return PipelineFailed(f"The pipeline failed: {_last_error(said)}", hint=where)


def _latest_end(traces: Traces, clock: Clock) -> workers.ProcessEnd | None:
    """How the last of the query's processes ended, if one has just now."""
    if traces.folder is None:
        return None
    deadline_s = clock.monotonic_s() + _PATIENCE_S
    while True:
        for each in reversed(workers.read_ends(traces.folder)):
            if each.code and each.at_ms >= max(traces.since_ms, clock.now_ms() - _RECENT_MS):
                return each
        if clock.monotonic_s() > deadline_s:
            return None
        clock.pause(_POLL_S)


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    return (errors or _ENDED.findall(text) or lines or ["no cause was given"])[-1]
