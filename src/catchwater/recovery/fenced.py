"""A log of changes in an object store that one writer at a time appends to, and the writer's lease.

A writer's claim is its *fence*, a number. No clocks of two machines are compared, and the store is
asked for puts, puts if absent, gets and deletes only:

    ledger/<number>   a record: changes to a folder's files, or all of them (`full`); put if absent
    fences/<fence>    who took the fence, and its first record; put if absent, never deleted
    beats/<fence>     that its holder lives, or has let go; where its newest full record is

**Taking.** The first record of a fence is a full one at the end of the log: the writer before finds
its next number taken, and commits nothing any more. The one that then puts `fences/<fence>` has it.
A holder that has not let go is watched for the whole of its lease, by the taker's own monotonic
clock, and must neither beat nor append meanwhile.

**Appending.** A record counts once it is put and there is no next fence in `fences/` then. The
second half is needed because old records are deleted: a writer that slept finds the number free.
A record whose acknowledgement was lost is found, and taken for what it is.

**Deleting.** The holder deletes records before its last but one full record, and has said in a beat
where the newest is. So a reader that finds beat and fence as they were before it walked through the
log has missed nothing, and a taker whose record is not before the newest full one has put it at
the true end.
"""

import os
import platform
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import cramjam
import msgspec
from crc32c import crc32c

from catchwater.clock import Clock
from catchwater.config import CatchwaterError, Restart
from catchwater.objects.base import ObjectExists, ObjectMissing, ObjectStore, StoreError
from catchwater.objects.open import place
from catchwater.recovery.ledger import LedgerDamaged

StructT = TypeVar("StructT")

Files = dict[str, bytes]
"""Path in the folder → content."""
Changes = Mapping[str, bytes | None]
"""Path → new content; None: it is gone."""

LEASE_MS = 15_000
"""For so long a holder may be silent before another driver takes its place."""
SHORTEST_LEASE_MS = 2000
"""Below that a store that is slow for a moment costs a driver its checkpoint."""
BEATS = 3
"""How often a lease is renewed before it would end."""
_LOOKS = 10
"""How often a taker looks within a lease: one that sees the last sign of life late waits longer."""
FULL_EVERY = 64
"""Records between two full ones, at least; also, they have as many bytes as a full one."""
DELETED_A_BEAT = 100

_MAGIC = b"CWL1"
_READS = 20


class LeaseHeld(CatchwaterError):
    """Another driver works on this checkpoint, on this machine or another."""

    restart = Restart.NEVER


class LeaseLost(CatchwaterError):
    """Another driver has taken this one's place: this one commits nothing any more."""

    exit_code = 5


class Claim(NamedTuple):
    """A fence as those know it to whom its holder writes: they refuse what an older one sends."""

    log: str
    """Which log it is of; fences of two logs say nothing of each other."""
    fence: int

    def __str__(self) -> str:
        return f"{self.log}/{self.fence}"

    def is_before(self, other: "Claim | None") -> bool:
        """Whether the other one was taken later, as far as the two can be compared."""
        return other is not None and other.log == self.log and other.fence > self.fence


def parse_claim(text: str | None) -> Claim | None:
    """The inverse of `str(claim)`; None for what is none."""
    log, _, fence = (text or "").rpartition("/")
    return Claim(log, int(fence)) if log and fence.isdigit() else None


class Holder(msgspec.Struct, frozen=True):
    """Who took a fence."""

    host: str
    pid: int
    token: str
    """Of this claim; no other has it."""
    lease_ms: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


class Record(msgspec.Struct, frozen=True):
    """One object of the log."""

    fence: int
    holder: Holder
    files: dict[str, bytes | None]
    full: bool = False
    """Whether `files` are all there are."""


class Fence(msgspec.Struct, frozen=True):
    """`fences/<fence>`."""

    number: int
    """Of its first record."""
    holder: Holder


class Beat(msgspec.Struct, frozen=True):
    """`beats/<fence>`."""

    count: int
    last: int
    """The number of its last record by then, at least."""
    full: int
    """The number of its newest full record."""
    kept: int
    """Records before this one were deleted, or are about to be."""
    released: bool = False


