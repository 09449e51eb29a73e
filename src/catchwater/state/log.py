"""A shard's changes and snapshots as immutable objects, from which any machine makes its entries.

Every epoch appends its changes as an object named by version and token, whose header lists all
objects that the position needs: version and token alone open a shard. With it go what `roll`
plans: chunks of the entries as the epoch found them, and runs of small deltas merged.

Relies on the object store for whole, durable objects. Its errors (`StoreError`) pass through: the
store has repeated what may pass, so the caller gives up the attempt and may make another; what was
written till then is an orphan. Promises that objects which do not fit together raise ShardDamaged,
and that an object some kept position needs is never deleted, however stale a listing is. Decides
nothing about which attempt counts: who keeps positions does.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice

from catchwater.objects.base import ObjectStore
from catchwater.state import parts
from catchwater.state import roll as rolling
from catchwater.state.entries import (
    MAX_ENTRY_KEY_BYTES,
    Changes,
    Entries,
    Table,
    no_changes,
    prefix_of,
)
from catchwater.state.frame import Body, EntryTooLarge, encode_body
from catchwater.state.overlay import merged
from catchwater.state.roll import EMPTY, END, START, Chunk, Piece, Place, Position, Roll

SWEEP_STEP = 1000
"""Objects deleted by one call of `sweep`."""
LEARN_STEP = 500
"""Positions of which one call of `sweep` asks the store what they need."""

_HELD_BYTES = 96 << 20
_HELD_ENTRY_BYTES = 200
"""A restore holds changes in so much memory, to merge them into the chunks; so much each of them
takes besides its bytes."""

_NAME = re.compile(r"(\d{20})-([A-Za-z0-9_-]+)\.(?:delta|merged|chunk-\d+)")


@dataclass(frozen=True)
class Logged:
    """What an epoch left in the log; sizes in bytes as stored."""

    at: Position
    delta_bytes: int
    """The object with the epoch's changes."""
    written_bytes: int
    """That, and what was rewritten with it."""
    state_bytes: int
    """What a restore of this position reads."""
    objects: int
    """How many objects that is."""
    data: Sequence[bytes] = field(repr=False)
    """The bytes of the epoch's object, in parts."""


