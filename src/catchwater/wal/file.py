"""A write-ahead log in a directory: files of frames, each frame synced before `append` returns.

Only the last frame can be unfinished after a crash, because a frame is written when the one
before it is durable, and a file is begun when the one before it is complete. So bytes that are
no frame are a torn tail, to be cut off, only at the end of the last file and only beyond what
the catalog has applied; anywhere else they are damage: refused where the catalog does not have
the frames yet, reported where it has (their ranges then fail when they are read).

Of many brokers on one directory each writes below a prefix of its own, which `wal.shared` made
and checked; there is nothing to recover there.

Relies on its opener to hold the data directory's lock (or the prefix), and to call `append`
from one thread. The other calls may come from any thread.
"""

import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from crc32c import crc32c

from catchwater.clock import Clock
from catchwater.objects.base import Buffer
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
from catchwater.wal.directory import FILE_NAME as FILE_NAME
from catchwater.wal.directory import WalDirectory, sync_directory
from catchwater.wal.scan import (
    ALIGNMENT,
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    Scan,
    file_header,
    frame_header,
    scan,
)

SEGMENT_BYTES = 64 * 1024 * 1024

_MAX_PARTS = 1024


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
    ) -> None:
        """Check every frame behind `applied`, the last one the catalog holds; cut a torn tail.

        Frames are written only while the `reserve` is whole. Raises `WalCorrupt` when a later
        frame is damaged or missing, and `WalTooNew`; nothing has been changed then.
        """
        super().__init__(root)
        self.prefix = prefix
        self._folder = root / "wal" / prefix
        self._clock = clock
        self._segment_bytes = segment_bytes
        self._reserve = reserve or Reserve()
        self._lock = threading.Lock()
        self._found_no_space = False
        self._dead: str | None = None
        # The file being written and the byte behind its last frame; -1: the next append begins one.
        self._fd = -1
        self._at = 0
        self._salt = 0
        self._folder.mkdir(exist_ok=True)
        sync_directory(self._folder.parent)
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
        if not self._reserve.refill():
            raise self._full("what is left is kept for what frees some")
        if self._fd < 0 or self._at >= self._segment_bytes:
            self._begin_file()
        size = payload_crc = 0
        for part in parts:
            size += len(part)
            payload_crc = crc32c(part, payload_crc)
        header = frame_header(self._next, self._salt, size, payload_crc)
        padding = bytes(-size % ALIGNMENT)
        self._write([header, *parts, padding])
        try:
            os.fdatasync(self._fd)
        except OSError as error:
            raise self._die("synced", error) from error
        position = Position(
            self._next, self._name(self._firsts[-1]), self._at + FRAME_HEADER_BYTES, size
        )
        self._at = position.offset + size + len(padding)
        self._next += 1
        self._found_no_space = False
        return position

    def _write(self, parts: Sequence[Buffer]) -> None:
        """Write behind the last frame: all of it, or (for readers of the file) nothing."""
        try:
            _write_all(self._fd, parts, self._at)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise self._die("written", error) from error
            try:
                os.ftruncate(self._fd, self._at)
            except OSError as second:
                raise self._die("truncated", second) from second
            raise self._full(os.strerror(error.errno or 0)) from error

    def _begin_file(self) -> None:
        self._let_go()
        path = self._root / self._name(self._next)
        salt = self._clock.random.getrandbits(64)
        fd = -1
        try:
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            _write_all(fd, [file_header(self._next, salt)], 0)
            os.fsync(fd)
            sync_directory(path.parent)
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
        self._fd, self._at, self._salt = fd, FILE_HEADER_BYTES, salt
        self._firsts.append(self._next)

    def _full(self, why: str) -> WalFull:
        self._found_no_space = True
        return WalFull(
            f"There is no space for the write-ahead log in {self._folder}: {why}.",
            hint="Delete topics or records, or free space on this file system; appends then go on "
            "by themselves.",
        )

    def _die(self, done: str, error: OSError) -> WalDead:
        """From here on nobody knows what is durable, so nothing is acknowledged any more."""
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
            for frame in scan(name, data, self._firsts[index]).frames:
                if frame.sequence < expected:
                    continue
                assert frame.sequence == expected, "opening refused a gap in these frames"
                view = memoryview(data)[frame.payload : frame.payload + frame.size]
                yield Position(expected, name, frame.payload, frame.size), view
                expected += 1

    def files(self) -> list[WalFile]:
        """The files there are, oldest first."""
        found = []
        for first in self._firsts.copy():
            path = self._root / self._name(first)
            if path.exists():  # else it is being removed
                found.append(WalFile(self._name(first), first, path.stat().st_size))
        return found

    def roll(self) -> None:
        """Begin a new file, on the reserve if need be, so that the one before it may go."""
        with self._lock:
            if self._dead is not None or self._at <= FILE_HEADER_BYTES:
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
        if is_newest and not found.header_intact and found.size_bytes > FILE_HEADER_BYTES:
            # A header is synced before the first frame is written, so this is no torn write, and
            # without the header's salt nobody can tell how many frames there were.
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
        if not newest.header_intact:
            path.unlink()
            sync_directory(path.parent)
            self._firsts.pop()
            return dropped
        self._fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        os.ftruncate(self._fd, newest.end)
        os.fsync(self._fd)
        self._at, self._salt = newest.end, newest.salt
        return max(0, dropped)


def description(root: Path, *, is_shared: bool) -> WalDescription:
    """What the WAL in `<root>/wal` is, whether or not it is open."""
    return WalDescription(
        kind="file",
        latency_class="one fdatasync of the file system: tens of µs to a few ms",
        failure_domain=f"the file system that holds {root / 'wal'}",
        readers="every broker that sees this directory" if is_shared else "this broker only",
        is_shared=is_shared,
    )


def _write_all(fd: int, parts: Sequence[Buffer], at: int) -> None:
    """Write the parts one after the other from byte `at` on, however the system splits it."""
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        written = os.pwritev(fd, left[:_MAX_PARTS], at)
        at += written
        while left and written >= len(left[0]):
            written -= len(left.pop(0))
        if written:
            left[0] = left[0][written:]