@dataclass(frozen=True)
class End:
    """The log as a reader found it, up to its end."""

    files: Files = field(repr=False, default_factory=dict)
    number: int = -1
    """Of the last record; -1: there is none."""
    fence: int = 0
    """Of the last record; 0: nobody has ever taken one."""
    first: int = 0
    """The number of this fence's first record."""
    holder: Holder | None = None
    full: int = -1
    """The number of the newest full record."""
    beat: Beat | None = None
    """Of this fence."""

    @property
    def released(self) -> bool:
        """Whether its holder has let go."""
        return self.beat is not None and self.beat.released


def read_end(store: ObjectStore) -> End:
    """Everything, as it is now. Raises `StoreError`, `LedgerDamaged`."""
    for _ in range(_READS):
        fence = _newest_fence(store)
        claim = _read(store, _fence_key(fence), Fence) if fence else None
        beat = _read(store, _beat_key(fence), Beat) if fence else None
        end = _walk(store, max(claim.number if claim else 0, beat.full if beat else 0))
        # Were records deleted meanwhile, a newer full record was announced first, or a newer fence.
        again = _read(store, _beat_key(fence), Beat) if fence else None
        moved = (again.full if again else 0) != (beat.full if beat else 0)
        if end is None or moved or _is_there(store, _fence_key(fence + 1)):
            continue
        if (fence and end.number < 0) or (again is not None and end.number < again.last):
            continue
        of_end = again if end.fence == fence else _read(store, _beat_key(end.fence), Beat)
        return replace(end, beat=of_end)
    raise LedgerDamaged(
        f"The log at {place(store, 'ledger')} lacks records that its holder has written.",
        hint="Put the missing objects back, or restore a savepoint into another place.",
    )


def _walk(store: ObjectStore, start: int) -> End | None:
    """From a full record to the end; None: there is none at the start, though there are others."""
    files: Files = {}
    end = End()
    for number, record in _records(store, start):
        if number == start and not record.full:
            return None
        if record.full:
            files = {}
        changed(files, record.files)
        first = number if record.fence != end.fence else end.first
        full = number if record.full else end.full
        end = End(files, number, record.fence, first, record.holder, full)
    return None if end.number < 0 < start else end


def _records(store: ObjectStore, number: int) -> Iterator[tuple[int, Record]]:
    while (found := _read_record(store, number)) is not None:
        yield number, found
        number += 1


def changed(files: Files, changes: Changes) -> None:
    """Apply changes to files."""
    for path, content in changes.items():
        if content is None:
            files.pop(path, None)
        else:
            files[path] = content


