"""Connections to PostgreSQL, lent one at a time, and what their failures mean.

Every connection asks the server to cut statements and idle transactions short, so that a broker
that stands still lets go of its locks; and it does not wait for ever for a server that does. Its
commits are durable when they are answered, even where `synchronous_commit=off` is the default. An
idle connection that the server has ended is noticed before it is lent, without a round trip.

The URL's password appears in no message of ours.
"""

import select
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, LiteralString
from urllib.parse import urlsplit

from catchwater.catalog.base import CatalogUnavailable
from catchwater.catalog.db import Rows
from catchwater.catalog.rows import Notice
from catchwater.catalog.statements import sql
from catchwater.clock import Clock
from catchwater.config import ConfigError

try:
    import psycopg as psycopg  # for the others, who must not meet its absence before this does
    from psycopg.conninfo import conninfo_to_dict
except ImportError as error:
    raise ConfigError(
        f"A catalog in PostgreSQL needs the package psycopg: {error}.",
        hint="Install it: pip install 'catchwater[postgres]'.",
    ) from None

_OPTIONS = "-c statement_timeout=10000 -c idle_in_transaction_session_timeout=2000"
_DURABLE: LiteralString = (
    "SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)
_NOW_MS = "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;"
_CONNECT_S = 5
_ANSWER_S = 15.0
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
    """A `Db` over one connection; `notices` are what it was told in this transaction.

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
        """Run a statement; what it returns."""
        if self._in_transaction:
            return self.each(statement, [parameters])
        return self._connection.execute(_translated(statement), parameters).fetchall()

    def each(self, statement: str, keys: Sequence[Sequence[object]]) -> Rows:
        """Run a statement with each of the parameters; all that they return."""
        [rows] = self.ask((statement, keys))
        return rows

    def ask(self, *questions: tuple[str, Sequence[Sequence[object]]]) -> list[Rows]:
        """Several statements, each as by `each`, in one round trip."""
        texts = [self._bound(statement, keys) for statement, keys in questions]
        answers = iter(self._send([text for several in texts for text in several]))
        return [[row for _ in several for row in next(answers)] for several in texts]

    def many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run a statement with each of the rows; at once where it takes whole columns."""
        texts = self._bound(statement, rows)
        if self._held is None:
            self._send(texts)
        else:
            self._held += texts

    @contextmanager
    def in_one_trip(self) -> Iterator[None]:
        """What `many` writes inside it is sent at once."""
        held: list[str] = []
        self._held = held
        yield
        self._held = None
        self._send(held)

    def _bound(self, statement: str, rows: Sequence[Sequence[object]]) -> list[str]:
        """The statement with each row's values in it, or once with all of them."""
        text = _translated(statement)
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
        """The server's clock."""
        [(now_ms,)] = self._send(
            ["SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint;"]
        )[0]
        return int(now_ms)

    def tell(self, notice: Notice) -> None:
        """Remember a notice for the time after the commit."""
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
        """Close the connections that nobody uses; after one was lost, the others may be too."""
        while self._idle:
            self._idle.pop().close()

    def describe(self, error: psycopg.Error) -> str:
        """What the server or psycopg said, in one line and without the password."""
        text = " ".join(str(error).split()) or type(error).__name__
        return text.replace(self._password, "***") if self._password else text

    def unavailable(self, error: psycopg.Error) -> CatalogUnavailable:
        """What to tell a caller whose change or query came to nothing."""
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
    """The URL as it may be shown: its place, nobody's name and no secret."""
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


_texts: dict[str, str] = {}


def _translated(statement: str) -> str:
    """The statement with psycopg's placeholders."""
    text = _texts.get(statement)
    if text is None:
        text = sql(statement, "postgres").replace("%", "%%").replace("?", "%s")
        _texts[statement] = text
    return text
