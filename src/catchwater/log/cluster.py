"""This broker's session in a shared catalog, and the list of live brokers.

A session is renewed four times in its time to live. When the catalog answers that it was superseded
(this process was paused, or cut off for too long), the broker joins again with a new epoch, and
`write.writer` acknowledges nothing of the old session. It does not join again when another process
has joined under its id: the two would supersede each other forever.

`brokers` never lists a session that the catalog has ended: the list is read after every notice and
at every heartbeat, and leaves out sessions whose deadline has passed since.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from catchwater.catalog.errors import (
    BrokerRefused,
    CatalogRetriable,
    SessionFenced,
)
from catchwater.catalog.rows import BrokerRow, BrokerState, Session
from catchwater.catalog.shared import SharedCatalog
from catchwater.clock import Clock
from catchwater.config import CatchwaterError

_LOG = logging.getLogger(__name__)

_HEARTBEATS_A_SESSION = 4


class BrokerReplaced(CatchwaterError):
    """Another process has joined under this broker's id; this one must stop."""


class Cluster:
    """The successive sessions of this broker. Used on the event loop."""

    def __init__(
        self, catalog: SharedCatalog, broker: BrokerRow, session_ms: int, clock: Clock
    ) -> None:
        """`broker` is this broker's row; the catalog sets its epoch, state and deadline."""
        self._catalog = catalog
        self._broker = broker
        self._session_ms = session_ms
        self._clock = clock
        self._state: BrokerState = "live"
        self._joining = asyncio.Lock()
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._rows: list[BrokerRow] = []
        # When the heartbeat was sent that set the deadline in our own row.
        self._renewed_s = clock.monotonic_s()
        self._is_in_touch = True
        self.session = Session(broker.id, 0)
        """The current session; epoch 0 before the first."""
        self.on_fenced: Callable[[], None] = lambda: None
        """Called when a heartbeat found that the session has ended."""
        self.replaced = asyncio.Event()
        """Set when another process has taken this broker's id."""

    async def join(self) -> None:
        """Begin the first session and the heartbeats. Raises `BrokerRefused`, `CatalogUnavailable`
        or `CatalogUncertain`.
        """
        await self._begin_session()
        self._tasks = [
            asyncio.ensure_future(self._heartbeats()),
            asyncio.ensure_future(self._watch()),
        ]

    async def rejoin(self, fenced: Session) -> Session:
        """The session after `fenced`; begins it unless another task has.

        Retries while the catalog cannot be reached. Raises `BrokerReplaced`.
        """
        async with self._joining:
            while self.session == fenced:
                try:
                    await self.look()
                    self._check_id_is_free()
                    await self._begin_session()
                except (CatalogRetriable, BrokerRefused) as error:
                    self._lost_touch("This broker cannot join again yet", error)
                    await self._clock.sleep(self._interval_s)
            return self.session

    def brokers(self) -> list[BrokerRow]:
        """The live brokers as far as this one knows, by id."""
        own = next((row for row in self._rows if row[:2] == self.session), None)
        if own is None:
            return self._rows
        # Without a heartbeat we do not learn new deadlines, so we stop counting down: a dead broker
        # in the list is better than a live one left out.
        elapsed_s = min(self._clock.monotonic_s() - self._renewed_s, 2 * self._interval_s)
        now_ms = own.deadline_ms - self._session_ms + int(1000 * elapsed_s)
        return [row for row in self._rows if row.deadline_ms > now_ms]

    @property
    def is_current(self) -> bool:
        """Whether the session was renewed recently enough that it cannot have expired."""
        silent_s = self._clock.monotonic_s() - self._renewed_s
        return silent_s < self._session_ms / 1000 and not self.replaced.is_set()

    async def look(self) -> None:
        """Read the live brokers from the catalog. Raises `CatalogUnavailable`."""
        self._rows = await asyncio.to_thread(self._catalog.brokers)

    def look_soon(self) -> None:
        """Read the brokers soon: a notice said that one joined or left."""
        self._news.set()

    async def drain(self) -> None:
        """Mark this broker as draining in the catalog, if it can be reached."""
        self._state = "draining"
        with suppress(TimeoutError):
            await asyncio.wait_for(self._heartbeat(), self._interval_s)

    async def leave(self) -> None:
        """End the session and the heartbeats."""
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        try:
            await asyncio.wrap_future(self._catalog.leave(self.session))
        except CatalogRetriable as error:
            _LOG.warning("The session of this broker was left to expire: %s", error)

    @property
    def _interval_s(self) -> float:
        return self._session_ms / 1000 / _HEARTBEATS_A_SESSION

    async def _begin_session(self) -> None:
        self._renewed_s = self._clock.monotonic_s()
        row = self._broker._replace(state=self._state)
        self.session = await asyncio.wrap_future(self._catalog.join(row, self._session_ms))
        _LOG.info("Broker %d has session %d.", *self.session)
        await self.look()

    def _check_id_is_free(self) -> None:
        us = self._broker
        for row in self._rows:
            is_us = (row.host, row.port, row.control_url) == (us.host, us.port, us.control_url)
            if row.id == us.id and not is_us:
                self.replaced.set()
                raise BrokerReplaced(
                    f"Another process, at {row.host}:{row.port}, has joined as broker {row.id}.",
                    hint="Give every broker a node.id of its own.",
                )

    async def _heartbeats(self) -> None:
        while not self.replaced.is_set():
            await self._clock.sleep(self._interval_s)
            await self._heartbeat()

    async def _watch(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            # If the catalog cannot be reached, the next heartbeat reads the rows.
            with suppress(CatalogRetriable):
                await self.look()

    async def _heartbeat(self) -> None:
        session, began_s = self.session, self._clock.monotonic_s()
        heartbeat = self._catalog.heartbeat(session, self._state, self._session_ms)
        try:
            self._rows = await asyncio.wrap_future(heartbeat)
            self._renewed_s = began_s
            self._is_in_touch = True
        except SessionFenced as error:
            _LOG.warning("%s", error)
            self.on_fenced()
            try:
                await self.rejoin(session)
            except BrokerReplaced as replaced:
                _LOG.critical("%s Nothing is acknowledged any more.", replaced)
        except CatalogRetriable as error:
            self._lost_touch("The catalog took no heartbeat of this broker", error)

    def _lost_touch(self, what: str, error: CatchwaterError) -> None:
        """Log it once, not at every retry."""
        if self._is_in_touch:
            _LOG.warning("%s: %s", what, error)
        self._is_in_touch = False
