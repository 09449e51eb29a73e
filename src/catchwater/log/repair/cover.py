"""Which runs hold a partition's offsets, where several objects hold the same ones. Pure.

A packed segment holds what the chunks and smaller segments hold that it replaced, and those stay
for a while. Any of them is right; the longest is taken, for it is the newest.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from catchwater.catalog.rows import RunRow


class Covered(NamedTuple):
    """Runs that hold every offset once, and the offsets that none holds."""

    runs: list[RunRow]
    gaps: list[tuple[int, int]]
    """(first, last), both inclusive."""


def cover(
    log_start: int, high_watermark: int, segments: Mapping[RunRow, int], chunks: Iterable[RunRow]
) -> Covered:
    """Cover [log start, high watermark); segments come with the time they were written, ms."""
    from_base: dict[int, list[RunRow]] = defaultdict(list)
    for run in (*segments, *chunks):
        if run.last_offset >= log_start:
            from_base[max(run.base_offset, log_start)].append(run)
    bases = sorted(from_base)
    covered = Covered([], [])
    at = log_start
    while at < high_watermark:
        if at in from_base:
            longest = max(from_base[at], key=lambda run: (run.last_offset, segments.get(run, -1)))
            covered.runs.append(longest)
            at = longest.last_offset + 1
        else:
            index = bisect_left(bases, at)
            following = bases[index] if index < len(bases) else high_watermark
            covered.gaps.append((at, min(following, high_watermark) - 1))
            at = following
    return covered
