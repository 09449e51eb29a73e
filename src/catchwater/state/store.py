"""One shard's entries in an embedded ordered store (LMDB) on local disk.

The store is a cache of what Spark's checkpoint holds, and one committed epoch behind it: the
changes of epoch n are kept beside it and applied only when epoch n + 1 begins and says, by version
and token, that they were committed. A failed, repeated or speculated attempt can therefore never
leave it ahead. It is not fsynced: a store from before a restart of the operating system is
emptied, like one of another function or shard or one that cannot be opened, and whatever is not
exactly where Spark says is rebuilt from snapshot and deltas. Nothing else is ever trusted.

One `ShardStore` per directory and process; attempts in other processes may share the directory.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import lmdb
import msgspec

from catchwater.config import CatchwaterError
from catchwater.state import delta as log
from catchwater.state.delta import EMPTY, Position, ShardDamaged
from catchwater.state.entries import Changes, ShardState, Table

_FORMAT = 1
_FIRST_MAP_BYTES = 64 << 20
_META = b"meta"


class ShardStoreFailed(CatchwaterError):
    """The local store cannot be read or written: disk full, or no permission."""


@dataclass(frozen=True)
class Logged:
    """What Spark's state store holds of a shard: a snapshot's chunks, and deltas, each in order.

    Deltas that the snapshot already contains are skipped. A shard without a snapshot has none of
    its chunks.
    """

    chunks: Iterable[bytes]
    deltas: Iterable[bytes]


class _Meta(msgspec.Struct, array_like=True):
    """What the store is a copy of; anything unexpected empties it."""

    format: int
    function: str
    shard: str
    boot_id: str
    at: Position


def read_boot_id() -> str:
    """Names the running boot of the operating system; empty if unknown: nothing is trusted then."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class ShardStore:
    """The local copy of one shard.

    Invariant: the LMDB entries are exactly what the epochs up to `_meta.at` made, in one
    transaction with it.
    """

    def __init__(self, directory: Path, meta: _Meta) -> None:
        self._directory = directory
        self._fresh = meta
        self._env, self._meta_db, self._tables = _open_environment(directory)
        self._txn: lmdb.Transaction | None = None
        self._state: ShardState | None = None
        self._at = EMPTY
        self._pending: tuple[Position, Position, Changes] | None = None
        """(base, to, changes) of the epoch last finished here, which may yet be committed."""

    @classmethod
    def open(cls, directory: Path, function: str, shard: str, boot_id: str) -> "ShardStore":
        """Open or make the store; one of another function, shard or boot is emptied.

        `function` is the name that state is known by. Not its version: records know theirs, and
        an upgrade keeps the store. Raises ShardStoreFailed.
        """
        fresh = _Meta(_FORMAT, function, shard, boot_id, EMPTY)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            try:
                store = cls(directory, fresh)
            except lmdb.Error:
                shutil.rmtree(directory)
                directory.mkdir()
                store = cls(directory, fresh)
        except (lmdb.Error, OSError) as error:
            raise ShardStoreFailed(
                f"The shard store {directory} cannot be opened: {error}.",
                hint="It needs a writable local directory with free space.",
            ) from error
        store._empty_if_foreign()
        return store

    def begin(self, version: int, token: str, load: Callable[[], Logged]) -> ShardState:
        """Bring the store to what Spark says is committed, and start an epoch on it.

        A shard that was never written is at version 0 with token "". `load` is called only to
        rebuild. Raises ShardDamaged if what it gives does not lead to this version and token.
        """
        wanted = Position(version, token)
        self._end_epoch()
        pending = self._read_pending()
        if self._read_meta().at != wanted and pending is not None and pending[1] == wanted:
            self._writing(lambda txn: self._apply_pending(txn, *pending))
        if self._read_meta().at != wanted:
            self._writing(lambda txn: self._rebuild(txn, wanted, load()))
        self._txn = self._env.begin()
        if _meta_in(self._txn, self._meta_db, self._fresh).at != wanted:
            raise ShardStoreFailed(
                f"The shard store {self._directory} was moved from version {version} by another "
                "attempt while this one began; the task can be repeated."
            )
        self._at = wanted
        self._state = ShardState(_Committed(self._txn, self._tables), version + 1)
        return self._state

    def finish(self, token: str) -> bytes:
        """The delta of the epoch's changes, which lead to version + 1 with this fresh token.

        It is kept here too, and applied if the next `begin` says that it was committed.
        """
        assert self._state is not None, "finish belongs after begin"
        to = Position(self._at.version + 1, token)
        data = log.encode_delta(self._fresh.function, self._at, to, self._state.changes)
        self._pending = (self._at, to, self._state.changes)
        self._state = None
        written = self._directory / f"pending.{os.getpid()}"
        try:
            written.write_bytes(data)
            written.replace(self._pending_path)
        except OSError as error:
            raise ShardStoreFailed(f"The delta {written} cannot be written: {error}.") from error
        return data

    def snapshot(self, *, chunk_bytes: int = log.CHUNK_BYTES) -> Iterator[bytes]:
        """Chunks of what `begin` brought the store to; the epoch's own changes are not in it."""
        assert self._txn is not None, "a snapshot belongs between begin and close"
        entries = _Committed(self._txn, self._tables)
        function = self._fresh.function
        return log.encode_snapshot(function, self._at, entries, chunk_bytes=chunk_bytes)

    def size_bytes(self) -> int:
        """Bytes on local disk, free pages included."""
        return int(self._env.stat()["psize"]) * (int(self._env.info()["last_pgno"]) + 1)

    def close(self) -> None:
        """End the epoch and close the environment; the pending delta stays on disk."""
        self._end_epoch()
        self._env.close()

    @property
    def _pending_path(self) -> Path:
        return self._directory / "pending"

    def _end_epoch(self) -> None:
        self._state = None
        if self._txn is not None:
            self._txn.abort()
            self._txn = None

    def _empty_if_foreign(self) -> None:
        found, fresh = self._read_meta(), self._fresh
        same = msgspec.structs.replace(found, at=EMPTY) == fresh
        if not same or not fresh.boot_id:
            self._writing(self._clear)
            self._pending_path.unlink(missing_ok=True)

    def _read_meta(self) -> _Meta:
        with self._env.begin() as txn:
            return _meta_in(txn, self._meta_db, self._fresh)

    def _read_pending(self) -> tuple[Position, Position, Changes] | None:
        """The changes kept here, from memory or disk; None if there are none to be trusted."""
        if self._pending is None:
            with suppress(OSError, ShardDamaged):
                found = log.decode_delta(self._pending_path.read_bytes())
                if found.function == self._fresh.function:
                    self._pending = (found.base, found.to, tuple(found.changes))
        pending, self._pending = self._pending, None
        return pending

    def _apply_pending(
        self, txn: lmdb.Transaction, base: Position, to: Position, changes: Changes
    ) -> None:
        if _meta_in(txn, self._meta_db, self._fresh).at == base:
            self._apply(txn, changes)
            self._set_position(txn, to)

    def _rebuild(self, txn: lmdb.Transaction, wanted: Position, logged: Logged) -> None:
        self._clear(txn)
        reached = EMPTY
        for at, changes in log.restore(self._fresh.function, logged.chunks, logged.deltas):
            self._apply(txn, changes)
            reached = at
        if reached != wanted:
            raise ShardDamaged(
                f"Shard {self._fresh.shard} of {self._fresh.function!r} is committed at version "
                f"{wanted.version}, but its snapshot and deltas lead to version {reached.version}."
            )
        self._set_position(txn, wanted)

    def _apply(self, txn: lmdb.Transaction, changes: Changes) -> None:
        for table, changed in zip(self._tables, changes, strict=True):
            cursor = txn.cursor(table)
            cursor.putmulti([(key, v) for key, v in changed.items() if v is not None])
            for key, value in changed.items():
                if value is None:
                    txn.delete(key, db=table)

    def _clear(self, txn: lmdb.Transaction) -> None:
        for table in self._tables:
            txn.drop(table, delete=False)
        self._set_position(txn, EMPTY)

    def _set_position(self, txn: lmdb.Transaction, at: Position) -> None:
        meta = msgspec.structs.replace(self._fresh, at=at)
        txn.put(_META, msgspec.msgpack.encode(meta), db=self._meta_db)

    def _writing(self, change: Callable[[lmdb.Transaction], None]) -> None:
        """One write transaction, tried again with a larger map as long as that is full."""
        while True:
            try:
                with self._env.begin(write=True) as txn:
                    change(txn)
                return
            except lmdb.MapFullError:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except lmdb.Error as error:
                raise ShardStoreFailed(
                    f"The shard store {self._directory} cannot be written: {error}.",
                    hint="It is only a cache: free space on the disk and start again.",
                ) from error


