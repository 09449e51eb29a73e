"""Brokers' sessions and leases.

A session is a row with an epoch that nobody else was ever given; to supersede it is to replace or
delete the row, which waits for the commits that hold it. Deadlines are by the database's clock.
"""

from catchwater.catalog.base import BrokerRefused, SessionFenced
from catchwater.catalog.change.commit import require_session
from catchwater.catalog.db import Db, Rows
from catchwater.catalog.rows import BrokerRow, BrokerState, Notice, Session


def join(broker: BrokerRow, ttl_ms: int, db: Db) -> Session:
    """Begin a session, superseding an earlier one of the same id. Raises `BrokerRefused`."""
    # Taking an epoch locks a row, so brokers join one after the other.
    [(epoch,)] = db.query("epoch_take")
    for other in live_brokers(db):
        if other.id != broker.id:
            _check_wals(broker, other)
    db.query("broker_upsert", *broker._replace(epoch=epoch, deadline_ms=db.now_ms() + ttl_ms))
    db.tell(Notice("brokers"))
    return Session(broker.id, epoch)


def heartbeat(session: Session, state: BrokerState, ttl_ms: int, db: Db) -> list[BrokerRow]:
    """Move the deadline, supersede sessions that missed theirs; who is alive then, by id.

    Raises `SessionFenced`.
    """
    before = db.query("broker_lock", *session)
    if not before:
        require_session(session, db)
    now_ms = db.now_ms()
    # In one trip: heartbeats are most of what brokers without work ask of the database.
    _, expired, alive = db.ask(
        ("broker_renew", [(state, now_ms + ttl_ms, *session)]),
        ("broker_expire", [(now_ms,)]),
        ("broker_select", [(now_ms,)]),
    )
    if expired or before != [(state,)]:
        db.tell(Notice("brokers"))
    return _as_brokers(alive)


def leave(session: Session, db: Db) -> None:
    """End a session; one that was superseded is no error."""
    if db.query("broker_leave", *session):
        db.tell(Notice("brokers"))


def live_brokers(db: Db) -> list[BrokerRow]:
    """The brokers whose session has not ended, by id."""
    return _as_brokers(db.query("broker_select", db.now_ms()))


def _as_brokers(found: Rows) -> list[BrokerRow]:
    rows = [BrokerRow._make(row) for row in found]
    return [row._replace(wal_is_shared=bool(row.wal_is_shared)) for row in rows]


def take_lease(name: str, session: Session, ttl_ms: int, db: Db) -> bool:
    """Take or renew a lease unless another live session holds it. Raises `SessionFenced`."""
    require_session(session, db)
    now_ms = db.now_ms()
    return bool(db.query("lease_take", name, *session, now_ms + ttl_ms, now_ms, now_ms))


def require_lease(name: str, session: Session, db: Db) -> None:
    """Keep the lease from being taken until this transaction ends. Raises `SessionFenced`."""
    if not db.query("lease_hold", name, *session, db.now_ms()):
        raise SessionFenced(
            f"Session {session.epoch} of broker {session.broker_id} has lost the lease {name!r}."
        )


def _check_wals(broker: BrokerRow, other: BrokerRow) -> None:
    """Raises `BrokerRefused` unless both write where both read, and to the same kind.

    Two kinds at a time would leave nobody to say when a file of the other kind is finished.
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
