"""This broker among the others: its session in the shared catalog, and who else is alive.

A session is renewed four times in its time to live. When the catalog says that it was superseded
(this process was paused, or cut off for too long), it joins again with a new epoch; nothing of
the old session is acknowledged then, which `write.writer` sees to. When another process has
joined under this broker's id, it does not: two would supersede each other for ever.

`brokers` never lists a session that the catalog has ended: it hears of every change, looks at
every heartbeat, and leaves out by itself whose deadline has passed since.
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

_BEATS_A_SESSION = 4


class BrokerReplaced(CatchwaterError):
    """Another process has joined under this broker's id; this one can only stop."""


class Cluster:
    """The sessions of one broker, one after the other. Used on the event loop."""

    def __init__(
        self, catalog: SharedCatalog, broker: BrokerRow, session_ms: int, clock: Clock
    ) -> None:
        """`broker` is how this one is to be known; epoch, state and deadline are filled in."""
        self._catalog = catalog
        self._broker = broker
        self._session_ms = session_ms
        self._clock = clock
        self._state: BrokerState = "live"
        self._joining = asyncio.Lock()
        self._news = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._rows: list[BrokerRow] = []
        # When the heartbeat was sent whose deadline our own row shows.
        self._beat_s = clock.monotonic_s()
        self._is_in_touch = True
        self.session = Session(broker.id, 0)
        """The newest one; epoch 0 before the first."""
        self.on_fenced: Callable[[], None] = lambda: None
        """Called when a heartbeat found that the session has ended."""
        self.replaced = asyncio.Event()
        """Set when another process has taken this broker's id."""

    async def join(self) -> None:
        """Begin the first session and the heartbeats. Raises `BrokerRefused`, `CatalogUnavailable`
        or `CatalogUncertain`.
        """
        await self._begin_session()
        self._tasks = [asyncio.ensure_future(self._beat()), asyncio.ensure_future(self._watch())]

    async def rejoin(self, fenced: Session) -> Session:
        """The session after this one that has ended; begins it if nobody has yet.

        Goes on trying while the catalog is out of reach. Raises `BrokerReplaced`.
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
        """The brokers that are alive as far as we know, by id."""
        own = next((row for row in self._rows if row[:2] == self.session), None)
        if own is None:
            return self._rows
        # Out of touch, we know of no deadline that was moved: then better list one too many.
        elapsed_s = min(self._clock.monotonic_s() - self._beat_s, 2 * self._interval_s)
        now_ms = own.deadline_ms - self._session_ms + int(1000 * elapsed_s)
        return [row for row in self._rows if row.deadline_ms > now_ms]

    @property
    def is_current(self) -> bool:
        """Whether the session was renewed so lately that nobody can have ended it."""
        silent_s = self._clock.monotonic_s() - self._beat_s
        return silent_s < self._session_ms / 1000 and not self.replaced.is_set()

    async def look(self) -> None:
        """Ask the catalog which brokers are alive. Raises `CatalogUnavailable`."""
        self._rows = await asyncio.to_thread(self._catalog.brokers)

    def look_soon(self) -> None:
        """The catalog has notified that a broker came or went."""
        self._news.set()

    async def drain(self) -> None:
        """Tell everybody that this broker is about to leave, if the catalog is there."""
        self._state = "draining"
        with suppress(TimeoutError):
            await asyncio.wait_for(self._beat_once(), self._interval_s)

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
        return self._session_ms / 1000 / _BEATS_A_SESSION

    async def _begin_session(self) -> None:
        self._beat_s = self._clock.monotonic_s()
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

    async def _beat(self) -> None:
        while not self.replaced.is_set():
            await self._clock.sleep(self._interval_s)
            await self._beat_once()

    async def _watch(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            # Where it cannot be reached now, the next heartbeat looks again.
            with suppress(CatalogRetriable):
                await self.look()

    async def _beat_once(self) -> None:
        session, began_s = self.session, self._clock.monotonic_s()
        beat = self._catalog.heartbeat(session, self._state, self._session_ms)
        try:
            self._rows = await asyncio.wrap_future(beat)
            self._beat_s = began_s
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
        """Say so once, not at every try."""
        if self._is_in_touch:
            _LOG.warning("%s: %s", what, error)
        self._is_in_touch = False
