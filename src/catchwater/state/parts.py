"""The objects of a shard: their names, which of them count, how they are written and read.

Objects are read a few at a time ahead of the caller that takes their blocks, and are checked
against what was asked for. Relies on the object store; its errors (`StoreError`) pass through.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple

from catchwater.config import CatchwaterError, Restart
from catchwater.objects.base import ObjectMissing, ObjectStore
from catchwater.state import roll as rolling
from catchwater.state.entries import Changes, Table, no_changes
from catchwater.state.frame import Body, FrameDamaged, Header, decode_object, encode_object
from catchwater.state.roll import END, START, Chunk, Piece, Place, Position, Roll

_WINDOW_BYTES = 8 << 20
_HEADER_BYTES = 64 << 10
_READERS = 8
_WRITERS = 4
_AHEAD_BYTES = 8 << 20
"""Objects are asked for ahead until they make up this much."""


class ShardDamaged(CatchwaterError):
    """An object of a shard is missing, broken or of something else."""

    restart = Restart.FALL_BACK

    def __init__(self, key: str, needed_from: int, reason: str) -> None:
        epoch = needed_from - 2  # epoch n makes version n + 1
        hint = "No checkpoint is older; start anew, or from a savepoint."
        if epoch >= 0:
            hint = (
                f"Restore a checkpoint of epoch {epoch} or before: catchwater recovery restore "
                f"FILE --checkpoint {epoch}."
            )
        super().__init__(f"The state object {key} cannot be used: {reason}.", hint=hint)
        self.key = key
        self.needed_from = needed_from
        """The lowest version that needs the object."""


class Part(NamedTuple):
    """An object that a position needs, and what its header must say."""

    name: str
    kind: str
    by: Position
    number: int = 0
    size_bytes: int = 0
    ranges: Sequence[tuple[Place, Place]] = ((START, END),)
    """Entries elsewhere do not count: another object of the position shows something younger."""


class ShardObjects:
    """The objects of one shard of one function, in one folder of a store."""

    def __init__(self, store: ObjectStore, folder: str, function: str, shard: int) -> None:
        self._store = store
        self._function = function
        self._shard = shard
        self.folder = f"{folder}/{shard:05}"
        self._recent: dict[str, list[bytes]] = {}
        """Small pieces as they were written, so that merging them reads nothing."""
        self.read_bytes = 0
        """Bytes of objects read so far."""
        self._writers: ThreadPoolExecutor | None = None
        self._started: deque[Future[int]] = deque()
        """Objects that are being put side by side."""

    def put(
        self, part: Part, body: Body, base: Position | None = None, roll: Roll | None = None
    ) -> list[bytes]:
        """Store an object; gives its bytes. Raises StoreError, also for one put before it."""
        header = Header(
            part.kind,
            self._function,
            self._shard,
            part.by,
            part.number,
            len(body.blocks),
            base,
            roll,
        )
        data = encode_object(header, body)
        if self._writers is None or part.kind == "delta":
            # A delta is the last object of its epoch: the caller has nothing to do beside it.
            self._store.put(self.key(part.name), data)
        else:
            while len(self._started) >= _WRITERS:
                self._started.popleft().result()
            self._started.append(self._writers.submit(self._store.put, self.key(part.name), data))
        if part.kind != "chunk" and body.weight < rolling.LEAST_UNIT:
            self._recent[part.name] = data
        return data

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """What is put in the block need not wait for what was put before; at its end all is stored.

        An epoch's objects mean nothing without the position that refers to all of them. Raises
        StoreError for any of them.
        """
        with ThreadPoolExecutor(_WRITERS) as self._writers:
            try:
                yield
                while self._started:
                    self._started.popleft().result()
            finally:
                self._writers = None
                self._started.clear()

    def forget_but(self, parts: Iterable[Part]) -> None:
        """Keep at hand only what is of these parts."""
        names = {part.name for part in parts}
        self._recent = {name: data for name, data in self._recent.items() if name in names}

    def header(self, part: Part) -> Header:
        """What an object says of itself. Raises ShardDamaged."""
        return self._open(part, self._window(part, 0, _HEADER_BYTES), _HEADER_BYTES)[0]

    def read(self, parts: Iterable[Part]) -> Iterator[Changes]:
        """The blocks of objects, one after the other, with the next few already asked for."""
        waiting: deque[tuple[Part, Future[bytes] | None]] = deque()
        pool = ThreadPoolExecutor(_READERS)
        ahead = 0
        try:
            for part in parts:
                here = part.name in self._recent
                future = None if here else pool.submit(self._window, part, 0, _WINDOW_BYTES)
                waiting.append((part, future))
                ahead += part.size_bytes
                while ahead > _AHEAD_BYTES or len(waiting) > _READERS:
                    ahead -= waiting[0][0].size_bytes
                    yield from self._blocks(*waiting.popleft())
            while waiting:
                yield from self._blocks(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def _blocks(self, part: Part, first: Future[bytes] | None) -> Iterator[Changes]:
        if first is None:
            _, blocks = decode_object(self._recent[part.name])
        else:
            _, blocks = self._open(part, first.result(), _WINDOW_BYTES)
        try:
            for changes in blocks:
                yield _within(part, changes)
        except FrameDamaged as error:
            raise self.damaged(part, str(error)) from error

    def _open(self, part: Part, first: bytes, asked: int) -> tuple[Header, Iterator[Changes]]:
        try:
            header, blocks = decode_object(self._windows(part, first, asked))
        except FrameDamaged as error:
            raise self.damaged(part, str(error)) from error
        expected = (part.kind, self._function, self._shard, part.by, part.number)
        found = (header.kind, header.function, header.shard, header.by, header.number)
        if found != expected:
            raise self.damaged(part, f"it is {found} and not {expected}")
        return header, blocks

    def _windows(self, part: Part, data: bytes, asked: int) -> Iterator[bytes]:
        at = 0
        while True:
            self.read_bytes += len(data)
            yield data
            at += len(data)
            if len(data) < asked:
                return
            asked = _WINDOW_BYTES
            data = self._window(part, at, asked)

    def _window(self, part: Part, at: int, size: int) -> bytes:
        try:
            return self._store.get_upto(self.key(part.name), at, size)
        except ObjectMissing as error:
            raise self.damaged(part, "it is missing") from error

    def key(self, name: str) -> str:
        """The key of an object in the store."""
        return f"{self.folder}/{name}"

    def damaged(self, part: Part, reason: str) -> ShardDamaged:
        """What to raise for an object."""
        return ShardDamaged(self.key(part.name), part.by.version, reason)


def chunks_of(roll: Roll) -> list[Part]:
    """The chunks, each with the range that it stands for."""
    return [chunk_part(start, chunk) for start, chunk in rolling.starts(roll)]


def pieces_of(roll: Roll) -> list[Part]:
    """The pieces, each with the ranges of which no chunk shows its changes."""
    ranges = [rolling.unshown(roll, piece.last.version) for piece in roll.pieces]
    return [*map(piece_part, roll.pieces, ranges)]


def named(roll: Roll) -> list[Part]:
    """All parts, without what counts of them."""
    return [*(chunk_part(START, chunk) for chunk in roll.chunks), *map(piece_part, roll.pieces)]


def chunk_part(start: Place, chunk: Chunk) -> Part:
    """A chunk that counts from a place on."""
    name = _name(chunk.by, f"chunk-{chunk.number}")
    ranges = ((start, chunk.until),)
    return Part(name, "chunk", chunk.by, chunk.number, chunk.size_bytes, ranges)


def piece_part(piece: Piece, ranges: Sequence[tuple[Place, Place]] = ((START, END),)) -> Part:
    """A piece that counts in these ranges."""
    kind = "delta" if piece.is_delta else "merged"
    return Part(_name(piece.by, kind), kind, piece.by, 0, piece.size_bytes, ranges)


def delta_part(at: Position) -> Part:
    """The delta that leads to a position."""
    return Part(_name(at, "delta"), "delta", at)


def _name(by: Position, kind: str) -> str:
    return f"{by.version:020}-{by.token}.{kind}"


def _within(part: Part, changes: Changes) -> Changes:
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


def may_hold(part: Part, place: Place) -> bool:
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