class StateLog:
    """The log of one shard of one function, in one folder of a store."""

    def __init__(self, store: ObjectStore, folder: str, function: str, shard: int) -> None:
        self._store = store
        self._objects = parts.ShardObjects(store, folder, function, shard)
        self.function = function
        self.shard = shard
        self._rolls: dict[Position, Roll] = {EMPTY: Roll()}
        """Rolls of positions, which never change; those of the last epochs."""
        self._needs: dict[Position, tuple[str, ...]] = {}
        """The same for `sweep`, by name alone: neighbours share most of their objects."""

    @property
    def read_bytes(self) -> int:
        """Bytes of objects read so far."""
        return self._objects.read_bytes

    def append(self, base: Position, to: Position, changes: Changes, committed: Entries) -> Logged:
        """Log one epoch's changes, and roll the snapshot on over what is committed at `base`.

        Raises StoreError, EntryTooLarge, and ShardDamaged if the objects of `base` are.
        """
        assert to.version == base.version + 1, "one epoch, one version"
        found = roll = self.roll_of(base)
        _check_keys(changes)
        body = encode_body(changes)
        budget = rolling.bytes_to_rewrite(roll, committed.count(), body.weight)
        with self._objects.side_by_side():
            if budget:
                chunks = list(self._write_chunks(to, roll, budget, committed))
                roll = rolling.rewritten(roll, chunks)
            logged = self._put_delta(base, to, body, self._merge(to, roll))
        self._rolls = {EMPTY: Roll(), base: found, to: self._rolls[to]}
        self._objects.forget_but((*parts.named(found), *parts.named(self._rolls[to])))
        return logged

    def read(self, at: Position) -> Iterator[Changes]:
        """What to apply, in order, to an empty shard: entries by table and key, then changes.

        Raises ShardDamaged, StoreError.
        """
        roll = self.roll_of(at)
        count = sum(piece.entries for piece in roll.pieces) or 1
        weight = sum(piece.weight for piece in roll.pieces)
        chunks = self._objects.read(parts.chunks_of(roll))
        pieces = self._objects.read(parts.pieces_of(roll))
        return merged(chunks, pieces, _HELD_BYTES // (weight // count + _HELD_ENTRY_BYTES))

    def read_since(self, since: Position, at: Position) -> Iterator[Changes] | None:
        """What to apply, in order, to the shard as it was at `since`.

        None if that is not known to be on the way to `at`.
        """
        pieces = rolling.pieces_since(self.roll_of(at), since)
        return None if pieces is None else self._objects.read(map(parts.piece_part, pieces))

    def read_key(self, stored_key: bytes, at: Position) -> Iterator[Changes]:
        """As `read`, but of the chunks only those that may have entries of this key.

        Timers, journal pages and shared rows are not looked for. Other keys' entries come too.
        """
        prefix = prefix_of(stored_key)
        sought = [(Table.RECORD, stored_key), (Table.SEEN, stored_key)]
        sought += [(Table.ENTRY, prefix), (Table.JOINED, prefix)]
        roll = self.roll_of(at)
        return self._objects.read(
            part
            for part in (*parts.chunks_of(roll), *parts.pieces_of(roll))
            if any(parts.may_hold(part, place) for place in sought)
        )

    def write_whole(self, at: Position, ranges: Iterable[tuple[Changes, Place]]) -> Logged:
        """Begin a log at a position: with a whole state, by ranges as `Chunk` has them.

        Raises StoreError, EntryTooLarge.
        """
        chunks = tuple(
            self._put_chunk(at, number, until, changes)
            for number, (changes, until) in enumerate(ranges)
        )
        return self._put_delta(None, at, encode_body(no_changes()), Roll(chunks))

    def objects_of(self, at: Position) -> list[str]:
        """The keys of all objects that this position needs, its own delta last."""
        return [self._objects.key(part.name) for part in parts.named(self.roll_of(at))]

    def roll_of(self, at: Position) -> Roll:
        """What this position needs, and how much that is. Raises ShardDamaged, StoreError."""
        if at not in self._rolls:
            part = parts.delta_part(at)
            roll = self._objects.header(part).roll
            if roll is None:
                raise self._objects.damaged(part, "it does not say what its position needs")
            self._rolls[at] = roll
        return self._rolls[at]

    def remember(self, at: Position, roll: Roll) -> None:
        """Know what a position needs without asking the store: from its object, read elsewhere."""
        self._rolls[at] = roll

    def sweep(self, keep: Iterable[Position], limit: int = SWEEP_STEP) -> int:
        """Delete what none of the positions needs; returns how many objects were deleted.

        `keep` are all positions that may still be asked for, the newest committed one among
        them: attempts at its version or a later one are left alone, for one may be about to be
        committed. Deletes at most `limit` objects, and none yet where so many positions are new
        that asking for all takes several calls; raises ShardDamaged before it deletes any if it
        cannot tell what a position needs.
        """
        kept = set(keep)
        newest = max((at.version for at in kept), default=0)
        unknown = [*(kept - self._needs.keys())]
        for at in unknown[:LEARN_STEP]:
            self._needs[at] = tuple(sys.intern(name) for name in self.objects_of(at))
        self._needs = {at: names for at, names in self._needs.items() if at in kept}
        self._rolls = {at: roll for at, roll in self._rolls.items() if at.version >= newest} | {
            EMPTY: Roll()
        }
        if len(unknown) > LEARN_STEP:
            return 0
        needed = set[str]().union(*self._needs.values())
        listed = (info.key for info in self._store.list(f"{self._objects.folder}/"))
        dead = (key for key in listed if key not in needed and self._is_before(key, newest))
        deleted = 0
        for key in islice(dead, limit):
            self._store.delete(key)
            deleted += 1
        return deleted

    def _is_before(self, key: str, version: int) -> bool:
        name = _NAME.fullmatch(key.rpartition("/")[2])
        return name is not None and int(name[1]) < version

    def _put_delta(self, base: Position | None, to: Position, body: Body, roll: Roll) -> Logged:
        rewritten = sum(chunk.size_bytes for chunk in roll.chunks if chunk.by == to)
        rewritten += sum(piece.size_bytes for piece in roll.pieces if piece.by == to)
        delta = Piece(to, to.version, to, body.entries, body.weight, body.size_bytes)
        roll = rolling.appended(roll, delta)
        data = self._objects.put(parts.delta_part(to), body, base, roll)
        self._rolls[to] = roll
        size = sum(map(len, data))
        objects = len(roll.chunks) + len(roll.pieces)
        return Logged(to, size, size + rewritten, roll.size_bytes, objects, data)

    def _put_chunk(self, by: Position, number: int, until: Place, entries: Changes) -> Chunk:
        body = encode_body(entries)
        chunk = Chunk(by, number, until, body.entries, body.weight, body.size_bytes)
        self._objects.put(parts.chunk_part(START, chunk), body)
        return chunk

    def _write_chunks(
        self, to: Position, roll: Roll, budget: int, committed: Entries
    ) -> Iterator[Chunk]:
        size = rolling.unit(roll)
        place = roll.cursor
        number = 0
        while True:
            changes, until = _take(committed, place, size)
            yield self._put_chunk(to, number, until, changes)
            number += 1
            place = until
            if until == END or number * size >= budget:
                return

    def _merge(self, to: Position, roll: Roll) -> Roll:
        run = rolling.run_to_merge(roll)
        if not run:
            return roll
        together = no_changes()
        for changes in self._objects.read(map(parts.piece_part, run)):
            for table, changed in zip(together, changes, strict=True):
                table.update(changed)
        body = encode_body(together)
        piece = Piece(to, run[0].first, run[-1].last, body.entries, body.weight, body.size_bytes)
        self._objects.put(parts.piece_part(piece), body)
        return rolling.merged(roll, piece)


def _check_keys(changes: Changes) -> None:
    """No epoch may be logged that no local store could ever apply."""
    for table in Table:
        longest = max(changes[table], key=len, default=b"")
        if len(longest) > MAX_ENTRY_KEY_BYTES:
            raise EntryTooLarge(
                f"The key {longest[:60]!r}… of an entry of table {table.name} has {len(longest)} "
                f"bytes; entries have keys of at most {MAX_ENTRY_KEY_BYTES}.",
                hint="Use shorter keys, or digests of them, in map states and tables.",
            )


def _take(committed: Entries, place: Place, size: int) -> tuple[Changes, Place]:
    """Entries of about so many bytes from a place on, and where they end."""
    taken = no_changes()
    weight = 0
    first_table, start = place
    for table in list(Table)[first_table:]:
        last = b""
        for key, value in committed.scan(table, start):
            if weight >= size:
                return taken, (table, _separator(last, key))
            taken[table][key] = value
            weight += len(key) + len(value)
            last = key
        start = b""
    return taken, END


def _separator(last: bytes, key: bytes) -> bytes:
    """The shortest beginning of the key that sorts behind the last one; empty if there is none."""
    if not last:
        return b""
    same = next((i for i, (a, b) in enumerate(zip(last, key, strict=False)) if a != b), len(last))
    return key[: same + 1]
