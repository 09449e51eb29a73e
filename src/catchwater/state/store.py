"""One shard's entries on local disk, as a cache of the state log, one committed epoch behind it.

The changes of epoch n are appended to the log, kept beside the local entries, and applied to them
only when epoch n + 1 begins and says, by version and token, that they were committed. A failed,
repeated or speculated attempt can therefore never leave the entries ahead. They are not fsynced:
entries from before a restart of the operating system are emptied, like those of another function
or shard or a file that cannot be opened. Entries that are behind are brought on by the changes
since; entries not known to be a past state of this log are rebuilt from it. Nothing else is ever
trusted.

One `ShardStore` per directory and process; attempts in other processes may share the directory.
It may stay open between epochs, but not across a fork.
"""

import gc
import os
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import lmdb
import msgspec

from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError
from catchwater.state.entries import Changes, ShardState, Table, no_changes
from catchwater.state.frame import FrameDamaged, decode_object
from catchwater.state.local import FORMAT, Committed, LocalEntries, Meta
from catchwater.state.log import Logged, StateLog
from catchwater.state.roll import EMPTY, Position

_BATCH_ENTRIES = 8_192
"""A transaction changes about so many entries: each may hold a page in memory until it ends."""

_PENDING = struct.Struct(">Q")
"""Bytes of what is pending, in front of it: what lies behind is of another epoch."""

_MUCH_LARGER = 16
_NOWHERE = Position(-1, "")
_TRIES = 3


class ShardStoreFailed(CatchwaterError):
    """The local store cannot be read or written: disk full, or no permission."""


class _Pending(NamedTuple):
    """The changes of the epoch last finished here, which may yet be committed."""

    base: Position
    to: Position
    changes: list[Changes]


class _Moved(Exception):
    """Another attempt moved the entries in the meantime."""


class Rebuilding(msgspec.Struct, frozen=True):
    """How far a shard's entries are read from the log; kept when they are, until the next time."""

    began_ms: int
    at_ms: int
    read_bytes: int
    bytes: int


_NOTE_MS = 500
"""How often that is noted."""


def read_rebuilding(directory: Path) -> Rebuilding | None:
    """How far the shard in this directory is, or was when it was last rebuilt."""
    with suppress(OSError, msgspec.DecodeError):
        return msgspec.json.decode(_rebuilding(directory).read_bytes(), type=Rebuilding)
    return None


def _rebuilding(directory: Path) -> Path:
    return directory / "rebuilding.json"


