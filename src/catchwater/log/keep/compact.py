"""The compactor: of every key the last value stays, in segments with holes.

A partition's runs begin with those that were cleaned and go on with those that were not, as their
objects' keys say; nothing else has to be remembered. A pass learns the keys of as many uncleaned
segments as fit its memory, then writes everything up to there anew, group by group from the oldest
on, each in one catalog commit. A crash between two commits leaves a cleaned beginning and a rest
to be cleaned, and every record that is not superseded where it was.

What may be cleaned ends at the first run that still lies in a chunk, at the first open
transaction, at the first pinned offset, and where records are younger than
`min.compaction.lag.ms`. A pin promises that what lies behind it can be replayed as it was
written, so nothing behind it is superseded for as long as it holds.

`Compactor` is used on the event loop; what blocks runs in threads.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from catchwater.broker_config import LogConfig
from catchwater.catalog.errors import RunsChanged
from catchwater.catalog.rows import ObjectRow, PartitionKey, RunRow, Topic
from catchwater.log.core import Core
from catchwater.log.format.batches import DamagedObject, StoredBatch
from catchwater.log.format.records import empty
from catchwater.log.format.segment import (
    AbortedTxn,
    SegmentTooNew,
    SegmentWriter,
    batches_of,
    is_cleaned,
    read_footer,
    segment_key,
)
from catchwater.log.keep.clean import Cleaning
from catchwater.log.keep.pack import aborted_in, groups, segment_run
from catchwater.log.storage import SEGMENTS, UNREADABLE
from catchwater.log.topic_settings import Policy

_LOG = logging.getLogger(__name__)

MAX_KEYS = 1_000_000
"""Records whose keys are learned in one pass, about 150 MB; one segment's, if it has more."""

_STRETCH_S = 0.01
"""After so much work it rests as long."""

