"""The write-ahead log of one broker among many, by its kind.

A broker alone recovers its log instead: see `wal.file.FileWal`.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from catchwater.catalog.rows import Session
from catchwater.catalog.shared import SharedCatalog
from catchwater.clock import Clock
from catchwater.objects.base import ObjectStore
from catchwater.objects.open import given_keys, seals_local
from catchwater.wal.base import Wal, WalPlace
from catchwater.wal.directory import WalDirectory
from catchwater.wal.file import SEGMENT_BYTES, FileWal
from catchwater.wal.object import LINGER_MS, ObjectWal
from catchwater.wal.postgres import PostgresWal
from catchwater.wal.routed import RoutedWal
from catchwater.wal.shared import make_session_folder

WalKind = Literal["file", "object", "postgres"]


def session_prefix(session: Session) -> str:
    """Where a session's files lie below `wal/`: sessions are never given out twice."""
    return f"{session.broker_id}-{session.epoch}/"


def open_wal(
    kind: WalKind,
    prefix: str,
    clock: Clock,
    *,
    catalog: SharedCatalog,
    store: ObjectStore,
    root: Path | None = None,
    cluster_id: str = "",
    peers: Iterable[str] = (),
    linger_ms: int = LINGER_MS,
    segment_bytes: int = SEGMENT_BYTES,
) -> Wal:
    """A fresh WAL of this kind for the session that `prefix` names.

    It reads and removes the files of every session, also those that wrote to another kind. `root`
    is the directory that all brokers see. Only the kind `file` must have it, and uses `cluster_id`
    (it must be that cluster's), `peers` (the prefixes of the other live sessions; it must show
    them) and `segment_bytes`. Raises `WalDirectoryRefused`.
    """
    keys = given_keys()
    rows = PostgresWal(catalog, prefix=prefix)
    objects = ObjectWal(store, clock, prefix=prefix, linger_ms=linger_ms)
    files: list[WalPlace] = [] if root is None else [WalDirectory(root, keys)]
    match kind:
        case "file":
            assert root is not None and cluster_id, "the kind file needs a directory and a cluster"
            make_session_folder(root, prefix, clock, cluster_id=cluster_id, peers=peers)
            own = FileWal(
                root, clock, applied=0, segment_bytes=segment_bytes, prefix=prefix, keys=keys,
                seals=seals_local(),
            )  # fmt: skip
            return RoutedWal(own, [rows, objects])
        case "object":
            return RoutedWal(objects, [rows, *files])
        case "postgres":
            return RoutedWal(rows, [objects, *files])
