"""Deletion of objects and WAL files that are no longer referred to, in two steps with a grace.

An object in which no run lies is marked in the catalog first; its bytes go a grace later, so that
a reader that looked it up just before still finds it, and its row last. A deletion that fails
leaves the mark, and is tried again. Objects that a crash left without a row are found by listing; a
listing may be stale, so nothing is deleted for having been seen, only for being old and unknown.

A WAL file may go once nothing that lies in it can be committed any more. Embedded: when it is
finished and every frame in it was applied. Among brokers, which commit in the order in which they
write: when its session has ended, when a frame of a later file of the session was committed, or,
where each file is one frame, when its row says that it was committed.

Everything here blocks. It works in steps of `STEP_OBJECTS` and rests in between.
"""

import logging
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import chain, pairwise
from typing import cast

from catchwater.catalog.base import Catalog
from catchwater.catalog.shared import SharedCatalog
from catchwater.log.core import Core
from catchwater.log.storage import PARQUET, SEGMENTS, STAGED, WAL
from catchwater.objects.base import ObjectInfo, StoreError, StoreFull
from catchwater.wal.base import RecoverableWal, WalDead, WalFull, WalUnavailable

_LOG = logging.getLogger(__name__)

STEP_OBJECTS = 500
"""Marked or deleted before the sweeper rests as long as that took."""

GoOn = Callable[[], bool]
"""Asked before every step: whether this broker still holds the job's lease, and is not stopping."""


class Sweeper:
    """The sweeper of one broker. Used in one thread at a time."""

    def __init__(
        self,
        core: Core,
        *,
        grace_ms: int,
        orphan_grace_ms: int,
        back_up_to: Callable[[int], None] = lambda sequence: None,
    ) -> None:
        """`grace_ms` is how long bytes stay after their object was marked.

        `orphan_grace_ms` is how old an object without a row may be: longer than any sink epoch
        takes from its first staged chunk to its commit. `back_up_to` returns once a backup of the
        catalog holds this WAL frame, which a rebuilding then needs no more.
        """
        self._core = core
        self._wal_files = _OwnFiles(core, back_up_to) if core.session is None else _Files(core)
        self._grace_s = grace_ms / 1000
        self._orphan_grace_ms = orphan_grace_ms
        # Since when, by a clock that never jumps, we know that an object is marked; after a
        # restart the grace begins anew.
        self._marked_s: dict[str, float] = {}

    def sweep(self, go_on: GoOn = lambda: True) -> int:
        """Mark what no run lies in and delete what was marked a grace ago; return how many.

        Raises what the catalog raises; what is left is found the next time.
        """
        catalog = self._core.catalog
        unused = {row.key for row in catalog.objects("live", unreferenced=True)}
        spent = self._wal_files.spent({key for key in unused if key.startswith(WAL)})
        unused = {key for key in unused if not key.startswith(WAL) or key in spent}
        for step in self._rested(unused, go_on):
            catalog.mark_deleting(step).result()
        catalog.flush().result()  # from here on no restart needs the spent files
        # A spent file without a row: nothing in it was ever appended to a partition.
        self._delete(spent - _known(catalog, spent), go_on)
        return self._delete_marked(go_on)

    def sweep_orphans(self, go_on: GoOn = lambda: True) -> int:
        """Delete objects without a row that are older than the grace; return how many.

        They are segments, Parquet and staged chunks that a crash left before their commit, and
        among brokers WAL files that were never committed.
        """
        before_ms = self._core.clock.now_ms() - self._orphan_grace_ms
        objects = self._core.storage.objects
        listed = [objects.list(prefix) for prefix in (SEGMENTS, PARQUET, STAGED)]
        listing = chain(*listed, self._wal_files.listing())
        old = {info.key for info in listing if info.modified_ms < before_ms}
        orphans = old - _known(self._core.catalog, old)
        wal_files = {key for key in orphans if key.startswith(WAL)}
        if wal_files:
            orphans -= wal_files - self._wal_files.spent(wal_files)
        return len(self._delete(orphans, go_on))

    def _delete_marked(self, go_on: GoOn) -> int:
        now_s = self._core.clock.monotonic_s()
        # One that a broker, stopped for longer than its session, has committed from stays.
        marked = {row.key for row in self._core.catalog.objects("deleting", unreferenced=True)}
        self._marked_s = {key: self._marked_s.get(key, now_s) for key in marked}
        due = [key for key, since_s in self._marked_s.items() if now_s - since_s >= self._grace_s]
        deleted = self._delete(due, go_on)
        for step in _steps(deleted):
            self._core.catalog.forget_objects(step).result()
        return len(deleted)

    def _delete(self, keys: Iterable[str], go_on: GoOn) -> set[str]:
        """Delete these objects; those that could not be deleted are logged and left out."""
        deleted = set()
        for step in self._rested(keys, go_on):
            for key in step:
                try:
                    self._core.storage.delete(key)
                except (StoreError, WalUnavailable) as error:
                    _LOG.warning("%s is deleted later: %s", key, error)
                else:
                    deleted.add(key)
        return deleted

    def _rested(self, keys: Iterable[str], go_on: GoOn) -> Iterator[list[str]]:
        clock = self._core.clock
        for step in _steps(keys):
            if not go_on():
                return
            began_s = clock.monotonic_s()
            yield step
            clock.pause(clock.monotonic_s() - began_s)


