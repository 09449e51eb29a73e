"""A partition's state from its segments, and the choice of segments: for a rebuild."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from catchwater.catalog.rows import RunRow
from catchwater.log.format.segment import batches_of, read_footer
from catchwater.log.write.sequence import BATCHES_KEPT, PartitionState, ProducerState
from catchwater.objects.base import ObjectStore
from catchwater.wire.batch import BatchHeader


def headers(objects: ObjectStore, run: RunRow) -> Iterator[BatchHeader]:
    """The headers of a segment's batches, with final offsets; reads the whole segment.

    Raises `DamagedObject` or `StoreError`.
    """
    footer = read_footer(objects, run.object)
    data = objects.get_range(run.object, run.byte_offset, run.byte_size)
    return (batch.header for batch in batches_of(footer, run.object, data))


def apply_header(header: BatchHeader, state: PartitionState, now_ms: int) -> None:
    """Apply a batch's header to the states of its producer and its transaction."""
    producer_id = header.producer_id
    if header.is_control:
        state.open_txns.pop(producer_id, None)
    elif header.is_transactional:
        state.open_txns.setdefault(producer_id, header.base_offset)
    if producer_id >= 0 and not header.is_control:
        known = state.producers.get(producer_id)
        older = known.batches if known and known.epoch == header.producer_epoch else ()
        last = (header.base_sequence + header.last_offset_delta) % 2**31
        batches = (*older, (header.base_sequence, last, header.base_offset))[-BATCHES_KEPT:]
        state.producers[producer_id] = ProducerState(header.producer_epoch, batches, now_ms)


class Coverage(NamedTuple):
    """Runs that hold every offset once, and the offsets that no run holds."""

    runs: list[RunRow]
    gaps: list[tuple[int, int]]
    """(first, last), both inclusive."""


def cover(
    log_start: int, high_watermark: int, segments: Mapping[RunRow, int], chunks: Iterable[RunRow]
) -> Coverage:
    """Choose runs for [log start, high watermark), where several objects hold the same offsets.

    A packed segment has the records of the chunks and smaller segments that it replaced, which are
    deleted some time later. Any of them is right; the longest is chosen because it is the newest.
    `segments` maps runs to the time they were written, ms.
    """
    from_base: dict[int, list[RunRow]] = defaultdict(list)
    for run in (*segments, *chunks):
        if run.last_offset >= log_start:
            from_base[max(run.base_offset, log_start)].append(run)
    bases = sorted(from_base)
    covered = Coverage([], [])
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
