"""One shard's entries in an embedded store (LMDB) on local disk, one committed batch behind."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from catchwater.config import CatchwaterError
from catchwater.pipeline.state import ShardState


class ShardDamaged(CatchwaterError):
    """What Spark's checkpoint holds of a shard does not fit together."""


@dataclass(frozen=True)
class Logged:
    """What Spark's state store holds of a shard: a snapshot, and the deltas after it in order."""

    chunks: Iterable[bytes]
    deltas: Iterable[bytes]


class ShardStore:
    """The local copy of one shard; a cache of Spark's checkpoint, never trusted beyond it."""

    @classmethod
    def open(cls, directory: Path, function: str, shard: str, boot_id: str) -> "ShardStore":
        """Open or make the store; one of another function, shard or boot is emptied."""
        ...

    def begin(self, version: int, token: str, load: Callable[[], Logged]) -> ShardState:
        """Bring the store to what Spark says is committed; `load` is called only to rebuild.

        A shard that was never written is at version 0 with token "".
        """
        ...

    def finish(self, token: str) -> bytes:
        """Delta of the epoch's changes to version + 1; kept here too, applied by the next begin."""
        ...

    def snapshot(self) -> Iterator[bytes]:
        """Chunks (about 4 MB) of what `begin` brought the store to: the epoch's changes not."""
        ...

    def close(self) -> None:
        """Close the environment."""
