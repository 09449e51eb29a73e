"""A checksum for every page of a SQLite database, which SQLite itself does not keep.

`catalog.sums` lies beside `catalog.db`: a header, then the CRC-32C of each page. In WAL mode the
database file changes only when a checkpoint copies pages into it. So checkpoints are ours (those
of SQLite are switched off): after each, the checksums of the pages it copied are written and
synced, and only then may SQLite begin its `-wal` file again. A crash in between leaves the pages in
`-wal`, which outranks the file, so those are not compared.

`verify` reads the whole file and its `-wal` before SQLite does, a gigabyte a second or so. It finds
a bit that flipped anywhere, a file cut short, and a file from another time. It does not find bits
that flip while the database is open; the next opening and `catchwater log fsck` do.

Relies on one process writing. The database's descriptor stays open until `close`, because POSIX
drops the locks SQLite holds on a file when any descriptor of it is closed in the process.
"""

import os
import sqlite3
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from crc32c import crc32c

from catchwater.catalog.errors import CatalogDead
from catchwater.room import NO_SPACE

CHECKPOINT_PAGES = 1000

_MAGIC = b"CWPS"
_VERSION = 1
_HEADER = struct.Struct(">4sHHII")
_SUM = struct.Struct(">I")
_WAL_HEADER = struct.Struct(">8I")
_FRAME_HEADER = struct.Struct(">6I")
_WAL_MAGIC = 0x377F0682  # the lowest bit says in which byte order the checksums are taken
_PAGES_A_READ = 256


class CatalogDamaged(CatalogDead):
    """The database file is not what was written; both bytes are inclusive."""

    def __init__(self, path: Path, first_byte: int, last_byte: int, reason: str) -> None:
        super().__init__(
            f"The catalog {path} is damaged in bytes {first_byte} to {last_byte}: {reason}",
            hint="Make it again with `catchwater log rebuild`, which leaves this file aside; if a "
            "tool of yours has changed it, and rightly so, remove catalog.sums.",
        )
        self.path = path
        self.first_byte = first_byte
        self.last_byte = last_byte


class Spoiled(NamedTuple):
    """Bytes of a file that are not what was written; both are inclusive."""

    path: Path
    first_byte: int
    last_byte: int
    reason: str


