"""What brokers tell each other through PostgreSQL: LISTEN on one connection, NOTIFY on any.

A notice is small JSON on the channel `catchwater`; one about many partitions becomes several, for
PostgreSQL takes less than 8,000 bytes. Since a connection may die without a word, the listener
sends a heartbeat through the channel every second or two and must hear it, or anything else, come
back; if not, or when the connection is lost, it connects anew and tells `resync`.
"""

import logging
import threading
from collections.abc import Callable, Iterator

import msgspec

from catchwater.catalog.rows import Notice
from catchwater.catalog.server.pool import Connection, Pool, psycopg
from catchwater.clock import Clock

_LOG = logging.getLogger(__name__)

NOTIFY = "SELECT pg_notify('catchwater', %s);"
_HEARTBEAT = '{"kind":"heartbeat"}'
_HEARTBEAT_S = 1.5
_LOOK_UP_S = 0.25
_RECONNECT_S = 0.5
_PARTITIONS_A_NOTICE = 80


class _Wire(msgspec.Struct, omit_defaults=True):
    kind: str
    partitions: list[tuple[str, int, int, int]] = []


def encode_notice(notice: Notice) -> Iterator[str]:
    """The payloads for a notice; each under 8,000 bytes."""
    rows = [(topic_id.hex(), *rest) for topic_id, *rest in notice.partitions]
    for at in range(0, len(rows) or 1, _PARTITIONS_A_NOTICE):
        wire = _Wire(notice.kind, rows[at : at + _PARTITIONS_A_NOTICE])  # type: ignore[arg-type]
        yield msgspec.json.encode(wire).decode()


def decode_notice(payload: str) -> Notice | None:
    """A notice; None for a heartbeat, or for a kind that this release does not know."""
    try:
        wire = msgspec.json.decode(payload, type=_Wire)
        rows = [(bytes.fromhex(topic_id), *rest) for topic_id, *rest in wire.partitions]
    except (msgspec.DecodeError, ValueError):
        return None
    if wire.kind not in ("partitions", "topics", "brokers", "resync"):
        return None
    return Notice(wire.kind, rows)  # type: ignore[arg-type]


class Listener:
    """A thread that hears notices until it is closed."""

    def __init__(self, pool: Pool, notify: Callable[[Notice], None], clock: Clock) -> None:
        """Listening has begun when this returns. Raises `psycopg.Error`."""
        self._pool = pool
        self._notify = notify
        self._clock = clock
        self._closing = threading.Event()
        first = self._pool.connect("LISTEN catchwater")
        self._thread = threading.Thread(
            target=self._run, args=(first,), name="catalog-listener", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Hear of nothing any more."""
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self, connection: Connection | None) -> None:
        while not self._closing.is_set():
            try:
                if connection is None:
                    connection = self._pool.connect("LISTEN catchwater")
                    self._notify(Notice("resync"))
                self._hear(connection)
            except psycopg.Error as error:
                if connection is not None:  # once an outage
                    _LOG.warning("No notices from the catalog: %s", self._pool.describe(error))
                self._closing.wait(_RECONNECT_S * (0.5 + self._clock.random.random()))
            finally:
                if connection is not None:
                    connection.close()
                connection = None

    def _hear(self, connection: Connection) -> None:
        """Call back for what comes. Raises `psycopg.Error` when nothing does."""
        asked_s = None
        heard_s = self._clock.monotonic_s()
        while not self._closing.is_set():
            for message in connection.notifies(timeout=_LOOK_UP_S):
                heard_s = self._clock.monotonic_s()
                asked_s = None
                notice = decode_notice(message.payload)
                if notice is not None:
                    self._notify(notice)
            now_s = self._clock.monotonic_s()
            if asked_s is None and now_s - heard_s >= _HEARTBEAT_S:
                connection.execute(NOTIFY, (_HEARTBEAT,))
                asked_s = now_s
            elif asked_s is not None and now_s - asked_s >= _HEARTBEAT_S:
                raise psycopg.OperationalError("the listening connection is deaf")
