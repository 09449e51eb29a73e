"""Where savepoints lie: a folder each, in any object store; found, read, and deleted.

A savepoint is there if its `savepoint.json` is. That is written last and deleted first, so what is
incomplete, or half deleted, is never seen; `delete` by the same name takes it away.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectMissing, ObjectStore
from catchwater.objects.open import open_store, place
from catchwater.recovery.savepoint.format import FILE, Savepoint, check_name, decode, is_name


class NoSuchSavepoint(CatchwaterError):
    """There is no savepoint of this name."""

    exit_code = 2


@dataclass(frozen=True)
class Shelf:
    """One place with savepoints."""

    store: ObjectStore

    @classmethod
    def at(cls, url: str, clock: Clock) -> "Shelf":
        """The place of this URL, `file://` or `s3://`."""
        return cls(open_store(url, clock))

    def url(self, name: str) -> str:
        """Where a savepoint lies: the same at any time, and for people to read."""
        return place(self.store, check_name(name))

    def names(self) -> list[str]:
        """The savepoints that there are, as far as the store's listing shows."""
        found = (info.key.split("/") for info in self.store.list(""))
        whole = (key[0] for key in found if len(key) == 2 and key[1] == FILE)
        return sorted(name for name in whole if is_name(name))

    def exists(self, name: str) -> bool:
        """Whether there is a complete savepoint of this name."""
        try:
            self.store.size(f"{check_name(name)}/{FILE}")
        except ObjectMissing:
            return False
        return True

    def read(self, name: str) -> Savepoint:
        """What a savepoint says of itself. Raises `NoSuchSavepoint`, `SavepointDamaged`."""
        key = f"{check_name(name)}/{FILE}"
        try:
            data = self.store.get(key)
        except ObjectMissing as error:
            there = ", ".join(self.names()) or "none"
            raise NoSuchSavepoint(
                f"There is no savepoint {name!r} at {self.store.url()}; there are: {there}."
            ) from error
        return decode(data, place(self.store, key))

    def delete(self, name: str) -> int:
        """Remove a savepoint, or what is left of one; the bytes of its objects.

        Release its pin afterwards: nothing needs it any more.
        """
        self.store.delete(f"{check_name(name)}/{FILE}")
        left = list(self._left(name))
        for key, _ in left:
            self.store.delete(key)
        return sum(size for _, size in left)

    def _left(self, name: str) -> Iterator[tuple[str, int]]:
        for info in self.store.list(f"{name}/"):
            yield info.key, info.size_bytes
