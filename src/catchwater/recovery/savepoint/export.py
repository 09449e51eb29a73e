"""Exports a savepoint as one file, and imports it.

The file is an uncompressed tar (its objects are compressed already), with `savepoint.json` first,
so that its reader knows what must follow. Member names are not trusted: an object is read only if
`savepoint.json` names it, and must have the size and checksum given there.
"""

import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from catchwater.config import CatchwaterError
from catchwater.objects.base import ObjectExists, StoreError
from catchwater.objects.open import given_keys, place
from catchwater.recovery.ledger import sync_folder
from catchwater.recovery.savepoint.create import Progress, SavepointExists, keep
from catchwater.recovery.savepoint.format import (
    FILE,
    LARGEST_FILE_BYTES,
    Savepoint,
    SavepointDamaged,
    check_signed,
    decode,
    encode,
)
from catchwater.recovery.savepoint.signature import SavepointUntrusted
from catchwater.recovery.savepoint.store import Shelf
from catchwater.recovery.savepoint.verify import read_whole

if TYPE_CHECKING:
    from catchwater.objects.keys import Keys


class FileExists(CatchwaterError):
    """There is a file of this name already."""

    exit_code = 2


def export_file(shelf: Shelf, name: str, path: Path, progress: Progress | None = None) -> int:
    """Write a savepoint into a new file, whole or not at all; its size in bytes.

    Raises `FileExists`, `NoSuchSavepoint`, `SavepointDamaged`, `StoreError`.
    """
    if path.exists():
        raise FileExists(f"{path} exists already.", hint="Name another file.")
    path.parent.stat()  # a folder that is not there is an error by its own name
    data, where = shelf.raw(name)
    savepoint = decode(data, where)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with fresh.open("xb") as file, tarfile.open(fileobj=file, mode="w") as tar:
            _add(tar, savepoint, FILE, data)  # with its signature
            for number, each in enumerate(savepoint.objects, 1):
                try:
                    _add(tar, savepoint, each.key, read_whole(shelf.store, name, each))
                except (StoreError, ValueError) as error:
                    raise SavepointDamaged(
                        f"{place(shelf.store, f'{name}/{each.key}')} cannot be read: "
                        f"{str(error).rstrip('.')}.",
                        hint="catchwater savepoint verify tells everything that is damaged.",
                    ) from error
                if progress:
                    progress(number, len(savepoint.objects))
            tar.close()
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(path.parent)
    finally:
        fresh.unlink(missing_ok=True)
    return path.stat().st_size


def read_head(path: Path) -> Savepoint:
    """The `savepoint.json` of an exported file. Raises `SavepointDamaged`."""
    with _opened(path) as tar:
        return decode(_head(path, tar), str(path))


def import_file(
    shelf: Shelf, path: Path, progress: Progress | None = None, *, pin: str | None = None
) -> Savepoint:
    """Put a savepoint from a file onto a shelf, complete or invisible.

    `pin` is the one that will hold the log for it here, empty: none will; None: what it was before.
    What was signed with one of our keys is signed again, and what was not stays as it is. Raises
    `SavepointExists`, `SavepointDamaged` naming what is wrong with the file.
    """
    with _opened(path) as tar:
        data = _head(path, tar)
        savepoint = decode(data, str(path))
        if pin not in (None, savepoint.pin):
            savepoint = msgspec.structs.replace(savepoint, pin=pin)
            data = encode(savepoint, _keys_that_signed(data, path))
        if shelf.exists(savepoint.name):
            raise SavepointExists(
                f"There is a savepoint {savepoint.name!r} at {shelf.store.url()} already.",
                hint="Delete that one first, or name another place with --at.",
            )
        return _take(shelf, savepoint, data, path, tar, progress)


def _keys_that_signed(data: bytes, path: Path) -> "Keys | None":
    keys = given_keys()
    if keys is not None:
        try:
            check_signed(data, str(path), keys)
        except SavepointUntrusted:
            return None
    return keys


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    try:
        with path.open("rb") as file, tarfile.open(fileobj=file, mode="r:") as tar:
            yield tar
    except tarfile.TarError as error:
        raise SavepointDamaged(
            f"{path} is no exported savepoint: {error}.", hint="Export it again, or copy it again."
        ) from error


def _head(path: Path, tar: tarfile.TarFile) -> bytes:
    first = tar.next()
    if (
        first is None
        or not first.isreg()
        or first.name.rpartition("/")[2] != FILE
        or first.size > LARGEST_FILE_BYTES
    ):
        raise SavepointDamaged(
            f"{path} is no exported savepoint: {FILE} does not come first.",
            hint="Name a file that catchwater savepoint export has written.",
        )
    return _bytes(tar, first)


def _take(
    shelf: Shelf,
    savepoint: Savepoint,
    data: bytes,
    path: Path,
    tar: tarfile.TarFile,
    progress: Progress | None,
) -> Savepoint:
    expected = {f"{savepoint.name}/{each.key}": each for each in savepoint.objects}
    total = len(expected)
    while (member := tar.next()) is not None:
        stored = expected.pop(member.name, None)
        if stored is None or not member.isreg() or member.size != stored.size_bytes:
            raise SavepointDamaged(f"{path}: {member.name!r} is not what {FILE} names.")
        if keep(shelf.store, savepoint.name, stored.key, _bytes(tar, member)) != stored:
            raise SavepointDamaged(f"{path}: the checksum of {member.name!r} does not match.")
        if progress:
            progress(total - len(expected), total)
    if expected:
        raise SavepointDamaged(f"{path} ends before {min(expected)!r}.")
    try:
        shelf.store.put_if_absent(f"{savepoint.name}/{FILE}", [data])
    except ObjectExists as error:
        raise SavepointExists(f"A savepoint {savepoint.name!r} was made meanwhile.") from error
    return savepoint


def _add(tar: tarfile.TarFile, savepoint: Savepoint, key: str, data: bytes) -> None:
    member = tarfile.TarInfo(f"{savepoint.name}/{key}")
    member.size = len(data)
    member.mtime = savepoint.created_ms // 1000
    tar.addfile(member, io.BytesIO(data))


def _bytes(tar: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = tar.extractfile(member)
    assert file is not None, "a regular file has bytes"
    return file.read()