class PageSums:
    """The checksums of one database, from before it is opened until after it is closed."""

    def __init__(self, database: Path) -> None:
        """Verify the database, if it is there and has checksums. Raises `CatalogDamaged`."""
        spoiled = next(find_spoiled(database), None)
        if spoiled is not None:
            raise CatalogDamaged(*spoiled)
        self._path = database
        self._wal_path = database.with_name(f"{database.name}-wal")
        self._known = sums_path(database).exists()
        self._database_fd = os.open(database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._sums_fd = self._wal_fd = -1

    def begin(self, db: sqlite3.Connection) -> None:
        """Take over the checkpoints of an open database in WAL mode without its own.

        One without checksums (older, or freed of them) gets them, if SQLite finds no fault in it.
        Raises `CatalogDamaged` or `sqlite3.Error`.
        """
        (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
        self._page_bytes: int = page_bytes
        # Held open, for it is looked at after every transaction. SQLite keeps this very file as
        # long as a connection is open, and what is empty counts as missing to it.
        self._wal_fd = os.open(self._wal_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        if not self._known:
            _check_content(db, self._path)
            self._sum_all()
        self._sums_fd = os.open(sums_path(self._path), os.O_RDWR | os.O_CLOEXEC)
        self.checkpoint(db)

    def keep_up(self, db: sqlite3.Connection) -> None:
        """Make a checkpoint if enough lies in `-wal`; called after every transaction.

        One that SQLite has no space for, or is kept from, is made another time. Raises `OSError`.
        """
        if _frames_in(self._wal_fd, self._page_bytes) >= CHECKPOINT_PAGES:
            with suppress(sqlite3.Error):
                self.checkpoint(db)

    def checkpoint(self, db: sqlite3.Connection) -> None:
        """Copy pages from `-wal` into the database, as far as readers let it, and sum them.

        Called between two transactions of the only writer. Raises `sqlite3.Error` or `OSError`.
        """
        frames = _frames_in(self._wal_fd, self._page_bytes)
        pages = {page for page, *_ in _frames(self._wal_fd, self._page_bytes, frames)}
        if not self._has_space(max(pages, default=0)):
            return
        db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
        self._write(pages)

    def close(self) -> None:
        """Let go of the files, once the last connection is closed."""
        for fd in (self._database_fd, self._sums_fd, self._wal_fd):
            if fd >= 0:
                os.close(fd)
        self._database_fd = self._sums_fd = self._wal_fd = -1

    def _has_space(self, pages: int) -> bool:
        """Whether the checksums of so many pages can be written once the pages are."""
        try:
            os.posix_fallocate(self._sums_fd, 0, _sum_at(pages + 1))
        except OSError as error:
            if error.errno in NO_SPACE:
                return False
            raise
        return True

    def _sum_all(self) -> None:
        """Write the checksums of the whole file, at once or not at all."""
        size = os.fstat(self._database_fd).st_size
        parts = [_HEADER.pack(_MAGIC, _VERSION, 0, self._page_bytes, 0)]
        for first, count in _stretches(range(1, size // self._page_bytes + 1)):
            parts.append(self._sums_of(first, count))
        unfinished = sums_path(self._path).with_suffix(".sums-new")
        with open(unfinished, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, sums_path(self._path))

    def _write(self, pages: Iterable[int]) -> None:
        """Sum these pages as they lie in the file now; those it does not have yet come later."""
        for first, count in _stretches(pages):
            os.pwrite(self._sums_fd, self._sums_of(first, count), _sum_at(first))
        os.fdatasync(self._sums_fd)

    def _sums_of(self, first: int, count: int) -> bytes:
        at = _at(first, self._page_bytes)
        data = os.pread(self._database_fd, count * self._page_bytes, at)
        return b"".join(_SUM.pack(crc) for crc in _sums(data, self._page_bytes))


def sums_path(database: Path) -> Path:
    """Where the checksums of a database lie."""
    return database.with_suffix(".sums")


def find_spoiled(database: Path) -> Iterator[Spoiled]:
    """Every stretch of the database and its `-wal` that is not what was written.

    Without checksums only `-wal` is looked at, which has SQLite's own.
    """
    sums_file = sums_path(database)
    if not sums_file.exists():
        return
    sums = sums_file.read_bytes()
    sums = sums.ljust(_HEADER.size, b"\0")
    magic, version, _flags, page_bytes, _reserved = _HEADER.unpack_from(sums)
    if magic != _MAGIC or version != _VERSION or page_bytes.bit_count() != 1 or page_bytes < 512:
        yield Spoiled(sums_file, 0, _HEADER.size - 1, "this is no header of page checksums.")
        return
    wal_path = database.with_name(f"{database.name}-wal")
    committed = set[int]()
    if wal_path.exists():
        spoiled, committed = _read_wal(wal_path, page_bytes)
        yield from spoiled
    yield from _compare(database, sums, page_bytes, committed)


def _compare(database: Path, sums: bytes, page_bytes: int, newer: set[int]) -> Iterator[Spoiled]:
    """Hold the file's pages against their sums, but for those that `-wal` has a newer one of."""
    whole = (len(sums) - _HEADER.size) // _SUM.size
    wanted = struct.unpack_from(f">{whole}I", sums, _HEADER.size)
    if not database.exists():
        yield Spoiled(database, 0, max(0, whole * page_bytes - 1), "it is gone.")
        return
    size = database.stat().st_size
    wrong = []
    with open(database, "rb") as file:
        for first in range(1, size // page_bytes + 1, _PAGES_A_READ):
            found = _sums(file.read(_PAGES_A_READ * page_bytes), page_bytes)
            wrong += [
                page
                for page, crc in enumerate(found, start=first)
                if page not in newer and (page > len(wanted) or crc != wanted[page - 1])
            ]
    for first, count in _stretches(wrong):
        at = _at(first, page_bytes)
        reason = "its pages do not have the checksums they were written with."
        yield Spoiled(database, at, at + count * page_bytes - 1, reason)
    missing = [page for page in range(size // page_bytes + 1, len(wanted) + 1) if page not in newer]
    if missing or (size % page_bytes and len(wanted) * page_bytes < size):
        last = max(size, len(wanted) * page_bytes) - 1
        yield Spoiled(database, size - size % page_bytes, last, "it was cut off or appended to.")


def _sums(data: bytes, page_bytes: int) -> list[int]:
    view = memoryview(data)
    whole = len(data) - page_bytes + 1
    return [crc32c(view[at : at + page_bytes]) for at in range(0, whole, page_bytes)]


def _stretches(pages: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring pages together: the first one and how many, in moderate pieces."""
    numbered = enumerate(sorted(pages))
    for _, together in groupby(numbered, key=lambda item: item[1] - item[0]):
        stretch = [page for _, page in together]
        for at in range(0, len(stretch), _PAGES_A_READ):
            yield stretch[at], len(stretch[at : at + _PAGES_A_READ])


def _at(page: int, page_bytes: int) -> int:
    return (page - 1) * page_bytes


def _sum_at(page: int) -> int:
    return _HEADER.size + (page - 1) * _SUM.size


def _check_content(db: sqlite3.Connection, path: Path) -> None:
    (answer,) = db.execute("PRAGMA quick_check(1)").fetchone()
    if answer != "ok":
        raise CatalogDamaged(path, 0, max(0, path.stat().st_size - 1), f"{answer}.")


# --- SQLite's `-wal` file (its file format page, section 4) --------------------------------------


class _Frame(NamedTuple):
    page: int
    ends_transaction: int
    salts: tuple[int, int]
    sums: tuple[int, int]


def _frames_in(fd: int, page_bytes: int) -> int:
    """How many frames carry the salts of the header: those of the present round."""
    head = os.pread(fd, _WAL_HEADER.size, 0)
    slot = _FRAME_HEADER.size + page_bytes
    slots = (os.fstat(fd).st_size - _WAL_HEADER.size) // slot
    if len(head) < _WAL_HEADER.size or slots <= 0:
        return 0
    salts = head[16:24]

    def is_older(index: int) -> bool:
        return os.pread(fd, 8, _WAL_HEADER.size + index * slot + 8) != salts

    return bisect_left(range(slots), True, key=is_older)


def _frames(fd: int, page_bytes: int, count: int) -> Iterator[_Frame]:
    """The headers of so many frames."""
    for index in range(count):
        at = _WAL_HEADER.size + index * (_FRAME_HEADER.size + page_bytes)
        yield _frame(os.pread(fd, _FRAME_HEADER.size, at), 0)


def _frame(data: bytes | memoryview, at: int) -> _Frame:
    page, commit, *rest = _FRAME_HEADER.unpack_from(data, at)
    return _Frame(page, commit, (rest[0], rest[1]), (rest[2], rest[3]))


def _read_wal(path: Path, page_bytes: int) -> tuple[list[Spoiled], set[int]]:
    """Damage in a `-wal` file, and the pages SQLite will take from it.

    SQLite stops at the first frame with a wrong checksum, as behind a write that a crash has
    interrupted. Only the last transaction can be such a one, for each is synced before the next.
    """
    data = path.read_bytes()
    slot = _FRAME_HEADER.size + page_bytes
    if len(data) < _WAL_HEADER.size + slot:
        return [], set()
    magic, _version, size, _round, *salts, first, second = _WAL_HEADER.unpack_from(data)
    order = ">" if magic & 1 else "<"
    sums = _wal_sum(data[:24], order, (0, 0))
    if magic & ~1 != _WAL_MAGIC or size != page_bytes or sums != (first, second):
        return [Spoiled(path, 0, _WAL_HEADER.size - 1, "its header fails its checksum.")], set()
    view = memoryview(data)
    committed: set[int] = set()
    under_way: set[int] = set()
    slots = range(_WAL_HEADER.size, len(data) - slot + 1, slot)
    for index, at in enumerate(slots):
        frame = _frame(view, at)
        sums = _wal_sum(view[at : at + 8], order, sums)
        sums = _wal_sum(view[at + _FRAME_HEADER.size : at + slot], order, sums)
        if sums != frame.sums or frame.salts != tuple(salts):
            behind = [_frame(view, at) for at in slots[index:]]
            lost = _holds_a_synced_one(behind, tuple(salts))
            reason = "a frame fails its checksum, and transactions follow."
            return ([Spoiled(path, at, at + slot - 1, reason)] if lost else []), committed
        under_way.add(frame.page)
        if frame.ends_transaction:
            committed |= under_way
            under_way.clear()
    return [], committed


def _holds_a_synced_one(frames: list[_Frame], salts: tuple[int, ...]) -> bool:
    """Whether the transaction that the first of these frames belongs to was followed by another."""
    ended = bool(frames[0].ends_transaction)
    for frame in frames[1:]:
        if frame.salts == salts:
            if ended:
                return True
            ended = bool(frame.ends_transaction)
    return False


def _wal_sum(data: bytes | memoryview, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """SQLite's running checksum over pairs of 32-bit words."""
    first, second = sums
    words = iter(struct.unpack(f"{order}{len(data) // 4}I", data))
    for a, b in zip(words, words, strict=True):
        first = (first + a + second) & 0xFFFFFFFF
        second = (second + b + first) & 0xFFFFFFFF
    return first, second
