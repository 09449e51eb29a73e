"""Where one shard's entries lie on local disk: an LMDB environment, and what it says it holds.

Not fsynced: what a restart of the operating system leaves of it is not to be trusted. Grows as it
must. LMDB's own errors come out as they are, `lmdb.Error`: the caller knows whether to start over.

LMDB has no checksums, and a damaged page may give wrong entries or end the process. So the file's
size and time of change are noted after every commit, and a file that anybody else has changed, or
that a commit was killed in, is not opened. A bit that the disk itself flips within one boot is not
noticed.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

import lmdb
import msgspec

from catchwater.state.entries import Changes, Table
from catchwater.state.roll import EMPTY, Position

FORMAT = 2
_FIRST_MAP_BYTES = 64 << 20
_DATA = "data.mdb"
_LOCK = "lock.mdb"
_LOCK_BYTES = 8192
_STAMP = "stamp"
_STAMP_BYTES = 64
_META = b"meta"


class Meta(msgspec.Struct, frozen=True, array_like=True):
    """What the entries are a copy of."""

    format: int
    function: str
    shard: int
    boot_id: str
    at: Position = EMPTY
    moving: tuple[Position, str] | None = None
    """Set while the entries are between `at` and this position, by the attempt of this name."""


class LocalEntries:
    """An open environment. The process must not fork while it is open."""

    def __init__(self, directory: Path) -> None:
        """Open or make it; the directory is there. Raises lmdb.Error and OSError."""
        self._path = directory / _DATA
        _reserve(directory / _LOCK)
        held_bytes = self._path.stat().st_size if self._path.exists() else 0
        self._stamp_path = directory / _STAMP
        if held_bytes and self._stamp() != self._noted():
            raise lmdb.CorruptedError(f"{self._path} is not as it was left")
        map_bytes = _FIRST_MAP_BYTES
        while map_bytes < 2 * held_bytes:
            map_bytes *= 2
        self._env = lmdb.open(
            str(directory),
            map_size=map_bytes,
            max_dbs=len(Table) + 1,
            sync=False,
            metasync=False,
            readahead=False,
        )
        try:
            self._env.reader_check()
            self._meta = self._env.open_db(b"meta")
            self.tables = [self._env.open_db(table.name.lower().encode()) for table in Table]
            self._note()
        except (lmdb.Error, OSError):
            self._env.close()
            raise
        self._inode = os.stat(self._path).st_ino

    def is_there(self) -> bool:
        """Whether the directory still has the file that was opened."""
        try:
            return os.stat(self._path).st_ino == self._inode
        except OSError:
            return False

    def _stamp(self) -> bytes:
        found = os.stat(self._path)
        return b"%d %d" % (found.st_mtime_ns, found.st_size)

    def _noted(self) -> bytes:
        try:
            return self._stamp_path.read_bytes().rstrip()
        except OSError:
            return b""

    def _note(self) -> None:
        """In place: a new file would wait for the disk, and a torn one only means a rebuild."""
        file = os.open(self._stamp_path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.write(file, self._stamp().ljust(_STAMP_BYTES))
        finally:
            os.close(file)

    def size_bytes(self) -> int:
        """Bytes in use on disk, free pages included."""
        return int(self._env.stat()["psize"]) * (int(self._env.info()["last_pgno"]) + 1)

    def begin(self, *, write: bool = False) -> lmdb.Transaction:
        """A transaction, after another process may have made the map larger."""
        try:
            return self._env.begin(write=write)
        except lmdb.MapResizedError:
            self._env.set_mapsize(0)
            return self._env.begin(write=write)

    def write(self, change: Callable[[lmdb.Transaction], None]) -> None:
        """One write transaction, tried again with a larger map as long as that is full."""
        self._env.reader_check()  # of processes that were killed: they hold old pages
        while True:
            try:
                with self.begin(write=True) as txn:
                    change(txn)
                self._note()
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])

    def read_meta(self, txn: lmdb.Transaction) -> Meta | None:
        """What the entries are; None if that is not said, or cannot be read."""
        data = txn.get(_META, db=self._meta)
        try:
            return msgspec.msgpack.decode(data, type=Meta) if data is not None else None
        except msgspec.DecodeError:
            return None

    def put_meta(self, txn: lmdb.Transaction, meta: Meta) -> None:
        """Say what the entries are when this transaction is done."""
        txn.put(_META, msgspec.msgpack.encode(meta), db=self._meta)

    def clear(self, txn: lmdb.Transaction) -> None:
        """Delete all entries."""
        for table in self.tables:
            txn.drop(table, delete=False)

    def apply(self, txn: lmdb.Transaction, changes: Changes) -> None:
        """Make the changes, in the order of their keys: neighbours share pages."""
        for table, changed in zip(self.tables, changes, strict=True):
            if not changed:
                continue
            keys = sorted(changed)
            with txn.cursor(table) as cursor:
                is_behind = not cursor.last() or bytes(cursor.key()) < keys[0]
                if None in changed.values():
                    for key in keys:
                        if changed[key] is None and cursor.set_key(key):
                            cursor.delete()
                    keys = [key for key in keys if changed[key] is not None]
                items = zip(keys, map(changed.__getitem__, keys), strict=True)
                cursor.putmulti(cast(Iterator[tuple[bytes, bytes]], items), append=is_behind)

    def close(self) -> None:
        """Close it; transactions must have ended."""
        self._env.close()


class Committed:
    """`Entries` over one read transaction."""

    def __init__(
        self,
        txn: lmdb.Transaction,
        tables: list[Any],
        failed: Callable[[lmdb.Error], Exception],
    ) -> None:
        self._txn = txn
        self._tables = tables
        self._failed = failed
        """What to raise where LMDB fails."""

    def count(self) -> int:
        """How many entries there are, in all tables."""
        return sum(int(self._txn.stat(table)["entries"]) for table in self._tables)

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The entry of this key, if there is one."""
        try:
            return cast(bytes | None, self._txn.get(key, db=self._tables[table]))
        except lmdb.Error as error:
            raise self._failed(error) from error

    def get_many(self, table: Table, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The entries that exist among these keys."""
        keys = list(keys)
        try:
            with self._txn.cursor(self._tables[table]) as cursor:
                found = cast(list[tuple[bytes, bytes]], cursor.getmulti(keys))
        except lmdb.Error as error:
            raise self._failed(error) from error
        if len(found) < len(keys):
            return dict(found)
        # By the keys that were given: Python knows their hashes, and finds what is the same object.
        return dict(zip(keys, map(itemgetter(1), found), strict=True))

    def scan(
        self, table: Table, start: bytes = b"", until: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries in the order of their keys, from `start` and below `until`."""
        try:
            with self._txn.cursor(self._tables[table]) as cursor:
                if not (cursor.set_range(start) if start else cursor.first()):
                    return
                for key, value in cast(Iterator[tuple[bytes, bytes]], cursor.iternext()):
                    if until is not None and key >= until:
                        return
                    yield key, value
        except lmdb.Error as error:
            raise self._failed(error) from error


def _reserve(lock: Path) -> None:
    """Make sure that the disk has room for LMDB's table of readers; raises OSError if it has not.

    LMDB only extends that file and writes it through a map: on a full disk the first write ends
    the process (SIGBUS), where all else that it writes comes back as an error.
    """
    file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.posix_fallocate(file, 0, _LOCK_BYTES)
    finally:
        os.close(file)