class Writer:
    """The holder of a fence. Not for two threads at once, but `beat` may be called beside."""

    def __init__(
        self, store: ObjectStore, clock: Clock, end: End, claim: Claim, mine: Holder, number: int
    ) -> None:
        self._store = store
        self._clock = clock
        self.claim = claim
        self.fence = claim.fence
        self.mine = mine
        self.files: Files = dict(end.files)
        """As the log has them."""
        self._number = number
        self._full = number
        self._keep = max(end.full, 0)
        """The full record before that: from there on everything is kept."""
        self._deleted = end.beat.kept if end.beat else self._keep
        self._bytes = 0
        self._full_bytes = sum(map(len, end.files.values()))
        self._beats = 0
        self._lost: LeaseLost | None = None
        self._held_s = clock.monotonic_s()
        """The last sign of life that was given while there was no successor."""

    def append(self, changes: Changes) -> None:
        """Commit changes, all or none. Raises `LeaseLost`, and `StoreError`: then it may be so.

        After a `StoreError` the same changes, and others, may be appended again.
        """
        self.check()
        began_s = self._clock.monotonic_s()
        while True:
            number, record = self._number + 1, Record(self.fence, self.mine, dict(changes))
            try:
                self._store.put_if_absent(_record_key(number), _encode(record))
            except ObjectExists:
                found = _read_record(self._store, number)
                if found is None or found.holder.token != self.mine.token:
                    raise self._lose(found.holder if found else None) from None
                # Of an append whose acknowledgement was lost.
                self._accept(found)
                if found.files == record.files:
                    break
                continue
            self._accept(record)
            break
        self._refuse_successor(began_s)
        if self._number - self._full >= FULL_EVERY and self._bytes >= self._full_bytes:
            self._roll()

    def check(self) -> None:
        """Raise `LeaseLost` if that is known here. Asks nobody."""
        if self._lost is not None:
            raise self._lost

    def look(self) -> None:
        """Ask whether another writer has begun to take this one's place. Raises `LeaseLost`."""
        self.check()
        found = _read_record(self._store, self._number + 1)
        if found is not None and found.holder.token != self.mine.token:
            raise self._lose(found.holder)
        self._refuse_successor()

    def hold(self) -> None:
        """Raise `LeaseLost` if another writer has begun to take this one's place.

        A taker waits a whole lease for a sign of life, so the store is asked only where the last
        one is half as long ago: after a standstill, or where renewing fails. Raises `StoreError`.
        """
        self.check()
        if self._clock.monotonic_s() - self._held_s > self.mine.lease_ms / 1000 / 2:
            self.look()

    def beat(self, *, released: bool = False) -> None:
        """Renew the lease, or let go of it, and delete what no reader begins with any more.

        Raises `LeaseLost`, `StoreError`.
        """
        self.check()
        self._beats += 1
        keep = self._keep
        beat = Beat(self._beats, self._number, self._full, self._deleted, released)
        began_s = self._clock.monotonic_s()
        self._store.put(_beat_key(self.fence), [msgspec.json.encode(beat)])
        self._refuse_successor(began_s)
        until = min(keep, self._deleted + DELETED_A_BEAT)
        for number in range(self._deleted, 0 if released else until):
            self._store.delete(_record_key(number))
            self._deleted = number + 1

    def _accept(self, record: Record) -> None:
        changed(self.files, record.files)
        self._number += 1
        self._bytes += sum(len(each) for each in record.files.values() if each is not None)

    def _roll(self) -> None:
        """Write all files as one record, from which a reader begins."""
        record = Record(self.fence, self.mine, dict(self.files), full=True)
        try:
            self._store.put_if_absent(_record_key(self._number + 1), _encode(record))
        except StoreError:
            return  # what was to be appended is; the next append finds out about this one
        self._number += 1
        # In this order: a beat beside that takes the second has announced the first.
        before, self._full = self._full, self._number
        self._keep = before
        self._bytes, self._full_bytes = 0, sum(map(len, self.files.values()))

    def _refuse_successor(self, alive_s: float | None = None) -> None:
        """Raise `LeaseLost` if there is one; else a sign of life that began then has held."""
        if (next_ := _read(self._store, _fence_key(self.fence + 1), Fence)) is not None:
            raise self._lose(next_.holder)
        if alive_s is not None:
            self._held_s = max(self._held_s, alive_s)

    def _lose(self, to: Holder | None) -> LeaseLost:
        self._lost = LeaseLost(
            f"{str(to).capitalize() if to else 'Another driver'} has taken over the checkpoint "
            f"{self._store.url()}; nothing was committed here since.",
            hint="Nothing is to be done: the pipeline goes on there. This driver was silent for "
            "longer than its lease.",
        )
        return self._lost


def take(
    store: ObjectStore,
    clock: Clock,
    *,
    gone: Container[str] = (),
    lease_ms: int = LEASE_MS,
) -> Writer:
    """Become the writer. `gone` are tokens of holders that have ended, or were silent for a lease.

    Waits for as long as the lease of a holder that has not let go. Raises `LeaseHeld` if it turns
    out to live, or another one is faster; `StoreError`, `LedgerDamaged`.
    """
    end = read_end(store)
    if end.holder is not None and not end.released and end.holder.token not in gone:
        _watch(store, clock, end, end.holder)
        found = read_end(store)
        if (found.number, found.fence, found.beat) != (end.number, end.fence, end.beat):
            raise _held(store, found.holder)
        end = found
    fence, number = end.fence + 1, end.number + 1
    mine = Holder(platform.node(), os.getpid(), clock.token(), lease_ms)
    # A taker may have died before it put its fence: put now, for fences have no gap.
    if end.holder is not None:
        before = msgspec.json.encode(Fence(end.first, end.holder))
        _put_once(store, _fence_key(end.fence), before)
    record = Record(fence, mine, dict(end.files), full=True)
    if not _put_once(store, _record_key(number), *_encode(record)):
        found_record = _read_record(store, number)
        if found_record is None or found_record.holder.token != mine.token:
            raise _held(store, found_record.holder if found_record else None)
    # The number may have been free because what was there is deleted: then a beat has said so.
    last = _read(store, _beat_key(end.fence), Beat)
    behind = last is not None and last.full > number
    claim = msgspec.json.encode(Fence(number, mine))
    if behind or not _put_once(store, _fence_key(fence), claim):
        claimed = _read(store, _fence_key(fence), Fence)
        if behind or claimed is None or claimed.holder.token != mine.token:
            raise _held(store, claimed.holder if claimed else None)
    first = mine if fence == 1 else (_read(store, _fence_key(1), Fence) or record).holder
    writer = Writer(store, clock, end, Claim(first.token, fence), mine, number)
    writer.beat()
    return writer


