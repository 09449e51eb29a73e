"""What is said of an event that cannot be handled, and when it is the pipeline that stops."""

import inspect
import linecache
import os
import traceback
from collections.abc import Callable
from typing import Any

from catchwater.config import CatchwaterError, Restart
from catchwater.pipeline.functions.policy import EventRefused, Poison
from catchwater.pipeline.functions.spec import FunctionSpec
from catchwater.pipeline.process.batch import Poisoned, Processed
from catchwater.pipeline.process.progress import TIMER
from catchwater.state.keys import KeyTooLong, KeyUnusable

_REFUSALS = (EventRefused, KeyTooLong, KeyUnusable)
_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


class EventFailed(CatchwaterError):
    """An event cannot be handled, and the function's policy is to fail."""

    restart = Restart.ONCE


class PoisonLimitReached(CatchwaterError):
    """There are more poisoned records than the declared limit."""

    restart = Restart.ONCE


def is_poison(error: Exception) -> bool:
    """Whether an error is the event's fault or the handler's, and not the machinery's."""
    return not isinstance(error, CatchwaterError) or isinstance(error, _REFUSALS)


def take(
    spec: FunctionSpec,
    poison: Poison,
    done: Processed,
    found: Poisoned,
    cause: Exception | None = None,
) -> None:
    """Put a poisoned record where it belongs; raises if that means to stop."""
    done.poisoned.append(found)
    if poison.policy == "fail":
        raise EventFailed(
            f"Function {spec.name!r} cannot handle {_place(spec, found)}: {found.error}",
            hint="Correct the function or its event class; or declare poison='dead-letter'.",
        ) from cause
    if poison.limit is not None and len(done.poisoned) > poison.limit:
        raise PoisonLimitReached(
            f"Function {spec.name!r} met more than {poison.limit} records it cannot handle; the "
            f"last one is {_place(spec, found)}: {found.error}",
            hint="Correct the function or its event class, or raise poison_limit.",
        )


def describe(error: BaseException, target: Callable[..., Any]) -> str:
    """The error in one sentence, with its line in the user's file if it has one."""
    text = str(error) if isinstance(error, CatchwaterError) else f"{type(error).__name__}: {error}"
    text = " ".join(text.split()).rstrip(".")
    frame = _frame(error, target)
    if frame is None:
        given = text.startswith("TypeError: ") and text.endswith("object is not iterable")
        return text + (": outputs are yielded, or returned as a list." if given else ".")
    code = linecache.getline(frame.filename, frame.lineno or 0).strip()
    # Workers run a copy that is named by its digest: whose it is, the module says.
    where = frame.filename
    if where == _source(target):
        where = f"module {target.__module__} ({where})"
    return f"{text}, in {frame.name}, {where} line {frame.lineno}: {code}"


def _frame(error: BaseException, target: Callable[..., Any]) -> traceback.FrameSummary | None:
    """The innermost line of the function's own file, or else of any that is not ours."""
    found = traceback.StackSummary.extract(
        traceback.walk_tb(error.__traceback__), lookup_lines=False
    )
    foreign = [frame for frame in found if not frame.filename.startswith(_OURS)]
    in_own = [frame for frame in foreign if frame.filename == _source(target)]
    return (in_own or foreign or [None])[-1]  # type: ignore[list-item]


def _source(target: Callable[..., Any]) -> str | None:
    """The file that the function is in, as tracebacks name it."""
    try:
        return inspect.getsourcefile(target)
    except (TypeError, OSError):
        return None


def _place(spec: FunctionSpec, found: Poisoned) -> str:
    key = "" if found.key is None else f", key {_shown(spec, found.key)}"
    if found.origin.startswith(TIMER):
        return f"the {found.origin} of {found.offset}{key}"
    return f"the event at {found.origin}, offset {found.offset}{key}"


def _shown(spec: FunctionSpec, key: bytes) -> str:
    try:
        return repr(spec.decode_key(key))
    except ValueError:
        return repr(key)