class _OwnFiles:
    """The WAL files of a broker alone."""

    def __init__(self, core: Core, back_up_to: Callable[[int], None]) -> None:
        self._core = core
        self._wal = cast(RecoverableWal, core.storage.wal)
        self._back_up_to = back_up_to

    def listing(self) -> Iterator[ObjectInfo]:
        """None: the WAL knows its files."""
        return iter(())

    def spent(self, unused: Container[str]) -> set[str]:
        """The files that are not written to any more and whose every frame was applied.

        Also of files that have no row, and never were among the `unused`.
        """
        self._finish_the_newest(unused)
        applied = self._core.writer.sequenced
        finished = {
            file.name: following.first_sequence - 1
            for file, following in pairwise(self._wal.files())
            if following.first_sequence <= applied + 1
        }
        if finished:
            try:
                self._back_up_to(max(finished.values()))
            except StoreError as error:
                if isinstance(error, StoreFull) and self._core.reserve.give_up():
                    self._back_up_to(max(finished.values()))
                    return set(finished)
                _LOG.warning("Files of the write-ahead log are deleted later: %s", error)
                return set()
        return set(finished)

    def _finish_the_newest(self, unused: Container[str]) -> None:
        """Let the newest file end if nothing in it is needed and no append can end it."""
        newest = [file.name for file in self._wal.files()][-1:]
        if self._wal.is_full and newest and newest[0] in unused:
            try:
                self._wal.roll()
            except (WalFull, WalUnavailable, WalDead) as error:
                _LOG.warning("%s is deleted later: %s", newest[0], error)


class _Files:
    """The WAL files of all brokers of a shared catalog."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def listing(self) -> Iterator[ObjectInfo]:
        """All that there are, perhaps stale."""
        return self._core.storage.wal.listing()

    def spent(self, unused: set[str]) -> set[str]:
        """Those of these files in which nothing can be committed any more."""
        catalog = cast(SharedCatalog, self._core.catalog)
        # The rows first: a session that begins later has no file among them.
        newest: dict[str, str] = {}
        for row in catalog.objects("live"):
            if row.key.startswith(WAL):
                session = _session_of(row.key)
                newest[session] = max(row.key, newest.get(session, ""))
        committed = _known(catalog, unused) if self._core.storage.wal.one_frame_files else set()
        alive = {f"{WAL}{broker.id}-{broker.epoch}/" for broker in catalog.brokers()}
        return {
            key
            for key in unused
            if _session_of(key) not in alive
            or key in committed
            or key < newest.get(_session_of(key), "")
        }


def _known(catalog: Catalog, keys: Iterable[str]) -> set[str]:
    found: set[str] = set()
    for step in _steps(keys):
        found |= catalog.known_objects(step)
    return found


def _steps(keys: Iterable[str]) -> Iterator[list[str]]:
    ordered = sorted(keys)
    return (ordered[at : at + STEP_OBJECTS] for at in range(0, len(ordered), STEP_OBJECTS))


def _session_of(key: str) -> str:
    """`wal/<broker id>-<session epoch>/` of a WAL file's key."""
    return key[: key.rfind("/") + 1]
