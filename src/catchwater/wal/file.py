"""A write-ahead log in a directory: files of frames, each frame synced before `append` returns.

What a file's bytes are, and how its frames are found, is `wal.frames`.

Only the last frame can be unfinished after a crash, because a frame is written when the one
before it is durable, and a file is begun when the one before it is complete. So bytes that are
no frame are a torn tail, to be cut off, only at the end of the last file and only beyond what
the catalog has applied; anywhere else they are damage: refused where the catalog does not have
the frames yet, reported where it has (their ranges then fail when they are read).

With `seals` new files are sealed (`objects.sealed_file`). No number may be sealed twice with one
key, so a sealed file is never gone on with that another process has begun, or in which a write has
failed: the next append begins another.

Of many brokers on one directory each writes below a prefix of its own, which `wal.shared` made
and checked; there is nothing to recover there.

Relies on its opener to hold the data directory's lock (or the prefix), and to call `append`
from one thread. The other calls may come from any thread.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from crc32c import crc32c

from catchwater.clock import Clock
from catchwater.objects.base import Buffer, StoreError
from catchwater.objects.local import sync_folder
from catchwater.objects.seal import SealBroken
from catchwater.room import NO_DESCRIPTORS, NO_SPACE, Reserve
from catchwater.wal.base import (
    Damage,
    Position,
    Recovered,
    WalCorrupt,
    WalDead,
    WalDescription,
    WalFile,
    WalFull,
    WalUnavailable,
)
from catchwater.wal.directory import FILE_NAME, WalDirectory
from catchwater.wal.frames import (
    ALIGNMENT,
    CRC,
    FILE_HEADER,
    FILE_HEADER_BYTES,
    FILE_MAGIC,
    FRAME_HEADER,
    FRAME_HEADER_BYTES,
    FRAME_MAGIC,
    SEALED_VERSION,
    VERSION,
    Frame,
    Scan,
    scan,
)
from catchwater.wal.sealed import payload

if TYPE_CHECKING:
    from catchwater.objects.keys import Keys
    from catchwater.objects.sealed_file import FileSeal

SEGMENT_BYTES = 64 * 1024 * 1024

_MAX_PARTS = 1024
_PADDING = bytes(8)


class FileWal(WalDirectory):
    """The WAL of one broker, in `<root>/wal/<prefix>`."""

    linger_ms = 0
    linger_bytes = 0
    max_in_flight = 1
    in_commit = False
    one_frame_files = False

    def __init__(
        self,
        root: Path,
        clock: Clock,
        *,
        applied: int,
        segment_bytes: int = SEGMENT_BYTES,
        prefix: str = "",
        reserve: Reserve | None = None,
        keys: "Keys | None" = None,
        seals: bool = False,
    ) -> None:
        """Check every frame behind `applied`, the last one the catalog holds; cut a torn tail.

        Frames are written only while the `reserve` is whole. `keys` open what is sealed, and seal
        new files if `seals`. Raises `WalCorrupt` when a later frame is damaged or missing,
        `WalTooNew`, and `KeysNeeded` or another `StoreError` where these keys do not open a file;
        nothing has been changed then.
        """
        assert keys is not None or not seals
        super().__init__(root, keys)
        self._keys = keys
        self._seals = seals
        # Of the file being written, if it is sealed.
        self._seal: FileSeal | None = None
        self.prefix = prefix
        self._folder = root / "wal" / prefix
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._reserve = reserve or Reserve()
        self._lock = threading.Lock()
        self._found_no_space = False
        self._dead: str | None = None
        # The file being written and the byte behind its last frame; -1: the next append begins one.
        self._file = ""
        self._fd = -1
        self._at = 0
        self._begins = FILE_HEADER_BYTES
        self._salt = 0
        self._folder.mkdir(exist_ok=True)
        sync_folder(self._folder.parent)
        # The files' first sequences, oldest first. One thread adds at the end while another
        # removes, each by one atomic operation on this very list.
        self._firsts = sorted(
            int(match[2])
            for path in self._folder.iterdir()
            if (match := FILE_NAME.fullmatch(f"wal/{prefix}{path.name}"))
        )
        self.recovered = self._recover(applied)
        self._next = self.recovered.last_sequence + 1

    # --- writing -----------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Whether appends find no space, or would find none but the reserve."""
        return self._found_no_space or not self._reserve.refill()

    def append(self, parts: Sequence[Buffer]) -> Position:
        """Write the parts as one frame and return when they are durable."""
        with self._lock:
            return self._append(parts)

    def _append(self, parts: Sequence[Buffer]) -> Position:
        if self._dead is not None:
            raise WalDead(self._dead)
        if not (self._reserve.is_whole or self._reserve.refill()):
            raise self._full("what is left is kept for what frees some")
        if self._fd < 0 or self._at >= self._segment_bytes:
            self._begin_file()
        size = written = payload_crc = 0
        if self._seal is not None:
            size = sum(map(len, parts))
            parts = self._seal.seal(self._next, parts)
        for part in parts:
            written += len(part)
            payload_crc = crc32c(part, payload_crc)
        size = size if self._seal else written
        header = frame_header(self._next, self._salt, size, payload_crc)
        padding = _PADDING[: -written % ALIGNMENT]
        written += len(padding)
        self._write([header, *parts, padding], FRAME_HEADER_BYTES + written)
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._die("synced", error) from error
        position = Position(self._next, self._file, self._at + FRAME_HEADER_BYTES, size)
        self._at = position.offset + written
        self._next += 1
        self._found_no_space = False
        return position

    def _write(self, parts: Sequence[Buffer], size_bytes: int) -> None:
        """Write behind the last frame: all of it, or (for readers of the file) nothing."""
        try:
            _write_all(self._fd, parts, self._at, size_bytes)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise self._die("written", error) from error
            try:
                os.ftruncate(self._fd, self._at)
            except OSError as second:
                raise self._die("truncated", second) from second
            if self._seal is not None:
                self._leave()
            raise self._full(os.strerror(error.errno or 0)) from error

    def _leave(self) -> None:
        """Go on in another file, for the frame's number was used for what was not written."""
        self._let_go()
        if self._firsts[-1] == self._next:  # nothing else is in it, and the other has its name
            self._firsts.pop()
            self._sealed.forget(self._file)
            with suppress(OSError):
                (self._root / self._file).unlink()

    def _begin_file(self) -> None:
        self._let_go()
        name = self._name(self._next)
        path = self._root / name
        salt = self._clock.random.getrandbits(64)
        header = file_header(self._next, salt, is_sealed=self._seals)
        self._seal = self._new_seal(name, header)
        if self._seal is not None:
            header += self._seal.head
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            _write_all(fd, [header], 0, len(header))
            os.fsync(fd)
            sync_folder(path.parent)
        except OSError as error:
            if fd >= 0:
                os.close(fd)
                path.unlink()
            if error.errno in NO_SPACE:
                raise self._full(os.strerror(error.errno or 0)) from error
            if error.errno in NO_DESCRIPTORS:
                raise WalUnavailable(
                    f"No file of the write-ahead log in {self._folder} could be begun now: "
                    f"{error.strerror}.",
                    hint="Raise the limit of open files (ulimit -n); appends go on by themselves.",
                ) from error
            raise self._die("begun", error) from error
        self._fd, self._at, self._salt = fd, len(header), salt
        self._begins = len(header)
        self._file = name
        self._firsts.append(self._next)

    def _new_seal(self, name: str, header: bytes) -> "FileSeal | None":
        if not self._seals:
            return None
        from catchwater.objects.sealed_file import FileSeal

        assert self._keys is not None
        try:
            return FileSeal.begin(name, header, self._keys)
        except StoreError as error:
            raise WalUnavailable(
                f"No file of the write-ahead log in {self._folder} could be begun now: {error}",
                hint=error.hint,
            ) from error

    def _full(self, why: str) -> WalFull:
        self._found_no_space = True
        return WalFull(
            f"There is no space for the write-ahead log in {self._folder}: {why}.",
            hint="Delete topics or records, or free space on this file system; appends then go on "
            "by themselves.",
        )

    def _die(self, done: str, error: OSError) -> WalDead:
        """From here on it is unknown what is durable, so nothing is acknowledged any more."""
        self._dead = (
            f"A file of the write-ahead log in {self._folder} could not be {done} "
            f"({error.strerror}); it takes no more appends."
        )
        return WalDead(self._dead, hint="Check the disk, then start the broker again.")

    # --- reading -----------------------------------------------------------------------------

    def frames(self, after: int) -> Iterator[tuple[Position, memoryview]]:
        """Every frame above `after`, in order, checked."""
        expected = after + 1
        for index in range(self._index_of(expected), len(self._firsts)):
            name = self._name(self._firsts[index])
            data = self._bytes_of(index)
            found = scan(name, data, self._firsts[index])
            for frame in found.frames:
                if frame.sequence < expected:
                    continue
                assert frame.sequence == expected, "opening refused a gap in these frames"
                view = self._payload(found, name, data, frame)
                yield Position(expected, name, frame.payload, frame.size), view
                expected += 1

    def _payload(self, found: Scan, name: str, data: bytes, frame: Frame) -> memoryview:
        try:
            return payload(found, name, data, frame, self._keys)
        except SealBroken as error:
            first, number = frame.payload - FRAME_HEADER_BYTES, frame.sequence
            damage = Damage(name, first, frame.end - 1, number, number)
            raise WalCorrupt(damage, str(error)) from error

    def files(self) -> list[WalFile]:
        """The files there are, oldest first."""
        found = []
        for first in self._firsts.copy():
            name = self._name(first)
            with suppress(FileNotFoundError):  # it is being removed
                found.append(WalFile(name, first, (self._root / name).stat().st_size))
        return found

    def roll(self) -> None:
        """Begin a new file, on the reserve if need be, so that the one before it may go."""
        with self._lock:
            if self._dead is not None or self._at <= self._begins:
                return
            try:
                self._begin_file()
            except WalFull:
                if not self._reserve.give_up():
                    raise
                self._begin_file()

    def remove(self, file: str) -> None:
        """Delete a file of any writer; of its own, never the newest."""
        match = FILE_NAME.fullmatch(file)
        first = int(match[2]) if match and (match[1] or "") == self.prefix else -1
        assert [first] != self._firsts[-1:], "the newest file is never removed"
        super().remove(file)
        if first in self._firsts:
            self._firsts.remove(first)

    def describe(self) -> WalDescription:
        """What this WAL is and who can read it."""
        return description(self._root, is_shared=bool(self.prefix))

    def close(self) -> None:
        """Let go of the file being written."""
        self._let_go()

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    # --- opening -----------------------------------------------------------------------------

    def _name(self, first_sequence: int) -> str:
        return f"wal/{self.prefix}{first_sequence:020d}.wal"

    def _index_of(self, sequence: int) -> int:
        """The file in which a frame of this sequence lies or would lie."""
        return max(0, sum(first <= sequence for first in self._firsts) - 1)

    def _bytes_of(self, index: int) -> bytes:
        return (self._root / self._name(self._firsts[index])).read_bytes()

    def _recover(self, applied: int) -> Recovered:
        begins = self._firsts[0] if self._firsts else applied + 2
        if begins > applied + 1 and (self._firsts or applied):
            missing = Damage(self._name(applied + 1), 0, 0, applied + 1, begins - 1)
            raise WalCorrupt(missing, "the files that held them are gone, or the catalog is old.")
        for first in self._firsts:  # these keys open them, or nothing is changed
            self._sealed.check(self._name(first))
        damage: list[Damage] = []
        last = applied
        newest = None
        for index in range(self._index_of(applied + 1), len(self._firsts)):
            newest = scan(
                self._name(self._firsts[index]), self._bytes_of(index), self._firsts[index]
            )
            damage += self._damage(index, newest, applied)
            last = max(last, newest.last_sequence)
        for lost in damage:
            if lost.last_sequence > applied:
                raise WalCorrupt(lost, "acknowledged records that lie there would be skipped.")
        dropped = self._resume(newest, last) if newest else 0
        return Recovered(last, dropped, tuple(damage))

    def _damage(self, index: int, found: Scan, applied: int) -> list[Damage]:
        """What is damaged in a file, its end included unless that may be a torn tail."""
        is_newest = index == len(self._firsts) - 1
        should_reach = applied if is_newest else self._firsts[index + 1] - 1
        if is_newest and not found.header_intact and not found.may_be_begun:
            # A header is synced before the first frame is written, so this is no torn write, and
            # without the header's salt there is no telling how many frames there were.
            should_reach = max(applied, found.first_sequence) + 1
        damage = list(found.damage)
        if found.last_sequence < should_reach:
            last_byte = max(found.end, found.size_bytes - 1)
            name = self._name(found.first_sequence)
            damage.append(Damage(name, found.end, last_byte, found.last_sequence + 1, should_reach))
        return damage

    def _resume(self, newest: Scan, last_sequence: int) -> int:
        """Go on behind the newest file's last frame; returns the bytes of the torn tail cut off."""
        if newest.last_sequence < last_sequence:
            return 0
        path = self._root / self._name(newest.first_sequence)
        dropped = newest.size_bytes - newest.end
        goes_on = not (newest.is_sealed or self._seals)
        if not newest.header_intact or not (goes_on or newest.frames):
            path.unlink()
            sync_folder(path.parent)
            self._firsts.pop()
            self._sealed.forget(self._name(newest.first_sequence))
            return dropped
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(self._fd, newest.end)
        os.fsync(self._fd)
        if not goes_on:
            self._let_go()
        self._file = self._name(newest.first_sequence)
        self._at, self._salt = newest.end, newest.salt
        return max(0, dropped)


