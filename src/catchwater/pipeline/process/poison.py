"""The error of an event that cannot be handled, and when the pipeline stops for it.

`Progress` says which event is being handled, and which events are known to end badly. A handler
that does not end, or ends its process, cannot report that itself: the watchdog (`watchdog`) reads
`Progress`, and notes there what the next pass over the epoch has to know.
"""

import hashlib
import inspect
import linecache
import os
import re
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from catchwater.config import CatchwaterError, Restart
from catchwater.pipeline.functions.spec import FunctionSpec, Poison
from catchwater.pipeline.process.batch import Batch, Poisoned, Processed
from catchwater.pipeline.process.context import EpochContext
from catchwater.state.keys import HASH_BYTES, EventRefused

TIMER = "timer "
"""Before a timer's name, where else a topic and partition stand."""


class HandlerTimeout(BaseException):
    """One call of a handler takes too long: raised inside it, by who watches.

    Not an `Exception`, so that a handler that catches those ends all the same.
    """


class Cause(NamedTuple):
    """What a handler is called for."""

    origin: str
    """"topic-partition"; of a timer "timer NAME"."""
    offset: int
    """Of a timer: the time (ms) it was set for."""
    key: bytes
    """Without its hash."""


@dataclass
class Progress:
    """One epoch of one shard."""

    careful: bool = False
    """Whether the first pass is a careful one: a handler has ended a process."""
    known: dict[Cause, str] = field(default_factory=dict)
    """What is not tried again, each with what became of it."""
    note: Callable[[Cause], None] | None = None
    """Called by a careful pass before each handler."""
    spread: Callable[[Cause, str], None] | None = None
    """Called with what becomes known."""
    context: EpochContext | None = None
    """Of the pass under way; its `cause` is None while no handler runs."""
    batch: Batch | None = None
    """Where the event comes from that is being handled."""

    def blame(self, cause: Cause, text: str) -> None:
        """Do not try this again."""
        self.known[cause] = text
        if self.spread is not None:
            self.spread(cause, text)

    def cause(self) -> Cause | None:
        """What is being handled, for another thread or a signal's handler."""
        context, batch = self.context, self.batch
        found = context.cause if context else None
        if context is None or found is None:
            return None
        key = context.stored_key[HASH_BYTES:]
        if isinstance(found, tuple):
            return Cause(TIMER + found[1], found[0], key)
        if batch is None:
            return Cause("", -1, key)
        index = next((i for i, event in enumerate(batch.events) if event is found), None)
        if index is None:
            return Cause(batch.origin, -1, key)
        return Cause(batch.origin_of(index), int(batch.offsets[index]), key)


_OURS = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))


class EventFailed(CatchwaterError):
    """An event cannot be handled, and the function's policy is to fail."""

    restart = Restart.ONCE


class PoisonLimitReached(CatchwaterError):
    """There are more poisoned records than the declared limit."""

    restart = Restart.ONCE


def is_poison(error: Exception) -> bool:
    """Whether an error is the event's fault or the handler's, and not the machinery's."""
    return not isinstance(error, CatchwaterError) or isinstance(error, EventRefused)


def apply_policy(
    spec: FunctionSpec,
    poison: Poison,
    done: Processed,
    found: Poisoned,
    *,
    may_quote: bool = True,
) -> None:
    """Apply the policy to a poisoned record; raises where the pipeline has to stop.

    `may_quote`: the error may quote the record; one that a watcher noted does not.
    """
    done.poisoned.append(found)
    error = found.error
    if may_quote:
        error = without_payload(error, _key(spec, found.key), found.value)
    if poison.policy == "fail":
        raise EventFailed(
            f"Function {spec.name!r} cannot handle {_place(found)}: {error}",
            hint="Correct the function or its event class; or declare poison='dead-letter'.",
        ) from None  # what was raised quotes what it likes, and its place is in the message
    if poison.limit is not None and len(done.poisoned) > poison.limit:
        raise PoisonLimitReached(
            f"Function {spec.name!r} met more than {poison.limit} records it cannot handle; the "
            f"last one is {_place(found)}: {error}",
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


def _place(found: Poisoned) -> str:
    key = "" if found.key is None else f", key {key_hash(found.key)}"
    if found.origin.startswith(TIMER):
        return f"the {found.origin} of {found.offset}{key}"
    return f"the event at {found.origin}, offset {found.offset}{key}"


def _key(spec: FunctionSpec, key: bytes | None) -> bytes | None:
    """The key as its function sees it."""
    if key is None:
        return None
    try:
        decoded = spec.decode_key(key)
    except ValueError:
        return key
    return decoded if isinstance(decoded, bytes) else str(decoded).encode()


def key_hash(key: bytes) -> str:
    """What stands for a key in messages and logs: `#` and the beginning of its SHA-256."""
    return f"#{hashlib.sha256(key).hexdigest()[:12]}"


_LEAST_SCRUBBED = 3
_WORD = re.compile(rb"[^\s\"'{}\[\](),:;=]+")


def without_payload(text: str, key: bytes | None, value: bytes) -> str:
    """The text of a handler's error without what it quotes of the record: `…` stands in its place.

    Fields' names stay. What a handler has computed of a record, and then raises, is its own to say.
    """
    quoted: set[str] = set()
    for data in filter(None, (key, value)):
        quoted |= _texts(data)
    for part in sorted(quoted, key=len, reverse=True):
        if len(part) >= _LEAST_SCRUBBED:
            text = text.replace(part, "…")
        else:
            text = re.sub(rf"(?<=['\"]){re.escape(part)}(?=['\"])", "…", text)
    return text


def _texts(data: bytes) -> set[str]:
    """What a record's bytes say: the values of JSON, else their words."""
    try:
        waiting, found = [msgspec.json.decode(data)], set()
    except (msgspec.DecodeError, ValueError, RecursionError):
        words = [data, *_WORD.findall(data)]
        found = {each.decode(errors="replace") for each in words} | {repr(data)[2:-1]}
        return found - {""}
    while waiting:
        match waiting.pop():
            case dict() as inside:
                waiting += inside.values()
            case list() as inside:
                waiting += inside
            case str() | int() | float() as leaf if not isinstance(leaf, bool):
                found.add(str(leaf))
    return found - {""}
