"""Backups of the catalog as objects beside the segments, so that the bucket alone is enough.

Segments describe themselves. The rest (topics, watermarks, producer states, groups, pins, epochs,
runs in chunks that are not packed yet) is written as one object
`catalog/<number, 20 digits>.json.zst`: compressed, a line with version and CRC-32C, then the state
as JSON. `rebuild` makes a catalog from the newest intact one.

The catalog allocates a backup's number before the object is written. So an object with a higher
number than the catalog knows shows that the catalog is from an earlier time (`refuse_older`).

All calls block. Objects are found by listing them: a stale list gives an older backup.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from crc32c import crc32c

from catchwater.catalog.base import BEGIN_WITH_TOPIC_ID, Catalog
from catchwater.catalog.rows import State
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectMissing, ObjectStore
from catchwater.wire.codecs import Codec, CodecError, compress, decompress

BACKUPS = "catalog/"
KEPT = 5
"""How many backups are kept; older ones are deleted."""

_ENDING = ".json.zst"
_VERSION = 1
_MAX_STATE_BYTES = 4 * 2**30


class BackupDamaged(CatchwaterError):
    """A backup is damaged, or was written by a newer release."""


class CatalogOlder(CatchwaterError):
    """The catalog is older than its own backups: later changes are missing in it."""


@dataclass(frozen=True)
class Backup:
    """A catalog's small state at one moment; the time is milliseconds since the Unix epoch."""

    number: int
    created_ms: int
    state: State

    @property
    def applied_sequence(self) -> int:
        """The last WAL frame that is applied in the state of an embedded catalog."""
        [(_, applied, *_rest)] = self.state["log"]
        return int(applied)


class Backups:
    """Writes backups of one catalog. Used by one thread at a time."""

    def __init__(self, catalog: Catalog, objects: ObjectStore, clock: Clock) -> None:
        self._catalog = catalog
        self._objects = objects
        self._clock = clock
        self._digest = -1
        self._covered = 0

    def back_up(self) -> int | None:
        """Write a backup if the state has changed since the last one; its number.

        Raises `StoreError`, or what the catalog's changes fail with.
        """
        state = self._catalog.take_state().result()
        body = _encode_state(state)
        digest = crc32c(body)
        number = None
        if digest != self._digest:
            number = self._catalog.take_backup_number().result()
            backup = encode(number, self._clock.now_ms(), body)
            self._objects.put(_key(number), [backup])
            self._digest = digest
            self._forget_older(number)
        self._covered = Backup(0, 0, state).applied_sequence
        return number

    def cover(self, sequence: int) -> None:
        """Back up unless a backup has this WAL frame; its file may be deleted only after that."""
        if self._covered < sequence:
            self.back_up()

    def _forget_older(self, number: int) -> None:
        numbers = [key for _, key in _listed(self._objects) if key <= _key(number)]
        for key in sorted(numbers)[:-KEPT]:
            self._objects.delete(key)


def refuse_older(catalog: Catalog, objects: ObjectStore) -> None:
    """Raise `CatalogOlder` if there is a backup that this catalog does not know."""
    known = catalog.last_backup()
    newest = max((number for number, _ in _listed(objects)), default=0)
    if newest > known:
        raise CatalogOlder(
            f"The catalog knows of {known} backups, but {_key(newest)} lies in {objects.url()}: it "
            "was restored from an earlier time, and what came after is missing in it.",
            hint="Bring it up to date with `catchwater log rebuild`, or name the catalog that "
            "belongs to these objects.",
        )


def newest_backup(objects: ObjectStore) -> tuple[Backup | None, list[BackupDamaged]]:
    """The newest intact backup, and the errors of newer ones."""
    damaged: list[BackupDamaged] = []
    for number, key in sorted(_listed(objects), reverse=True):
        try:
            return decode(key, number, objects.get(key)), damaged
        except BackupDamaged as error:
            damaged.append(error)
        except ObjectMissing:
            continue  # deleted since it was listed
    return None, damaged


def last_number(objects: ObjectStore) -> int:
    """The highest number of a backup; 0 if there is none."""
    return max((number for number, _ in _listed(objects)), default=0)


def encode(number: int, created_ms: int, state: bytes) -> bytes:
    """The bytes of a backup's object."""
    body = b'{"number":%d,"created_ms":%d,"state":%b}' % (number, created_ms, state)
    head = msgspec.json.encode({"version": _VERSION, "crc32c": crc32c(body)})
    return bytes(compress(Codec.ZSTD, b"\n".join((head, body))))


def decode(key: str, number: int, data: bytes) -> Backup:
    """A backup from its object's bytes. Raises `BackupDamaged`."""
    try:
        unfolded = bytes(decompress(Codec.ZSTD, data, max_bytes=_MAX_STATE_BYTES))
        head, _, body = unfolded.partition(b"\n")
        header = msgspec.json.decode(head, type=_Head)
        if header.version > _VERSION:
            raise BackupDamaged(
                f"{key} has format version {header.version}; this release reads up to {_VERSION}.",
                hint="Run the release that wrote it, or a newer one.",
            )
        if crc32c(body) != header.crc32c:
            raise BackupDamaged(f"{key} is damaged: its checksum is wrong.")
        found = msgspec.json.decode(body, type=_Body)
    except (CodecError, msgspec.DecodeError) as error:
        raise BackupDamaged(f"{key} is damaged: {error}") from error
    if found.number != number:
        raise BackupDamaged(f"{key} holds backup {found.number}; it was copied here.")
    return Backup(number, found.created_ms, dict(_decoded_rows(found.state)))


class _Head(msgspec.Struct):
    version: int
    crc32c: int


class _Body(msgspec.Struct):
    number: int
    created_ms: int
    state: dict[str, list[list[Any]]]


def _encode_state(state: State) -> bytes:
    rows = {
        table: [(bytes(row[0]).hex(), *row[1:]) for row in found]
        if table in BEGIN_WITH_TOPIC_ID
        else found
        for table, found in state.items()
    }
    return msgspec.json.encode(rows)


def _decoded_rows(state: dict[str, list[list[Any]]]) -> Iterator[tuple[str, list[list[Any]]]]:
    for table, rows in state.items():
        if table in BEGIN_WITH_TOPIC_ID:
            rows = [[bytes.fromhex(row[0]), *row[1:]] for row in rows]
        yield table, rows


def _listed(objects: ObjectStore) -> Iterator[tuple[int, str]]:
    """The numbers and keys of all backups."""
    for info in objects.list(BACKUPS):
        name = info.key.removeprefix(BACKUPS)
        if name.endswith(_ENDING) and name.removesuffix(_ENDING).isdecimal():
            yield int(name.removesuffix(_ENDING)), info.key


def _key(number: int) -> str:
    return f"{BACKUPS}{number:020d}{_ENDING}"
