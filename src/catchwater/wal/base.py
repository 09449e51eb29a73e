"""What a write-ahead log promises: durable before acknowledged.

A WAL takes byte strings (chunks, though it never looks inside), one frame each, and numbers
them 1, 2, 3, … within its prefix. `append` returns when the frame is durable, and not before. A
frame is given back whole and checked, or not at all; damage is reported by file and byte range.

A broker alone has a WAL it can recover (`RecoverableWal`): after a crash `frames` gives the durable
frames back in order, and its opener says what has been applied to the catalog already.
Of many brokers over one catalog each has a WAL of its own, under a prefix that no session before
it had; a frame counts once the catalog has committed it, and there is nothing to recover.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from catchwater.config import CatchwaterError
from catchwater.objects.base import Buffer, ObjectInfo, Part


class Position(NamedTuple):
    """Where the payload of one frame lies: `offset` and `size` are bytes in `file`."""

    sequence: int
    file: str
    """`wal/<prefix><first sequence of the file, 20 digits>.wal`: also the catalog's object key."""
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
    """What must fail together for acknowledged frames to be lost."""
    readers: str
    is_shared: bool
    """Whether the other brokers can read it; only then may there be others."""


class WalFull(CatchwaterError):
    """No space for the frame. Nothing of it is left in the file; a later append may succeed."""


class WalDead(CatchwaterError):
    """A sync failed, so it is unknown what is durable: this WAL never acknowledges again."""


class WalUnavailable(CatchwaterError):
    """The frame was not confirmed in all the tries: it does not count, though its bytes may turn
    up as garbage. The next append takes another place and may succeed.
    """


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


class WalPlace(Protocol):
    """Where WAL files of one kind lie: those of every broker that writes there."""

    def read(self, file: str, offset: int, size: int) -> bytes:
        """Bytes of a file as they are; the caller checks them.

        Raises `WalReadError` for what is not there, though what another process removed may be
        read for a while; where it is out of reach for now, what the store or the catalog raises.
        """
        ...

    def read_into(self, file: str, offset: int, into: memoryview) -> None:
        """Fill memory with bytes of a file, for those who use it again. Raises as `read`."""
        ...

    def url(self, file: str, part: Part | None = None) -> str:
        """Where a reader in another process finds the file, as `ObjectStore.url`."""
        ...

    def listing(self) -> Iterator[ObjectInfo]:
        """The files of all writers, in no order. For finding garbage only: it may be stale."""
        ...

    def remove(self, file: str) -> None:
        """Delete a file that nothing refers to any more; never the one being written.

        One that is not there is no error. Raises `WalUnavailable`.
        """
        ...


class Wal(WalPlace, Protocol):
    """One writer appends; anybody may read. All calls block."""

    prefix: str
    """Of this writer's files: empty, or `<broker id>-<session epoch>/` among many brokers."""
    linger_ms: int
    """How long to wait for more of a frame; 0: not at all."""
    linger_bytes: int
    """How large a frame may grow before it is appended without further waiting."""
    max_in_flight: int
    """How many threads may be in `append` at once; their frames count in any order."""
    in_commit: bool
    """`append` only names the frame's place: its bytes travel in the catalog's own transaction
    (`Changes.payloads`), and are durable with it.
    """
    one_frame_files: bool
    """Every frame is a file of its own, complete when `append` returns."""

    def append(self, parts: Sequence[Buffer]) -> Position:
        """Write the parts as one frame and return when they are durable.

        Raises `WalFull` (nothing written, may be tried again), `WalUnavailable` (perhaps written,
        may be tried again: it will be another frame) or `WalDead` (never again).
        """
        ...

    def files(self) -> list[WalFile]:
        """The files this writer may still need, oldest first; the last one is being written.

        None where every frame is a file of its own.
        """
        ...

    def roll(self) -> None:
        """Begin a new file, so that the one before it may be removed once it is not needed.

        Raises `WalFull` or `WalUnavailable`, as `append` does.
        """
        ...

    def describe(self) -> WalDescription:
        """What this WAL is and who can read it."""
        ...

    def close(self) -> None:
        """Let go of the files."""
        ...


class RecoverableWal(Wal, Protocol):
    """The WAL of a broker alone, which gives its frames back after a crash."""

    recovered: Recovered

    @property
    def is_full(self) -> bool:
        """Whether appends find no space."""
        ...

    def frames(self, after: int) -> Iterator[tuple[Position, memoryview]]:
        """Every frame with a sequence above `after`, in order, checked.

        Raises `WalCorrupt` at damage.
        """
        ...


class WalReadError(CatchwaterError):
    """A range of a WAL file cannot be read: the file is missing, shorter, or unreadable."""
