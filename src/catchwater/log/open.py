"""Opens a log: of a lone broker over its data directory, or of one of many over a shared catalog.

A lone broker locks its data directory and replays the write-ahead log into the catalog. One of many
has nothing to recover: it joins, follows the catalog's notices, and loads the present state.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from catchwater.broker_config import LogConfig
from catchwater.catalog.errors import CatalogUncertain
from catchwater.catalog.rows import BrokerRow, Session
from catchwater.catalog.shared import SharedCatalog
from catchwater.catalog.topics import Topics
from catchwater.clock import Clock
from catchwater.config import ConfigError
from catchwater.log.cluster import Cluster
from catchwater.log.core import Core, States
from catchwater.log.directory import DataDirectory, new_cluster_id
from catchwater.log.repair.backup import refuse_older
from catchwater.log.storage import Storage
from catchwater.log.view import View
from catchwater.log.write.shared import OpenWal, SharedCommitter
from catchwater.log.write.writer import EmbeddedCommitter, Intake, Writer
from catchwater.objects.base import ObjectStore
from catchwater.objects.open import open_store
from catchwater.room import Reserve
from catchwater.wal.base import Wal
from catchwater.wal.open import WalKind, open_wal, session_prefix

_LOG = logging.getLogger(__name__)

_TRIES, _AGAIN_S = 5, 0.5


@dataclass(frozen=True)
class SharedStores:
    """The stores that many brokers share."""

    catalog_url: str
    objects_url: str
    wal: WalKind = "object"
    wal_dir: Path | None = None
    """For the kind `file`: a directory that all brokers can read."""
    wal_linger_ms: int = 150
    """For the kind `object`."""


@dataclass(frozen=True)
class OpenLog:
    """The parts of an opened log; call `close` when nothing is being written any more."""

    cluster_id: str
    core: Core
    view: View | None
    close: Callable[[], Awaitable[None]]


async def embedded(
    data_dir: Path, config: LogConfig, clock: Clock, objects_url: str = ""
) -> OpenLog:
    """Lock the data directory and recover the log.

    Raises what `DataDirectory` raises, `CatalogOlder` or `ChunkError`.
    """
    directory, committer, sequenced = await asyncio.to_thread(
        _recover, data_dir, config, clock, objects_url
    )
    states, txns = committer.states, committer.txns_by_producer
    core = Core(
        directory.catalog,
        Storage(directory.wal, directory.objects),
        Topics(directory.snapshot.topics),
        states,
        txns,
        clock,
        Intake(config.pending_bytes, states),
        # Objects elsewhere are not on the disk of the reserve.
        reserve=Reserve() if objects_url else directory.reserve,
    )
    core.committer = committer
    core.writer = Writer(committer, core.intake, clock, directory.wal, sequenced=sequenced)

    async def close() -> None:
        await asyncio.to_thread(directory.close)

    return OpenLog(directory.snapshot.cluster_id, core, None, close)


def _recover(
    data_dir: Path, config: LogConfig, clock: Clock, objects_url: str
) -> tuple[DataDirectory, EmbeddedCommitter, int]:
    directory = DataDirectory(
        data_dir,
        clock,
        catalog_lag_s=config.catalog_lag_ms / 1000,
        wal_segment_bytes=config.wal_segment_bytes,
        objects_url=objects_url,
        reserve_bytes=config.reserve_bytes,
    )
    with ExitStack() as undo:
        undo.callback(directory.close)
        refuse_older(directory.catalog, directory.objects)
        for finding in directory.wal.recovered.findings():
            _LOG.warning("%s", finding)
        committer = EmbeddedCommitter(directory.catalog, directory.snapshot)
        applied = directory.snapshot.applied_sequence
        sequenced = committer.catch_up(directory.wal.frames(applied)) or applied
        undo.pop_all()
    return directory, committer, sequenced


async def shared(
    catalog: SharedCatalog,
    objects: ObjectStore,
    open_wal: OpenWal,
    broker: BrokerRow,
    config: LogConfig,
    clock: Clock,
) -> OpenLog:
    """Join as this broker, and load the present state.

    Raises `BrokerRefused`, `WalDirectoryRefused`, `CatalogUnavailable`, `CatalogUncertain` or
    `CatalogOlder`; the catalog stays open then.
    """
    await asyncio.to_thread(refuse_older, catalog, objects)
    cluster_id = (await asyncio.to_thread(catalog.load)).cluster_id
    # From here on this broker has a session; a failure ends it again.
    cluster = Cluster(catalog, broker, config.session_ms, clock)
    await cluster.join()
    async with AsyncExitStack() as undo:
        undo.push_async_callback(cluster.leave)
        wal = await asyncio.to_thread(open_wal, cluster.session)
        states: States = {}
        intake = Intake(config.pending_bytes, states)
        core = Core(catalog, Storage(wal, objects), Topics(), states, {}, clock, intake, cluster)
        view = View(core, catalog, cluster)
        undo.push_async_callback(view.close)
        # Notices first, then everything: no change between the two is missed.
        await asyncio.to_thread(catalog.listen, view.notify)
        await view.load()
        core.committer = SharedCommitter(core, catalog, view, cluster, open_wal)
        core.writer = Writer(core.committer, intake, clock, wal, session=cluster.session)
        cluster.on_fenced = core.writer.fenced
        undo.pop_all()

    async def close() -> None:
        await view.close()
        await cluster.leave()
        await asyncio.to_thread(catalog.close)

    return OpenLog(cluster_id, core, view, close)


async def connect(
    stores: SharedStores, broker: BrokerRow, config: LogConfig, clock: Clock
) -> OpenLog:
    """Open the stores that these settings name, then as `shared`.

    Once more, some times, if the connection to the catalog is lost at the end of a transaction: it
    was there, and what joining changes may be changed twice. Raises `ConfigError` too, for a
    missing optional package or a malformed URL.
    """
    for _ in range(_TRIES - 1):
        try:
            return await _connect(stores, broker, config, clock)
        except CatalogUncertain as error:
            _LOG.warning("%s This broker begins once more.", error)
            await clock.sleep(_AGAIN_S)
    return await _connect(stores, broker, config, clock)


async def _connect(
    stores: SharedStores, broker: BrokerRow, config: LogConfig, clock: Clock
) -> OpenLog:
    catalog = await asyncio.to_thread(open_catalog, stores.catalog_url, clock)
    async with AsyncExitStack() as undo:
        undo.push_async_callback(asyncio.to_thread, catalog.close)
        objects = await asyncio.to_thread(open_store, stores.objects_url, clock)
        opener = partial(_open_wal, stores, catalog, objects, config, clock)
        is_shared = stores.wal != "file" or stores.wal_dir is not None
        broker = broker._replace(wal=stores.wal, wal_is_shared=is_shared)
        opened = await shared(catalog, objects, opener, broker, config, clock)
        undo.pop_all()
    return opened


def open_catalog(url: str, clock: Clock) -> SharedCatalog:
    """The catalog of this URL. Raises `ConfigError`, `CatalogTooNew` or `CatalogUnavailable`."""
    try:
        from catchwater.catalog.postgres import PostgresCatalog
    except ModuleNotFoundError as error:
        raise ConfigError(
            "A catalog in PostgreSQL needs the package psycopg, which is not installed.",
            hint="Install catchwater with the extra postgres: pip install 'catchwater[postgres]'.",
        ) from error
    return PostgresCatalog(url, new_cluster_id=lambda: new_cluster_id(clock), clock=clock)


def _open_wal(
    stores: SharedStores,
    catalog: SharedCatalog,
    objects: ObjectStore,
    config: LogConfig,
    clock: Clock,
    session: Session,
) -> Wal:
    others = (row for row in catalog.brokers() if row.id != session.broker_id)
    return open_wal(
        stores.wal,
        session_prefix(session),
        clock,
        catalog=catalog,
        store=objects,
        root=stores.wal_dir,
        cluster_id=catalog.load().cluster_id,
        peers=[session_prefix(Session(row.id, row.epoch)) for row in others if row.wal == "file"],
        linger_ms=stores.wal_linger_ms,
        segment_bytes=config.wal_segment_bytes,
    )
