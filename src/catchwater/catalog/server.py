"""How a broker talks to PostgreSQL: connections, lent one at a time, what their failures mean, and
notices.

Every connection asks the server to cut statements and idle transactions short, so that a broker
that stands still lets go of its locks; and it does not wait for ever for a server that does. Its
commits are durable when they are answered, even where `synchronous_commit=off` is the default. An
idle connection that the server has ended is noticed before it is lent, without a round trip.

The URL's password appears in no message of ours.

A notice is small JSON on the channel `catchwater`; one about many partitions becomes several, for
PostgreSQL takes less than 8,000 bytes. Since a connection may die without a word, the listener
sends a heartbeat through the channel every second or two and must receive it, or anything else;
if not, or when the connection is lost, it connects again and calls back with `resync`.
"""

import logging
import select
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString
from urllib.parse import urlsplit

import msgspec

from catchwater.catalog.db import STATEMENTS, Rows
from catchwater.catalog.errors import CatalogUnavailable
from catchwater.catalog.rows import Notice, RunRow
from catchwater.clock import Clock
from catchwater.config import ConfigError

try:
    import psycopg as psycopg  # `postgres.py` takes it from here: its absence is explained once
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise ConfigError(
        f"A catalog in PostgreSQL needs the package psycopg: {error}.",
        hint="Install it: pip install 'catchwater[postgres]'.",
    ) from None

_LOG = logging.getLogger(__name__)

_OPTIONS = "-c statement_timeout=10000 -c idle_in_transaction_session_timeout=2000"
_DURABLE: LiteralString = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)
_NOW_MS = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;"
_CONNECT_S = 5
_ANSWER_S = 15.0
_STATEMENTS = {
    name: text.replace("%", "%%").replace("?", "%s")
    for name, text in STATEMENTS["postgres"].items()
}
"""With psycopg's placeholders."""
_RETRIED = {"40001", "40P01", "55P03", "57014", "25006", "25P03"}
"""Serialization failure, deadlock, lock or statement timeout, a standby, idle in transaction."""


