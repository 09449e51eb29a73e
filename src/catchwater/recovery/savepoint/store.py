"""A shelf of savepoints, a folder each, in any object store; finds, reads and deletes them.

A savepoint exists if its `savepoint.json` does. That is written last and deleted first, so an
incomplete savepoint is never listed; `delete` by its name removes the rest of it.

A savepoint that was restored with a claim is deleted when the checkpoint no longer needs it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectMissing, ObjectStore, StoreError
from catchwater.objects.open import given_keys, open_store, place
from catchwater.recovery.ledger import FOLDER, read_json, write_whole
from catchwater.recovery.savepoint.format import (
    FILE,
    Savepoint,
    check_name,
    check_signed,
    decode,
    is_name,
)


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
        """The URL of a savepoint, without credentials and the same at any time."""
        return place(self.store, check_name(name))

    def names(self) -> list[str]:
        """The savepoints in the store's listing."""
        return [name for name, whole in self.found().items() if whole]

    def found(self) -> dict[str, bool]:
        """Name → whether it is complete, also of what is left of some, in the order of names."""
        found: dict[str, bool] = {}
        for info in self.store.list(""):
            name, _, key = info.key.partition("/")
            found[name] = found.get(name, False) or key == FILE
        return {name: found[name] for name in sorted(found) if is_name(name)}

    def exists(self, name: str) -> bool:
        """Whether there is a complete savepoint of this name."""
        try:
            self.store.size(f"{check_name(name)}/{FILE}")
        except ObjectMissing:
            return False
        return True

    def read(self, name: str, *, trusted: bool = True) -> Savepoint:
        """What a savepoint's own file says; where there are keys, only if one has signed it.

        That is not asked unless `trusted`: then nothing of it may be restored. Raises
        `NoSuchSavepoint`, `SavepointDamaged`, `SavepointUntrusted`.
        """
        data, where = self.raw(name)
        found = decode(data, where)
        keys = given_keys() if trusted else None
        if keys is not None:
            check_signed(data, where, keys)
        return found

    def raw(self, name: str) -> tuple[bytes, str]:
        """The bytes of a savepoint's own file, and its URL. Raises `NoSuchSavepoint`."""
        key = f"{check_name(name)}/{FILE}"
        try:
            data = self.store.get(key)
        except ObjectMissing as error:
            there = ", ".join(self.names()) or "none"
            raise NoSuchSavepoint(
                f"There is no savepoint {name!r} at {self.store.url()}; there are: {there}."
            ) from error
        return data, place(self.store, key)

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


class Claim(msgspec.Struct, frozen=True):
    """The savepoint that a checkpoint has claimed."""

    shelf: str
    """URL."""
    savepoint: str
    epoch: int
    """The savepoint's epoch; with a later one the checkpoint no longer needs it."""
    pin: str = ""
    """The savepoint's."""


def keep_claim(checkpoint: Path, claim: Claim) -> None:
    """Store the claim durably."""
    write_whole(_claim_file(checkpoint), msgspec.json.encode(claim))


def read_claim(checkpoint: Path) -> Claim | None:
    """The stored claim. Raises `LedgerDamaged`."""
    return read_json(_claim_file(checkpoint), Claim)


def settle_claim(
    checkpoint: Path, last_epoch: int, release: Callable[[str], None], clock: Clock
) -> None:
    """Delete a claimed savepoint once an epoch after it is done, and release its pin.

    Costs nothing where nothing was claimed; may be repeated. A pipeline does not fail for a place
    that is away: it is asked again behind the next epoch.
    """
    path = _claim_file(checkpoint)
    if not path.exists():
        return
    claim = read_claim(checkpoint)
    if claim is None or last_epoch <= claim.epoch:
        return
    try:
        Shelf.at(claim.shelf, clock).delete(claim.savepoint)
    except StoreError:
        return
    if claim.pin:
        release(claim.pin)
    path.unlink()


def _claim_file(checkpoint: Path) -> Path:
    return checkpoint / FOLDER / "claimed.json"