def read_boot_id() -> str:
    """Names the running boot of the operating system; empty if unknown: nothing is trusted then."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class ShardStore:
    """The local copy of one shard.

    Invariant: unless its meta says that they are being moved, the local entries are exactly what
    the epochs up to its position made, in one transaction with it.
    """

    def __init__(
        self, directory: Path, fresh: Meta, local: LocalEntries, clock: Clock = SYSTEM
    ) -> None:
        self._clock = clock
        self._directory = directory
        self._fresh = fresh
        self._local = local
        self._log: StateLog | None = None
        self._txn: lmdb.Transaction | None = None
        self._state: ShardState | None = None
        self._at = EMPTY
        self._pending: _Pending | None = None
        self.read_bytes = 0
        """Bytes of the log that the last `begin` had to read."""

    @classmethod
    def open(cls, directory: Path, function: str, shard: int, boot_id: str) -> "ShardStore":
        """Open or make the store; one of another function, shard or boot is not trusted.

        `function` is the name that state is known by. Not its version: records know theirs, and
        an upgrade keeps the store. Raises ShardStoreFailed.
        """
        boot = boot_id or os.urandom(8).hex()  # trust what this very object makes, and no more
        try:
            return cls(directory, Meta(FORMAT, function, shard, boot), _open_local(directory))
        except (lmdb.Error, OSError) as error:
            raise _cannot(directory, "opened", error) from error

    def begin(self, at: Position, log: StateLog) -> ShardState:
        """Bring the entries to what is committed, and start an epoch on them.

        Raises ShardStoreFailed; the log's errors only where the log had to be read.
        """
        self._end_epoch()
        before = log.read_bytes
        was_enabled = gc.isenabled()
        gc.disable()  # many small objects come and go, none of them in cycles
        try:
            self._begin(at, log)
        except (lmdb.Error, OSError):
            # Nothing here is worth more than the disk it takes: begin anew, once.
            try:
                self._start_over()
                self._begin(at, log)
            except (lmdb.Error, OSError) as error:
                raise _cannot(self._directory, "written", error) from error
        finally:
            if was_enabled:
                gc.enable()
        assert self._txn is not None
        self._at, self._log = at, log
        self.read_bytes = log.read_bytes - before
        self._state = ShardState(self._committed(), at.version + 1)
        return self._state

    def finish(self, token: str) -> Logged:
        """Log the epoch's changes, which lead to version + 1 with this fresh token.

        They are kept here too, and applied if the next `begin` says that they were committed. What
        `begin` gave can no longer be read. Raises what `StateLog.append` raises.
        """
        assert self._state is not None and self._log is not None, "finish belongs after begin"
        to = Position(self._at.version + 1, token)
        changes = self._state.changes
        logged = self._log.append(self._at, to, changes, self._state.committed)
        self._end_epoch()  # pages that a reader may see are not used again
        self._pending = _Pending(self._at, to, [changes])
        self._keep(logged.data)
        return logged

    def size_bytes(self) -> int:
        """Bytes on local disk, free pages included."""
        return self._local.size_bytes()

    def close(self) -> None:
        """End the epoch and let go of the files; may be called again."""
        self._end_epoch()
        self._local.close()

    @property
    def _pending_path(self) -> Path:
        return self._directory / "pending"

    def _end_epoch(self) -> None:
        self._state = None
        if self._txn is not None:
            self._txn.abort()
            self._txn = None

    def _committed(self) -> Committed:
        assert self._txn is not None
        return Committed(self._txn, self._local.tables, self._failed)

    def _failed(self, error: lmdb.Error) -> ShardStoreFailed:
        """The entries cannot be read: leave nothing that the next attempt could trust."""
        shutil.rmtree(self._directory, ignore_errors=True)
        return _cannot(self._directory, "read", error)

    def _start_over(self) -> None:
        self.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._local = _open_local(self._directory)

    def _begin(self, wanted: Position, log: StateLog) -> None:
        if not self._local.is_there():
            self._local.close()
            self._local = _open_local(self._directory)
        for _ in range(_TRIES):
            with suppress(_Moved):
                self._bring_to(wanted, log)
            txn = self._local.begin()
            found = self._local.read_meta(txn)
            if found is not None and (found.at, found.moving) == (wanted, None):
                self._txn = txn
                return
            txn.abort()
        raise ShardStoreFailed(
            f"The shard store {self._directory} is moved from version {wanted.version} by other "
            "attempts again and again; the task can be repeated."
        )

    def _bring_to(self, wanted: Position, log: StateLog) -> None:
        """Move the entries the shortest way that is sure."""
        with self._local.begin() as txn:
            found = self._local.read_meta(txn)
        if found is None or _identity(found) != _identity(self._fresh):
            self._move(found, wanted, self._read_all(wanted, log), anew=True)
            return
        if found.moving is None and found.at == wanted:
            return
        pending, self._pending = self._pending_to(wanted, log), None
        changes: Iterable[Changes] | None
        if found.moving is not None and found.moving[0] != wanted:
            changes = None
        elif pending is not None and pending.base == found.at:
            changes = pending.changes
        else:
            changes = log.read_since(found.at, wanted)
        if changes is None:
            self._move(found, wanted, self._read_all(wanted, log), anew=True)
        else:
            self._move(found, wanted, changes)

    def _read_all(self, wanted: Position, log: StateLog) -> Iterator[Changes]:
        """All that the position needs; notes its progress beside the store (`read_rebuilding`)."""
        before, size = log.read_bytes, log.roll_of(wanted).size_bytes
        began_ms = noted_ms = self._clock.now_ms()
        self._note(Rebuilding(began_ms, began_ms, 0, size))
        for changes in log.read(wanted):
            yield changes
            now_ms = self._clock.now_ms()
            if now_ms - noted_ms >= _NOTE_MS:
                self._note(Rebuilding(began_ms, now_ms, log.read_bytes - before, size))
                noted_ms = now_ms
        self._note(Rebuilding(began_ms, self._clock.now_ms(), size, size))

    def _note(self, note: Rebuilding) -> None:
        with suppress(OSError):  # nothing rests on it
            _rebuilding(self._directory).write_bytes(msgspec.json.encode(note))

    def _move(
        self, found: Meta | None, to: Position, changes: Iterable[Changes], *, anew: bool = False
    ) -> None:
        """Apply the changes and say where that leads; in as many transactions as they need.

        Until the last one the meta says that the entries are on their way, and whose doing that
        is: applying the same changes again is harmless, mixing two ways is not.
        """
        mover = os.urandom(8).hex()
        expected = found
        batches = _batches(changes)
        batch: Changes | None = next(batches, no_changes())
        while batch is not None:
            following = next(batches, None)
            at = _NOWHERE if anew or found is None else found.at
            meta = Meta(*_identity(self._fresh), at, (to, mover))
            if following is None:
                meta = Meta(*_identity(self._fresh), to)
            self._step(expected, meta, batch, clear=anew and expected is found)
            expected, batch = meta, following

    def _step(self, expected: Meta | None, then: Meta, batch: Changes, *, clear: bool) -> None:
        def change(txn: lmdb.Transaction) -> None:
            if self._local.read_meta(txn) != expected:
                raise _Moved
            if clear:
                self._local.clear(txn)
            self._local.apply(txn, batch)
            self._local.put_meta(txn, then)

        self._local.write(change)

    def _keep(self, data: Sequence[bytes]) -> None:
        """Keep the changes for the next process; where that fails the log has them.

        In place: for a new file one would wait for the disk. A torn one does not have its sums.
        """
        size = sum(map(len, data))
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            with open(os.open(self._pending_path, flags, 0o644), "wb") as file:
                if os.fstat(file.fileno()).st_size > _MUCH_LARGER * size + _PENDING.size:
                    file.truncate(0)
                file.write(_PENDING.pack(size))
                file.writelines(data)
        except OSError:
            with suppress(OSError):
                self._pending_path.unlink(missing_ok=True)

    def _kept(self) -> bytes:
        """What the directory's last user kept. Raises OSError and FrameDamaged."""
        with self._pending_path.open("rb") as file:
            data = file.read()
        if len(data) < _PENDING.size:
            raise FrameDamaged("it ends before it begins")
        (size,) = _PENDING.unpack_from(data)
        return data[_PENDING.size : _PENDING.size + size]

    def _pending_to(self, wanted: Position, log: StateLog) -> _Pending | None:
        """The changes kept here, in memory or on disk, if they lead where they must."""
        if self._pending is not None and self._pending.to == wanted:
            return self._pending
        try:
            header, blocks = decode_object([self._kept()])
            found = (header.function, header.shard, header.by)
            if found != (self._fresh.function, self._fresh.shard, wanted):
                return None
            assert header.base is not None and header.roll is not None
            pending = _Pending(header.base, wanted, list(blocks))
        except (OSError, FrameDamaged):
            return None
        log.remember(wanted, header.roll)
        return pending


def _open_local(directory: Path) -> LocalEntries:
    """Open the entries, if need be in the place of some that cannot be opened."""
    directory.mkdir(parents=True, exist_ok=True)
    try:
        return LocalEntries(directory)
    except lmdb.Error:
        shutil.rmtree(directory)
        directory.mkdir()
        return LocalEntries(directory)


def _identity(meta: Meta) -> tuple[int, str, int, str]:
    return meta.format, meta.function, meta.shard, meta.boot_id


def _batches(changes: Iterable[Changes]) -> Iterator[Changes]:
    """The same changes in parts that a transaction can take; of one key the last one counts."""
    batch, size = no_changes(), 0
    for part in changes:
        if size:
            for table in Table:
                batch[table].update(part[table])
        else:
            batch = part
        size += sum(map(len, part))
        if size >= _BATCH_ENTRIES:
            yield batch
            batch, size = no_changes(), 0
    if size:
        yield batch


def _cannot(directory: Path, done: str, error: Exception) -> ShardStoreFailed:
    return ShardStoreFailed(
        f"The shard store {directory} cannot be {done}: {error}.",
        hint="It is only a cache, and needs a writable local directory with free space.",
    )
