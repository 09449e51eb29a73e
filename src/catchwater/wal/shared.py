"""A directory that several brokers write their write-ahead logs to, and all of them see.

    cluster            the cluster's id: no other cluster's broker may write here
    wal/<prefix>/      one folder for every session of a broker, made fresh

A broker whose directory is not the shared one (a forgotten mount) would acknowledge what nobody
else can read. Two checks stand against that: the `cluster` file, and that the folders of the
sessions alive right now are to be seen.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from catchwater.clock import Clock
from catchwater.config import CatchwaterError
from catchwater.objects.local import sync_folder
from catchwater.room import NO_SPACE

PEER_WAIT_S = 5.0
"""A session's folder is made a moment after the session: so long may it be missing."""

_LOOK_AGAIN_S = 0.1


class WalDirectoryRefused(CatchwaterError):
    """The directory is another cluster's, not the one the other brokers write to, or unusable."""


def make_session_folder(
    root: Path, prefix: str, clock: Clock, *, cluster_id: str, peers: Iterable[str] = ()
) -> None:
    """Make `<root>/wal/<prefix>`, after checking that `root` is this cluster's shared directory.

    `peers` are the prefixes of the other sessions that are alive and write to such a directory.
    Raises `WalDirectoryRefused`; then at most the `cluster` file was written.
    """
    folder = root / "wal" / prefix
    with _named(root):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _check_cluster(root, cluster_id)
        try:
            folder.mkdir()
        except FileExistsError:
            raise WalDirectoryRefused(
                f"{folder} is there already, though the catalog has just given out this session "
                "for the first time: the catalog is older than the log.",
                hint="Was the catalog restored from a backup? See `catchwater log rebuild`.",
            ) from None
        sync_folder(folder.parent)
        # Two brokers that join at once look for each other, so the own folder comes first.
        if missing := _missing_peer(root, peers, clock):
            folder.rmdir()
            raise WalDirectoryRefused(
                f"{root} does not show wal/{missing}, to which another broker is writing: it is "
                "not the directory that the others see.",
                hint="Mount the shared directory here, or set catchwater.wal=object.",
            )


def _check_cluster(root: Path, cluster_id: str) -> None:
    """Compare the `cluster` file, or write it if it is missing: whole, or not at all."""
    path = root / "cluster"
    if not path.exists():
        mine = root / f".cluster-{os.getpid()}"
        with open(mine, "w", encoding="utf-8") as file:
            file.write(f"{cluster_id}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(mine, path)
        except FileExistsError:
            pass  # another broker was first; what it wrote is compared below
        finally:
            mine.unlink()
        sync_folder(root)
    found = path.read_text(encoding="utf-8", errors="replace").strip()
    if found != cluster_id:
        raise WalDirectoryRefused(
            f"{root} is the write-ahead log of the cluster {found[:40]!r}; this broker belongs to "
            f"{cluster_id!r}.",
            hint="Name a directory of this cluster in catchwater.wal.dir, or an empty one.",
        )


def _missing_peer(root: Path, peers: Iterable[str], clock: Clock) -> str:
    """A prefix whose folder does not appear; empty: all are there."""
    deadline = clock.monotonic_s() + PEER_WAIT_S
    for prefix in peers:
        while not (root / "wal" / prefix).is_dir():
            if clock.monotonic_s() >= deadline:
                return prefix
            clock.pause(_LOOK_AGAIN_S)
    return ""


@contextmanager
def _named(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "Name a directory that this user may write to in catchwater.wal.dir."
        if error.errno in NO_SPACE:
            hint = "Make room on that file system, then start again; nothing was lost."
        raise WalDirectoryRefused(
            f"The write-ahead log's directory {root} cannot be used: {error.strerror}.", hint=hint
        ) from error