Replace = Callable[[Sequence[RunRow], RunRow, ObjectRow], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Cut:
    """What one pass cleans: `runs` from the oldest on, of which `dirty` were not cleaned yet."""

    topic: Topic
    key: PartitionKey
    runs: Sequence[RunRow]
    dirty: Sequence[RunRow]
    aborted: Sequence[AbortedTxn]


class Compactor:
    """Cleans partitions one at a time."""

    def __init__(self, core: Core, config: LogConfig, max_keys: int = MAX_KEYS) -> None:
        self._core = core
        self._config = config
        self._max_keys = max_keys

    async def compact(
        self, topic: Topic, partition: int, policy: Policy, pinned: int | None, replace: Replace
    ) -> int:
        """Clean a partition if it is worth it; returns the number of segments written.

        `replace` commits a segment in the place of runs, or says that it must not. Raises
        `StoreError`, `CatalogFull` or `CatalogDead`; what was committed until then stays.
        """
        key = (topic.id, partition)
        cut = await asyncio.to_thread(self._cut, topic, key, policy, pinned)
        if cut is None:
            return 0
        now_ms = self._core.clock.now_ms()
        cleaning = Cleaning(cut.aborted, now_ms, policy.delete_retention_ms)
        written = 0
        try:
            await asyncio.to_thread(self._learn, cut, cleaning)
            for group in groups(cut.runs, self._config):
                segment = await asyncio.to_thread(self._write, cut, group, cleaning)
                if segment is None:
                    continue
                if not await self._commit(group, *segment, replace):
                    break
                written += 1
        except (DamagedObject, SegmentTooNew, *UNREADABLE) as error:
            # What was cleaned until then is right in itself.
            _LOG.error("Partition %d of %s is not compacted: %s", partition, topic.name, error)
        return written

    def _cut(
        self, topic: Topic, key: PartitionKey, policy: Policy, pinned: int | None
    ) -> Cut | None:
        catalog = self._core.catalog
        newest_ms = self._core.clock.now_ms() - policy.min_compaction_lag_ms
        if policy.min_compaction_lag_ms == 0:
            newest_ms = 2**63
        packed = list(takewhile(lambda run: run.object.startswith(SEGMENTS), self._runs(key)))
        # After the runs: a transaction with records in them is open now, or seen as it ended.
        opened = [txn.first_offset for txn in catalog.open_txns_on(key)]
        end = min([2**63, *opened, *([] if pinned is None else [pinned])])
        runs = list(
            takewhile(lambda run: run.last_offset < end and run.max_timestamp <= newest_ms, packed)
        )
        clean = list(takewhile(lambda run: is_cleaned(run.object), runs))
        dirty = runs[len(clean) :]
        dirty_bytes = sum(run.byte_size for run in dirty)
        all_bytes = sum(run.byte_size for run in runs)
        if not dirty or dirty_bytes < policy.min_dirty_ratio * all_bytes:
            return None
        dirty = _first_records(dirty, self._max_keys)
        runs = [*clean, *dirty]
        return Cut(topic, key, runs, dirty, aborted_in(catalog, runs))

    def _runs(self, key: PartitionKey) -> Iterator[RunRow]:
        offset = 0
        while runs := self._core.catalog.runs(key, offset):
            yield from runs
            offset = runs[-1].last_offset + 1

    def _learn(self, cut: Cut, cleaning: Cleaning) -> None:
        for run in cut.dirty:
            for batch in self._batches(run):
                cleaning.learn(batch)
        for reason in cleaning.unopened:
            _LOG.warning("%s It stays as it is, in partition %d of %s.",
                         reason, cut.key[1], cut.topic.name)  # fmt: skip

    def _write(
        self, cut: Cut, group: Sequence[RunRow], cleaning: Cleaning
    ) -> tuple[RunRow, ObjectRow] | None:
        """The group as one cleaned segment, written; None where it is that already."""
        segment = SegmentWriter(*cut.key[:1], cut.topic.name, cut.key[1],
                                cleaned_from=group[0].base_offset)  # fmt: skip
        is_changed = len(group) > 1 or not is_cleaned(group[0].object)
        for run in group:
            for batch in self._batches(run):
                kept = cleaning.keep(batch)
                if kept is not None:
                    segment.put(*kept)
                    is_changed |= kept[1] is not batch.data
                else:
                    is_changed |= batch.header.record_count > 0
        if segment.next_offset <= group[-1].last_offset:
            # So that a reader finds a batch at every offset, and gets to the end of the range.
            segment.put(*empty(group[-1].last_offset))
        if not is_changed:
            return None
        parts, footer = segment.finish(aborted_in(self._core.catalog, group))
        object_key = segment_key(footer, self._core.clock.token())
        size = self._core.storage.objects.put_if_absent(object_key, parts)
        row = ObjectRow(object_key, "segment", "live", size, self._core.clock.now_ms())
        return segment_run(footer, object_key), row

    def _batches(self, run: RunRow) -> Iterator[StoredBatch]:
        """The run's batches; opening them in Python must not keep the event loop waiting."""
        footer = read_footer(self._core.storage.objects, run.object)
        data = self._core.storage.read(run.object, run.byte_offset, run.byte_size)
        clock = self._core.clock
        began_s = clock.monotonic_s()
        for batch in batches_of(footer, run.object, data):
            yield batch
            worked_s = clock.monotonic_s() - began_s
            if worked_s >= _STRETCH_S:
                clock.pause(worked_s)
                began_s = clock.monotonic_s()

    async def _commit(
        self, group: Sequence[RunRow], run: RunRow, row: ObjectRow, replace: Replace
    ) -> bool:
        try:
            if await replace(group, run, row):
                return True
        except RunsChanged:
            pass  # trimmed, or its topic deleted, while it was cleaned
        await asyncio.to_thread(self._core.storage.objects.delete, row.key)
        return False


def _first_records(runs: Sequence[RunRow], count: int) -> list[RunRow]:
    """The first runs with no more records than this together; at least one run."""
    taken = [runs[0]]
    records = runs[0].record_count
    for run in runs[1:]:
        records += run.record_count
        if records > count:
            break
        taken.append(run)
    return taken
