"""The topics that match a regular expression: RE2's syntax, on the whole name (KIP-848).

Kafka's brokers use RE2/J, the same syntax in Java. Neither has look-around or back-references, and
both take time in proportion to pattern times name, so no client can make matching exponential. RE2
comes with pyarrow, which also bounds the memory of a compiled pattern.

Matches are cached for a second, so that the heartbeats of a thousand members with one pattern scan
the topics once.
"""

import asyncio
from collections.abc import Iterable
from types import ModuleType
from typing import Any

from catchwater.catalog.rows import Topic
from catchwater.clock import Clock

LONGEST_PATTERN = 4_096
MAX_CACHED = 1_000
CACHED_S = 1.0


class Patterns:
    """Matches patterns against topic names, with a cache."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._arrow: tuple[ModuleType, ModuleType] | None = None
        self._names: Any = None
        self._found: dict[str, frozenset[str]] = {}
        self._until_s = 0.0

    async def refusal(self, pattern: str) -> str | None:
        """Why the pattern is refused; None if `matching` can take it."""
        if len(pattern) > LONGEST_PATTERN:
            return f"The regular expression is longer than {LONGEST_PATTERN} characters."
        try:
            if self._arrow is None:
                # A second of work.
                self._arrow = await asyncio.to_thread(_import_arrow)
        except ImportError:
            return "Regular expressions need pyarrow: pip install 'catchwater[parquet]'."
        arrow, compute = self._arrow
        nothing = arrow.array([""], arrow.string())
        try:
            # First without the brackets of `_whole`, which the pattern could otherwise close.
            compute.match_substring_regex(nothing, pattern)
            compute.match_substring_regex(nothing, _whole(pattern))
        except arrow.ArrowInvalid as error:
            return str(error)
        return None

    def matching(self, pattern: str, topics: Iterable[Topic]) -> frozenset[str]:
        """The matching names; a new topic is included after at most a second."""
        assert self._arrow is not None
        arrow, compute = self._arrow
        now_s = self._clock.monotonic_s()
        if now_s >= self._until_s or len(self._found) >= MAX_CACHED:
            self._found.clear()
            self._names = arrow.array([topic.name for topic in topics], arrow.string())
            self._until_s = now_s + CACHED_S
        if pattern not in self._found:
            matches = compute.match_substring_regex(self._names, _whole(pattern))
            self._found[pattern] = frozenset(self._names.filter(matches).to_pylist())
        return self._found[pattern]


def _import_arrow() -> tuple[ModuleType, ModuleType]:
    import pyarrow
    import pyarrow.compute

    return pyarrow, pyarrow.compute


def _whole(pattern: str) -> str:
    return rf"\A(?:{pattern})\z"
