"""The catalog of many brokers, in PostgreSQL.

Changes run in a few worker threads, one transaction each (READ COMMITTED, rows locked in a fixed
order); queries run in their callers' threads. What fails before its COMMIT was sent has changed
nothing and is tried again, with jitter, for `_TRYING_S` seconds; what fails while it is committed
is `CatalogUncertain`. Deadlines are by the server's clock.

Notices travel behind the COMMIT in the same message, not inside the transaction: NOTIFY takes a
lock of the whole database until its transaction is durable, which would let only one transaction
commit at a time. If that message's fate is unknown, `resync` is sent to all.
"""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from catchwater import retries
from catchwater.catalog.db import STATEMENTS, Db, migrations
from catchwater.catalog.errors import (
    CatalogFull,
    CatalogRefused,
    CatalogTooNew,
    CatalogUncertain,
)
from catchwater.catalog.rows import Notice
from catchwater.catalog.server import (
    NOTIFY,
    Connection,
    Listener,
    Pool,
    PostgresDb,
    encode_notice,
    may_be_retried,
    psycopg,
)
from catchwater.catalog.shared import SharedCatalog
from catchwater.clock import SYSTEM, Clock
from catchwater.config import CatchwaterError

T = TypeVar("T")

_TRYING_S = 10.0
_LONGEST_PAUSE_S = 1.0
_SCHEMA_LOCK = 0x6361_7463_6877_6174
"""The advisory lock held while the tables are made or upgraded."""


class PostgresCatalog(SharedCatalog):
    """One broker's, or one command's, connections to the catalog."""

    def __init__(
        self,
        url: str,
        *,
        new_cluster_id: Callable[[], str],
        clock: Clock = SYSTEM,
        connections: int = 8,
    ) -> None:
        """Open, and make or upgrade the tables. Raises `CatalogTooNew`, `CatalogUnavailable`,
        and `ConfigError` for a URL that is none.

        Half of the connections are for changes.
        """
        self._clock = clock
        self._closing = False
        self._pool = Pool(url, connections, clock)
        self._listeners: list[Listener] = []
        self._workers = ThreadPoolExecutor(max(1, connections // 2), "catalog")
        try:
            self._trying(lambda: self._migrate(new_cluster_id))
        except CatchwaterError:
            self.close()
            raise

    def listen(self, notify: Callable[[Notice], None]) -> None:
        def begin() -> Listener:
            return Listener(self._pool, notify, self._clock)

        self._listeners.append(self._trying(begin))

    def close(self) -> None:
        self._closing = True
        for listener in self._listeners:
            listener.close()
        self._workers.shutdown()
        self._pool.clear()

    def _commit(self, body: Callable[[Db], T]) -> Future[T]:
        return self._workers.submit(self._trying, lambda: self._transaction(body))

    def _query(self, body: Callable[[Db], T]) -> T:
        def once() -> T:
            with self._pool.lend() as connection:
                return body(PostgresDb(connection))

        return self._trying(once)

    def _trying(self, attempt: Callable[[], T]) -> T:
        """Try until it works, is refused, or has failed for too long."""
        give_up_s = self._clock.monotonic_s() + _TRYING_S
        pause_s = 0.01
        while True:
            try:
                return attempt()
            except psycopg.Error as error:
                is_late = self._clock.monotonic_s() + pause_s > give_up_s
                if is_late or self._closing or not may_be_retried(error):
                    raise self._refusal(error) from error
            retries.count("catalog")
            self._clock.pause(pause_s * (0.5 + self._clock.random.random()))
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    def _transaction(self, body: Callable[[Db], T]) -> T:
        with self._pool.lend() as connection:
            db = PostgresDb(connection, transaction=True)
            try:
                result = body(db)
            except CatchwaterError:
                with suppress(psycopg.Error):
                    connection.execute("ROLLBACK")
                raise
            if db.has_begun:
                self._end(connection, db.notices)
            return result

    def _end(self, connection: Connection, notices: list[Notice]) -> None:
        """Commit, and send notices. Raises `CatalogUncertain` when the outcome is unknown."""
        bind = psycopg.ClientCursor(connection)
        payloads = [payload for notice in notices for payload in encode_notice(notice)]
        message = "\n".join(["COMMIT;", *(bind.mogrify(NOTIFY, (each,)) for each in payloads)])
        try:
            ended = connection.execute(message.encode(), prepare=False)
        except psycopg.Error as error:
            if error.sqlstate is not None and error.sqlstate[:2] in ("40", "23"):
                raise
            with suppress(RuntimeError):  # closed meanwhile
                self._workers.submit(self._notify_resync)
            raise CatalogUncertain(
                f"The connection to the catalog {self._pool.name} was lost while a transaction "
                f"was committed: {self._pool.describe(error)}",
                hint="It may have happened or not: look before you do it again.",
            ) from error
        assert ended.statusmessage == "COMMIT", "what failed has raised before"

    def _notify_resync(self) -> None:
        """Have every broker read everything again: notices were lost, perhaps.

        Best effort: with the server gone, every listener has lost its connection and will do so
        anyway.
        """
        with suppress(psycopg.Error), self._pool.connect() as connection:
            for payload in encode_notice(Notice("resync")):
                connection.execute(NOTIFY, (payload,))

    def _refusal(self, error: psycopg.Error) -> CatchwaterError:
        if isinstance(error, psycopg.DataError):
            return CatalogRefused(
                f"The catalog {self._pool.name} cannot hold this: {self._pool.describe(error)}"
            )
        if isinstance(error, psycopg.errors.DiskFull):
            return CatalogFull(
                f"There is no space for the catalog {self._pool.name}.",
                hint="Free space on PostgreSQL's disk and try again.",
            )
        return self._pool.unavailable(error)

    def _migrate(self, new_cluster_id: Callable[[], str]) -> None:
        """Bring the tables to the newest version, one broker at a time."""
        scripts = migrations("postgres")
        with self._pool.lend() as connection, connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (_SCHEMA_LOCK,))
            version = _version(connection)
            if version > len(scripts):
                raise CatalogTooNew(
                    f"The catalog {self._pool.name} has schema version {version}; this release "
                    f"knows up to {len(scripts)}.",
                    hint="Start the release that wrote it, or a newer one.",
                )
            for script in scripts[version:]:
                connection.execute(script.encode())
            if version == 0:
                statement = STATEMENTS["postgres"]["log_insert"].replace("?", "%s").encode()
                connection.execute(statement, (new_cluster_id(),))


def _version(connection: Connection) -> int:
    """The version of the tables; 0 when there are none."""
    [(table,)] = connection.execute("SELECT to_regclass('schema_version')").fetchall()
    if table is None:
        return 0
    [(version,)] = connection.execute("SELECT max(version) FROM schema_version").fetchall()
    return int(version)