class _Committed:
    """`state.Entries` over one read transaction."""

    def __init__(self, txn: lmdb.Transaction, tables: list[Any]) -> None:
        self._txn = txn
        self._tables = tables

    def get(self, table: Table, key: bytes) -> bytes | None:
        """The entry of this key, if there is one."""
        return cast(bytes | None, self._txn.get(key, db=self._tables[table]))

    def get_many(self, table: Table, keys: Iterable[bytes]) -> dict[bytes, bytes]:
        """The entries that exist among these keys."""
        with self._txn.cursor(self._tables[table]) as cursor:
            return dict(cast(list[tuple[bytes, bytes]], cursor.getmulti(keys)))

    def scan(
        self, table: Table, start: bytes = b"", until: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        """Entries in the order of their keys, from `start` and below `until`."""
        with self._txn.cursor(self._tables[table]) as cursor:
            if not (cursor.set_range(start) if start else cursor.first()):
                return
            for key, value in cast(Iterator[tuple[bytes, bytes]], cursor.iternext()):
                if until is not None and key >= until:
                    return
                yield key, value


def _open_environment(directory: Path) -> tuple[lmdb.Environment, Any, list[Any]]:
    data = directory / "data.mdb"
    map_bytes = _FIRST_MAP_BYTES
    while data.exists() and map_bytes < 2 * data.stat().st_size:
        map_bytes *= 2
    env = lmdb.open(
        str(directory),
        map_size=map_bytes,
        max_dbs=len(Table) + 1,
        sync=False,
        metasync=False,
        readahead=False,
    )
    try:
        meta = env.open_db(b"meta")
        return env, meta, [env.open_db(table.name.lower().encode()) for table in Table]
    except lmdb.Error:
        env.close()
        raise


def _meta_in(txn: lmdb.Transaction, meta_db: Any, fresh: _Meta) -> _Meta:
    """What the store says it is; one that says nothing readable is nobody's."""
    data = txn.get(_META, db=meta_db)
    try:
        return msgspec.msgpack.decode(data, type=_Meta) if data is not None else fresh
    except msgspec.DecodeError:
        return msgspec.structs.replace(fresh, format=0)
