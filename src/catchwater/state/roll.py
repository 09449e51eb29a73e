"""Which objects a shard's state lies in, and what an epoch has to rewrite of them: planning only.

*Chunks* tile the entries in the order of table and key; each shows its range at some version.
*Pieces* are the changes since: deltas of one epoch, or runs of small ones merged. Chunks first and
then all pieces in order give the state: the last change of a key wins over its chunk.

Snapshots roll: epochs rewrite twice the bytes of entries that they wrote changes, going round from
where the last one stopped, so the oldest chunks are always next. One round answers half as many
bytes of changes as there are entries: a restore reads about one and a half times the state. An
epoch that changes much rewrites only as much as it changes, and a restore may come to twice the
state; none pays for a whole snapshot, nor at once for a large epoch before it. Chunks and pieces
are counted in *units*, a 256th of the state, so that their number is bounded too. Weights are bytes
before compression.
"""

from collections.abc import Iterator, Sequence

import msgspec

from catchwater.state.entries import Table

LEAST_UNIT = 512 << 10
LARGEST_UNIT = 8 << 20
"""Bounds of a chunk, bytes; one chunk's entries are held in memory at a time."""

_UNITS = 256
_RUN = 64
_SHORTEST_RUN = 3
_SLACK_ENTRIES = 10_000
_UNITS_AT_ONCE = 8
_PACE = 2

Place = tuple[int, bytes]
"""A table and a key: entries of a shard in one order."""

START: Place = (0, b"")
END: Place = (len(Table), b"")


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A state of a shard: how many epochs it has seen, and the token of the last one's attempt.

    The token is drawn anew for every attempt at an epoch, so two of them are never mistaken.
    """

    version: int
    token: str


EMPTY = Position(0, "")
"""A shard that was never written."""


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """An object with all entries of a range, as they were before the attempt that wrote it."""

    by: Position
    number: int
    """Which of the attempt's chunks it is."""
    until: Place
    """Its range ends before this place; it begins where the chunk before it ends."""
    entries: int
    weight: int
    size_bytes: int


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """An object with the changes of one epoch, or of consecutive ones merged."""

    by: Position
    first: int
    """The lowest version whose changes it holds."""
    last: Position
    """What it leads to; written by the very attempt, if it is a delta."""
    entries: int
    weight: int
    size_bytes: int

    @property
    def is_delta(self) -> bool:
        """Whether it holds one epoch as its attempt wrote it."""
        return self.by == self.last


class Roll(msgspec.Struct, frozen=True, array_like=True):
    """What one position needs. Where no chunk reaches, the shard was empty at version 0."""

    chunks: tuple[Chunk, ...] = ()
    """In the order of their ranges, without gaps."""
    pieces: tuple[Piece, ...] = ()
    """In order and without gaps; the last one leads to the position."""
    cursor: Place = START
    """Where rewriting goes on: the end of the youngest chunk."""
    owed: int = 0
    """Bytes of changes that no rewriting has answered yet."""

    @property
    def size_bytes(self) -> int:
        """What a restore reads."""
        chunks = sum(chunk.size_bytes for chunk in self.chunks)
        return chunks + sum(piece.size_bytes for piece in self.pieces)


def unit(roll: Roll) -> int:
    """The size of a chunk, by the size of the state."""
    return unit_of(sum(chunk.weight for chunk in roll.chunks))


def unit_of(weight: int) -> int:
    """The size of a chunk of a state of so many bytes."""
    return min(max(weight // _UNITS, LEAST_UNIT), LARGEST_UNIT)


def bytes_to_rewrite(roll: Roll, live_entries: int, changed: int) -> int:
    """How many bytes of entries an epoch with so many bytes of changes rewrites, in whole units.

    What large epochs left owing is made good a unit at a time: more would show in the latency of
    the small ones that follow.
    One unit is granted where nothing is owed but most of what a restore reads is dead, as after a
    great deletion.
    """
    size = unit(roll)
    read = sum(chunk.entries for chunk in roll.chunks)
    read += sum(piece.entries for piece in roll.pieces)
    dead = read > 2.5 * live_entries + _SLACK_ENTRIES
    pace = min(_PACE * changed // size + 1, _UNITS_AT_ONCE)
    owed = min(roll.owed // size, max(changed // size, pace))
    return max(owed, int(dead)) * size


def rewritten(roll: Roll, chunks: Sequence[Chunk]) -> Roll:
    """The roll with new chunks from its cursor on; what nothing needs any more is left out."""
    until = chunks[-1].until
    before = [chunk for chunk in roll.chunks if chunk.until <= roll.cursor]
    after = [chunk for chunk in roll.chunks if chunk.until > until]
    tiles = (*before, *chunks, *after)
    whole_round = until == END and roll.cursor == START
    written = roll.owed if whole_round else sum(chunk.weight for chunk in chunks)
    shown = min(chunk.by.version - 1 for chunk in tiles) if tiles[-1].until == END else 0
    return Roll(
        tiles,
        tuple(piece for piece in roll.pieces if piece.last.version > shown),
        START if until == END else until,
        max(roll.owed - written, 0),
    )


def run_to_merge(roll: Roll) -> Sequence[Piece]:
    """The small pieces at the end, once they are many or make up a unit; or none."""
    size = unit(roll)
    weight = count = 0
    for piece in reversed(roll.pieces):
        if piece.weight >= size or weight >= size or count == _RUN:
            break
        weight, count = weight + piece.weight, count + 1
    is_due = count == _RUN or (weight >= size and count >= _SHORTEST_RUN)
    return roll.pieces[-count:] if is_due else ()


def merged(roll: Roll, piece: Piece) -> Roll:
    """The roll with one piece in the place of those it was made of."""
    kept = tuple(other for other in roll.pieces if other.last.version < piece.first)
    return msgspec.structs.replace(roll, pieces=(*kept, piece))


def appended(roll: Roll, delta: Piece) -> Roll:
    """The roll with the changes of one more epoch."""
    pieces = (*roll.pieces, delta)
    weight = sum(chunk.weight for chunk in roll.chunks) + sum(piece.weight for piece in pieces)
    owed = min(roll.owed + _PACE * delta.weight, weight)  # one round answers everything
    return msgspec.structs.replace(roll, pieces=pieces, owed=owed)


def starts(roll: Roll) -> Iterator[tuple[Place, Chunk]]:
    """The chunks, each with the place from which on it counts."""
    start = START
    for chunk in roll.chunks:
        yield start, chunk
        start = chunk.until


def unshown(roll: Roll, version: int) -> list[tuple[Place, Place]]:
    """The ranges whose chunks do not show the changes of this version: where these count."""
    ranges: list[tuple[Place, Place]] = []
    for start, chunk in starts(roll):
        if chunk.by.version <= version:
            ranges.append((start, chunk.until))
    ranges.append((roll.chunks[-1].until if roll.chunks else START, END))
    joined: list[tuple[Place, Place]] = []
    for start, until in ranges:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], until)
        elif start < until:
            joined.append((start, until))
    return joined


def pieces_since(roll: Roll, position: Position) -> Sequence[Piece] | None:
    """The pieces that lead on from an earlier position; None if that is not on the way."""
    for index, piece in enumerate(roll.pieces):
        if piece.last == position:
            return roll.pieces[index + 1 :]
    return None