def _watch(store: ObjectStore, clock: Clock, end: End, holder: Holder) -> None:
    """Wait a whole lease. Raises `LeaseHeld` as soon as its holder shows that it lives."""
    until_s = clock.monotonic_s() + holder.lease_ms / 1000
    while (left_s := until_s - clock.monotonic_s()) > 0:
        clock.pause(min(left_s, holder.lease_ms / 1000 / _LOOKS))
        lives = _read(store, _beat_key(end.fence), Beat) != end.beat
        if lives or _is_there(store, _record_key(end.number + 1)):
            raise _held(store, holder)


def _held(store: ObjectStore, by: Holder | None) -> LeaseHeld:
    return LeaseHeld(
        f"The checkpoint {store.url()} is in use by {by or 'another driver'}.",
        hint="Stop that pipeline first (there: catchwater pipeline stop, or SIGTERM), or use "
        "another checkpoint.",
    )


def _newest_fence(store: ObjectStore) -> int:
    """Fences are numbered from 1 without a gap, so it is found without a listing."""
    if not _is_there(store, _fence_key(1)):
        return 0
    known, beyond = 1, 2
    while _is_there(store, _fence_key(beyond)):
        known, beyond = beyond, 2 * beyond
    while beyond - known > 1:
        middle = (known + beyond) // 2
        if _is_there(store, _fence_key(middle)):
            known = middle
        else:
            beyond = middle
    return known


def _put_once(store: ObjectStore, key: str, *parts: bytes) -> bool:
    try:
        store.put_if_absent(key, list(parts))
    except ObjectExists:
        return False
    return True


def _is_there(store: ObjectStore, key: str) -> bool:
    try:
        store.size(key)
    except ObjectMissing:
        return False
    return True


def _read(store: ObjectStore, key: str, kind: type[StructT]) -> StructT | None:
    try:
        return msgspec.json.decode(store.get(key), type=kind)
    except ObjectMissing:
        return None
    except msgspec.DecodeError as error:
        raise _damaged(store, key, error) from error


def _read_record(store: ObjectStore, number: int) -> Record | None:
    key = _record_key(number)
    try:
        return _decode(store.get(key))
    except ObjectMissing:
        return None
    except (ValueError, msgspec.DecodeError, cramjam.DecompressionError) as error:
        raise _damaged(store, key, error) from error


def _damaged(store: ObjectStore, key: str, error: Exception) -> LedgerDamaged:
    return LedgerDamaged(
        f"{place(store, key)} is damaged: {error}.",
        hint="Put a copy of the object back, or restore a savepoint into another place.",
    )


def _record_key(number: int) -> str:
    return f"ledger/{number:020d}"


def _fence_key(fence: int) -> str:
    return f"fences/{fence:020d}"


def _beat_key(fence: int) -> str:
    return f"beats/{fence:020d}"


def _encode(record: Record) -> list[bytes]:
    packed = bytes(cramjam.zstd.compress(msgspec.msgpack.encode(record), level=1))
    return [_MAGIC, crc32c(packed).to_bytes(4, "big"), packed]


def _decode(data: bytes) -> Record:
    packed = memoryview(data)[8:]
    if data[:4] != _MAGIC or crc32c(packed) != int.from_bytes(data[4:8], "big"):
        raise ValueError("its checksum does not fit")
    return msgspec.msgpack.decode(bytes(cramjam.zstd.decompress(packed)), type=Record)