class Connection(psycopg.Connection[tuple[Any, ...]]):
    """One that gives up on a server that says nothing for `_ANSWER_S` seconds."""

    clock: Clock

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        """Wait for an answer, as psycopg does. Raises `psycopg.OperationalError`."""
        return super().wait(self._timed(gen), *args, **kwargs)

    def _timed(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        give_up_s = self.clock.monotonic_s() + _ANSWER_S
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and self.clock.monotonic_s() > give_up_s:
                    raise psycopg.OperationalError(f"no answer in {_ANSWER_S:.0f} s")
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value


class PostgresDb:
    """A `Db` over one connection; `notices` are those to send after the commit.

    What is done in a transaction travels as whole Query messages, several statements each. They
    save round trips, and the server's clock for idle transactions runs whenever it waits for us;
    psycopg's pipelines stop that clock, so a broker that stood still would keep its locks for ever.
    """

    def __init__(self, connection: Connection, *, transaction: bool = False) -> None:
        """A transaction begins with its first statement, in the same message."""
        self._connection = connection
        self._in_transaction = transaction
        self._bind = psycopg.ClientCursor(connection)
        self._held: list[str] | None = None
        self.has_begun = False
        self.notices: list[Notice] = []

    def query(self, statement: str, *parameters: object) -> Rows:
        if self._in_transaction:
            return self.each(statement, [parameters])
        return self._connection.execute(_STATEMENTS[statement], parameters).fetchall()

    def each(self, statement: str, keys: Sequence[Sequence[object]]) -> Rows:
        [rows] = self.batch((statement, keys))
        return rows

    def batch(self, *queries: tuple[str, Sequence[Sequence[object]]]) -> list[Rows]:
        texts = [self._bound(statement, keys) for statement, keys in queries]
        answers = iter(self._send([text for several in texts for text in several]))
        return [[row for _ in several for row in next(answers)] for several in texts]

    def many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        texts = self._bound(statement, rows)
        if self._held is None:
            self._send(texts)
        else:
            self._held += texts

    def add_runs(self, runs: Sequence[RunRow]) -> None:
        self.many("run_insert", runs)

    @contextmanager
    def in_one_trip(self) -> Iterator[None]:
        held: list[str] = []
        self._held = held
        yield
        self._held = None
        self._send(held)

    def _bound(self, statement: str, rows: Sequence[Sequence[object]]) -> list[str]:
        """The statement with each row's values in it, or once with all of them."""
        text = _STATEMENTS[statement]
        if rows and "unnest(" in text:
            columns = [list(column) for column in zip(*rows, strict=True)]
            return [self._bind.mogrify(text, columns)]
        return [self._bind.mogrify(text, row) for row in rows]

    def _send(self, texts: Sequence[str]) -> list[Rows]:
        """Run statements, in one message; what each returns."""
        assert self._held is None, "nothing is asked while statements are held back"
        if not texts:
            return []
        begin = self._in_transaction and not self.has_begun
        message = "\n".join(["BEGIN;", *texts] if begin else texts)
        cursor = self._connection.execute(message.encode(), prepare=False)
        self.has_begun |= begin
        if begin:
            cursor.nextset()
        answers = [_fetched(cursor)]
        while cursor.nextset():
            answers.append(_fetched(cursor))
        return answers

    def now_ms(self) -> int:
        [[(now_ms,)]] = self._send([_NOW_MS])  # by the server's clock
        return int(now_ms)

    def notify(self, notice: Notice) -> None:
        self.notices.append(notice)


class Pool:
    """At most `size` connections. Used from any thread."""

    def __init__(self, url: str, size: int, clock: Clock) -> None:
        """Raises `ConfigError` for a URL that is none; connects to nothing yet."""
        try:
            self._settings = dict(conninfo_to_dict(url))
        except psycopg.Error:
            raise ConfigError(
                f"The catalog's URL {masked(url)} cannot be read.",
                hint="Write it as postgresql://user:password@host:5432/database.",
            ) from None
        self.name = masked(url)
        self._settings["options"] = f"{_OPTIONS} {self._settings.get('options') or ''}".strip()
        self._password = str(self._settings.get("password") or "")
        self._clock = clock
        self._idle: deque[Connection] = deque()
        self._free = threading.Semaphore(size)

    def connect(self, *statements: LiteralString) -> Connection:
        """A new connection that commits every statement by itself, after these statements.

        Raises `psycopg.Error`.
        """
        defaults: dict[str, Any] = {
            "connect_timeout": _CONNECT_S,
            "tcp_user_timeout": int(_ANSWER_S * 1000),
            "application_name": "catchwater",
        }
        connection = Connection.connect("", autocommit=True, **(defaults | self._settings))
        connection.clock = self._clock
        try:
            for statement in (_DURABLE, *statements):
                connection.execute(statement)
        except psycopg.Error:
            connection.close()
            raise
        return connection

    @contextmanager
    def lend(self) -> Iterator[Connection]:
        """A connection outside any transaction; one that fails is not lent again."""
        with self._free:
            connection = self._take() or self.connect()
            try:
                yield connection
            except psycopg.Error:
                if _is_lost(connection):
                    self.clear()
                raise
            finally:
                self._give_back(connection)

    def clear(self) -> None:
        """Close the idle connections; after one was lost, the others may be too."""
        while self._idle:
            self._idle.pop().close()

    def describe(self, error: psycopg.Error) -> str:
        """What the server or psycopg said, in one line and without the password."""
        text = " ".join(str(error).split()) or type(error).__name__
        return text.replace(self._password, "***") if self._password else text

    def unavailable(self, error: psycopg.Error) -> CatalogUnavailable:
        """The error of a change or query that failed and changed nothing."""
        return CatalogUnavailable(
            f"The catalog {self.name} did not do what it was asked: {self.describe(error)}",
            hint="Check that PostgreSQL runs and can be reached; nothing was changed.",
        )

    def _take(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not _has_news(connection):
                return connection
            connection.close()
        return None

    def _give_back(self, connection: Connection) -> None:
        """Keep it if it is good for another transaction."""
        status = connection.info.transaction_status
        if status == psycopg.pq.TransactionStatus.IDLE and not connection.closed:
            self._idle.append(connection)
        else:
            connection.close()


def may_be_retried(error: psycopg.Error) -> bool:
    """Whether a transaction that failed so, before its commit, may do better another time."""
    state = error.sqlstate
    if state is None:
        return isinstance(error, psycopg.OperationalError)
    return state in _RETRIED or state[:2] in ("08", "57") or state == "53300"


def masked(url: str) -> str:
    """The URL as it may be shown: its place, without user and password."""
    try:
        parts = urlsplit(url)
        place = parts.hostname or "localhost"
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return "postgresql://…"
    return f"{parts.scheme}://{place}{port}{parts.path}" if parts.scheme else "postgresql://…"


def _has_news(connection: Connection) -> bool:
    """An idle connection has nothing to say, unless the server ends it."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _is_lost(connection: Connection) -> bool:
    return connection.closed or connection.broken


def _fetched(cursor: psycopg.Cursor[tuple[Any, ...]]) -> Rows:
    return cursor.fetchall() if cursor.description else []


# --- notices -------------------------------------------------------------------------------

NOTIFY = "SELECT pg_notify('catchwater', %s);"
_HEARTBEAT = '{"kind":"heartbeat"}'
_HEARTBEAT_S = 1.5
_LOOK_UP_S = 0.25
_RECONNECT_S = 0.5
_PARTITIONS_A_NOTICE = 80


class _NoticeJson(msgspec.Struct, omit_defaults=True):
    kind: str
    partitions: list[tuple[str, int, int, int]] = []


def encode_notice(notice: Notice) -> Iterator[str]:
    """The payloads for a notice; each under 8,000 bytes."""
    rows = [(topic_id.hex(), *rest) for topic_id, *rest in notice.partitions]
    for at in range(0, len(rows) or 1, _PARTITIONS_A_NOTICE):
        found = _NoticeJson(notice.kind, rows[at : at + _PARTITIONS_A_NOTICE])  # type: ignore[arg-type]
        yield msgspec.json.encode(found).decode()


def decode_notice(payload: str) -> Notice | None:
    """A notice; None for a heartbeat, or for a kind that this release does not know."""
    try:
        found = msgspec.json.decode(payload, type=_NoticeJson)
        rows = [(bytes.fromhex(topic_id), *rest) for topic_id, *rest in found.partitions]
    except (msgspec.DecodeError, ValueError):
        return None
    if found.kind not in ("partitions", "topics", "brokers", "resync"):
        return None
    return Notice(found.kind, rows)  # type: ignore[arg-type]


class Listener:
    """A thread that receives notices until it is closed."""

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
        """No call follows this one."""
        self._closing.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self, connection: Connection | None) -> None:
        while not self._closing.is_set():
            try:
                if connection is None:
                    connection = self._pool.connect("LISTEN catchwater")
                    self._notify(Notice("resync"))
                self._receive(connection)
            except psycopg.Error as error:
                if connection is not None:  # once an outage
                    _LOG.warning("No notices from the catalog: %s", self._pool.describe(error))
                self._closing.wait(_RECONNECT_S * (0.5 + self._clock.random.random()))
            finally:
                if connection is not None:
                    connection.close()
                connection = None

    def _receive(self, connection: Connection) -> None:
        """Call back for what comes. Raises `psycopg.Error` when nothing does."""
        asked_s = None
        received_s = self._clock.monotonic_s()
        while not self._closing.is_set():
            for message in connection.notifies(timeout=_LOOK_UP_S):
                received_s = self._clock.monotonic_s()
                asked_s = None
                notice = decode_notice(message.payload)
                if notice is not None:
                    self._notify(notice)
            now_s = self._clock.monotonic_s()
            if asked_s is None and now_s - received_s >= _HEARTBEAT_S:
                connection.execute(NOTIFY, (_HEARTBEAT,))
                asked_s = now_s
            elif asked_s is not None and now_s - asked_s >= _HEARTBEAT_S:
                raise psycopg.OperationalError("the listening connection is deaf")
