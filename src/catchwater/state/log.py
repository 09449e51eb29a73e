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
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectMissing, ObjectStore
from catchwater.state import roll as rolling
from catchwater.state.entries import (
    MAX_ENTRY_KEY_BYTES,
    Changes,
    Entries,
    Table,
    no_changes,
    prefix_of,
)
from catchwater.state.frame import (
    Body,
    EntryTooLarge,
    FrameDamaged,
    Header,
    decode_object,
    encode_body,
    encode_object,
)
from catchwater.state.overlay import merged
from catchwater.state.roll import EMPTY, END, START, Chunk, Piece, Place, Position, Roll

SWEEP_STEP = 1000
"""Objects deleted by one call of `sweep`."""

_WINDOW_BYTES = 8 << 20
_HEADER_BYTES = 64 << 10
_READERS = 4
_HELD_BYTES = 24 << 20
"""Changes that a restore holds to merge them into the chunks."""

_NAME = re.compile(r"(\d{20})-([A-Za-z0-9_-]+)\.(?:delta|merged|chunk-\d+)")


class ShardDamaged(CatchwaterError):
    """An object of a shard is missing, broken or of something else."""

    def __init__(self, key: str, needed_from: int, reason: str) -> None:
        epoch = needed_from - 2
        hint = "No checkpoint is older; start anew, or from a savepoint."
        if epoch >= 0:
            hint = (
                f"Restore a checkpoint of epoch {epoch} or before: catchwater recovery restore "
                f"--checkpoint {epoch}."
            )
        super().__init__(f"The state object {key} cannot be used: {reason}.", hint=hint)
        self.key = key
        self.needed_from = needed_from
        """The lowest version that needs the object."""


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


class _Part(NamedTuple):
    """An object that a position needs, and what its header must say."""

    name: str
    kind: str
    by: Position
    number: int = 0
    ranges: Sequence[tuple[Place, Place]] = ((START, END),)
    """Entries elsewhere do not count: another object of the position shows something younger."""


