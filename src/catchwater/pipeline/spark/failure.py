"""Why a query failed, in one sentence, from what Spark and its processes report."""

import importlib
import re
from dataclasses import dataclass
from pathlib import Path

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.pipeline import workers

_OURS = re.compile(
    r"^(?:.*\s)?(catchwater(?:\.\w+)+)\.(\w+): (.+)$(?:\n\s*hint: (.+)$)?", re.MULTILINE
)
"""Our errors in a Python worker's traceback, with their hints."""
_ENDED = re.compile(r"terminated with exception: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""Spark's own message, before the query's state."""
_STATE = "=== Streaming Query ==="
"""From here on Spark prints the query's plan and state, which have no cause in them."""
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
