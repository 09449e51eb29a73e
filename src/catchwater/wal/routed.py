"""One broker's write-ahead log, with the files of brokers that write to another kind.

A cluster may have changed its kind of WAL; what the earlier sessions wrote lies where it was
written until it is packed. Which place that is, is the same for all files of a session, so it is
looked for once: by reading the first byte of a file.
"""

from collections.abc import Iterator, Sequence
from itertools import chain

from catchwater.objects.base import Buffer, ObjectInfo, Part
from catchwater.wal.base import Position, Wal, WalDescription, WalFile, WalPlace, WalReadError


class RoutedWal:
    """A WAL that is written to, and other places whose files are only read and removed."""

    def __init__(self, own: Wal, others: Sequence[WalPlace]) -> None:
        self._own = own
        self._others = others
        # Prefix of a session -> where its files lie. Threads may look for one at the same time.
        self._places: dict[str, WalPlace] = {own.prefix: own}
        self.prefix = own.prefix
        self.linger_ms = own.linger_ms
        self.linger_bytes = own.linger_bytes
        self.max_in_flight = own.max_in_flight
        self.in_commit = own.in_commit
        self.one_frame_files = own.one_frame_files

    def append(self, parts: Sequence[Buffer]) -> Position:
        """Write the parts as one frame."""
        return self._own.append(parts)

    def read(self, file: str, offset: int, size: int) -> bytes:
        """Bytes of a file, wherever it lies."""
        return self._place_of(file).read(file, offset, size)

    def read_into(self, file: str, offset: int, into: memoryview) -> None:
        """Fill memory with bytes of a file, wherever it lies."""
        self._place_of(file).read_into(file, offset, into)

    def url(self, file: str, part: Part | None = None) -> str:
        """Where a reader in another process finds the file."""
        return self._place_of(file).url(file, part)

    def remove(self, file: str) -> None:
        """Delete a file, wherever it lies."""
        self._place_of(file).remove(file)

    def listing(self) -> Iterator[ObjectInfo]:
        """The files of all writers of all kinds."""
        return chain(self._own.listing(), *(place.listing() for place in self._others))

    def files(self) -> list[WalFile]:
        """The files this writer may still need."""
        return self._own.files()

    def roll(self) -> None:
        """Let the next append begin a new file."""
        self._own.roll()

    def describe(self) -> WalDescription:
        """What the WAL that is written to is."""
        return self._own.describe()

    def close(self) -> None:
        """Let go of the files."""
        self._own.close()

    def _place_of(self, file: str) -> WalPlace:
        """Where the file lies; if it lies nowhere, where it would be looked for first."""
        prefix = file.removeprefix("wal/").rpartition("/")[0] + "/"
        known = self._places.get(prefix)
        if known is not None:
            return known
        for place in (self._own, *self._others):
            try:
                place.read(file, 0, 1)
            except WalReadError:
                continue
            self._places[prefix] = place
            return place
        return self._own