class StateLog:
    """The log of one shard of one function, in one folder of a store."""

    def __init__(self, store: ObjectStore, folder: str, function: str, shard: int) -> None:
        self._store = store
        self._folder = f"{folder}/{shard:05}"
        self.function = function
        self.shard = shard
        self._rolls: dict[Position, Roll] = {EMPTY: Roll()}
        """Rolls of positions, which never change; those of the last epoch and the kept ones."""
        self._recent: dict[str, list[bytes]] = {}
        """Small pieces as they were written, so that merging them reads nothing."""
        self.read_bytes = 0
        """Bytes of objects read so far."""

    def append(self, base: Position, to: Position, changes: Changes, committed: Entries) -> Logged:
        """Log one epoch's changes, and roll the snapshot on over what is committed at `base`.

        Raises StoreError, EntryTooLarge, and ShardDamaged if the objects of `base` are.
        """
        assert to.version == base.version + 1, "one epoch, one version"
        found = roll = self.roll_of(base)
        _check_keys(changes)
        body = encode_body(changes)
        budget = rolling.bytes_to_rewrite(roll, committed.count(), body.weight)
        if budget:
            roll = rolling.rewritten(roll, list(self._write_chunks(to, roll, budget, committed)))
        logged = self._put_delta(base, to, body, self._merge(to, roll))
        self._rolls = {EMPTY: Roll(), base: found, to: self._rolls[to]}
        needed = {part.name for kept in (found, self._rolls[to]) for part in _named(kept)}
        self._recent = {name: data for name, data in self._recent.items() if name in needed}
        return logged

    def read(self, at: Position) -> Iterator[Changes]:
        """What to apply, in order, to an empty shard: entries by table and key, then changes.

        Raises ShardDamaged, StoreError.
        """
        roll = self.roll_of(at)
        count = sum(piece.entries for piece in roll.pieces)
        weight = sum(piece.weight for piece in roll.pieces)
        parts = _parts(roll)
        chunks, pieces = parts[: len(roll.chunks)], parts[len(roll.chunks) :]
        limit = _HELD_BYTES * count // max(weight, 1)
        return merged(self._read(chunks), self._read(pieces), limit)

    def read_since(self, since: Position, at: Position) -> Iterator[Changes] | None:
        """What to apply, in order, to the shard as it was at `since`.

        None if that is not known to be on the way to `at`.
        """
        pieces = rolling.pieces_since(self.roll_of(at), since)
        return None if pieces is None else self._read(map(_piece, pieces))

    def read_key(self, stored_key: bytes, at: Position) -> Iterator[Changes]:
        """As `read`, but of the chunks only those that may have entries of this key.

        Timers, journal pages and shared rows are not looked for. Other keys' entries come too.
        """
        prefix = prefix_of(stored_key)
        sought = [(Table.RECORD, stored_key), (Table.SEEN, stored_key)]
        sought += [(Table.ENTRY, prefix), (Table.JOINED, prefix)]
        return self._read(
            part
            for part in _parts(self.roll_of(at))
            if any(_may_hold(part, place) for place in sought)
        )

    def write_whole(self, at: Position, parts: Iterable[tuple[Changes, Place]]) -> Logged:
        """Begin a log at a position: with a whole state, in parts by range as `Chunk` has them.

        Raises StoreError, EntryTooLarge.
        """
        chunks = tuple(
            self._put_chunk(at, number, until, changes)
            for number, (changes, until) in enumerate(parts)
        )
        return self._put_delta(None, at, encode_body(no_changes()), Roll(chunks))

    def objects_of(self, at: Position) -> list[str]:
        """The keys of all objects that this position needs, its own delta last."""
        return [self._key(part.name) for part in _named(self.roll_of(at))]

    def roll_of(self, at: Position) -> Roll:
        """What this position needs, and how much that is. Raises ShardDamaged, StoreError."""
        if at not in self._rolls:
            part = _delta(at)
            header, _ = self._open(part, self._window(part, 0, _HEADER_BYTES), _HEADER_BYTES)
            if header.roll is None:
                raise self._damaged(part, "it does not say what its position needs")
            self._rolls[at] = header.roll
        return self._rolls[at]

    def remember(self, at: Position, roll: Roll) -> None:
        """Know what a position needs without asking the store: from its object, read elsewhere."""
        self._rolls[at] = roll

    def sweep(self, keep: Iterable[Position], limit: int = SWEEP_STEP) -> int:
        """Delete what none of the positions needs; returns how many objects were deleted.

        `keep` are all positions that anybody may yet ask for, the newest committed one among
        them: attempts at its version or a later one are left alone, for one may be about to be
        committed. Deletes at most `limit` objects; raises ShardDamaged before it deletes any if
        it cannot tell what a position needs.
        """
        kept = set(keep)
        newest = max((at.version for at in kept), default=0)
        needed = {name for at in kept for name in self.objects_of(at)}
        self._rolls = {
            at: roll for at, roll in self._rolls.items() if at in kept or at.version >= newest
        } | {EMPTY: Roll()}
        listed = (info.key for info in self._store.list(f"{self._folder}/"))
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
        data = self._put(_delta(to), body, base, roll)
        self._rolls[to] = roll
        size = sum(map(len, data))
        objects = len(roll.chunks) + len(roll.pieces)
        return Logged(to, size, size + rewritten, roll.size_bytes, objects, data)

    def _put_chunk(self, by: Position, number: int, until: Place, entries: Changes) -> Chunk:
        body = encode_body(entries)
        chunk = Chunk(by, number, until, body.entries, body.weight, body.size_bytes)
        self._put(_chunk(START, chunk), body)
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
        for changes in self._read(map(_piece, run)):
            for table, changed in zip(together, changes, strict=True):
                table.update(changed)
        body = encode_body(together)
        piece = Piece(to, run[0].first, run[-1].last, body.entries, body.weight, body.size_bytes)
        self._put(_piece(piece), body)
        return rolling.merged(roll, piece)

    def _put(
        self, part: _Part, body: Body, base: Position | None = None, roll: Roll | None = None
    ) -> list[bytes]:
        header = Header(
            part.kind,
            self.function,
            self.shard,
            part.by,
            part.number,
            len(body.blocks),
            base,
            roll,
        )
        data = encode_object(header, body)
        self._store.put(self._key(part.name), data)
        if part.kind != "chunk" and body.weight < rolling.LEAST_UNIT:
            self._recent[part.name] = data
        return data

    def _read(self, parts: Iterable[_Part]) -> Iterator[Changes]:
        """The blocks of objects, one after the other, with the next few already asked for."""
        waiting: deque[tuple[_Part, Future[bytes] | None]] = deque()
        rest = iter(parts)
        pool = ThreadPoolExecutor(_READERS)
        try:
            while True:
                for part in islice(rest, _READERS - len(waiting)):
                    here = part.name in self._recent
                    waiting.append(
                        (part, None if here else pool.submit(self._window, part, 0, _WINDOW_BYTES))
                    )
                if not waiting:
                    return
                yield from self._blocks(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def _blocks(self, part: _Part, first: Future[bytes] | None) -> Iterator[Changes]:
        if first is None:
            _, blocks = decode_object(self._recent[part.name])
        else:
            _, blocks = self._open(part, first.result(), _WINDOW_BYTES)
        try:
            for changes in blocks:
                yield _within(part, changes)
        except FrameDamaged as error:
            raise self._damaged(part, str(error)) from error

    def _open(self, part: _Part, first: bytes, asked: int) -> tuple[Header, Iterator[Changes]]:
        try:
            header, blocks = decode_object(self._windows(part, first, asked))
        except FrameDamaged as error:
            raise self._damaged(part, str(error)) from error
        expected = (part.kind, self.function, self.shard, part.by, part.number)
        found = (header.kind, header.function, header.shard, header.by, header.number)
        if found != expected:
            raise self._damaged(part, f"it is {found} and not {expected}")
        return header, blocks

    def _windows(self, part: _Part, data: bytes, asked: int) -> Iterator[bytes]:
        at = 0
        while True:
            self.read_bytes += len(data)
            yield data
            at += len(data)
            if len(data) < asked:
                return
            asked = _WINDOW_BYTES
            data = self._window(part, at, asked)

    def _window(self, part: _Part, at: int, size: int) -> bytes:
        try:
            return self._store.get_upto(self._key(part.name), at, size)
        except ObjectMissing as error:
            raise self._damaged(part, "it is missing") from error

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _damaged(self, part: _Part, reason: str) -> ShardDamaged:
        return ShardDamaged(self._key(part.name), part.by.version, reason)


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


def _parts(roll: Roll) -> list[_Part]:
    chunks = [_chunk(start, chunk) for start, chunk in rolling.starts(roll)]
    ranges = [rolling.unshown(roll, piece.last.version) for piece in roll.pieces]
    return [*chunks, *map(_piece, roll.pieces, ranges)]


def _named(roll: Roll) -> list[_Part]:
    """The parts, without what counts of them."""
    return [*(_chunk(START, chunk) for chunk in roll.chunks), *map(_piece, roll.pieces)]


def _chunk(start: Place, chunk: Chunk) -> _Part:
    name = _name(chunk.by, f"chunk-{chunk.number}")
    return _Part(name, "chunk", chunk.by, chunk.number, ((start, chunk.until),))


def _piece(piece: Piece, ranges: Sequence[tuple[Place, Place]] = ((START, END),)) -> _Part:
    kind = "delta" if piece.is_delta else "merged"
    return _Part(_name(piece.by, kind), kind, piece.by, 0, ranges)


def _delta(at: Position) -> _Part:
    return _Part(_name(at, "delta"), "delta", at)


def _name(by: Position, kind: str) -> str:
    return f"{by.version:020}-{by.token}.{kind}"


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


def _within(part: _Part, changes: Changes) -> Changes:
    """The entries that lie in one of the part's ranges."""
    if part.ranges == ((START, END),):
        return changes
    kept = list(no_changes())
    for start, until in part.ranges:
        for table in Table:
            if changes[table] and start[0] <= table <= until[0]:
                low = start[1] if table == start[0] else b""
                high = until[1] if table == until[0] else None
                found = _between(low, high, changes[table], part.kind == "chunk")
                kept[table] = kept[table] | found if kept[table] else found
    return tuple(kept)


def _may_hold(part: _Part, place: Place) -> bool:
    """Whether entries that begin with the place's key may lie in one of the part's ranges."""
    after = (place[0], place[1] + b"\xff" * 256)
    return any(start <= after and until > place for start, until in part.ranges)


def _between(
    low: bytes, high: bytes | None, entries: dict[bytes, bytes | None], in_order: bool
) -> dict[bytes, bytes | None]:
    if in_order and next(iter(entries)) >= low and (high is None or next(reversed(entries)) < high):
        return entries
    if high is not None:
        return {key: value for key, value in entries.items() if low <= key < high}
    if not low:
        return entries
    return {key: value for key, value in entries.items() if key >= low}