def file_header(first_sequence: int, salt: int, *, is_sealed: bool = False) -> bytes:
    """The bytes a file begins with; of a sealed one there is more behind."""
    version = SEALED_VERSION if is_sealed else VERSION
    head = FILE_HEADER.pack(FILE_MAGIC, version, 0, first_sequence, salt)
    return (head + CRC.pack(crc32c(head))).ljust(FILE_HEADER_BYTES, b"\0")


def frame_header(sequence: int, salt: int, size: int, payload_crc: int) -> bytes:
    """The bytes in front of a payload."""
    head = FRAME_HEADER.pack(FRAME_MAGIC, VERSION, 0, sequence, size, salt, payload_crc)
    return head + CRC.pack(crc32c(head))


def description(root: Path, *, is_shared: bool) -> WalDescription:
    """What the WAL in `<root>/wal` is, whether or not it is open."""
    return WalDescription(
        kind="file",
        latency_class="one fdatasync of the file system: tens of µs to a few ms",
        failure_domain=f"the file system that holds {root / 'wal'}",
        readers="every broker that sees this directory" if is_shared else "this broker only",
        is_shared=is_shared,
    )


def _write_all(fd: int, parts: Sequence[Buffer], at: int, size_bytes: int) -> None:
    """Write the parts, so many bytes, side by side from byte `at` on."""
    if len(parts) <= _MAX_PARTS and os.pwritev(fd, parts, at) == size_bytes:
        return
    # The system splits it: again from the first byte, as far as it gets each time.
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        written = os.pwritev(fd, left[:_MAX_PARTS], at)
        at += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
