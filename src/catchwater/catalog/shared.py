"""The catalog of many brokers: it also keeps their sessions, and the leases of their jobs.

It is durable itself and the only sequencer: a chunk is committed by `transact`, which locks the
rows it needs in one fixed order, lets the caller's pure function decide, and writes what it
decided, in one transaction that also checks the broker's session.

A session is a row with an epoch that was never given out before; to supersede it is to replace or
delete the row, which waits for the commits that hold it. Deadlines are by the database's clock.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence

from catchwater.catalog import commit
from catchwater.catalog.base import Catalog, change, query, snapshot
from catchwater.catalog.db import Db, Rows
from catchwater.catalog.errors import BrokerRefused
from catchwater.catalog.rows import BrokerRow, BrokerState, Notice, Session, Snapshot


class SharedCatalog(Catalog):
    """A database adds how a transaction runs, how one reads, and how notices reach everybody."""

    @abstractmethod
    def listen(self, notify: Callable[[Notice], None]) -> None:
        """Call back, from a thread of the catalog's, for every change by any broker.

        Never silent for long about a lost connection: after one it calls with `resync`. Raises
        `CatalogUnavailable`.
        """

    def load(self) -> Snapshot:
        return self._load().result()

    @change
    def _load(self, db: Db) -> Snapshot:
        db.query("backup_begin")  # all of it as of one moment
        return snapshot(db, [])

    # --- sessions ----------------------------------------------------------------------------

    @change
    def join(self, db: Db, broker: BrokerRow, ttl_ms: int) -> Session:
        """Begin a session; an earlier one of the same id is superseded. Epoch and deadline given
        are ignored. Fails with `BrokerRefused`.
        """
        # Taking an epoch locks a row, so brokers join one after the other.
        [(epoch,)] = db.query("epoch_take")
        for other in _broker_rows(db.query("broker_select", db.now_ms())):
            if other.id != broker.id:
                _check_wals(broker, other)
        row = broker._replace(epoch=epoch, deadline_ms=db.now_ms() + ttl_ms)
        db.query("broker_upsert", *row)
        db.notify(Notice("brokers"))
        return Session(broker.id, epoch)

    @change
    def heartbeat(
        self, db: Db, session: Session, state: BrokerState, ttl_ms: int
    ) -> list[BrokerRow]:
        """Move the session's deadline and supersede those whose deadline has passed; returns the
        brokers that are alive then, by id.

        Fails with `SessionFenced`.
        """
        before = db.query("broker_lock", *session)
        if not before:
            commit.require_session(session, db)
        now_ms = db.now_ms()
        # In one round trip: idle brokers do little else.
        _, expired, alive = db.batch(
            ("broker_renew", [(state, now_ms + ttl_ms, *session)]),
            ("broker_expire", [(now_ms,)]),
            ("broker_select", [(now_ms,)]),
        )
        if expired or before != [(state,)]:
            db.notify(Notice("brokers"))
        return _broker_rows(alive)

    @change
    def leave(self, db: Db, session: Session) -> None:
        """End a session; one that was superseded is no error."""
        if db.query("broker_leave", *session):
            db.notify(Notice("brokers"))

    @query
    def brokers(self, db: Db) -> list[BrokerRow]:
        """The brokers whose session has not ended and not passed its deadline, by id."""
        return _broker_rows(db.query("broker_select", db.now_ms()))

    @change
    def take_lease(self, db: Db, name: str, session: Session, ttl_ms: int) -> bool:
        """Take or renew a lease; False while another live session holds it.

        Fails with `SessionFenced`.
        """
        commit.require_session(session, db)
        now_ms = db.now_ms()
        return bool(db.query("lease_take", name, *session, now_ms + ttl_ms, now_ms, now_ms))

    # --- payloads ----------------------------------------------------------------------------

    @query
    def payload(self, db: Db, object_key: str, offset: int, size: int) -> bytes | None:
        """Bytes of a chunk that was committed with its payload; None if it is not there."""
        rows = db.query("payload_select", offset + 1, size, object_key)
        return bytes(rows[0][0]) if rows else None

    @change
    def delete_payloads(self, db: Db, object_keys: Sequence[str]) -> None:
        """Drop such bytes; keys that are not there are no error."""
        db.many("payload_delete", [(key,) for key in object_keys])


def _broker_rows(found: Rows) -> list[BrokerRow]:
    rows = [BrokerRow._make(row) for row in found]
    return [row._replace(wal_is_shared=bool(row.wal_is_shared)) for row in rows]


def _check_wals(broker: BrokerRow, other: BrokerRow) -> None:
    """Raises `BrokerRefused` unless both write where both read, and to the same kind.

    With two kinds at a time, no broker could say when a file of the other kind is finished.
    """
    if not (other.wal_is_shared and broker.wal_is_shared):
        own = other if broker.wal_is_shared else broker
        raise BrokerRefused(
            f"Broker {broker.id} may not join broker {other.id}: the write-ahead log of broker "
            f"{own.id} ({own.wal}) cannot be read by others.",
            hint="Several brokers need catchwater.wal=object or postgres, or a directory that all "
            "of them see.",
        )
    if other.wal != broker.wal:
        raise BrokerRefused(
            f"Broker {broker.id} may not join broker {other.id}: it writes to a write-ahead log of "
            f"the kind {broker.wal}, the other to one of the kind {other.wal}.",
            hint="Set the same catchwater.wal everywhere; to change it, stop all brokers first.",
        )
