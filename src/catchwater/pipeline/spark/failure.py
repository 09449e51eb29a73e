"""What made a query fail, in one sentence, out of what Spark tells of it."""

import importlib
import re
from pathlib import Path

from catchwater.config import CatchwaterError

_OURS = re.compile(
    r"^(?:.*\s)?(catchwater(?:\.\w+)+)\.(\w+): (.+)$(?:\n\s*hint: (.+)$)?", re.MULTILINE
)
"""Our errors in a Python worker's traceback, with their hints."""
_ENDED = re.compile(r"terminated with exception: (.+?)(?: SQLSTATE: \w+)?$", re.MULTILINE)
"""What Spark says itself, before it tells the query's state."""


class PipelineFailed(CatchwaterError):
    """The query ended with an error; the message is its cause."""

    kind = "PipelineFailed"
    """The class of the error that made it end, where that is one of ours."""


def is_starved(text: str) -> bool:
    """Whether a query failed because a Python process was not there within Spark's 10 s for it."""
    return "failed to connect back" in text


def cause(text: str, log_path: Path) -> CatchwaterError:
    """One sentence out of what Spark says of a failed query; our own errors by their own words."""
    hint = f"The whole story is in {log_path}."
    ours = _OURS.findall(text)
    if ours:
        module, name, message, told = ours[-1]
        hint = f"{told} {hint}".lstrip()
        kind = getattr(importlib.import_module(module), name, None)
        failed = PipelineFailed(f"The pipeline failed: {message}", hint=hint)
        failed.exit_code = getattr(kind, "exit_code", 1)
        failed.kind = name
        return failed
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
    told = errors or _ENDED.findall(text) or lines or ["no cause was given"]
    return PipelineFailed(f"The pipeline failed: {told[-1]}", hint=hint)
