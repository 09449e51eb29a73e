"""What became of a chunk whose commit was never answered.

The connection was lost while the transaction committed, so its changes are there or not, or are
about to be: the database may still be at it. A transaction over the same rows waits for the end of
the other; then the runs of the chunk tell.
"""

import asyncio
from collections.abc import Iterable, Iterator

from catchwater.catalog.base import Catalog
from catchwater.catalog.rows import Changes, RunRow, Scope, Seen
from catchwater.log.core import done
from catchwater.log.format.chunk import Chunk, Entry
from catchwater.log.write.producers import Result, refused
from catchwater.log.write.sequence import sequence, states_of, txns_of
from catchwater.wal.base import Position
from catchwater.wire.errors import ErrorCode


async def settle(
    catalog: Catalog, scope: Scope, chunk: Chunk, position: Position, *, alone: bool
) -> tuple[list[Result], Changes] | None:
    """The chunk's results, and its runs and partitions as they are now; None: not committed.

    `alone`: the chunk is all that its file holds, so the file's row tells as well. Elsewhere a
    chunk without runs was appended nowhere, and may as well be committed again.

    Raises what `Catalog.transact` raises; the chunk's fate is open then.
    """

    def look(seen: Seen) -> tuple[Changes, tuple[list[Result], Seen]]:
        again = sequence(chunk.entries, states_of(seen), txns_of(seen), chunk.created_ms)
        return Changes(), (again.results, seen)

    again, seen = await done(catalog.transact(scope, look))
    runs = await asyncio.to_thread(_runs, catalog, position)
    if not runs:
        known = await asyncio.to_thread(catalog.known_objects, [position.file])
        if not (alone and known):
            return None
    offsets = dict(_offsets(chunk.entries, runs, position.offset))
    results = [
        Result(ErrorCode.NONE, offsets[entry]) if entry in offsets else _repeated(result)
        for entry, result in zip(chunk.entries, again, strict=True)
    ]
    return results, Changes(runs, seen.partitions)


def _runs(catalog: Catalog, position: Position) -> list[RunRow]:
    end = position.offset + position.size
    runs = catalog.runs_in(position.file)
    return [run for run in runs if position.offset <= run.byte_offset < end]


def _offsets(
    entries: Iterable[Entry], runs: Iterable[RunRow], at: int
) -> Iterator[tuple[Entry, int]]:
    """The offsets of the entries that lie in runs; both are in the order of their bytes."""
    for run in runs:
        offset = run.base_offset
        end = run.byte_offset + run.byte_size
        for entry in entries:
            if run.byte_offset <= at + entry.byte_offset < end:
                yield entry, offset
                offset += entry.last_offset_delta + 1


def _repeated(result: Result) -> Result:
    """An entry without a run was refused, or a duplicate, which sequencing it again has told.

    Where it would be appended now, it can be sent once more.
    """
    if result.error is ErrorCode.NONE and not result.duplicate:
        return refused(ErrorCode.KAFKA_STORAGE_ERROR)
    return result
