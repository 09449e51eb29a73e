"""Power fails under an embedded log: only what was synced is there afterwards.

A disk is modelled around the real one: of a file it keeps the bytes that were there at its last
sync, of a directory the names at its last sync. At the n-th sync, before it has happened, the disk
is copied as it would be found after a power loss, with some torn bytes behind what was synced. The
log that opens the copy must hold everything that was acknowledged until then.

SQLite syncs out of sight; its file is taken as its last commit left it.
"""

import asyncio
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.simulation.test_log_crashes import (
    PARTITIONS,
    PRODUCERS,
    TOPIC,
    World,
    commit,
    copy_catalog,
    produce,
    repeat,
    verify,
)

from catchwater.broker_config import LogConfig
from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.log.log import Log
from catchwater.wire.batch import BatchError

SEEDS = int(os.environ.get("SEEDS", "20"))
CONFIG = LogConfig(wal_segment_bytes=2048, pack_min_bytes=1024, pack_interval_ms=50)


class Disk:
    """What of a folder would survive; `copy_to` is called before the n-th sync takes effect.

    Syncs are counted from when `begins` is true.
    """

    def __init__(
        self, root: Path, at_sync: int, begins: Callable[[], bool], copy_to: Callable[[], None]
    ) -> None:
        self._root = root
        self._left = at_sync
        self._begins = begins
        self._copy_to = copy_to
        self.is_off = False
        """The power has failed: the copy was made."""
        self._lock = threading.RLock()
        self._bytes: dict[int, int] = {}
        self._names: dict[Path, set[str]] = {}

    def sync(self, fd: int) -> None:
        """What `fsync` and `fdatasync` become: nothing is waited for, it is only noted."""
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if self._root != path and self._root not in path.parents:
            return
        with self._lock:
            self._count()
            found = os.fstat(fd)
            if stat.S_ISDIR(found.st_mode):
                self._names[path] = set(os.listdir(path))
            else:
                self._bytes[found.st_ino] = found.st_size

    def ignore(self, fd: int) -> None:
        """A sync that does nothing, and after which the power may fail all the same."""
        with self._lock:
            self._count()

    def _count(self) -> None:
        self._left -= self._begins()
        if self._left == 0 and not self.is_off:
            self._copy_to()
            self.is_off = True

    def survivors(self, folder: Path) -> list[tuple[Path, int]]:
        """The files below a folder that would be found, with how many of their bytes."""
        with self._lock:
            found = []
            for path in folder.rglob("*"):
                names = self._names.get(path.parent, set())
                if path.is_file() and path.name in names:
                    found.append((path, self._bytes.get(path.stat().st_ino, 0)))
            return found


def copy_survivors(disk: Disk, data: Path, after: Path, torn: random.Random) -> None:
    after.mkdir()
    for name in ("wal", "objects"):
        (after / name).mkdir()
        for path, size in disk.survivors(data / name):
            there = path.read_bytes()
            kept = there[:size]
            if name == "wal":
                # Of what was not synced yet, some may have got to the disk, and garbage with it.
                kept += there[size:][: torn.randrange(len(there) - size + 1)]
                kept += torn.randbytes(torn.choice([0, 0, 7, 100]))
            copy = after / path.relative_to(data)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(kept)
    shutil.copy(data / "format", after / "format")
    copy_catalog(data, after / "catalog.db")


async def live(data: Path, world: World, disk: Disk) -> None:
    """Append, repeat and commit until the power fails."""
    log = await Log.open(data, CONFIG, Clock(seed=1))
    try:
        await log.create_topic(TOPIC, PARTITIONS)
        world.producer_ids = [await log.allocate_producer_id() for _ in range(PRODUCERS)]
        while not disk.is_off:
            await world.random.choice([produce, produce, produce, repeat, commit])(log, world)
    finally:
        await log.close()


async def check(after: Path, world: World) -> None:
    log = await Log.open(after, CONFIG, Clock(seed=2))
    try:
        assert world.acknowledged
        world.group = await log.committed("g")  # SQLite's durability is its own
        await verify(log, world)
    finally:
        await log.close()


def lose_power(
    seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch, *, fdatasync_works: bool = True
) -> None:
    world = World(random.Random(seed))
    data, after = folder / "data", folder / "after"
    data.mkdir(parents=True)
    acknowledged = World(random.Random(0))

    def copy() -> None:
        # Acknowledged before, hence in the copy; what was committed meanwhile may be, too.
        acknowledged.acknowledged = dict(world.acknowledged)
        copy_survivors(disk, data, after, random.Random(seed))

    at_sync = world.random.randrange(1, 36)
    disk = Disk(data, at_sync, lambda: bool(world.acknowledged), copy)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", disk.sync)
        patch.setattr(os, "fdatasync", disk.sync if fdatasync_works else disk.ignore)
        asyncio.run(live(data, world, disk))
    asyncio.run(check(after, acknowledged))


@pytest.mark.parametrize("seed", range(SEEDS))
def test_what_was_acknowledged_survives_a_power_loss(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_power(seed, tmp_path, monkeypatch)


def test_a_log_that_acknowledges_before_it_syncs_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: the write-ahead log's frames are written and never synced."""
    caught = 0
    for seed in range(6):
        try:
            lose_power(seed, tmp_path / str(seed), monkeypatch, fdatasync_works=False)
        except (AssertionError, BatchError, CatchwaterError):
            caught += 1
    assert caught >= 3
