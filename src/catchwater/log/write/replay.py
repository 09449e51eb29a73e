"""Chunks of a write-ahead log sequenced, when they are written and every time they are read again.

The same chunks in the same order give the same offsets: at a broker's start, where a catalog is
asked without its broker, and where one is rebuilt.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

from catchwater.catalog.rows import Changes, ObjectRow, PartitionKey
from catchwater.log.format.chunk import Chunk, ChunkError, decode_index
from catchwater.log.write.sequence import PartitionState, Sequenced, catalog_changes, sequence
from catchwater.log.write.txn import Txns
from catchwater.objects.base import Buffer
from catchwater.wal.base import Position

Taken = Callable[[Position, Chunk, Sequenced, Changes], None]


def take_chunk(
    chunk: Chunk, position: Position, states: Mapping[PartitionKey, PartitionState], txns: Txns
) -> tuple[Sequenced, Changes]:
    """Sequence a chunk, and what the catalog has to store of it."""
    done = sequence(chunk.entries, states, txns, chunk.created_ms)
    end = position.offset + position.size
    file = ObjectRow(position.file, "chunk", "live", end, chunk.created_ms)
    return done, catalog_changes(done, states, txns, file, position.offset)


def replay(
    chunks: Iterable[tuple[Position, Chunk]],
    states: Mapping[PartitionKey, PartitionState],
    txns: Txns,
    *,
    before: Callable[[Chunk], None] | None = None,
    after: Taken | None = None,
) -> int:
    """Sequence chunks in order, which moves the states and `txns` along; the last one's number.

    `before` and `after` are called with every chunk; 0 where there is none.
    """
    sequenced = 0
    for position, chunk in chunks:
        if before is not None:
            before(chunk)
        done, changes = take_chunk(chunk, position, states, txns)
        if after is not None:
            after(position, chunk, done, changes)
        sequenced = position.sequence
    return sequenced


def decoded(frames: Iterable[tuple[Position, Buffer]]) -> Iterator[tuple[Position, Chunk]]:
    """The chunks of frames. Raises `ChunkError` for a frame that is no chunk of a known format."""
    for position, payload in frames:
        try:
            chunk = decode_index(payload)
        except ChunkError as error:
            raise ChunkError(
                f"Frame {position.sequence} at byte {position.offset} of {position.file}: {error}",
                hint=error.hint,
            ) from error
        assert chunk.size_bytes == position.size, "a frame holds one chunk"
        yield position, chunk
