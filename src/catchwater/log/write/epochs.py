"""Sink epochs: staged chunks that become part of a topic in one commit, once.

The tasks of a pipeline have written the chunks as objects; here their batches are numbered and
become visible together with the mark that the epoch was written.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from catchwater.catalog.errors import EpochGap, TopicUnknown
from catchwater.catalog.rows import (
    Changes,
    EpochCommit,
    PartitionKey,
    Scope,
    ScopeRows,
    SinkFence,
)
from catchwater.log.core import Core
from catchwater.log.format.chunk import Chunk
from catchwater.log.storage import StagedDamaged, load_staged
from catchwater.log.write.sequence import sequence_staged, states_of


class Epochs:
    """The sink epochs of one log, used on its event loop."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def fence(self, pipeline: str, fence: SinkFence) -> None:
        """Let no driver before this one commit any more. Raises `WriterFenced`."""

        async def change() -> None:
            changes = Changes(fences=[(pipeline, fence)])
            await self._core.committer.transact(Scope(), lambda seen: (changes, None))

        await self._core.writer.between_chunks(change)

    async def commit(
        self, pipeline: str, sink: str, epoch: int, topic: str, staged: Sequence[str],
        checksum: str, fence: SinkFence | None = None,
    ) -> EpochCommit:  # fmt: skip
        """Make staged chunks part of the topic, once: a known epoch answers what it got then.

        Raises `EpochGap`, `WriterFenced`, `TopicUnknown` or `StagedDamaged`; nothing has changed
        then.
        """
        core = self._core
        known = await asyncio.to_thread(core.catalog.epoch, pipeline, sink, epoch)
        if known is not None:
            return known
        found = core.topics.find(topic)
        chunks = await asyncio.to_thread(load_staged, core.storage.objects, found, staged)

        async def change() -> EpochCommit:
            # The objects first: among many brokers the epoch may be committed at this moment.
            taken = await asyncio.to_thread(core.catalog.known_objects, staged)
            known = await asyncio.to_thread(core.catalog.epoch, pipeline, sink, epoch)
            if known is not None:
                return known
            if taken:
                raise StagedDamaged(f"{min(taken)} belongs to the log already.")
            decide = partial(_decide, pipeline, sink, epoch, topic, chunks, checksum, fence)
            scope = Scope(partitions=sorted(_partitions(chunks)))
            try:
                commit, changes = await core.committer.transact(scope, decide)
            except EpochGap:
                known = await asyncio.to_thread(core.catalog.epoch, pipeline, sink, epoch)
                if known is None:
                    raise
                return known  # another broker was just quicker
            core.show(changes.partitions)
            size_bytes = sum(row.size_bytes for row in changes.objects)
            core.writer.appends.add(size_bytes, core.clock.monotonic_s())
            return commit

        return await core.writer.between_chunks(change)

    async def last(self, pipeline: str, sink: str) -> EpochCommit | None:
        """The last epoch that a sink has committed."""
        return await asyncio.to_thread(self._core.catalog.epoch, pipeline, sink)

    async def find(self, pipeline: str, sink: str, epoch: int) -> EpochCommit | None:
        """What a sink has committed as this epoch."""
        return await asyncio.to_thread(self._core.catalog.epoch, pipeline, sink, epoch)


def _partitions(chunks: Mapping[str, Chunk]) -> set[PartitionKey]:
    """The partitions that these chunks append to."""
    return {(entry.topic_id, entry.partition) for c in chunks.values() for entry in c.entries}


def _decide(
    pipeline: str,
    sink: str,
    epoch: int,
    topic: str,
    chunks: Mapping[str, Chunk],
    checksum: str,
    fence: SinkFence | None,
    seen: ScopeRows,
) -> tuple[Changes, tuple[EpochCommit, Changes]]:
    """For `Catalog.transact`: the chunks behind what is there, and the epoch's mark with them."""
    before = states_of(seen)
    if not _partitions(chunks) <= before.keys():
        raise TopicUnknown(f"Topic {topic} was deleted meanwhile.")
    after, changes = sequence_staged(chunks, before)
    offsets = {
        key[1]: (before[key].high_watermark, state.high_watermark - 1)
        for key, state in after.items()
    }
    records = sum(run.record_count for run in changes.runs)
    commit = EpochCommit(False, epoch, records, offsets, checksum, topic)
    fences = [(pipeline, fence)] if fence else []
    changes = replace(changes, epochs=[(pipeline, sink, commit)], fences=fences)
    return changes, (commit, changes)
