"""What a write-ahead log promises: durable before acknowledged, given back in order.

A WAL takes byte strings (chunks, though it never looks inside), one frame each, and numbers
them 1, 2, 3, … for ever. `append` returns when the frame is durable, and not before. After a
crash `frames` gives the durable frames back in the same order. Damage is reported by file and
byte range; a frame is given back whole and checked, or not at all.

A WAL does not know what has been applied to the catalog; whoever opens it says so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from catchwater.config import CatchwaterError
from catchwater.objects.base import Buffer


class Position(NamedTuple):
    """Where the payload of one frame lies: `offset` and `size` are bytes in `file`."""

    sequence: int
    file: str
    """`wal/<first sequence of the file, 20 digits>.wal`: also the catalog's object key."""
    offset: int
    size: int


class WalFile(NamedTuple):
    """One file of the WAL; it holds the frames from `first_sequence` up to the next file's."""

    name: str
    first_sequence: int
    size_bytes: int


class Damage(NamedTuple):
    """Bytes that should be frames and are not: both bytes and both sequences are inclusive."""

    file: str
    first_byte: int
    last_byte: int
    first_sequence: int
    last_sequence: int


@dataclass(frozen=True)
class Recovered:
    """What opening found: the last frame, a torn tail that was cut off, and old damage."""

    last_sequence: int
    dropped_bytes: int
    """Bytes of an unfinished last frame, cut off. Nothing in them was ever acknowledged."""
    damage: tuple[Damage, ...]
    """Damaged frames that the catalog had already applied: what lies elsewhere is served."""

    def findings(self) -> list[str]:
        """What an operator should know, in sentences."""
        found = [
            f"{file} is damaged in bytes {first_byte} to {last_byte}: reading what lies there is "
            "answered with CORRUPT_MESSAGE."
            for file, first_byte, last_byte, *_ in self.damage
        ]
        if self.dropped_bytes:
            found.append(
                f"The write-ahead log ended in an unfinished frame: {self.dropped_bytes} bytes "
                f"behind frame {self.last_sequence}, never acknowledged, were cut off."
            )
        return found


@dataclass(frozen=True)
class WalDescription:
    """What a WAL says of itself, for `catchwater log wal describe` and readiness reports."""

    kind: str
    latency_class: str
    failure_domain: str
    readers: str


class WalFull(CatchwaterError):
    """No space for the frame. Nothing of it is left in the file; a later append may succeed."""


class WalDead(CatchwaterError):
    """A sync failed, so nobody knows what is durable: this WAL never acknowledges again."""


class WalCorrupt(CatchwaterError):
    """Frames the catalog has not applied yet are damaged: acknowledged data would be skipped."""

    def __init__(self, damage: Damage, why: str) -> None:
        super().__init__(
            f"The write-ahead log {damage.file} is damaged in bytes {damage.first_byte} to "
            f"{damage.last_byte} (frames {damage.first_sequence} to {damage.last_sequence}): {why}",
            hint="Restore this file from a copy, or move the data directory aside; nothing was "
            "changed.",
        )
        self.damage = damage


class Wal(Protocol):
    """One writer appends; anybody may read. All calls block; `append` from one thread only."""

    recovered: Recovered

    def append(self, parts: Sequence[Buffer]) -> Position:
        """Write the parts as one frame and return when they are durable.

        Raises `WalFull` (nothing written, may be tried again) or `WalDead` (never again).
        """
        ...

    def frames(self, after: int) -> Iterator[tuple[Position, memoryview]]:
        """Every frame with a sequence above `after`, in order, checked.

        Raises `WalCorrupt` at damage.
        """
        ...

    def read(self, file: str, offset: int, size: int) -> bytes:
        """Bytes of a file as they are; the caller checks them. Raises `WalReadError`."""
        ...

    def url(self, file: str) -> str:
        """Where a reader in another process finds the file: see `objects.urls.read_range`."""
        ...

    def files(self) -> list[WalFile]:
        """The files that hold frames, oldest first; the last one is being written."""
        ...

    def roll(self) -> None:
        """Let the next append begin a new file."""
        ...

    def remove(self, file: str) -> None:
        """Delete a file that nothing refers to any more; never the one being written."""
        ...

    def describe(self) -> WalDescription:
        """What this WAL is and who can read it."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class WalReadError(CatchwaterError):
    """A range of a WAL file cannot be read: the file is missing, shorter, or unreadable."""
