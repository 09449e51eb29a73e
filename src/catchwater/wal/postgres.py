"""A write-ahead log inside the catalog's own transactions: a frame's bytes are a payload row.

`append` only names the place. The bytes travel in the commit (`Changes.payloads`), so a frame is
durable and committed at once, in one round trip, and there is never garbage: what was not
committed was not written. Relies on the shared catalog for everything else; the database's
replication is what protects the frames.
"""

import itertools
from collections.abc import Iterator, Sequence

from catchwater.catalog.errors import CatalogRetriable
from catchwater.catalog.shared import SharedCatalog
from catchwater.objects.base import Buffer, ObjectInfo, Part
from catchwater.wal.base import Position, WalDescription, WalFile, WalReadError, WalUnavailable

DESCRIPTION = WalDescription(
    kind="postgres",
    latency_class="none of its own: the frame travels in the catalog's commit, a few ms",
    failure_domain="the catalog's PostgreSQL, with its replicas",
    readers="every broker of the catalog",
    is_shared=True,
)


class PostgresWal:
    """The WAL of one session of a broker, in payload rows `wal/<prefix><sequence>.wal`."""

    linger_ms = 0
    linger_bytes = 0
    max_in_flight = 1
    in_commit = True
    one_frame_files = True

    def __init__(self, catalog: SharedCatalog, *, prefix: str) -> None:
        """`prefix` is one that no session had before."""
        self.prefix = prefix
        self._catalog = catalog
        self._numbers = itertools.count(1)

    def append(self, parts: Sequence[Buffer]) -> Position:
        """Name the place of the parts, joined; the commit sends them along."""
        sequence = next(self._numbers)
        return Position(sequence, f"wal/{self.prefix}{sequence:020d}.wal", 0, sum(map(len, parts)))

    def read(self, file: str, offset: int, size: int) -> bytes:
        """Bytes of a payload row. `CatalogUnavailable` where the database does not answer."""
        data = self._catalog.payload(file, offset, size)
        if data is None:
            raise WalReadError(f"The catalog holds no payload {file}.")
        if len(data) != size:
            raise WalReadError(
                f"The payload {file} ends before byte {offset + size}, which the catalog names."
            )
        return data

    def read_into(self, file: str, offset: int, into: memoryview) -> None:
        """Fill memory with what `read` gives."""
        into[:] = self.read(file, offset, len(into))

    def url(self, file: str, part: Part | None = None) -> str:
        """A name for messages: only brokers read the database."""
        return f"postgresql:{file}"

    def files(self) -> list[WalFile]:
        """None: a payload is complete when it is there."""
        return []

    def listing(self) -> Iterator[ObjectInfo]:
        """Nothing: payloads come and go with the catalog's own rows."""
        return iter(())

    def roll(self) -> None:
        """Every frame begins a payload anyway."""

    def remove(self, file: str) -> None:
        """Delete a payload."""
        try:
            self._catalog.delete_payloads([file]).result()
        except CatalogRetriable as error:
            raise WalUnavailable(f"{file} was not removed: {error}", hint=error.hint) from error

    def describe(self) -> WalDescription:
        """What this WAL is and who can read it."""
        return DESCRIPTION

    def close(self) -> None:
        """Nothing is held."""
